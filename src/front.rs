//! The front: the process that the caller knows. It plans, makes the boundary, forks the keeper (through a deputy where
//! children of the caller's are its own already), relays signals, and ends as the outcome says. It touches no process
//! of the tree unless the keeper is dead.

mod deputy;
mod relaying;
mod terminal;

use std::ffi::OsString;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use rustix::process::{Pid, PidfdFlags, getpid, getppid, pidfd_open};

use crate::boundary::{self, Boundary, Choice, Refusal, remove_ownerless};
use crate::cli::{self, Leftovers, Options, Request};
use crate::keeper::{self, Setup, Ties};
use crate::outcome::{Exit, FAILED, UNAVAILABLE};
use crate::plan::{Plan, Verbosity};
use crate::report::{BackendReport, RefusedBackend, Report, SCHEMA, Target};
use crate::signals::{Sig, SigSet};
use crate::sys::{self, Disposition, Fork, Inherited};
use crate::voice::{Voice, in_one_line, in_words};
use crate::wire::{self, FrontEnd};

use relaying::Front;
use terminal::Terminal;

/// The whole program.
pub fn run() -> ExitCode {
    let options = match cli::parse(&std::env::args_os().collect::<Vec<_>>(), &sys::radix) {
        Ok(Request::Run(options)) if options.report_schema => return print(SCHEMA),
        Ok(Request::Run(options)) => *options,
        Ok(Request::Print(text)) => return print(&text),
        Err(line) => return fail(Verbosity::Normal, FAILED, &line),
    };
    let verbosity = Verbosity::new(&options);
    match supervise(options) {
        Ok(exit) => end(exit),
        Err(Failed::Unavailable(why)) => fail(verbosity, UNAVAILABLE, &why),
        Err(Failed::Internal(error)) => fail(verbosity, FAILED, &in_one_line(&error)),
    }
}

/// Why the command was not started.
enum Failed {
    /// What was asked for can't be had.
    Unavailable(String),
    /// Something of ours went wrong.
    Internal(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for Failed {
    fn from(error: E) -> Failed {
        Failed::Internal(error.into())
    }
}

fn print(text: &str) -> ExitCode {
    let mut stdout = std::io::stdout();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(Verbosity::Normal, FAILED, &format!("cannot write to stdout: {}", in_words(&error))),
    }
}

fn fail(verbosity: Verbosity, status: u8, line: &str) -> ExitCode {
    let mut voice = Voice::new(verbosity);
    voice.error(line);
    voice.finish();
    ExitCode::from(status)
}

fn end(exit: Exit) -> ExitCode {
    if let Exit::Raise(sig) = exit {
        sys::die_of(sig);
    }
    ExitCode::from(exit.status())
}

fn supervise(options: Options) -> Result<Exit, Failed> {
    // First: a number that the caller did not open must not mean a descriptor of ours.
    let target = open_target(&options)?;
    let group = own_group();
    let terminal = Terminal::of_caller(group);
    let plan = Plan::new(&options, terminal.is_some() && group.is_some(), &physical_memory);
    // Whoever was our child before must neither be waited for nor killed, and PID 1 gets everybody's orphans.
    let needs_deputy = getpid().is_init() || sys::has_children();
    if !needs_deputy {
        rustix::process::set_child_subreaper(Some(getpid())).context("cannot become a subreaper")?;
    }
    let inherited = sys::inherited();
    let (socket, ties) = tie(&options, &inherited)?;
    let limits = plan.limits;
    let setup = set_up(options, plan, group, target, inherited, ties)?;
    let has_leaf = setup.boundary.birthplace().is_some();
    let mut front = start(setup, socket, terminal, needs_deputy)?;
    // While the command starts: what a run that was killed has left is ended.
    let ownerless = has_leaf.then(|| remove_ownerless(&limits));
    let exit = front.relay_until_the_end();
    if let Some(ownerless) = ownerless {
        ownerless.retry();
    }
    Ok(exit)
}

/// Opens what front and keeper hear of each other and of the caller by.
fn tie(options: &Options, inherited: &Inherited) -> Result<(FrontEnd, Ties), Failed> {
    let signals = take_over_signals(inherited).context("cannot make a signal descriptor")?;
    let parent = if options.die_with_parent { Some(open_parent()?) } else { None };
    let front = pidfd_open(getpid(), PidfdFlags::empty()).context("cannot open a pidfd of this process")?;
    let (ours, socket) = wire::pair().context("cannot make a socket pair")?;
    Ok((ours, Ties { signals, socket, front, deputy: None, parent }))
}

/// Makes the boundary, and hands everything over to whoever becomes the keeper.
fn set_up(
    options: Options,
    plan: Plan,
    group: Option<Pid>,
    target: Option<Target>,
    inherited: Inherited,
    ties: Ties,
) -> Result<Setup, Failed> {
    if getpid().is_init() && (options.leftovers == Leftovers::Leave || options.no_guard) {
        // What is left would die with us, pid_namespaces(7).
        let why = "nothing can be left running by PID 1; try --leftovers kill, and not --no-guard";
        return Err(Failed::Unavailable(why.into()));
    }
    let mut voice = Voice::new(plan.verbosity);
    let Choice { boundary, refusals } =
        boundary::choose(&options.backend, plan.policy.guard, &plan.limits).map_err(unavailable)?;
    for refusal in &refusals {
        voice.step(format_args!("no backend {refusal}"));
    }
    let report = Report::new(words(&options.command), backend_report(&*boundary, &refusals), plan.limits);
    Ok(Setup { plan, command: options.command, inherited, boundary, group, ties, report, target, voice })
}

/// Forks the keeper, or the deputy that does.
fn start(setup: Setup, socket: FrontEnd, terminal: Option<Terminal>, needs_deputy: bool) -> Result<Front, Failed> {
    match sys::fork() {
        Ok(Fork::Child) => {
            drop((socket, terminal));
            keeper::settle_in(setup.plan.session);
            sys::exit_now(if needs_deputy { deputy::run(setup) } else { keeper::run(setup) })
        }
        Ok(Fork::Parent(child)) => Ok(Front::new(child, needs_deputy, socket, terminal, setup)),
        Err(error) => {
            // Nothing half-done stays; an error here is the next run's to mend.
            let _ = setup.boundary.remove();
            Err(anyhow!(error).context("cannot fork").into())
        }
    }
}

/// Blocks every signal and gives a descriptor that all of them arrive at which the caller did not ignore: a signal that
/// is ignored and blocked would arrive there all the same and undo nohup(1).
fn take_over_signals(inherited: &Inherited) -> std::io::Result<OwnedFd> {
    sys::block_all_signals();
    // With SIGCHLD ignored the kernel would reap our children before we learn how they ended, wait(2).
    sys::set_disposition(Sig::CHLD, Disposition::Default);
    let mut taken = SigSet::ALL.without(inherited.ignored);
    taken.insert(Sig::CHLD);
    sys::signal_descriptor(taken)
}

fn open_target(options: &Options) -> anyhow::Result<Option<Target>> {
    if let Some(path) = &options.report {
        let target = Target::open(path).with_context(|| format!("cannot write a report to {}", path.display()))?;
        return Ok(Some(target));
    }
    let Some(number) = options.report_fd else { return Ok(None) };
    let target = Target::descriptor(number).with_context(|| format!("cannot write a report to descriptor {number}"))?;
    Ok(Some(target))
}

/// A pidfd of the process that called us.
fn open_parent() -> Result<OwnedFd, Failed> {
    let Some(parent) = getppid() else {
        let why = "--die-with-parent needs a caller in the same PID namespace; this one's is outside";
        return Err(Failed::Unavailable(why.into()));
    };
    let pidfd = pidfd_open(parent, PidfdFlags::empty());
    // If it died before the pidfd was opened, the pid may be another's by now.
    match (pidfd, getppid() == Some(parent)) {
        (Ok(pidfd), true) => Ok(pidfd),
        (Err(errno), true) => Err(anyhow!(errno).context("cannot open a pidfd of the caller").into()),
        (_, false) => Err(anyhow!("the caller died before the command was started").into()),
    }
}

/// Our process group; `None` if its leader is outside of our PID namespace, where no command could join it.
fn own_group() -> Option<Pid> {
    Pid::from_raw(nix::unistd::getpgrp().as_raw())
}

/// The machine's memory in bytes.
fn physical_memory() -> u64 {
    let info = rustix::system::sysinfo();
    u64::from(info.mem_unit) * info.totalram
}

fn unavailable(refusals: Vec<Refusal>) -> Failed {
    let reasons: Vec<String> = refusals.iter().map(Refusal::to_string).collect();
    Failed::Unavailable(format!("no backend works here: {}", reasons.join("; ")))
}

fn backend_report(boundary: &dyn Boundary, refusals: &[Refusal]) -> BackendReport {
    let refused =
        refusals.iter().map(|refusal| RefusedBackend { name: refusal.backend.to_string(), why: refusal.why.clone() });
    BackendReport { name: boundary.name(), degraded: None, refused: refused.collect() }
}

fn words(command: &[OsString]) -> Vec<String> {
    command.iter().map(|word| word.to_string_lossy().into_owned()).collect()
}
