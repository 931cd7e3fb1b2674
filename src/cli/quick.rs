//! The command lines of nearly every run, read without clap: building its definition takes as long as a quarter of a run
//! of true(1). What is not plainly right here is clap's to read and to refuse; a test holds the two against each other.

use std::ffi::OsString;
use std::time::Duration;

use clap::ValueEnum;

use super::{Leftovers, Options, SignalTo};
use crate::duration;
use crate::plan::Backend;
use crate::signals::{self, Sig};

/// Reads the words behind the program's name; `None` leaves them to clap.
pub(crate) fn parse(words: &[OsString]) -> Option<Options> {
    let mut options = defaults();
    let mut rest = words;
    while let Some((first, behind)) = rest.split_first() {
        let word = first.to_str()?;
        rest = behind;
        if word == "--" {
            break;
        }
        if !word.starts_with('-') {
            rest = &words[words.len() - behind.len() - 1..];
            break;
        }
        if set_flag(&mut options, word) {
            continue;
        }
        match word.split_once('=').filter(|_| word.starts_with("--")) {
            Some((name, value)) => set_value(&mut options, name, value)?,
            None => {
                let (value, behind) = rest.split_first()?;
                // What looks like an option, and is a value there all the same, is rare.
                set_value(&mut options, word, value.to_str().filter(|value| !value.starts_with('-'))?)?;
                rest = behind;
            }
        }
    }
    options.command = rest.to_vec();
    let is_refused = rest.is_empty() || (options.quiet && options.verbose);
    (!is_refused).then_some(options)
}

/// Sets an option without a value; false if it is none of these.
fn set_flag(options: &mut Options, word: &str) -> bool {
    let flag = match word {
        "-p" | "--preserve-status" => &mut options.preserve_status,
        "-f" | "--foreground" => &mut options.foreground,
        "-q" | "--quiet" => &mut options.quiet,
        "-v" | "--verbose" => &mut options.verbose,
        "--gnu" => &mut options.gnu,
        _ => return false,
    };
    *flag = true;
    true
}

/// Sets an option with a value; `None` if it is none of these or the value is wrong.
fn set_value(options: &mut Options, name: &str, value: &str) -> Option<()> {
    match name {
        "-t" | "--timeout" => options.timeout = duration::parse(value).ok()?,
        "-k" | "--kill-after" => options.kill_after = Some(duration::parse(value).ok()?),
        "-s" | "--signal" => options.signal = signals::parse(value).ok()?,
        "-b" | "--backend" => options.backend = value.split(',').map(one_of).collect::<Option<_>>()?,
        "--leftovers" => options.leftovers = one_of(value)?,
        "--signal-to" => options.signal_to = one_of(value)?,
        _ => return None,
    }
    Some(())
}

fn one_of<T: ValueEnum>(value: &str) -> Option<T> {
    T::from_str(value, false).ok()
}

/// What clap's definition says of options that are not given.
fn defaults() -> Options {
    Options {
        timeout: Duration::ZERO,
        signal: Sig::TERM,
        kill_after: None,
        stages: None,
        signal_to: SignalTo::Tree,
        preserve_status: false,
        leftovers: Leftovers::Kill,
        leftover_grace: Duration::from_millis(200),
        leftover_status: None,
        keep: vec![],
        drain_limit: Duration::from_secs(10),
        idle_timeout: Duration::ZERO,
        backend: vec![Backend::Auto],
        die_with_parent: false,
        no_guard: false,
        memory_max: None,
        pids_max: None,
        cpu_max: None,
        no_new_privs: false,
        foreground: false,
        new_session: false,
        report: None,
        report_fd: None,
        report_schema: false,
        stats: false,
        gnu: false,
        quiet: false,
        verbose: false,
        doctor: false,
        help: None,
        version: None,
        command: vec![],
    }
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches as _;
    use proptest::prelude::*;

    use super::*;

    fn by_clap(words: &[OsString]) -> Option<Options> {
        let name = std::iter::once(OsString::from("treekill-run"));
        let mut matches = super::super::command().try_get_matches_from(name.chain(words.iter().cloned())).ok()?;
        Options::from_arg_matches_mut(&mut matches).ok()
    }

    fn is_same(words: &[&str]) -> bool {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        // Whatever is not read here is clap's.
        parse(&words)
            .is_none_or(|quick| Some(format!("{quick:?}")) == by_clap(&words).map(|options| format!("{options:?}")))
    }

    #[test]
    fn usual_command_lines_are_read_here_and_as_clap_reads_them() {
        for line in [
            "true",
            "-t 10m -k 5s -- make test",
            "--timeout=1.5h -p -v sh -c x --verbose",
            "-b cgroup,subreaper --leftovers wait -s INT -q ls -l",
            "--gnu --kill-after=5 --timeout=60 --foreground --signal-to=command -- -x",
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            let owned: Vec<OsString> = words.iter().map(OsString::from).collect();
            assert!(parse(&owned).is_some(), "{line}");
            assert!(is_same(&words), "{line}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_read_here_clap_reads_in_the_same_way(words in prop::collection::vec(any_word(), 0..7)) {
            prop_assert!(is_same(&words), "{words:?}");
        }
    }

    fn any_word() -> impl Strategy<Value = &'static str> {
        prop::sample::select(vec![
            "-t",
            "-k",
            "-s",
            "-b",
            "-p",
            "-f",
            "-q",
            "-v",
            "-x",
            "-",
            "--",
            "-t5",
            "-5",
            "-0",
            "--timeout=-5",
            "--timeout=-0",
            "--signal=143",
            "--signal=300",
            "-pv",
            "--timeout",
            "--timeout=5",
            "--timeout=",
            "--timeout=x",
            "--timeuot=5",
            "--kill-after=0",
            "--kill-after",
            "--signal=KILL",
            "--signal",
            "--backend=auto",
            "--backend=",
            "--backend=x",
            "--backend",
            "cgroup,subreaper",
            "cgroup,",
            "--leftovers=leave",
            "--leftovers",
            "--signal-to=group",
            "--gnu",
            "--gnu=1",
            "--quiet",
            "--verbose",
            "--verbose=1",
            "--preserve-status",
            "--foreground",
            "--new-session",
            "--stages",
            "TERM",
            "5",
            "1m30s",
            "wait",
            "KILL",
            "true",
            "",
            "--keep",
            "--report",
            "-h",
            "=",
        ])
    }
}
