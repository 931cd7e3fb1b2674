//! A tree that does nothing is stopped by `--idle-timeout`, and one that does anything is not.

mod common;

use std::time::Duration;

use common::needs::require;
use common::{Backend, Run, both_backends, needs};

const LIMIT: Duration = Duration::from_millis(400);

fn idle(backend: Backend) -> Run {
    Run::new(backend).options("--idle-timeout 400ms -k 1")
}

both_backends! {
    a_tree_that_sleeps_is_stopped_with_197
    a_question_that_nobody_answers_is_idle
    a_runtime_that_only_runs_its_timers_is_idle
    a_silent_but_busy_tree_is_not_idle
    a_busy_descendant_keeps_the_tree_from_being_idle
    a_tree_that_starts_something_now_and_then_is_not_idle
    what_is_left_and_waited_for_can_be_idle
    the_commands_status_can_be_kept
    one_that_needs_sigkill_is_137
    the_limit_of_time_counts_first
}

fn a_tree_that_sleeps_is_stopped_with_197(backend: Backend) {
    let ended = idle(backend).report().fixture("daemon [ hang ] fork [ setsid hang ] hang").finish();
    ended.exited(197).complained_of("did nothing for 400ms");
    assert!(ended.took >= LIMIT, "it came too early: {ended}");
    let report = ended.report();
    assert_eq!((&report["outcome"], &report["exit_status"]), (&"idle".into(), &197.into()), "{report:#}");
}

/// Without a pipe in its stdout, which would change what many programs do.
fn a_question_that_nobody_answers_is_idle(backend: Backend) {
    idle(backend).gated().command(["sh", "-c", "printf 'Continue? '; read answer; exit 0"]).finish().exited(197);
}

fn a_runtime_that_only_runs_its_timers_is_idle(backend: Backend) {
    require!("python3");
    let script = "import time\nwhile True: time.sleep(0.05)";
    Run::new(backend).options("--idle-timeout 1s -k 1").command(["python3", "-c", script]).finish().exited(197);
}

const BUSY: &str = "timeout -s KILL 1.5 sh -c 'while :; do :; done'";

fn a_silent_but_busy_tree_is_not_idle(backend: Backend) {
    require!("timeout");
    idle(backend).command(["sh", "-c", &format!("{BUSY}; exit 7")]).finish().exited(7);
}

fn a_busy_descendant_keeps_the_tree_from_being_idle(backend: Backend) {
    require!("timeout");
    let script = format!("setsid sh -c \"{BUSY}; exit 0\" & wait; exit 7");
    idle(backend).command(["sh", "-c", &script]).finish().exited(7);
}

/// Ten births within the limit, so that a busy machine may hold up some; twice the limit, at which an idle tree is over.
fn a_tree_that_starts_something_now_and_then_is_not_idle(backend: Backend) {
    let script = "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do sleep 0.1; done; exit 7";
    Run::new(backend).options("--idle-timeout 1s -k 1").command(["sh", "-c", script]).finish().exited(7);
}

fn what_is_left_and_waited_for_can_be_idle(backend: Backend) {
    idle(backend).options("--leftovers wait").fixture("daemon [ hang ] exit 0").finish().exited(197);
}

fn the_commands_status_can_be_kept(backend: Backend) {
    idle(backend).options("-p").fixture("on TERM [ exit 5 ] hang").finish().exited(5);
}

fn one_that_needs_sigkill_is_137(backend: Backend) {
    idle(backend)
        .options("-k 100ms")
        .fixture("ignore TERM hang")
        .finish()
        .exited(137)
        .complained_of("it needed SIGKILL");
}

fn the_limit_of_time_counts_first(backend: Backend) {
    idle(backend).options("-t 200ms").fixture("hang").finish().exited(124);
    idle(backend).options("-t 30").fixture("hang").finish().exited(197);
    idle(backend).options("--idle-timeout 0 -t 900ms").fixture("hang").finish().exited(124);
}

#[test]
fn where_the_tree_cannot_be_seen_it_is_195() {
    require!("pidns");
    let mut words = vec!["unshare", "--pid", "--fork", "--kill-child"];
    if !needs::is_root() {
        words.push("--map-root-user");
    }
    let ended = idle(Backend::Auto).prefixed(words).fixture("say started").finish();
    ended.exited(195).said("started", 0).complained_of("--idle-timeout");
}
