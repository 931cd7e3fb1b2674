//! Under make, as PID 1, and in the roles of tini and dumb-init.

mod common;

use std::os::unix::fs::symlink;

use common::needs;
use common::{Backend, Ended, Run, Running, Scratch, both_backends, fixture, kin, running, wrapper};
use rustix::process::{Pid, Signal, kill_process_group, pidfd_send_signal};

both_backends! {
    a_recursive_make_shares_the_jobserver
    an_interrupt_of_make_ends_everything
    a_request_to_make_ends_everything
    a_target_whose_rule_timed_out_is_deleted
    a_target_whose_rule_ended_in_time_stays
    timeout_in_a_makefile_can_be_replaced
    as_pid_1_every_signal_reaches_the_command_alone
    as_pid_1_every_signal_reaches_the_commands_group
    as_pid_1_a_command_without_handlers_ends_by_the_signal
    as_pid_1_a_real_time_signal_is_passed_on
}

/// A make with this makefile, whose variables FX and TK are the fixture and treekill-run.
fn make(backend: Backend, scratch: &Scratch, makefile: &str, arguments: &[&str]) -> Run {
    scratch.file("Makefile", makefile.as_bytes(), 0o644);
    let program = wrapper().display().to_string();
    let mut run = Run::control(["make"]).directory(scratch.path());
    for name in ["MAKEFLAGS", "MAKELEVEL", "MFLAGS"] {
        // This test may run under make itself.
        run = run.env(name, "");
    }
    run.env("FX", fixture())
        .env("TK", format!("{program} --backend {}", backend.name()))
        .env("TG", format!("{program} --gnu --backend={}", backend.name()))
        .env("LC_ALL", "C")
        .command(arguments)
}

fn ends(mut running: Running) -> Ended {
    let ended = running.wait();
    if !running.is_all_dead() {
        running.fail("something outlived make");
    }
    running.leaves_no_trace();
    ended
}

/// Two rules below the wrapper that can only end together.
fn a_recursive_make_shares_the_jobserver(backend: Backend) {
    needs::require!("make");
    let scratch = Scratch::new();
    scratch.file("inner.mk", b"all: a b\na:; read -r word <fifo; echo $$word >&9\nb:; echo met 1 >fifo\n", 0o644);
    let rules = "all:\n\tmkfifo fifo\n\t+$(TK) -t 25 -k 1 $(MAKE) -f inner.mk all\n";
    let ended = ends(make(backend, &scratch, rules, &["-j3"]).spawn());
    ended.exited(0);
    assert!(!ended.stderr.contains("jobserver"), "{ended}");
    // With one job there is nothing to share, and it would hang: the wrapper's limit ends that.
    scratch.file("inner.mk", b"all: a b\na:; read -r word <>fifo\nb:; echo met 1 >fifo\n", 0o644);
    let rules = "all:\n\t+$(TK) -t 1 -k 1 $(MAKE) -f inner.mk all\n";
    let ended = ends(make(backend, &scratch, rules, &["-j1"]).spawn());
    ended.exited(2).complained_of("124");
}

const HANGING: &str = "all: a b\na b:\n\t$(TK) -k 60 $(FX) fork [ setsid hang ] daemon [ hang ] say $@ hang\n";

fn an_interrupt_of_make_ends_everything(backend: Backend) {
    needs::require!("make");
    let scratch = Scratch::new();
    let mut running = make(backend, &scratch, HANGING, &["-j2"]).spawn();
    running.expect("a");
    running.expect("b");
    // As a terminal does.
    let group = i32::try_from(running.pid()).ok().and_then(Pid::from_raw).expect("a PID");
    kill_process_group(group, Signal::INT).expect("make leads it");
    assert!(!ends(running).status.success());
}

/// Make passes this one on to its children and does not wait for them. Where a shell stands between, which passes nothing
/// on, there is an option.
fn a_request_to_make_ends_everything(backend: Backend) {
    needs::require!("make");
    let without_shell = "all: a b\na b:\n\t$(TK) -k 60 ./tree $@\n";
    let with_shell = "all: a b\na b:\n\t:; $(TK) -k 60 --die-with-parent ./tree $@; :\n";
    for rules in [without_shell, with_shell] {
        let scratch = Scratch::new();
        let tree = b"#!/bin/sh\nexec $FX fork [ setsid hang ] daemon [ hang ] say $1 hang\n";
        scratch.file("tree", tree, 0o755);
        let mut running = make(backend, &scratch, rules, &["-j2"]).spawn();
        running.expect("a");
        running.expect("b");
        running.signal(Signal::TERM);
        running.wait_for_death().died_of(Signal::TERM);
        running.all_die();
        running.leaves_no_trace();
    }
}

const TARGET: &str = ".DELETE_ON_ERROR:\nout:\n\t$(TK) $(LIMIT) bash -c 'echo partial >out; $(FX) $(STEPS)'\n";

fn a_target_whose_rule_timed_out_is_deleted(backend: Backend) {
    needs::require!("make");
    for (limit, steps, status) in [
        ("-t 500ms -k 60", "hang", "124"),
        ("-t 500ms -k 200ms -s INT", "ignore INT hang", "137"),
        ("", "daemon [ hang ]", "193"),
    ] {
        let scratch = Scratch::new();
        let run = make(backend, &scratch, TARGET, &["out"]).env("LIMIT", limit).env("STEPS", steps);
        let ended = ends(run.spawn());
        ended.exited(2).complained_of(&format!("Error {status}")).complained_of("Deleting file 'out'");
        assert!(!scratch.join("out").exists(), "{ended}");
    }
}

fn a_target_whose_rule_ended_in_time_stays(backend: Backend) {
    needs::require!("make");
    let scratch = Scratch::new();
    let run = make(backend, &scratch, TARGET, &["out"]).env("LIMIT", "-t 60").env("STEPS", "exit 0");
    ends(run.spawn()).exited(0);
    assert_eq!(std::fs::read_to_string(scratch.join("out")).ok().as_deref(), Some("partial\n"));
}

/// A makefile written for timeout(1): a variable or a link is all that changes.
fn timeout_in_a_makefile_can_be_replaced(backend: Backend) {
    needs::require!("make");
    let rules = "TIMEOUT = timeout\ngood:\n\t$(TIMEOUT) -k 5 60 $(FX) say good exit 0\n\
        bad:\n\t$(TIMEOUT) -k 5 60 $(FX) exit 9\nlate:\n\t$(TIMEOUT) -k 5 .5 $(FX) daemon [ hang ] hang\n\
        stubborn:\n\t$(TIMEOUT) -k .2 .5 $(FX) ignore TERM hang\n";
    let folder = Scratch::new();
    symlink(wrapper(), folder.join("timeout")).expect("the directory is ours");
    let path = std::env::var("PATH").unwrap_or_default();
    let with_link = format!("{}:{path}", folder.path().display());
    for (path, variable) in [(&with_link, "TIMEOUT = timeout"), (&path, "TIMEOUT=$(TG)")] {
        let run = |target: &str| {
            let scratch = Scratch::new();
            let arguments: &[&str] = if variable.contains("TG") { &[variable, target] } else { &[target] };
            ends(make(backend, &scratch, rules, arguments).env("PATH", path).spawn())
        };
        run("good").exited(0).said("good", 1);
        for (target, status) in [("bad", 9), ("late", 124), ("stubborn", 137)] {
            run(target).exited(2).complained_of(&format!("Error {status}"));
        }
    }
}

/// The first process of a PID namespace.
fn as_pid_1(backend: Backend, options: &str) -> Run {
    Run::new(backend).options(options).prefixed(needs::as_pid_1())
}

/// Signals the namespace's first process from outside.
fn signal_pid_1(running: &Running, signal: Signal) {
    let (pid, pidfd) = kin::last_child(running.pid()).expect("unshare waits for its child");
    assert!(running::state_of(&pid.to_string()).is_some());
    pidfd_send_signal(pidfd, signal).expect("it is alive");
}

/// Everything that a program can catch, but CHLD, which is about the wrapper's own children.
const CATCHABLE: [(Signal, &str); 22] = [
    (Signal::ILL, "ILL"),
    (Signal::TRAP, "TRAP"),
    (Signal::ABORT, "ABRT"),
    (Signal::BUS, "BUS"),
    (Signal::FPE, "FPE"),
    (Signal::USR1, "USR1"),
    (Signal::SEGV, "SEGV"),
    (Signal::USR2, "USR2"),
    (Signal::PIPE, "PIPE"),
    (Signal::ALARM, "ALRM"),
    (Signal::STKFLT, "STKFLT"),
    (Signal::CONT, "CONT"),
    (Signal::TSTP, "TSTP"),
    (Signal::TTIN, "TTIN"),
    (Signal::TTOU, "TTOU"),
    (Signal::URG, "URG"),
    (Signal::XCPU, "XCPU"),
    (Signal::XFSZ, "XFSZ"),
    (Signal::VTALARM, "VTALRM"),
    (Signal::PROF, "PROF"),
    (Signal::WINCH, "WINCH"),
    (Signal::IO, "IO"),
];

const REQUESTS: [(Signal, &str); 4] =
    [(Signal::TERM, "TERM"), (Signal::INT, "INT"), (Signal::HUP, "HUP"), (Signal::QUIT, "QUIT")];

fn handlers(of: &[(Signal, &str)], word: &str, end: &str) -> String {
    of.iter().map(|(_, name)| format!("on {name} [ say {word}{name} {end} ] ")).collect()
}

fn every_signal_is_passed_on(backend: Backend, to: &str, child_gets_requests: bool) {
    needs::require!("pidns");
    let options = format!("-k 60 --signal-to {to}");
    let child = format!("fork [ {} say child hang ]", handlers(&REQUESTS, "child-", "exit 0"));
    for (request, name) in REQUESTS {
        let steps =
            format!("{child} {} {} say ready hang", handlers(&CATCHABLE, "", ""), handlers(&REQUESTS, "", "exit 3"));
        let mut running = as_pid_1(backend, &options).options("--leftover-grace 0").fixture(&steps).spawn();
        running.expect("child");
        running.expect("ready");
        // These are tried once.
        for (signal, name) in CATCHABLE.iter().filter(|_| request == Signal::TERM) {
            signal_pid_1(&running, *signal);
            running.expect(name);
        }
        signal_pid_1(&running, request);
        running.expect(name);
        let word = format!("child-{name}");
        if child_gets_requests {
            running.expect(&word);
        } else {
            // It was not asked and outlives the command: nothing but SIGKILL would end it before its grace.
            let (_, pid_1) = kin::last_child(running.pid()).expect("unshare waits for its child");
            assert!(running.is_running());
            signal_again(&running, &pid_1);
        }
        let ended = running.wait();
        ended.exited_with_one_of(&[3]);
        assert_eq!(ended.count(&word) == 1, child_gets_requests, "{ended}");
    }
}

/// A second request, once it counts as one, kills all.
fn signal_again(running: &Running, pid_1: &std::os::fd::OwnedFd) {
    let start = std::time::Instant::now();
    while running.is_running() && start.elapsed() < common::BOUND {
        let _ = pidfd_send_signal(pid_1, Signal::TERM);
        running::is_dead(pid_1, std::time::Duration::from_millis(250));
    }
}

/// The role of tini.
fn as_pid_1_every_signal_reaches_the_command_alone(backend: Backend) {
    every_signal_is_passed_on(backend, "command", false);
}

/// The role of dumb-init.
fn as_pid_1_every_signal_reaches_the_commands_group(backend: Backend) {
    every_signal_is_passed_on(backend, "group", true);
}

/// Nothing kills PID 1 from inside, so its status is the one a shell would show.
fn as_pid_1_a_command_without_handlers_ends_by_the_signal(backend: Backend) {
    needs::require!("pidns");
    for (signal, status) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::USR1, 138), (Signal::ABORT, 134)] {
        let mut running = as_pid_1(backend, "-k 60").fixture("daemon [ hang ] say ready hang").spawn();
        running.expect("ready");
        signal_pid_1(&running, signal);
        running.wait().exited(status);
    }
}

fn as_pid_1_a_real_time_signal_is_passed_on(backend: Backend) {
    needs::require!("pidns");
    for number in [34, 50, 64] {
        let mut running = as_pid_1(backend, "-k 60").fixture("say ready hang").spawn();
        running.expect("ready");
        let (pid, _pidfd) = kin::last_child(running.pid()).expect("unshare waits for its child");
        let forking = common::sys::forking();
        let sent = std::process::Command::new("kill").args([format!("-{number}"), pid.to_string()]).status();
        drop(forking);
        assert!(sent.is_ok_and(|status| status.success()));
        running.wait().exited(128 + number);
    }
}
