//! Asking systemd for the scope: no bus, one that does not answer, and ends of every kind while it is waited for.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, pidfd_send_signal, prlimit};

use super::{LONG, is_session, run};
use crate::common::needs::{is_root, require, skip};
use crate::common::running::{is_dead, open_process};
use crate::common::systemd::{bus, property, systemctl};
use crate::common::{BOUND, Run, Running, Scratch, kin, sys, unique, wrapper};

/// A folder where a bus should be.
fn with_buses_in(folder: &Scratch, options: &str) -> Run {
    let run = run(options);
    if !is_root() {
        return run.env("XDG_RUNTIME_DIR", folder.path());
    }
    let script = format!("mount --bind {} /run/dbus && exec \"$@\"", folder.path().display());
    run.prefixed(["unshare", "--mount", "sh", "-c", &script, "sh"])
}

#[test]
fn without_a_bus_it_is_195_with_the_reason_and_what_would_help() {
    require!("systemd");
    let folder = Scratch::new();
    let ended = with_buses_in(&folder, "").fixture("say started").finish();
    ended.exited(195).said("started", 0).complained_of("No such file or directory").took_less_than(LONG);
    if !is_root() {
        ended.complained_of("loginctl enable-linger");
    }
    assert_eq!(ended.stderr.lines().count(), 1, "{ended}");
}

#[test]
fn on_a_dead_bus_it_is_195() {
    require!("systemd");
    let folder = Scratch::new();
    drop(UnixListener::bind(folder.join(bus().1)).expect("the folder is ours"));
    let ended = with_buses_in(&folder, "").fixture("say started").finish();
    ended.exited(195).said("started", 0).complained_of("Connection refused").took_less_than(LONG);
}

#[test]
fn a_bus_that_never_answers_is_given_up_after_a_while() {
    require!("systemd");
    let folder = Scratch::new();
    let _bus = UnixListener::bind(folder.join(bus().1)).expect("the folder is ours");
    let ended = with_buses_in(&folder, "").fixture("say started").finish();
    ended.exited(195).said("started", 0).complained_of("does not answer").took_less_than(LONG);
    assert_eq!(ended.stderr.lines().count(), 1, "{ended}");
}

#[test]
fn after_a_bus_that_never_answers_the_next_of_the_list_is_taken() {
    require!("systemd");
    let folder = Scratch::new();
    let _bus = UnixListener::bind(folder.join(bus().1)).expect("the folder is ours");
    let next = with_buses_in(&folder, "--backend systemd,subreaper").report().fixture("daemon [ hang ] exit 0");
    let ended = next.finish();
    let report = ended.exited(193).report();
    assert_eq!(report["backend"]["name"], "subreaper", "{report:#}");
    assert_eq!(report["backend"]["refused"][0]["name"], "systemd", "{report:#}");
}

#[test]
fn sigkill_of_the_front_while_it_waits_for_systemd_leaves_nothing() {
    require!("systemd");
    let folder = Scratch::new();
    let bus = UnixListener::bind(folder.join(bus().1)).expect("the folder is ours");
    let mut running = with_buses_in(&folder, "").fixture("say started").spawn();
    let mut connection = bus.accept().expect("it connects").0;
    // Not before the child is there that speaks to the bus.
    let _ = std::io::Read::read(&mut connection, &mut [0; 1]);
    running.signal(Signal::KILL);
    running.wait_for_death();
    running.all_die();
}

/// A scope that was made around a process which died too early would stay, empty, for ever.
#[test]
fn sigkill_of_the_front_at_any_moment_of_the_start_leaves_no_unit() {
    require!("systemd");
    let word = unique();
    for round in 0..60 {
        // Several at once: one in a hundred was left.
        let mut runs = [(); 4].map(|()| run("-k 60").fixture(&format!("say {word} hang")).spawn());
        // They do not end by themselves.
        assert!(!is_dead(runs[0].pidfd(), Duration::from_millis(round % 10)));
        for running in &mut runs {
            running.signal(Signal::KILL);
            running.wait_for_death();
            running.all_die();
        }
    }
    let deadline = Instant::now() + BOUND;
    let known = || systemctl(&["list-units", "--all", "--plain", "--no-legend", "treekill-run-*"]);
    while known().contains(&word) {
        assert!(Instant::now() < deadline, "{}", known());
    }
}

/// Nothing has been asked for then.
#[test]
fn a_request_to_end_is_heard_while_systemd_does_not_answer() {
    require!("systemd");
    for (options, signal) in [
        ("", Signal::TERM),
        ("", Signal::INT),
        ("--backend systemd,subreaper", Signal::HUP),
        ("--backend auto", Signal::QUIT),
        ("--gnu", Signal::USR1),
    ] {
        let folder = Scratch::new();
        let bus = UnixListener::bind(folder.join(bus().1)).expect("the folder is ours");
        let run = match options {
            // Where a leaf can be made nobody asks systemd.
            "--backend auto" if !is_session() => continue,
            "--gnu" if is_root() => continue,
            "--backend auto" => with_buses_in(&folder, "").options(options),
            // It must be the first.
            "--gnu" => {
                let program = wrapper();
                let words = [&*program.to_string_lossy(), "--gnu", "--backend", "systemd", "60"];
                Run::control(words).env("XDG_RUNTIME_DIR", folder.path())
            }
            _ => with_buses_in(&folder, options),
        };
        let mut running = run.fixture("say started").spawn();
        let connection = bus.accept().expect("it connects");
        // What is no request stays for the command that may come.
        running.signal(Signal::WINCH);
        running.signal(signal);
        let ended = running.wait();
        ended.died_of(signal).said("started", 0).took_less_than(Duration::from_secs(4));
        assert_eq!(ended.stderr, "", "{ended}");
        drop(connection);
    }
}

#[test]
fn a_request_to_end_that_the_caller_ignores_is_not_heard() {
    require!("systemd");
    let folder = Scratch::new();
    let bus = UnixListener::bind(folder.join(bus().1)).expect("the folder is ours");
    let run = with_buses_in(&folder, "").setup(|| sys::ignore(nix::libc::SIGHUP));
    let mut running = run.fixture("say started").spawn();
    let connection = bus.accept().expect("it connects");
    running.signal(Signal::HUP);
    drop((connection, bus));
    running.wait().exited(195).said("started", 0);
}

/// The bus of the manager, stopped: whoever has connected waits.
struct StoppedBus(OwnedFd);

impl StoppedBus {
    fn new() -> StoppedBus {
        // It is started when it is first needed.
        run("").fixture("exit 0").finish().exited(0);
        let pid = property("dbus.service", "MainPID").parse().expect("a number");
        let pidfd = open_process(pid).expect("it is alive");
        pidfd_send_signal(&pidfd, Signal::STOP).expect("it is ours");
        StoppedBus(pidfd)
    }
}

impl Drop for StoppedBus {
    fn drop(&mut self) {
        let _ = pidfd_send_signal(&self.0, Signal::CONT);
    }
}

/// The child that is to be the keeper, once it waits: in its group it has nothing else to do.
fn waiting_keeper(running: &Running) -> u32 {
    let deadline = Instant::now() + BOUND;
    let waits = |pid: u32| {
        kin::group_and_session(pid).is_some_and(|(group, _)| group == pid)
            && kin::state_and_parent(pid).is_some_and(|(state, _)| state == "S")
    };
    loop {
        if let Some(&pid) = kin::children(running.pid()).first().filter(|&&pid| waits(pid)) {
            return pid;
        }
        assert!(Instant::now() < deadline, "no keeper waits");
    }
}

#[test]
fn a_signal_to_a_keeper_that_waits_for_its_scope_is_not_lost() {
    require!("systemd");
    let bus = StoppedBus::new();
    let mut running = run("-k 60").fixture("hang").spawn();
    let keeper = open_process(waiting_keeper(&running)).expect("it waits");
    pidfd_send_signal(keeper, Signal::TERM).expect("it waits");
    drop(bus);
    running.wait().died_of(Signal::TERM).took_less_than(LONG);
}

#[test]
fn a_keeper_that_cannot_open_its_scope_says_so_and_nothing_else() {
    require!("systemd");
    let bus = StoppedBus::new();
    let mut running = run("").fixture("say started").spawn();
    let keeper = Pid::from_raw(waiting_keeper(&running).cast_signed());
    let none = Rlimit { current: Some(3), maximum: Some(3) };
    prlimit(keeper, Resource::Nofile, none).expect("it is ours");
    drop(bus);
    let ended = running.wait();
    ended
        .exited(125)
        .said("started", 0)
        .complained_of("cannot start the command: ")
        .complained_of("Too many open files");
    assert_eq!(ended.stderr.lines().count(), 1, "{ended}");
}

/// Nothing was started, and no backend was refused.
#[test]
fn sigkill_of_the_keeper_while_it_waits_for_systemd_is_125() {
    require!("systemd");
    let folder = Scratch::new();
    let bus = UnixListener::bind(folder.join(bus().1)).expect("the folder is ours");
    let mut running = with_buses_in(&folder, "--backend systemd,subreaper").fixture("say started").spawn();
    let mut connection = bus.accept().expect("it connects").0;
    // Not before the younger child is there, that speaks to the bus.
    let _ = std::io::Read::read(&mut connection, &mut [0; 1]);
    let keeper = open_process(kin::children(running.pid())[0]).expect("it waits");
    pidfd_send_signal(&keeper, Signal::KILL).expect("it waits");
    assert!(is_dead(&keeper, BOUND));
    drop((connection, bus));
    running.wait().exited(125).said("started", 0).complained_of("killed");
}

/// The C library takes this answer of a filter for an end of all threads, and D-Bus needs some.
#[test]
fn where_no_thread_can_be_started_it_is_195() {
    require!("systemd", "seccomp");
    let refuse = || sys::refuse_clone3(nix::libc::EPERM);
    let ended = run("").setup(refuse).fixture("say started").finish();
    ended.exited(195).said("started", 0).complained_of("Operation not permitted");
    assert_eq!(ended.stderr.lines().count(), 1, "{ended}");
    run("--backend systemd,subreaper").setup(refuse).fixture("daemon [ hang ] exit 0").finish().exited(193);
}

/// To a systemd outside, the number of our process is that of a stranger, who would be moved.
#[test]
fn in_another_pid_namespace_than_systemds_it_is_195() {
    require!("systemd", "unshare");
    let mut words = vec!["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    if !is_root() {
        words.push("--map-current-user");
    }
    let is_possible = {
        // Between its fork and its exec it holds the tethers of other tests' runs.
        let _alone = sys::forking();
        Command::new(words[0]).args(&words[1..]).arg("true").status().is_ok_and(|status| status.success())
    };
    if !is_possible {
        skip("pidns", "no PID namespace can be had");
        return;
    }
    let ended = run("").prefixed(words).fixture("say started").finish();
    ended.exited(195).said("started", 0).complained_of("PID namespace");
}
