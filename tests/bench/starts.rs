//! What a run of `true` costs beside other wrappers.

use std::fs::File;
use std::io::Write as _;
use std::time::Duration;

use crate::crowds::Crowd;
use crate::machine::{Machine, TRUE, command, find, line, time, timeout, works};
use crate::sys;
use crate::table::{Row, Value, median, paired};

/// A command line, or why it can't be run here.
type Line = Result<Vec<String>, String>;

/// Times of command lines that were run in turn, by name; those that do not work here have why.
struct Times(Vec<(&'static str, Result<Vec<f64>, String>)>);

impl Times {
    /// Runs them in turn, each round from another one on, so that none is always behind the same.
    fn measure(lines: Vec<(&'static str, Line)>, rounds: usize, pause: Duration) -> Times {
        let mut times = vec![];
        let mut runs = vec![];
        for (name, line) in lines {
            match line.and_then(|line| works(&line).map(|()| line)) {
                Ok(line) => {
                    runs.push((times.len(), line));
                    times.push((name, Ok(vec![])));
                }
                Err(why) => times.push((name, Err(why))),
            }
        }
        for round in 0..rounds {
            for turn in 0..runs.len() {
                let (place, line) = &runs[(turn + round) % runs.len()];
                if !pause.is_zero() {
                    std::thread::sleep(pause);
                }
                let took = time(line);
                let entry = &mut times[*place].1;
                match (took, entry.as_mut()) {
                    (Ok(took), Ok(list)) => list.push(took),
                    (Err(why), _) => *entry = Err(why),
                    _ => {}
                }
            }
        }
        Times(times)
    }

    fn get(&self, name: &str) -> Result<&[f64], String> {
        let (_, times) = self.0.iter().find(|(known, _)| *known == name).expect("a name of ours");
        times.as_deref().map_err(String::clone)
    }

    /// Both must have been measured.
    fn row(&self, what: &str, ours: &str, theirs: &str) -> Row {
        match (self.get(ours), self.get(theirs)) {
            (Ok(ours), Ok(others)) => paired(what, ours, theirs, others),
            (Err(why), _) | (_, Err(why)) => Row::not_measured(what, why),
        }
    }
}

fn ours(build: &Result<String, String>, backend: &str) -> Line {
    Ok(line(build.as_ref().map_err(String::clone)?, &["-b", backend, "-t", "60"], &[TRUE]))
}

fn other(name: &str, options: &[&str]) -> Line {
    Ok(line(&find(name)?, options, &[TRUE]))
}

pub(crate) fn run_true(machine: &Machine, rows: &mut Vec<Row>) {
    let times = Times::measure(
        vec![
            ("bare", Ok(vec![TRUE.to_owned()])),
            ("timeout", timeout(&[TRUE])),
            ("tini -s", other("tini", &["-s", "--"])),
            ("dumb-init", other("dumb-init", &["--"])),
            ("unshare", other("unshare", &["--pid", "--fork", "--kill-child"])),
            ("bwrap", other("bwrap", &["--dev-bind", "/", "/", "--unshare-pid"])),
            ("musl", ours(&machine.musl, "cgroup")),
            ("glibc", ours(&machine.glibc, "cgroup")),
            ("dynamic", ours(&machine.dynamic, "cgroup")),
            ("subreaper", ours(&machine.ours, "subreaper")),
            ("pidns", ours(&machine.ours, "pidns")),
        ],
        machine.rounds(250),
        Duration::ZERO,
    );
    let shown = [
        ("`true`, bare", "bare"),
        ("`true`, GNU timeout", "timeout"),
        ("`true`, tini -s", "tini -s"),
        ("`true`, dumb-init", "dumb-init"),
        ("`true`, unshare --pid --fork --kill-child", "unshare"),
        ("`true`, bwrap --unshare-pid", "bwrap"),
        ("`true`, ours, subreaper", "subreaper"),
    ];
    for (what, name) in shown {
        rows.push(match times.get(name) {
            Ok(list) if name == "timeout" => Row::value(what, Value::Time(median(list))),
            Ok(_) => times.row(what, name, "timeout"),
            Err(why) => Row::not_measured(what, why),
        });
    }
    rows.push(times.row("`true`, ours, cgroup, musl", "musl", "timeout").gate(0.75, 0.60));
    rows.push(times.row("`true`, ours, cgroup, static glibc", "glibc", "timeout").gate(1.05, 0.90));
    rows.push(times.row("`true`, ours, cgroup, dynamic", "dynamic", "timeout").gate(1.25, 1.05));
    rows.push(times.row("`true`, ours, cgroup, musl / tini", "musl", "tini -s").gate(0.85, 0.66));
    rows.push(times.row("`true`, ours, cgroup, musl / bwrap", "musl", "bwrap").gate(0.55, 0.42));
    rows.push(times.row("`true`, ours, pidns / unshare", "pidns", "unshare").gate(0.95, 0.70));
}

/// A run that comes alone pays for what a tight loop hides: a first migration in a while, notices that come in batches.
pub(crate) fn run_true_spaced(machine: &Machine, rows: &mut Vec<Row>) {
    let lines = vec![("timeout", timeout(&[TRUE])), ("musl", ours(&machine.musl, "cgroup"))];
    let times = Times::measure(lines, machine.rounds(80), Duration::from_millis(50));
    rows.push(times.row("`true`, runs 50 ms apart, musl", "musl", "timeout").gate(0.85, 0.65));
}

/// Where others take the CPUs each wake-up may wait for them.
pub(crate) fn run_true_beside_others(machine: &Machine, rows: &mut Vec<Row>) {
    const WHAT: [&str; 2] = ["`true`, beside two busy loops a CPU, musl", "the same with --gnu"];
    let loops = 2 * std::thread::available_parallelism().map_or(1, usize::from);
    let gnu = machine.musl.clone().map(|musl| line(&musl, &["--gnu", "60"], &[TRUE]));
    let lines = vec![("timeout", timeout(&[TRUE])), ("own", ours(&machine.musl, "cgroup")), ("gnu", gnu)];
    match Crowd::gather(machine, "busy", loops) {
        Ok(_crowd) => {
            let times = Times::measure(lines, machine.rounds(150), Duration::ZERO);
            rows.extend(WHAT.iter().zip(["own", "gnu"]).map(|(what, name)| times.row(what, name, "timeout")));
        }
        Err(why) => rows.push(Row::not_measured(WHAT[0], why)),
    }
}

/// How many runs a block has, and how many blocks there are of each.
const BLOCK: usize = 200;
const BLOCKS: u32 = 10;

pub(crate) fn run_in_sequence(machine: &Machine, rows: &mut Vec<Row>) {
    let script = format!("i=0; while [ $i -lt {BLOCK} ]; do \"$@\" || exit; i=$((i + 1)); done");
    let block = |run: Line| run.map(|run| line("/bin/sh", &["-c", &script, "sh"], &run));
    let lines = vec![("timeout", block(timeout(&[TRUE]))), ("ours", block(ours(&machine.ours, "cgroup")))];
    let times = Times::measure(lines, machine.rounds(BLOCKS), Duration::ZERO);
    rows.push(times.row("2000 runs in sequence, in blocks of 200", "ours", "timeout").gate(0.85, 0.70));
}

pub(crate) fn run_in_parallel(machine: &Machine, rows: &mut Vec<Row>) {
    const WHAT: &str = "2000 runs with xargs -P8, in blocks of 200";
    let pair = || -> Result<Row, String> {
        let lines = [timeout(&[TRUE])?, ours(&machine.ours, "cgroup")?];
        for line in &lines {
            works(line)?;
        }
        let mut times = [vec![], vec![]];
        for round in 0..machine.rounds(BLOCKS) {
            for turn in 0..2 {
                let which = (turn + round) % 2;
                times[which].push(time_xargs(&lines[which])?);
            }
        }
        Ok(paired(WHAT, &times[1], "timeout", &times[0]).gate(0.85, 0.64))
    };
    rows.push(pair().unwrap_or_else(|why| Row::not_measured(WHAT, why)));
}

fn time_xargs(run: &[String]) -> Result<f64, String> {
    let (read, write) = rustix::pipe::pipe().map_err(|error| error.to_string())?;
    // It fits into the pipe.
    let mut write = File::from(write);
    write.write_all("x\n".repeat(BLOCK).as_bytes()).map_err(|error| error.to_string())?;
    drop(write);
    let line = line(&find("xargs")?, &["-P8", "-n1"], run);
    let start = sys::now();
    let status = command(&line).stdin(read).spawn().and_then(|mut child| child.wait());
    let took = crate::machine::span(start, sys::now());
    match status {
        Ok(status) if status.success() => Ok(took),
        other => Err(format!("xargs: {other:?}")),
    }
}
