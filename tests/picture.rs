//! The tree as it was when a stop began: in the report, and drawn on stderr.

mod common;

use std::os::fd::OwnedFd;
use std::time::Instant;

use common::needs::require;
use common::running::state_of;
use common::{BOUND, Backend, Ended, Nest, Run, USER, both_backends, fixture};
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Signal;
use serde_json::Value;

both_backends! {
    the_tree_is_in_the_report_as_it_was_before_the_first_signal
    what_others_may_wait_for_is_named
    a_terminal_as_stdin_is_named
    a_stop_by_kill_has_its_picture
    what_ended_by_itself_has_no_picture
    a_timeout_shows_the_tree_in_ten_lines
    a_tree_of_one_stays_one_line
    neither_quiet_nor_gnu_draws
    verbose_shows_the_whole_tree_at_any_stop
    lines_are_cut_to_the_width
    hostile_names_are_harmless
    who_vanishes_meanwhile_does_no_harm
    a_leader_that_has_ended_is_seen_with_its_threads
}

/// The process that said this word.
#[track_caller]
fn seen<'a>(report: &'a Value, pid: &str) -> &'a Value {
    let pid: i32 = pid.parse().expect("a pid");
    let processes = report["tree_at_stop"]["processes"].as_array();
    let processes = processes.unwrap_or_else(|| panic!("no tree in {report:#}"));
    let found = processes.iter().find(|process| process["pid"] == pid);
    found.unwrap_or_else(|| panic!("no {pid} in {report:#}"))
}

/// Waits until a process does nothing more, which it says nothing of.
fn is_asleep(pid: &str) {
    let start = Instant::now();
    while state_of(pid) != Some('S') {
        assert!(start.elapsed() < BOUND, "{pid} does not fall asleep");
        std::thread::yield_now();
    }
}

/// The lines of the drawing.
fn drawn(ended: &Ended) -> Vec<&str> {
    ended.stderr.lines().filter(|line| !line.starts_with("treekill-run: ")).collect()
}

fn the_tree_is_in_the_report_as_it_was_before_the_first_signal(backend: Backend) {
    let steps = "fork [ on TERM [ exit 0 ] fork [ say grandchild hang ] say child wait ] say parent wait";
    let mut running = Run::new(backend).report().fixture(steps).spawn();
    let pids = ["parent", "child", "grandchild"].map(|word| running.expect(word));
    pids.iter().for_each(|pid| is_asleep(pid));
    running.signal(Signal::TERM);
    let report = running.wait().report();
    let [parent, child, grandchild] = pids.each_ref().map(|pid| seen(&report, pid));
    let depths = [parent, child, grandchild].map(|process| process["depth"].as_u64());
    assert_eq!(depths, [Some(0), Some(1), Some(2)], "{report:#}");
    assert_eq!((&child["ppid"], &grandchild["ppid"]), (&parent["pid"], &child["pid"]), "{report:#}");
    assert_eq!((&parent["comm"], &parent["state"]), (&"fixture".into(), &"sleeping".into()), "{report:#}");
    assert_eq!(parent["argv"][0], fixture().to_str().expect("a path"), "{report:#}");
    assert_eq!(parent["system_call"], "wait4", "{report:#}");
    let here = std::env::current_dir().expect("it is there");
    assert_eq!(parent["cwd"], here.to_str().expect("text"), "{report:#}");
    assert!(parent["memory"].as_u64() > Some(100 << 10) && parent["age_ms"].is_u64(), "{report:#}");
    assert_eq!(parent["threads"], 1, "{report:#}");
    let net = if backend == Backend::Cgroup { "boundary" } else { "ancestry" };
    assert_eq!(parent["held_by"], net, "{report:#}");
    assert_eq!(report["tree_at_stop"]["left_out"], 0, "{report:#}");
    let first = &report["steps"][0]["at_ms"];
    assert!(report["tree_at_stop"]["at_ms"].as_u64() <= first.as_u64(), "{report:#}");
}

fn what_others_may_wait_for_is_named(backend: Backend) {
    let scratch = common::Scratch::new();
    let socket = scratch.join("a socket");
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe can be had");
    let words = ["listen", "listen-at", socket.to_str().expect("text"), "chdir", "/", "say", "server", "hang"];
    let words = std::iter::once(fixture().to_str().expect("text").to_owned()).chain(words.map(String::from));
    let mut running = Run::new(backend).report().stdout(write).command(words).spawn();
    let (port, server) = (running.expect("port"), running.expect("server"));
    running.signal(Signal::TERM);
    let report = running.wait().report();
    drop(read);
    let server = seen(&report, &server);
    assert_eq!(server["cwd"], "/", "{report:#}");
    assert_eq!(server["holds"], Value::from(vec!["stdout"]), "{report:#}");
    let addresses = vec![format!("tcp 127.0.0.1:{port}"), format!("unix {}", socket.display())];
    assert_eq!(server["listens"], Value::from(addresses), "{report:#}");
    assert_eq!(server["terminal"], Value::Null, "{report:#}");
}

fn a_terminal_as_stdin_is_named(backend: Backend) {
    let (_controller, terminal, name) = terminal();
    let mut running = Run::new(backend).report().stdin(terminal).fixture("say reader read").spawn();
    let reader = running.expect("reader");
    is_asleep(&reader);
    running.signal(Signal::TERM);
    let report = running.wait().report();
    let reader = seen(&report, &reader);
    assert_eq!(
        (&reader["terminal"], &reader["waits_on"]),
        (&name.as_str().into(), &name.as_str().into()),
        "{report:#}"
    );
    assert_eq!(reader["system_call"], "read", "{report:#}");
}

/// A terminal that is nobody's controlling terminal: both ends, and its name.
fn terminal() -> (OwnedFd, OwnedFd, String) {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a pty can be had");
    grantpt(&controller).and_then(|()| unlockpt(&controller)).expect("it is ours");
    let name = ptsname(&controller, vec![]).expect("it has a name");
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let terminal = rustix::fs::open(&name, flags, Mode::empty()).expect("it can be opened");
    (controller, terminal, name.into_string().expect("text"))
}

fn a_stop_by_kill_has_its_picture(backend: Backend) {
    let steps = "fork [ setsid say child hang ] say parent wait";
    let ended = Run::new(backend).report().options("-t 1 -s KILL").fixture(steps).finish();
    let report = ended.exited(137).report();
    // Here the listing is for the picture alone, and has to end in time too.
    let took = report["tree_at_stop"]["took_us"].as_u64();
    if took < Some(15_000) {
        for word in ["parent", "child"] {
            assert_eq!(seen(&report, ended.value(word))["comm"], "fixture", "{report:#}");
        }
        assert_eq!(drawn(&ended).len(), 2, "{ended}");
    }
    assert!(took.is_some(), "{report:#}");
    assert_eq!(report["steps"][0]["action"], "kill", "{report:#}");
}

fn what_ended_by_itself_has_no_picture(backend: Backend) {
    let report = Run::new(backend).report().options("-t 20").fixture("exit 0").finish().exited(0).report();
    assert_eq!(report["tree_at_stop"], Value::Null, "{report:#}");
}

fn a_timeout_shows_the_tree_in_ten_lines(backend: Backend) {
    let few = Run::new(backend).options("-t 1").fixture("fork [ fork [ hang ] wait ] wait").finish();
    let lines = drawn(few.exited(124));
    assert_eq!(lines.len(), 3, "{few}");
    assert!(
        few.stderr.lines().next().is_some_and(|line| line.ends_with("' timed out after 1s; the tree as it was:")),
        "{few}"
    );
    assert!(lines[0].starts_with("  fixture fork") && lines[0].contains("waits for a child"), "{few}");
    assert!(lines[1].starts_with("  └─ fixture fork") && lines[2].starts_with("     └─ fixture fork"), "{few}");

    let many = Run::new(backend).options("-t 1").fixture(&("fork [ hang ] ".repeat(40) + "wait")).finish();
    assert_eq!(drawn(many.exited(124)).len(), 10, "{many}");
    assert!(many.stderr.ends_with("\n  and 32 more\n"), "{many}");
}

fn a_tree_of_one_stays_one_line(backend: Backend) {
    let ended = Run::new(backend).options("-t 300ms").fixture("hang").finish();
    assert_eq!(ended.exited(124).stderr.lines().count(), 1, "{ended}");
    ended.complained_of("' timed out after 300ms; as it was: fixture hang (");
}

fn neither_quiet_nor_gnu_draws(backend: Backend) {
    let run = |options: &str| Run::new(backend).options(options).fixture("fork [ hang ] hang").finish();
    let ended = run("-q -t 300ms");
    assert_eq!(ended.exited(124).stderr, "");
    let link = common::Scratch::new();
    let timeout = link.join("timeout");
    std::os::unix::fs::symlink(common::wrapper(), &timeout).expect("the folder is ours");
    let backend = format!("--backend={}", backend.name());
    for options in [&["0.3"][..], &["-v", "0.3"]] {
        let words =
            std::iter::once(timeout.to_str().expect("text")).chain([backend.as_str()]).chain(options.iter().copied());
        let ended = Run::control(words).fixture("fork [ hang ] hang").finish();
        assert!(ended.exited(124).stderr.lines().all(|line| line.starts_with("timeout: sending signal")), "{ended}");
    }
}

fn verbose_shows_the_whole_tree_at_any_stop(backend: Backend) {
    let steps = "fork [ say child hang ] ".repeat(14) + "say parent hang";
    let mut running = Run::new(backend).options("-v").fixture(&steps).spawn();
    (0..14).for_each(|_| drop(running.expect("child")));
    running.expect("parent");
    running.signal(Signal::TERM);
    let ended = running.wait();
    assert_eq!(drawn(&ended).len(), 15, "{ended}");
    ended.complained_of("' was stopped by SIGTERM; the tree as it was:");
}

fn lines_are_cut_to_the_width(backend: Backend) {
    for (columns, width) in [("40", 40), ("nonsense", 100), ("0", 100)] {
        let steps = format!("fork [ hang ] hang {}", "x".repeat(500));
        let run = Run::new(backend).options("-t 500ms").env("COLUMNS", columns);
        let ended = run.fixture(&steps).finish();
        let lines = drawn(ended.exited(124));
        assert_eq!(lines.len(), 2, "{ended}");
        assert!(lines.iter().all(|line| line.chars().count() <= width), "{ended}");
    }
}

fn hostile_names_are_harmless(backend: Backend) {
    let script = "exec -a $'\\e[31m\\nevil\\u202e' sleep 60";
    let ended = Run::new(backend).options("-t 1").report().bash(&format!("(sleep 61; :) & {script}")).finish();
    let text = ended.exited(124).stderr.clone();
    assert!(!text.contains(['\x1b', '\u{202e}']), "{ended}");
    assert_eq!(drawn(&ended).len(), 3, "{ended}");
    ended.complained_of("\\u{1b}[31m\\nevil\\u{202e}");
    let report = ended.report();
    let root = seen(&report, &report["pid"].to_string());
    assert_eq!(root["argv"][0], "\x1b[31m\nevil\u{202e}", "{report:#}");
}

/// Each process of the chain lives for less than a millisecond.
fn who_vanishes_meanwhile_does_no_harm(backend: Backend) {
    let mut running = Run::new(backend).report().fixture("say parent chain 20000 hang").spawn();
    let parent = running.expect("parent");
    running.expect("chain");
    running.signal(Signal::TERM);
    let report = running.wait().report();
    assert_eq!(seen(&report, &parent)["comm"], "fixture", "{report:#}");
}

fn a_leader_that_has_ended_is_seen_with_its_threads(backend: Backend) {
    let mut running = Run::new(backend).report().fixture("leader-exits [ say thread hang ]").spawn();
    let pid = running.expect("thread");
    let start = Instant::now();
    while state_of(&pid) != Some('Z') {
        assert!(start.elapsed() < BOUND, "the first thread does not end");
        std::thread::yield_now();
    }
    running.signal(Signal::TERM);
    let report = running.wait().report();
    let leader = seen(&report, &pid);
    assert_eq!((&leader["state"], &leader["threads"]), (&"zombie".into(), &2.into()), "{report:#}");
}

/// What /proc shows under a number is somebody else there.
#[test]
fn under_a_foreign_proc_nothing_of_it_is_believed() {
    require!("cgroup", "pidns");
    let mut words = vec!["unshare", "--pid", "--fork", "--kill-child"];
    if !common::needs::is_root() {
        words.push("--map-root-user");
    }
    let run = Run::new(Backend::Cgroup).report().options("-t 1").prefixed(words);
    let ended = run.fixture("fork [ hang ] hang").finish();
    let report = ended.exited(124).report();
    let processes = report["tree_at_stop"]["processes"].as_array().expect("a tree");
    assert_eq!(processes.len(), 2, "{report:#}");
    for process in processes {
        assert_eq!((&process["comm"], &process["state"]), (&"?".into(), &"unknown".into()), "{report:#}");
        assert_eq!((&process["argv"], &process["cwd"]), (&Value::Array(vec![]), &Value::Null), "{report:#}");
    }
}

/// With hidepid an ordinary user sees the own processes and no others.
#[test]
fn among_hidden_processes_the_own_tree_is_seen() {
    require!("delegation", "mountns", "setpriv");
    let user = USER.to_string();
    let script = "mount -t proc -o hidepid=2 proc /proc || exit 71; exec \"$@\"";
    let words = ["unshare", "--mount", "sh", "-c", script, "sh", "setpriv", "--reuid", &user, "--regid", &user];
    let nest = Nest::new().expect("a cgroup can be made");
    nest.delegate(USER);
    let run = Run::new(Backend::Cgroup).within(nest).prefixed(words.iter().copied().chain(["--clear-groups"]));
    let ended = run.directory("/").options("--report-fd 1 -t 1").fixture("fork [ say child hang ] hang").finish();
    if ended.status.code() == Some(71) {
        common::needs::skip("mountns", "mounts cannot be changed here");
        return;
    }
    let report: Value = serde_json::from_slice(&ended.exited(124).stdout).expect("JSON");
    assert_eq!(seen(&report, ended.value("child"))["cwd"], "/", "{report:#}");
}

#[test]
fn a_picture_that_nobody_sees_is_not_taken() {
    require!("strace");
    let scratch = common::Scratch::new();
    let looks = |options: &str| {
        let trace = scratch.join("trace");
        let strace = ["strace", "-f", "-e", "trace=openat", "-o", trace.to_str().expect("text")];
        Run::new(Backend::Auto).prefixed(strace).options(options).fixture("fork [ hang ] hang").finish().exited(124);
        std::fs::read_to_string(&trace).expect("a trace").matches("\"syscall\"").count()
    };
    assert_eq!(looks("-q -t 500ms"), 0);
    assert_eq!(looks("-t 500ms"), 2);
}

#[test]
fn colours_come_on_a_terminal_alone_and_can_be_refused() {
    let text = |variables: &[(&str, &str)]| {
        let (controller, terminal, _) = terminal();
        let size = rustix::termios::Winsize { ws_row: 24, ws_col: 60, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&controller, size).expect("it is ours");
        let mut run = Run::new(Backend::Auto).options("-t 500ms").stderr(terminal.try_clone().expect("a copy"));
        for (name, value) in variables {
            run = run.env(name, value);
        }
        let steps = format!("fork [ hang ] hang {}", "x".repeat(200));
        run.within(Nest::new().expect("a cgroup can be made")).fixture(&steps).finish().exited(124);
        let mut bytes = [0; 4096];
        let length = rustix::io::read(&controller, &mut bytes).expect("something was said");
        drop(terminal);
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    require!("cgroup");
    let plain = |text: &str| text.lines().filter(|line| line.starts_with("  ")).all(|line| line.chars().count() <= 60);
    let coloured = text(&[("TERM", "xterm"), ("NO_COLOR", "")]);
    assert!(coloured.contains("\x1b[1mfixture"), "{coloured:?}");
    for variables in [[("TERM", "xterm"), ("NO_COLOR", "1")], [("TERM", "dumb"), ("NO_COLOR", "")]] {
        let text = text(&variables);
        assert!(!text.contains('\x1b') && text.contains("fixture") && plain(&text), "{text:?}");
    }
}
