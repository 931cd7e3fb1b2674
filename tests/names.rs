//! Names that would harm who reads them: escape sequences, line ends, bytes that are no text, in every place where a
//! message, a drawing or a report shows what others have named.

mod common;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::symlink;
use std::path::Path;

use common::needs::require;
use common::{Backend, Ended, Nest, Run, Scratch, both_backends, fixture, wrapper};
use serde_json::Value;

both_backends! {
    a_command_that_cannot_be_run_is_named_harmlessly
    a_timeout_draws_hostile_names_harmlessly
    leftovers_with_hostile_names_are_named_harmlessly
    who_is_kept_is_named_harmlessly
    the_signals_that_gnu_announces_are_said_harmlessly
    a_report_with_a_hostile_name_is_written_and_named_harmlessly
}

/// A colour, line ends, a bell, DEL, the one-byte escape sequence, one that turns writing around, both parentheses, a
/// quote, and a byte that is no UTF-8; the first fifteen bytes are all that a comm has.
const EVIL: &[u8] = b"\x1b[31m)\n\r(\xff\x7f\x07 '\xc2\x9b2J\xe2\x80\xae.";

fn evil() -> OsString {
    OsString::from_vec(EVIL.to_vec())
}

/// Whether a terminal shows it, and does nothing else.
fn is_harmless(text: &str) -> bool {
    let turns = |c| matches!(c, '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    !text.chars().any(|c| (c.is_control() && c != '\n') || turns(c))
}

/// Each line is one that we began, and none harms a terminal.
#[track_caller]
fn is_said_harmlessly(ended: &Ended) {
    let is_ours = |line: &str| line.starts_with("treekill-run: ") || line.starts_with("  ");
    assert!(is_harmless(&ended.stderr) && ended.stderr.lines().all(is_ours), "{:?}\n{ended}", ended.stderr);
}

/// A report that is one line of JSON without any control character.
#[track_caller]
fn report_at(path: &Path) -> Value {
    let text = fs::read_to_string(path).expect("the report is text");
    assert!(is_harmless(&text) && text.find('\n') == Some(text.len() - 1), "{text:?}");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text:?}"))
}

/// The fixture under the hostile name: its file, its comm and its argv have it.
fn hostile_fixture(scratch: &Scratch) -> OsString {
    let path = scratch.join(evil());
    symlink(fixture(), &path).expect("any bytes name a file");
    path.into_os_string()
}

/// A command line of the hostile fixture.
fn words(program: &OsStr, steps: &str) -> Vec<OsString> {
    std::iter::once(program.to_owned()).chain(steps.split(' ').map(OsString::from)).collect()
}

fn a_command_that_cannot_be_run_is_named_harmlessly(backend: Backend) {
    let ended = Run::new(backend).options("-v").command([evil()]).finish();
    ended.exited(127).complained_of("cannot run");
    is_said_harmlessly(&ended);
    let scratch = Scratch::new();
    let file = scratch.join(evil());
    fs::write(&file, "no program").expect("any bytes name a file");
    let ended = Run::new(backend).options("-v").command([&file]).finish();
    ended.exited(126).complained_of("\\u{1b}[31m)\\n\\r(");
    is_said_harmlessly(&ended);
}

fn a_timeout_draws_hostile_names_harmlessly(backend: Backend) {
    let scratch = Scratch::new();
    let (program, report) = (hostile_fixture(&scratch), scratch.join("report"));
    let directory = scratch.join(OsString::from_vec([EVIL, b"d"].concat()));
    fs::create_dir(&directory).expect("any bytes name a folder");
    let ended = Run::new(backend)
        .options("-v -t 1 --stats")
        .option_list([OsStr::new("--report"), report.as_os_str()])
        .directory(&directory)
        .command(words(&program, "fork [ setsid listen-at socket\x1b[2J\u{9b} hang ] hang"))
        .finish();
    ended.exited(124).complained_of("\\u{1b}[31m)\\n\\r(");
    is_said_harmlessly(&ended);
    let report = report_at(&report);
    let lossy = |bytes: &[u8]| Value::from(String::from_utf8_lossy(bytes).into_owned());
    let processes = report["tree_at_stop"]["processes"].as_array().expect("a list");
    assert_eq!(processes.len(), 2, "{report:#}");
    for process in processes {
        assert_eq!(process["comm"], lossy(&EVIL[..15]), "{report:#}");
        assert_eq!(process["argv"][0], lossy(program.as_bytes()), "{report:#}");
        assert_eq!(process["cwd"], lossy(directory.as_os_str().as_bytes()), "{report:#}");
    }
    let listens = processes.iter().any(|process| process["listens"][0] == "unix socket\x1b[2J\u{9b}");
    assert!(listens, "{report:#}");
    assert_eq!(report["command"][0], lossy(program.as_bytes()), "{report:#}");
}

fn leftovers_with_hostile_names_are_named_harmlessly(backend: Backend) {
    let scratch = Scratch::new();
    let (program, report) = (hostile_fixture(&scratch), scratch.join("report"));
    let ended = Run::new(backend)
        .options("-v")
        .option_list([OsStr::new("--report"), report.as_os_str()])
        .command(words(&program, "fork [ setsid hang ] exit 0"))
        .finish();
    ended.exited(193).complained_of("left 1 process running");
    is_said_harmlessly(&ended);
    let report = report_at(&report);
    assert_eq!(report["leftovers"][0]["comm"], String::from_utf8_lossy(&EVIL[..15]).into_owned(), "{report:#}");
}

fn who_is_kept_is_named_harmlessly(backend: Backend) {
    let scratch = Scratch::new();
    let program = hostile_fixture(&scratch);
    let mut running = Run::new(backend)
        .options("-v --leftovers leave")
        .may_leave()
        .command(words(&program, "fork [ setsid say kept hang ] read"))
        .spawn();
    let kept = running.expect_process("kept");
    let ended = running.wait();
    ended.exited(0).complained_of("left 1 process");
    is_said_harmlessly(&ended);
    rustix::process::pidfd_send_signal(&kept, rustix::process::Signal::KILL).expect("it is ours");
    running.all_die();
}

fn the_signals_that_gnu_announces_are_said_harmlessly(backend: Backend) {
    let scratch = Scratch::new();
    let program = hostile_fixture(&scratch);
    let words: Vec<OsString> = std::iter::once("1".into()).chain(words(&program, "hang")).collect();
    let name = format!("--backend={}", backend.name());
    let before = [wrapper().into_os_string(), "--gnu".into(), "-v".into(), name.into()];
    let ended = Run::control(before).command(words).finish();
    ended.exited(124).complained_of("sending signal TERM");
    is_said_harmlessly(&ended);
}

fn a_report_with_a_hostile_name_is_written_and_named_harmlessly(backend: Backend) {
    let scratch = Scratch::new();
    let path = scratch.join(evil());
    let ended = Run::new(backend).option_list([OsStr::new("--report"), path.as_os_str()]).fixture("exit 0").finish();
    ended.exited(0);
    assert_eq!(report_at(&path)["exit_status"], 0);
    let below = path.join("report");
    let ended = Run::new(backend).option_list([OsStr::new("--report"), below.as_os_str()]).fixture("exit 0").finish();
    ended.exited(125).complained_of("cannot write a report to");
    is_said_harmlessly(&ended);
}

#[test]
fn every_refusal_names_a_hostile_value_harmlessly() {
    let options =
        ["-t", "-k", "-s", "--stages", "-b", "--leftovers", "--leftover-grace", "--leftover-status", "--memory-max"];
    let others = ["--pids-max", "--cpu-max", "--report-fd", "--signal-to", "--idle-timeout", "--drain-limit"];
    let text = String::from_utf8_lossy(EVIL).into_owned();
    for value in [evil(), text.into()] {
        for option in options.into_iter().chain(others) {
            let words = [OsStr::new(option), &value, OsStr::new("true")];
            let ended = Run::control([wrapper()]).command(words).finish();
            is_said_harmlessly(ended.exited(125));
        }
        let glued = OsString::from_vec([b"--", value.as_bytes(), b"=x"].concat());
        for words in [vec![glued.clone(), "true".into()], vec!["--gnu".into(), glued, "1".into(), "true".into()]] {
            is_said_harmlessly(Run::control([wrapper()]).command(words).finish().exited(125));
        }
        for words in [
            vec!["--gnu".into(), value.clone(), "true".into()],
            vec!["--gnu".into(), "-s".into(), value, "1".into(), "true".into()],
        ] {
            is_said_harmlessly(Run::control([wrapper()]).command(words).finish().exited(125));
        }
    }
}

/// The kernel refuses a newline in the name of a cgroup, and takes everything else.
#[test]
fn a_cgroup_with_a_hostile_name_holds_a_tree_and_is_named_harmlessly() {
    require!("cgroup");
    let scratch = Scratch::new();
    let nest = Nest::new().expect("a cgroup can be had");
    let start = |name: &[u8], options: &str, status| {
        let place = nest.path().join(OsStr::from_bytes(name));
        fs::create_dir(&place).expect("a cgroup can be had");
        let report = scratch.join("report");
        let enter = place.join("cgroup.procs");
        let ended = Run::new(Backend::Cgroup)
            .setup(move || fs::write(&enter, "0"))
            .option_list([OsStr::new("--report"), report.as_os_str()])
            .options(&format!("-v -t 1 {options}"))
            .fixture("hang")
            .finish();
        is_said_harmlessly(ended.exited(status));
        let doctor = place.join("cgroup.procs");
        let doctor = Run::control([wrapper()]).setup(move || fs::write(&doctor, "0")).command(["--doctor"]).finish();
        let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
        assert!(is_harmless(&said), "{said:?}");
        fs::remove_dir(&place).expect("nothing is left in it");
        (status == 124).then(|| report_at(&report))
    };
    let text = "\x1b[31m)(\x7f\x07 '\u{9b}2J\u{202e}\r";
    let report = start(text.as_bytes(), "-b cgroup", 124).expect("a report");
    let name = report["backend"]["name"].as_str().expect("text");
    assert!(name.contains(text), "{report:#}");
    // One that is no text can't be told from others by our own paths.
    let report = start(b"\x1b[31m\xff", "-b auto", 124).expect("a report");
    assert_ne!(report["backend"]["refused"], Value::Array(vec![]), "{report:#}");
    start(b"\x1b[31m\xfe", "-b cgroup", 195);
}
