//! The unsafe of the benchmarks, one operation a block.
#![expect(unsafe_code, reason = "shared memory, fork and ptrace have no safe interface")]

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::libc;

/// Nanoseconds of the monotonic clock.
pub(crate) fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(now.tv_sec).expect("positive") * 1_000_000_000 + u64::try_from(now.tv_nsec).expect("positive")
}

/// Numbers that the driver shares with what runs under a wrapper, through a descriptor that everybody inherits.
pub(crate) struct Board {
    fd: OwnedFd,
    slots: &'static [AtomicU64],
}

/// Enough for a time for each of the processes of a tree.
const SLOTS: usize = 8192;

impl Board {
    pub(crate) fn new() -> Board {
        // SAFETY: the name ends with a NUL. Without CLOEXEC: it is there to be inherited.
        let fd = unsafe { libc::memfd_create(c"bench".as_ptr(), 0) };
        assert!(fd >= 0, "cannot make shared memory: {}", io::Error::last_os_error());
        // SAFETY: it was just opened, and nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let size = u64::try_from(SLOTS * size_of::<u64>()).expect("small");
        rustix::fs::ftruncate(&fd, size).expect("memory can be had");
        Board { slots: map(fd.as_raw_fd()), fd }
    }

    /// The word for a subject's command line.
    pub(crate) fn word(&self) -> String {
        self.fd.as_raw_fd().to_string()
    }

    pub(crate) fn get(&self, slot: usize) -> u64 {
        self.slots[slot].load(Ordering::SeqCst)
    }

    pub(crate) fn clear(&self) {
        for slot in self.slots {
            slot.store(0, Ordering::SeqCst);
        }
    }

    /// Waits until a slot has at least this value, which the timed part of a row never does.
    pub(crate) fn wait(&self, slot: usize, value: u64) -> Result<(), String> {
        wait_for(&self.slots[slot], value)
    }
}

pub(crate) fn wait_for(slot: &AtomicU64, value: u64) -> Result<(), String> {
    let end = now() + 60_000_000_000;
    while slot.load(Ordering::SeqCst) < value {
        if now() > end {
            return Err("what is to be measured did not come up in a minute".into());
        }
        std::thread::sleep(std::time::Duration::from_micros(300));
    }
    Ok(())
}

/// The slots behind the descriptor that a command line names.
pub(crate) fn board(word: &str) -> &'static [AtomicU64] {
    map(word.parse().expect("the number of a descriptor"))
}

fn map(fd: RawFd) -> &'static [AtomicU64] {
    let size = SLOTS * size_of::<u64>();
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing that is there.
    let at =
        unsafe { libc::mmap(std::ptr::null_mut(), size, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd, 0) };
    assert!(at != libc::MAP_FAILED, "cannot map: {}", io::Error::last_os_error());
    // SAFETY: the mapping has this size, is aligned to pages, stays for ever, and others change it by atomics only.
    unsafe { std::slice::from_raw_parts(at.cast::<AtomicU64>(), SLOTS) }
}

/// fork(2): the child's PID, `None` in the child, or an error.
pub(crate) fn fork() -> io::Result<Option<i32>> {
    // SAFETY: the program has one thread, so the child lacks no holder of a lock.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => Ok(Some(pid)),
    }
}

/// A fork without the C library's ceremony, as cheap as a storm's can be.
pub(crate) fn raw_fork() -> io::Result<Option<i32>> {
    let flags = libc::c_long::from(libc::SIGCHLD);
    // SAFETY: without CLONE_VM the child has its own copy of everything, and a null stack means the copied one.
    match unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => Ok(Some(i32::try_from(pid).expect("a PID"))),
    }
}

/// Leaves at once, without the clean-up of the Rust runtime.
pub(crate) fn leave(status: i32) -> ! {
    // SAFETY: _exit only ends the process.
    unsafe { libc::_exit(status) }
}

/// Waits for ever, or until the signal that `limit_life` ordered.
pub(crate) fn pause() -> ! {
    loop {
        // SAFETY: pause(2) takes nothing.
        unsafe { libc::pause() };
    }
}

/// SIGALRM ends this process after so many seconds; fork clears that, exec does not.
pub(crate) fn limit_life(seconds: u32) {
    // SAFETY: alarm(2) takes a number.
    unsafe { libc::alarm(seconds) };
}

/// Ends this process when its parent ends.
pub(crate) fn die_with_parent() {
    // SAFETY: this option takes a number.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

pub(crate) fn ignore(signal: i32) {
    // SAFETY: ignoring runs no code of ours.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

fn set_of(signal: i32) -> libc::sigset_t {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initializes the whole set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: it was initialized above.
    let mut set = unsafe { set.assume_init() };
    // SAFETY: the set is initialized and alive.
    unsafe { libc::sigaddset(&raw mut set, signal) };
    set
}

pub(crate) fn block(signal: i32) {
    let set = set_of(signal);
    // SAFETY: the set is initialized and alive.
    unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
}

/// Waits for a blocked signal.
pub(crate) fn wait_for_signal(signal: i32) {
    let set = set_of(signal);
    // SAFETY: the set is initialized and alive, and the details are not asked for.
    while unsafe { libc::sigwaitinfo(&raw const set, std::ptr::null_mut()) } != signal {}
}

/// Signals a process that is our own child, not yet reaped.
pub(crate) fn signal(child: u32, signal: i32) {
    let pid = i32::try_from(child).expect("a PID");
    assert!(pid > 1, "nobody signals PID {pid}");
    // SAFETY: kill touches no memory.
    unsafe { libc::kill(pid, signal) };
}

/// Joins a cgroup between fork and exec, by its open `cgroup.procs`.
pub(crate) fn born_in(command: &mut Command, procs: BorrowedFd<'_>) {
    let procs = procs.try_clone_to_owned().expect("descriptors enough");
    let join = move || rustix::io::write(&procs, b"0").map(drop).map_err(io::Error::from);
    // SAFETY: one system call, which is safe between fork and exec.
    unsafe { command.pre_exec(join) };
}

/// Whose first instruction waits for this process, at addresses that are the same each time.
pub(crate) fn traced(command: &mut Command) {
    let prepare = || {
        // SAFETY: personality(2) takes a number.
        unsafe { libc::personality(libc::c_ulong::try_from(libc::ADDR_NO_RANDOMIZE).expect("positive")) };
        ptrace(libc::PTRACE_TRACEME, 0, 0, 0).map(drop)
    };
    // SAFETY: system calls only, which are safe between fork and exec.
    unsafe { command.pre_exec(prepare) };
}

/// ptrace(2) with requests that take numbers or addresses in the tracee.
pub(crate) fn ptrace(request: libc::c_uint, pid: i32, address: usize, data: usize) -> io::Result<()> {
    let (address, data) = (address as *mut c_void, data as *mut c_void);
    // SAFETY: the requests that come here use neither number as an address in this process.
    if unsafe { libc::ptrace(request, pid, address, data) } == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// The system call that a tracee stands before, `None` at any other stop.
pub(crate) fn call_at_entry(pid: i32) -> io::Result<Option<(i64, [u64; 6])>> {
    let mut info = std::mem::MaybeUninit::<libc::ptrace_syscall_info>::zeroed();
    let size = size_of::<libc::ptrace_syscall_info>();
    // SAFETY: the kernel writes at most as much as the buffer holds.
    let got = unsafe { libc::ptrace(libc::PTRACE_GET_SYSCALL_INFO, pid, size, info.as_mut_ptr().cast::<c_void>()) };
    if got == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: plain numbers, for which zero is a value.
    let info = unsafe { info.assume_init() };
    if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
        return Ok(None);
    }
    // SAFETY: at an entry this is the member that the kernel wrote.
    let entry = unsafe { info.u.entry };
    Ok(Some((i64::try_from(entry.nr).unwrap_or(-1), entry.args)))
}

/// The message of a ptrace event: the new process.
pub(crate) fn event_message(pid: i32) -> io::Result<i32> {
    let mut message: libc::c_ulong = 0;
    let at = (&raw mut message).cast::<c_void>();
    // SAFETY: the kernel writes a long to a live one.
    if unsafe { libc::ptrace(libc::PTRACE_GETEVENTMSG, pid, 0, at) } == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(i32::try_from(message).expect("a PID"))
}

/// The instruction pointer of a stopped tracee.
#[cfg(target_arch = "x86_64")]
pub(crate) fn instruction_pointer(pid: i32) -> u64 {
    let offset = std::mem::offset_of!(libc::user, regs) + std::mem::offset_of!(libc::user_regs_struct, rip);
    // SAFETY: glibc's wrapper gives the word back; the offset is inside struct user.
    let rip = unsafe { libc::ptrace(libc::PTRACE_PEEKUSER, pid, offset, 0) };
    u64::from_ne_bytes(rip.to_ne_bytes())
}

#[cfg(target_arch = "x86_64")]
pub(crate) fn set_instruction_pointer(pid: i32, to: u64) -> io::Result<()> {
    let offset = std::mem::offset_of!(libc::user, regs) + std::mem::offset_of!(libc::user_regs_struct, rip);
    ptrace(libc::PTRACE_POKEUSER, pid, offset, usize::try_from(to).expect("64 bits"))
}

/// Waits for a stop or an end of any tracee: who, and the raw status.
pub(crate) fn wait_any() -> io::Result<(i32, i32)> {
    let mut status = 0;
    // SAFETY: the status is written to a live integer.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL) };
    if pid == -1 { Err(io::Error::last_os_error()) } else { Ok((pid, status)) }
}
