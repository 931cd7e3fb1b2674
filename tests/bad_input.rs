//! Command lines that cannot be taken: one line that names what is wrong, and nothing is started.

mod common;

use common::{Backend, Run, Scratch, both_backends};

both_backends! {
    a_report_that_cannot_be_opened_is_125_and_starts_nothing
    a_report_on_a_closed_descriptor_is_said
}

/// The target is opened before the command starts.
fn a_report_that_cannot_be_opened_is_125_and_starts_nothing(backend: Backend) {
    let scratch = Scratch::new();
    let missing = scratch.join("no/such/folder/report");
    let slash = scratch.join("missing/");
    let dot = scratch.join("missing/.");
    let paths = [&missing, scratch.path(), &slash, &dot].map(|path| path.display().to_string());
    for (target, named) in paths.iter().map(|path| (&**path, &**path)).chain([("", "--report")]) {
        let run = Run::new(backend).option_list(["--report", target]);
        let ended = run.fixture("say started").finish();
        ended.exited(125).said("started", 0).complained_of(named);
        assert_eq!(ended.stderr.lines().count(), 1, "{ended}");
    }
}

fn a_report_on_a_closed_descriptor_is_said(backend: Backend) {
    let ended = Run::new(backend).options("--report-fd 77").fixture("exit 0").finish();
    ended.exited(125).complained_of("77");
}

/// uutils/coreutils#7475 and #3314, ducaale/xh#295, everruns/bashkit#1390.
#[test]
fn nonsense_is_125_in_one_line_and_starts_nothing() {
    for words in [
        "-t abc",
        "-t -1",
        "-t 1x",
        "-t nan",
        "-t 1 -k zzz",
        "-t 1 -s NOSUCH",
        "-s 65",
        "--stages INT:5s",
        "--stages INT,QUIT",
        "--stages INT:x,KILL",
        "--stages KILL:5s,TERM",
        "--stages TERM:5s,KILL -k 5",
        "--stages TERM:5s,KILL -s INT",
        "--signal-to nobody",
        "--leftovers perhaps",
        "--leftover-grace soon",
        "--leftover-status 256",
        "--leftover-status -1",
        "--drain-limit never",
        "--backend nonsense",
        "--backend cgroup,nonsense",
        "--foreground --new-session",
        "--quiet --verbose",
        "--report-fd x",
        "--no-such-option",
        "-Z",
    ] {
        usage_error(words.split(' ').collect());
    }
    usage_error(vec!["-t", ""]);
    usage_error(vec!["--stages", ""]);
    usage_error(vec!["-s", ""]);
    usage_error(vec!["--backend", ""]);
}

/// The line names a value or an option that was given, in quotes.
fn usage_error(options: Vec<&str>) {
    let ended = Run::new(Backend::Auto).option_list(&options).fixture("say started").finish();
    ended.exited(125).said("started", 0).printed("");
    let names = |word: &&str| ["'", " <"].iter().any(|end| ended.stderr.contains(&format!("'{word}{end}")));
    assert!(options.iter().any(names), "{ended}");
    assert_eq!(ended.stderr.lines().count(), 1, "{ended}");
}

#[test]
fn no_command_is_125_in_one_line() {
    let ended = Run::new(Backend::Auto).finish();
    ended.exited(125).complained_of("no command");
    assert_eq!(ended.stderr.lines().count(), 1, "{ended}");
}
