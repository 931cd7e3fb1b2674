//! The only unsafe code: one safe wrapper a system call, for what neither rustix nor nix offers in the form that a
//! supervisor needs. Any process runs it; nothing here decides anything.

#![expect(unsafe_code, reason = "the one module that talks to the kernel without a safe wrapper")]

mod birth;
#[cfg(any(test, fuzzing))]
mod c_numbers;
mod heap;
mod inherited;
mod locale;
mod name;
mod namespace;
mod process;
mod signal;

pub use birth::{Handed, Memory, Nursery, close_standard_stream, exec};
#[cfg(any(test, fuzzing))]
pub use c_numbers::strtod;
pub use heap::Heap;
pub use inherited::{CHANGED, Inherited, fill_standard_streams, inherited};
pub use locale::radix;
pub use name::{go_by, words};
pub use namespace::{Namespace, close_all_but, is_alone_in_namespace, unshare};
pub use process::{
    Fork, Reaped, cgroup_id, close_at_exec, die_with_thread_that_forked, duplicate, exit_now, fork, has_children,
    has_ended, has_exited, lend_cpu_to_forker, now, own_pid, peer, reap, reap_at_its_end, reap_ended, reap_only,
    send_signal, signal_child, since_boot,
};
pub use signal::{
    Disposition, Incoming, block_all_signals, continue_on_news, die_of, is_ignored, pending, read_signals,
    set_disposition, set_mask, signal_descriptor, stop_by, wait_for_child_signal,
};

use std::io;

use nix::libc;

/// What a system call returned, with its errno as an error.
fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Whether a call failed for want of descriptors or memory, ours or the system's: another time, or for fewer, it may
/// succeed.
pub fn is_shortage(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::OutOfMemory
        || matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}
