//! The little unsafe that tests need, one operation a block: what happens in a child between fork and exec.
#![expect(unsafe_code, reason = "std offers no safe way to shape a child before exec")]

use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::libc;

/// Runs `setup` in the child before exec; it may only make system calls.
pub(crate) fn before_exec(command: &mut Command, setup: impl FnMut() -> io::Result<()> + Send + Sync + 'static) {
    // SAFETY: every caller passes a closure that makes plain system calls and neither allocates nor locks.
    unsafe { command.pre_exec(setup) };
}

/// Held by whoever forks, or has the writing end of a tether open: a child of another thread's fork would hold a copy
/// of that end until its own exec, and the tether's end-of-file would come late.
pub(crate) fn forking() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    // A test that failed while it held the lock left nothing half done.
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

fn checked(result: libc::c_int) -> io::Result<()> {
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The same file, under a number that no child gets for something else.
pub(crate) fn out_of_the_way(file: impl AsFd) -> OwnedFd {
    rustix::io::fcntl_dupfd_cloexec(file, 300).expect("there is room")
}

/// Makes `from` known as `to`, open across exec. What a run gives its child by itself comes first, so that `from` must be out of its
/// way.
pub(crate) fn give_descriptor(from: RawFd, to: RawFd) -> io::Result<()> {
    if from == to {
        // SAFETY: fcntl with F_SETFD touches no memory.
        return checked(unsafe { libc::fcntl(to, libc::F_SETFD, 0) });
    }
    // SAFETY: dup2 touches no memory; the child owns its own table.
    checked(unsafe { libc::dup2(from, to) })
}

/// Closes a descriptor, an error being of no interest.
pub(crate) fn close(fd: RawFd) {
    // SAFETY: the child is about to exec and nothing in it uses this descriptor any more.
    unsafe { libc::close(fd) };
}

/// Sets a signal to be ignored.
pub(crate) fn ignore(signal: i32) -> io::Result<()> {
    // SAFETY: SIG_IGN runs no code of ours.
    let previous = unsafe { libc::signal(signal, libc::SIG_IGN) };
    if previous == libc::SIG_ERR {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Blocks these signals, bit n-1 for signal n, the two that glibc keeps for itself included.
pub(crate) fn block(mask: u64) -> io::Result<()> {
    // SAFETY: the kernel reads eight bytes, its own size of a set, from a live u64.
    let result = unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const mask,
            std::ptr::null::<u64>(),
            size_of::<u64>(),
        )
    };
    checked(libc::c_int::try_from(result).unwrap_or(-1))
}

/// The supplementary groups are dropped, then group and user become this number.
pub(crate) fn become_user(id: u32) -> io::Result<()> {
    // SAFETY: an empty list needs no memory.
    checked(unsafe { libc::setgroups(0, std::ptr::null()) })?;
    // SAFETY: setresgid takes numbers only.
    checked(unsafe { libc::setresgid(id, id, id) })?;
    // SAFETY: setresuid takes numbers only.
    checked(unsafe { libc::setresuid(id, id, id) })
}

/// Makes the kernel refuse clone3 with this errno, as the seccomp filters of container runtimes do.
pub(crate) fn refuse_clone3(errno: i32) -> io::Result<()> {
    refuse(libc::SYS_clone3, errno)
}

/// Makes the kernel refuse a system call with this errno, seccomp(2).
pub(crate) fn refuse(call: libc::c_long, errno: i32) -> io::Result<()> {
    filter(call, libc::SECCOMP_RET_ERRNO | errno.cast_unsigned())
}

/// Makes the kernel kill whoever makes a system call, seccomp(2).
pub(crate) fn kill_for(call: libc::c_long) -> io::Result<()> {
    filter(call, libc::SECCOMP_RET_KILL_PROCESS)
}

fn filter(call: libc::c_long, action: u32) -> io::Result<()> {
    let load = u16::try_from(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS).unwrap_or_default();
    let jump_equal = u16::try_from(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K).unwrap_or_default();
    let answer = u16::try_from(libc::BPF_RET | libc::BPF_K).unwrap_or_default();
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let call = u32::try_from(call).unwrap_or_default();
    // The first word of seccomp_data is the number of the system call.
    let mut filter = [
        step(load, 0, 0, 0),
        step(jump_equal, 0, 1, call),
        step(answer, 0, 0, action),
        step(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: this prctl takes numbers only.
    checked(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    // SAFETY: program and filter outlive the call, and the length is the filter's.
    checked(unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) })
}

/// Traces a process without stopping it, and never looks at its death before it is dropped, ptrace(2).
pub(crate) struct Tracer {
    pid: libc::pid_t,
}

impl Tracer {
    /// Only the calling thread may drop it.
    pub(crate) fn seize(pid: libc::pid_t) -> io::Result<Tracer> {
        let nothing = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: PTRACE_SEIZE takes numbers only.
        let result = unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, nothing, nothing) };
        checked(libc::c_int::try_from(result).unwrap_or(-1))?;
        Ok(Tracer { pid })
    }

    /// Stops it until the tracer is dropped.
    pub(crate) fn interrupt(&self) -> io::Result<()> {
        let nothing = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: PTRACE_INTERRUPT takes numbers only.
        let result = unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, self.pid, nothing, nothing) };
        checked(libc::c_int::try_from(result).unwrap_or(-1))
    }
}

impl Drop for Tracer {
    /// The tracee has died by now, or will of the tracer's end.
    fn drop(&mut self) {
        // SAFETY: the status is not asked for.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), libc::__WALL | libc::WNOHANG) };
        let nothing = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: PTRACE_DETACH takes numbers only; it fails for the dead.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.pid, nothing, nothing) };
    }
}
