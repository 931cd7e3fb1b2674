//! Properties of durations and sizes: independent readings of both.

use std::ffi::CString;
use std::time::Duration;

use crate::limits::{self, Size};
use crate::{duration, sys};

/// GNU timeout's grammar is strtod(3) and a unit, so the C library is asked; a compound is the sum of its parts.
pub(super) fn durations(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let Ok(c_text) = CString::new(&*text) else { return };
    let (gnu, ours) = (duration::parse_gnu(&text), duration::parse(&text));
    let (value, length) = sys::strtod(&c_text);
    let number = text.get(..length).expect("it ends behind an ASCII character").trim_start().to_ascii_lowercase();
    let mantissa = match number.split_once("0x") {
        Some((_, digits)) => digits.split('p').next(),
        None => number.split('e').next(),
    };
    let is_nonzero = mantissa
        .is_some_and(|text| text.starts_with("inf") || text.bytes().any(|b| b.is_ascii_hexdigit() && b != b'0'));
    let scale = [("", 1.0), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86400.0)]
        .iter()
        .find(|(unit, _)| *unit == &text[length..]);
    let is_valid = length > 0 && !value.is_nan() && !(value.is_sign_negative() && is_nonzero);
    match (scale.filter(|_| is_valid), &gnu) {
        (Some((_, scale)), Ok(read)) => {
            let expected = Duration::try_from_secs_f64(value * scale).unwrap_or(Duration::MAX);
            let expected = if is_nonzero { expected.max(Duration::from_nanos(1)) } else { Duration::ZERO };
            assert_near(*read, expected, &text);
            assert_eq!(ours.as_ref(), Ok(read), "{text:?}");
        }
        (None, Err(_)) => {}
        (expected, _) => panic!("{text:?} is {gnu:?}, and strtod(3) has {value} {length} {expected:?}"),
    }
    // One part in a unit of ours, or a compound: numbers and letters, the first of which is a digit.
    let is_plain = text.starts_with(|c: char| c.is_ascii_digit())
        && text.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_lowercase() || b == b' ');
    if let (Err(_), Ok(read), true) = (&gnu, &ours, is_plain && !text.starts_with("0x")) {
        assert_near(*read, sum_of_parts(&text), &text);
    }
}

/// Reads `1h 30m`, `250ms`.
fn sum_of_parts(text: &str) -> Duration {
    let mut sum = Duration::ZERO;
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let letters = rest[digits..].bytes().take_while(u8::is_ascii_lowercase).count();
        let count = number_of(&rest[..digits]).expect("a number in front of each unit");
        let nanos: u64 = match &rest[digits..digits + letters] {
            "ns" | "nsec" | "nanos" => 1,
            "us" | "usec" | "micros" => 1000,
            "ms" | "msec" | "millis" => 1_000_000,
            "m" | "min" | "mins" | "minute" | "minutes" => 60 * 1_000_000_000,
            "h" | "hr" | "hrs" | "hour" | "hours" => 3600 * 1_000_000_000,
            "d" | "day" | "days" => 86400 * 1_000_000_000,
            "s" | "sec" | "secs" | "second" | "seconds" => 1_000_000_000,
            // Weeks and longer are humantime's alone to know.
            _ => return duration::parse(text).expect("it was read before"),
        };
        let part = count.saturating_mul(u128::from(nanos));
        let seconds = u64::try_from(part / 1_000_000_000).unwrap_or(u64::MAX);
        sum = sum
            .saturating_add(Duration::new(seconds, u32::try_from(part % 1_000_000_000).expect("less than a second")));
        rest = rest[digits + letters..].trim_start_matches(' ');
    }
    sum
}

/// Equal but for the rounding of floating point numbers.
fn assert_near(read: Duration, expected: Duration, text: &str) {
    let distance = read.abs_diff(expected).as_secs_f64();
    assert!(distance <= 2e-9_f64.max(expected.as_secs_f64() * 1e-12), "{text:?}: {read:?}, not {expected:?}");
}

/// Sizes are whole numbers of bytes, computed exactly; what is said of one can be typed.
pub(super) fn sizes(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let read = limits::parse_size(&text);
    let expected = match text.strip_suffix('%') {
        Some(share) => number_of(share)
            .and_then(|share| u32::try_from(share).ok())
            .filter(|share| (1..=100).contains(share))
            .map(Size::Percent),
        None => exact_bytes(&text).map(Size::Bytes),
    };
    assert_eq!(read.as_ref().ok(), expected.as_ref(), "{text:?}");
    if let Ok(Size::Bytes(bytes)) = read
        && bytes >= 1024
        && bytes % 1024 == 0
    {
        assert_eq!(limits::parse_size(&limits::in_units(bytes)), Ok(Size::Bytes(bytes)));
    }
    let number = number_of(&text).and_then(|number| u64::try_from(number).ok()).filter(|number| *number > 0);
    assert_eq!(limits::parse_pids(&text).ok(), number, "{text:?}");
    let share = number_of(text.strip_suffix('%').unwrap_or(&text)).and_then(|share| u32::try_from(share).ok());
    assert_eq!(limits::parse_cpu(&text).ok(), share.filter(|share| *share > 0), "{text:?}");
}

/// A number of nothing but digits, as large as matters.
fn number_of(text: &str) -> Option<u128> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let value =
        || text.bytes().fold(0_u128, |sum, digit| sum.saturating_mul(10).saturating_add(u128::from(digit - b'0')));
    is_number.then(value)
}

fn exact_bytes(text: &str) -> Option<u64> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_uppercase());
    let unit = match &text[number.len()..] {
        "" | "B" => 1_u128,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        "T" => 1 << 40,
        "P" => 1 << 50,
        "E" => 1 << 60,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').map_or((number, None), |(whole, rest)| (whole, Some(rest)));
    // 1/2^60 of an exbibyte is a byte: eighteen digits are as exact as it gets.
    let part = match fraction {
        Some(fraction) => {
            number_of(fraction)?;
            let kept = &fraction[..fraction.len().min(18)];
            unit * number_of(kept)? / 10_u128.pow(u32::try_from(kept.len()).ok()?)
        }
        None => 0,
    };
    u64::try_from(number_of(whole)?.checked_mul(unit)?.checked_add(part)?).ok().filter(|bytes| *bytes > 0)
}
