//! A cgroup of a test's own, beside the one that the tests run in.

use std::fs::{self, File};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Signal, pidfd_send_signal};

use super::running::open_process;
use super::{BOUND, cgroups, sys, unique};

/// A cgroup that is killed and removed, with all below it, when dropped.
#[derive(Debug)]
pub(crate) struct Nest {
    path: PathBuf,
}

impl Nest {
    /// Makes one; `None` where that is not allowed.
    pub(crate) fn new() -> Option<Nest> {
        Nest::below(&cgroups::of_process("self")?)
    }

    /// Makes one in this cgroup.
    pub(crate) fn below(place: &Path) -> Option<Nest> {
        let path = place.join(format!("tk-test-{}", unique()));
        fs::create_dir(&path).ok()?;
        Some(Nest { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Hands the subtree to a user, as cgroups(7) describes delegation.
    pub(crate) fn delegate(&self, user: u32) {
        let files = ["", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"];
        for file in files {
            std::os::unix::fs::chown(self.path.join(file), Some(user), Some(user))
                .expect("root delegates a cgroup of its own");
        }
    }

    /// The command will be started in this cgroup.
    pub(crate) fn receive(&self, command: &mut Command) {
        let procs = File::options()
            .write(true)
            .open(self.path.join("cgroup.procs"))
            .expect("a cgroup of our own has a list of members");
        sys::before_exec(command, move || {
            rustix::io::write(procs.as_fd(), b"0")?;
            Ok(())
        });
    }

    /// The cgroups in it, except those that the test made itself.
    pub(crate) fn children(&self) -> Vec<PathBuf> {
        directories(&self.path)
    }

    /// Waits until nothing lives in it or below; false when the bound passed.
    pub(crate) fn is_deserted(&self) -> bool {
        let Ok(events) = File::open(self.path.join("cgroup.events")) else {
            return true;
        };
        let deadline = Instant::now() + BOUND;
        // The notice may come late, and it comes once: the file is read again all the time (cgroup-v2).
        while read_again(&events).contains("populated 1") {
            if Instant::now() > deadline {
                return false;
            }
            let mut notice = [PollFd::new(&events, PollFlags::PRI)];
            let short = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
            let _ = rustix::event::poll(&mut notice, Some(&short));
        }
        true
    }

    /// The processes in it and below.
    pub(crate) fn members(&self) -> Vec<u32> {
        members(&self.path)
    }
}

impl Drop for Nest {
    fn drop(&mut self) {
        let _ = fs::write(self.path.join("cgroup.kill"), "1");
        // Before 5.14 there is no such file, and a process whose first thread has ended does not die of it: that signal
        // is for the first thread alone.
        for pid in self.members() {
            kill_member(pid, &self.path);
        }
        self.is_deserted();
        remove(&self.path);
    }
}

fn read_again(file: &File) -> String {
    use std::os::unix::fs::FileExt as _;
    let mut text = [0; 256];
    let length = file.read_at(&mut text, 0).unwrap_or(0);
    String::from_utf8_lossy(&text[..length]).into_owned()
}

fn directories(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
}

fn members(path: &Path) -> Vec<u32> {
    let own = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    let below = directories(path).into_iter().flat_map(|child| members(&child));
    own.lines().filter_map(|pid| pid.parse().ok()).chain(below).collect()
}

/// A cgroup with children cannot be removed: bottom-up (cgroups(7)).
fn remove(path: &Path) {
    for child in directories(path) {
        remove(&child);
    }
    let _ = fs::remove_dir(path);
}

/// SIGKILL for a process that is still in the cgroup once its pidfd is open.
fn kill_member(pid: u32, path: &Path) {
    if let Some(pidfd) = open_process(pid)
        && cgroups::of_process(&pid.to_string()).is_some_and(|own| own.starts_with(path))
    {
        let _ = pidfd_send_signal(&pidfd, Signal::KILL);
    }
}
