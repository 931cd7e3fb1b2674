//! What works here, found by trying it: with the options that are given, each backend and each limit runs a command that
//! does nothing, this program's `--version`. The front runs it instead of a command.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create, open};
use rustix::process::geteuid;
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use rustix::thread::{CapabilitySet, capabilities};
use serde::Serialize;
use serde_json::{Value, json};

use crate::boundary;
use crate::cli::{Leftovers, Options};
use crate::limits::Size;
use crate::outcome::UNAVAILABLE;
use crate::plan::Backend;
use crate::report;
use crate::sys::{self, Fork};
use crate::voice::{Why, printable, without_name};

/// What was found, schema 1. Field names are the JSON's.
#[derive(Debug, Serialize)]
pub struct Diagnosis {
    /// Version of this format.
    pub schema: u32,
    /// Our version.
    pub version: &'static str,
    /// The kernel's, uname(2).
    pub kernel: String,
    /// Our effective user.
    pub uid: u32,
    /// Each backend.
    pub backends: Vec<Finding>,
    /// Each limit, on the first backend that has it.
    pub limits: Vec<Finding>,
    /// The backend that the options take here.
    pub takes: Option<String>,
    /// What that guarantees.
    pub holds: Vec<&'static str>,
    /// And what not.
    pub does_not_hold: Vec<&'static str>,
}

/// Whether something works.
#[derive(Debug, Serialize)]
pub struct Finding {
    /// Its name.
    pub name: String,
    /// Whether it does.
    pub works: bool,
    /// What was used, or why it does not work.
    pub detail: String,
    /// What would help, or is to be known.
    pub help: Option<String>,
}

const BACKENDS: [Backend; 4] = [Backend::Cgroup, Backend::Systemd, Backend::Pidns, Backend::Subreaper];

/// A limit, and how it is asked for so that it limits nothing.
type Limit = (&'static str, fn(&mut Options));

const LIMITS: [Limit; 3] = [
    ("memory", |options| options.memory_max = Some(Size::Percent(100))),
    ("pids", |options| options.pids_max = Some(1_000_000)),
    ("cpu", |options| options.cpu_max = Some(100_000)),
];

/// Makes a run of these options, and says why there was none.
pub type Run<'a> = &'a dyn Fn(Options) -> Result<(), Why>;

/// Tries everything with these options.
///
/// # Errors
/// Those of starting a process.
pub fn diagnose(options: &Options, run: Run<'_>) -> io::Result<Diagnosis> {
    let trial = trial(options);
    let mut backends = vec![];
    for backend in BACKENDS {
        backends.push(finding(backend.to_string(), attempt(&trial, backend, run)?));
    }
    let mut limits = vec![];
    for (name, ask) in LIMITS {
        let mut trial = trial.clone();
        (trial.memory_max, trial.pids_max, trial.cpu_max) = (None, None, None);
        ask(&mut trial);
        let on_cgroup = attempt(&trial, Backend::Cgroup, run)?;
        let found = match &on_cgroup {
            Ok(_) => on_cgroup,
            // Why a leaf can't have it says more, if nothing can.
            Err(_) => attempt(&trial, Backend::Systemd, run)?.or(on_cgroup),
        };
        limits.push(finding(name.into(), found));
    }
    let works = |backend: &Backend| backends.iter().any(|found| found.works && found.name == backend.to_string());
    let takes = boundary::in_order(&options.backend).find(works);
    let (holds, does_not_hold) = takes.map(|backend| guarantees(&Ends::new(backend, options))).unwrap_or_default();
    Ok(Diagnosis {
        schema: 1,
        version: env!("CARGO_PKG_VERSION"),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        uid: geteuid().as_raw(),
        backends,
        limits,
        takes: takes.map(|backend| backend.to_string()),
        holds,
        does_not_hold,
    })
}

/// What these options ask of the machine, and nothing else of them: a command that does nothing is neither stopped nor
/// told of.
fn trial(options: &Options) -> Options {
    /// Longer than it takes.
    const LONG: Duration = Duration::from_secs(3600);
    let mut trial = options.clone();
    trial.timeout = Duration::ZERO;
    if !trial.idle_timeout.is_zero() {
        trial.idle_timeout = LONG;
    }
    // The caller of an attempt is this process.
    trial.die_with_parent = false;
    trial.report = None;
    trial.quiet = true;
    (trial.doctor, trial.gnu, trial.verbose, trial.stats) = (false, false, false, false);
    trial.command = ["/proc/self/exe", "--version"].map(Into::into).to_vec();
    trial
}

/// What an attempt used.
struct Used {
    backend: Backend,
    /// `backend.name` of the report.
    name: String,
    /// `backend.degraded` of the report.
    degraded: Option<String>,
}

impl Used {
    /// The cgroup that the leaf was made in.
    fn place(&self) -> Option<&str> {
        let leaf = self.name.strip_prefix("cgroup ").filter(|_| self.backend == Backend::Cgroup)?;
        leaf.rsplit_once('/').map(|(place, _)| place)
    }

    /// In words; the name of a leaf that is gone says nothing, where it was does.
    fn describe(&self) -> String {
        match (self.backend, self.place()) {
            (_, Some(place)) => format!("a leaf in {place}"),
            (Backend::Subreaper, _) => "ancestry alone; under the others too".into(),
            _ => self.name.clone(),
        }
    }
}

/// Makes a run on this backend, as another process: one that does not work can cost no more than that.
fn attempt(trial: &Options, backend: Backend, run: Run<'_>) -> io::Result<Result<Used, Why>> {
    // Its report, or why there was no run.
    let result = memfd_create(c"result", MemfdFlags::CLOEXEC)?;
    let said = memfd_create(c"stderr", MemfdFlags::CLOEXEC)?;
    let number = u16::try_from(result.as_raw_fd()).map_err(io::Error::other)?;
    let mut options = trial.clone();
    (options.backend, options.report_fd) = (vec![backend], Some(number));
    match sys::fork()? {
        Fork::Child => {
            let why = use_streams(&said).map_err(|error| error.to_string().into()).and_then(|()| run(options));
            if let Err(Why { cause, help }) = why {
                let text = json!({"cause": cause, "help": help}).to_string();
                // What is not told is missed.
                let _ = rustix::io::write(&result, text.as_bytes());
            }
            sys::exit_now(0)
        }
        Fork::Parent(child) => sys::reap_at_its_end(child),
    }
    let result: Value = serde_json::from_slice(&contents(&result)?).unwrap_or_default();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    if let Some(cause) = text(&result["cause"]) {
        return Ok(Err(Why { cause, help: text(&result["help"]) }));
    }
    let used = &result["backend"];
    if let (Some(name), true) = (text(&used["name"]), result["usage"].is_object()) {
        return Ok(Ok(Used { backend, name, degraded: text(&used["degraded"]) }));
    }
    let said = contents(&said)?;
    let said = String::from_utf8_lossy(&said);
    Ok(Err(said.lines().next_back().map_or("it did not say why", without_name).into()))
}

/// Has this process and the command say nothing to the caller.
fn use_streams(said: &OwnedFd) -> io::Result<()> {
    let null = open(c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    dup2_stdin(&null)?;
    dup2_stdout(&null)?;
    dup2_stderr(said)?;
    Ok(())
}

fn contents(file: &impl AsFd) -> io::Result<Vec<u8>> {
    std::fs::read(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()))
}

fn finding(name: String, found: Result<Used, Why>) -> Finding {
    match found {
        Ok(used) => {
            let help = used.degraded.clone().or_else(|| undelegated(&used));
            Finding { name, works: true, detail: used.describe(), help }
        }
        Err(Why { cause, help }) => Finding { name, works: false, detail: cause, help },
    }
}

/// systemd may rearrange a part of its tree that it has not delegated, systemd.resource-control(5).
fn undelegated(used: &Used) -> Option<String> {
    let place = Path::new(used.place()?);
    let is_delegated = |place: &Path| {
        ["user.delegate", "trusted.delegate"]
            .iter()
            .any(|name| rustix::fs::getxattr(place, *name, &mut [0_u8; 8]).is_ok())
    };
    (boundary::systemd_runs() && !place.ancestors().any(is_delegated)).then(|| {
        format!("{} is not delegated: systemd may move or remove what is made there; to be sure, give the unit Delegate=yes", place.display())
    })
}

/// What bears on how a run ends here.
struct Ends {
    backend: Backend,
    /// Processes of other users than ours can be ended, or there can be none.
    all_users: bool,
    /// The end of the front is the tree's.
    guard: bool,
    /// Some may be left running.
    leaves: bool,
}

impl Ends {
    fn new(backend: Backend, options: &Options) -> Ends {
        let is_able =
            options.no_new_privs || capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::KILL));
        let all_users = match backend {
            Backend::Subreaper => is_able,
            Backend::Pidns => true,
            // By signals, where the kernel can't do it.
            _ => is_able || boundary::kernel_kills(),
        };
        let leaves = options.leftovers == Leftovers::Leave || !options.keep.is_empty();
        Ends { backend, all_users, guard: !options.no_guard, leaves }
    }
}

/// What the backend that is taken holds, and what not.
fn guarantees(ends: &Ends) -> (Vec<&'static str>, Vec<&'static str>) {
    let mut holds = vec![match ends {
        Ends { backend: Backend::Pidns, .. } => "every process that the command starts, whatever it does",
        Ends { all_users: true, .. } => {
            "every process that the command starts, whatever its session, group, parent or user"
        }
        _ => "every process that the command starts, whatever its session, group or parent",
    }];
    let mut does_not_hold = vec![];
    if !ends.all_users {
        does_not_hold.push("processes of other users, such as those of sudo(8): they can't be signalled; --no-new-privs rules them out");
    }
    if ends.leaves {
        does_not_hold.push("what outlives the command and is to be left running");
    }
    match ends.backend {
        _ if !ends.guard => does_not_hold.push("kill -9 of treekill-run: the command goes on"),
        Backend::Pidns => holds.push("kill -9 of treekill-run, even of both of its processes at once, ends the tree"),
        backend => {
            holds.push("kill -9 of treekill-run ends the tree");
            does_not_hold.push(match backend {
                Backend::Subreaper => "kill -9 of both processes of treekill-run at once",
                Backend::Systemd => "kill -9 of both processes of treekill-run at once, until systemd's limit of time for the run, if it has one",
                _ => "kill -9 of both processes of treekill-run at once; the next run in the same cgroup ends what they left",
            });
        }
    }
    does_not_hold.push("work handed to a service outside, such as dockerd or at(1)");
    (holds, does_not_hold)
}

impl Diagnosis {
    /// 0 if the options find a backend here.
    pub fn status(&self) -> u8 {
        if self.takes.is_some() { 0 } else { UNAVAILABLE }
    }

    /// The JSON text, one line.
    pub fn to_json(&self) -> String {
        report::to_json(self)
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "treekill-run {} on Linux {}, uid {}", self.version, self.kernel, self.uid)?;
        write_findings(f, "Backends", &self.backends)?;
        write_findings(f, "Limits", &self.limits)?;
        match &self.takes {
            None => writeln!(f, "\nTaken: none, since no backend of the list can do what the options ask for"),
            Some(name) => {
                writeln!(f, "\nTaken: {name}")?;
                write_list(f, "holds", &self.holds)?;
                write_list(f, "does not hold", &self.does_not_hold)
            }
        }
    }
}

fn write_findings(f: &mut fmt::Formatter<'_>, title: &str, findings: &[Finding]) -> fmt::Result {
    writeln!(f, "\n{title}")?;
    for Finding { name, works, detail, help } in findings {
        // They name cgroups, which others have named.
        let detail = printable(detail);
        writeln!(f, "  {name:<10} {:<6} {detail}", if *works { "works" } else { "no" })?;
        if let Some(help) = help {
            writeln!(f, "  {:<10} {:<6} -> {}", "", "", printable(help))?;
        }
    }
    Ok(())
}

fn write_list(f: &mut fmt::Formatter<'_>, title: &str, rows: &[&str]) -> fmt::Result {
    for (index, row) in rows.iter().enumerate() {
        writeln!(f, "  {:<14} {row}", if index == 0 { title } else { "" })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guarantee_is_what_user_kernel_and_options_allow() {
        let says = |backend, all_users, words: &str| {
            let (holds, does_not) = guarantees(&Ends { backend, all_users, guard: true, leaves: false });
            (holds.iter().any(|line| line.contains(words)), does_not.iter().any(|line| line.contains(words)))
        };
        for backend in [Backend::Cgroup, Backend::Systemd, Backend::Subreaper] {
            assert_eq!(says(backend, true, "or user"), (true, false));
            assert_eq!(says(backend, true, "sudo"), (false, false));
            assert_eq!(says(backend, false, "or user"), (false, false));
            assert_eq!(says(backend, false, "sudo"), (false, true));
        }
        let (holds, does_not) =
            guarantees(&Ends { backend: Backend::Cgroup, all_users: true, guard: false, leaves: true });
        assert!(!holds.iter().any(|line| line.contains("kill -9")), "{holds:?}");
        for words in ["kill -9 of treekill-run: the command goes on", "left running"] {
            assert!(does_not.iter().any(|line| line.contains(words)), "{does_not:?}");
        }
    }
}
