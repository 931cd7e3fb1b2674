//! The only unsafe code: one safe wrapper a system call, for what neither rustix nor nix offers in the form that a
//! supervisor needs. Any process runs it; nothing here decides anything.

#![expect(unsafe_code, reason = "the one module that talks to the kernel without a safe wrapper")]

mod inherited;
mod locale;
mod process;
mod signal;

pub use inherited::{Inherited, inherited};
pub use locale::radix;
pub use process::{
    Fork, Reaped, clone_into_cgroup, close_standard_stream, die_with_thread_that_forked, duplicate, exec, exit_now,
    fork, has_children, has_ended, now, reap, reap_only, send_signal, signal_child, since_boot,
};
pub use signal::{
    Disposition, Incoming, block_all_signals, continue_on_news, die_of, read_signal, set_disposition, set_mask,
    signal_descriptor, stop_by, wait_for_child_signal,
};

use std::io;

use nix::libc;

/// What a system call returned, with its errno as an error.
fn checked(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
