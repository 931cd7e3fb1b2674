//! Signals that reach the wrapper or its keeper: relayed once, obeyed twice, never lost.

mod common;

use std::process::Command;
use std::time::{Duration, Instant};

use common::running::is_dead;
use common::{BOUND, Backend, Run, Running, all_backends, both_backends, kin, needs, sys};
use rustix::process::{Pid, Signal, kill_process_group};

const LONG: Duration = Duration::from_secs(20);

/// Says every signal that usually asks for something, and stays.
const LISTENER: &str = "on TERM [ say term ] on INT [ say int ] on HUP [ say hup ] on QUIT [ say quit ]
    on USR1 [ say usr1 ] on USR2 [ say usr2 ] on WINCH [ say winch ] on CONT [ say cont ]";

fn listener(backend: Backend, options: &str, rest: &str) -> Running {
    Run::new(backend).options(options).gated().fixture(&format!("{LISTENER} {rest}")).spawn()
}

all_backends! {
    signals_at_the_very_end_do_not_cost_the_status
    a_stopped_wrapper_ends_when_it_is_continued
    a_stopped_wrapper_does_not_stop_the_clock
    a_signal_to_the_wrappers_group_arrives_once
    in_the_foreground_the_command_stays_in_the_callers_group
    in_the_foreground_the_tree_ends_too
    a_request_to_end_arrives_as_it_is_and_once
    a_command_without_a_handler_ends_by_the_relayed_signal
    term_reaches_every_member_once_and_the_slowest_is_waited_for
    other_signals_go_to_the_command_alone_and_stop_nothing
    a_real_time_signal_is_relayed
    a_second_request_kills_at_once
    two_requests_together_are_one
    a_relayed_request_replaces_the_signal_of_the_first_stage
    a_relayed_request_arms_the_grace
    a_request_continues_stopped_members
    what_the_caller_ignores_is_neither_relayed_nor_a_stop
    a_signal_at_any_early_moment_leaves_nothing
    who_ignores_the_request_is_asked_by_term_when_the_command_has_ended
    a_job_that_was_about_to_be_started_is_asked_too
    who_acts_on_the_request_gets_no_other
    a_burst_of_signals_ends_once_and_cleanly
    a_port_is_free_the_moment_the_wrapper_returns
}

// In a PID namespace the keeper has no number.
both_backends! {
    a_request_to_the_keeper_counts_as_relayed
    another_signal_to_the_keeper_comes_back_to_the_command
    a_stopped_keeper_is_continued
}

/// uutils/coreutils#10238, nrwl/nx#18255: INT reached the command as TERM, or not at all.
fn a_request_to_end_arrives_as_it_is_and_once(backend: Backend) {
    for (signal, word) in [(Signal::TERM, "term"), (Signal::INT, "int"), (Signal::HUP, "hup"), (Signal::QUIT, "quit")] {
        let mut running =
            listener(backend, "-k 60", "say ready fork [ read kill parent USR2 ] on USR2 [ exit 42 ] hang");
        running.expect("ready");
        running.signal(signal);
        running.expect(word);
        running.open_gate();
        let ended = running.wait();
        // The command chose its status; the stop is no timeout.
        ended.exited(42);
        let requests = ["term", "int", "hup", "quit"].map(|word| ended.count(word));
        assert_eq!(requests.iter().sum::<usize>(), 1, "{ended}");
    }
}

fn a_command_without_a_handler_ends_by_the_relayed_signal(backend: Backend) {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        let mut running = Run::new(backend).options("-k 60").fixture("say ready hang").spawn();
        running.expect("ready");
        running.signal(signal);
        running.wait().died_of(signal).took_less_than(LONG);
    }
}

/// npm/npm#4603, yarnpkg/berry#991, uutils/coreutils#8040: the wrapper returned while the rest was shutting down.
fn term_reaches_every_member_once_and_the_slowest_is_waited_for(backend: Backend) {
    let member = "on TERM [ say member-term read say done exit 0 ] say member hang";
    let steps = format!("fork [ {member} ] fork [ setsid {member} ] daemon [ {member} ] say ready hang");
    let mut running = Run::new(backend).options("-k 60").gated().fixture(&steps).spawn();
    for _ in 0..3 {
        running.expect("member");
    }
    running.expect("ready");
    running.signal(Signal::TERM);
    for _ in 0..3 {
        running.expect("member-term");
    }
    assert!(running.is_running(), "returned before its members were done");
    running.open_gate();
    running.wait().died_of(Signal::TERM).said("member-term", 3).said("done", 3);
}

fn other_signals_go_to_the_command_alone_and_stop_nothing(backend: Backend) {
    let child = "fork [ on USR1 [ say child-got ] on USR2 [ say child-got ] on WINCH [ say child-got ]
        on TERM [ exit 0 ] say child hang ]";
    let mut running = listener(backend, "-k 60", &format!("{child} on TERM [ say term exit 5 ] say ready hang"));
    running.expect("child");
    running.expect("ready");
    for (signal, word) in [(Signal::USR1, "usr1"), (Signal::USR2, "usr2"), (Signal::WINCH, "winch")] {
        running.signal(signal);
        running.expect(word);
    }
    running.signal(Signal::TERM);
    running.wait().exited(5).said("child-got", 0).said("term", 1);
}

fn a_real_time_signal_is_relayed(backend: Backend) {
    let script = "trap 'exit 4' RTMIN+3; echo ready 1 >&9; while :; do sleep .05; done";
    let mut running = Run::new(backend).bash(script).spawn();
    running.expect("ready");
    let kill = format!("kill -RTMIN+3 {}", running.pid());
    let forking = sys::forking();
    assert!(Command::new("bash").args(["-c", &kill]).status().expect("bash is there").success());
    drop(forking);
    running.wait().exited(4);
}

fn a_second_request_kills_at_once(backend: Backend) {
    let mut running = listener(backend, "-k 60", "fork [ setsid say child hang ] say ready hang");
    running.expect("ready");
    let first = Instant::now();
    running.signal(Signal::TERM);
    running.expect("term");
    // A repeat counts 200 ms after the first; whoever is impatient goes on pressing.
    while !is_dead_within(&running, Duration::from_millis(20)) {
        assert!(first.elapsed() < BOUND, "repeats do nothing");
        running.signal(Signal::INT);
    }
    let ended = running.wait();
    ended.exited(137).said("int", 0).took_less_than(LONG);
    assert!(first.elapsed() >= Duration::from_millis(200), "killed by a repeat that was to be merged\n{ended}");
}

/// A logout sends TERM and HUP together, npm repeats INT.
fn two_requests_together_are_one(backend: Backend) {
    let mut running = listener(backend, "-k 60", "on USR1 [ exit 7 ] say ready hang");
    running.expect("ready");
    // So that the wrapper sees both at once, however long this test waits for a CPU.
    running.signal(Signal::STOP);
    running.signal(Signal::TERM);
    running.signal(Signal::HUP);
    running.signal(Signal::CONT);
    running.line();
    assert!(!is_dead_within(&running, Duration::from_millis(300)), "the pair was taken for two");
    running.signal(Signal::USR1);
    let ended = running.wait();
    ended.exited(7);
    assert_eq!(ended.count("term") + ended.count("hup"), 1, "{ended}");
}

fn a_relayed_request_replaces_the_signal_of_the_first_stage(backend: Backend) {
    let mut running = listener(backend, "--stages INT:300ms,QUIT:300ms,KILL", "say ready hang");
    running.expect("ready");
    running.signal(Signal::HUP);
    running.wait().exited(137).said("hup", 1).said("int", 0).said("quit", 1);
}

fn a_relayed_request_arms_the_grace(backend: Backend) {
    let mut running = listener(backend, "-k 300ms", "say ready hang");
    running.expect("ready");
    running.signal(Signal::TERM);
    running.wait().exited(137).said("term", 1).took_less_than(LONG);
}

fn a_request_continues_stopped_members(backend: Backend) {
    let steps = "fork [ setsid on TERM [ say handled exit 0 ] say member kill self STOP hang ] wait";
    let mut running = Run::new(backend).options("-k 60").fixture(steps).spawn();
    let member = running.expect("member");
    wait_for_state(&mut running, &member, 'T');
    running.signal(Signal::TERM);
    running.wait().died_of(Signal::TERM).said("handled", 1);
}

/// `kill $PPID` in a script means its supervisor.
fn a_request_to_the_keeper_counts_as_relayed(backend: Backend) {
    let steps =
        "on TERM [ say term exit 6 ] fork [ on TERM [ say child-term exit 0 ] say child hang ] kill parent TERM hang";
    let ended = Run::new(backend).options("-k 60").fixture(steps).finish();
    ended.exited(6).said("term", 1).took_less_than(LONG);
}

fn another_signal_to_the_keeper_comes_back_to_the_command(backend: Backend) {
    let steps = "on USR1 [ say usr1 exit 6 ] kill parent USR1 hang";
    Run::new(backend).options("-k 60").fixture(steps).finish().exited(6).said("usr1", 1);
}

fn a_stopped_keeper_is_continued(backend: Backend) {
    let ended = Run::new(backend).options("-t 20").fixture("kill parent STOP say after exit 3").finish();
    ended.exited(3).said("after", 1).took_less_than(LONG);
}

/// Nothing waits for a stopped front but its status.
fn a_stopped_wrapper_ends_when_it_is_continued(backend: Backend) {
    let mut running = Run::new(backend).gated().fixture("say ready read exit 4").spawn();
    let command = running.expect_process("ready");
    running.signal(Signal::STOP);
    running.open_gate();
    assert!(is_dead(&command, BOUND));
    assert!(running.is_running());
    running.signal(Signal::CONT);
    running.wait().exited(4);
}

fn a_stopped_wrapper_does_not_stop_the_clock(backend: Backend) {
    let steps = "fork [ setsid say member hang ] say ready hang";
    let mut running = Run::new(backend).options("-t 1 -k 20").fixture(steps).spawn();
    let tree = [running.expect_process("ready"), running.expect_process("member")];
    running.signal(Signal::STOP);
    assert!(tree.iter().all(|process| is_dead(process, BOUND)), "the limit passed and the tree lives");
    running.signal(Signal::CONT);
    running.wait().exited(124);
}

/// A group signal by kill(1) reaches the command, too: the wrapper must still end, and not twice.
fn what_the_caller_ignores_is_neither_relayed_nor_a_stop(backend: Backend) {
    let ignore_hup = || sys::ignore(Signal::HUP.as_raw());
    let mut running = Run::new(backend)
        .options("-k 60")
        .setup(ignore_hup)
        .fixture("on HUP [ say hup ] on USR1 [ say usr1 ] on TERM [ exit 8 ] say ready hang")
        .spawn();
    running.expect("ready");
    running.signal(Signal::HUP);
    running.signal(Signal::USR1);
    running.expect("usr1");
    running.signal(Signal::TERM);
    running.wait().exited(8).said("hup", 0);
}

/// A supervisor that signals the whole group of the wrapper means the command once.
fn a_signal_to_the_wrappers_group_arrives_once(backend: Backend) {
    let mut running = listener(backend, "-k 60", "on USR1 [ exit 5 ] say ready hang");
    running.expect("ready");
    let group = Pid::from_raw(i32::try_from(running.pid()).expect("a PID")).expect("a PID");
    kill_process_group(group, Signal::HUP).expect("the group is there");
    running.expect("hup");
    running.signal(Signal::USR1);
    running.wait().exited(5).said("hup", 1);
}

/// In the foreground the command belongs to the caller's group, and shells stop and continue it with the group.
fn in_the_foreground_the_command_stays_in_the_callers_group(backend: Backend) {
    let group_of = |options: &str| {
        let mut running = Run::new(backend).options(options).gated().fixture("say ready read").spawn();
        let command = running.expect("ready").parse().expect("a PID");
        let (group, session) = kin::group_and_session(command).expect("it reads");
        running.open_gate();
        running.wait().exited(0);
        (group == running.pid(), session == running.pid())
    };
    assert_eq!(group_of("--foreground"), (true, true));
    assert_eq!(group_of("--new-session"), (false, false));
    // There is no terminal here.
    assert_eq!(group_of(""), (false, false));
}

fn in_the_foreground_the_tree_ends_too(backend: Backend) {
    let steps = "fork [ ignore TERM hang ] fork [ setsid ignore TERM hang ] daemon [ hang ] hang";
    Run::new(backend).options("--foreground -t 500ms -k 300ms").fixture(steps).finish().exited(124);
    Run::new(backend).options("--foreground -k 1").fixture("daemon [ hang ] exit 0").finish().exited(193);
    let mut running = Run::new(backend).options("--foreground -k 60").fixture(&format!("say ready {steps}")).spawn();
    running.expect("ready");
    running.signal(Signal::KILL);
    running.wait_for_death();
    running.all_die();
    running.leaves_no_trace();
}

/// fpco/pid1-rs#11: between start and set-up a signal found the wrapper gone and the command running.
fn a_signal_at_any_early_moment_leaves_nothing(backend: Backend) {
    // Who is born after the stop began is let be until SIGKILL, so the grace is short.
    let run = || Run::new(backend).options("-k 300ms").fixture("fork [ setsid hang ] daemon [ hang ] say ready hang");
    let mut running = run().spawn();
    let start = Instant::now();
    running.expect("ready");
    let span = start.elapsed().mul_f64(1.5);
    drop(running);
    for round in 0..25 {
        let mut running = run().spawn();
        // Not paced: the moments are what is tried, spread over the time that a start takes.
        is_dead_within(&running, span.mul_f64(f64::from(round) / 25.0));
        running.signal(Signal::TERM);
        let ended = running.wait();
        ended.died_of(Signal::TERM).took_less_than(LONG);
    }
}

/// As shells without job control make what they start by `&`, and nohup(1).
const DEAF: &str = "fork [ ignore INT ignore QUIT ignore HUP on TERM [ say asked exit 0 ] say deaf hang ]";

fn who_ignores_the_request_is_asked_by_term_when_the_command_has_ended(backend: Backend) {
    for (signal, name) in [(Signal::INT, "INT"), (Signal::QUIT, "QUIT"), (Signal::HUP, "HUP")] {
        let steps = format!("{DEAF} on {name} [ say got read say ending exit 4 ] say ready hang");
        let mut running = Run::new(backend).options("-k 60").report().gated().fixture(&steps).spawn();
        running.expect("deaf");
        running.expect("ready");
        running.signal(signal);
        running.expect("got");
        running.open_gate();
        let ended = running.wait();
        ended.exited(4).said("asked", 1).took_less_than(LONG);
        let place = |word: &str| ended.lines.iter().position(|line| line.starts_with(word));
        assert!(place("ending") < place("asked"), "asked while the command lived\n{ended}");
        let report = ended.report();
        let steps = report["steps"].as_array().expect("a list");
        let sent: Vec<String> = steps.iter().map(|step| format!("{} {}", step["signal"], step["count"])).collect();
        assert_eq!(sent, [format!("\"{name}\" 2"), "\"TERM\" 1".into()], "{report:#}");
    }
    // A shell does it.
    let mut running = Run::new(backend).options("-k 60").bash("sleep 60 & echo ready 1 >&9; sleep 60").spawn();
    running.expect("ready");
    running.signal(Signal::INT);
    running.wait().died_of(Signal::INT).took_less_than(LONG);
}

/// Who has got the PID of a command that has ended is not the command.
#[test]
fn who_inherits_the_commands_pid_is_asked_by_term_too() {
    needs::require!("pidns");
    let heir = "ignore INT on TERM [ say asked exit 0 ] say heir hang";
    let steps = format!("fork [ setsid orphaned inherit {heir} ] exit 3");
    let run = Run::new(Backend::Subreaper).prefixed(needs::below_pid_1());
    let ended = run.options("--leftovers wait -t 1s -s INT -k 60s").fixture(&steps).finish();
    ended.said("heir", 1).said("asked", 1).took_less_than(LONG);
}

/// Between fork and exec a job of a shell has the handlers of the shell, and as another program it ignores the signal.
fn a_job_that_was_about_to_be_started_is_asked_too(backend: Backend) {
    let steps = "fork [ on INT [ ignore INT exec sleep 60 ] say job hang ] say ready hang";
    let mut running = Run::new(backend).options("-k 60").fixture(steps).spawn();
    running.expect("job");
    running.expect("ready");
    running.signal(Signal::INT);
    running.wait().died_of(Signal::INT).took_less_than(LONG);
}

/// Programs take a second request for impatience, and many ignore further ones while they clean up after the first.
fn who_acts_on_the_request_gets_no_other(backend: Backend) {
    let server = "fork [ on TERM [ say term ] on INT [ ignore INT say int read say done exit 0 ] say server hang ]";
    let mut running =
        Run::new(backend).options("-k 60").gated().fixture(&format!("{server} {DEAF} say ready hang")).spawn();
    running.expect("server");
    running.expect("deaf");
    running.expect("ready");
    running.signal(Signal::INT);
    running.expect("int");
    running.expect("asked");
    running.open_gate();
    running.wait().died_of(Signal::INT).said("int", 1).said("term", 0).said("done", 1);
}

/// Whatever is still relayed while the keeper ends must not cost the outcome that it has sent.
fn signals_at_the_very_end_do_not_cost_the_status(backend: Backend) {
    for _ in 0..30 {
        let mut running = Run::new(backend).gated().fixture("ignore USR1 say ready read exit 7").spawn();
        running.expect("ready");
        running.open_gate();
        let start = Instant::now();
        while running.is_running() {
            assert!(start.elapsed() < BOUND, "the wrapper does not return");
            running.signal(Signal::USR1);
        }
        running.wait().exited(7);
    }
}

fn a_burst_of_signals_ends_once_and_cleanly(backend: Backend) {
    let mut running = listener(backend, "-k 60", "fork [ setsid ignore TERM hang ] say ready hang");
    running.expect("ready");
    let start = Instant::now();
    while !is_dead_within(&running, Duration::from_millis(1)) {
        assert!(start.elapsed() < BOUND, "the burst is not obeyed");
        for signal in [Signal::TERM, Signal::USR1, Signal::HUP, Signal::WINCH, Signal::INT, Signal::QUIT, Signal::CONT]
        {
            running.signal(signal);
        }
    }
    running.wait().exited(137);
}

/// webpack/webpack-dev-server#5026, nanocoai/nanoclaw#2152: the port was still taken after the return.
fn a_port_is_free_the_moment_the_wrapper_returns(backend: Backend) {
    let mut running = Run::new(backend).options("-k 60").fixture("fork [ fork [ listen hang ] wait ] wait").spawn();
    let port: u16 = running.expect("port").parse().expect("a port");
    running.signal(Signal::TERM);
    running.wait().died_of(Signal::TERM);
    std::net::TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
}

fn is_dead_within(running: &Running, time: Duration) -> bool {
    is_dead(running.pidfd(), time)
}

/// Waits for a state of proc_pid_stat(5).
fn wait_for_state(running: &mut Running, pid: &str, state: char) {
    let start = Instant::now();
    while common::running::state_of(pid) != Some(state) {
        if start.elapsed() > BOUND {
            running.fail("the state is not reached");
        }
        std::thread::yield_now();
    }
}
