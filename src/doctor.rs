//! What works here, found by trying it: each backend and each limit runs this very program on a command that does
//! nothing. The front runs it instead of a command.

use std::fmt;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::geteuid;
use serde::Serialize;
use serde_json::Value;

use crate::outcome::UNAVAILABLE;
use crate::plan::Backend;
use crate::report;
use crate::voice::{in_words, printable};

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
    pub holds: &'static [&'static str],
    /// And what not.
    pub does_not_hold: &'static [&'static str],
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

/// Limits that limit nothing.
const LIMITS: [(&str, &str); 3] =
    [("memory", "--memory-max=100%"), ("pids", "--pids-max=1000000"), ("cpu", "--cpu-max=100000%")];

/// Tries everything; `backends` is what the options prefer.
///
/// # Errors
/// Those of starting this program again.
pub fn diagnose(backends: &[Backend]) -> io::Result<Diagnosis> {
    let list = backends.iter().map(Backend::to_string).collect::<Vec<_>>().join(",");
    let taken = attempt(&[&format!("--backend={list}")])?;
    let takes = taken.ok().map(|used| used.backend().to_owned());
    let (holds, does_not_hold) = guarantees(takes.as_deref());
    let mut findings = vec![];
    for backend in BACKENDS {
        let found = attempt(&[&format!("--backend={backend}")])?;
        findings.push(finding(backend.to_string(), found));
    }
    let mut limits = vec![];
    for (name, option) in LIMITS {
        let on_cgroup = attempt(&["--backend=cgroup", option])?;
        let found = match &on_cgroup {
            Ok(_) => on_cgroup,
            // Why a leaf can't have it says more, if nothing can.
            Err(_) => attempt(&["--backend=systemd", option])?.or(on_cgroup),
        };
        limits.push(finding(name.into(), found));
    }
    Ok(Diagnosis {
        schema: 1,
        version: env!("CARGO_PKG_VERSION"),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        uid: geteuid().as_raw(),
        backends: findings,
        limits,
        takes,
        holds,
        does_not_hold,
    })
}

/// What an attempt used.
struct Used {
    /// `backend.name` of the report.
    name: String,
    /// `backend.degraded` of the report.
    degraded: Option<String>,
}

impl Used {
    /// The first word of the name.
    fn backend(&self) -> &str {
        self.name.split(' ').next().unwrap_or_default()
    }

    /// In words; the name of a leaf that is gone says nothing, where it was does.
    fn place(&self) -> String {
        match (self.backend(), self.name.rsplit_once("/treekill-run")) {
            ("cgroup", Some((place, _))) => format!("a leaf in {}", place.trim_start_matches("cgroup ")),
            ("subreaper", _) => "ancestry alone; under the others too".into(),
            _ => self.name.clone(),
        }
    }
}

/// Runs this program with these options on a command that does nothing; the error is what it said.
fn attempt(options: &[&str]) -> io::Result<Result<Used, String>> {
    let report = memfd_create(c"report", MemfdFlags::empty())?;
    let number = report.as_raw_fd();
    // As another process: a backend that does not work can cost no more than that.
    let output = Command::new("/proc/self/exe")
        .arg("--quiet")
        .args(options)
        .arg(format!("--report-fd={number}"))
        .args(["--", "/proc/self/exe", "--version"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .map_err(|error| {
            io::Error::other(format!("cannot run /proc/self/exe, which needs /proc: {}", in_words(&error)))
        })?;
    if output.status.success() {
        let text = std::fs::read(format!("/proc/self/fd/{number}"))?;
        let report: Value = serde_json::from_slice(&text)?;
        let field = |name: &str| report["backend"][name].as_str().map(str::to_owned);
        return Ok(Ok(Used { name: field("name").unwrap_or_default(), degraded: field("degraded") }));
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().next_back().unwrap_or("it did not say why");
    let why = line.strip_prefix("treekill-run: ").unwrap_or(line);
    Ok(Err(why.strip_prefix("no backend works here: ").unwrap_or(why).to_owned()))
}

fn finding(name: String, found: Result<Used, String>) -> Finding {
    match found {
        Ok(used) => {
            let help = used.degraded.clone().or_else(|| undelegated(&used));
            Finding { name, works: true, detail: used.place(), help }
        }
        Err(why) => {
            // A refusal names its backend, then the cause, then what would help.
            let (_, why) = why.split_once(": ").unwrap_or(("", &why));
            let (cause, help) =
                why.split_once("; ").map_or((why, None), |(cause, help)| (cause, Some(help.to_owned())));
            Finding { name, works: false, detail: cause.to_owned(), help }
        }
    }
}

/// systemd may rearrange a part of its tree that it has not delegated, systemd.resource-control(5).
fn undelegated(used: &Used) -> Option<String> {
    let place = used.name.strip_prefix("cgroup ").and_then(|path| Path::new(path).parent())?;
    let is_systemds = Path::new("/run/systemd/system").is_dir();
    let is_delegated = |place: &Path| {
        ["user.delegate", "trusted.delegate"]
            .iter()
            .any(|name| rustix::fs::getxattr(place, *name, &mut [0_u8; 8]).is_ok())
    };
    (is_systemds && !place.ancestors().any(is_delegated)).then(|| {
        format!("{} is not delegated: systemd may move or remove what is made there; to be sure, give the unit Delegate=yes", place.display())
    })
}

/// What the backend that is taken holds, and what not.
fn guarantees(takes: Option<&str>) -> (&'static [&'static str], &'static [&'static str]) {
    const SERVICES: &str = "work handed to a service outside, such as dockerd or at(1)";
    const BOTH: &str = "kill -9 of both processes of treekill-run at once";
    match takes {
        None => (&[], &[]),
        Some("subreaper") => (
            &[
                "every process that the command starts, whatever its session, group or parent",
                "kill -9 of treekill-run ends the tree",
            ],
            &[
                "processes of other users, such as those of sudo(8): they can't be signalled; --no-new-privs rules them out",
                BOTH,
                SERVICES,
            ],
        ),
        Some("pidns") => (
            &[
                "every process that the command starts, whatever it does",
                "kill -9 of treekill-run, even of both of its processes at once, ends the tree",
            ],
            &[SERVICES],
        ),
        Some("systemd") => (
            &[
                "every process that the command starts, whatever its session, group, parent or user",
                "kill -9 of treekill-run ends the tree",
            ],
            &[
                "kill -9 of both processes of treekill-run at once, until systemd's limit of time for the run, if it has one",
                SERVICES,
            ],
        ),
        Some(_) => (
            &[
                "every process that the command starts, whatever its session, group, parent or user",
                "kill -9 of treekill-run ends the tree",
            ],
            &[
                "kill -9 of both processes of treekill-run at once; the next run in the same cgroup ends what they left",
                SERVICES,
            ],
        ),
    }
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
            None => writeln!(f, "\nNo backend of the list works here."),
            Some(name) => {
                writeln!(f, "\nTaken: {name}")?;
                write_list(f, "holds", self.holds)?;
                write_list(f, "does not hold", self.does_not_hold)
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
