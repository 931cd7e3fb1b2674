//! The one thing that depends on the user's language.

use nix::libc;

/// The character that the user's language writes before the fraction of a number, localeconv(3); a point if unknown.
pub fn radix() -> char {
    // musl has one language, whatever the system has.
    if cfg!(target_env = "musl") {
        let languages = ["LC_ALL", "LC_NUMERIC", "LANG"].map(|name| std::env::var(name).unwrap_or_default());
        return likely_radix(&languages);
    }
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

/// A comma for whoever has chosen a language, by the first of these that is not empty, locale(7). It may be one that writes
/// points; those are understood before anybody asks, and a comma that was meant as one is better taken than refused.
fn likely_radix(languages: &[String]) -> char {
    match languages.iter().find(|language| !language.is_empty()).map(String::as_str) {
        None | Some("C" | "POSIX") => '.',
        Some(language) if language.starts_with("C.") => '.',
        Some(_) => ',',
    }
}

#[cfg(test)]
mod tests {
    use super::likely_radix;

    #[test]
    fn a_language_that_was_chosen_may_write_commas() {
        let radix = |languages: [&str; 3]| likely_radix(&languages.map(str::to_owned));
        for languages in [["", "", ""], ["C", "", "de_DE.UTF-8"], ["", "POSIX", "de_DE"], ["", "", "C.UTF-8"]] {
            assert_eq!(radix(languages), '.', "{languages:?}");
        }
        for languages in [["de_DE.UTF-8", "C", "C"], ["", "fr_FR", "C"], ["", "", "de_DE.UTF-8"]] {
            assert_eq!(radix(languages), ',', "{languages:?}");
        }
    }
}
