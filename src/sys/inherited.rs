//! The state that the caller gave us, captured before the Rust runtime changes it.
//!
//! The tests' runtime ignores SIGPIPE and opens /dev/null over closed standard streams before `main`. A hook in
//! `.init_array` runs earlier. It may call nothing that needs a runtime.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use nix::libc;
use rustix::fs::{Mode, OFlags};

use super::signal::{is_ignored, mask};
use crate::signals::{Sig, SigSet};

/// What the command is to get back, bit for bit.
#[derive(Clone, Copy, Debug)]
pub struct Inherited {
    /// The blocked signals.
    pub mask: SigSet,
    /// Which of `CHANGED` had the disposition "ignore"; the others were at their default, execve(2).
    pub ignored: SigSet,
    /// Which of the descriptors 0 to 2 were closed.
    pub closed: [bool; 3],
}

/// The signals whose disposition this process changes: the runtime does it to SIGPIPE, and we to SIGCHLD. What the caller
/// made of all others is still there to be asked for, and what the command gets by itself.
pub const CHANGED: [Sig; 2] = [Sig::PIPE, Sig::CHLD];

static MASK: AtomicU64 = AtomicU64::new(0);
static IGNORED: AtomicU64 = AtomicU64::new(0);
static CLOSED: AtomicU8 = AtomicU8::new(0);

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
    IGNORED.store(CHANGED.into_iter().filter(|&sig| is_ignored(sig)).collect::<SigSet>().0, Relaxed);
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
