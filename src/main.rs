//! The binary: everything lives in the library, so that tests and generators see the same code. It is started by the C
//! library itself, since the start of Rust's own would take a good part of the time that a short command does.
#![no_main]
#![expect(unsafe_code, reason = "the one symbol and the one pointer that come from the C library")]

use std::ffi::{c_char, c_int};

/// Where all bytes come from.
#[global_allocator]
static HEAP: treekill_run::sys::Heap = treekill_run::sys::Heap::untouched();

/// What the C library calls, with the words of the command line.
#[unsafe(no_mangle)]
extern "C" fn main(_: c_int, words: *const *mut c_char) -> c_int {
    // SAFETY: as the C library gives them, execve(2): strings that stay and are ours, behind the last a null pointer.
    let words = unsafe { treekill_run::sys::words(words) };
    treekill_run::run(words).into()
}
