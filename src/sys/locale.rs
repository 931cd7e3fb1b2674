//! The one thing that depends on the user's language.

use nix::libc;

/// The character that the user's language writes before the fraction of a number, localeconv(3); a point if unknown.
pub fn radix() -> char {
    // SAFETY: we have one thread, and the name is a terminated string.
    unsafe { libc::setlocale(libc::LC_NUMERIC, c"".as_ptr()) };
    // SAFETY: the item exists, and the text that comes back stays until the next call of setlocale.
    let text = unsafe { libc::nl_langinfo(libc::RADIXCHAR) };
    if text.is_null() {
        return '.';
    }
    // SAFETY: nl_langinfo gives a terminated string.
    let text = unsafe { std::ffi::CStr::from_ptr(text) };
    text.to_str().ok().and_then(|text| text.chars().next()).unwrap_or('.')
}
