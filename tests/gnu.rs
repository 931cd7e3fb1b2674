//! GNU timeout's grammar and rules, on a link called `timeout` and on `treekill-run --gnu`.

mod common;

#[path = "gnu/alike.rs"]
mod alike;
#[path = "gnu/differences.rs"]
mod differences;
#[path = "gnu/grammar.rs"]
mod grammar;
#[path = "gnu/lines.rs"]
mod lines;
#[path = "gnu/named.rs"]
mod named;
#[path = "gnu/uses.rs"]
mod uses;

use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use common::{Backend, Scratch, both_backends, fixture};
use named::{Timeout, ends, finish};
use rustix::process::{Resource, Rlimit, Signal, setrlimit};

/// How long a run may last that is expected to end long before.
const LONG: Duration = Duration::from_secs(20);

both_backends! {
    a_command_that_ends_in_time_gives_its_status
    a_command_that_dies_in_time_is_mimicked_without_a_core
    at_the_limit_the_status_is_124
    with_preserve_status_the_commands_status_is_a_plain_number
    a_command_that_needed_kill_is_a_plain_137
    a_signal_to_timeout_is_passed_on_and_the_end_is_the_commands
    a_signal_to_timeout_arms_the_grace
    alrm_counts_as_expiry
    what_cannot_be_run_is_126_or_127
    without_a_limit_a_signal_is_passed_on
    nothing_but_errors_and_verbose_lines_is_said
    the_command_leads_neither_its_session_nor_its_group
}

/// A leader of a group can't call setsid(2), so that setsid(1) forks and ends at once; one of a session can't call setpgid(2)
/// either, and a terminal that it opens becomes its own.
fn the_command_leads_neither_its_session_nor_its_group(backend: Backend) {
    for timeout in Timeout::both(backend) {
        finish(timeout.run(&["60", "setsid", "sh", "-c", "sleep 0.3; exit 3"])).exited(3);
        finish(timeout.run(&["60", "sh", "-c", "trap 'exit 5' TERM; kill 0; sleep 5"])).exited(5);
        let ended = finish(timeout.fixture("60", "state"));
        let state: serde_json::Value = serde_json::from_str(ended.value("state")).expect("the fixture writes JSON");
        let [pid, parent, group, session] = ["pid", "parent", "group", "session"].map(|key| &state[key]);
        assert!(session != pid && session != parent, "{ended}");
        assert!(group != pid && group != parent, "{ended}");
        // Who calls leads a session: that of the command, and of its parent's parent.
        let ended = finish(timeout.run(&["60", "sh", "-c", "cut -d ' ' -f 4,6 /proc/$PPID/stat"]));
        let stdout = String::from_utf8_lossy(&ended.stdout);
        let (front, session) = stdout.trim_end().split_once(' ').expect("two numbers");
        assert_eq!(front, session, "{ended}");
    }
}

fn a_command_that_ends_in_time_gives_its_status(backend: Backend) {
    for timeout in Timeout::both(backend) {
        for status in [0, 7, 124, 125, 255] {
            finish(timeout.fixture("60", &format!("exit {status}"))).exited(status);
        }
    }
}

fn a_command_that_dies_in_time_is_mimicked_without_a_core(backend: Backend) {
    for timeout in Timeout::both(backend) {
        // The runtime of the fixture catches SEGV.
        for (signal, steps) in [
            (Signal::TERM, "kill self TERM hang"),
            (Signal::KILL, "kill self KILL hang"),
            (Signal::HUP, "kill self HUP hang"),
            (Signal::SEGV, "default SEGV kill self SEGV hang"),
            (Signal::QUIT, "kill self QUIT hang"),
            (Signal::USR1, "kill self USR1 hang"),
        ] {
            let scratch = Scratch::new();
            let run = timeout.fixture("60", steps).directory(scratch.path());
            let ended = finish(run.setup(allow_cores));
            ended.died_of(signal);
            assert!(!ended.status.core_dumped(), "the core of the wrapper hides the command's\n{ended}");
        }
    }
}

fn allow_cores() -> std::io::Result<()> {
    let most = rustix::process::getrlimit(Resource::Core).maximum;
    Ok(setrlimit(Resource::Core, Rlimit { current: most, maximum: most })?)
}

fn at_the_limit_the_status_is_124(backend: Backend) {
    for timeout in Timeout::both(backend) {
        finish(timeout.fixture(".3", "hang")).exited(124).took_at_least(Duration::from_millis(300));
        finish(timeout.fixture(".3", "on TERM [ say term exit 3 ] hang")).exited(124).said("term", 1);
        finish(timeout.fixture("-s SEGV .3", "default SEGV hang")).exited(124);
        finish(timeout.fixture("-k 60 .3", "hang")).exited(124).took_less_than(LONG);
    }
}

fn with_preserve_status_the_commands_status_is_a_plain_number(backend: Backend) {
    for timeout in Timeout::both(backend) {
        finish(timeout.fixture("-p .3", "on TERM [ exit 42 ] hang")).exited(42);
        finish(timeout.fixture("-p .3", "on TERM [ exit 0 ] hang")).exited(0);
        finish(timeout.fixture("-p .3", "hang")).exited(143);
        finish(timeout.fixture("-p -s INT .3", "hang")).exited(130);
        finish(timeout.fixture("-p 60", "kill self TERM hang")).died_of(Signal::TERM);
    }
}

fn a_command_that_needed_kill_is_a_plain_137(backend: Backend) {
    for timeout in Timeout::both(backend) {
        for options in ["-k .2 .3", "-p -k .2 .3", "-s KILL .3", "-p -s KILL .3", "-s 9 -k 60 .3"] {
            finish(timeout.fixture(options, "ignore TERM hang")).exited(137).took_less_than(LONG);
        }
    }
}

const REQUESTS: [(Signal, &str); 5] = [
    (Signal::TERM, "TERM"),
    (Signal::INT, "INT"),
    (Signal::HUP, "HUP"),
    (Signal::QUIT, "QUIT"),
    (Signal::USR1, "USR1"),
];

fn a_signal_to_timeout_is_passed_on_and_the_end_is_the_commands(backend: Backend) {
    for timeout in Timeout::both(backend) {
        for (signal, name) in REQUESTS {
            let mut running = timeout.fixture("60", "say ready hang").spawn();
            running.expect("ready");
            running.signal(signal);
            ends(running).died_of(signal);
            let mut running = timeout.fixture("60", &format!("on {name} [ say got exit 9 ] say ready hang")).spawn();
            running.expect("ready");
            running.signal(signal);
            ends(running).exited(9).said("got", 1);
        }
    }
}

fn a_signal_to_timeout_arms_the_grace(backend: Backend) {
    for timeout in Timeout::both(backend) {
        for (signal, name) in REQUESTS {
            let steps = format!("ignore TERM on {name} [ say got ] say ready hang");
            let mut running = timeout.fixture("-k .2 60", &steps).spawn();
            running.expect("ready");
            running.signal(signal);
            ends(running).exited(137).said("got", 1).took_less_than(LONG);
        }
    }
}

fn alrm_counts_as_expiry(backend: Backend) {
    for timeout in Timeout::both(backend) {
        let mut running = timeout.fixture("60", "on TERM [ say term exit 3 ] say ready hang").spawn();
        running.expect("ready");
        running.signal(Signal::ALARM);
        ends(running).exited(124).said("term", 1).took_less_than(LONG);
    }
}

fn what_cannot_be_run_is_126_or_127(backend: Backend) {
    for timeout in Timeout::both(backend) {
        let scratch = Scratch::new();
        let plain = scratch.file("plain", b"", 0o644);
        for (command, status) in [("no-such-program", 127), ("/no/such/program", 127), ("", 127), ("/", 126)] {
            finish(timeout.run(&["5", command]))
                .exited(status)
                .complained_of(&format!("{}: ", timeout.name))
                .printed("");
        }
        let plain = plain.display().to_string();
        finish(timeout.run(&["5", &plain])).exited(126).complained_of(&plain);
    }
}

fn without_a_limit_a_signal_is_passed_on(backend: Backend) {
    for timeout in Timeout::both(backend) {
        for limit in ["0", "-k 0 0", "0s", "inf"] {
            let mut running = timeout.fixture(limit, "on TERM [ exit 5 ] say ready hang").spawn();
            running.expect("ready");
            running.signal(Signal::TERM);
            ends(running).exited(5);
        }
    }
}

fn nothing_but_errors_and_verbose_lines_is_said(backend: Backend) {
    let program = fixture().display().to_string();
    for timeout in Timeout::both(backend) {
        let line = |signal: &str| format!("{}: sending signal {signal} to command '{program}'\n", timeout.name);
        for (words, steps, said) in [
            (".2", "hang", String::new()),
            ("-k .2 .2", "ignore TERM hang", String::new()),
            ("-v 60", "exit 3", String::new()),
            ("-v .2", "hang", line("TERM")),
            ("-v -s INT .2", "hang", line("INT")),
            ("--verbose -s RTMIN+1 .2", "hang", line("RTMIN+1")),
            ("-vk .2 .2", "ignore TERM hang", line("TERM") + &line("KILL")),
        ] {
            let ended = finish(timeout.fixture(words, steps).env("LC_ALL", "C"));
            assert_eq!(ended.stderr, said, "{words}\n{ended}");
            ended.printed("");
        }
    }
}
