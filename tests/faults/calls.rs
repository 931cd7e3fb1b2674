//! The errors that a system call may come back with. A call that is not named here may be refused or unknown.

use nix::libc;

/// What is tried on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trial {
    /// It is not made, and comes back with each of these errors.
    Fails(&'static [i32]),
    /// It is made, and comes back with each of these errors all the same.
    FailsAfterwards(&'static [i32]),
    /// It can't fail, for this reason.
    Never(&'static str),
}

/// What seccomp(2) filters make of a call that they do not let pass.
const REFUSED: Trial = Trial::Fails(&[libc::EPERM, libc::ENOSYS]);

/// Its name, and what is tried on it.
pub(crate) fn find(number: i64) -> (String, Trial) {
    let known = TABLE.iter().find(|(known, ..)| *known == number);
    known.map_or_else(|| (format!("call-{number}"), REFUSED), |(_, name, trial)| ((*name).to_owned(), *trial))
}

macro_rules! table {
    ($($number:ident $name:literal $trial:expr;)+) => { &[$((libc::$number, $name, $trial)),+] };
}

const NO_ERRORS: Trial = Trial::Never("the manual knows no error of it");
const ONLY_WRONG: Trial = Trial::Never("it fails for wrong arguments only, and ours are constant");
const LIBRARYS: Trial = Trial::Never("the C library makes it, and does not look at its result");

const OPENING: Trial = Trial::Fails(&[libc::EMFILE, libc::ENOMEM, libc::EPERM, libc::EIO]);
const LOOKING: Trial = Trial::Fails(&[libc::EIO, libc::ENOMEM, libc::EPERM]);
const MAKING: Trial = Trial::Fails(&[libc::EMFILE, libc::ENOMEM]);
const FORKING: Trial = Trial::Fails(&[libc::EAGAIN, libc::ENOMEM]);
const READING: Trial = Trial::Fails(&[libc::EIO, libc::EINTR]);
const WRITING: Trial = Trial::Fails(&[libc::EIO, libc::ENOSPC, libc::EINTR]);
const MAPPING: Trial = Trial::Fails(&[libc::ENOMEM]);
const WAITING: Trial = Trial::Fails(&[libc::EINTR, libc::ENOMEM]);
const SIGNALLING: Trial = Trial::Fails(&[libc::EPERM, libc::ENOSYS]);
const CHANGING: Trial = Trial::Fails(&[libc::ENOSPC, libc::EIO, libc::EPERM]);

const TABLE: &[(i64, &str, Trial)] = table! {
    SYS_access "access" LOOKING;
    SYS_arch_prctl "arch_prctl" LIBRARYS;
    SYS_brk "brk" Trial::Never("it gives an address, and a failure of it is the old one");
    SYS_chmod "chmod" CHANGING;
    SYS_clock_gettime "clock_gettime" NO_ERRORS;
    SYS_clone "clone" FORKING;
    SYS_clone3 "clone3" Trial::Fails(&[libc::EAGAIN, libc::ENOMEM, libc::EPERM, libc::ENOSYS, libc::EBUSY]);
    // Whatever it answers, the descriptor is closed, close(2). What else it may answer is of a file that was written to.
    SYS_close "close" Trial::FailsAfterwards(&[libc::EINTR]);
    SYS_close_range "close_range" REFUSED;
    SYS_eventfd2 "eventfd2" MAKING;
    SYS_execve "execve" Trial::Fails(&[libc::EACCES, libc::ENOMEM, libc::EIO]);
    SYS_exit "exit" NO_ERRORS;
    SYS_exit_group "exit_group" NO_ERRORS;
    SYS_faccessat "faccessat" LOOKING;
    SYS_faccessat2 "faccessat2" Trial::Fails(&[libc::EIO, libc::EPERM, libc::ENOSYS]);
    SYS_fchmod "fchmod" CHANGING;
    SYS_fchmodat "fchmodat" CHANGING;
    SYS_fchown "fchown" CHANGING;
    SYS_fcntl "fcntl" Trial::Fails(&[libc::EMFILE, libc::EPERM]);
    SYS_flock "flock" Trial::Fails(&[libc::EINTR, libc::ENOLCK, libc::EWOULDBLOCK]);
    SYS_fork "fork" FORKING;
    SYS_fstat "fstat" LOOKING;
    SYS_fstatfs "fstatfs" LOOKING;
    SYS_fsync "fsync" Trial::Fails(&[libc::EIO]);
    SYS_getcwd "getcwd" LOOKING;
    SYS_getdents64 "getdents64" LOOKING;
    SYS_getegid "getegid" NO_ERRORS;
    SYS_geteuid "geteuid" NO_ERRORS;
    SYS_getgid "getgid" NO_ERRORS;
    SYS_getpgrp "getpgrp" NO_ERRORS;
    SYS_getpgid "getpgid" ONLY_WRONG;
    SYS_getpid "getpid" NO_ERRORS;
    SYS_getppid "getppid" NO_ERRORS;
    SYS_getrandom "getrandom" Trial::Fails(&[libc::EINTR, libc::ENOSYS]);
    SYS_getrlimit "getrlimit" ONLY_WRONG;
    SYS_getrusage "getrusage" ONLY_WRONG;
    SYS_getsid "getsid" ONLY_WRONG;
    SYS_gettid "gettid" NO_ERRORS;
    SYS_getuid "getuid" NO_ERRORS;
    SYS_kill "kill" Trial::Fails(&[libc::EPERM]);
    SYS_lseek "lseek" Trial::Fails(&[libc::ESPIPE]);
    SYS_lstat "lstat" LOOKING;
    SYS_madvise "madvise" MAPPING;
    SYS_mkdirat "mkdirat" Trial::Fails(&[libc::ENOSPC, libc::ENOMEM, libc::EPERM]);
    SYS_mmap "mmap" MAPPING;
    SYS_mount "mount" Trial::Fails(&[libc::EPERM, libc::ENOMEM]);
    SYS_mprotect "mprotect" MAPPING;
    SYS_mremap "mremap" MAPPING;
    SYS_munmap "munmap" MAPPING;
    SYS_newfstatat "newfstatat" LOOKING;
    SYS_open "open" OPENING;
    SYS_openat "openat" OPENING;
    SYS_pidfd_open "pidfd_open" Trial::Fails(&[libc::EMFILE, libc::ENOMEM, libc::ENOSYS]);
    SYS_pidfd_send_signal "pidfd_send_signal" SIGNALLING;
    SYS_pipe2 "pipe2" MAKING;
    SYS_poll "poll" WAITING;
    SYS_ppoll "ppoll" WAITING;
    SYS_prctl "prctl" Trial::Fails(&[libc::EPERM, libc::EINVAL]);
    SYS_pread64 "pread64" READING;
    SYS_prlimit64 "prlimit64" Trial::Fails(&[libc::EPERM]);
    SYS_pwritev2 "pwritev2" Trial::Fails(&[libc::EIO, libc::ENOSYS, libc::EAGAIN]);
    SYS_read "read" READING;
    SYS_readlink "readlink" LOOKING;
    SYS_readlinkat "readlinkat" LOOKING;
    SYS_recvfrom "recvfrom" Trial::Fails(&[libc::EINTR, libc::ENOMEM]);
    SYS_rename "rename" CHANGING;
    SYS_renameat "renameat" CHANGING;
    SYS_renameat2 "renameat2" CHANGING;
    SYS_rseq "rseq" LIBRARYS;
    SYS_rt_sigaction "rt_sigaction" ONLY_WRONG;
    SYS_rt_sigprocmask "rt_sigprocmask" ONLY_WRONG;
    SYS_rt_sigreturn "rt_sigreturn" NO_ERRORS;
    SYS_rt_sigtimedwait "rt_sigtimedwait" Trial::Fails(&[libc::EINTR, libc::EAGAIN]);
    // A socket that is not full has room.
    SYS_sendto "sendto" Trial::Fails(&[libc::ENOMEM, libc::EINTR]);
    SYS_set_robust_list "set_robust_list" LIBRARYS;
    SYS_set_tid_address "set_tid_address" LIBRARYS;
    SYS_setpgid "setpgid" Trial::Fails(&[libc::EPERM]);
    SYS_setsid "setsid" Trial::Fails(&[libc::EPERM]);
    SYS_sigaltstack "sigaltstack" LIBRARYS;
    SYS_signalfd4 "signalfd4" MAKING;
    SYS_socketpair "socketpair" MAKING;
    SYS_stat "stat" LOOKING;
    SYS_statfs "statfs" LOOKING;
    SYS_statx "statx" Trial::Fails(&[libc::EIO, libc::ENOSYS]);
    SYS_sysinfo "sysinfo" ONLY_WRONG;
    SYS_uname "uname" ONLY_WRONG;
    SYS_unlink "unlink" CHANGING;
    SYS_unlinkat "unlinkat" Trial::Fails(&[libc::EBUSY, libc::EPERM, libc::EIO]);
    SYS_unshare "unshare" Trial::Fails(&[libc::EPERM, libc::ENOSPC]);
    SYS_vfork "vfork" FORKING;
    SYS_wait4 "wait4" Trial::Fails(&[libc::EINTR]);
    SYS_waitid "waitid" Trial::Fails(&[libc::EINTR, libc::EPERM]);
    SYS_write "write" WRITING;
    SYS_writev "writev" WRITING;
};
