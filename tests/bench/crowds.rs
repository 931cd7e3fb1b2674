//! Many wrappers at once, and many strangers.

use std::process::{Child, Stdio};
use std::time::Duration;

use crate::machine::{Machine, TRUE, command, line, span, timeout, works};
use crate::sys::{self, Board};
use crate::table::{Row, median, paired};

const WRAPPERS: usize = 200;
const FAMILY: &str = "20";

/// Every tree is there before the first ends; then all end together.
pub(crate) fn burst(machine: &Machine, rows: &mut Vec<Row>) {
    const WHAT: &str = "200 wrappers at once, each a tree of 20";
    let measure = || -> Result<Row, String> {
        let board = Board::new();
        let family = machine.subject(&["family", &board.word(), FAMILY]);
        let ours = machine.ours_on("cgroup")?;
        let lines = [timeout(&family)?, line(&ours, &["-b", "cgroup", "-t", "60"], &family)];
        let mut times = [vec![], vec![]];
        for round in 0..machine.rounds(9) {
            for turn in 0..2 {
                let which = (turn + round) % 2;
                board.clear();
                times[which].push(at_once(&lines[which], &board)?);
            }
        }
        Ok(paired(WHAT, &times[1], "timeout", &times[0]).gate(1.3, 1.0))
    };
    rows.push(measure().unwrap_or_else(|why| Row::not_measured(WHAT, why)));
}

fn at_once(line: &[String], board: &Board) -> Result<f64, String> {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|error| error.to_string())?;
    let start = sys::now();
    let mut children = vec![];
    for _ in 0..WRAPPERS {
        let stdin = read.try_clone().map_err(|error| error.to_string())?;
        children.push(command(line).stdin(stdin).spawn().map_err(|error| error.to_string())?);
    }
    let is_up = board.wait(0, u64::try_from(WRAPPERS).expect("small"));
    drop(write);
    let ends: Vec<_> = children.iter_mut().map(|child| child.wait().expect("it is our child")).collect();
    let took = span(start, sys::now());
    is_up?;
    match ends.iter().find(|status| !status.success()) {
        None => Ok(took),
        Some(status) => Err(format!("a wrapper ended with {status}")),
    }
}

/// Processes that have nothing to do with us, and end with this.
pub(crate) struct Crowd(Child);

impl Crowd {
    /// `crowd` does nothing, `busy` takes the CPUs.
    pub(crate) fn gather(machine: &Machine, kind: &str, count: usize) -> Result<Crowd, String> {
        let board = Board::new();
        let line = machine.subject(&[kind, &board.word(), &count.to_string()]);
        let child = command(&line).stdin(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
        let crowd = Crowd(child);
        board.wait(0, u64::try_from(count).expect("small"))?;
        Ok(crowd)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

pub(crate) fn strangers(machine: &Machine, rows: &mut Vec<Row>) {
    const COUNT: usize = 5000;
    let ours = |options: &[&str], command: &[&str]| -> Result<Vec<String>, String> {
        Ok(line(machine.ours.as_ref().map_err(String::clone)?, options, command))
    };
    // A tree of two that is stopped: what looks through all of /proc for it pays here.
    let tree = ["/bin/sh", "-c", "sleep 60 & exec sleep 60"];
    let cases = [
        ("`true` with 5000 strangers, cgroup", ours(&["-b", "cgroup", "-t", "60"], &[TRUE])),
        ("`true` with 5000 strangers, subreaper", ours(&["-b", "subreaper", "-t", "60"], &[TRUE])),
        ("a stop with 5000 strangers, cgroup", ours(&["-b", "cgroup", "-t", "1ms"], &tree)),
        ("a stop with 5000 strangers, subreaper", ours(&["-b", "subreaper", "-t", "1ms"], &tree)),
    ];
    let mut times: Vec<[Vec<f64>; 2]> = cases.iter().map(|_| [vec![], vec![]]).collect();
    let mut measure = || -> Result<(), String> {
        for (_, line) in &cases[..1] {
            works(line.as_ref().map_err(String::clone)?)?;
        }
        for _ in 0..machine.rounds(9) {
            // Each round without and with them, and the machine at rest in between.
            for with in [0, 1] {
                let _crowd = if with == 1 { Some(Crowd::gather(machine, "crowd", COUNT)?) } else { None };
                std::thread::sleep(Duration::from_millis(200));
                for ((_, line), times) in cases.iter().zip(&mut times) {
                    let line = line.as_ref().map_err(String::clone)?;
                    let several: Result<Vec<f64>, String> = (0..20).map(|_| time_any(line)).collect();
                    times[with].push(median(&several?));
                }
            }
        }
        Ok(())
    };
    match measure() {
        Ok(()) => {
            for ((what, _), [without, with]) in cases.iter().zip(&times) {
                rows.push(paired(*what, with, "without", without).gate(1.10, 1.00));
            }
        }
        Err(why) => rows.push(Row::not_measured(cases[0].0, why)),
    }
}

/// A run that ends well, or by its time limit.
fn time_any(line: &[String]) -> Result<f64, String> {
    let start = sys::now();
    let status = crate::machine::spawn(line)?.wait().expect("it is our child");
    let took = span(start, sys::now());
    if matches!(status.code(), Some(0 | 124)) { Ok(took) } else { Err(format!("{} ended with {status}", line[0])) }
}
