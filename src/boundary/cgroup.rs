//! A cgroup v2 leaf of our own: made and locked by the front, killed and removed by the keeper, cgroups(7).
//!
//! Whoever holds the lock on a leaf's directory is its owner. Front and keeper share one open file description, so the
//! lock goes when both are dead, in whatever PID namespace; a leaf whose lock can be taken exclusively has no owner.

mod counters;
mod limited;
pub(super) mod locate;
mod ownerless;
#[cfg(any(test, fuzzing))]
pub(crate) mod properties;

use std::cell::{Cell, OnceCell};
use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, accessat, chmodat, flock, fstat, mkdirat, openat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

pub use counters::Counters;
pub use limited::Hits;
pub(super) use limited::Limited;
pub use ownerless::Ownerless;

use super::{Boundary, Occupancy};
use crate::limits::Limits;
use crate::signals::Sig;
use crate::sys;
use crate::voice::{cause, in_words};

/// How the leaf of a run with a guard is called; it may be killed once it has no owner.
const GUARDED: &str = "treekill-run-";
/// How the leaf of a run without a guard is called; it is removed only when empty.
const UNGUARDED: &str = "treekill-run.unguarded-";

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const READ: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC);
const WRITE: OFlags = OFlags::WRONLY.union(OFlags::CLOEXEC);

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
    /// Makes a leaf in our own cgroup, or with limits where it can have them, and locks it.
    ///
    /// # Errors
    /// Why there can be none here and what would help, as a sentence.
    pub(super) fn make(is_guarded: bool, limits: &Limits) -> Result<Leaf, String> {
        let place = if limits.is_none() { locate::own_cgroup()? } else { limited::place(limits)? };
        let why = |errno| why_not(&place, errno);
        let parent = rustix::fs::open(&*place, DIRECTORY, Mode::empty()).map_err(why)?;
        // Entering a leaf needs the right to write to the common ancestor's cgroup.procs, which is the parent's.
        accessat(&parent, c"cgroup.procs", rustix::fs::Access::WRITE_OK, AtFlags::EACCESS).map_err(why)?;
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
        Err(format!("cannot keep a cgroup in {place}: others remove it at once"))
    }

    /// Opens and locks the leaf of this name in a cgroup that belongs to one run alone, and makes it if it is not there:
    /// the processes of that run share it by its name.
    ///
    /// # Errors
    /// As of `make`.
    pub(super) fn share(place: &str, name: &CStr) -> Result<Leaf, String> {
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

/// Why there can be no leaf in this cgroup, and what would help.
fn why_not(place: &str, errno: Errno) -> String {
    match errno {
        Errno::ACCESS | Errno::PERM => {
            format!("{place} is not ours to make cgroups in; it would have to be delegated to this user")
        }
        Errno::ROFS => format!("{place} is mounted read-only"),
        errno => format!("cannot make a cgroup in {place}: {}", cause(errno.raw_os_error())),
    }
}

const FREEZE_LIMIT: Duration = Duration::from_secs(1);

/// Opens and locks a new leaf; `None` if a sweeper has it. The lock can be had on a directory that was removed in
/// between, but then there is no file in it any more. What is there has its name: a cgroup can't be moved.
fn own(parent: &OwnedFd, name: &CStr, why: &dyn Fn(Errno) -> String) -> Result<Option<OwnedFd>, String> {
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
        return Err(format!("our cgroup is part of a threaded one ({})", kind.trim_end()));
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

/// Removes a cgroup that nothing lives in, with empty ones below it. `rmdir` decides, since the kernel refuses it while
/// anything lives there; where it refuses for another reason, `populated` does, and the cgroup may stay behind empty.
fn remove(parent: &OwnedFd, name: &CStr, directory: &OwnedFd) -> io::Result<Occupancy> {
    if matches!(unlinkat(parent, name, AtFlags::REMOVEDIR), Ok(()) | Err(Errno::NOENT)) {
        return Ok(Occupancy::Empty);
    }
    if read_event(directory, "populated")? == Some(true) {
        return Ok(Occupancy::Populated);
    }
    // What can't be removed even so holds nothing that lives: a later run tries again.
    let _ = remove_children(directory.as_fd());
    let _ = unlinkat(parent, name, AtFlags::REMOVEDIR);
    Ok(Occupancy::Empty)
}

fn remove_children(directory: BorrowedFd<'_>) -> io::Result<()> {
    for name in children(directory)? {
        if let Ok(child) = open_child(directory, &name) {
            remove_children(child.as_fd())?;
        }
        // One that is in use makes the parent's removal fail, which is what counts.
        let _ = unlinkat(directory, &name, AtFlags::REMOVEDIR);
    }
    Ok(())
}

/// Sends SIGKILL to each process in a cgroup and below it. One that forks meanwhile may leave its child out.
fn kill_members(directory: &OwnedFd) -> io::Result<()> {
    for batch in members(directory)?.chunks(crate::tree::batch()) {
        let pidfds: Vec<(Pid, OwnedFd)> =
            batch.iter().filter_map(|pid| Some((*pid, pidfd_open(*pid, PidfdFlags::empty()).ok()?))).collect();
        // Opened first, then confirmed: a pid that was reused in between is no member now.
        let still: BTreeSet<i32> = members(directory)?.into_iter().map(Pid::as_raw_pid).collect();
        for (_, pidfd) in pidfds.iter().filter(|(pid, _)| still.contains(&pid.as_raw_pid())) {
            let _ = sys::send_signal(pidfd.as_fd(), Sig::KILL);
        }
    }
    Ok(())
}

/// The processes in a cgroup and in all below it.
fn members(directory: &OwnedFd) -> io::Result<Vec<Pid>> {
    let mut pids = vec![];
    gather(directory.as_fd(), &mut pids)?;
    Ok(pids)
}

/// Reads the members of a cgroup and of all below it.
fn gather(directory: BorrowedFd<'_>, pids: &mut Vec<Pid>) -> io::Result<()> {
    match read(directory, c"cgroup.procs") {
        Ok(text) => pids.extend(pids_in(&text)),
        // A threaded cgroup: its processes are listed by the domain above it.
        Err(error) if error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => {}
        Err(error) if is_gone(&error) => return Ok(()),
        Err(error) => return Err(error),
    }
    for name in children(directory)? {
        if let Ok(child) = open_child(directory, &name) {
            gather(child.as_fd(), pids)?;
        }
    }
    Ok(())
}

/// Opens a cgroup below ours, even one whose mode or whose maker's umask shut us out.
fn open_child(directory: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    match openat(directory, name, DIRECTORY, Mode::empty()) {
        Err(Errno::ACCESS) => {
            chmodat(directory, name, Mode::RWXU, AtFlags::empty())?;
            openat(directory, name, DIRECTORY, Mode::empty())
        }
        opened => opened,
    }
}

/// The names of the cgroups directly below this one.
fn children(directory: BorrowedFd<'_>) -> io::Result<Vec<CString>> {
    // A directory's link count is 2 and one for each directory in it.
    if fstat(directory)?.st_nlink <= 2 {
        return Ok(vec![]);
    }
    let mut names = vec![];
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if entry.file_type() == FileType::Directory && name != c"." && name != c".." {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// Writes cgroup.kill, cgroups(7); NotFound on kernels before 5.14, success on a cgroup that is gone.
fn kill(directory: &OwnedFd) -> io::Result<()> {
    match write(directory, c"cgroup.kill", b"1") {
        Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => Ok(()),
        result => result,
    }
}

fn write(directory: &OwnedFd, name: &CStr, text: &[u8]) -> io::Result<()> {
    let file = openat(directory, name, WRITE, Mode::empty())?;
    rustix::io::write(&file, text)?;
    Ok(())
}

fn read(directory: impl AsFd, name: &CStr) -> io::Result<String> {
    read_whole(openat(directory, name, READ, Mode::empty())?)
}

/// Reads a file of the kernel's to its end, most of which are shorter than the first piece.
fn read_whole(file: OwnedFd) -> io::Result<String> {
    let mut bytes = vec![];
    let mut piece = [0; 4096];
    loop {
        let length = rustix::io::read(&file, &mut piece)?;
        bytes.extend_from_slice(&piece[..length]);
        // What one call of the kernel writes comes in one read; a list of many lines fills the piece.
        if length < piece.len() / 2 {
            // But for the names of cgroups, which are any bytes, it is ASCII.
            return Ok(String::from_utf8_lossy(&bytes).into_owned());
        }
    }
}

/// The members that cgroup.procs lists; those of an outer PID namespace are 0 there, cgroups(7).
fn pids_in(text: &str) -> Vec<Pid> {
    let pid = |line: &str| line.parse().ok().filter(|pid| *pid > 0).and_then(Pid::from_raw);
    text.lines().filter_map(pid).collect()
}

fn event_in(text: &str, key: &str) -> Option<bool> {
    text.lines().find_map(|line| line.strip_prefix(key)).map(|value| value.trim() == "1")
}

/// A key of cgroup.events; `None` if the cgroup is gone.
fn read_event(directory: &OwnedFd, key: &str) -> io::Result<Option<bool>> {
    match read(directory, c"cgroup.events") {
        Ok(text) => Ok(event_in(&text, key)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads an events file so that poll(2) waits for the next change.
pub fn acknowledge(events: impl AsFd) -> io::Result<()> {
    rustix::io::pread(events, &mut [0; 128], 0)?;
    Ok(())
}

fn is_gone(error: &io::Error) -> bool {
    [Errno::NODEV, Errno::NOENT].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
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
