//! The system call that a process is blocked in, proc_pid_syscall(5): its name, and what it waits on. Only those that can
//! block are named; the numbers are the architecture's.

use nix::libc;

/// A system call that somebody is blocked in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    /// Its name, where that is known.
    pub(super) name: Option<&'static str>,
    /// The descriptor that it was called with, if it takes one first.
    pub(super) descriptor: Option<i32>,
}

/// What the first argument of a call is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum First {
    /// A descriptor that it reads from, writes to or waits on.
    Descriptor,
    /// Something else.
    Other,
}

use First::{Descriptor, Other};

macro_rules! table {
    ($($(#[$meta:meta])* $number:ident $name:literal $first:ident)+) => {
        [$($(#[$meta])* (libc::$number, $name, $first)),+]
    };
}

/// Each call that can block.
const CALLS: &[(libc::c_long, &str, First)] = &table! {
    SYS_read "read" Descriptor
    SYS_write "write" Descriptor
    SYS_readv "readv" Descriptor
    SYS_writev "writev" Descriptor
    SYS_pread64 "pread64" Descriptor
    SYS_pwrite64 "pwrite64" Descriptor
    SYS_accept "accept" Descriptor
    SYS_accept4 "accept4" Descriptor
    SYS_connect "connect" Descriptor
    SYS_recvfrom "recvfrom" Descriptor
    SYS_recvmsg "recvmsg" Descriptor
    SYS_recvmmsg "recvmmsg" Descriptor
    SYS_sendto "sendto" Descriptor
    SYS_sendmsg "sendmsg" Descriptor
    SYS_splice "splice" Descriptor
    SYS_flock "flock" Descriptor
    SYS_fcntl "fcntl" Descriptor
    SYS_ioctl "ioctl" Descriptor
    SYS_fsync "fsync" Descriptor
    SYS_fdatasync "fdatasync" Descriptor
    SYS_close "close" Descriptor
    SYS_getdents64 "getdents64" Descriptor
    SYS_epoll_pwait "epoll_pwait" Other
    SYS_ppoll "ppoll" Other
    SYS_pselect6 "pselect6" Other
    SYS_openat "openat" Other
    SYS_newfstatat "newfstatat" Other
    SYS_statx "statx" Other
    SYS_unlinkat "unlinkat" Other
    SYS_futex "futex" Other
    SYS_wait4 "wait4" Other
    SYS_waitid "waitid" Other
    SYS_nanosleep "nanosleep" Other
    SYS_clock_nanosleep "clock_nanosleep" Other
    SYS_rt_sigsuspend "rt_sigsuspend" Other
    SYS_rt_sigtimedwait "rt_sigtimedwait" Other
    SYS_semtimedop "semtimedop" Other
    SYS_msgrcv "msgrcv" Other
    SYS_mq_timedreceive "mq_timedreceive" Other
    SYS_io_getevents "io_getevents" Other
    SYS_io_uring_enter "io_uring_enter" Other
    SYS_clone "clone" Other
    SYS_clone3 "clone3" Other
    SYS_execve "execve" Other
    SYS_exit_group "exit_group" Other
    SYS_ptrace "ptrace" Other
    SYS_sync "sync" Other
    SYS_mount "mount" Other
    SYS_umount2 "umount2" Other
    #[cfg(target_arch = "x86_64")]
    SYS_poll "poll" Other
    #[cfg(target_arch = "x86_64")]
    SYS_select "select" Other
    #[cfg(target_arch = "x86_64")]
    SYS_epoll_wait "epoll_wait" Other
    #[cfg(target_arch = "x86_64")]
    SYS_pause "pause" Other
    #[cfg(target_arch = "x86_64")]
    SYS_open "open" Other
    #[cfg(target_arch = "x86_64")]
    SYS_stat "stat" Other
    #[cfg(target_arch = "x86_64")]
    SYS_lstat "lstat" Other
    #[cfg(target_arch = "x86_64")]
    SYS_vfork "vfork" Other
};

fn find(number: i64) -> Option<(&'static str, First)> {
    CALLS.iter().find(|(known, ..)| *known == number).map(|&(_, name, first)| (name, first))
}

/// Reads the line of /proc/PID/syscall; `None` for one that is in none, or runs.
pub(super) fn parse(line: &str) -> Option<Call> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let number: i64 = words.first()?.parse().ok().filter(|number| *number >= 0)?;
    if is_of_another_architecture(&words) {
        return Some(Call { name: None, descriptor: None });
    }
    let found = find(number);
    let descriptor = found.filter(|(_, first)| *first == Descriptor).and_then(|_| {
        // The register has the int in its lower half.
        let argument = u64::from_str_radix(words.get(1)?.strip_prefix("0x")?, 16).ok()?;
        i32::try_from(argument & 0xffff_ffff).ok()
    });
    Some(Call { name: found.map(|(name, _)| name), descriptor })
}

/// A program of 32 bits on a kernel of 64 has other numbers. Its stack is where 32 bits reach, which no other's is.
fn is_of_another_architecture(words: &[&str]) -> bool {
    let stack = words.len().checked_sub(2).and_then(|index| words[index].strip_prefix("0x"));
    cfg!(target_pointer_width = "64")
        && stack.and_then(|stack| u64::from_str_radix(stack, 16).ok()).is_some_and(|stack| stack < 1 << 32)
}

/// Whether who is blocked there may hold the lock of its process's memory: in a call that maps memory, in one that is not
/// known, or outside of all calls, where it waits for a page.
pub(super) fn maps_memory(line: &str) -> bool {
    let can = |name| matches!(name, "execve" | "exit_group" | "clone" | "clone3" | "ptrace");
    // Of these a vfork(2) waits for its child alone, and shares its memory without holding it.
    parse(line).is_none_or(|call| call.name.is_none_or(can))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(number: i64, argument: &str) -> String {
        format!("{number} {argument} 0x7ffd 0x1 0x0 0x0 0x0 0x7ffd12345678 0x7f0012345678\n")
    }

    #[test]
    fn a_call_is_named_with_its_descriptor() {
        let read = parse(&line(libc::SYS_read, "0x3"));
        assert_eq!(read, Some(Call { name: Some("read"), descriptor: Some(3) }));
        let wait = parse(&line(libc::SYS_wait4, "0xffffffffffffffff"));
        assert_eq!(wait, Some(Call { name: Some("wait4"), descriptor: None }));
        assert_eq!(parse(&line(99_999, "0x0")), Some(Call { name: None, descriptor: None }));
    }

    #[test]
    fn who_is_in_no_call_has_none() {
        for text in ["running\n", "-1 0x7ffd12345678 0x7f0012345678\n", "", "nonsense"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_numbers_of_a_program_of_32_bits_are_not_ours() {
        let text = "3 0x0 0xff 0x1 0x0 0x0 0x0 0xff812340 0xf7f12549\n";
        assert_eq!(parse(text), Some(Call { name: None, descriptor: None }));
    }

    #[test]
    fn only_calls_that_leave_memory_alone_are_harmless() {
        assert!(!maps_memory(&line(libc::SYS_read, "0x3")));
        for text in [line(libc::SYS_munmap, "0x7f0000000000"), line(libc::SYS_execve, "0x1"), "-1 0x7f 0x7f".into()] {
            assert!(maps_memory(&text), "{text}");
        }
    }
}
