//! The DURATION grammar: timeout(1)'s to the letter, plus `ms`, `us` and compounds such as `1m30s`. Pure.

use std::time::Duration;

/// Reads a duration; zero means "off" to every option that takes one, and a value too large to
/// count saturates at `Duration::MAX`, which never comes.
///
/// # Errors
/// A sentence that names the value and what was expected.
pub fn parse(text: &str) -> Result<Duration, String> {
    timeout_grammar(text, &[OUR_UNITS, GNU_UNITS].concat()).or_else(|| compound(text)).ok_or_else(|| {
        format!("invalid duration '{text}': expected a number with an optional unit, such as 30, 1.5m, 250ms, 2h or 1m30s; 0 is off")
    })
}

/// Reads a duration by GNU timeout's grammar alone.
///
/// # Errors
/// A sentence that names the value and what was expected.
pub fn parse_gnu(text: &str) -> Result<Duration, String> {
    timeout_grammar(text, GNU_UNITS).ok_or_else(|| {
        format!("invalid time interval '{text}': expected a number with an optional s, m, h or d behind it")
    })
}

/// Units and their seconds.
type Units = [(&'static str, f64)];
const GNU_UNITS: &Units = &[("", 1.0), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86400.0)];
const OUR_UNITS: &Units = &[("ms", 1e-3), ("us", 1e-6)];

/// GNU timeout's grammar: a C floating point number, then at most one unit.
fn timeout_grammar(text: &str, units: &Units) -> Option<Duration> {
    let text = text.trim_start_matches([' ', '\t', '\n', '\x0b', '\x0c', '\r']);
    let (is_negative, unsigned) = match text.strip_prefix('-') {
        Some(unsigned) => (true, unsigned),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (number, rest) = number(unsigned)?;
    if is_negative && number.is_written_nonzero {
        return None;
    }
    let (_, scale) = units.iter().find(|(unit, _)| *unit == rest)?;
    Some(number.scaled(*scale))
}

/// What humantime writes for a compound, `1h 30m` or `1m30s`. Its looser forms (`5 s`, `1M` for a month) are
/// no durations here: timeout(1) refuses them, and a month is a surprise.
fn compound(text: &str) -> Option<Duration> {
    let bytes = text.as_bytes();
    let follows = |is_first: fn(&u8) -> bool, is_second: fn(&u8) -> bool| {
        bytes.windows(2).any(|pair| is_first(&pair[0]) && is_second(&pair[1]))
    };
    let has_second_part = follows(|b| b.is_ascii_lowercase() || *b == b' ', u8::is_ascii_digit);
    let is_loose = follows(|b| b.is_ascii_digit(), |b| *b == b' ') || bytes.iter().any(u8::is_ascii_uppercase);
    let is_framed = bytes.first()?.is_ascii_digit() && bytes.last()?.is_ascii_lowercase();
    (has_second_part && !is_loose && is_framed).then(|| humantime::parse_duration(text).ok()).flatten()
}

/// A number of strtod(3) that is neither negative nor NaN.
struct Number {
    value: f64,
    /// A digit other than 0 was written: whatever rounding makes of it, it must not turn into "off".
    is_written_nonzero: bool,
}

impl Number {
    fn scaled(&self, scale: f64) -> Duration {
        let seconds = self.value * scale;
        let duration = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
        if duration.is_zero() && self.is_written_nonzero { Duration::from_nanos(1) } else { duration }
    }
}

/// The longest number at the start of the text and what follows it, as strtod(3) splits them.
fn number(text: &str) -> Option<(Number, &str)> {
    let lower = text.to_ascii_lowercase();
    for word in ["infinity", "inf"] {
        if lower.starts_with(word) {
            return Some((Number { value: f64::INFINITY, is_written_nonzero: true }, &text[word.len()..]));
        }
    }
    if lower.starts_with("0x")
        && let Some(found) = hexadecimal(text)
    {
        return Some(found);
    }
    let (mantissa, digits) = mantissa_len(text, |b| b.is_ascii_digit());
    if digits == 0 {
        return None;
    }
    let end = mantissa + exponent_len(&text[mantissa..], b'e');
    let value = text[..end].parse().ok()?;
    Some((Number { value, is_written_nonzero: has_nonzero(&text[..mantissa]) }, &text[end..]))
}

/// A float holds whole numbers up to 2^53 exactly.
const PRECISE: f64 = (1_u64 << 53) as f64;

/// A hexadecimal number with an optional binary exponent: `0x10`, `0x1.8p-3`.
fn hexadecimal(text: &str) -> Option<(Number, &str)> {
    let digits = text.get(2..)?;
    let (mantissa, count) = mantissa_len(digits, |b| b.is_ascii_hexdigit());
    if count == 0 {
        return None;
    }
    let exponent = exponent_len(&digits[mantissa..], b'p');
    // Out of the range of i32 the outcome is 0 or infinity anyway.
    let power = match digits[mantissa..mantissa + exponent].get(1..) {
        Some(text) => text.parse().unwrap_or(if text.starts_with('-') { -99_999 } else { 99_999 }),
        None => 0_i32,
    };
    let (whole, fraction) = digits[..mantissa].split_once('.').unwrap_or((&digits[..mantissa], ""));
    // Digits beyond the precision of a float only count: a sum of them all could be infinite where the number is not.
    let (value, left_out) = whole.bytes().chain(fraction.bytes()).fold((0.0, 0_i32), |(sum, left_out), b| {
        let digit = f64::from(char::from(b).to_digit(16).unwrap_or(0));
        if sum < PRECISE { (sum * 16.0 + digit, left_out) } else { (sum, left_out.saturating_add(1)) }
    });
    let places = i32::try_from(fraction.len()).unwrap_or(i32::MAX).saturating_sub(left_out);
    let shift = power.saturating_sub(places.saturating_mul(4));
    let is_written_nonzero = has_nonzero(&digits[..mantissa]);
    // 0 times an overflowing power would be NaN.
    let value = if is_written_nonzero { value * 2f64.powi(shift) } else { 0.0 };
    Some((Number { value, is_written_nonzero }, &digits[mantissa + exponent..]))
}

/// Bytes of `123.45` at the start of the text, and how many digits are among them.
fn mantissa_len(text: &str, is_digit: fn(&u8) -> bool) -> (usize, usize) {
    let whole = text.bytes().take_while(is_digit).count();
    if text.as_bytes().get(whole) != Some(&b'.') {
        return (whole, whole);
    }
    let fraction = text[whole + 1..].bytes().take_while(is_digit).count();
    (whole + 1 + fraction, whole + fraction)
}

/// Bytes of `e-12` at the start of the text; none if no digit follows, since then it is no exponent.
fn exponent_len(text: &str, letter: u8) -> usize {
    let bytes = text.as_bytes();
    if bytes.first().map(u8::to_ascii_lowercase) != Some(letter) {
        return 0;
    }
    let sign = usize::from(matches!(bytes.get(1), Some(b'+' | b'-')));
    let digits = bytes[1 + sign..].iter().take_while(|b| b.is_ascii_digit()).count();
    if digits == 0 { 0 } else { 1 + sign + digits }
}

fn has_nonzero(digits: &str) -> bool {
    digits.bytes().any(|b| b.is_ascii_hexdigit() && b != b'0')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_timeout_accepts_is_accepted() {
        for (text, seconds) in [
            ("5", 5.0),
            (".1s", 0.1),
            ("1.5m", 90.0),
            ("2h", 7200.0),
            ("1d", 86400.0),
            ("1e-1", 0.1),
            ("1e1", 10.0),
            ("0x1p-3", 0.125),
            ("0x10", 16.0),
            ("0x1d", 29.0),
            ("0x1p0d", 86400.0),
            ("0x.8", 0.5),
            ("+5", 5.0),
            ("  5", 5.0),
            ("\t5", 5.0),
            ("5.", 5.0),
            ("0", 0.0),
            ("0.0d", 0.0),
            ("0e5", 0.0),
            ("00", 0.0),
            ("0x0p9", 0.0),
            ("-0", 0.0),
            ("-0.0s", 0.0),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
        }
    }

    #[test]
    fn our_own_units_and_compounds_are_accepted() {
        for (text, millis) in [("250ms", 250), ("1500us", 1), ("1m30s", 90_000), ("1h 1s", 3_601_000)] {
            assert_eq!(parse(text).map(|d| d.as_millis()), Ok(millis), "{text}");
        }
    }

    #[test]
    fn huge_values_saturate_and_nonzero_ones_never_become_zero() {
        for text in [
            "inf",
            "Infinity",
            "INFd",
            "1e30",
            "99999999999999999999d",
            "1e99999",
            "0x1p99999",
            "0xffffffffffffffffffff",
        ] {
            assert_eq!(parse(text), Ok(Duration::MAX), "{text}");
        }
        for text in ["1e-10000", "0x1p-99999", "0.0000000000001us", "1e-999d"] {
            assert_eq!(parse(text), Ok(Duration::from_nanos(1)), "{text}");
        }
    }

    #[test]
    fn a_hexadecimal_number_may_have_any_number_of_digits() {
        let many = "0".repeat(400);
        for text in
            [format!("0x10.{many}1"), format!("0x1{many}p-1596"), format!("0x.{many}1p1608"), format!("0x{many}10")]
        {
            assert_eq!(parse(&text), Ok(Duration::from_secs(16)), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for text in [
            "", " ", "abc", "nan", "-1", "-0x1", "1x", "1D", "1 ", "5 s", "1ss", "1sm", "s", ".", "+", "+-1", "++1",
            "e5", "0x", "0xs", "1e", "1e+", "1,5", "inf1", "infinit", "５", "1M", "5sec", "1m30", "1m 30 s",
        ] {
            let refusal = parse(text).expect_err(text);
            assert!(refusal.contains(&format!("'{text}'")), "{refusal}");
        }
    }

    proptest! {
        #[test]
        fn whole_seconds_are_exact(seconds in 0u64..1_000_000_000) {
            prop_assert_eq!(parse(&seconds.to_string()), Ok(Duration::from_secs(seconds)));
        }
    }
}
