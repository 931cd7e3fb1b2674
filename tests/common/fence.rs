//! A limit around what might take the machine with it, or that is to have too little: a cgroup of the controller `pids` or
//! `memory`, whichever version of cgroups has it here.

use std::fs::{self, File};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Signal, pidfd_send_signal};

use super::running::open_process;
use super::{Nest, Run, cgroups, sys, unique};

/// A cgroup that is killed and removed when dropped.
#[derive(Debug)]
pub(crate) enum Fence {
    /// Of cgroup v1, which is a tree of its own.
    Legacy(PathBuf),
    /// Of cgroup v2: runs have their own cgroups in it.
    Unified(Nest),
}

impl Fence {
    /// Makes one with this controller; `None` where none can be had.
    pub(crate) fn of(controller: &str) -> Option<Fence> {
        if let Some(place) = legacy(controller) {
            let path = place.join(format!("tk-fence-{}", unique()));
            if fs::create_dir(&path).is_ok() {
                return Some(Fence::Legacy(path));
            }
        }
        Nest::below(&unified(controller)?).map(Fence::Unified)
    }

    fn path(&self) -> &Path {
        match self {
            Fence::Legacy(path) => path,
            Fence::Unified(nest) => nest.path(),
        }
    }

    /// No more processes than this.
    pub(crate) fn allow_processes(&self, most: u64) {
        fs::write(self.path().join("pids.max"), most.to_string()).expect("the controller takes a limit");
    }

    /// No more memory than this, in bytes, and no swap.
    pub(crate) fn allow_memory(&self, most: u64) {
        let (limit, swap) = match self {
            Fence::Legacy(_) => ("memory.limit_in_bytes", None),
            Fence::Unified(_) => ("memory.max", Some("memory.swap.max")),
        };
        fs::write(self.path().join(limit), most.to_string()).expect("the controller takes a limit");
        if let Some(swap) = swap {
            // A kernel without swap has no such file.
            let _ = fs::write(self.path().join(swap), "0");
        }
    }

    /// How many processes the kernel has killed in it for want of memory.
    pub(crate) fn memory_kills(&self) -> u64 {
        let file = match self {
            Fence::Legacy(_) => "memory.oom_control",
            Fence::Unified(_) => "memory.events",
        };
        let text = fs::read_to_string(self.path().join(file)).unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.and_then(|count| count.parse().ok()).unwrap_or(0)
    }

    /// Whether anything is in it.
    pub(crate) fn is_used(&self) -> bool {
        fs::read_to_string(self.path().join("pids.current")).is_ok_and(|count| count.trim() != "0")
    }

    /// The run will be in it.
    pub(crate) fn around(&self, run: Run) -> Run {
        match self {
            Fence::Legacy(_) => {
                let procs = self.entrance();
                run.setup(move || {
                    rustix::io::write(procs.as_fd(), b"0")?;
                    Ok(())
                })
            }
            Fence::Unified(nest) => run.within(Nest::below(nest.path()).expect("a cgroup in one of ours")),
        }
    }

    /// The command will be started in it.
    pub(crate) fn receive(&self, command: &mut Command) {
        let procs = self.entrance();
        sys::before_exec(command, move || {
            rustix::io::write(procs.as_fd(), b"0")?;
            Ok(())
        });
    }

    fn entrance(&self) -> OwnedFd {
        let procs = File::options().write(true).open(self.path().join("cgroup.procs"));
        let procs = procs.expect("a cgroup of our own has a list of members");
        // Out of the way of the descriptors that a run gives numbers to.
        rustix::io::fcntl_dupfd_cloexec(procs, 100).expect("there are descriptors enough")
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        // The other is a nest, which does the same.
        let Fence::Legacy(path) = self else { return };
        for _ in 0..100 {
            // Empty as a rule; what can't be removed even so is seen as a folder that stays.
            if fs::remove_dir(&*path).is_ok() {
                return;
            }
            let members = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
            for pid in members.lines().filter_map(|line| line.parse().ok()) {
                // A cgroup that is ours alone: who is listed there after it was opened is who was meant.
                if let Some(pidfd) = open_process(pid)
                    && fs::read_to_string(path.join("cgroup.procs"))
                        .is_ok_and(|now| now.lines().any(|line| line == pid.to_string()))
                {
                    let _ = pidfd_send_signal(&pidfd, Signal::KILL);
                    super::running::is_dead(&pidfd, super::BOUND);
                }
            }
        }
    }
}

/// Where this controller of cgroup v1 is mounted.
fn legacy(controller: &str) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let is_wanted = right.starts_with("cgroup ") && right.rsplit([' ', ',']).any(|word| word == controller);
        is_wanted.then(|| left.split(' ').nth(4).map(PathBuf::from))?
    })
}

/// The nearest cgroup above the tests' own that gives this controller to those in it.
fn unified(controller: &str) -> Option<PathBuf> {
    let own = cgroups::of_process("self")?;
    let gives = |place: &&Path| {
        let given = fs::read_to_string(place.join("cgroup.subtree_control")).unwrap_or_default();
        given.split_whitespace().any(|word| word == controller)
    };
    own.ancestors().find(gives).map(Path::to_owned)
}
