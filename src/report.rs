//! What happened, as one JSON object; and where it is written. The front opens the target, the keeper writes it.

mod target;

use std::time::{Duration, SystemTime};

use serde::Serialize;

pub use target::Target;

use crate::limits::Limits;
use crate::outcome::{Cause, End, Exit, Failure, Outcome};
use crate::signals::Sig;
use crate::tree::{Net, Process, procfs};

/// The report, schema 1. Field names are the JSON's.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Version of this format.
    pub schema: u32,
    /// The command and its arguments; bytes that are no UTF-8 are replaced.
    pub command: Vec<String>,
    /// What held the tree.
    pub backend: BackendReport,
    /// The command's pid; null if it was never born.
    pub pid: Option<i32>,
    /// When the command was started, RFC 3339.
    pub start: String,
    /// When the run was over, RFC 3339.
    pub end: String,
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
    /// Processes that outlived the command and their grace, and were ended.
    pub leftovers: Vec<ProcessReport>,
    /// Processes that were left running as the options say.
    pub kept: Vec<ProcessReport>,
    /// Processes that outlived SIGKILL and the drain limit.
    pub survivors: Vec<ProcessReport>,
    /// How it is known that nothing else is alive: `kernel` (no descendant is left and the boundary is empty) or `walk`
    /// (the boundary is empty, and nothing but what was kept was found below it).
    pub proof: Option<&'static str>,
}

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
}

/// A process of the tree.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessReport {
    /// Its pid.
    pub pid: i32,
    /// Its parent's pid; null where it can't be seen.
    pub ppid: Option<i32>,
    /// The name of its program.
    pub comm: String,
    /// Its arguments.
    pub argv: Vec<String>,
    /// Its state as a word.
    pub state: &'static str,
    /// Its age in milliseconds.
    pub age_ms: Option<u64>,
    /// Its cgroup.
    pub cgroup: Option<String>,
    /// What held it: `boundary` or `ancestry`.
    pub held_by: &'static str,
    /// The pid of the process that traces it.
    pub tracer: Option<i32>,
}

/// Clock ticks a second as /proc counts them: USER_HZ, which is 100 on every architecture of Linux.
const TICKS: f64 = 100.0;

impl ProcessReport {
    /// What can be seen of a process now.
    pub fn of(process: &Process) -> ProcessReport {
        let stat = process.stat.as_ref();
        let age = |stat: &procfs::Stat| {
            #[expect(clippy::cast_precision_loss, reason = "a start time of centuries is not met")]
            let started = stat.start as f64 / TICKS;
            Duration::try_from_secs_f64(procfs::uptime()? - started).ok().map(milliseconds)
        };
        ProcessReport {
            pid: process.pid.as_raw_pid(),
            ppid: stat.and_then(|stat| stat.parent).map(|pid| pid.as_raw_pid()),
            comm: stat.map_or_else(|| "?".into(), |stat| stat.comm.clone()),
            // Where /proc shows nothing of it, what it shows under this number is somebody else.
            argv: stat.map(|_| procfs::arguments(process.pid)).unwrap_or_default(),
            state: state_word(stat.map(|stat| stat.state)),
            age_ms: stat.and_then(age),
            cgroup: stat.and_then(|_| procfs::cgroup(process.pid)),
            held_by: match process.net {
                Net::Boundary => "boundary",
                Net::Ancestry => "ancestry",
            },
            tracer: stat.and_then(|_| procfs::tracer(process.pid)).map(|pid| pid.as_raw_pid()),
        }
    }

    /// `sleep (123)`, with what keeps it alive.
    pub fn in_words(&self) -> String {
        let traced = self.tracer.map(|tracer| format!(", traced by {tracer}")).unwrap_or_default();
        let held = if matches!(self.state, "running" | "sleeping") { "" } else { self.state };
        let comma = if held.is_empty() { "" } else { ", " };
        format!("{} ({}{comma}{held}{traced})", self.comm, self.pid)
    }
}

/// The states of proc_pid_stat(5) in words.
fn state_word(state: Option<char>) -> &'static str {
    match state {
        Some('R') => "running",
        Some('S') => "sleeping",
        Some('D') => "uninterruptible",
        Some('Z') => "zombie",
        Some('T') => "stopped",
        Some('t') => "traced",
        Some('I') => "idle",
        Some('X') => "dead",
        _ => "unknown",
    }
}

impl Report {
    /// The report of a run before it starts.
    pub fn new(command: Vec<String>, limits: Limits) -> Report {
        Report {
            schema: 1,
            command,
            backend: BackendReport::default(),
            pid: None,
            start: moment(),
            end: String::new(),
            duration_ms: 0,
            outcome: "internal",
            exit_status: 0,
            command_status: None,
            limits: LimitsReport::new(limits),
            idle_without_io: false,
            steps: vec![],
            leftovers: vec![],
            kept: vec![],
            survivors: vec![],
            proof: None,
        }
    }

    /// Notes a step.
    pub fn step(&mut self, at: Duration, action: &'static str, signal: Option<Sig>, count: Option<usize>) {
        let signal = signal.map(|sig| sig.to_string());
        self.steps.push(Step { at_ms: milliseconds(at), action, signal, count });
    }

    /// Fills in how it ended, this long after the start.
    pub fn conclude(&mut self, outcome: &Outcome, exit: Exit, after: Duration) {
        self.end = moment();
        self.duration_ms = milliseconds(after);
        self.outcome = outcome_word(outcome);
        self.exit_status = exit.status();
        self.command_status = match (outcome.failure, outcome.end) {
            (None, Some(End::Exited(code))) => Some(CommandStatus::Exited(code)),
            (None, Some(End::Signaled(sig))) => Some(CommandStatus::Signaled(sig.to_string())),
            _ => None,
        };
        let was_released = self.steps.iter().any(|step| matches!(step.action, "release" | "keep"));
        self.proof = match (outcome.survived, was_released) {
            (true, _) => None,
            (false, false) => Some("kernel"),
            (false, true) => Some("walk"),
        };
    }

    /// The JSON text, one line.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("no map with odd keys is in it") + "\n"
    }
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

fn moment() -> String {
    humantime::format_rfc3339_millis(SystemTime::now()).to_string()
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
