//! Deadlines: what is sent when, to whom, and what the status says.

mod common;

use std::time::Duration;

use common::running::is_dead;
use common::{BOUND, Backend, Run, Scratch, all_backends, both_backends, kin, needs};
use rustix::process::{Signal, pidfd_send_signal};

/// Shorter than the bound, far longer than anything here takes: it was not waited for.
const LONG: Duration = Duration::from_secs(20);

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

all_backends! {
    a_command_that_hangs_is_124_at_the_limit_and_not_before
    a_command_that_ends_in_time_keeps_its_status
    a_stubborn_command_is_137_after_limit_and_grace
    a_stubborn_orphan_has_the_whole_grace_and_then_ends
    a_stop_is_over_the_moment_the_tree_is_empty
    a_pipeline_with_a_background_writer_ends_at_the_limit
    clean_up_has_its_whole_grace_and_its_helper_is_let_be
    a_grace_of_zero_is_for_ever
    a_real_time_signal_can_be_the_first
    kill_as_the_first_signal_is_137_without_a_grace
    stages_come_in_turn_and_end_in_kill
    stages_without_kill_never_kill
    the_first_signal_goes_to_the_whole_tree
    the_first_signal_can_be_for_the_group
    a_stopped_member_runs_its_handler_in_the_grace
    a_stopped_command_runs_its_handler_in_the_grace
    a_survivor_of_sigkill_is_194_and_named
}

both_backends! {
    every_spelling_of_a_signal_reaches_the_command
    signal_0_ends_nobody_and_is_said_to_check
    with_preserve_status_a_timeout_ends_with_the_commands_status
    every_form_of_a_duration_fires
    a_command_that_ended_in_time_has_not_timed_out_however_late_that_is_seen
    the_first_signal_can_be_for_the_command
    a_middle_stage_is_not_for_who_was_born_after_the_first
    who_ignores_the_first_signal_has_term_once_when_the_command_has_ended
    who_is_born_while_the_stop_begins_gets_the_first_signal
}

fn a_command_that_hangs_is_124_at_the_limit_and_not_before(backend: Backend) {
    let ended = Run::new(backend).options("-t 700ms").fixture("on TERM [ say term exit 3 ] hang").finish();
    ended.exited(124).said("term", 1).took_at_least(ms(700)).took_less_than(LONG);
}

fn a_command_that_ends_in_time_keeps_its_status(backend: Backend) {
    Run::new(backend).options("-t 20 -k 1").fixture("exit 9").finish().exited(9).took_less_than(LONG);
}

fn a_stubborn_command_is_137_after_limit_and_grace(backend: Backend) {
    let ended = Run::new(backend).options("-t 700ms -k 300ms").fixture("ignore TERM hang").finish();
    ended.exited(137).took_at_least(ms(1000)).took_less_than(LONG);
}

/// bazelbuild/bazel#1437, FrameOS/frameos#372, uutils/coreutils#11392: escalation stopped with the leader.
fn a_stubborn_orphan_has_the_whole_grace_and_then_ends(backend: Backend) {
    let ended =
        Run::new(backend).options("-t 1 -k 500ms").fixture("fork [ ignore TERM say orphan hang ] hang").finish();
    ended.exited(124).said("orphan", 1).took_at_least(ms(1500)).took_less_than(LONG);
}

fn a_stop_is_over_the_moment_the_tree_is_empty(backend: Backend) {
    let ended =
        Run::new(backend).options("-t 500ms -k 60").fixture("fork [ setsid hang ] daemon [ hang ] hang").finish();
    ended.exited(124).took_less_than(LONG);
}

/// openai/codex#4337, anthropics/claude-code#79902: only the shell was killed, and the pipe stayed open.
fn a_pipeline_with_a_background_writer_ends_at_the_limit(backend: Backend) {
    let scratch = Scratch::new();
    let script =
        "mkfifo p; (trap '' PIPE; while echo tick 2>/dev/null; do sleep .1; done) >p & cat p; echo not reached";
    let ended = Run::new(backend).options("-t 1 -k 2").directory(scratch.path()).bash(script).finish();
    ended.exited(124);
    assert!(ended.stdout.starts_with(b"tick\n"), "{ended}");
}

/// microsoft/playwright#20705, vercel/next.js#67165, nrwl/nx#33655: flat killing cut the shutdown work off.
fn clean_up_has_its_whole_grace_and_its_helper_is_let_be(backend: Backend) {
    let helper = "fork [ on TERM [ say helper-signalled ] say helper read print cleaned, say done exit 0 ]";
    let steps = format!("on TERM [ {helper} wait print bye exit 0 ] hang");
    let mut running = Run::new(backend).options("-t 700ms -k 60").gated().fixture(&steps).spawn();
    running.expect("helper");
    running.open_gate();
    running.wait().exited(124).said("done", 1).said("helper-signalled", 0).printed("cleaned,bye");
}

fn a_grace_of_zero_is_for_ever(backend: Backend) {
    let steps = "on TERM [ say term read exit 0 ] hang";
    let mut running = Run::new(backend).options("-t 700ms -k 0").gated().fixture(steps).spawn();
    running.expect("term");
    assert!(running.is_running());
    running.open_gate();
    running.wait().exited(124);
}

fn signal_0_ends_nobody_and_is_said_to_check(backend: Backend) {
    let ended = Run::new(backend).options("-v -t 300ms -s 0 -k 300ms").fixture("on TERM [ say term ] hang").finish();
    ended.exited(137).said("term", 0).complained_of("sent signal 0, which only checks, to 1 process");
}

fn every_spelling_of_a_signal_reaches_the_command(backend: Backend) {
    for (name, word) in
        [("INT", "int"), ("sigint", "int"), ("SIGINT", "int"), ("2", "int"), ("130", "int"), ("usr1", "usr1")]
    {
        let steps = "on INT [ say int exit 0 ] on USR1 [ say usr1 exit 0 ] on TERM [ say term exit 0 ] hang";
        let ended = Run::new(backend).options(&format!("-t 700ms -s {name}")).fixture(steps).finish();
        ended.exited(124).said(word, 1).said("term", 0);
    }
}

fn a_real_time_signal_can_be_the_first(backend: Backend) {
    let script = "trap 'echo rt >&9; exit 0' RTMIN+3; while :; do sleep .05; done";
    let ended = Run::new(backend).options("-t 1 -s RTMIN+3 -k 20").bash(script).finish();
    ended.exited_with_one_of(&[124]).took_less_than(LONG);
    assert!(ended.lines.iter().any(|line| line == "rt"), "{ended}");
}

fn kill_as_the_first_signal_is_137_without_a_grace(backend: Backend) {
    let ended = Run::new(backend).options("-t 300ms -s KILL -k 60").fixture("on TERM [ say term ] hang").finish();
    ended.exited(137).said("term", 0).took_less_than(LONG);
}

fn stages_come_in_turn_and_end_in_kill(backend: Backend) {
    let steps = "on INT [ say int ] on QUIT [ say quit ] on TERM [ say term ] hang";
    let ended = Run::new(backend).options("-t 700ms --stages INT:300ms,QUIT:300ms,KILL").fixture(steps).finish();
    ended.exited(137).said("int", 1).said("quit", 1).said("term", 0).took_at_least(ms(1300));
    assert!(ended.lines[0].starts_with("int "), "{ended}");
}

fn a_middle_stage_is_not_for_who_was_born_after_the_first(backend: Backend) {
    let steps = "on QUIT [ say quit ] on INT [ say int fork [ say late hang ] ] hang";
    let ended = Run::new(backend).options("-t 700ms --stages INT:500ms,QUIT:300ms,KILL").fixture(steps).finish();
    ended.exited(137).said("int", 1).said("late", 1).said("quit", 1);
}

fn who_ignores_the_first_signal_has_term_once_when_the_command_has_ended(backend: Backend) {
    let deaf = "ignore INT on TERM [ say asked ] on QUIT [ say quit exit 0 ] say deaf hang";
    let run = |options: &str, steps: &str| Run::new(backend).options(options).fixture(steps).finish();
    let with_command = format!("fork [ {deaf} ] hang");
    let ended = run("-t 700ms --stages INT:500ms,TERM:500ms,QUIT:60s,KILL", &with_command);
    ended.exited(124).said("asked", 1).said("quit", 1).took_at_least(ms(1700)).took_less_than(LONG);
    let ended = run("-t 700ms -s INT --signal-to command -k 500ms", &with_command);
    ended.exited(124).said("deaf", 1).said("asked", 0).took_at_least(ms(1200));
    let ended = run("-s INT -k 60", "daemon [ ignore INT say deaf hang ] exit 0");
    ended.exited(193).said("deaf", 1).took_less_than(LONG);
}

/// strace(1) makes the picture of the tree slow, and a shell goes on starting jobs meanwhile.
fn who_is_born_while_the_stop_begins_gets_the_first_signal(backend: Backend) {
    needs::require!("strace");
    let slowly = ["strace", "-DDD", "-f", "-qq", "-o", "/dev/null", "-e", "inject=readlinkat:delay_exit=300000:when=1"];
    for trap in ["", "trap 'exit 0' TERM; "] {
        let script = format!("{trap}for i in {{1..100}}; do sleep 100 & sleep .1; done; wait");
        let ends_at_once = || {
            // The tracer holds the tether as well, and ends a little later.
            let run = Run::new(backend).prefixed(slowly).options("-t 500ms -k 8").may_leave();
            let ended = run.bash(&script).finish();
            ended.exited(124).took < ms(8000)
        };
        // A job that is born at the very moment of the signal can't be told from a helper, and the tracer makes moments long.
        assert!((0..3).any(|_| ends_at_once()), "who was born meanwhile had the whole grace: {script}");
    }
}

fn stages_without_kill_never_kill(backend: Backend) {
    let steps = "on INT [ say int ] on TERM [ say term read exit 0 ] hang";
    let mut running = Run::new(backend).options("-t 700ms --stages INT:100ms,TERM").gated().fixture(steps).spawn();
    running.expect("term");
    running.open_gate();
    running.wait().exited(124).said("int", 1);
}

fn the_first_signal_goes_to_the_whole_tree(backend: Backend) {
    let ended = Run::new(backend).options("-t 1 -k 500ms").fixture(FAMILY).finish();
    ended.exited(124).said("root-term", 1).said("same-group-term", 1).said("other-group-term", 1);
}

fn the_first_signal_can_be_for_the_group(backend: Backend) {
    let ended = Run::new(backend).options("-t 1 -k 500ms --signal-to group").fixture(FAMILY).finish();
    ended.exited(124).said("root-term", 1).said("same-group-term", 1).said("other-group-term", 0);
}

fn the_first_signal_can_be_for_the_command(backend: Backend) {
    let ended = Run::new(backend).options("-t 1 -k 500ms --signal-to command").fixture(FAMILY).finish();
    ended.exited(124).said("root-term", 1).said("same-group-term", 0).said("other-group-term", 0);
    ended.took_at_least(ms(1500));
}

fn with_preserve_status_a_timeout_ends_with_the_commands_status(backend: Backend) {
    let run = || Run::new(backend).options("-t 700ms -k 300ms --preserve-status");
    run().fixture("on TERM [ exit 42 ] hang").finish().exited(42);
    run().fixture("on TERM [ exit 0 ] hang").finish().exited(0);
    run().fixture("hang").finish().exited(143);
    run().fixture("ignore TERM hang").finish().exited(137);
}

/// daintreehq/daintree#9107, earlyoom#130: a suspended member never ran its handler.
fn a_stopped_member_runs_its_handler_in_the_grace(backend: Backend) {
    let steps = "fork [ setsid on TERM [ say handled exit 0 ] say member kill self STOP hang ] say root hang";
    let ended = Run::new(backend).options("-t 1 -k 60").fixture(steps).finish();
    ended.exited(124).said("member", 1).said("handled", 1).took_less_than(LONG);
}

fn a_stopped_command_runs_its_handler_in_the_grace(backend: Backend) {
    let steps = "on TERM [ say handled exit 0 ] kill self STOP hang";
    let ended = Run::new(backend).options("-t 700ms -k 60").fixture(steps).finish();
    ended.exited(124).said("handled", 1).took_less_than(LONG);
}

/// Tracers see a death first; until one has looked, the parent is told nothing and the process cannot be reaped.
fn a_survivor_of_sigkill_is_194_and_named(backend: Backend) {
    let steps = "fork [ setsid say held hang ] say ready hang";
    let mut running = Run::new(backend).options("-k 200ms --drain-limit 300ms").report().fixture(steps).spawn();
    let pid = running.expect("held");
    running.expect("ready");
    let tracer = common::sys::Tracer::seize(pid.parse().expect("a PID")).expect("the test may trace its descendants");
    running.signal(Signal::TERM);
    let ended = running.wait();
    drop(tracer);
    ended.exited(194).complained_of(&pid);
    let report = ended.report();
    assert_eq!(report["survivors"][0]["pid"].to_string(), pid, "{report:#}");
}

/// uutils/coreutils#7475.
fn every_form_of_a_duration_fires(backend: Backend) {
    for (limit, least) in [
        (".3", 300),
        ("0.3s", 300),
        ("0.005m", 300),
        ("0.0001", 0),
        ("200ms", 200),
        ("1e-1", 100),
        ("200000us", 200),
        ("0x1p-3", 125),
    ] {
        let ended = Run::new(backend).options(&format!("-t {limit} -k 20")).fixture("hang").finish();
        ended.exited(124).took_at_least(ms(least)).took_less_than(LONG);
    }
}

/// A command with a child in its group and one in a session of its own; nobody but the command dies of TERM, and the
/// command stays until both were there.
const FAMILY: &str = "on TERM [ say root-term exit 0 ]
    fork [ on TERM [ say same-group-term ] say same-group hang ]
    fork [ setsid on TERM [ say other-group-term ] say other-group hang ]
    hang";

/// ducaale/xh#295: a panic on huge ones.
#[test]
fn a_limit_of_zero_or_beyond_reason_does_not_fire() {
    for limit in
        ["0", "0s", "0ms", "1d", "inf", "infinity", "1e30", "99999999999999999999", "99999999999999999999d", "1m30s"]
    {
        let ended = Run::new(Backend::Auto).options(&format!("-t {limit} -k {limit}")).fixture("exit 9").finish();
        ended.exited(9).took_less_than(BOUND);
    }
}

/// The keeper may get no CPU when the limit passes; what was then is what counts.
fn a_command_that_ended_in_time_has_not_timed_out_however_late_that_is_seen(backend: Backend) {
    let limit = "-t 3";
    let mut running = Run::new(backend).options(limit).gated().fixture("say ready read exit 4").spawn();
    let command = running.expect_process("ready");
    let (_, keeper) = kin::last_child(running.pid()).expect("the command has a parent");
    running.signal(Signal::STOP);
    pidfd_send_signal(&keeper, Signal::STOP).expect("the keeper is alive");
    running.open_gate();
    assert!(is_dead(&command, BOUND));
    // A run that began later has reached the same limit: the first one's has passed.
    Run::new(backend).options(limit).fixture("hang").finish().exited(124);
    pidfd_send_signal(&keeper, Signal::CONT).expect("the keeper is alive");
    running.signal(Signal::CONT);
    running.wait().exited(4);
}
