//! Masks, dispositions and signal descriptors. By raw system calls: a C library hides the signals that it
//! keeps for itself, and the command must get the state of those back too.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{null, null_mut};
use std::time::Duration;

use nix::libc;
use rustix::io::Errno;

use super::checked;
use crate::signals::{Sig, SigSet};

/// What the kernel does with a signal that nobody catches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// The default action of signal(7).
    Default,
    /// Nothing.
    Ignore,
}

/// `struct sigaction` of the kernel, which is not the C library's.
#[repr(C)]
#[derive(Clone, Copy)]
struct KernelAction {
    handler: usize,
    flags: libc::c_ulong,
    #[cfg(not(any(target_arch = "riscv64", target_arch = "loongarch64")))]
    restorer: usize,
    mask: u64,
}

/// Size of the kernel's `sigset_t`.
const MASK_SIZE: usize = size_of::<u64>();

/// Replaces (or with `None` only reads) the mask of blocked signals; gives the one before.
fn change_mask(new: Option<SigSet>) -> SigSet {
    let mut old = 0_u64;
    let new = new.as_ref().map_or(null(), |set| &raw const set.0);
    // SAFETY: both pointers are null or to a u64 that lives across the call, which has no other effect on memory.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, new, &raw mut old, MASK_SIZE) };
    SigSet(old)
}

/// The blocked signals of this thread, sigprocmask(2).
pub(super) fn mask() -> SigSet {
    change_mask(None)
}

/// The signals that are blocked and wait, sigpending(2).
pub fn pending() -> SigSet {
    let mut set = 0_u64;
    // SAFETY: the pointer is to a u64 that lives across the call.
    unsafe { libc::syscall(libc::SYS_rt_sigpending, &raw mut set, MASK_SIZE) };
    SigSet(set)
}

/// Blocks exactly these signals. May run between birth and exec.
pub fn set_mask(set: SigSet) {
    change_mask(Some(set));
}

/// Blocks every signal that can be blocked. A fault in our own code still kills: the kernel forces those.
pub fn block_all_signals() {
    set_mask(SigSet::ALL);
}

/// Whether this process ignores a signal, sigaction(2): as its caller did, for all but those that it changes itself.
pub fn is_ignored(sig: Sig) -> bool {
    let mut action = MaybeUninit::<KernelAction>::zeroed();
    // SAFETY: the buffer has the kernel's layout and size; nothing is changed.
    unsafe {
        libc::syscall(libc::SYS_rt_sigaction, sig.number(), null::<KernelAction>(), action.as_mut_ptr(), MASK_SIZE)
    };
    // SAFETY: all zeroes, which it has if the call failed, is a valid action: the default.
    unsafe { action.assume_init() }.handler == libc::SIG_IGN
}

/// Sets a disposition, sigaction(2). May run between birth and exec.
pub fn set_disposition(sig: Sig, disposition: Disposition) {
    let action = KernelAction {
        handler: match disposition {
            Disposition::Default => libc::SIG_DFL,
            Disposition::Ignore => libc::SIG_IGN,
        },
        flags: 0,
        #[cfg(not(any(target_arch = "riscv64", target_arch = "loongarch64")))]
        restorer: 0,
        mask: 0,
    };
    // SAFETY: the action has the kernel's layout, and without a handler no code of ours is ever run by it.
    unsafe {
        libc::syscall(libc::SYS_rt_sigaction, sig.number(), &raw const action, null_mut::<KernelAction>(), MASK_SIZE)
    };
}

/// A non-blocking, close-on-exec descriptor that becomes readable when one of these signals is pending, signalfd(2).
///
/// # Errors
/// EMFILE, ENFILE or ENOMEM.
pub fn signal_descriptor(set: SigSet) -> io::Result<OwnedFd> {
    let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
    // SAFETY: the set is a u64 that lives across the call.
    let fd = unsafe { libc::syscall(libc::SYS_signalfd4, -1, &raw const set.0, MASK_SIZE, flags) };
    let fd = i32::try_from(checked(fd)?).expect("descriptors fit an int");
    // SAFETY: the kernel has just made this descriptor, and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A signal that arrived.
#[derive(Clone, Copy, Debug)]
pub struct Incoming {
    /// Which.
    pub sig: Sig,
    /// The kernel made it (`SI_KERNEL`), as it does for terminal keys.
    pub is_from_kernel: bool,
    /// A descriptor of ours had news (`continue_on_news`).
    pub is_news: bool,
    /// Who sent it, where that is known.
    pub pid: u32,
}

/// How many signals are taken with one read(2).
const AT_ONCE: usize = 8;

/// Takes the pending signals from a signal descriptor, but those that are ignored: while they are blocked the kernel keeps
/// them all the same, signal(7), and to act on them would undo nohup(1).
///
/// # Errors
/// Those of read(2) but EAGAIN, which means that none is pending.
pub fn read_signals(fd: BorrowedFd<'_>) -> Result<Vec<Incoming>, Errno> {
    const SIZE: usize = size_of::<libc::signalfd_siginfo>();
    let mut taken = vec![];
    loop {
        let mut infos = [const { MaybeUninit::<libc::signalfd_siginfo>::zeroed() }; AT_ONCE];
        // SAFETY: the buffer is as long as the call is told.
        let read = unsafe { libc::read(fd.as_raw_fd(), infos.as_mut_ptr().cast(), SIZE * AT_ONCE) };
        if read < 0 {
            match Errno::from_io_error(&io::Error::last_os_error()) {
                Some(Errno::INTR) => continue,
                Some(errno) if errno != Errno::AGAIN && taken.is_empty() => return Err(errno),
                _ => return Ok(taken),
            }
        }
        let count = usize::try_from(read).unwrap_or_default() / SIZE;
        for info in &infos[..count] {
            // SAFETY: the kernel filled it whole, and any bytes are a valid value.
            taken.extend(incoming(unsafe { info.assume_init_ref() }));
        }
        if count < AT_ONCE {
            return Ok(taken);
        }
    }
}

fn incoming(info: &libc::signalfd_siginfo) -> Option<Incoming> {
    let sig = Sig::new(i32::try_from(info.ssi_signo).ok()?)?;
    let is_from_kernel = info.ssi_code == libc::SI_KERNEL;
    // POLL_IN to POLL_HUP of sigaction(2).
    let is_news = sig == Sig::CONT && (1..=6).contains(&info.ssi_code);
    // SIGCHLD is at its default wherever children are waited for.
    (sig == Sig::CHLD || !is_ignored(sig)).then_some(Incoming { sig, is_from_kernel, is_news, pid: info.ssi_pid })
}

/// Blocks until SIGCHLD is pending, which must be blocked, and takes it; false once this time has passed.
pub fn wait_for_child_signal(timeout: Duration) -> bool {
    take_pending([Sig::CHLD].into_iter().collect(), timeout)
}

/// Takes a pending blocked signal of this set, waiting for one at most this long, sigtimedwait(2).
fn take_pending(set: SigSet, timeout: Duration) -> bool {
    let timeout = libc::timespec {
        // As many as fit wherever C's time has 32 bits; they are 68 years.
        tv_sec: i32::try_from(timeout.as_secs()).unwrap_or(i32::MAX).into(),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // SAFETY: set and timeout live across the call; no information about the signal is asked for.
    let sig = unsafe {
        libc::syscall(
            libc::SYS_rt_sigtimedwait,
            &raw const set.0,
            null_mut::<libc::siginfo_t>(),
            &raw const timeout,
            MASK_SIZE,
        )
    };
    sig > 0
}

/// From now on, or no longer, input or a hang-up on this pipe sends SIGCONT to this process, fcntl(2), O_ASYNC: it goes
/// on even if it is stopped. Every stop signal that is pending is forgotten then, signal(7), also one from elsewhere.
pub fn continue_on_news(pipe: BorrowedFd<'_>, is_wanted: bool) {
    let fd = pipe.as_raw_fd();
    let own = rustix::process::getpid().as_raw_pid();
    // SAFETY: this fcntl takes a number.
    unsafe { libc::fcntl(fd, libc::F_SETOWN, own) };
    // SAFETY: as above.
    unsafe { libc::fcntl(fd, F_SETSIG, libc::SIGCONT) };
    // SAFETY: this fcntl takes no argument.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    // SAFETY: this fcntl takes a number.
    unsafe { libc::fcntl(fd, libc::F_SETFL, if is_wanted { flags | libc::O_ASYNC } else { flags & !libc::O_ASYNC }) };
}

/// `F_SETSIG` of fcntl(2), the same on every architecture.
const F_SETSIG: libc::c_int = 10;

/// Stops this process as job control does, until it is continued. All signals must be blocked, and are afterwards.
/// `is_outdated` is asked when the stop is pending already: a SIGCONT from then on takes it back.
pub fn stop_by(sig: Sig, is_outdated: impl FnOnce() -> bool) {
    let was_ignored = is_ignored(sig);
    if was_ignored {
        // It would not stop us, and yet it has stopped the command.
        set_disposition(sig, Disposition::Default);
    }
    send_to_self(sig);
    let only_this: SigSet = [sig].into_iter().collect();
    if is_outdated() {
        take_pending(only_this, Duration::ZERO);
    } else {
        set_mask(SigSet::ALL.without(only_this));
        set_mask(SigSet::ALL);
    }
    if was_ignored {
        set_disposition(sig, Disposition::Ignore);
    }
}

/// Ends this process by a signal, without a core dump of ours. Returns only if that can't be, as for PID 1.
pub fn die_of(sig: Sig) {
    // A core of the wrapper would hide the command's own. prctl(2), PR_SET_DUMPABLE.
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    set_disposition(sig, Disposition::Default);
    send_to_self(sig);
    set_mask(SigSet::ALL.without([sig].into_iter().collect()));
}

fn send_to_self(sig: Sig) {
    let own = rustix::process::getpid().as_raw_pid();
    // SAFETY: kill touches no memory.
    unsafe { libc::kill(own, sig.number()) };
}
