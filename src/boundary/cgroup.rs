//! A cgroup v2 leaf of our own: made and locked by the front, killed and removed by the keeper, cgroups(7).
//!
//! Whoever holds the lock on a leaf's directory is its owner. Front and keeper share one open file description, so the
//! lock goes when both are dead, in whatever PID namespace; a leaf whose lock can be taken exclusively has no owner.

mod counters;
mod directory;
mod limited;
pub(super) mod locate;
mod ownerless;
#[cfg(any(test, fuzzing))]
pub(crate) mod properties;

use std::cell::{Cell, OnceCell};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, AtFlags, FlockOperation, Mode, accessat, flock, mkdirat, openat, unlinkat};
use rustix::io::Errno;
use rustix::process::Pid;

pub use counters::Counters;
pub use directory::acknowledge;
use directory::{
    DIRECTORY, READ, WRITE, is_gone, kill, kill_members, members, open_child, read, read_event, remove, write,
};
pub use limited::Hits;
pub(super) use limited::Limited;
pub use ownerless::Ownerless;

use super::{Boundary, Occupancy};
use crate::limits::Limits;
use crate::sys;
use crate::voice::{Why, cause, in_words};

/// How the leaf of a run with a guard is called; it may be killed once it has no owner.
const GUARDED: &str = "treekill-run-";
/// How the leaf of a run without a guard is called; it is removed only when empty.
const UNGUARDED: &str = "treekill-run.unguarded-";

/// A leaf that this process owns.
pub(super) struct Leaf {
    parent: OwnedFd,
    name: CString,
    directory: OwnedFd,
    /// Opened when it is waited for, which a run that leaves nothing never does.
    events: OnceCell<OwnedFd>,
    path: String,
    limited: Option<Limited>,
    /// What was counted when it was looked at last, if somebody wants to know.
    counters: Cell<Option<Counters>>,
}

/// How often a new name is tried when somebody else gets at the leaf between its birth and its lock.
const ATTEMPTS: usize = 16;

impl Leaf {
    /// Makes a leaf in our own cgroup, or with limits where it can have them, and locks it. A pidfd of this process is a help.
    ///
    /// # Errors
    /// Why there can be none here.
    pub(super) fn make(is_guarded: bool, limits: &Limits, pidfd: Option<BorrowedFd<'_>>) -> Result<Leaf, Why> {
        let place = if limits.is_none() { locate::own_cgroup(pidfd)? } else { limited::place(limits)? };
        let why = |errno| why_not(&place, errno);
        let parent = rustix::fs::open(&*place, DIRECTORY, Mode::empty()).map_err(why)?;
        // Entering a leaf needs the right to write to the common ancestor's cgroup.procs, which is the parent's.
        accessat(&parent, c"cgroup.procs", Access::WRITE_OK, AtFlags::EACCESS).map_err(why)?;
        for _ in 0..ATTEMPTS {
            let name = random_name(if is_guarded { GUARDED } else { UNGUARDED }).map_err(why)?;
            match mkdirat(&parent, &name, Mode::RWXU) {
                Ok(()) => {}
                Err(Errno::EXIST) => continue,
                Err(errno) => return Err(why(errno)),
            }
            match own(&parent, &name, &why) {
                Ok(Some(directory)) => {
                    let path = format!("{place}/{}", name.to_string_lossy());
                    let mut leaf = Leaf::new(parent, name, directory, path);
                    if !limits.is_none() {
                        leaf.limited = Some(Limited::write(*limits, &leaf.directory).inspect_err(|_| {
                            // Nothing lives in it.
                            let _ = leaf.remove();
                        })?);
                    }
                    return Ok(leaf);
                }
                // A sweeper took it for ownerless in the moment between; what it did to this one is its own.
                Ok(None) => {
                    let _ = unlinkat(&parent, &name, AtFlags::REMOVEDIR);
                }
                Err(error) => {
                    let _ = unlinkat(&parent, &name, AtFlags::REMOVEDIR);
                    return Err(error);
                }
            }
        }
        Err(format!("cannot keep a cgroup in {place}: others remove it at once").into())
    }

    /// Opens and locks the leaf of this name in a cgroup that belongs to one run alone, and makes it if it is not there:
    /// the processes of that run share it by its name.
    ///
    /// # Errors
    /// As of `make`.
    pub(super) fn share(place: &str, name: &CStr) -> Result<Leaf, Why> {
        let why = |errno| why_not(place, errno);
        let parent = rustix::fs::open(place, DIRECTORY, Mode::empty()).map_err(why)?;
        match mkdirat(&parent, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(why(errno)),
        }
        let directory =
            own(&parent, name, &why)?.ok_or_else(|| format!("cannot keep a cgroup in {place}: others remove it"))?;
        let path = format!("{place}/{}", name.to_string_lossy());
        Ok(Leaf::new(parent, name.to_owned(), directory, path))
    }

    fn new(parent: OwnedFd, name: CString, directory: OwnedFd, path: String) -> Leaf {
        Leaf { parent, name, directory, events: OnceCell::new(), path, limited: None, counters: Cell::new(None) }
    }

    /// Freeze, kill each, thaw: for kernels before 5.14, which have no cgroup.kill.
    ///
    /// A frozen member can neither fork nor end by itself, so what is listed is complete and stays what it is.
    fn freeze_and_kill(&self) -> io::Result<()> {
        write(&self.directory, c"cgroup.freeze", b"1")?;
        self.wait_until_frozen()?;
        kill_members(&self.directory)?;
        write(&self.directory, c"cgroup.freeze", b"0")
    }

    /// Blocks until the kernel says that all members are frozen, at most `FREEZE_LIMIT`: what is not by then is in the
    /// kernel, and the next round gets it.
    fn wait_until_frozen(&self) -> io::Result<()> {
        let start = sys::now();
        loop {
            if read_event(&self.directory, "frozen")? == Some(true) {
                return Ok(());
            }
            let Some(left) = FREEZE_LIMIT.checked_sub(sys::now() - start) else { return Ok(()) };
            let events = self.events().ok_or(io::ErrorKind::NotFound)?;
            let mut fds = [PollFd::from_borrowed_fd(events, PollFlags::PRI)];
            poll(&mut fds, Some(&Timespec::try_from(left).expect("a second")))?;
            acknowledge(events)?;
        }
    }
}

/// Whether the kernel itself ends the members of a cgroup, whoever they are: by cgroup.kill, which it has since Linux 5.14.
pub fn kernel_kills() -> bool {
    let can = |directory: &OwnedFd| accessat(directory, c"cgroup.kill", Access::EXISTS, AtFlags::empty()).is_ok();
    let own = locate::own_cgroup(None).ok().and_then(|own| rustix::fs::open(&*own, DIRECTORY, Mode::empty()).ok());
    // The root cgroup has no such file, only what is made in it.
    own.is_some_and(|own| can(&own))
        || Leaf::make(true, &Limits::default(), None).is_ok_and(|leaf| {
            let can = can(&leaf.directory);
            // Nothing lives in it.
            let _ = leaf.remove();
            can
        })
}

/// Why there can be no leaf in this cgroup.
fn why_not(place: &str, errno: Errno) -> Why {
    match errno {
        Errno::ACCESS | Errno::PERM => {
            let help = "it would have to be delegated to this user";
            Why::new(format!("{place} is not ours to make cgroups in"), help)
        }
        Errno::ROFS => format!("{place} is mounted read-only").into(),
        errno => format!("cannot make a cgroup in {place}: {}", cause(errno.raw_os_error())).into(),
    }
}

const FREEZE_LIMIT: Duration = Duration::from_secs(1);

/// Opens and locks a new leaf; `None` if a sweeper has it. The lock can be had on a directory that was removed in
/// between, but then there is no file in it any more. What is there has its name: a cgroup can't be moved.
fn own(parent: &OwnedFd, name: &CStr, why: &dyn Fn(Errno) -> Why) -> Result<Option<OwnedFd>, Why> {
    let directory = match open_child(parent.as_fd(), name) {
        Err(Errno::NOENT) => return Ok(None),
        opened => opened.map_err(why)?,
    };
    match flock(&directory, FlockOperation::NonBlockingLockShared) {
        Err(Errno::WOULDBLOCK) => return Ok(None),
        locked => locked.map_err(why)?,
    }
    let kind = match read(&directory, c"cgroup.type") {
        Err(error) if is_gone(&error) => return Ok(None),
        kind => kind.map_err(|error| format!("cannot read the type of a new cgroup: {}", in_words(&error)))?,
    };
    if kind.trim_end() != "domain" {
        return Err(format!("our cgroup is part of a threaded one ({})", kind.trim_end()).into());
    }
    Ok(Some(directory))
}

impl Boundary for Leaf {
    fn name(&self) -> String {
        format!("cgroup {}", self.path)
    }

    fn birthplace(&self) -> Option<BorrowedFd<'_>> {
        Some(self.directory.as_fd())
    }

    fn entrance(&self) -> io::Result<OwnedFd> {
        Ok(openat(&self.directory, c"cgroup.procs", WRITE, Mode::empty())?)
    }

    fn members(&self) -> io::Result<Vec<Pid>> {
        members(&self.directory)
    }

    fn kill(&self) -> io::Result<()> {
        match kill(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => match self.freeze_and_kill() {
                Err(error) if is_gone(&error) => Ok(()),
                result => result,
            },
            result => result,
        }
    }

    fn remove(&self) -> io::Result<Occupancy> {
        if let Some(limited) = &self.limited {
            limited.look(&self.directory);
        }
        // Now or never: what rmdir removes has no counters any more.
        self.counters.set(self.counters.get().map(|counters| counters.look(&self.directory)));
        remove(&self.parent, &self.name, &self.directory)
    }

    fn events(&self) -> Option<BorrowedFd<'_>> {
        if self.events.get().is_none() {
            let _ = self.events.set(openat(&self.directory, c"cgroup.events", READ, Mode::empty()).ok()?);
        }
        self.events.get().map(AsFd::as_fd)
    }

    fn remove_ownerless(&self) -> Ownerless {
        let mut ownerless = Ownerless::default();
        // What can't be read or removed here is a later run's.
        let _ = ownerless.remove_in(&self.parent, &self.name);
        if let Some(limited) = &self.limited {
            let _ = ownerless.remove_in(&limited.home, &self.name);
        }
        ownerless
    }

    fn hits(&self) -> Hits {
        self.limited.as_ref().map(Limited::hits).unwrap_or_default()
    }

    fn count(&self) {
        self.counters.set(Some(Counters::default()));
    }

    fn counters(&self) -> Counters {
        self.counters.get().unwrap_or_default()
    }

    fn release(&self, is_chosen: &dyn Fn(Pid) -> bool) -> io::Result<Vec<Pid>> {
        // A leaf with limits may be in one that is to hold no processes itself.
        let home = self.limited.as_ref().map_or(&self.parent, |limited| &limited.home);
        let procs = openat(home, c"cgroup.procs", WRITE, Mode::empty())?;
        let mut moved = vec![];
        loop {
            let mut members = self.members()?;
            members.retain(|pid| is_chosen(*pid));
            let before = moved.len();
            for pid in &members {
                match rustix::io::write(&procs, pid.as_raw_pid().to_string().as_bytes()) {
                    Ok(_) => moved.push(*pid),
                    // It ended in between.
                    Err(Errno::SRCH) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
            // A member that forks while it is moved leaves its child behind: look again until nobody is.
            if members.is_empty() || moved.len() == before {
                break;
            }
        }
        moved.sort_unstable_by_key(|pid| pid.as_raw_pid());
        moved.dedup();
        Ok(moved)
    }
}

fn random_name(prefix: &str) -> Result<CString, Errno> {
    Ok(CString::new(format!("{prefix}{}", random_hex()?)).expect("no NUL in hexadecimal"))
}

/// Sixteen digits that no other run has.
pub(super) fn random_hex() -> Result<String, Errno> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}
