//! What there is to measure with: our builds, the other programs, and runs of both.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::sys;

/// One of our builds, or why there is none.
pub(crate) type Build = Result<String, String>;

pub(crate) struct Machine {
    pub(crate) musl: Build,
    pub(crate) glibc: Build,
    pub(crate) dynamic: Build,
    /// The build of the rows that do not compare builds.
    pub(crate) ours: Build,
    /// This program.
    pub(crate) bench: String,
    /// A multiplier for the counts of rounds.
    effort: f64,
}

/// The command whose run costs least.
pub(crate) const TRUE: &str = "/bin/true";

impl Machine {
    pub(crate) fn look() -> Machine {
        let build = |name: &str| {
            let path = std::env::var(format!("BENCH_{name}")).unwrap_or_default();
            if Path::new(&path).is_file() {
                return Ok(path);
            }
            let why = std::env::var(format!("BENCH_{name}_LACK")).ok().filter(|why| !why.is_empty());
            Err(why.unwrap_or_else(|| format!("BENCH_{name} names no program")))
        };
        let (musl, glibc, dynamic) = (build("MUSL"), build("STATIC"), build("DYNAMIC"));
        let ours = musl.clone().or_else(|_| glibc.clone()).or_else(|_| dynamic.clone());
        let bench = std::env::current_exe().expect("/proc is mounted").to_string_lossy().into_owned();
        let effort = std::env::var("BENCH_EFFORT").ok().and_then(|effort| effort.parse().ok()).unwrap_or(1.0);
        Machine { musl, glibc, dynamic, ours, bench, effort }
    }

    pub(crate) fn describe(&self) -> String {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let load = read("/proc/loadavg");
        let load = load.split(' ').next().unwrap_or_default();
        format!("Linux {}, {cores} cores, load {load}; medians of interleaved runs", read("/proc/sys/kernel/osrelease"))
    }

    /// How many rounds, of this many at full effort.
    pub(crate) fn rounds(&self, full: u32) -> usize {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small positive number")]
        let rounds = (f64::from(full) * self.effort).ceil() as usize;
        rounds.max(3)
    }

    /// Our build, if this backend works here.
    pub(crate) fn ours_on(&self, backend: &str) -> Build {
        let ours = self.ours.clone()?;
        works(&line(&ours, &["-b", backend], &[TRUE]))?;
        Ok(ours)
    }

    /// The command line of a subject of this program's.
    pub(crate) fn subject(&self, words: &[&str]) -> Vec<String> {
        let mut line = vec![self.bench.clone(), "as".to_owned()];
        line.extend(words.iter().map(|word| (*word).to_owned()));
        line
    }
}

/// Where PATH has a program.
pub(crate) fn find(name: &str) -> Result<String, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found: Option<PathBuf> = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|at| at.is_file());
    found.map(|at| at.to_string_lossy().into_owned()).ok_or_else(|| format!("{name} is not installed"))
}

/// A command line from words and more words.
pub(crate) fn line<T: ToString>(program: &str, options: &[&str], command: &[T]) -> Vec<String> {
    let mut line = vec![program.to_owned()];
    line.extend(options.iter().map(|word| (*word).to_owned()));
    line.extend(command.iter().map(ToString::to_string));
    line
}

/// GNU timeout, with a limit that is never reached.
pub(crate) fn timeout<T: ToString>(command: &[T]) -> Result<Vec<String>, String> {
    Ok(line(&find("timeout")?, &["60"], command))
}

pub(crate) fn command(line: &[String]) -> Command {
    let mut command = Command::new(&line[0]);
    command.args(&line[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

pub(crate) fn spawn(line: &[String]) -> Result<Child, String> {
    command(line).spawn().map_err(|error| format!("cannot start {}: {error}", line[0]))
}

/// Runs a command line that has to succeed: how long that took.
pub(crate) fn time(line: &[String]) -> Result<f64, String> {
    let start = sys::now();
    let status = spawn(line)?.wait().expect("it is our child");
    let end = sys::now();
    if status.success() { Ok(span(start, end)) } else { Err(format!("{} ended with {status}", line.join(" "))) }
}

/// Why this command line does not work here, from its own words.
pub(crate) fn works(line: &[String]) -> Result<(), String> {
    let output = command(line).stderr(Stdio::piped()).output().map_err(|error| format!("{}: {error}", line[0]))?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr).trim().lines().next().unwrap_or_default().to_owned();
    Err(if words.is_empty() { format!("{} ended with {}", line[0], output.status) } else { words })
}

#[expect(clippy::cast_precision_loss, reason = "spans of time are far below 2^52 ns")]
pub(crate) fn span(start: u64, end: u64) -> f64 {
    end.saturating_sub(start) as f64
}
