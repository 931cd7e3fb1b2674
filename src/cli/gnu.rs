//! GNU timeout's command line, `[-fpv] [-k D] [-s S] DURATION COMMAND [ARG]...`, translated into our own, so that one
//! definition says what an option means. The scan follows getopt_long(3): it stops at the first operand, short options may
//! be bundled and their values glued, and long ones abbreviated.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use clap::{Arg, ArgAction};

use crate::outcome::EXIT_TABLE;
use crate::{duration, signals};

/// A long option of GNU timeout, and its short form.
struct Known {
    long: &'static str,
    short: Option<u8>,
    takes_value: bool,
}

const fn known(long: &'static str, short: Option<u8>, takes_value: bool) -> Known {
    Known { long, short, takes_value }
}

/// What GNU timeout knows; only these can be abbreviated.
const GNU: [Known; 7] = [
    known("foreground", Some(b'f'), false),
    known("kill-after", Some(b'k'), true),
    known("preserve-status", Some(b'p'), false),
    known("signal", Some(b's'), true),
    known("verbose", Some(b'v'), false),
    known("help", None, false),
    known("version", None, false),
];

/// A difference to GNU timeout that is meant.
pub struct Difference {
    /// What GNU timeout does.
    pub theirs: &'static str,
    /// What we do under `--gnu`.
    pub ours: &'static str,
}

/// All differences that are meant, as the README prints them; any other is a fault.
pub const DIFFERENCES: &[Difference] = &[
    Difference { theirs: "has its own options only", ours: "takes our long options too, written out" },
    Difference {
        theirs: "signals the command and its process group",
        ours: "signals every process of the tree; with `-f` the command alone",
    },
    Difference {
        theirs: "returns when the command has ended",
        ours: "ends what is left then (SIGTERM, and SIGKILL after `-k` or 10s); that leaves the status alone and is said in one line",
    },
    Difference {
        theirs: "before 9.10 passes on TERM, INT, HUP and QUIT, even those that the caller ignores",
        ours: "passes on every fatal and real-time signal, and none that the caller ignores, as 9.10 does",
    },
    Difference {
        theirs: "leads a process group of its own, but under `-f`",
        ours: "stays in the caller's, so that `kill -- -PID` of it finds none",
    },
    Difference { theirs: "loses a second signal", ours: "passes it on" },
    Difference { theirs: "dies of SIGKILL itself when it sent that", ours: "ends with 137" },
];

/// Statuses that mean another thing by GNU timeout's rules; the empty ones have no meaning there.
const STATUSES: [(&str, &str); 4] = [
    ("N", "the command's own status; what it left running was ended"),
    ("124", "timed out; with -p the command's own status"),
    ("137", "the command needed SIGKILL"),
    ("193", ""),
];

/// Options that mean another thing.
const MEANINGS: [(&str, &str); 4] = [
    ("kill_after", "From the first signal to SIGKILL; 0 is never [default: never]"),
    ("foreground", "Leave the command in the caller's session, and signal it alone"),
    ("leftover_status", "Status when the command succeeded but left processes [default: its own]"),
    ("verbose", "Say each signal that is sent"),
];

const DURATION: &str =
    "Stop the tree after this long: a number, with s, m, h or d behind it if not in seconds; 0 is never";

/// The definition of our own options as the help of a program called timeout shows them: what is refused there is not
/// in it, and what is different there is said as it is.
pub(super) fn help(ours: clap::Command) -> clap::Command {
    let rows = EXIT_TABLE.iter().filter_map(|row| {
        let changed = STATUSES.iter().find(|(status, _)| *status == row.status);
        let meaning = changed.map_or(row.meaning, |(_, meaning)| meaning);
        (!meaning.is_empty()).then_some((row.status, meaning))
    });
    let duration = Arg::new("duration").value_name("DURATION").required(true).index(1).help(DURATION);
    ours.about("Run COMMAND for at most DURATION and end everything it started, by the rules of GNU timeout")
        .long_about(None::<&str>)
        .override_usage("timeout [OPTION]... DURATION COMMAND [ARG]...")
        .mut_args(|option| {
            let is_known = |letter| GNU.iter().any(|known| known.short.map(char::from) == Some(letter));
            let short = option.get_short().filter(|&letter| is_known(letter));
            match option.get_id().as_str() {
                "command" => option.index(2),
                "timeout" | "gnu" => option.hide(true),
                id => match MEANINGS.iter().find(|(changed, _)| *changed == id) {
                    Some((_, meaning)) => option.help(*meaning),
                    None => option,
                },
            }
            .short(short)
        })
        .arg(duration)
        .after_help(super::exit_table(rows))
}

/// Translates the words behind the program's name.
///
/// # Errors
/// One line that names the word.
pub(super) fn translate(
    words: &[OsString],
    ours: &dyn Fn() -> clap::Command,
    radix: &dyn Fn() -> char,
) -> Result<Vec<OsString>, String> {
    let mut out = vec![OsString::from("--gnu")];
    let mut words = words.iter();
    while let Some(word) = words.as_slice().first() {
        let bytes = word.as_bytes();
        match bytes {
            b"--" => {
                words.next();
                break;
            }
            [b'-', b'-', rest @ ..] => {
                words.next();
                long(rest, &mut words, ours, &mut out)?;
            }
            [b'-', bundle @ ..] if !bundle.is_empty() => {
                words.next();
                short(bundle, &mut words, ours, &mut out)?;
            }
            _ => break,
        }
        if out.last().is_some_and(|last| last == "--report-schema") {
            return Ok(vec!["--report-schema".into()]);
        }
        // GNU timeout prints these as soon as it comes to them.
        if out.last().is_some_and(|last| last == "--help" || last == "--version") {
            check_durations(&mut out, radix)?;
            return Ok(out);
        }
    }
    if out.iter().any(|word| word == "--doctor") && words.len() == 0 {
        return Ok(out);
    }
    let (Some(duration), true) = (words.next(), words.len() > 0) else {
        return Err("missing operand: expected DURATION COMMAND [ARG]...".into());
    };
    out.push(with_value("timeout", duration));
    check_durations(&mut out, radix)?;
    out.push("--".into());
    out.extend(words.cloned());
    Ok(out)
}

/// Our own units are none of GNU timeout's, and its fractions may be written as the user's language does.
fn check_durations(words: &mut [OsString], radix: &dyn Fn() -> char) -> Result<(), String> {
    for word in words {
        let given = word.to_string_lossy();
        let Some((name, text)) = given.split_once('=') else { continue };
        if !matches!(name, "--timeout" | "--kill-after") {
            continue;
        }
        if let Err(refusal) = duration::parse_gnu(text) {
            let with_point = text.replacen(radix(), ".", 1);
            duration::parse_gnu(&with_point).map_err(|_| match duration::parse(text) {
                Ok(_) => format!("{refusal} (treekill-run {} {text} takes this one)", &name[1..3]),
                Err(_) => refusal,
            })?;
            *word = OsString::from(format!("{name}={with_point}"));
        }
    }
    Ok(())
}

fn long(
    word: &[u8],
    words: &mut std::slice::Iter<'_, OsString>,
    ours: &dyn Fn() -> clap::Command,
    out: &mut Vec<OsString>,
) -> Result<(), String> {
    let end = word.iter().position(|&byte| byte == b'=').unwrap_or(word.len());
    let name = String::from_utf8_lossy(&word[..end]);
    let glued = word.get(end + 1..).map(OsStr::from_bytes);
    let (name, takes_value) = resolve(&name, ours)?;
    match (takes_value, glued) {
        (false, Some(_)) => return Err(format!("option '--{name}' doesn't allow an argument")),
        (false, None) => push_flag(&name, out),
        (true, Some(value)) => out.push(with_value(&name, &plain_signal(&name, value))),
        (true, None) => {
            let value = words.next().ok_or_else(|| format!("option '--{name}' requires an argument"))?;
            out.push(with_value(&name, &plain_signal(&name, value)));
        }
    }
    Ok(())
}

/// The whole name of a long option, and whether it takes a value.
fn resolve(name: &str, ours: &dyn Fn() -> clap::Command) -> Result<(String, bool), String> {
    if let Some(exact) = GNU.iter().find(|known| known.long == name) {
        return Ok((name.to_owned(), exact.takes_value));
    }
    if let Some(own) = ours().get_arguments().find(|arg| arg.get_long() == Some(name)) {
        let takes_value = matches!(own.get_action(), ArgAction::Set | ArgAction::Append);
        return Ok((name.to_owned(), takes_value));
    }
    let matching: Vec<&Known> = GNU.iter().filter(|known| known.long.starts_with(name)).collect();
    match matching[..] {
        [one] => Ok((one.long.to_owned(), one.takes_value)),
        [] => Err(format!("unrecognized option '--{name}'")),
        _ => {
            let names: Vec<String> = matching.iter().map(|known| format!("'--{}'", known.long)).collect();
            Err(format!("option '--{name}' is ambiguous; possibilities: {}", names.join(" ")))
        }
    }
}

fn short(
    bundle: &[u8],
    words: &mut std::slice::Iter<'_, OsString>,
    ours: &dyn Fn() -> clap::Command,
    out: &mut Vec<OsString>,
) -> Result<(), String> {
    for (index, &letter) in bundle.iter().enumerate() {
        let Some(option) = GNU.iter().find(|known| known.short == Some(letter)) else {
            let letter = char::from(letter);
            let known = ours();
            let own = known.get_arguments().find(|own| own.get_short() == Some(letter));
            let long = own.and_then(Arg::get_long).filter(|long| *long != "timeout");
            let expected = long.map_or("-f, -k, -p, -s, -v or a long option".into(), |long| format!("--{long}"));
            return Err(format!("invalid option -- '{}': expected {expected}", letter.escape_default()));
        };
        if !option.takes_value {
            push_flag(option.long, out);
            continue;
        }
        let glued = &bundle[index + 1..];
        let value = match glued {
            [] => words.next().ok_or_else(|| format!("option requires an argument -- '{}'", char::from(letter)))?,
            _ => OsStr::from_bytes(glued),
        };
        out.push(with_value(option.long, &plain_signal(option.long, value)));
        return Ok(());
    }
    Ok(())
}

/// GNU timeout signals the command alone when it leaves it in the foreground.
fn push_flag(name: &str, out: &mut Vec<OsString>) {
    out.push(format!("--{name}").into());
    if name == "foreground" {
        out.push("--signal-to=command".into());
    }
}

/// GNU timeout takes more for the status of a death by signal than a shell's 129 to 192: ksh adds 256.
fn plain_signal<'a>(name: &str, value: &'a OsStr) -> Cow<'a, OsStr> {
    let is_number = |text: &&str| name == "signal" && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = value.to_str().filter(is_number).and_then(|text| text.parse::<i32>().ok());
    let plain = number.filter(|n| *n >= 128).map(|n| n & if n < 255 { 0x7f } else { 0xff });
    match plain.map(|n| n.to_string()).filter(|text| plain <= Some(64) && signals::parse(text).is_ok()) {
        Some(text) => Cow::Owned(text.into()),
        None => Cow::Borrowed(value),
    }
}

fn with_value(name: &str, value: &OsStr) -> OsString {
    OsString::from_vec([b"--", name.as_bytes(), b"=", value.as_bytes()].concat())
}
