//! The start of a run: the first backend of the list that works, and the keeper in it, or the deputy that forks one.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};

use anyhow::anyhow;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::Pid;

use super::relaying::Front;
use super::terminal::Terminal;
use super::{Failed, deputy};
use crate::boundary::{self, Boundary, Net, NoScope, Refusal, Refused};
use crate::cli::Options;
use crate::keeper::{self, Setup, Ties};
use crate::limits::{Size, in_units};
use crate::plan::Backend;
use crate::report::{BackendReport, RefusedBackend};
use crate::signals::{Sig, SigSet};
use crate::sys::{self, Fork};
use crate::voice::{Why, cause};
use crate::wire::{FrontEnd, ToFront, ToKeeper, is_hung_up};

/// What a run asks of the machine.
pub(super) struct Wanted {
    /// The list of backends.
    backends: Vec<Backend>,
    /// The options that limit the tree, as they are given; none is empty.
    limits: String,
}

impl Wanted {
    /// What these options ask for.
    pub(super) fn new(options: &Options) -> Wanted {
        let memory = options.memory_max.map(|size| format!("--memory-max {}", as_given(size)));
        let pids = options.pids_max.map(|pids| format!("--pids-max {pids}"));
        let cpu = options.cpu_max.map(|percent| format!("--cpu-max {percent}%"));
        let limits: Vec<String> = [memory, pids, cpu].into_iter().flatten().collect();
        Wanted { backends: options.backend.clone(), limits: limits.join(" and ") }
    }
}

fn as_given(size: Size) -> String {
    match size {
        Size::Bytes(bytes) => in_units(bytes).trim_end_matches(" bytes").to_owned(),
        Size::Percent(percent) => format!("{percent}%"),
    }
}

/// No backend of the list can do what is wanted.
pub(super) struct NoBackend {
    limits: String,
    /// Each backend of the list with its reason.
    pub(super) refusals: Vec<Refusal>,
}

impl fmt::Display for NoBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.limits {
            "" => write!(f, "no backend works here: ")?,
            limits => write!(f, "{limits} can't be had here: ")?,
        }
        let has_limits = |refusal: &&Refusal| matches!(refusal.backend, Backend::Cgroup | Backend::Systemd);
        let mut told: Vec<&Refusal> = self.refusals.iter().filter(has_limits).collect();
        // That the others have no limits matters only where nobody else was asked.
        if self.limits.is_empty() || told.is_empty() {
            told = self.refusals.iter().collect();
        }
        if let [refusal] = *told {
            return write!(f, "{refusal}");
        }
        let told = told.into_iter().map(|Refusal { backend, why }| match &why.help {
            Some(help) => format!("{backend}: {} ({help})", why.cause),
            None => format!("{backend}: {}", why.cause),
        });
        f.write_str(&told.collect::<Vec<_>>().join("; "))
    }
}

/// Forks the child that is to be the keeper or the deputy. A scope is made around it, and if that fails it ends without
/// having started anything, and the next backend gets a new one.
// Not inlined, so that its stack is free again.
#[inline(never)]
pub(super) fn start(
    mut setup: Box<Setup>,
    wanted: Wanted,
    socket: FrontEnd,
    terminal: Option<Terminal>,
    needs_deputy: bool,
) -> Result<Box<Front>, Failed> {
    let mut refusals = vec![];
    let mut has_listened = false;
    for backend in boundary::in_order(&wanted.backends) {
        let net = match boundary::find(backend, &setup.plan, &setup.command, setup.ties.front.as_fd()) {
            Ok(net) => net,
            Err(why) => {
                refuse(&mut setup, &mut refusals, Refusal { backend, why });
                continue;
            }
        };
        setup.report.backend =
            BackendReport { name: net.name(), degraded: None, refused: refusals.iter().map(refused).collect() };
        let child = match sys::fork() {
            Ok(Fork::Child) => {
                drop((socket, terminal));
                sys::exit_now(live(setup, net, needs_deputy))
            }
            Ok(Fork::Parent(child)) => child,
            Err(error) => {
                if let Net::Ready(boundary) = net {
                    // Nothing half-done stays; an error here is the next run's to mend.
                    let _ = boundary.remove();
                }
                return Err(anyhow!(error).context("cannot fork").into());
            }
        };
        // What the terminal sends from now on the child has as well.
        let missed = missed_by_keeper(&setup, needs_deputy);
        has_listened |= matches!(net, Net::Promised(_));
        let why = match settle(net, child, needs_deputy, &setup, &socket) {
            Ok(boundary) => {
                let mut front = Box::new(Front::new(child, needs_deputy, socket, terminal, setup, boundary, missed));
                if has_listened {
                    // The signal that told of a child may have been taken while a keeper was listened to.
                    front.catch_up();
                }
                return Ok(front);
            }
            Err(Unsettled::Declined(why)) => {
                sys::reap_at_its_end(child);
                why
            }
            Err(Unsettled::NoScope(why)) => end_without_scope(child, why)?,
        };
        refuse(&mut setup, &mut refusals, Refusal { backend, why });
    }
    Err(Failed::NoBackend(NoBackend { limits: wanted.limits, refusals }))
}

/// Right after the fork: what the terminal may have sent without the keeper's having it.
fn missed_by_keeper(setup: &Setup, needs_deputy: bool) -> SigSet {
    match setup.plan.policy.is_in_terminal {
        // A deputy's keeper is born later, at a moment that is not known here.
        true if needs_deputy => SigSet::ALL,
        true => sys::pending(),
        false => SigSet::default(),
    }
}

/// Ends the child that there is no scope around; gives why there is none, unless that ends the run.
fn end_without_scope(child: Pid, why: NoScope) -> Result<Why, Failed> {
    let was_killed = sys::has_ended(child);
    sys::signal_child(child, Sig::KILL);
    sys::reap_at_its_end(child);
    match why {
        NoScope::Signal(sig) => Err(Failed::Signal(sig)),
        // Where systemd finds no process there can be no scope, and that is not systemd's doing.
        NoScope::Refused(_) if was_killed => {
            Err(anyhow!("the process that was to watch the command was killed").into())
        }
        NoScope::Refused(why) => Ok(why),
    }
}

fn refuse(setup: &mut Setup, refusals: &mut Vec<Refusal>, refusal: Refusal) {
    setup.voice.step(format_args!("no backend {refusal}"));
    refusals.push(refusal);
}

fn refused(refusal: &Refusal) -> RefusedBackend {
    RefusedBackend { name: refusal.backend.to_string(), why: refusal.why.to_string() }
}

/// What ends a run that has no command yet. All other signals stay pending until there is one.
fn ending_signals(setup: &Setup) -> SigSet {
    let personality = setup.plan.policy.personality;
    Sig::all().filter(|&sig| personality.begins_stop(sig) && !sys::is_ignored(sig)).collect()
}

/// Why the child has no boundary.
enum Unsettled {
    /// Its keeper could not make one, and has ended.
    Declined(Why),
    /// There is none around it.
    NoScope(NoScope),
}

/// Makes what is to be made around the child, and tells it.
// Not inlined, so that its stack is free again.
#[inline(never)]
fn settle(
    net: Net,
    child: Pid,
    needs_deputy: bool,
    setup: &Setup,
    socket: &FrontEnd,
) -> Result<Box<dyn Boundary>, Unsettled> {
    let waits = waits_for_front(&net, needs_deputy, setup);
    let is_promised = matches!(net, Net::Promised(_));
    let boundary = match net {
        Net::Ready(boundary) | Net::Promised(boundary) => boundary,
        Net::Scope(offer) => {
            let ours = if needs_deputy { 2 } else { 1 };
            offer.around(child, ours, ending_signals(setup)).map_err(Unsettled::NoScope)?
        }
    };
    if waits && socket.send(ToKeeper::Admitted).is_err() {
        // It would wait for ever. Dead it is found so.
        sys::signal_child(child, Sig::KILL);
    }
    match is_promised.then(|| hear_refusal(socket, child, setup)).flatten() {
        Some(refused) => Err(Unsettled::Declined(refused.explain())),
        None => Ok(boundary),
    }
}

/// Whether the child waits to be told: that the scope is there, or that the front has looked at what the terminal sent.
/// Later the command might have had that too. A deputy's keeper is not known to be there in any case.
fn waits_for_front(net: &Net, needs_deputy: bool, setup: &Setup) -> bool {
    matches!(net, Net::Scope(_)) || (setup.plan.policy.is_in_terminal && !needs_deputy)
}

/// Blocks until the keeper has said whether the command runs in its boundary. A signal may end the run before that, and
/// a keeper its own: the wait is over then, and what it says later is no reason to try another backend. The child is to be looked
/// after afterwards.
fn hear_refusal(socket: &FrontEnd, child: Pid, setup: &Setup) -> Option<Refused> {
    let listen = |signals: BorrowedFd<'_>| {
        let mut fds = [PollFd::new(socket, PollFlags::IN), PollFd::from_borrowed_fd(signals, PollFlags::IN)];
        // Whoever can't wait finds nothing, and who waits for the run's end says so.
        poll(&mut fds, None).is_ok_and(|_| fds[0].revents().is_empty())
    };
    if listen(setup.ties.signals.as_fd()) {
        // It may be one that waits for the command, or tell of a child that is not ours: only what is heard here is left out.
        let children = [Sig::CHLD].into_iter().collect();
        let mut heard = ending_signals(setup);
        heard.insert(Sig::CHLD);
        let (heard, children) = (sys::signal_descriptor(heard).ok()?, sys::signal_descriptor(children).ok()?);
        while listen(heard.as_fd()) {
            // Without one of a child it is a signal that ends the run.
            let is_of_child = sys::read_signals(children.as_fd()).is_ok_and(|taken| !taken.is_empty());
            if !is_of_child || sys::has_ended(child) {
                break;
            }
            // If it was stopped nobody else continues it.
            sys::signal_child(child, Sig::CONT);
        }
    }
    let Some(ToFront::Refused(bytes)) = socket.peek() else { return None };
    socket.receive();
    Refused::from_bytes(bytes)
}

/// The child; gives the status to end with.
fn live(mut setup: Box<Setup>, net: Net, needs_deputy: bool) -> u8 {
    let settled = keeper::settle_in(&setup).map_err(|errno| ("settle in", errno));
    let admitted = match settled {
        Ok(()) if waits_for_front(&net, needs_deputy, &setup) => {
            is_admitted(&setup.ties).map_err(|errno| ("hear the caller's process", errno))
        }
        settled => settled.map(|()| true),
    };
    if admitted != Ok(true) {
        if let Net::Ready(boundary) = net {
            let _ = boundary.remove();
        }
        let Err((what, errno)) = admitted else { return deputy::EMPTIED };
        return deputy::give_up(&mut setup, format_args!("cannot {what}: {}", cause(errno.raw_os_error())));
    }
    let boundary = match net {
        Net::Ready(boundary) | Net::Promised(boundary) => Ok(boundary),
        Net::Scope(offer) => offer.inside(),
    };
    match boundary {
        Ok(boundary) if needs_deputy => deputy::run(setup, boundary),
        Ok(boundary) => keeper::run(setup, boundary),
        Err(why) => deputy::give_up(&mut setup, format_args!("cannot start the command: {why}")),
    }
}

/// Blocks until the front says so; false if that can't be any more. Then the front is dead, and so is the child of the
/// front that asks systemd, which holds the other end of the socket too: before that one knows what has become of the
/// scope, a member that ends could leave it behind, empty.
///
/// # Errors
/// Those of poll(2) and read(2): whether it has said so is not known.
fn is_admitted(ties: &Ties) -> Result<bool, Errno> {
    loop {
        let mut fds = [PollFd::new(&ties.socket, PollFlags::IN)];
        retry_on_intr(|| poll(&mut fds, None))?;
        if ties.socket.receive()? == Some(ToKeeper::Admitted) {
            return Ok(true);
        }
        if is_hung_up(fds[0].revents()) {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(backend: Backend, cause: &str, help: Option<&str>) -> Refusal {
        Refusal { backend, why: Why { cause: cause.into(), help: help.map(str::to_owned) } }
    }

    #[test]
    fn a_limit_that_cannot_be_had_is_named_with_what_is_in_its_way() {
        let limits = "--memory-max 100M".to_owned();
        let cgroup = refusal(Backend::Cgroup, "it is elsewhere", Some("boot it"));
        let refusals = vec![cgroup.clone(), refusal(Backend::Subreaper, "no limits", Some("limits need a cgroup"))];
        let text = NoBackend { limits: limits.clone(), refusals }.to_string();
        assert_eq!(text, "--memory-max 100M can't be had here: cgroup: it is elsewhere; boot it");
        let refusals = vec![refusal(Backend::Subreaper, "no limits", Some("limits need a cgroup"))];
        let text = NoBackend { limits, refusals }.to_string();
        assert_eq!(text, "--memory-max 100M can't be had here: subreaper: no limits; limits need a cgroup");
        let refusals = vec![cgroup, refusal(Backend::Pidns, "it is closed", None)];
        let text = NoBackend { limits: String::new(), refusals }.to_string();
        assert_eq!(text, "no backend works here: cgroup: it is elsewhere (boot it); pidns: it is closed");
    }
}
