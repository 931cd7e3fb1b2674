//! The JSON report, and what is said on stderr.

mod common;

use common::{Backend, Ended, Run, Scratch, all_backends, both_backends};
use rustix::process::Signal;
use serde_json::Value;

all_backends! {
    a_report_says_what_ran_and_how_it_ended
    a_stop_is_told_step_by_step
}

both_backends! {
    each_outcome_has_its_name
    a_report_is_not_the_commands_to_see
    an_old_report_is_replaced_as_a_whole
    a_report_keeps_its_place_and_its_mode
    a_report_can_go_to_a_descriptor
    a_report_reads_words_that_are_no_utf_8
    normally_nothing_is_said
    what_was_out_of_the_ordinary_is_one_line
    verbose_tells_each_step_and_quiet_none
}

fn has_outcome(ended: &Ended, outcome: &str, status: u8) -> Value {
    let report = ended.report();
    assert_eq!(report["outcome"], outcome, "{report:#}\n{ended}");
    assert_eq!(report["exit_status"], status, "{report:#}\n{ended}");
    report
}

fn a_report_says_what_ran_and_how_it_ended(backend: Backend) {
    let ended = Run::new(backend).report().fixture("say command exit 3").finish();
    let report = has_outcome(ended.exited(3), "exited", 3);
    assert_eq!(report["schema"], 1);
    let words = [common::fixture().to_str().expect("a path"), "say", "command", "exit", "3"].map(Value::from);
    assert_eq!(report["command"], Value::from(words.to_vec()));
    assert_eq!(report["pid"].to_string(), ended.value("command"));
    assert_eq!(report["command_status"]["exited"], 3, "{report:#}");
    for list in ["leftovers", "kept", "survivors"] {
        assert_eq!(report[list], Value::Array(vec![]), "{report:#}");
    }
    let name = report["backend"]["name"].as_str().expect("a name");
    assert!(name.starts_with(backend.name()), "{report:#}");
    for moment in ["start", "end"] {
        // RFC 3339: 2026-01-02T03:04:05.678Z.
        let text = report[moment].as_str().expect("a moment");
        assert!(text.len() >= 20 && text.as_bytes()[10] == b'T', "{text}");
    }
    assert!(report["duration_ms"].is_u64(), "{report:#}");
}

fn each_outcome_has_its_name(backend: Backend) {
    let run = |options: &str, steps: &str| Run::new(backend).report().options(options).fixture(steps).finish();
    let report = has_outcome(&run("", "kill self KILL hang"), "signaled", 137);
    assert_eq!(report["command_status"]["signaled"], "KILL", "{report:#}");
    has_outcome(&run("-t 300ms", "hang"), "timed_out", 124);
    has_outcome(&run("-t 700ms -k 300ms", "ignore TERM hang"), "timed_out", 137);
    has_outcome(&run("-t 700ms -p", "on TERM [ exit 7 ] hang"), "timed_out", 7);
    has_outcome(&run("-k 1", "daemon [ hang ] exit 0"), "exited", 193);

    let mut running = Run::new(backend).report().fixture("say ready hang").spawn();
    running.expect("ready");
    running.signal(Signal::TERM);
    has_outcome(&running.wait(), "stopped", 143);

    let ended = Run::new(backend).report().command(["no-such-command-of-treekill"]).finish();
    let report = has_outcome(&ended, "failed_to_start", 127);
    assert_eq!(report["command_status"], Value::Null, "{report:#}");
}

fn a_stop_is_told_step_by_step(backend: Backend) {
    let steps = "fork [ setsid ignore TERM hang ] ignore TERM hang";
    let ended = Run::new(backend).report().options("-t 1 -k 300ms").fixture(steps).finish();
    let report = has_outcome(&ended, "timed_out", 137);
    let told = report["steps"].as_array().expect("a list");
    let at = |action: &str| {
        let step = told.iter().find(|step| step["action"] == action);
        step.unwrap_or_else(|| panic!("no step {action} in {report:#}"))
    };
    assert_eq!(at("signal")["signal"], "TERM", "{report:#}");
    assert_eq!(at("signal")["count"], 2, "{report:#}");
    let (signal, kill) = (at("signal")["at_ms"].as_u64(), at("kill")["at_ms"].as_u64());
    assert!(signal >= Some(1000) && kill >= Some(1300), "{report:#}");
}

/// A file that the command could write would be its own judge.
fn a_report_is_not_the_commands_to_see(backend: Backend) {
    let ended = Run::new(backend).report().fixture("state").finish();
    assert!(!ended.exited(0).value("state").contains("report.json"), "{ended}");
}

fn an_old_report_is_replaced_as_a_whole(backend: Backend) {
    let scratch = Scratch::new();
    let file = scratch.file("report", &b"x".repeat(100_000), 0o644);
    let run = Run::new(backend).option_list(["--report".as_ref(), file.as_os_str()]);
    run.fixture("exit 3").finish().exited(3);
    let report: Value = serde_json::from_slice(&std::fs::read(&file).expect("it is there")).expect("JSON");
    assert_eq!(report["exit_status"], 3);
    let names: Vec<_> =
        std::fs::read_dir(scratch.path()).expect("ours").flatten().map(|file| file.file_name()).collect();
    assert_eq!(names, ["report"], "a temporary file is left");
}

fn a_report_keeps_its_place_and_its_mode(backend: Backend) {
    use std::os::unix::fs::PermissionsExt as _;
    let scratch = Scratch::new();
    // The command changes to another directory, and the target's name is relative.
    let run = Run::new(backend).options("--report report").directory(scratch.path());
    run.fixture("chdir / exit 3").finish().exited(3);
    let mode = std::fs::metadata(scratch.join("report")).expect("it is there").permissions().mode() & 0o777;
    let plain = std::fs::metadata(scratch.file("plain", b"", 0o644)).expect("it is there").permissions().mode() & 0o777;
    assert_eq!(mode, plain, "{mode:o}");
}

fn a_report_can_go_to_a_descriptor(backend: Backend) {
    let ended = Run::new(backend).options("--report-fd 1").fixture("exit 3").finish();
    let report: Value = serde_json::from_slice(&ended.exited(3).stdout).expect("JSON");
    assert_eq!(report["exit_status"], 3);
}

fn a_report_reads_words_that_are_no_utf_8(backend: Backend) {
    use std::os::unix::ffi::OsStrExt as _;
    let word = std::ffi::OsStr::from_bytes(b"\xff\"\\\n\x01");
    let ended = Run::new(backend)
        .report()
        .command([common::fixture().as_os_str(), "exit".as_ref(), "3".as_ref(), word])
        .finish();
    let report = has_outcome(ended.exited(3), "exited", 3);
    assert_eq!(report["command"][3], "\u{fffd}\"\\\n\u{1}", "{report:#}");
}

fn normally_nothing_is_said(backend: Backend) {
    for steps in ["exit 0", "exit 3", "kill self TERM hang", "fork [ exit 0 ] wait exit 0"] {
        let ended = Run::new(backend).options("-t 20").fixture(steps).finish();
        assert_eq!((ended.stderr.as_str(), ended.stdout.len()), ("", 0), "{ended}");
    }
}

fn what_was_out_of_the_ordinary_is_one_line(backend: Backend) {
    for (options, steps) in
        [("-k 1", "daemon [ hang ] exit 0"), ("-k 1", "daemon [ hang ] exit 3"), ("-t 300ms", "hang")]
    {
        let ended = Run::new(backend).options(options).fixture(steps).finish();
        let lines: Vec<_> = ended.stderr.lines().collect();
        assert!(
            !lines.is_empty() && lines.iter().filter(|line| line.starts_with("treekill-run: ")).count() == 1,
            "{ended}"
        );
        assert!(lines.len() <= 11, "{ended}");
    }
}

fn verbose_tells_each_step_and_quiet_none(backend: Backend) {
    let run = |options: &str| {
        let run = Run::new(backend).options(options).options("-t 1 -k 300ms");
        run.fixture("fork [ setsid ignore TERM hang ] ignore TERM hang").finish()
    };
    run("-v").exited(137).complained_of("TERM").complained_of("KILL").complained_of("fixture");
    assert_eq!(run("-q").exited(137).stderr, "");
}
