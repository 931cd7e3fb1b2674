//! What must hold of everything that is read from outside, whatever its bytes are. Each property says more than that
//! nothing panics: it holds a parser against an independent reading, or goes there and back. Short random tests run here;
//! the fuzzer of tests/fuzz runs the same functions for as long as it is told.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use clap::FromArgMatches as _;

use crate::cli::{self, Options, Request, quick};
use crate::limits::{self, Limits, Size};
use crate::plan::{Stage, parse_stages};
use crate::report::{Canvas, Report, command_line, draw, in_one_line};
use crate::signals::{self, Sig};
use crate::tree::{Net, Picture, Seen};
use crate::voice::{is_harmless, printable};
use crate::wire::{ToFront, ToKeeper};
use crate::{boundary, duration, sys, tree};

/// Something that holds of any bytes.
pub struct Property {
    /// What it is about, one word.
    pub name: &'static str,
    /// Panics if it does not hold of these.
    pub check: fn(&[u8]),
    /// What such input is made of, to come near to what is valid.
    pub words: &'static [&'static str],
}

/// All of them.
pub const ALL: &[Property] = &[
    Property {
        name: "durations",
        check: durations,
        words: &[
            "1", "0", "90", ".", "-", "+", " ", "e", "E-3", "0x", "f", "p-9", "p9999", "s", "m", "h", "d", "ms", "us",
            "inf", "nan", "\t",
        ],
    },
    Property {
        name: "signals",
        check: signals,
        words: &[
            "SIG", "sig", "TERM", "Kill", "RTMIN", "RTMAX", "+", "-", "1", "9", "15", "143", "STKFLT", "IOT", "CLD",
            "EXIT",
        ],
    },
    Property {
        name: "stages",
        check: stages,
        words: &["TERM", "INT", "KILL", "9", "0", ":", ",", "5s", "1m30s", "250ms", "inf", "KILL:1", ":5s,"],
    },
    Property {
        name: "options",
        check: options,
        words: &[
            "\n",
            "\n",
            "\n",
            "-",
            "--",
            "-t",
            "-k5",
            "-s",
            "-b",
            "-p",
            "-q",
            "-v",
            "-f",
            "--timeout",
            "--kill-after",
            "--signal=KILL",
            "--backend",
            "--leftovers",
            "--signal-to=",
            "--gnu",
            "--verbose",
            "--foreground",
            "--preserve-status",
            "--keep",
            "--stages",
            "--report",
            "--fore",
            "=",
            "5",
            "cgroup,subreaper",
            "wait",
            "group",
            "TERM",
            "true",
            "1m30s",
        ],
    },
    Property {
        name: "sizes",
        check: sizes,
        words: &["1", "0", "5", "999", ".", "B", "K", "M", "G", "T", "P", "E", "%", "-", "+"],
    },
    Property {
        name: "frames",
        check: frames,
        words: &["a", "b", "c", "e", "g", "p", "r", "s", "t", "\0", "\0\0\0", "\t"],
    },
    Property {
        name: "names",
        check: names,
        words: &[
            "\0", "\x1b[31m", "\n", "\r", "\u{9b}", "\u{202e}", "(", ")", " ", "'", "\"", "\\", "sh", "漢字",
            "\u{301}", "/",
        ],
    },
    Property {
        name: "stat",
        check: tree::properties::stat,
        words: &[" (", ") ", "(", ")", " R ", " S ", "1 ", "-1 ", "4294967296 ", "18446744073709551615 ", "\n"],
    },
    Property {
        name: "proc",
        check: tree::properties::files,
        words: &[
            "\n",
            " ",
            "\0",
            "1",
            "4194304",
            "-1",
            "0x3",
            "0xffffffff",
            "running",
            "TracerPid:\t",
            "0::/",
            "hidepid=",
            "invisible",
            "/proc",
            " - proc proc rw",
            "rchar: ",
            "99999999999",
        ],
    },
    Property {
        name: "sockets",
        check: tree::properties::sockets,
        words: &[
            "0: ",
            "0100007F",
            ":1F90",
            " 0A ",
            " 01 ",
            "00000000",
            " 4711",
            "00010000 ",
            "0001 01 ",
            "/run/a b",
            "@x",
            "é",
        ],
    },
    Property {
        name: "cgroup",
        check: boundary::properties::files,
        words: &[
            "populated 1\n",
            "populated 0\n",
            "frozen ",
            "oom ",
            "oom_kill ",
            "max ",
            "user_usec ",
            "system_usec ",
            "8:0 ",
            "rbytes=",
            "wbytes=",
            "\n",
            " ",
            "0::/",
            "18446744073709551615",
            "7",
            "throttled_usec ",
        ],
    },
    Property {
        name: "mounts",
        check: boundary::properties::mounts,
        words: &[
            "31 23 0:28 ",
            "/ ",
            "/sys/fs/cgroup ",
            "rw - ",
            "cgroup2 ",
            "\\040",
            "\\134",
            "\\",
            "\n",
            " - ",
            "/proc",
            "é",
        ],
    },
];

/// GNU timeout's grammar is strtod(3) and a unit, so the C library is asked; a compound is the sum of its parts.
fn durations(bytes: &[u8]) {
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

/// A signal is what another library takes it for, can be written and read again, and has no case.
fn signals(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let read = signals::parse(&text);
    assert_eq!(read.clone().ok(), signals::parse(&text.to_ascii_lowercase()).ok(), "{text:?}");
    let upper = text.to_ascii_uppercase();
    let name = format!("SIG{}", upper.strip_prefix("SIG").unwrap_or(&upper));
    if let Ok(known) = name.parse::<nix::sys::signal::Signal>() {
        assert_eq!(read.as_ref().map(|sig| sig.number()), Ok(known as i32), "{text:?}");
    }
    match read {
        Ok(Sig::NONE) => assert!(
            matches!(text.trim_start_matches(|c: char| !c.is_ascii_digit()).parse(), Ok(0 | 128 | 256..))
                || name == "SIGEXIT",
            "{text:?}"
        ),
        Ok(sig) => assert_eq!(signals::parse(&sig.to_string()), Ok(sig), "{text:?}"),
        Err(why) => assert!(why.contains(&format!("'{text}'")), "{why}"),
    }
}

/// A list is valid if its parts are, and is read as they are.
fn stages(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let parts: Vec<(&str, Option<&str>)> = text
        .split(',')
        .map(|part| part.split_once(':').map_or((part, None), |(name, wait)| (name, Some(wait))))
        .collect();
    let read: Option<Vec<Stage>> = parts
        .iter()
        .enumerate()
        .map(|(index, (name, wait))| {
            let is_last = index + 1 == parts.len();
            let signal = signals::parse(name).ok()?;
            let wait = wait.map(duration::parse).transpose().ok()?;
            (wait.is_none() == is_last && (is_last || signal != Sig::KILL)).then_some(Stage { signal, wait })
        })
        .collect();
    match (read, parse_stages(&text)) {
        (Some(expected), Ok(stages)) => {
            let stages: Vec<Stage> = (0..).map_while(|index| stages.get(index)).collect();
            // What a relayed signal gets in front of a list of nothing but KILL comes on top.
            assert!(stages == expected || expected[0].signal == Sig::KILL, "{text:?}: {stages:?}");
            assert!(stages.last().is_some_and(|last| last.wait.is_none()), "{text:?}: {stages:?}");
        }
        (None, Err(why)) => assert!(why.contains(&format!("'{text}'")), "{why}"),
        (expected, read) => panic!("{text:?} is {read:?}, and its parts are {expected:?}"),
    }
}

/// The quick parser reads what clap reads, and whoever reads it, the command's words stay as they are.
fn options(bytes: &[u8]) {
    let words: Vec<OsString> =
        bytes.split(|&byte| byte == b'\n').map(|word| OsString::from_vec(word.to_vec())).collect();
    if let Some(quick) = quick::parse(&words) {
        let name = std::iter::once(OsString::from("treekill-run"));
        let matches = cli::command().try_get_matches_from(name.chain(words.iter().cloned()));
        let by_clap = matches.ok().and_then(|mut matches| Options::from_arg_matches_mut(&mut matches).ok());
        assert_eq!(Some(format!("{quick:?}")), by_clap.map(|options| format!("{options:?}")), "{words:?}");
    }
    for program in ["treekill-run", "timeout"] {
        let line: Vec<OsString> = std::iter::once(program.into()).chain(words.iter().cloned()).collect();
        if let Ok(Request::Run(options)) = cli::parse(&line, &|| ',') {
            assert!(words.ends_with(&options.command), "{words:?}: {:?}", options.command);
            let is_command_needed = !options.doctor && !options.report_schema;
            assert!(!options.command.is_empty() || !is_command_needed, "{words:?}");
        }
    }
}

/// Sizes are whole numbers of bytes, computed exactly; what is said of one can be typed.
fn sizes(bytes: &[u8]) {
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

/// A frame that means something is the only one that means it.
fn frames(bytes: &[u8]) {
    for piece in bytes.chunks_exact(4) {
        let frame = piece.try_into().expect("four bytes");
        if let Some(message) = ToKeeper::decode(frame) {
            assert_eq!(message.encode(), frame, "{message:?}");
        }
        if let Some(message) = ToFront::decode(frame) {
            assert_eq!(message.encode(), frame, "{message:?}");
        }
    }
}

/// Whatever names there are, no line has a control character, none is wider than the screen, and JSON gives them back.
fn names(bytes: &[u8]) {
    let words: Vec<String> =
        bytes.split(|&byte| byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    let line = command_line(&words[0], &words[1..], 60);
    assert!(line.chars().count() <= 60.max(words[0].chars().count()), "{line:?}");
    let seen = Seen {
        comm: words[0].clone(),
        argv: words[1..].to_vec(),
        state: "sleeping",
        system_call: Some("read"),
        waits_on: words.last().cloned(),
        terminal: words.first().cloned(),
        listens: words.iter().skip(2).map(|word| format!("unix {word}")).collect(),
        ..Seen::hidden(7, Net::Ancestry)
    };
    let canvas = Canvas { width: 80, has_colour: false, lines: 10, command: None };
    let mut lines =
        draw(&Picture { processes: vec![seen.clone(), Seen { depth: 1, ..seen.clone() }], left_out: 1 }, &canvas);
    lines.extend([in_one_line(&seen), printable(&line)]);
    for line in &lines {
        assert!(line.chars().all(is_harmless), "{line:?}");
        assert_eq!(printable(line), *line, "what is harmless stays as it is");
    }
    let json = Report::new(words.clone(), Limits::default()).to_json();
    assert_eq!(json.find(|c| !is_harmless(c)), Some(json.len() - 1), "{json:?}");
    let value: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
    assert_eq!(value["command"], serde_json::json!(words));
}

/// Values out of random bytes, for input that is as the kernel writes it.
pub(crate) struct Draw<'a>(pub(crate) &'a [u8]);

impl<'a> Draw<'a> {
    pub(crate) fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or_default()
    }

    /// As many bytes as there are, at most these.
    pub(crate) fn bytes(&mut self, most: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Small ones and the largest are likely.
    pub(crate) fn number(&mut self) -> u64 {
        match self.byte() {
            small @ 0..128 => small.into(),
            255 => u64::MAX,
            length => self.bytes(usize::from(length % 8)).iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
        }
    }

    /// A number that a process can have.
    pub(crate) fn pid(&mut self) -> i32 {
        i32::try_from(self.number() % (1 << 22)).expect("22 bits").max(1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};

    use super::*;

    /// Words of the property and other bytes, in any order.
    fn near_misses(words: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
        let word = prop::sample::select(words).prop_map(|word| word.as_bytes().to_vec());
        let piece = prop_oneof![6 => word, 1 => prop::collection::vec(any::<u8>(), 1..9)];
        prop::collection::vec(piece, 0..9).prop_map(|pieces| pieces.concat())
    }

    #[test]
    fn every_property_holds_of_words_and_of_noise() {
        for property in ALL {
            // Building clap's definition takes its time.
            let cases = if property.name == "options" { 300 } else { 2000 };
            let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
            let check = |bytes: Vec<u8>| {
                (property.check)(&bytes);
                Ok(())
            };
            let outcome = runner.run(&near_misses(property.words), check);
            outcome.unwrap_or_else(|error| panic!("{}: {error}", property.name));
        }
    }
}
