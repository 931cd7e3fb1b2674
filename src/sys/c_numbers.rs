//! How the C library reads numbers, for tests that hold our own reading against it.

use std::ffi::CStr;
use std::ptr;

use nix::libc;

/// What strtod(3) makes of a text, and how many bytes of it.
pub fn strtod(text: &CStr) -> (f64, usize) {
    let mut end = ptr::null_mut();
    // SAFETY: the text ends in a NUL, and the end is written to memory of ours.
    let value = unsafe { libc::strtod(text.as_ptr(), &raw mut end) };
    (value, end.addr() - text.as_ptr().addr())
}
