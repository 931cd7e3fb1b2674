//! Processes: fork, signals, reaping.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::time::Duration;

use nix::libc;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::checked;
use crate::outcome::End;
use crate::signals::Sig;

/// The two sides of a fork.
#[derive(Debug)]
pub enum Fork {
    /// In the process that forked, with the child's pid.
    Parent(Pid),
    /// In the child.
    Child,
}

/// Forks, fork(2). Both sides may go on running ordinary code, since no process of ours ever has a second thread.
///
/// # Errors
/// EAGAIN when the process table or a limit is full, ENOMEM.
pub fn fork() -> io::Result<Fork> {
    debug_assert_eq!(threads(), 1, "fork with threads");
    // SAFETY: with one thread no lock can be held by a thread that the child does not have.
    match unsafe { nix::unistd::fork() }? {
        nix::unistd::ForkResult::Child => {
            FORKER.store(OWN_PID.swap(0, Relaxed), Relaxed);
            Ok(Fork::Child)
        }
        nix::unistd::ForkResult::Parent { child } => {
            Ok(Fork::Parent(Pid::from_raw(child.as_raw()).expect("a child has a pid")))
        }
    }
}

/// How many threads this process has; 1 where that can't be read.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").and_then(Iterator::collect::<io::Result<Vec<_>>>);
    tasks.map_or(1, |tasks| tasks.len())
}

/// The pid of this process, which is asked for often; 0 until it is known.
static OWN_PID: AtomicI32 = AtomicI32::new(0);

/// The pid of the process that forked this one; 0 if it had not asked for it.
static FORKER: AtomicI32 = AtomicI32::new(0);

/// The pid of this process, getpid(2).
pub fn own_pid() -> Pid {
    Pid::from_raw(OWN_PID.load(Relaxed)).unwrap_or_else(|| {
        let pid = rustix::process::getpid();
        OWN_PID.store(pid.as_raw_pid(), Relaxed);
        pid
    })
}

/// Asks for SIGKILL when the thread that forked us ends, prctl(2). The caller must check afterwards that it has not
/// ended before. May run between birth and exec.
pub fn die_with_thread_that_forked() {
    // SAFETY: this prctl takes a number and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

/// A close-on-exec copy, above the standard streams, of a descriptor that the caller named by its number.
///
/// # Errors
/// EBADF if it is not open, EMFILE.
pub fn duplicate(number: u16) -> io::Result<OwnedFd> {
    // SAFETY: a number that is no open descriptor is only an error.
    let copy = checked(unsafe { libc::fcntl(number.into(), libc::F_DUPFD_CLOEXEC, 3) }.into())?;
    let copy = i32::try_from(copy).expect("descriptors fit an int");
    // SAFETY: the kernel has just made this descriptor, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Keeps a descriptor that the caller named by its number from what is executed; one that is not open is left alone.
pub fn close_at_exec(number: u16) {
    // SAFETY: F_SETFD touches no memory, and a number that is no open descriptor is only an error.
    unsafe { libc::fcntl(number.into(), libc::F_SETFD, libc::FD_CLOEXEC) };
}

/// The process that listens on the other end of a connected socket, unix(7), SO_PEERCRED; `None` if it is outside of our
/// PID namespace.
///
/// # Errors
/// Those of getsockopt(2).
pub fn peer(socket: BorrowedFd<'_>) -> io::Result<Option<Pid>> {
    let mut peer = MaybeUninit::<libc::ucred>::zeroed();
    let mut size = libc::socklen_t::try_from(size_of::<libc::ucred>()).expect("a few bytes");
    // SAFETY: the buffer is as long as the call is told.
    let result = unsafe {
        let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        libc::getsockopt(socket.as_raw_fd(), level, name, peer.as_mut_ptr().cast(), &raw mut size)
    };
    checked(result.into())?;
    // SAFETY: all zeroes, and whatever the kernel has written, is a valid value.
    Ok(Pid::from_raw(unsafe { peer.assume_init() }.pid))
}

/// `PIDFD_GET_INFO` of linux/pidfd.h, for the first version of its structure, and the bit that asks for the cgroup.
const PIDFD_GET_INFO: libc::c_ulong = 0xc040_ff0b;
const PIDFD_INFO_CGROUPID: u64 = 1 << 2;

/// The number of the cgroup v2 that a process is in, which is the inode of the cgroup's directory; `None` where the kernel
/// does not tell, as before Linux 6.13.
pub fn cgroup_id(pidfd: BorrowedFd<'_>) -> Option<u64> {
    // The mask, the number, and words that nobody asks for.
    let mut info = [PIDFD_INFO_CGROUPID, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: the array is as long as the number of the call says, and outlives it.
    let told = unsafe { libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_INFO as _, info.as_mut_ptr()) };
    (told == 0 && info[0] & PIDFD_INFO_CGROUPID != 0).then_some(info[1])
}

/// Whether it is certain that no filter of system calls may end this process for one that it could do without, prctl(2),
/// `PR_GET_SECCOMP`. A filter that ends who asks for just this would do so when all is told.
fn is_unfiltered() -> bool {
    // SAFETY: this prctl takes no argument and touches no memory.
    unsafe { libc::prctl(libc::PR_GET_SECCOMP) == 0 }
}

/// Lets the process that forked us go on where we run, when our end wakes it: another CPU would take longer to wake than it
/// has left to run. Nothing depends on that, so an error is none, sched_setaffinity(2); and where there is a filter of system
/// calls, this one may be what it kills for. The forker has the pid, as long as it lives.
pub fn lend_cpu_to_forker() {
    if !is_unfiltered() {
        return;
    }
    let (mut cpu, mut here) = (0_u32, CpuSet::new());
    // SAFETY: the kernel writes a number where there is room for one, getcpu(2).
    let told = unsafe { libc::syscall(libc::SYS_getcpu, &raw mut cpu, 0_usize, 0_usize) };
    let forker = Pid::from_raw(FORKER.load(Relaxed));
    if told == 0 && (cpu as usize) < CpuSet::MAX_CPU && forker.is_some() && rustix::process::getppid() == forker {
        here.set(cpu as usize);
        let _ = sched_setaffinity(forker, &here);
    }
}

/// Ends this process at once, without the runtime's or the C library's clean-up, _exit(2).
pub fn exit_now(status: u8) -> ! {
    // SAFETY: it does not return.
    unsafe { libc::_exit(status.into()) }
}

/// Signals a process through its pidfd, pidfd_send_signal(2).
///
/// # Errors
/// ESRCH once it is reaped, EPERM for another user's.
pub fn send_signal(pidfd: BorrowedFd<'_>, sig: Sig) -> io::Result<()> {
    // SAFETY: without a siginfo the call touches no memory.
    let sent = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), sig.number(), 0_usize, 0) };
    checked(sent).map(drop)
}

/// Signals a child that we have not reaped, kill(2): its pid can't have been given to anybody else.
pub fn signal_child(pid: Pid, sig: Sig) {
    // SAFETY: kill touches no memory.
    unsafe { libc::kill(pid.as_raw_nonzero().get(), sig.number()) };
}

/// What waitid(2) has to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaped {
    /// This child ended and is gone.
    Ended(Pid, End),
    /// This child was stopped.
    Stopped(Pid, Sig),
    /// This child went on.
    Continued(Pid),
    /// Children live, and none has news.
    Nothing,
    /// There is no child, hence no descendant that we could still get as one.
    NoChildren,
    /// The kernel refuses to say: whether there are children is not known.
    Unknown(Errno),
}

/// Takes one piece of news of any child, clone children without SIGCHLD included; never blocks.
pub fn reap() -> Reaped {
    wait(libc::P_ALL, 0, libc::WNOHANG)
}

/// Reaps any child that has ended, and takes no other news, which costs the kernel a look at each of thousands.
pub fn reap_ended() -> Reaped {
    wait_for(libc::P_ALL, 0, libc::WNOHANG | libc::WEXITED)
}

/// Takes one piece of news of this child alone; never blocks.
pub fn reap_only(child: Pid) -> Reaped {
    wait(libc::P_PID, child.as_raw_pid().unsigned_abs(), libc::WNOHANG)
}

/// Reaps this child, however long it takes to end; SIGCHLD must be at its default.
pub fn reap_at_its_end(child: Pid) {
    let own = child.as_raw_pid().unsigned_abs();
    // EINTR can't be, with all signals blocked.
    loop {
        match wait(libc::P_PID, own, 0) {
            // Nobody else continues it.
            Reaped::Stopped(..) => signal_child(child, Sig::CONT),
            Reaped::Continued(_) => {}
            _ => return,
        }
    }
}

/// Whether this process has children, whoever forked them.
///
/// # Errors
/// Those of a kernel or filter that does not let us ask.
pub fn has_children() -> io::Result<bool> {
    match wait(libc::P_ALL, 0, libc::WNOHANG | libc::WNOWAIT) {
        Reaped::NoChildren => Ok(false),
        Reaped::Unknown(errno) => Err(errno.into()),
        _ => Ok(true),
    }
}

/// Whether a child of ours has ended; it is not reaped.
pub fn has_ended(child: Pid) -> bool {
    let options = libc::WNOHANG | libc::WNOWAIT;
    matches!(wait(libc::P_PID, child.as_raw_pid().unsigned_abs(), options), Reaped::Ended(..))
}

/// Whether the process of a pidfd has ended, pidfd_open(2); until then its pid is its own. May run between birth and exec.
pub fn has_exited(pidfd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    // What can't be asked is no end.
    retry_on_intr(|| poll(&mut fds, Some(&Timespec::default()))).is_ok_and(|ready| ready > 0)
}

fn wait(whose: libc::idtype_t, id: libc::id_t, options: libc::c_int) -> Reaped {
    wait_for(whose, id, options | libc::WEXITED | libc::WSTOPPED | libc::WCONTINUED)
}

fn wait_for(whose: libc::idtype_t, id: libc::id_t, options: libc::c_int) -> Reaped {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: the buffer is a whole siginfo_t.
    let result = unsafe { libc::waitid(whose, id, info.as_mut_ptr(), options | libc::__WALL) };
    if result < 0 {
        return match Errno::from_io_error(&io::Error::last_os_error()) {
            Some(Errno::CHILD) => Reaped::NoChildren,
            Some(Errno::INTR) => wait_for(whose, id, options),
            // Nothing else is known of waitid(2), and nothing else proves that there is no child.
            errno => Reaped::Unknown(errno.unwrap_or(Errno::INVAL)),
        };
    }
    // SAFETY: all zeroes, which it has if there is no news, is a valid value.
    let info = unsafe { info.assume_init() };
    // SAFETY: for waitid the kernel fills the SIGCHLD fields, and without news they are 0.
    let Some(pid) = Pid::from_raw(unsafe { info.si_pid() }) else { return Reaped::Nothing };
    // SAFETY: as for si_pid.
    let status = unsafe { info.si_status() };
    let sig = || Sig::new(status).expect("the kernel reports signals that exist");
    match info.si_code {
        libc::CLD_EXITED => Reaped::Ended(pid, End::Exited(u8::try_from(status & 0xff).expect("masked"))),
        libc::CLD_STOPPED | libc::CLD_TRAPPED => Reaped::Stopped(pid, sig()),
        libc::CLD_CONTINUED => Reaped::Continued(pid),
        _ => Reaped::Ended(pid, End::Signaled(sig())),
    }
}

/// The monotonic clock, clock_gettime(2): time since some fixed moment, not counting suspend.
pub fn now() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // The C library's way needs no look at the auxiliary vector first.
    // SAFETY: the clock exists since Linux 2.6, and the buffer is a whole timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).expect("the monotonic clock is not negative");
    Duration::new(seconds, u32::try_from(time.tv_nsec).expect("less than a second"))
}

/// Time since boot, suspend included: what /proc counts the start of a process by.
pub fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::try_from(time).expect("the clock is not negative")
}
