//! The definition, and what both grammars take and refuse; `quick` has its own.

use super::*;

fn parse_words(program: &str, words: &[&str]) -> Result<Request, String> {
    let args: Vec<OsString> = std::iter::once(program).chain(words.iter().copied()).map(OsString::from).collect();
    parse(&args, &|| ',')
}

fn options(args: &[&str]) -> Options {
    match parse_words("treekill-run", args) {
        Ok(Request::Run(options)) => *options,
        other => panic!("{other:?}"),
    }
}

fn refusal(args: &[&str]) -> String {
    parse_words("treekill-run", args).expect_err("refused")
}

#[test]
fn the_definition_is_sound() {
    command().debug_assert();
}

#[test]
fn options_end_at_the_first_word_that_is_none() {
    let line = options(&["-t", "5", "sh", "-t", "6", "--", "--nonsense", "-h"]);
    assert_eq!(line.timeout, Duration::from_secs(5));
    assert_eq!(line.command, ["sh", "-t", "6", "--", "--nonsense", "-h"]);
    assert_eq!(options(&["--", "-x", "--"]).command, ["-x", "--"]);
}

#[test]
fn the_last_of_an_option_wins() {
    let line = options(&["-t", "5", "-t6", "-b", "subreaper", "--backend=cgroup", "-k1", "true"]);
    assert_eq!(line.timeout, Duration::from_secs(6));
    assert_eq!(line.backend, [Backend::Cgroup]);
    assert_eq!(line.kill_after, Some(Duration::from_secs(1)));
    assert_eq!(options(&["--keep", "a", "--keep", "b", "true"]).keep, ["a", "b"], "but for this one");
}

#[test]
fn a_refusal_is_one_line_that_names_the_value() {
    for (args, named) in [
        (&["-t", "abc", "true"][..], "'abc'"),
        (&["-t", "-1", "true"], "'-1'"),
        (&["-s", "NOSUCH", "true"], "'NOSUCH'"),
        (&["--stages", "INT:5s,", "true"], "'INT:5s,'"),
        (&["--stages", "INT", "-k", "5", "true"], "--kill-after"),
        (&["-b", "nonsense", "true"], "'nonsense'"),
        (&["--no-such-option", "--", "true"], "'--no-such-option'"),
        (&["--timeuot", "5", "true"], "--timeout"),
        (&["--memory-max", "2X", "true"], "'2X'"),
        (&["--pids-max", "0", "true"], "'0'"),
        (&["--cpu-max", "x", "true"], "'x'"),
        (&["-q", "-v", "true"], "--verbose"),
        (&["--leftover-status", "256", "true"], "from 0 to 255"),
        (&["-z", "true"], "'-z'"),
        (&["-t", "-5", "true"], "'--timeout <DURATION>'"),
        (&["-k", "-1", "true"], "'--kill-after <DURATION>'"),
        (&["-t", "--", "true"], "'--timeout <DURATION>'"),
        (&["-b", "-x", "true"], "'-x' for '--backend <LIST>'"),
        (&["--timeot", "5", "true"], "found (a similar argument exists: '--timeout'); try"),
        (&["--report-fd", "abc", "true"], "number"),
        (&["--report-fd=", "true"], "'' for '--report-fd <N>'"),
        (&["--leftover-status", "abc", "true"], "from 0 to 255"),
        (&["--keep=", "true"], "''"),
        (&["--report", "-", "true"], "--report-fd 1"),
        (&["--report-schema", "--report", "x"], "no other option"),
        (&[], "no command"),
        (&["--"], "no command"),
    ] {
        let line = refusal(args);
        assert!(line.contains(named), "{args:?}: {line}");
        assert!(!line.contains('\n'), "{line}");
        for clutter in ["to pass", "found in string", "invalid UTF-8", "tip:"] {
            assert!(!line.contains(clutter), "{line}");
        }
    }
}

#[test]
fn a_refusal_names_the_value_once() {
    let line = refusal(&["-t", "abc", "true"]);
    assert_eq!(line.matches("abc").count(), 1, "{line}");
    let line = refusal(&["--stages", "TERM:x,KILL", "true"]);
    assert_eq!(line.matches("TERM:x,KILL").count(), 1, "{line}");
    assert!(line.contains("invalid duration 'x': expected"), "{line}");
}

#[test]
fn bytes_that_are_no_text_are_refused_by_the_options_name() {
    use std::os::unix::ffi::OsStringExt as _;
    let bytes = |text: &[u8]| OsString::from_vec(text.to_vec());
    for (option, word) in [
        ("--timeout", bytes(b"-t\xff")),
        ("--timeout", bytes(b"--timeout=\xff")),
        ("--keep", bytes(b"--keep=a\xff")),
        ("--backend", bytes(b"-b\xff")),
        ("--report-fd", bytes(b"--report-fd=\xff")),
    ] {
        let args = ["treekill-run".into(), word, "true".into()];
        let line = parse(&args, &|| ',').expect_err("refused");
        assert!(line.contains(option) && line.contains('\u{fffd}'), "{line}");
    }
    let line = parse(&["timeout".into(), bytes(b"1\xff"), "true".into()], &|| ',').expect_err("refused");
    assert!(line.contains("time interval '1\u{fffd}'"), "{line}");
}

fn gnu(words: &[&str]) -> Options {
    match parse_words("/usr/bin/timeout", words) {
        Ok(Request::Run(options)) => *options,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_program_called_timeout_reads_timeouts_grammar() {
    let line = gnu(&["-pvk5", "-sINT", "1,5m", "sh", "-c", "--", "-k"]);
    assert!(line.gnu && line.preserve_status && line.verbose);
    assert_eq!((line.timeout, line.kill_after), (Duration::from_secs(90), Some(Duration::from_secs(5))));
    assert_eq!((line.signal, line.command), (Sig::INT, vec!["sh".into(), "-c".into(), "--".into(), "-k".into()]));
    let line = gnu(&["--kill=5", "--sig", "KILL", "--fore", "--", "5", "--", "true"]);
    assert_eq!((line.signal, line.signal_to), (Sig::KILL, SignalTo::Command));
    assert_eq!(line.command, ["--", "true"]);
    let same = parse_words("treekill-run", &["--gnu", "-k", "5", "60", "true"]);
    assert!(matches!(same, Ok(Request::Run(options)) if options.gnu));
}

/// As GNU timeout does: ksh adds 256 to the signal.
#[test]
fn timeout_takes_more_statuses_for_signals() {
    for (text, signal) in [("128", Sig::NONE), ("143", Sig::TERM), ("256", Sig::NONE), ("271", Sig::TERM)] {
        assert_eq!(gnu(&["-s", text, "5", "true"]).signal, signal, "{text}");
    }
    for text in ["255", "384", "399", "999"] {
        let line = parse_words("timeout", &["-s", text, "5", "true"]).expect_err("refused");
        assert!(line.contains(&format!("'{text}'")), "{line}");
    }
}

#[test]
fn our_long_options_are_taken_written_out() {
    let line = gnu(&["--leftovers", "wait", "--backend=subreaper", "--stages", "INT:1s,KILL", "5", "true"]);
    assert_eq!((line.leftovers, line.backend), (Leftovers::Wait, vec![Backend::Subreaper]));
}

#[test]
fn what_timeout_refuses_is_refused_by_name() {
    for (words, named) in [
        (&["--v", "5", "true"][..], "'--v' is ambiguous"),
        (&["--left", "5", "true"], "'--left'"),
        (&["-x", "5", "true"], "'x'"),
        (&["-t5", "true"], "'t'"),
        (&["-k"], "'k'"),
        (&["--signal"], "'--signal'"),
        (&["--foreground=yes", "5", "true"], "'--foreground'"),
        (&["1m30s", "true"], "'1m30s'"),
        (&["5ms", "true"], "'5ms'"),
        (&["-k", "1x", "5", "true"], "'1x'"),
        (&["-s", "NOSUCH", "5", "true"], "'NOSUCH'"),
        (&["--", "-1", "true"], "'-1'"),
        (&["5"], "missing operand"),
        (&[], "missing operand"),
    ] {
        let line = parse_words("timeout", words).expect_err("refused");
        assert!(line.contains(named), "{words:?}: {line}");
        assert!(line.ends_with("; try --help"), "{words:?}: {line}");
    }
    for (words, said) in [
        (&["5"][..], "missing operand: expected"),
        (&["-z", "5", "true"], "invalid option -- 'z': expected"),
        (&["1x", "true"], "invalid time interval '1x': expected"),
        (&["1m30s", "true"], "-t 1m30s"),
        (&["-q", "5", "true"], "--quiet"),
    ] {
        let line = parse_words("timeout", words).expect_err("refused");
        assert!(line.contains(said), "{words:?}: {line}");
    }
    assert!(refusal(&["-v", "--gnu", "5", "true"]).contains("first"));
}

#[test]
fn the_help_of_timeout_shows_what_it_takes_and_means_there() {
    let Ok(Request::Print(text)) = parse_words("timeout", &["--help"]) else { panic!("it prints") };
    let shown = |line: &str| line.split([' ', ',']).find(|word| !word.is_empty()).map(str::to_owned);
    for option in text.lines().filter(|line| line.trim_start().starts_with('-')).filter_map(shown) {
        let refused = [option.clone(), format!("{option}=5")].map(|word| parse_words("timeout", &[&word, "5", "true"]));
        let is_unknown = |line: &str| line.contains("unrecognized option") || line.contains("invalid option");
        let is_taken = refused.iter().any(|parsed| parsed.as_ref().err().is_none_or(|line| !is_unknown(line)));
        assert!(is_taken, "{option}: {refused:?}");
    }
    for said in ["\n  <DURATION>\n", "\n  [COMMAND]...\n", "[default: never]", "\n  -k, --kill-after", "\n  124 "] {
        assert!(text.contains(said), "{said} is not in {text}");
    }
    assert!(text.ends_with("--idle-timeout\n"), "{text}");
    for wrong in ["--timeout", "--gnu", "193", "\n  -q", "\n  -b", "\n  -h", "\n  -V"] {
        assert!(!text.contains(wrong), "{wrong} is in {text}");
    }
}

#[test]
fn help_and_version_are_printed_where_timeout_comes_to_them() {
    for words in [&["--help"][..], &["--vers", "--bogus"], &["-k5", "--h"]] {
        assert!(matches!(parse_words("timeout", words), Ok(Request::Print(_))), "{words:?}");
    }
    assert!(parse_words("timeout", &["-kx", "--help"]).is_err());
    assert!(parse_words("timeout", &["--bogus", "--help"]).is_err());
}
