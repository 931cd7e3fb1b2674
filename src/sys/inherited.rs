//! The state that the caller gave us, captured before the Rust runtime changes it.
//!
//! The tests' runtime ignores SIGPIPE and opens /dev/null over closed standard streams before `main`. A hook in
//! `.init_array` runs earlier. It may call nothing that needs a runtime.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};

use nix::libc;
use rustix::fs::{Mode, OFlags};

use super::signal::{Disposition, disposition, mask};
use crate::signals::{Sig, SigSet};

/// What the command is to get back, bit for bit.
#[derive(Clone, Copy, Debug)]
pub struct Inherited {
    /// The blocked signals.
    pub mask: SigSet,
    /// The signals with the disposition "ignore"; every other one was at its default, execve(2).
    pub ignored: SigSet,
    /// Which of the descriptors 0 to 2 were closed.
    pub closed: [bool; 3],
}

static MASK: AtomicU64 = AtomicU64::new(0);
static IGNORED: AtomicU64 = AtomicU64::new(0);
static CLOSED: AtomicU8 = AtomicU8::new(0);
static IS_UNFILTERED: AtomicBool = AtomicBool::new(false);

/// Whether it is certain that no filter of system calls, seccomp(2), may end this process for one that it could do without.
pub(super) fn is_unfiltered() -> bool {
    IS_UNFILTERED.load(Relaxed)
}

/// The state at the start of this program.
pub fn inherited() -> Inherited {
    let closed = CLOSED.load(Relaxed);
    Inherited {
        mask: SigSet(MASK.load(Relaxed)),
        ignored: SigSet(IGNORED.load(Relaxed)),
        closed: [0, 1, 2].map(|fd| closed & (1 << fd) != 0),
    }
}

#[used]
// SAFETY: the section holds pointers to functions that the C runtime calls once, before main and on its one thread.
// Miri has none of the calls.
#[cfg_attr(not(miri), unsafe(link_section = ".init_array"))]
static CAPTURE: extern "C" fn() = capture;

extern "C" fn capture() {
    // First: what is opened here must not take the number of one that was closed.
    let mut closed = 0;
    for fd in 0..3 {
        let mut status = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: the buffer is a whole stat, and a closed descriptor is only an error.
        if unsafe { libc::fstat(fd, status.as_mut_ptr()) } < 0 {
            closed |= 1 << fd;
        }
    }
    CLOSED.store(closed, Relaxed);
    MASK.store(mask().0, Relaxed);
    let one_by_one = || Sig::all().filter(|&sig| disposition(sig) == Disposition::Ignore).collect();
    let (ignored, is_unfiltered) = read_status().unwrap_or_else(|| (one_by_one(), false));
    IGNORED.store(ignored.0, Relaxed);
    IS_UNFILTERED.store(is_unfiltered, Relaxed);
}

/// Opens /dev/null over the standard streams that were closed, so that no descriptor of ours is taken for one; where there is
/// none, the root folder as a place that can be neither read nor written.
pub fn fill_standard_streams() {
    for _ in inherited().closed.into_iter().filter(|was_closed| *was_closed) {
        let null = rustix::fs::open(c"/dev/null", OFlags::RDWR, Mode::empty());
        if let Ok(filler) = null.or_else(|_| rustix::fs::open(c"/", OFlags::PATH, Mode::empty())) {
            std::mem::forget(filler);
        }
    }
}

/// The ignored signals as /proc/self/status lists them, proc_pid_status(5): three system calls instead of one a signal. And
/// whether it says that there is no filter of system calls. `None` where it can't be read, or says so many groups before them
/// that it is long.
fn read_status() -> Option<(SigSet, bool)> {
    const IGNORED: &[u8] = b"\nSigIgn:\t";
    const UNFILTERED: &[u8] = b"\nSeccomp:\t0\n";
    let file = rustix::fs::open(c"/proc/self/status", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0; 4096];
    let length = rustix::io::read(&file, &mut text).ok()?;
    let find = |words: &[u8]| text[..length].windows(words.len()).position(|window| window == words);
    let at = find(IGNORED)? + IGNORED.len();
    let digits = std::str::from_utf8(text[..length].get(at..at + 16)?).ok()?;
    Some((u64::from_str_radix(digits, 16).ok().map(SigSet)?, find(UNFILTERED).is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_file_says_what_the_kernel_does() {
        let one_by_one: SigSet = Sig::all().filter(|&sig| disposition(sig) == Disposition::Ignore).collect();
        assert_eq!(read_status().map(|(ignored, _)| ignored.0), Some(one_by_one.0));
        // std ignores it.
        assert!(one_by_one.contains(Sig::PIPE));
    }
}
