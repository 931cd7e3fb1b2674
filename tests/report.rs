//! The JSON report, and what is said on stderr.

mod common;

use std::ffi::OsStr;
use std::time::Duration;

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
    a_descriptor_for_the_report_is_not_the_commands
    an_old_report_is_replaced_as_a_whole
    a_report_keeps_its_place_and_its_mode
    a_report_can_go_to_a_descriptor
    a_report_reads_words_that_are_no_utf_8
    normally_nothing_is_said
    what_was_out_of_the_ordinary_is_one_line
    verbose_tells_each_step_and_quiet_none
    a_signal_that_is_repeated_is_one_step
    leftovers_are_named_with_what_ended_them
    every_kind_of_report_is_as_the_schema_says
    a_report_that_cannot_be_written_fails_a_success_and_nothing_else
    a_report_for_a_reader_that_never_comes_does_not_hang
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

fn a_descriptor_for_the_report_is_not_the_commands(backend: Backend) {
    use std::os::fd::AsRawFd as _;
    for option in ["--report-fd 7", "--report /dev/fd/7"] {
        let scratch = Scratch::new();
        let file = std::fs::File::create(scratch.join("report.json")).expect("the folder is ours");
        let file = common::sys::out_of_the_way(file);
        let give = move || common::sys::give_descriptor(file.as_raw_fd(), 7);
        let ended = Run::new(backend).options(option).setup(give).fixture("state").finish();
        assert!(!ended.exited(0).value("state").contains("report.json"), "{ended}");
        let text = std::fs::read_to_string(scratch.join("report.json")).expect("it is there");
        assert!(text.contains("\"exit_status\":0"), "{text}");
    }
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

fn a_signal_that_is_repeated_is_one_step(backend: Backend) {
    let mut running = Run::new(backend).report().fixture("on USR1 [ say got ] say ready hang").spawn();
    running.expect("ready");
    for _ in 0..5 {
        running.signal(Signal::USR1);
        running.expect("got");
    }
    running.signal(Signal::TERM);
    let report = has_outcome(&running.wait(), "stopped", 143);
    let steps = report["steps"].as_array().expect("a list");
    assert_eq!(steps.len(), 2, "{report:#}");
    assert_eq!((&steps[0]["signal"], &steps[0]["times"]), (&"USR1".into(), &5.into()), "{report:#}");
    assert!(steps[0]["at_ms"].as_u64() <= steps[0]["last_ms"].as_u64(), "{report:#}");
    assert_eq!(report["steps_left_out"], 0, "{report:#}");
}

fn leftovers_are_named_with_what_ended_them(backend: Backend) {
    let net = if backend == Backend::Cgroup { "boundary" } else { "ancestry" };
    let run = |steps: &str| Run::new(backend).report().options("-k 300ms").fixture(steps).finish();
    for (steps, sig) in [
        ("hang", "TERM"),
        ("on TERM [ exit 0 ] hang", "TERM"),
        ("ignore TERM hang", "KILL"),
        ("kill self STOP hang", "TERM"),
    ] {
        let ended = run(&format!("daemon [ {steps} ] exit 0"));
        let report = has_outcome(&ended, "exited", 193);
        let leftover = &report["leftovers"][0];
        assert_eq!((&leftover["ended_by"], &leftover["held_by"]), (&sig.into(), &net.into()), "{steps}: {report:#}");
        assert!(leftover["age_ms"].as_u64() >= Some(100), "{report:#}");
        ended.complained_of(&format!("held by {net}")).complained_of(&format!("ended by SIG{sig})"));
        ended.complained_of(&format!("now ended: fixture daemon [ {steps} ] exit 0 ({}, 0.", leftover["pid"]));
    }
    // What it died of is told rather than what it was sent.
    let ended = run("daemon [ on TERM [ kill self KILL ] hang ] exit 0");
    assert_eq!(ended.report()["leftovers"][0]["ended_by"], "KILL", "{ended}");
}

/// The schema that the program prints.
fn schema() -> Value {
    let output = std::process::Command::new(common::wrapper()).arg("--report-schema").output().expect("it starts");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn every_kind_of_report_is_as_the_schema_says(backend: Backend) {
    let schema = jsonschema::validator_for(&schema()).expect("a schema");
    let check = |ended: &Ended| {
        let report = ended.report();
        let errors: Vec<String> =
            schema.iter_errors(&report).map(|error| format!("{}: {error}", error.instance_path())).collect();
        assert!(errors.is_empty(), "{errors:#?}\n{report:#}");
    };
    let run = |options: &str, steps: &str| Run::new(backend).report().options(options).fixture(steps).finish();
    for (options, steps) in [
        ("", "exit 3"),
        ("", "kill self KILL hang"),
        ("-t 500ms", "fork [ listen hang ] wait"),
        ("-t 500ms -k 100ms", "ignore TERM hang"),
        ("-t 500ms -s KILL", "fork [ setsid hang ] hang"),
        ("-k 1", "daemon [ hang ] exit 0"),
        ("--leftovers wait -t 500ms", "daemon [ hang ] exit 0"),
        ("-v --stats --die-with-parent", "exit 0"),
        ("--backend cgroup,subreaper", "exit 0"),
        ("--memory-max 64M --pids-max 100 --cpu-max 100%", "exit 0"),
    ] {
        let ended = run(options, steps);
        // Limits can't be had everywhere; then nothing is started, and there is nothing to report.
        if ended.status.code() != Some(195) {
            check(&ended);
        }
    }
    check(&Run::new(backend).report().command(["no-such-command-of-treekill"]).finish());
    check(&Run::new(backend).report().command(["/"]).finish());
    let mut running = Run::new(backend).report().fixture("say ready hang").spawn();
    running.expect("ready");
    running.signal(Signal::USR1);
    check(&running.wait());
    let mut running = Run::new(backend)
        .report()
        .options("--leftovers leave")
        .may_leave()
        .fixture("daemon [ say d hang ] exit 0")
        .spawn();
    let daemon = running.expect_process("d");
    check(&running.wait());
    let _ = rustix::process::pidfd_send_signal(&daemon, Signal::KILL);
}

/// The manual says so: who wants to know why has the message.
#[test]
fn what_cannot_be_had_leaves_no_report() {
    let scratch = Scratch::new();
    let file = scratch.join("report");
    let run = Run::new(Backend::Auto).options("--backend pidns --leftovers leave");
    let ended = run.option_list(["--report".as_ref(), file.as_os_str()]).fixture("say started").finish();
    ended.exited(195).said("started", 0).complained_of("pidns");
    assert!(!file.exists(), "{ended}");
}

/// Then a report that has what is required has every field, and none besides.
#[test]
fn the_schema_requires_every_field_and_allows_no_other() {
    let mut objects = 0;
    let mut rest = vec![schema()];
    while let Some(part) = rest.pop() {
        if let (Some(properties), true) = (part["properties"].as_object(), part["type"] == "object") {
            objects += 1;
            let mut names: Vec<&String> = properties.keys().collect();
            names.sort_unstable();
            let mut required: Vec<&str> =
                part["required"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
            required.sort_unstable();
            assert_eq!(names, required, "{part:#}");
            assert_eq!(part["additionalProperties"], false, "{part:#}");
            let is_described = |part: &Value| {
                part["description"].is_string()
                    || part["$ref"].is_string()
                    || part["anyOf"][0]["description"].is_string()
            };
            assert!(properties.values().all(is_described), "{part:#}");
        }
        match part {
            Value::Array(parts) => rest.extend(parts),
            Value::Object(parts) => rest.extend(parts.into_iter().map(|(_, part)| part)),
            _ => {}
        }
    }
    assert!(objects > 10, "{objects}");
}

#[test]
fn the_schema_stands_alone_on_the_command_line() {
    let run = |words: &[&str]| std::process::Command::new(common::wrapper()).args(words).output().expect("it starts");
    assert_eq!(run(&["--report-schema", "true"]).status.code(), Some(125));
    let output = run(&["--gnu", "--report-schema"]);
    assert!(output.status.success() && output.stdout.starts_with(b"{"), "{output:?}");
}

fn a_report_that_cannot_be_written_fails_a_success_and_nothing_else(backend: Backend) {
    let run = || Run::new(backend).options("--report /dev/full -k 1");
    run().fixture("exit 0").finish().exited(125).complained_of("treekill-run: cannot ");
    run().fixture("exit 3").finish().exited(3).complained_of("treekill-run: cannot ");
    run().fixture("daemon [ hang ] exit 0").finish().exited(193);
}

fn a_report_for_a_reader_that_never_comes_does_not_hang(backend: Backend) {
    let scratch = Scratch::new();
    let fifo = scratch.join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .expect("the directory is ours");
    let ended = Run::new(backend).option_list([OsStr::new("--report"), fifo.as_os_str()]).fixture("exit 3").finish();
    ended.exited(3).took_less_than(Duration::from_secs(20));
}
