//! Servers that a build leaves on purpose: `--keep` spares them, and nobody else.

mod common;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::running::is_dead;
use common::{BOUND, Backend, Run, Scratch, both_backends, needs};
use rustix::process::Signal;

/// A run that keeps servers, which `serve` in the steps becomes: a program of that name, since a word of the steps would
/// be a word of every process's command line.
fn keeping(backend: Backend, options: &str, steps: &str) -> (Scratch, Run) {
    let scratch = Scratch::new();
    let server = scratch.join("tk-server");
    std::os::unix::fs::symlink("/bin/sleep", &server).expect("the folder is ours");
    let steps = steps.replace("serve", &format!("say server exec {} 60", server.display()));
    let run = Run::new(backend).options("-k 1 --keep tk-server").options(options).may_leave().report();
    (scratch, run.fixture(&steps))
}

both_backends! {
    who_is_kept_lives_on_where_the_caller_lives
    others_are_leftovers_all_the_same
    what_descends_from_the_kept_is_kept
    who_is_forked_while_its_parent_is_moved_is_kept
    who_becomes_what_is_kept_within_the_grace_is_kept
    nobody_is_kept_at_a_timeout
    a_signal_ends_the_rest_and_spares_the_kept
    the_rest_can_be_waited_for
    without_a_match_nothing_changes
}

fn who_is_kept_lives_on_where_the_caller_lives(backend: Backend) {
    let steps = "daemon [ serve ] exit 0";
    let (_scratch, run) = keeping(backend, "", steps);
    let mut running = run.spawn();
    let pid = running.expect("server");
    let server = common::running::open_process(pid.parse().expect("a PID")).expect("it lives");
    let ended = running.wait();
    ended.exited(0);
    assert!(!is_dead(&server, Duration::ZERO), "it was ended");
    let report = ended.report();
    assert_eq!(report["kept"][0]["pid"].to_string(), pid, "{report:#}");
    assert_eq!((&report["leftovers"], &report["proof"]), (&serde_json::json!([]), &"walk".into()), "{report:#}");
    if backend == Backend::Cgroup {
        let home = common::cgroups::of_process(&pid);
        assert_eq!(running.nest().map(|nest| nest.path().to_owned()), home);
        let leaf = report["backend"]["name"].as_str().and_then(|name| name.strip_prefix("cgroup ")).map(PathBuf::from);
        assert!(!leaf.expect("a leaf").exists(), "the leaf is still there");
    }
}

fn others_are_leftovers_all_the_same(backend: Backend) {
    let steps = "daemon [ serve ] daemon [ say other ignore TERM hang ] exit 0";
    let (_scratch, run) = keeping(backend, "-k 100ms", steps);
    let mut running = run.spawn();
    let server = running.expect_process("server");
    let other = running.expect_process("other");
    running.wait().exited(193);
    assert!(is_dead(&other, Duration::ZERO), "a leftover lives");
    assert!(!is_dead(&server, Duration::ZERO), "the server was ended");
}

fn what_descends_from_the_kept_is_kept(backend: Backend) {
    let server = "exec -a tk-server sh -c 'echo 1; sleep 61 & sleep 62 & echo 2; wait'";
    let script =
        format!("coproc setsid bash -c \"{server}\"; read -r _ <&${{COPROC[0]}}; read -r _ <&${{COPROC[0]}}; exit 0");
    let run = Run::new(backend).options("-k 1 --keep tk-server").may_leave().report();
    let ended = run.command(["bash", "-c", &script]).finish();
    ended.exited(0);
    let kept = ended.report()["kept"].as_array().map_or(0, Vec::len);
    assert_eq!(kept, 3, "{ended}");
}

/// A child that is forked between a look and the move of its parent is in the leaf, and its parent is not.
fn who_is_forked_while_its_parent_is_moved_is_kept(backend: Backend) {
    let helper = "bash -c 'echo; for i in {1..200}; do sleep 63 & done; wait'";
    let server = format!("{helper} & exec -a tk-server sleep 64");
    let script = format!("coproc setsid bash -c \"{server}\"; read -r _ <&${{COPROC[0]}}; exit 0");
    let run = Run::new(backend).options("-k 1 --leftover-grace 1s --keep tk-server").may_leave().report();
    let ended = run.command(["bash", "-c", &script]).finish();
    ended.exited(0);
    assert_eq!(ended.report()["leftovers"], serde_json::json!([]), "{ended}");
}

fn who_becomes_what_is_kept_within_the_grace_is_kept(backend: Backend) {
    let steps = "fork [ orphaned serve ] exit 0";
    let (_scratch, run) = keeping(backend, "--leftover-grace 1s", steps);
    let mut running = run.spawn();
    let server = running.expect_process("server");
    running.wait().exited(0);
    assert!(!is_dead(&server, Duration::ZERO), "it was ended");
}

fn nobody_is_kept_at_a_timeout(backend: Backend) {
    let steps = "daemon [ serve ] hang";
    let (_scratch, run) = keeping(backend, "-t 500ms", steps);
    let mut running = run.spawn();
    let server = running.expect_process("server");
    running.wait().exited(124);
    assert!(is_dead(&server, Duration::ZERO), "it lives");
}

fn a_signal_ends_the_rest_and_spares_the_kept(backend: Backend) {
    let steps = "daemon [ serve ] fork [ orphaned on TERM [ exit 0 ] say other hang ] exit 0";
    let (_scratch, run) = keeping(backend, "-k 60 --leftover-grace 60", steps);
    let mut running = run.spawn();
    let pid = running.expect("server");
    let server = common::running::open_process(pid.parse().expect("a PID")).expect("it lives");
    running.expect("other");
    // Between its word and its exec it is nobody that is to be kept.
    let start = Instant::now();
    while std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() != "tk-server") {
        assert!(start.elapsed() < BOUND, "it does not become the server");
        std::thread::yield_now();
    }
    running.signal(Signal::TERM);
    running.wait().exited(193);
    assert!(!is_dead(&server, Duration::ZERO), "the server was ended");
}

fn the_rest_can_be_waited_for(backend: Backend) {
    let steps = "daemon [ serve ] daemon [ say other read exit 0 ] exit 0";
    let (_scratch, run) = keeping(backend, "--leftovers wait", steps);
    let mut running = run.gated().spawn();
    let server = running.expect_process("server");
    let other = running.expect_process("other");
    running.open_gate();
    running.wait().exited(0);
    assert!(is_dead(&other, BOUND) && !is_dead(&server, Duration::ZERO));
}

fn without_a_match_nothing_changes(backend: Backend) {
    let ended = Run::new(backend).options("-k 1 --keep nobody").fixture("daemon [ hang ] exit 0").finish();
    ended.exited(193);
    Run::new(backend).options("--keep nobody").fixture("exit 3").finish().exited(3);
}

#[test]
fn where_nobody_can_be_told_from_another_it_is_195() {
    needs::require!("pidns");
    let mut words = vec!["unshare", "--pid", "--fork", "--kill-child"];
    if !needs::is_root() {
        words.push("--map-root-user");
    }
    let ended = Run::new(Backend::Auto).options("--keep sleep").prefixed(words).fixture("say started").finish();
    ended.exited(195).said("started", 0).complained_of("--keep");
}

#[test]
fn an_empty_pattern_is_refused() {
    let ended = Run::new(Backend::Auto).option_list(["--keep", ""]).fixture("say started").finish();
    ended.exited(125).said("started", 0).complained_of("--keep");
}
