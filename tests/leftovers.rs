//! Processes that outlive a command which ended by itself.

mod common;

use std::time::{Duration, Instant};

use common::running::is_dead;
use common::{BOUND, Backend, Run, all_backends, both_backends, cgroups};
use rustix::process::{Signal, pidfd_send_signal};

const LONG: Duration = Duration::from_secs(20);

all_backends! {
    a_daemon_left_by_a_success_is_193_and_in_the_report
    one_line_names_what_was_left
    quiet_means_quiet
    a_background_child_does_not_hold_the_output_open
    what_ends_within_the_grace_is_no_leftover
    without_a_grace_leftovers_end_at_once
    the_commands_end_disarms_the_clock
    the_status_for_leftovers_can_be_chosen
    a_failure_is_not_hidden_by_leftovers
    leftovers_are_asked_before_they_are_killed
    a_stopped_leftover_is_ended
    children_that_nobody_waited_for_are_no_leftovers
    wait_waits_for_leftovers
    wait_keeps_the_commands_failure
    wait_is_bounded_by_the_timeout
    a_request_ends_the_wait_and_keeps_the_status
    a_request_during_the_grace_ends_leftovers_at_once
    thousands_of_words_do_not_hide_a_leftover
}

// What is left in a PID namespace dies with it.
both_backends! {
    leave_leaves_them_where_the_caller_is
    leave_keeps_a_failure
    leave_is_no_exception_before_the_commands_end
}

/// mozilla/sccache#2145, gradle/gradle#25538: a build step left a daemon, and the job hung on it.
fn a_daemon_left_by_a_success_is_193_and_in_the_report(backend: Backend) {
    let ended = Run::new(backend)
        .options("-k 20")
        .report()
        .gated()
        .fixture("daemon [ say daemon hang ] print built exit 0")
        .finish();
    ended.exited(193).printed("built").took_less_than(LONG);
    let report = ended.report();
    assert_eq!(report["exit_status"], 193, "{report:#}");
    assert_eq!(report["leftovers"][0]["pid"].to_string(), ended.value("daemon"), "{report:#}");
}

fn one_line_names_what_was_left(backend: Backend) {
    let ended = Run::new(backend).options("-k 20").fixture("daemon [ say daemon hang ] exit 0").finish();
    ended.exited(193).complained_of("fixture");
    assert_eq!(ended.stderr.lines().count(), 1, "{ended}");
}

fn quiet_means_quiet(backend: Backend) {
    let ended = Run::new(backend).options("-q -k 20").fixture("daemon [ hang ] exit 0").finish();
    assert_eq!(ended.exited(193).stderr, "", "{ended}");
}

/// python/cpython#76116, golang/go#23019: the caller read to end-of-file and waited for a background child.
fn a_background_child_does_not_hold_the_output_open(backend: Backend) {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe can be had");
    let start = Instant::now();
    Run::new(backend).options("-k 20").stdout(write).bash("sleep 25 & echo done").finish().exited(193);
    let mut output = String::new();
    std::io::Read::read_to_string(&mut std::fs::File::from(read), &mut output).expect("a pipe can be read");
    assert_eq!(output, "done\n");
    assert!(start.elapsed() < LONG, "the pipe was held by the child");
}

fn what_ends_within_the_grace_is_no_leftover(backend: Backend) {
    let mut running = Run::new(backend)
        .options("--leftover-grace 25")
        .gated()
        .fixture("fork [ say child orphaned say done exit 0 ] read exit 0")
        .spawn();
    running.expect("child");
    running.open_gate();
    running.wait().exited(0).said("done", 1).took_less_than(LONG);
}

fn without_a_grace_leftovers_end_at_once(backend: Backend) {
    let ended = Run::new(backend).options("--leftover-grace 0 -k 20").fixture("fork [ hang ] exit 0").finish();
    ended.exited(193).took_less_than(LONG);
}

fn the_commands_end_disarms_the_clock(backend: Backend) {
    let ended =
        Run::new(backend).options("-t 500ms --leftover-grace 1s -k 20").fixture("fork [ hang ] exit 0").finish();
    ended.exited(193).took_at_least(Duration::from_secs(1));
}

fn the_status_for_leftovers_can_be_chosen(backend: Backend) {
    let run = |status| {
        Run::new(backend).options(&format!("-k 20 --leftover-status {status}")).fixture("fork [ hang ] exit 0")
    };
    run(0).finish().exited(0);
    run(77).finish().exited(77);
}

/// nextest-rs/nextest#1891: a leak report hid the real failure.
fn a_failure_is_not_hidden_by_leftovers(backend: Backend) {
    let ended = Run::new(backend).options("-k 20").fixture("fork [ setsid hang ] complain boom exit 3").finish();
    ended.exited(3).complained_of("boom");
    let ended = Run::new(backend).options("-k 20").bash("ulimit -c 0; setsid sleep 25 & kill -SEGV $$").finish();
    ended.died_of(Signal::SEGV);
    let ended = Run::new(backend).options("-k 20 --leftover-status 77").fixture("fork [ hang ] exit 3").finish();
    ended.exited(3);
}

fn leftovers_are_asked_before_they_are_killed(backend: Backend) {
    let polite = "daemon [ on TERM [ say term exit 0 ] say polite hang ]";
    let stubborn = "daemon [ ignore TERM say stubborn hang ]";
    let mut running =
        Run::new(backend).options("-k 500ms").gated().fixture(&format!("{polite} {stubborn} read exit 0")).spawn();
    running.expect("polite");
    running.expect("stubborn");
    running.open_gate();
    running.wait().exited(193).said("term", 1);
}

fn a_stopped_leftover_is_ended(backend: Backend) {
    let ended = Run::new(backend)
        .options("-k 60")
        .fixture("daemon [ on TERM [ say term exit 0 ] say it kill self STOP hang ] exit 0")
        .finish();
    ended.exited(193).took_less_than(LONG);
}

/// Zombies are reaped, not counted.
fn children_that_nobody_waited_for_are_no_leftovers(backend: Backend) {
    let steps = "fork [ say zombie exit 0 ] read exit 0";
    let mut running = Run::new(backend).options("--leftover-grace 0").gated().fixture(steps).spawn();
    let zombie = running.expect_process_or_gone("zombie");
    assert!(zombie.is_none_or(|zombie| is_dead(&zombie, BOUND)));
    running.open_gate();
    running.wait().exited(0);
}

fn wait_waits_for_leftovers(backend: Backend) {
    let mut running = Run::new(backend)
        .options("--leftovers wait")
        .gated()
        .fixture("daemon [ say daemon read say done exit 0 ] say root exit 0")
        .spawn();
    running.expect("daemon");
    let root = running.expect_process_or_gone("root");
    assert!(root.is_none_or(|root| is_dead(&root, BOUND)));
    assert!(running.is_running());
    running.open_gate();
    running.wait().exited(0).said("done", 1);
}

fn wait_keeps_the_commands_failure(backend: Backend) {
    Run::new(backend).options("--leftovers wait").fixture("fork [ orphaned exit 0 ] exit 3").finish().exited(3);
}

fn wait_is_bounded_by_the_timeout(backend: Backend) {
    let ended = Run::new(backend)
        .options("-t 500ms -k 20 --leftovers wait")
        .fixture("daemon [ say daemon hang ] exit 0")
        .finish();
    ended.exited(124).took_at_least(Duration::from_millis(500)).took_less_than(LONG);
}

fn a_request_ends_the_wait_and_keeps_the_status(backend: Backend) {
    let mut running = Run::new(backend)
        .options("-k 20 --leftovers wait")
        .fixture("daemon [ say daemon hang ] say root exit 0")
        .spawn();
    running.expect("daemon");
    let root = running.expect_process_or_gone("root");
    assert!(root.is_none_or(|root| is_dead(&root, BOUND)));
    running.signal(Signal::TERM);
    // The keeper may hear of the request before it hears of the command's end: that is a stop, which keeps the status.
    running.wait().exited_with_one_of(&[0, 193]);
}

fn a_request_during_the_grace_ends_leftovers_at_once(backend: Backend) {
    let mut running = Run::new(backend)
        .options("-k 20 --leftover-grace 25")
        .fixture("daemon [ say daemon hang ] say root exit 3")
        .spawn();
    running.expect("daemon");
    let root = running.expect_process_or_gone("root");
    assert!(root.is_none_or(|root| is_dead(&root, BOUND)));
    running.signal(Signal::TERM);
    running.wait().exited(3).took_less_than(LONG);
}

fn leave_leaves_them_where_the_caller_is(backend: Backend) {
    let mut running = Run::new(backend)
        .options("--leftovers leave")
        .report()
        .may_leave()
        .gated()
        .fixture("daemon [ on USR1 [ say still-here exit 0 ] say daemon cgroup say hang ] read exit 0")
        .spawn();
    let daemon = running.expect_process("daemon");
    running.expect("cgroup");
    running.open_gate();
    let ended = running.wait();
    ended.exited(0).took_less_than(LONG);
    assert!(!is_dead(&daemon, Duration::ZERO), "it was to be left\n{ended}");
    if let Some(nest) = running.nest() {
        assert_eq!(cgroups::of_process(ended.value("daemon")).as_deref(), Some(nest.path()), "{ended}");
        assert!(nest.children().is_empty(), "the leaf is still there\n{ended}");
    }
    let report = ended.report();
    assert_eq!(report["kept"][0]["pid"].to_string(), ended.value("daemon"), "{report:#}");
    pidfd_send_signal(&daemon, Signal::USR1).expect("it is alive");
    running.expect("still-here");
    running.all_die();
    running.leaves_no_trace();
}

fn leave_keeps_a_failure(backend: Backend) {
    let mut running =
        Run::new(backend).options("--leftovers leave").may_leave().fixture("daemon [ say daemon hang ] exit 3").spawn();
    running.wait().exited(3);
}

fn leave_is_no_exception_before_the_commands_end(backend: Backend) {
    let ended =
        Run::new(backend).options("-t 1 -k 20 --leftovers leave").fixture("daemon [ say daemon hang ] hang").finish();
    ended.exited(124).said("daemon", 1);
}

fn thousands_of_words_do_not_hide_a_leftover(backend: Backend) {
    // A report or a listing that has to hold such a command line must not lose the process.
    let mut words = vec![common::fixture().into_os_string()];
    words.extend("daemon [ say daemon hang ] exit 0".split(' ').map(Into::into));
    words.extend(std::iter::repeat_n("y".repeat(10_000).into(), 100));
    let ended = Run::new(backend).options("-k 20").report().command(words).finish();
    ended.exited(193);
    assert_eq!(ended.report()["leftovers"][0]["pid"].to_string(), ended.value("daemon"));
}
