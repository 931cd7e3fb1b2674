//! Birth and exec of a child that shares its parent's memory where it may. What it does between the two must not write
//! `errno`, which is the parent's too, so that the calls that fail in good order go past the C library.

use std::ffi::{CStr, c_char, c_void};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::libc;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::process::Pid;

use super::process::{exit_now, reap_at_its_end};

/// A descriptor as a child has it: under the same number, in a table of its own.
#[derive(Clone, Copy, Debug)]
pub struct Handed(RawFd);

impl Handed {
    /// What the child will have. It is of no use to the parent.
    pub fn new(fd: BorrowedFd<'_>) -> Handed {
        Handed(fd.as_raw_fd())
    }

    /// Closes it in the child.
    pub fn close(self) {
        close_standard_stream(self.0);
    }
}

impl AsFd for Handed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: what the child was handed stays open in its table, but for what it closes as the last use.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

/// Closes one of the descriptors 0 to 2, which the command got closed. For between birth and exec only.
pub fn close_standard_stream(fd: RawFd) {
    // SAFETY: between birth and exec no code follows that uses it.
    unsafe { libc::close(fd) };
}

/// `struct clone_args` up to `cgroup`, clone(2).
#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

/// `CLONE_INTO_CGROUP` of linux/sched.h.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// What memory a child has before exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Its parent's.
    Shared,
    /// A copy. Where its cgroup may run out of memory before exec: then the kernel ends all who share it, wherever they are,
    /// since nothing is freed otherwise.
    Copied,
}

/// Bytes of the child's stack, many times what its few calls need.
const STACK_SIZE: usize = 64 * 1024;
const STACK: MapFlags = MapFlags::PRIVATE.union(MapFlags::STACK);

/// The address sanitizer knows no stack that it has not seen being made.
const CAN_SHARE: bool = arch::CAN_SWITCH_STACKS && !cfg!(sanitized);

/// Where children are born. Copying this memory is a tenth of a short run; where it is shared this process goes on
/// meanwhile, other than after vfork(2), since an exec may hang. So what a child uses it owns, and nobody frees it.
pub struct Nursery {
    /// Stacks for two children, one upon the other; null where they get a copy of ours.
    stacks: *mut u8,
}

impl Nursery {
    /// Makes room.
    ///
    /// # Errors
    /// ENOMEM of mmap(2).
    pub fn new(memory: Memory) -> io::Result<Nursery> {
        let can_share = || CAN_SHARE && dumps_one_alone(rustix::system::uname().release());
        if memory == Memory::Copied || !can_share() {
            return Ok(Nursery { stacks: std::ptr::null_mut() });
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // Not from the heap, whose notes at both ends of so big a piece would be two pages more to touch.
        // SAFETY: it is a mapping of its own.
        let stacks = unsafe { mmap_anonymous(std::ptr::null_mut(), 2 * STACK_SIZE, access, STACK)? };
        Ok(Nursery { stacks: stacks.cast() })
    }

    /// Makes a process group of this session that no living process leads, setpgid(2), and gives its number. A child has
    /// founded it that ends at once; until that is reaped the group is there to be joined, and its number is nobody's.
    ///
    /// # Errors
    /// EAGAIN and ENOMEM of clone(2); EPERM where a filter refuses setpgid(2).
    pub fn found_group(&self) -> io::Result<Pid> {
        let start: Start = (end_at_once, std::ptr::null_mut());
        // Without a signal for its end: it is reaped as soon as the command has joined.
        let founder = clone(None, 0, None, self.stack(1), start).map_err(io::Error::from_raw_os_error)?;
        // By us: it is there when this returns, whether that child has run or not.
        rustix::process::setpgid(Some(founder), Some(founder)).inspect_err(|_| reap_at_its_end(founder))?;
        Ok(founder)
    }

    /// Starts a child, in this cgroup or in ours, and gives its pid and pidfd, clone(2). The child runs `live`, which may only
    /// make system calls before exec.
    ///
    /// # Errors
    /// ENOSYS, EPERM or EINVAL for a cgroup where clone3 is not there or refused by seccomp; EACCES, EBUSY, EOPNOTSUPP where
    /// the cgroup takes no process; EAGAIN, ENOMEM; EMFILE and ENFILE for want of a descriptor. `child` comes back with it.
    pub fn spawn<T: 'static>(
        &self,
        cgroup: Option<BorrowedFd<'_>>,
        child: T,
        live: fn(T) -> !,
    ) -> Result<(Pid, OwnedFd), (io::Error, T)> {
        let newborn = Box::into_raw(Box::new((child, live)));
        let start = (enter::<T> as extern "C" fn(*mut c_void) -> !, newborn.cast());
        let mut pidfd: RawFd = -1;
        match clone(cgroup, libc::SIGCHLD, Some(&mut pidfd), self.stack(0), start) {
            // SAFETY: the kernel has just made this descriptor, and nobody else knows it.
            Ok(pid) => Ok((pid, unsafe { OwnedFd::from_raw_fd(pidfd) })),
            Err(errno) => {
                // SAFETY: it was made above, and there is no child that uses it.
                let newborn = unsafe { Box::from_raw(newborn) };
                Err((io::Error::from_raw_os_error(errno), newborn.0))
            }
        }
    }

    /// The lower end of a stack.
    fn stack(&self, number: usize) -> *mut u8 {
        if self.stacks.is_null() { self.stacks } else { self.stacks.wrapping_add(number * STACK_SIZE) }
    }
}

/// Whether a core dump ends the process alone that it is of. Before Linux 5.16 it ended all that shared its memory: a SIGQUIT
/// between birth and exec would have been the keeper's end.
fn dumps_one_alone(release: &CStr) -> bool {
    let mut numbers = release.to_bytes().split(|byte| !byte.is_ascii_digit());
    let mut number = || numbers.next().and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<u32>().ok());
    (number(), number()) >= (Some(5), Some(16))
}

/// Where a child begins, and with what.
type Start = (extern "C" fn(*mut c_void) -> !, *mut c_void);

extern "C" fn end_at_once(_: *mut c_void) -> ! {
    exit_now(0)
}

extern "C" fn enter<T>(newborn: *mut c_void) -> ! {
    // SAFETY: `Nursery::spawn` has made it for this type and this process. It is not freed: the heap is the parent's.
    let (child, live) = unsafe { newborn.cast::<(T, fn(T) -> !)>().read() };
    live(child)
}

/// A child on this stack shares our memory, and without one has a copy of it, where not every emulator and sandbox knows a
/// child that shares memory and is no thread.
fn clone(
    cgroup: Option<BorrowedFd<'_>>,
    exit_signal: i32,
    mut pidfd: Option<&mut RawFd>,
    stack: *mut u8,
    start: Start,
) -> Result<Pid, i32> {
    let sharing = if stack.is_null() { 0 } else { libc::CLONE_VM };
    match clone_once(cgroup, exit_signal, pidfd.as_deref_mut(), (sharing, stack), start) {
        Err(libc::EINVAL | libc::ENOSYS | libc::EPERM) if sharing != 0 => {
            clone_once(cgroup, exit_signal, pidfd, (0, stack), start)
        }
        born => born,
    }
}

fn clone_once(
    cgroup: Option<BorrowedFd<'_>>,
    exit_signal: i32,
    pidfd: Option<&mut RawFd>,
    (sharing, stack): (i32, *mut u8),
    start: Start,
) -> Result<Pid, i32> {
    let wants_pidfd = if pidfd.is_some() { libc::CLONE_PIDFD } else { 0 };
    let pidfd = pidfd.map_or(std::ptr::null_mut(), |pidfd| &raw mut *pidfd);
    let flags = u64::try_from(sharing | wants_pidfd).expect("flags");
    let exit_signal = u64::try_from(exit_signal).expect("a signal");
    let result = match cgroup {
        Some(cgroup) => {
            let args = CloneArgs {
                flags: flags | CLONE_INTO_CGROUP,
                pidfd: pidfd as u64,
                exit_signal,
                stack: stack as u64,
                stack_size: if stack.is_null() { 0 } else { STACK_SIZE as u64 },
                cgroup: u64::try_from(cgroup.as_raw_fd()).expect("open descriptors are not negative"),
                ..CloneArgs::default()
            };
            let words = [(&raw const args) as usize, size_of::<CloneArgs>(), 0];
            // SAFETY: the child gets a stack of its own, on which it begins by what never returns.
            unsafe { arch::clone(libc::SYS_clone3, words, start) }
        }
        None => {
            // These are the same on every architecture but s390; the stack grows down.
            let top = if stack.is_null() { stack } else { stack.wrapping_add(STACK_SIZE) };
            let flags = usize::try_from(flags | exit_signal).expect("clone(2) has no wider flags");
            let words = [flags, top as usize, pidfd as usize];
            // SAFETY: as above.
            unsafe { arch::clone(libc::SYS_clone, words, start) }
        }
    };
    let number = i32::try_from(result).expect("pids and errnos fit an int");
    if number > 0 { Pid::from_raw(number) } else { None }.ok_or(-number)
}

unsafe extern "C" {
    /// environ(7).
    static environ: *const *const c_char;
}

/// Becomes this program, execve(2), with our environment as it is. `argv` ends with a null pointer and points to
/// strings that the caller keeps. Returns only the errno of a failure. May run between birth and exec.
pub fn exec(path: &CStr, argv: &[*const c_char]) -> i32 {
    assert!(argv.last().is_some_and(|last| last.is_null()), "argv ends with a null pointer");
    // SAFETY: nothing of ours changes the environment, so the pointer stays what the C runtime made it.
    let environment = unsafe { environ };
    let words = [path.as_ptr() as usize, argv.as_ptr() as usize, environment as usize];
    // SAFETY: path and argv are terminated and alive; on success this program is gone.
    let result = unsafe { arch::call(libc::SYS_execve, words) };
    i32::try_from(-result).expect("an errno fits an int")
}

/// System calls by their instruction; what they return is a negative errno if they fail.
#[cfg(target_arch = "x86_64")]
mod arch {
    use std::arch::asm;

    use nix::libc::c_long;

    pub(super) const CAN_SWITCH_STACKS: bool = true;

    pub(super) unsafe fn call(number: c_long, [a, b, c]: [usize; 3]) -> isize {
        let result;
        // SAFETY: the caller's; the kernel changes no other register.
        unsafe {
            asm!("syscall", inlateout("rax") number => result, in("rdi") a, in("rsi") b, in("rdx") c,
                lateout("rcx") _, lateout("r11") _);
        }
        result
    }

    /// The child comes to life on another stack, so that it must not return from here.
    pub(super) unsafe fn clone(number: c_long, [a, b, c]: [usize; 3], (enter, newborn): super::Start) -> isize {
        let result;
        // SAFETY: the caller's; the child finds its registers as they were, but for the stack's.
        unsafe {
            asm!("syscall", "test rax, rax", "jnz 2f", "xor ebp, ebp", "mov rdi, {newborn}", "call {enter}", "ud2", "2:",
                enter = in(reg) enter, newborn = in(reg) newborn,
                inout("rax") number => result, in("rdi") a, in("rsi") b, in("rdx") c, out("rcx") _, out("r11") _);
        }
        result
    }
}

#[cfg(target_arch = "aarch64")]
mod arch {
    use std::arch::asm;

    use nix::libc::c_long;

    pub(super) const CAN_SWITCH_STACKS: bool = true;

    pub(super) unsafe fn call(number: c_long, [a, b, c]: [usize; 3]) -> isize {
        let result;
        // SAFETY: the caller's; the kernel changes no other register.
        unsafe { asm!("svc 0", in("x8") number, inlateout("x0") a => result, in("x1") b, in("x2") c) };
        result
    }

    pub(super) unsafe fn clone(number: c_long, [a, b, c]: [usize; 3], (enter, newborn): super::Start) -> isize {
        let result;
        // SAFETY: the caller's; the child finds its registers as they were, but for the stack's.
        unsafe {
            asm!("svc 0", "cbnz x0, 2f", "mov x29, xzr", "mov x0, {newborn}", "blr {enter}", "brk 1", "2:",
                enter = in(reg) enter, newborn = in(reg) newborn,
                in("x8") number, inout("x0") a => result, in("x1") b, in("x2") c);
        }
        result
    }
}

/// Through the C library, whose `errno` a child that shares no memory has for itself.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod arch {
    use nix::libc::{self, c_long};

    pub(super) const CAN_SWITCH_STACKS: bool = false;

    pub(super) unsafe fn call(number: c_long, [a, b, c]: [usize; 3]) -> isize {
        // SAFETY: the caller's.
        let result = unsafe { libc::syscall(number, a, b, c) };
        if result < 0 {
            -isize::try_from(nix::errno::Errno::last_raw()).expect("an errno")
        } else {
            isize::try_from(result).expect("a word")
        }
    }

    /// With a copy of the memory the child has a copy of this stack too.
    pub(super) unsafe fn clone(number: c_long, words: [usize; 3], (enter, newborn): super::Start) -> isize {
        // SAFETY: the caller's.
        match unsafe { call(number, words) } {
            0 => enter(newborn),
            result => result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_shared_only_where_a_core_dump_is_one_processs_own() {
        for release in [c"5.16.0", c"5.19.0-45-generic", c"6.1.0-18-amd64", c"10.0"] {
            assert!(dumps_one_alone(release), "{release:?}");
        }
        for release in [c"5.15.0-91-generic", c"5.4.0", c"4.18.0-553.el8", c"", c"unknown"] {
            assert!(!dumps_one_alone(release), "{release:?}");
        }
    }
}
