//! Tries each cell of the table on the real programs.
#![allow(dead_code, reason = "the programs have their trials in different test programs")]

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Signal, pidfd_send_signal};

use crate::common::needs::{self, is_root};
use crate::common::running::{is_dead, open_process, state_of};
use crate::common::{BOUND, Backend, MARK, Run, Running, TETHER, kin, systemd, unique, wrapper};
use crate::pty::{CTRL_Z, Shell};
use crate::table::{Case, Peer, ROWS, does};

/// The grace of those who have one, and of those whose grace is SIGKILL from outside.
const GRACE: Duration = Duration::from_secs(1);

/// What has not happened by then does not happen, as far as the table is concerned.
const NEVER: Duration = Duration::from_millis(300);

type Found = Vec<(Case, bool)>;
type Trial = fn(Peer) -> Found;

/// Trials where the program has what it needs.
const TRIALS: [Trial; 9] =
    [limited, stopped, succeeded, killed, status, inherits, stopped_by_the_terminal, numbers, network];

/// Trials in a container, with one that can do nothing where it can be had.
fn contained() -> Vec<Trial> {
    if Run::control(BARE).command(["true"]).finish().status.success() {
        return vec![bare, as_pid_1];
    }
    needs::skip("userns", "no user namespace can be had that forbids others");
    vec![as_pid_1]
}

/// Fails unless the program does what the table says.
pub(crate) fn all(peer: Peer) {
    let contained = contained();
    agrees(peer, &[&TRIALS[..], &contained].concat(), 14 + contained.len());
}

/// The same where its manager runs, and where none does.
pub(crate) fn beside_systemd(peer: Peer) {
    agrees(peer, &TRIALS, 14);
}

pub(crate) fn without_systemd(peer: Peer) {
    let contained = contained();
    agrees(peer, &contained, contained.len());
}

fn agrees(peer: Peer, trials: &[Trial], cells: usize) {
    // They mostly wait, each for its own.
    let found: Found = thread::scope(|scope| {
        let running: Vec<_> = trials.iter().map(|trial| scope.spawn(move || trial(peer))).collect();
        running.into_iter().flat_map(|trial| trial.join().expect("a trial comes to an end")).collect()
    });
    for row in ROWS.iter() {
        let Some((_, is)) = found.iter().find(|(case, _)| *case == row.case) else { continue };
        eprintln!("{}: {}: {is}", peer.name(), row.wish);
    }
    let wrong: Vec<_> = found.iter().filter(|(case, is)| does(peer, *case) != *is).collect();
    assert!(wrong.is_empty(), "{}: the table says otherwise: {wrong:?}", peer.name());
    assert_eq!(found.len(), cells, "cells that were tried: {found:?}");
}

/// A run under one of them.
struct Wrapped {
    running: Running,
    unit: Option<String>,
    /// All that were waited for, to be ended in any case: those of a service are nobody else's to end.
    processes: Vec<OwnedFd>,
}

impl Wrapped {
    /// A tree of the fixture's.
    fn start(peer: Peer, steps: &str) -> Wrapped {
        let (words, unit) = tied(peer, "60");
        let running = Run::control(words).with(Backend::Pidns).gated().fixture(steps).spawn();
        Wrapped { running, unit, processes: Vec::new() }
    }

    /// Waits until the processes of these words are there.
    fn expect(&mut self, words: &[&str]) {
        for word in words {
            let process = self.running.expect_process(word);
            self.processes.push(process);
        }
    }

    /// Stops it at its own limit, or as `timeout -k` in front of it would.
    fn stop(&mut self, peer: Peer) {
        match (peer, &self.unit) {
            (_, Some(unit)) => drop(systemd::systemctl(&["stop", unit])),
            (Peer::Ours | Peer::Timeout, None) => self.running.signal(Signal::TERM),
            _ => {
                self.running.signal(Signal::TERM);
                if !is_dead(self.running.pidfd(), GRACE) {
                    self.running.signal(Signal::KILL);
                }
            }
        }
    }

    /// Whether this process is dead now, or soon after; a few of them die when the wrapper has returned.
    fn is_over(&self, index: usize, peer: Peer, case: Case) -> bool {
        is_dead(&self.processes[index], if does(peer, case) { BOUND } else { NEVER })
    }
}

impl Drop for Wrapped {
    fn drop(&mut self) {
        for process in &self.processes {
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
        if let Some(unit) = &self.unit {
            systemd::systemctl(&["stop", unit]);
        }
    }
}

/// Its words, with this limit, and the unit that it makes.
fn prefix(peer: Peer, limit: &str) -> (Vec<OsString>, Option<String>) {
    let words = peer.words().replace("LIMIT", limit).replace("GRACE", &GRACE.as_secs_f64().to_string());
    let mut words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
    let mut unit = None;
    match peer {
        Peer::Ours => words[0] = wrapper().into_os_string(),
        Peer::Unshare if !is_root() => words.push("--map-current-user".into()),
        Peer::Scope | Peer::Service => {
            let kind = if peer == Peer::Scope { "scope" } else { "service" };
            let name = format!("tk-peer-{}.{kind}", unique());
            words.extend(["--quiet".into(), format!("--unit={name}").into()]);
            if !is_root() {
                words.push("--user".into());
            }
            unit = Some(name);
        }
        _ => {}
    }
    (words, unit)
}

/// The same for a tree that says its words. A service inherits nothing but its standard streams.
fn tied(peer: Peer, limit: &str) -> (Vec<OsString>, Option<String>) {
    let (mut words, unit) = prefix(peer, limit);
    if peer == Peer::Service {
        let outside = ["sh", "-c", "exec \"$@\" >&9", "sh"].map(OsString::from);
        words.splice(0..0, outside);
        words.extend(["sh", "-c", "exec 9>&1; exec \"$@\"", "sh"].map(OsString::from));
    }
    (words, unit)
}

/// What its command's status becomes.
fn ends(peer: Peer, before: &[&str], command: &[&str]) -> crate::common::Ended {
    let words = before.iter().map(OsString::from).chain(prefix(peer, "60").0);
    Run::control(words).command(command).finish()
}

fn limited(peer: Peer) -> Found {
    if !peer.words().contains("LIMIT") {
        return vec![(Case::Limit, false)];
    }
    // On a busy machine a command may not even have started at the first of them.
    let is_held = [1, 4, 16].into_iter().any(|limit| {
        let (words, _) = tied(peer, &limit.to_string());
        let start = Instant::now();
        let steps = "on TERM [ say asked ] say command hang";
        let ended = Run::control(words).with(Backend::Pidns).fixture(steps).finish();
        let is_graceful = ended.count("asked") == 1 && start.elapsed() >= Duration::from_secs(limit) + GRACE;
        is_graceful && !ended.status.success()
    });
    vec![(Case::Limit, is_held)]
}

const TREE: &str = "fork [ ignore TERM say group hang ] fork [ setsid say session hang ] daemon [ say daemon hang ] \
    fork [ say child hang ] on TERM [ say asked exit 0 ] say command hang";
const ITS_PROCESSES: [&str; 5] = ["group", "session", "daemon", "child", "command"];

fn stopped(peer: Peer) -> Found {
    let mut wrapped = Wrapped::start(peer, TREE);
    wrapped.expect(&ITS_PROCESSES);
    wrapped.stop(peer);
    let ended = wrapped.running.wait();
    let mut found = vec![(Case::Asks, ended.count("asked") == 1)];
    for (index, case) in [Case::Group, Case::Session, Case::Daemon].into_iter().enumerate() {
        found.push((case, wrapped.is_over(index, peer, case)));
    }
    let is_careful = is_dead(&wrapped.processes[3], BOUND);
    assert!(is_careful, "{}: a plain child in the command's group goes on\n{ended}", peer.name());
    found
}

fn succeeded(peer: Peer) -> Found {
    let mut wrapped =
        Wrapped::start(peer, "fork [ say group hang ] daemon [ say daemon hang ] say command read exit 0");
    let daemon = wrapped.running.expect("daemon");
    wrapped.processes.extend(daemon.parse().ok().and_then(open_process));
    wrapped.expect(&["group", "command"]);
    wrapped.running.open_gate();
    let ended = wrapped.running.wait();
    vec![
        (Case::DaemonOfSuccess, wrapped.is_over(0, peer, Case::DaemonOfSuccess)),
        (Case::Background, wrapped.is_over(1, peer, Case::Background)),
        (Case::Names, ended.stderr.contains(&daemon)),
    ]
}

fn killed(peer: Peer) -> Found {
    let mut wrapped = Wrapped::start(peer, TREE);
    wrapped.expect(&ITS_PROCESSES);
    wrapped.running.signal(Signal::KILL);
    wrapped.running.wait();
    let is_all = (0..ITS_PROCESSES.len()).all(|index| wrapped.is_over(index, peer, Case::Killed));
    vec![(Case::Killed, is_all)]
}

/// As a shell shows it.
fn status(peer: Peer) -> Found {
    let failed = ends(peer, &[], &["sh", "-c", "exit 7"]);
    let died = ends(peer, &[], &["sh", "-c", "kill -TERM $$; exit 0"]).status;
    let request = Signal::TERM.as_raw();
    let is_alike = died.signal() == Some(request) || died.code() == Some(128 + request);
    assert_eq!(failed.status.code(), Some(7), "it does not even run a command\n{failed}");
    vec![(Case::Status, is_alike)]
}

fn inherits(peer: Peer) -> Found {
    let script = format!("[ -n \"${MARK}\" ] && [ -e /proc/self/fd/{TETHER} ]");
    vec![(Case::Inherits, ends(peer, &[], &["sh", "-c", &script]).status.success())]
}

fn stopped_by_the_terminal(peer: Peer) -> Found {
    // There the number of a process of a namespace is the one outside.
    let mut shell = Shell::new(Backend::Pidns);
    let (words, unit) = tied(peer, "60");
    let line: Vec<String> = words.iter().map(|word| format!("'{}'", word.to_string_lossy())).collect();
    shell.command(&format!("{} $FX say ready hang", line.join(" ")));
    let command = shell.expect("ready");
    shell.key(CTRL_Z);
    let bound = if does(peer, Case::Job) { BOUND } else { NEVER };
    let is_stopped = |shell: &Shell| shell.has_terminal() && state_of(&command) == Some('T');
    let found = vec![(Case::Job, shell.becomes(bound, is_stopped))];
    if let Some(unit) = unit {
        systemd::systemctl(&["kill", "--signal=KILL", &unit]);
    }
    found
}

fn numbers(peer: Peer) -> Found {
    let pid = std::process::id().to_string();
    vec![(Case::Numbers, ends(peer, &[], &["sh", "-c", "[ -e /proc/$0 ]", &pid]).status.success())]
}

fn network(peer: Peer) -> Found {
    let Some(option) = peer.network() else { return vec![(Case::Network, false)] };
    if peer == Peer::Service && !is_root() {
        // The manager of an ordinary user may not make one; the table is of root's.
        return vec![(Case::Network, true)];
    }
    let (mut words, _) = prefix(peer, "60");
    words.insert(1, option.into());
    let ended = Run::control(words).command(["readlink", "/proc/self/ns/net"]).finish();
    let inside = String::from_utf8_lossy(&ended.stdout).trim().to_owned();
    assert!(inside.starts_with("net:"), "{ended}");
    let outside = std::fs::read_link("/proc/self/ns/net").expect("there are namespaces");
    vec![(Case::Network, outside.as_os_str() != inside.as_str())]
}

/// Without capabilities, and where no namespace can be made.
const BARE: [&str; 7] = [
    "unshare",
    "--user",
    "--map-root-user",
    "sh",
    "-c",
    "echo 0 >/proc/sys/user/max_user_namespaces && exec setpriv --bounding-set=-all --inh-caps=-all -- \"$@\"",
    "sh",
];

fn bare(peer: Peer) -> Found {
    let mut words: Vec<OsString> = BARE.map(OsString::from).into();
    // Who is root in there is not so outside, and has its namespace already.
    words.extend(prefix(peer, "60").0.into_iter().filter(|word| word != "--map-current-user"));
    let ended = Run::control(words).command(["sh", "-c", "exit 7"]).finish();
    vec![(Case::Bare, ended.status.code() == Some(7))]
}

fn as_pid_1(peer: Peer) -> Found {
    let before = needs::as_pid_1().into_iter().map(OsString::from);
    let words: Vec<OsString> = before.chain(prefix(peer, "60").0).filter(|word| word != "--map-current-user").collect();
    if Run::control(&words).command(["sh", "-c", "exit 7"]).finish().status.code() != Some(7) {
        return vec![(Case::First, false)];
    }
    let steps = "daemon [ say orphan exit 0 ] on TERM [ say asked exit 0 ] say command hang";
    let mut running = Run::control(&words).with(Backend::Pidns).fixture(steps).spawn();
    let orphan = running.expect("orphan");
    running.expect("command");
    let bound = if does(peer, Case::First) { BOUND } else { NEVER };
    let deadline = Instant::now() + bound;
    let (_, first) = kin::last_child(running.pid()).expect("unshare waits for its child");
    // Nothing says when the dead are reaped.
    while state_of(&orphan).is_some() && Instant::now() < deadline {
        is_dead(&first, Duration::from_millis(5));
    }
    let is_reaped = state_of(&orphan).is_none();
    pidfd_send_signal(&first, Signal::TERM).expect("it waits for the command");
    let is_passed_on = is_dead(running.pidfd(), bound);
    if !is_passed_on {
        running.signal(Signal::KILL);
    }
    let asked = running.wait().count("asked") == 1;
    vec![(Case::First, is_reaped && is_passed_on && asked)]
}
