//! What is intended to differ from GNU timeout, and nothing else: our long options, the tree is ended, leftovers are
//! ended, the signals of GNU timeout 9.10, a second signal is passed on, a plain 137.

use std::process::Command;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, Signal, setrlimit};

use std::os::unix::process::ExitStatusExt as _;

use crate::common::{Backend, Run, both_backends, sys};
use crate::named::{Timeout, ends, finish};

const LONG: Duration = Duration::from_secs(20);

both_backends! {
    our_long_options_are_taken_written_out
    the_tree_is_ended_with_the_command
    the_grace_is_for_what_is_left_too
    without_kill_after_the_command_is_never_killed
    leftovers_are_ended_with_one_line_and_the_same_status
    under_foreground_the_command_is_asked_first_and_the_rest_is_ended_too
    an_ignored_signal_is_neither_caught_nor_passed_on
    every_fatal_signal_is_passed_on
    every_signal_after_the_first_is_passed_on
    harmless_signals_are_passed_on_and_stop_nothing
}

fn our_long_options_are_taken_written_out(backend: Backend) {
    for timeout in Timeout::both(backend) {
        finish(timeout.fixture("--leftovers wait --leftover-grace=1s 60", "exit 7")).exited(7);
        finish(timeout.fixture("--leftover-status 99 60", "daemon [ hang ] exit 0")).exited(99);
        finish(timeout.fixture("--stages INT:300ms,KILL .2", "on INT [ say int ] hang")).exited(137).said("int", 1);
        finish(timeout.fixture("--die-with-parent -k5 60", "exit 8")).exited(8);
    }
}

const STUBBORN: &str = "daemon [ ignore TERM say daemon hang ] fork [ setsid say member hang ] fork [ say child hang ]";

fn the_tree_is_ended_with_the_command(backend: Backend) {
    for timeout in Timeout::both(backend) {
        let ended = finish(timeout.fixture("-k .3 1", &format!("{STUBBORN} hang")));
        ended.exited(124).said("daemon", 1).said("member", 1).said("child", 1).took_less_than(LONG);
        finish(timeout.fixture("-s KILL 1", &format!("{STUBBORN} hang"))).exited(137).took_less_than(LONG);
    }
}

/// A child that cleans up after its shell has died.
fn the_grace_is_for_what_is_left_too(backend: Backend) {
    for timeout in Timeout::both(backend) {
        let steps = "fork [ on TERM [ say cleans read say clean exit 0 ] say child hang ] hang";
        let mut running = timeout.fixture("-k 60 1", steps).gated().spawn();
        running.expect("cleans");
        running.open_gate();
        ends(running).exited(124).said("clean", 1).took_less_than(LONG);
    }
}

fn without_kill_after_the_command_is_never_killed(backend: Backend) {
    let timeout = Timeout::link(backend);
    let mut running = timeout.fixture(".2", "on TERM [ say term read exit 3 ] hang").gated().spawn();
    running.expect("term");
    Run::new(backend).options("-t 400ms").fixture("hang").finish().exited(124);
    assert!(running.is_running());
    running.open_gate();
    ends(running).exited(124);
}

fn leftovers_are_ended_with_one_line_and_the_same_status(backend: Backend) {
    for timeout in Timeout::both(backend) {
        for (end, status) in [("exit 0", 0), ("exit 7", 7)] {
            let ended = finish(timeout.fixture("-k .3 60", &format!("{STUBBORN} {end}")));
            ended.exited(status).complained_of(&format!("{}: ", timeout.name)).took_less_than(LONG);
            assert_eq!(ended.stderr.lines().count(), 1, "{ended}");
        }
        finish(timeout.fixture("60", "daemon [ hang ] kill self HUP hang")).died_of(Signal::HUP);
    }
}

fn under_foreground_the_command_is_asked_first_and_the_rest_is_ended_too(backend: Backend) {
    for timeout in Timeout::both(backend) {
        for option in ["-f", "--foreground"] {
            let child = "fork [ on TERM [ say childs-term ] say child hang ]";
            let steps = format!("{child} on TERM [ say term read say ends exit 3 ] say ready hang");
            let mut running = timeout.fixture(&format!("{option} -k .5 60"), &steps).gated().spawn();
            running.expect("child");
            running.expect("ready");
            running.signal(Signal::ALARM);
            running.expect("term");
            running.open_gate();
            let ended = ends(running);
            ended.exited(124).said("childs-term", 1);
            let at = |word: &str| ended.lines.iter().position(|line| line.split(' ').next() == Some(word));
            assert!(at("childs-term") > at("ends"), "{ended}");
        }
    }
}

/// nohup(1), and jobs of a shell that has no job control.
fn an_ignored_signal_is_neither_caught_nor_passed_on(backend: Backend) {
    for timeout in Timeout::both(backend) {
        let steps = "on HUP [ say hup ] on INT [ say int ] on USR1 [ say usr1 ] on USR2 [ exit 5 ] say ready hang";
        let run = timeout.fixture("60", steps).setup(|| [1, 2, 10].into_iter().try_for_each(sys::ignore));
        let mut running = run.spawn();
        running.expect("ready");
        for signal in [Signal::HUP, Signal::INT, Signal::USR1, Signal::USR2] {
            running.signal(signal);
        }
        ends(running).exited(5).said("hup", 0).said("int", 0).said("usr1", 0);
    }
}

/// Those whose default action ends a process, signal(7), without KILL, which nobody can pass on, ALRM, which is expiry,
/// and the two that C libraries keep for themselves.
fn every_fatal_signal_is_passed_on(backend: Backend) {
    let timeout = Timeout::link(backend);
    let harmless = [9, 14, 17, 18, 19, 20, 21, 22, 23, 28, 32, 33];
    for number in (1..=64).filter(|number| !harmless.contains(number)) {
        // The runtime of the fixture catches or ignores some.
        let run = timeout
            .fixture("60", "default PIPE default SEGV default BUS say ready hang")
            .setup(|| Ok(setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?));
        let mut running = run.spawn();
        running.expect("ready");
        send(number, running.pid());
        let ended = ends(running);
        assert_eq!(ended.status.signal(), Some(number), "{ended}");
    }
}

/// To a child that is not reaped yet.
fn send(number: i32, pid: u32) {
    let _forking = sys::forking();
    let status = Command::new("kill").args([format!("-{number}"), pid.to_string()]).status();
    assert!(status.is_ok_and(|status| status.success()), "kill -{number}");
}

/// GNU timeout loses it. It is no order to kill here, either.
fn every_signal_after_the_first_is_passed_on(backend: Backend) {
    for timeout in Timeout::both(backend) {
        let steps = "on TERM [ say term ] on INT [ say int ] on USR1 [ say usr1 ] on USR2 [ exit 5 ] say ready hang";
        let mut running = timeout.fixture("60", steps).spawn();
        running.expect("ready");
        let requests = [(Signal::TERM, "term"), (Signal::TERM, "term"), (Signal::INT, "int"), (Signal::USR1, "usr1")];
        for (signal, word) in requests.into_iter().cycle().take(8) {
            running.signal(signal);
            running.expect(word);
        }
        running.signal(Signal::USR2);
        ends(running).exited(5).said("term", 4).said("int", 2).said("usr1", 2);
    }
}

fn harmless_signals_are_passed_on_and_stop_nothing(backend: Backend) {
    let timeout = Timeout::link(backend);
    let steps = "on WINCH [ say winch ] on URG [ say urg ] on USR1 [ exit 5 ] say ready hang";
    let mut running = timeout.fixture("-k .1 60", steps).spawn();
    running.expect("ready");
    for (signal, word) in [(Signal::WINCH, "winch"), (Signal::URG, "urg")] {
        running.signal(signal);
        running.expect(word);
    }
    Run::new(backend).options("-t 300ms").fixture("hang").finish().exited(124);
    assert!(running.is_running());
    running.signal(Signal::USR1);
    ends(running).exited(5);
}
