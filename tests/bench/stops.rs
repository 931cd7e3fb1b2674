//! Ends: of a command, of thousands of processes, of a grace.

use std::fs;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use nix::libc::{SIGKILL, SIGTERM};

use crate::machine::{Machine, command, find, line, span, spawn};
use crate::storms::children;
use crate::sys::{self, Board};
use crate::table::{Row, Value, median, paired};

/// A second request counts as one after 200 ms.
const SECOND: Duration = Duration::from_millis(230);

pub(crate) fn exit(machine: &Machine, rows: &mut Vec<Row>) {
    const WHAT: &str = "command's exit to wrapper's exit";
    let measure = || -> Result<Row, String> {
        let board = Board::new();
        let stamp = machine.subject(&["stamp", &board.word()]);
        let lines = [
            line(&find("timeout")?, &["60"], &stamp),
            line(&machine.ours_on("cgroup")?, &["-b", "cgroup", "-t", "60"], &stamp),
        ];
        let mut times = [vec![], vec![]];
        for round in 0..machine.rounds(250) {
            for turn in 0..2 {
                let which = (turn + round) % 2;
                board.clear();
                let status = spawn(&lines[which])?.wait().expect("it is our child");
                let end = sys::now();
                if !status.success() || board.get(0) == 0 {
                    return Err(format!("{} ended with {status}", lines[which][0]));
                }
                times[which].push(span(board.get(0), end));
            }
        }
        Ok(paired(WHAT, &times[1], "timeout", &times[0]).gate(1.30, 1.00))
    };
    rows.push(measure().unwrap_or_else(|why| Row::not_measured(WHAT, why)));
}

pub(crate) fn stop(machine: &Machine, rows: &mut Vec<Row>) {
    for (count, rounds) in [(1000, 11), (5000, 7)] {
        let what = format!("stop of {count} processes: SIGKILL to exit, cgroup");
        let below = format!("stop of {count} processes: SIGKILL to exit, subreaper");
        let mut times = [vec![], vec![], vec![], vec![]];
        let mut measure = || -> Result<(), String> {
            for _ in 0..machine.rounds(rounds) {
                times[0].push(kill_raw(machine, count, UNSEEN)?);
                times[1].push(kill(machine, "cgroup", count)?);
                times[2].push(kill_raw(machine, count, SEEN)?);
                if count == 1000 {
                    times[3].push(kill(machine, "subreaper", count)?);
                }
            }
            Ok(())
        };
        if let Err(why) = measure() {
            rows.push(Row::not_measured(what, why));
            continue;
        }
        rows.push(paired(what, &times[1], "cgroup.kill", &times[0]).gate(1.20, 1.10));
        // The kernel keeps what was looked up in /proc until the process is reaped, which takes several times as long then.
        rows.push(paired("  of such whom somebody has looked at", &times[1], "cgroup.kill", &times[2]));
        if count == 1000 {
            rows.push(paired(below, &times[3], "cgroup", &times[1]).gate(2.5, 2.0));
        }
    }
}

/// Ends a tree of this size, which ignores SIGTERM, by a second request: from there to the wrapper's exit.
fn kill(machine: &Machine, backend: &str, count: usize) -> Result<f64, String> {
    let board = Board::new();
    let grove = machine.subject(&["grove", &board.word(), &count.to_string()]);
    let mut child = spawn(&line(&machine.ours_on(backend)?, &["-b", backend, "-k", "0"], &grove))?;
    let is_up = board.wait(0, u64::try_from(count).expect("small"));
    sys::signal(child.id(), SIGTERM);
    // Listing and signalling all is no part of this.
    std::thread::sleep(SECOND + Duration::from_micros(100) * u32::try_from(count).expect("small"));
    let start = sys::now();
    sys::signal(child.id(), SIGTERM);
    let status = child.wait().expect("it is our child");
    let took = span(start, sys::now());
    is_up?;
    if status.code() == Some(137) { Ok(took) } else { Err(format!("the wrapper ended with {status}")) }
}

/// Whether /proc is read of those whom `kill_raw` ends, as ps(1) does, and we for the first signal.
const SEEN: &str = "seen";
const UNSEEN: &str = "unseen";

/// The kernel's own speed: cgroup.kill of as many processes of the same kind, until all are reaped and the cgroup says
/// that it is not populated. A process of its own does it, as their subreaper.
fn kill_raw(machine: &Machine, count: usize, before: &str) -> Result<f64, String> {
    let board = Board::new();
    let cgroup = own_cgroup().ok_or("there is no cgroup v2")?.join(format!("tk-bench-{}-raw", std::process::id()));
    fs::create_dir(&cgroup).map_err(|error| format!("cannot make a cgroup: {error}"))?;
    let words = ["raw-kill", &board.word(), &*cgroup.to_string_lossy(), &count.to_string(), before].map(str::to_owned);
    let status = command(&line(&machine.bench, &[], &words)).status();
    fs::remove_dir(&cgroup).map_err(|error| format!("cannot remove a cgroup: {error}"))?;
    match (board.get(1), board.get(2)) {
        (start, end) if start > 0 && end > start => Ok(span(start, end)),
        _ => Err(format!("cgroup.kill did not end a tree: {status:?}")),
    }
}

/// The process that does it.
pub(crate) fn raw_kill(board: &str, cgroup: &str, count: &str, before: &str) -> Result<(), Box<dyn std::error::Error>> {
    let (slots, cgroup) = (sys::board(board), Path::new(cgroup));
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let bench = std::env::current_exe()?.to_string_lossy().into_owned();
    let mut grove = command(&line(&bench, &["as", "grove", board], &[count]));
    born_in(&mut grove, cgroup)?;
    let mut grove = grove.spawn()?;
    let is_up = sys::wait_for(&slots[0], count.parse()?);
    if before == SEEN {
        for pid in fs::read_to_string(cgroup.join("cgroup.procs"))?.lines() {
            fs::read(format!("/proc/{pid}/stat"))?;
            fs::read(format!("/proc/{pid}/task/{pid}/children"))?;
        }
    }
    slots[1].store(sys::now(), SeqCst);
    fs::write(cgroup.join("cgroup.kill"), "1")?;
    let _ = grove.wait();
    while rustix::process::wait(rustix::process::WaitOptions::empty()).is_ok() {}
    while fs::read_to_string(cgroup.join("cgroup.events")).is_ok_and(|text| !text.contains("populated 0")) {
        std::thread::yield_now();
    }
    slots[2].store(sys::now(), SeqCst);
    Ok(is_up?)
}

/// Our own cgroup of version 2, wherever that is mounted.
pub(crate) fn own_cgroup() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "))?.split(' ').nth(4)?;
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(PathBuf::from(mount).join(own))
}

pub(crate) fn grace(machine: &Machine, rows: &mut Vec<Row>) {
    const WHAT: &str = "one process: end of grace to exit";
    let measure = || -> Result<Row, String> {
        let board = Board::new();
        let listener = machine.subject(&["listeners", &board.word(), "1", "1"]);
        let ours = machine.ours_on("cgroup")?;
        let line = line(&ours, &["-b", "cgroup", "-k", "100ms"], &listener);
        let mut times = vec![];
        for _ in 0..machine.rounds(25) {
            board.clear();
            let mut child = spawn(&line)?;
            let is_up = board.wait(0, 1);
            sys::signal(child.id(), SIGTERM);
            let status = child.wait().expect("it is our child");
            let end = sys::now();
            is_up?;
            if status.code() != Some(137) || board.get(1) == 0 {
                return Err(format!("the wrapper ended with {status}"));
            }
            times.push(span(board.get(1) + 100_000_000, end));
        }
        Ok(Row::value(WHAT, Value::Time(median(&times))).gate(2e6, 0.5e6))
    };
    rows.push(measure().unwrap_or_else(|why| Row::not_measured(WHAT, why)));
}

/// The command gets its signal first, and right after the tree was listed: from there to the last of the tree, as far as
/// those who listen can tell, who are spread over it.
pub(crate) fn first_signal(machine: &Machine, rows: &mut Vec<Row>) {
    const COUNT: usize = 1000;
    const EVERY: usize = 40;
    const WHAT: &str = "first signal: to all of 1000 processes";
    const LISTING: &str = "  before it: request to the first, with tree_at_stop";
    const BARE: &str = "  the same by kill(2) alone";
    let mut times = [vec![], vec![], vec![]];
    let mut measure = || -> Result<(), String> {
        let board = Board::new();
        let listeners = machine.subject(&["listeners", &board.word(), &COUNT.to_string(), &EVERY.to_string()]);
        let ours = machine.ours_on("cgroup")?;
        let line = line(&ours, &["-b", "cgroup", "-k", "300ms"], &listeners);
        for _ in 0..machine.rounds(9) {
            board.clear();
            let mut child = spawn(&line)?;
            let is_up = board.wait(0, 1000);
            std::thread::sleep(Duration::from_millis(50));
            let start = sys::now();
            sys::signal(child.id(), SIGTERM);
            let status = child.wait().expect("it is our child");
            is_up?;
            let stamps: Vec<u64> = listening(COUNT, EVERY).map(|slot| board.get(slot)).collect();
            let last = *stamps.iter().max().expect("some");
            if stamps.contains(&0) {
                return Err(format!("not all of the tree got the signal; the wrapper ended with {status}"));
            }
            times[0].push(span(stamps[0], last));
            times[1].push(span(start, stamps[0]));
            times[2].push(signal_bare(&listeners, &board, COUNT, EVERY)?);
        }
        Ok(())
    };
    match measure() {
        Ok(()) => {
            rows.push(Row::value(WHAT, Value::Time(median(&times[0]))).gate(20e6, 6e6));
            rows.push(Row::value(BARE, Value::Time(median(&times[2]))));
            rows.push(Row::value(LISTING, Value::Time(median(&times[1]))));
        }
        Err(why) => rows.push(Row::not_measured(WHAT, why)),
    }
}

/// The slots of those who listen.
fn listening(count: usize, every: usize) -> impl Iterator<Item = usize> {
    (1..=count).filter(move |slot| *slot == 1 || *slot == count || slot % every == 0)
}

/// What no sender can be faster than: kill(2) for each.
fn signal_bare(listeners: &[String], board: &Board, count: usize, every: usize) -> Result<f64, String> {
    board.clear();
    let mut child = spawn(listeners)?;
    let is_up = board.wait(0, u64::try_from(count).expect("small"));
    std::thread::sleep(Duration::from_millis(50));
    // Nobody reaps them as long as their parent, which only waits, lives.
    let pids = children(child.id());
    let start = sys::now();
    for pid in std::iter::once(&child.id()).chain(&pids) {
        sys::signal(*pid, SIGTERM);
    }
    let all = listening(count, every).try_for_each(|slot| board.wait(slot, 1));
    for pid in &pids {
        sys::signal(*pid, SIGKILL);
    }
    let _ = child.kill();
    let _ = child.wait();
    is_up.and(all)?;
    let last = listening(count, every).map(|slot| board.get(slot)).max().expect("some");
    Ok(span(start, last))
}

/// Opens the list of members that a command is to be born into.
pub(crate) fn born_in(command: &mut std::process::Command, cgroup: &Path) -> Result<(), String> {
    let procs = fs::File::options().write(true).open(cgroup.join("cgroup.procs"));
    sys::born_in(command, procs.map_err(|error| error.to_string())?.as_fd());
    Ok(())
}
