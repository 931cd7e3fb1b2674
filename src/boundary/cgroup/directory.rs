//! A cgroup through its directory: its files, its members, its end. Nothing here knows whose it is, and every name is
//! looked up in an open directory, since the path of a cgroup may be another's by then.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, chmodat, fstat, openat, unlinkat};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::super::Occupancy;
use crate::signals::Sig;
use crate::sys;

pub(super) const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
pub(super) const READ: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC);
pub(super) const WRITE: OFlags = OFlags::WRONLY.union(OFlags::CLOEXEC);

/// Removes a cgroup that nothing lives in, with empty ones below it. `rmdir` decides, since the kernel refuses it while
/// anything lives there; where it refuses for another reason, `populated` does, and the cgroup may stay behind empty.
pub(super) fn remove(parent: &OwnedFd, name: &CStr, directory: &OwnedFd) -> io::Result<Occupancy> {
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
pub(super) fn kill_members(directory: &OwnedFd) -> io::Result<()> {
    members(directory)?.chunks(crate::tree::batch()).try_for_each(|pids| kill_these(directory, pids))
}

/// Kills members of a cgroup, with few descriptors left in halves, down to each alone.
fn kill_these(directory: &OwnedFd, pids: &[Pid]) -> io::Result<()> {
    match kill_at_once(directory, pids) {
        Err(error) if sys::is_shortage(&error) && pids.len() > 1 => {
            let (some, others) = pids.split_at(pids.len() / 2);
            kill_these(directory, some).and(kill_these(directory, others))
        }
        result => result,
    }
}

fn kill_at_once(directory: &OwnedFd, pids: &[Pid]) -> io::Result<()> {
    let mut pidfds = vec![];
    for pid in pids {
        match pidfd_open(*pid, PidfdFlags::empty()).map_err(io::Error::from) {
            Ok(pidfd) => pidfds.push((*pid, pidfd)),
            Err(error) if sys::is_shortage(&error) => return Err(error),
            // It has ended.
            Err(_) => {}
        }
    }
    // Opened first, then confirmed: a pid that was reused in between is no member now.
    let still: BTreeSet<i32> = members(directory)?.into_iter().map(Pid::as_raw_pid).collect();
    for (_, pidfd) in pidfds.iter().filter(|(pid, _)| still.contains(&pid.as_raw_pid())) {
        let _ = sys::send_signal(pidfd.as_fd(), Sig::KILL);
    }
    Ok(())
}

/// The processes in a cgroup and in all below it.
pub(super) fn members(directory: &OwnedFd) -> io::Result<Vec<Pid>> {
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
    let names = match children(directory) {
        // It was removed in between.
        Err(error) if is_gone(&error) => return Ok(()),
        names => names?,
    };
    for name in names {
        match open_child(directory, &name).map_err(io::Error::from) {
            Ok(child) => gather(child.as_fd(), pids)?,
            // Not to have seen who is in there is not to say that nobody is.
            Err(error) if sys::is_shortage(&error) => return Err(error),
            Err(_) => {}
        }
    }
    Ok(())
}

/// Opens a cgroup below ours, even one whose mode or whose maker's umask shut us out.
pub(super) fn open_child(directory: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
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
pub(super) fn kill(directory: &OwnedFd) -> io::Result<()> {
    match write(directory, c"cgroup.kill", b"1") {
        Err(error) if error.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => Ok(()),
        result => result,
    }
}

pub(super) fn write(directory: &OwnedFd, name: &CStr, text: &[u8]) -> io::Result<()> {
    let file = openat(directory, name, WRITE, Mode::empty())?;
    rustix::io::write(&file, text)?;
    Ok(())
}

pub(super) fn read(directory: impl AsFd, name: &CStr) -> io::Result<String> {
    read_whole(openat(directory, name, READ, Mode::empty())?)
}

/// Reads a file of the kernel's to its end, most of which are shorter than the first piece.
pub(super) fn read_whole(file: OwnedFd) -> io::Result<String> {
    let mut bytes = vec![];
    let mut piece = [0; 1024];
    loop {
        let length = rustix::io::read(&file, &mut piece)?;
        bytes.extend_from_slice(&piece[..length]);
        // What one call of the kernel writes comes in one read; a list of many lines fills the piece.
        if length < piece.len() / 2 {
            // But for the names of cgroups, which are any bytes, it is ASCII.
            return Ok(
                String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
            );
        }
    }
}

/// The members that cgroup.procs lists; those of an outer PID namespace are 0 there, cgroups(7).
pub(super) fn pids_in(text: &str) -> Vec<Pid> {
    let pid = |line: &str| line.parse().ok().filter(|pid| *pid > 0).and_then(Pid::from_raw);
    text.lines().filter_map(pid).collect()
}

pub(super) fn event_in(text: &str, key: &str) -> Option<bool> {
    text.lines().find_map(|line| line.strip_prefix(key)).map(|value| value.trim() == "1")
}

/// A key of cgroup.events; `None` if the cgroup is gone.
pub(super) fn read_event(directory: &OwnedFd, key: &str) -> io::Result<Option<bool>> {
    match read(directory, c"cgroup.events") {
        Ok(text) => Ok(event_in(&text, key)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads an events file so that poll(2) waits for the next change, cgroups(7).
///
/// # Errors
/// ENODEV if the cgroup is gone.
pub fn acknowledge(events: impl AsFd) -> io::Result<()> {
    rustix::io::pread(events, &mut [0; 128], 0)?;
    Ok(())
}

pub(super) fn is_gone(error: &io::Error) -> bool {
    [Errno::NODEV, Errno::NOENT].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}
