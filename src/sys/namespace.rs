//! Namespaces, and what their first process needs.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::libc;
use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::checked;

/// A kind of namespace, namespaces(7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespace {
    /// Of users and capabilities; this process enters it.
    User,
    /// Of pids; the children of this process are born in it, and the first of them is its PID 1.
    Pid,
    /// Of mounts; this process enters it.
    Mount,
}

/// Makes a new namespace, unshare(2). May run between birth and exec.
///
/// # Errors
/// EPERM where that is forbidden, ENOSPC or EUSERS beyond a limit, EINVAL or ENOSYS where the kernel has none.
pub fn unshare(namespace: Namespace) -> io::Result<()> {
    let flag = match namespace {
        Namespace::User => UnshareFlags::NEWUSER,
        Namespace::Pid => UnshareFlags::NEWPID,
        Namespace::Mount => UnshareFlags::NEWNS,
    };
    // SAFETY: no descriptor table is unshared, which is what makes the call unsafe.
    Ok(unsafe { unshare_unsafe(flag) }?)
}

/// Whether nobody but its PID 1, who asks, is in a PID namespace: not even a zombie. kill(2) with no signal, sent to all
/// that can be named there, finds somebody or answers ESRCH.
pub fn is_alone_in_namespace() -> bool {
    // SAFETY: kill touches no memory, and signal 0 does nothing to anybody.
    let found = unsafe { libc::kill(-1, 0) };
    checked(found.into()).is_err_and(|error| error.raw_os_error() == Some(libc::ESRCH))
}

/// Closes every descriptor but these, close_range(2), for a process that uses no other until its end. Where the call is
/// refused they stay open.
pub fn close_all_but<const N: usize>(keep: [BorrowedFd<'_>; N]) {
    let mut keep = keep.map(|fd| fd.as_raw_fd().unsigned_abs());
    keep.sort_unstable();
    let mut first = 0;
    for kept in keep.into_iter().chain([u32::MAX]) {
        if first < kept {
            // SAFETY: the caller promises to use no other descriptor, and the call touches no memory.
            unsafe { libc::syscall(libc::SYS_close_range, first, kept - 1, 0) };
        }
        first = kept.saturating_add(1);
    }
}
