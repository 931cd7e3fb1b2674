//! The front: the process that the caller knows. It plans, makes the boundary, forks the keeper (through a deputy where
//! children of the caller's are its own already), relays signals, and ends as the outcome says. It touches no process
//! of the tree unless the keeper is dead.

mod deputy;
mod relaying;
mod starting;
mod terminal;

use std::ffi::OsString;
use std::io::Write as _;
use std::os::fd::OwnedFd;

use anyhow::{Context as _, anyhow};
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};

use crate::cli::{self, Leftovers, Options, Request};
use crate::doctor;
use crate::keeper::{Setup, Ties};
use crate::outcome::{Exit, FAILED, UNAVAILABLE};
use crate::plan::{Plan, Session, Verbosity};
use crate::report::{Report, SCHEMA, Target};
use crate::signals::{Sig, SigSet};
use crate::sys::{self, Disposition, Inherited};
use crate::tree::procfs;
use crate::voice::{self, Voice, Why, in_one_line, in_words};
use crate::wire::{self, FrontEnd};

use starting::{NoBackend, Wanted};
use terminal::Terminal;

/// The whole program; gives the status to end with.
pub fn run(words: Vec<OsString>) -> u8 {
    sys::fill_standard_streams();
    voice::set_name(words.first().map(OsString::as_os_str));
    let options = match cli::parse(&words, &sys::radix) {
        Ok(Request::Run(options)) if options.report_schema => return print(SCHEMA),
        Ok(Request::Run(options)) => *options,
        Ok(Request::Print(text)) => return print(&text),
        Err(line) => return fail(Verbosity::Normal, FAILED, &line),
    };
    let verbosity = Verbosity::new(&options);
    if options.doctor {
        return examine(&options).unwrap_or_else(|error| fail(verbosity, FAILED, &in_one_line(&error)));
    }
    match supervise(options) {
        Ok(exit) => end(exit),
        Err(Failed::Unavailable(why)) => fail(verbosity, UNAVAILABLE, &why.to_string()),
        Err(Failed::NoBackend(none)) => fail(verbosity, UNAVAILABLE, &none.to_string()),
        Err(Failed::Internal(error)) => fail(verbosity, FAILED, &in_one_line(&error)),
        Err(Failed::Signal(sig)) => end(Exit::Raise(sig)),
    }
}

/// Why the command was not started.
enum Failed {
    /// What was asked for can't be had.
    Unavailable(Why),
    /// By no backend.
    NoBackend(NoBackend),
    /// Something of ours went wrong.
    Internal(anyhow::Error),
    /// This signal came first.
    Signal(Sig),
}

impl<E: Into<anyhow::Error>> From<E> for Failed {
    fn from(error: E) -> Failed {
        Failed::Internal(error.into())
    }
}

/// Says what works here, as JSON where a report would go.
fn examine(options: &Options) -> anyhow::Result<u8> {
    let target = open_target(options)?;
    ignore_lost_readers();
    // What is asked of this process, and not of the attempts.
    if let Err(Failed::Unavailable(why)) = check_caller(options) {
        return Ok(fail(Verbosity::new(options), UNAVAILABLE, &why.to_string()));
    }
    // Ignored, it would keep the ends of the attempts from us, wait(2).
    sys::set_disposition(Sig::CHLD, Disposition::Default);
    let diagnosis = doctor::diagnose(options, &try_to_run).context("cannot try the backends")?;
    let printed = match target {
        Some(target) => {
            let name = target.name().to_owned();
            target.write(&diagnosis.to_json()).with_context(|| format!("cannot write the report to {name}"))?;
            0
        }
        None => print(&diagnosis.to_string()),
    };
    Ok(if printed == 0 { diagnosis.status() } else { printed })
}

/// An attempt; says why there was no run.
fn try_to_run(options: Options) -> Result<(), Why> {
    supervise(options).map(|_| ()).map_err(|failed| match failed {
        Failed::Unavailable(why) => why,
        // It was one that was to be had.
        Failed::NoBackend(none) => {
            none.refusals.into_iter().next().map_or_else(|| "there is none".into(), |none| none.why)
        }
        Failed::Internal(error) => in_one_line(&error).into(),
        Failed::Signal(sig) => format!("{sig} came before it was known").into(),
    })
}

/// Whether the caller is such as these options need.
fn check_caller(options: &Options) -> Result<(), Failed> {
    if options.die_with_parent {
        open_parent()?;
    }
    check_leaving(options)
}

/// Whether these options can leave something running.
fn check_leaving(options: &Options) -> Result<(), Failed> {
    if sys::own_pid().is_init()
        && (options.leftovers == Leftovers::Leave || options.no_guard || !options.keep.is_empty())
    {
        // What is left would die with us, pid_namespaces(7).
        let help = "try --leftovers kill, and neither --keep nor --no-guard";
        return Err(Failed::Unavailable(Why::new("nothing can be left running by PID 1", help)));
    }
    Ok(())
}

fn print(text: &str) -> u8 {
    if sys::inherited().closed[1] {
        return fail(Verbosity::Normal, FAILED, "cannot write to stdout: Bad file descriptor");
    }
    let mut stdout = std::io::stdout();
    ignore_lost_readers();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => 0,
        Err(error) => fail(Verbosity::Normal, FAILED, &format!("cannot write to stdout: {}", in_words(&error))),
    }
}

/// Whoever was to read what is written without a run may be gone, and that is an error like others.
fn ignore_lost_readers() {
    sys::set_disposition(Sig::PIPE, Disposition::Ignore);
}

fn fail(verbosity: Verbosity, status: u8, line: &str) -> u8 {
    let mut voice = Voice::new(verbosity);
    ignore_lost_readers();
    voice.error(line);
    voice.finish();
    status
}

fn end(exit: Exit) -> ! {
    if let Exit::Raise(sig) = exit {
        sys::die_of(sig);
    }
    sys::exit_now(exit.status())
}

fn supervise(options: Options) -> Result<Exit, Failed> {
    // First: a number that the caller did not open must not mean a descriptor of ours.
    let target = open_target(&options)?;
    let terminal = Terminal::of_caller();
    let group = if terminal.is_some() || options.foreground { own_group() } else { None };
    let plan = Plan::new(&options, terminal.is_some() && group.is_some(), &physical_memory);
    // Whoever was our child before must neither be waited for nor killed, and PID 1 gets everybody's orphans.
    let needs_deputy = sys::own_pid().is_init() || sys::has_children().context("cannot ask for children")?;
    if !needs_deputy {
        // Any number but 0 means yes, prctl(2).
        rustix::process::set_child_subreaper(Some(Pid::INIT)).context("cannot become a subreaper")?;
    }
    let inherited = sys::inherited();
    let (socket, ties) = tie(&options)?;
    let wanted = Wanted::new(&options);
    let setup = set_up(options, plan, group, terminal.is_some(), target, inherited, ties)?;
    let mut front = starting::start(setup, wanted, socket, terminal, needs_deputy)?;
    front.take_early_signals();
    // While the command starts: what a run that was killed has left is ended.
    let ownerless = front.remove_ownerless();
    let exit = front.relay_until_the_end();
    ownerless.retry();
    // This process ends now, and the kernel closes its descriptors faster than we do.
    std::mem::forget(front);
    Ok(exit)
}

/// Opens what front and keeper hear of each other and of the caller by.
fn tie(options: &Options) -> Result<(FrontEnd, Ties), Failed> {
    let signals = take_over_signals().context("cannot make a signal descriptor")?;
    let parent = if options.die_with_parent { Some(open_parent()?) } else { None };
    let front = pidfd_open(sys::own_pid(), PidfdFlags::empty()).context("cannot open a pidfd of this process")?;
    let (ours, socket) = wire::pair().context("cannot make a socket pair")?;
    Ok((ours, Ties { signals, socket, front, deputy: None, parent, shells: vec![] }))
}

/// Hands everything over to whoever becomes the keeper.
// Not inlined, so that its stack is free again.
#[inline(never)]
fn set_up(
    options: Options,
    plan: Plan,
    group: Option<Pid>,
    has_terminal: bool,
    target: Option<Target>,
    inherited: Inherited,
    mut ties: Ties,
) -> Result<Box<Setup>, Failed> {
    check_leaving(&options)?;
    let needs_sight = match &plan.policy {
        policy if policy.idle_timeout.is_some() => Some("--idle-timeout can't see what the tree does"),
        policy if policy.keeps => Some("--keep can't see who is who"),
        _ => None,
    };
    if let Some(option) = needs_sight
        && let Err(why) = procfs::check_trustworthy()
    {
        let cause = format!("{option}: {}", why.cause);
        return Err(Failed::Unavailable(Why { cause, ..why }));
    }
    let voice = Voice::new(plan.verbosity);
    let report = Box::new(Report::new(plan.limits));
    if plan.session == Session::Callers {
        ties.shells = terminal::shells();
    }
    Ok(Box::new(Setup { plan, command: options.command, inherited, group, has_terminal, ties, report, target, voice }))
}

/// Blocks every signal and gives a descriptor that all of them arrive at.
fn take_over_signals() -> std::io::Result<OwnedFd> {
    sys::block_all_signals();
    if sys::is_ignored(Sig::CHLD) {
        // The kernel would reap our children before we learn how they ended, wait(2).
        sys::set_disposition(Sig::CHLD, Disposition::Default);
    }
    sys::signal_descriptor(SigSet::ALL)
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
