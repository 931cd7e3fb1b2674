//! Who is whose child, and which leaves a run made: the processes of the wrapper seen from outside.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use super::Nest;
use super::running::open_process;

/// The children of a process that has one thread, in the order of their births.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// The letter of a process's state and the PID of its parent, proc_pid_stat(5).
pub(crate) fn state_and_parent(pid: u32) -> Option<(String, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit(')').next()?.split_whitespace();
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

/// The process group and the session of a process, proc_pid_stat(5).
pub(crate) fn group_and_session(pid: u32) -> Option<(u32, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit(')').next()?.split_whitespace().skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// Whether a process is one of treekill-run's own.
pub(crate) fn is_wrapper(pid: u32) -> bool {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    ["treekill-run", "tk-keeper"].contains(&name.trim_end())
}

/// A pidfd of the last child and its PID: opened first, confirmed then, so that no stranger with the same PID is meant.
pub(crate) fn last_child(parent: u32) -> Option<(u32, OwnedFd)> {
    let pid = *children(parent).last()?;
    let pidfd = open_process(pid)?;
    (state_and_parent(pid)?.1 == parent).then_some((pid, pidfd))
}

/// The leaves of treekill-run in a cgroup.
pub(crate) fn leaves(nest: Option<&Nest>) -> Vec<PathBuf> {
    let children = nest.map(Nest::children).unwrap_or_default();
    children.into_iter().filter(|path| path.file_name().is_some_and(is_leaf)).collect()
}

fn is_leaf(name: &std::ffi::OsStr) -> bool {
    name.to_string_lossy().starts_with("treekill-run")
}
