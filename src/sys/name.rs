//! What others see of this process, and pick it by: its command line and its name.

use std::ffi::{CStr, OsStr, OsString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Relaxed};

/// Where the command line is that /proc/PID/cmdline shows, proc_pid_cmdline(5), and how long: none until main has it.
static START: AtomicPtr<c_char> = AtomicPtr::new(ptr::null_mut());
static LENGTH: AtomicUsize = AtomicUsize::new(0);

/// The words of a command line, as main gets them.
///
/// # Safety
/// They are strings that end with NUL, and behind the last is a null pointer. They stay, and are nobody else's.
pub unsafe fn words(mut words: *const *mut c_char) -> Vec<OsString> {
    let mut list = vec![];
    loop {
        // SAFETY: as the caller says.
        let start = unsafe { words.read() };
        if start.is_null() {
            return list;
        }
        // SAFETY: as the caller says.
        let word = unsafe { CStr::from_ptr(start) };
        list.push(OsStr::from_bytes(word.to_bytes()).to_owned());
        let length = LENGTH.load(Relaxed);
        if length == 0 {
            START.store(start, Relaxed);
        }
        // The kernel puts one behind the other, execve(2).
        if START.load(Relaxed).wrapping_add(length) == start {
            LENGTH.store(length + word.count_bytes() + 1, Relaxed);
        }
        words = words.wrapping_add(1);
    }
}

/// Goes by another name from now on, of at most 15 bytes, prctl(2), `PR_SET_NAME`: whoever picks processes by a name or by a
/// word of their command line, as pkill(1) and killall(1) do, does not mean this one with the one that forked it. Nothing
/// depends on it.
pub fn go_by(name: &CStr) {
    let _ = rustix::thread::set_name(name);
    let (start, length) = (START.load(Relaxed), LENGTH.load(Relaxed));
    // With another last byte than NUL the kernel would take the environment for a part of it.
    if let Some(room) = length.checked_sub(1) {
        let shown = name.count_bytes().min(room);
        // SAFETY: the words are ours to write, as the caller of `words` has said.
        unsafe { ptr::write_bytes(start, 0, length) };
        // SAFETY: as above; there is room, and the name is none of them.
        unsafe { ptr::copy_nonoverlapping(name.as_ptr(), start, shown) };
    }
}
