//! Properties of the words of a command line, of frames, and of all that shows what others have named.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use clap::FromArgMatches as _;

use crate::cli::{self, Options, Request, quick};
use crate::duration;
use crate::limits::Limits;
use crate::plan::{Stage, parse_stages};
use crate::report::{Canvas, Report, command_line, draw, in_one_line};
use crate::signals::{self, Sig};
use crate::tree::{Net, Picture, Seen};
use crate::voice::{is_harmless, printable};
use crate::wire::{ToFront, ToKeeper};

/// A signal is what another library takes it for, can be written and read again, and has no case.
pub(super) fn signals(bytes: &[u8]) {
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
pub(super) fn stages(bytes: &[u8]) {
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
pub(super) fn options(bytes: &[u8]) {
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

/// A frame that means something is the only one that means it.
pub(super) fn frames(bytes: &[u8]) {
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
pub(super) fn names(bytes: &[u8]) {
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
    let mut report = Report::new(Limits::default());
    report.begin(words.iter().map(Into::into).collect());
    let json = report.to_json();
    assert_eq!(json.find(|c| !is_harmless(c)), Some(json.len() - 1), "{json:?}");
    let value: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
    assert_eq!(value["command"], serde_json::json!(words));
}
