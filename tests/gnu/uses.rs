//! What GNU coreutils makes sure of in its own tests of timeout: groups, parameters of any size, blocked signals, a
//! parent that is init, a parent that ignores its children.

use std::ffi::OsString;

use rustix::process::{Pid, Signal, kill_process_group};

use crate::common::{Backend, Run, both_backends, fixture, needs, sys};
use crate::named::{Timeout, ends, finish};

both_backends! {
    a_signal_to_the_callers_group_reaches_the_command_once
    an_interrupt_to_a_script_ends_script_and_command
    a_killed_timeout_leaves_nothing
    large_parameters_are_no_error
    blocked_signals_do_not_hinder_the_limit
    ignored_children_do_not_hinder_the_status
    ignored_terminal_stops_are_handed_on
    a_parent_that_is_init_is_a_parent
    as_init_it_times_out
    one_timeout_under_another_ends_first
    in_the_foreground_no_terminal_is_needed
}

fn a_signal_to_the_callers_group_reaches_the_command_once(backend: Backend) {
    for timeout in Timeout::both(backend) {
        let mut running = timeout.fixture("60", "on TERM [ say term exit 4 ] say ready hang").spawn();
        running.expect("ready");
        signal_group(running.pid(), Signal::TERM);
        ends(running).exited(4).said("term", 1);
    }
}

/// The leader of a session that is our unreaped child.
fn signal_group(leader: u32, signal: Signal) {
    let group = i32::try_from(leader).ok().and_then(Pid::from_raw).expect("a PID");
    kill_process_group(group, signal).expect("its leader is there");
}

fn script(timeout: &Timeout, text: &str) -> Run {
    let words: Vec<OsString> = ["bash", "-c", text, "script"].into_iter().map(OsString::from).collect();
    Run::control(words.iter().chain(timeout.words()))
}

fn an_interrupt_to_a_script_ends_script_and_command(backend: Backend) {
    for timeout in Timeout::both(backend) {
        let run = script(&timeout, "\"$@\" 60 $FX daemon [ hang ] say ready hang; \"$@\" 60 $FX say after");
        let mut running = run.env("FX", fixture()).spawn();
        running.expect("ready");
        signal_group(running.pid(), Signal::INT);
        ends(running).died_of(Signal::INT).said("after", 0);
    }
}

fn a_killed_timeout_leaves_nothing(backend: Backend) {
    for timeout in Timeout::both(backend) {
        let steps = "ignore TERM daemon [ ignore TERM hang ] fork [ setsid hang ] say ready hang";
        let mut running = timeout.fixture("60", steps).spawn();
        running.expect("ready");
        running.signal(Signal::KILL);
        running.wait_for_death().died_of(Signal::KILL);
        running.all_die();
        running.leaves_no_trace();
    }
}

fn large_parameters_are_no_error(backend: Backend) {
    let long = "9".repeat(5000);
    let fraction = format!("1.{long}e+3");
    for timeout in Timeout::both(backend) {
        for duration in ["2.34e+5d", "4294967296", "9223372036854775808", "18446744073709551616d", "1e1000", "1e-1000d"]
            .into_iter()
            .chain([long.as_str(), &fraction])
        {
            let ended = timeout.seven(&["-k", duration, duration]);
            // One of them is as short as can be.
            ended.exited_with_one_of(if duration == "1e-1000d" { &[124, 137, 7] } else { &[7] });
        }
        // So is an argument list.
        let word = "x".repeat(100_000);
        let mut words = vec!["5", "sh", "-c", "exit $#", "sh"];
        words.extend([word.as_str(); 9]);
        finish(timeout.run(&words)).exited(9);
    }
}

fn blocked_signals_do_not_hinder_the_limit(backend: Backend) {
    for timeout in Timeout::both(backend) {
        let bit = |signal: u32| 1_u64 << (signal - 1);
        let run = |words: &str| timeout.fixture(words, "hang");
        // ALRM, CHLD, INT, HUP, USR1.
        let some = bit(14) | bit(17) | bit(2) | bit(1) | bit(10);
        finish(run(".3").setup(move || sys::block(some))).exited(124);
        finish(run("-k .2 .3").setup(|| sys::block(u64::MAX))).exited(137);
    }
}

/// The disposition goes on to the command, but timeout itself has to hear of its child.
fn ignored_children_do_not_hinder_the_status(backend: Backend) {
    for timeout in Timeout::both(backend) {
        let ignoring = |run: Run| finish(run.setup(|| sys::ignore(17)));
        ignoring(timeout.fixture("60", "exit 7")).exited(7);
        ignoring(timeout.fixture(".3", "hang")).exited(124);
        let ended = ignoring(timeout.fixture("60", "state"));
        let state: serde_json::Value = serde_json::from_str(ended.value("state")).expect("the fixture writes JSON");
        assert_eq!(state["ignored"].as_u64().map(|set| set & 1 << 16), Some(1 << 16), "{ended}");
    }
}

fn ignored_terminal_stops_are_handed_on(backend: Backend) {
    for timeout in Timeout::both(backend) {
        for (ignored, set) in [(vec![], 0), (vec![21, 22], 3 << 20)] {
            let run = timeout.fixture("60", "state").setup(move || ignored.iter().copied().try_for_each(sys::ignore));
            let ended = finish(run);
            let state: serde_json::Value = serde_json::from_str(ended.value("state")).expect("the fixture writes JSON");
            assert_eq!(state["ignored"].as_u64().map(|all| all & 3 << 20), Some(set), "{ended}");
        }
    }
}

/// A program that compares its parent with 1 to see whether it was orphaned gets this wrong.
fn a_parent_that_is_init_is_a_parent(backend: Backend) {
    needs::require!("pidns");
    for timeout in Timeout::both(backend) {
        let text = "\"$@\" .3 $FX hang; echo status $? >&9; \"$@\" 60 $FX exit 7; echo second $? >&9; exit 0";
        let words: Vec<OsString> = ["bash", "-c", text, "script"].into_iter().map(OsString::from).collect();
        let words = needs::as_pid_1().into_iter().map(OsString::from).chain(words).chain(timeout.words().to_vec());
        let ended = finish(Run::control(words).env("FX", fixture()));
        assert_eq!((ended.value("status"), ended.value("second")), ("124", "7"), "{ended}");
    }
}

fn as_init_it_times_out(backend: Backend) {
    needs::require!("pidns");
    for timeout in Timeout::both(backend) {
        let as_init = |words: &str, steps: &str| {
            let prefix = needs::as_pid_1().into_iter().map(OsString::from).chain(timeout.words().to_vec());
            let words = words.split_whitespace().map(OsString::from).chain([fixture().into()]);
            finish(Run::control(prefix).command(words.chain(steps.split_whitespace().map(OsString::from))))
        };
        as_init(".3", "daemon [ hang ] hang").exited(124);
        as_init("-k .2 .3", "ignore TERM hang").exited(137);
        as_init("60", "exit 7").exited(7);
        as_init("60", "kill self USR1 hang").exited(138);
    }
}

fn one_timeout_under_another_ends_first(backend: Backend) {
    for timeout in Timeout::both(backend) {
        let words: Vec<String> = timeout.words().iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let program = fixture().display().to_string();
        let nested = |outer: &str, inner: &str| {
            let mut line = vec![outer];
            line.extend(words.iter().map(String::as_str));
            line.extend([inner, &program, "daemon", "[", "hang", "]", "hang"]);
            finish(timeout.run(&line))
        };
        nested("60", ".3").exited(124);
        nested(".5", "60").exited(124);
    }
}

fn in_the_foreground_no_terminal_is_needed(backend: Backend) {
    for timeout in Timeout::both(backend) {
        finish(timeout.fixture("-f .3", "hang")).exited(124);
        finish(timeout.fixture("--foreground -k .2 .3", "ignore TERM hang")).exited(137);
        finish(timeout.fixture("-f 60", "exit 7")).exited(7);
    }
}
