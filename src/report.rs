//! What happened, as one JSON object; and where it is written. The front opens the target, the keeper writes it.

mod drawing;
mod process;
mod screen;
mod target;
mod usage;

use std::ffi::OsString;
use std::time::{Duration, SystemTime};

use serde::{Serialize, Serializer};

pub use drawing::{Canvas, draw, in_one_line};
pub use process::{ProcessReport, command_line};
pub use screen::canvas;
pub use target::Target;
pub use usage::Usage;

use crate::limits::Limits;
use crate::outcome::{Cause, End, Exit, Failure, Outcome};
use crate::signals::Sig;
use crate::tree::Picture;
use crate::voice::is_harmless;

/// The JSON Schema of the report.
pub const SCHEMA: &str = include_str!("report/schema.json");

/// The report, schema 1. Field names are the JSON's.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Version of this format.
    pub schema: u32,
    /// The command and its arguments; bytes that are no UTF-8 are replaced.
    #[serde(serialize_with = "lossy")]
    pub command: Vec<OsString>,
    /// What held the tree.
    pub backend: BackendReport,
    /// The command's pid; null if it was never born.
    pub pid: Option<i32>,
    /// When the command was started, RFC 3339.
    #[serde(serialize_with = "moment")]
    pub start: SystemTime,
    /// When the run was over, RFC 3339.
    #[serde(serialize_with = "moment")]
    pub end: SystemTime,
    /// From start to end on the monotonic clock, in milliseconds.
    pub duration_ms: u64,
    /// `exited`, `signaled`, `timed_out`, `idle`, `stopped`, `failed_to_start` or `internal`.
    pub outcome: &'static str,
    /// The status that treekill-run ends with, as a shell shows it.
    pub exit_status: u8,
    /// How the command itself ended; null if it never ran or could not be ended.
    pub command_status: Option<CommandStatus>,
    /// The limits of the options, and how often they were hit; null without any.
    pub limits: Option<LimitsReport>,
    /// The I/O of a process could not be read, so that `--idle-timeout` went by CPU time, births and ends.
    pub idle_without_io: bool,
    /// Each thing that was done to the tree.
    pub steps: Vec<Step>,
    /// How many later steps are not on that list, which is bounded.
    pub steps_left_out: u64,
    /// What the tree was doing when a stop began; null if none did.
    pub tree_at_stop: Option<TreeReport>,
    /// What the tree has used; null if it was never started.
    pub usage: Option<Usage>,
    /// Processes that outlived the command and their grace, and were ended.
    pub leftovers: Vec<ProcessReport>,
    /// Processes that were left running as the options say.
    pub kept: Vec<ProcessReport>,
    /// Processes that outlived SIGKILL and the drain limit.
    pub survivors: Vec<ProcessReport>,
    /// How it is known that nothing else is alive: `kernel` (no descendant is left and the boundary is empty) or `walk`
    /// (the boundary is empty, and nothing but what was kept was found below it).
    pub proof: Option<&'static str>,
    #[serde(skip)]
    was_released: bool,
}

/// How many steps a report holds: a signal a millisecond is passed on for as long as a run may last.
const MOST_STEPS: usize = 1000;

/// What held the tree, and what did not.
#[derive(Clone, Debug, Default, Serialize)]
pub struct BackendReport {
    /// `cgroup PATH`, `systemd scope UNIT`, `pidns`, `pidns with a user namespace` or `subreaper`.
    pub name: String,
    /// What of the guarantee is missing here; null if nothing is.
    pub degraded: Option<&'static str>,
    /// The backends that were preferred to it, each with the reason why it could not be had.
    pub refused: Vec<RefusedBackend>,
}

/// A backend that could not be had.
#[derive(Clone, Debug, Serialize)]
pub struct RefusedBackend {
    /// Its name.
    pub name: String,
    /// Why not.
    pub why: String,
}

/// What the tree was allowed, and how often it hit that.
#[derive(Debug, Serialize)]
pub struct LimitsReport {
    /// `--memory-max` in bytes.
    pub memory_max: Option<u64>,
    /// `--pids-max`.
    pub pids_max: Option<u64>,
    /// `--cpu-max` in percent of one CPU.
    pub cpu_max: Option<u32>,
    /// Processes that the kernel killed because the tree had no memory left.
    pub memory_kills: u64,
    /// Forks that failed because the tree had its processes.
    pub refused_forks: u64,
    /// How long the tree had to wait for CPU time, in milliseconds.
    pub throttled_ms: u64,
}

impl LimitsReport {
    fn new(limits: Limits) -> Option<LimitsReport> {
        let Limits { memory, pids, cpu } = limits;
        (!limits.is_none()).then_some(LimitsReport {
            memory_max: memory,
            pids_max: pids,
            cpu_max: cpu,
            memory_kills: 0,
            refused_forks: 0,
            throttled_ms: 0,
        })
    }
}

/// What the tree was doing, before the first signal.
#[derive(Debug, Serialize)]
pub struct TreeReport {
    /// Milliseconds since the command's birth.
    pub at_ms: u64,
    /// How long that held up the first signal, in microseconds.
    pub took_us: u64,
    /// The processes.
    #[serde(flatten)]
    pub picture: Picture,
}

impl TreeReport {
    /// A picture that was begun at this time of the run, and took so long.
    pub fn new(at: Duration, took: Duration, picture: Picture) -> TreeReport {
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        TreeReport { at_ms: milliseconds(at), took_us, picture }
    }
}

/// How the command itself ended.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CommandStatus {
    /// It exited with this status.
    Exited(u8),
    /// This signal killed it.
    Signaled(String),
}

/// Something that was done to the tree.
#[derive(Debug, Serialize)]
pub struct Step {
    /// Milliseconds since the command's birth.
    pub at_ms: u64,
    /// `signal`, `relay`, `kill`, `keep`, `release` or `stopped`.
    pub action: &'static str,
    /// The signal, without SIG.
    pub signal: Option<String>,
    /// How many processes it was sent to, or were moved.
    pub count: Option<usize>,
    /// How often in a row it was done.
    pub times: u64,
    /// When it was done last.
    pub last_ms: u64,
}

impl Report {
    /// The report of a run before it starts.
    pub fn new(limits: Limits) -> Report {
        Report {
            schema: 1,
            command: vec![],
            backend: BackendReport::default(),
            pid: None,
            start: SystemTime::UNIX_EPOCH,
            end: SystemTime::UNIX_EPOCH,
            duration_ms: 0,
            outcome: "internal",
            exit_status: 0,
            command_status: None,
            limits: LimitsReport::new(limits),
            idle_without_io: false,
            steps: vec![],
            steps_left_out: 0,
            tree_at_stop: None,
            usage: None,
            leftovers: vec![],
            kept: vec![],
            survivors: vec![],
            proof: None,
            was_released: false,
        }
    }

    /// This command starts now.
    pub fn begin(&mut self, command: Vec<OsString>) {
        self.command = command;
        self.start = SystemTime::now();
    }

    /// Notes a step; one that repeats the last is counted there.
    pub fn step(&mut self, at: Duration, action: &'static str, signal: Option<Sig>, count: Option<usize>) {
        let signal = signal.map(|sig| sig.to_string());
        let at_ms = milliseconds(at);
        self.was_released |= matches!(action, "release" | "keep");
        // What ends a run is on the list in any case.
        let is_full = self.steps.len() >= MOST_STEPS && !matches!(action, "kill" | "keep" | "release");
        let is_next = self.steps_left_out == 0;
        match self.steps.last_mut() {
            Some(last) if is_next && last.action == action && last.signal == signal && last.count == count => {
                last.times += 1;
                last.last_ms = at_ms;
            }
            _ if is_full => self.steps_left_out += 1,
            _ => self.steps.push(Step { at_ms, action, signal, count, times: 1, last_ms: at_ms }),
        }
    }

    /// Fills in how it ended, this long after the start.
    pub fn conclude(&mut self, outcome: &Outcome, exit: Exit, after: Duration) {
        self.end = SystemTime::now();
        self.duration_ms = milliseconds(after);
        self.outcome = outcome_word(outcome);
        self.exit_status = exit.status();
        self.command_status = match (outcome.failure, outcome.end) {
            (None, Some(End::Exited(code))) => Some(CommandStatus::Exited(code)),
            (None, Some(End::Signaled(sig))) => Some(CommandStatus::Signaled(sig.to_string())),
            _ => None,
        };
        self.proof = match (outcome.survived, self.was_released) {
            (true, _) => None,
            (false, false) => Some("kernel"),
            // Where ancestry can't be read nothing can be found by walking.
            (false, true) if self.backend.degraded.is_some() => None,
            (false, true) => Some("walk"),
        };
    }

    /// The JSON text.
    pub fn to_json(&self) -> String {
        to_json(self)
    }
}

/// One line of JSON. It may go to a terminal, and JSON itself asks for the escape of few control characters.
pub fn to_json(value: &impl Serialize) -> String {
    let json = serde_json::to_string(value).expect("no map with odd keys is in it");
    let mut line = String::with_capacity(json.len() + 1);
    for c in json.chars() {
        // All of them have four digits, and stand in a string: nothing else of JSON is like that.
        if is_harmless(c) { line.push(c) } else { line += &format!("\\u{:04x}", u32::from(c)) }
    }
    line + "\n"
}

fn outcome_word(outcome: &Outcome) -> &'static str {
    match (outcome.failure, outcome.cause, outcome.end) {
        (Some(Failure::Exec(_)), ..) => "failed_to_start",
        (Some(Failure::Internal), ..) => "internal",
        (_, Cause::TimedOut, _) => "timed_out",
        (_, Cause::Idle, _) => "idle",
        (_, Cause::Signal(_) | Cause::ParentDied | Cause::FrontDied, _) => "stopped",
        (_, Cause::Ended, Some(End::Signaled(_))) => "signaled",
        (_, Cause::Ended, _) => "exited",
    }
}

fn moment<S: Serializer>(moment: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&humantime::format_rfc3339_millis(*moment))
}

fn lossy<S: Serializer>(words: &[OsString], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(words.iter().map(|word| word.to_string_lossy()))
}

/// `64M`, `1.5K`: an amount of bytes, rounded.
pub fn amount(bytes: u64) -> String {
    let units = ["bytes", "K", "M", "G", "T", "P", "E"];
    let power = (bytes.max(1).ilog2() / 10) as usize;
    let tenths = (u128::from(bytes) * 10) >> (10 * power);
    match (power, tenths / 10, tenths % 10) {
        (0, ..) => format!("{bytes} bytes"),
        (_, whole @ 0..10, tenths @ 1..) => format!("{whole}.{tenths}{}", units[power]),
        (_, whole, _) => format!("{whole}{}", units[power]),
    }
}

/// `1.2s`, `12s`, `3m`: as exact as somebody wants to know it.
pub fn seconds(milliseconds: u64) -> String {
    let tenths = milliseconds / 100;
    match milliseconds / 1000 {
        0..10 => format!("{}.{}s", tenths / 10, tenths % 10),
        whole @ 10..120 => format!("{whole}s"),
        whole @ 120..7200 => format!("{}m", whole / 60),
        whole @ 7200..172_800 => format!("{}h", whole / 3600),
        whole => format!("{}d", whole / 86400),
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        Report::new(Limits { memory: None, pids: None, cpu: None })
    }

    #[test]
    fn steps_are_bounded_whatever_is_passed_on() {
        let mut report = report();
        for at in 0..5000 {
            report.step(Duration::from_millis(at), "relay", Some(Sig::TERM), Some(1));
        }
        assert_eq!(report.steps.len(), 1);
        assert_eq!((report.steps[0].at_ms, report.steps[0].last_ms, report.steps[0].times), (0, 4999, 5000));
        for at in 0..5000 {
            let sig = if at % 2 == 0 { Sig::TERM } else { Sig::HUP };
            report.step(Duration::from_millis(at), "relay", Some(sig), Some(1));
        }
        assert_eq!(report.steps.len(), MOST_STEPS);
        // One of them, the first, was counted with those before.
        assert_eq!(report.steps_left_out, 5000 - 1 - (MOST_STEPS as u64 - 1));
    }

    #[test]
    fn json_harms_no_terminal_and_gives_every_name_back() {
        let name = "\x1b[31m\u{7f}\u{9b}2J\u{202e}é\n";
        let json = Report { command: vec![name.into()], ..report() }.to_json();
        assert!(json.contains(r"\u001b[31m\u007f\u009b2J\u202eé\n"), "{json}");
        let value: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
        assert_eq!(value["command"][0], name);
    }

    #[test]
    fn an_amount_is_as_exact_as_it_matters() {
        for (bytes, text) in [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1K"), (1536, "1.5K"), (64 << 20, "64M")] {
            assert_eq!(amount(bytes), text);
        }
        assert_eq!(amount(u64::MAX), "15E");
    }

    #[test]
    fn a_time_is_as_exact_as_it_matters() {
        for (milliseconds, text) in [(0, "0.0s"), (1234, "1.2s"), (65_000, "65s"), (180_000, "3m"), (8_000_000, "2h")] {
            assert_eq!(seconds(milliseconds), text);
        }
    }
}
