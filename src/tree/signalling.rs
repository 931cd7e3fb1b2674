//! Signals to the processes of a listing. Each goes through a pidfd that was opened first and whose process was then
//! confirmed to be ours. Of a batch all are confirmed before the first is signalled: who joined another PID namespace
//! is nobody's descendant here any more once its parent has died of its own signal.
//!
//! With few descriptors left the batches shrink, to one process in the end.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::descent::Line;
use super::{Net, Process, Tree, is_late, procfs};
use crate::signals::Sig;
use crate::sys;

/// How many pidfds are open at once at most.
const LARGEST_BATCH: usize = 256;

/// How long those who are confirmed wait for the rest of their batch, where others leave us little of the CPUs.
const PATIENCE: Duration = Duration::from_millis(50);

/// How many pidfds may be open at once. The soft limit of descriptors, often 1024, is raised first: the command has been
/// born with its own, and what we do now must not fail for want of one.
pub fn batch() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let allowed = if raised.is_ok() { limit.maximum } else { limit.current };
    // What is open already, and what reading /proc and cgroups takes, has its share too.
    allowed
        .map_or(LARGEST_BATCH, |allowed| usize::try_from(allowed / 4).unwrap_or(LARGEST_BATCH))
        .clamp(1, LARGEST_BATCH)
}

/// Somebody to be signalled.
pub struct Receiver<'a> {
    /// Who it was in the listing.
    pub process: &'a Process,
    /// Its pidfd, if it is a child of ours that was not reaped: then there is nothing to be confirmed.
    pub pidfd: Option<BorrowedFd<'a>>,
}

impl<'a> From<&'a Process> for Receiver<'a> {
    fn from(process: &'a Process) -> Receiver<'a> {
        Receiver { process, pidfd: None }
    }
}

/// What follows a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AndThen {
    /// SIGCONT, so that a stopped process can act on the signal.
    Continue,
    /// Nothing.
    Nothing,
}

/// What became of a signal.
#[derive(Default)]
pub struct Sent {
    /// Who got it.
    pub to: Vec<Pid>,
    /// How many could not be looked at, for want of descriptors or memory.
    pub missed: usize,
    /// What was wanting then.
    pub why: Option<io::Error>,
}

impl Sent {
    /// Adds what became of the same signal to others.
    pub fn append(&mut self, mut others: Sent) {
        self.to.append(&mut others.to);
        self.missed += others.missed;
        self.why = others.why.or(self.why.take());
    }
}

/// A receiver's pidfd.
enum Aim<'a> {
    /// Of a child.
    Given(BorrowedFd<'a>),
    /// Of who was in the boundary when it was listed.
    Opened(OwnedFd),
    /// Of a descendant.
    Confirmed(Rc<OwnedFd>),
}

impl Aim<'_> {
    fn pidfd(&self) -> BorrowedFd<'_> {
        match self {
            Aim::Given(pidfd) => *pidfd,
            Aim::Opened(pidfd) => pidfd.as_fd(),
            Aim::Confirmed(pidfd) => pidfd.as_fd(),
        }
    }
}

/// Receivers with their pidfds.
type Aims<'a> = Vec<(&'a Process, Aim<'a>)>;

/// The first receivers of those who are left.
struct Aimed<'a> {
    /// How many they are.
    taken: usize,
    /// Who of them can be signalled.
    aims: Aims<'a>,
}

/// What is done with a confirmed process and its pidfd, and whether that succeeded.
type Act<'a> = dyn FnMut(&Process, BorrowedFd<'_>) -> bool + 'a;

impl Tree<'_> {
    /// Sends a signal to those of a listing that are still alive and ours, in this order.
    pub fn signal(&self, receivers: &[Receiver<'_>], sig: Sig, and_then: AndThen, until: Option<Duration>) -> Sent {
        self.reach(receivers, until, &mut |_, pidfd| deliver(pidfd, sig, and_then))
    }

    /// The same with SIGTERM for those alone that ignore the other signal.
    pub fn ask_deaf(&self, receivers: &[Receiver<'_>], to: Sig, until: Option<Duration>) -> Sent {
        self.reach(receivers, until, &mut |process, pidfd| {
            let stat = procfs::stat(process.pid).filter(|stat| process.started_at(stat.start));
            // What was read is of the process that the pidfd means only if that has not been reaped.
            let is_deaf = stat.is_some_and(|stat| stat.ignored.contains(to)) && !sys::has_exited(pidfd);
            is_deaf && deliver(pidfd, Sig::TERM, AndThen::Continue)
        })
    }

    /// Does this with those of a listing that are still alive and ours, in this order. Ends at this moment, if one is given,
    /// but not before it was done with the first.
    pub fn reach(&self, receivers: &[Receiver<'_>], until: Option<Duration>, act: &mut Act<'_>) -> Sent {
        let mut sent = Sent::default();
        let mut line = Line::new(batch());
        let mut rest = receivers;
        // Who is in the boundary stays in it without a parent: then who is known already need not wait for the others.
        let is_loose = |receiver: &Receiver<'_>| receiver.pidfd.is_none() && receiver.process.net == Net::Ancestry;
        let has_loose = receivers.iter().any(is_loose);
        while !rest.is_empty() && (rest.len() == receivers.len() || !is_late(until)) {
            let most = if rest[0].pidfd.is_some() && !has_loose { 1 } else { line.most };
            let some = &rest[..rest.len().min(most)];
            // What it holds can be let go for another attempt, but not what this one comes to hold.
            let had_more = !line.is_empty();
            let taken = match self.take_aim(some, &mut line, until) {
                Ok(Aimed { taken, aims }) => {
                    let reached = aims.iter().filter(|(process, aim)| act(process, aim.pidfd()));
                    sent.to.extend(reached.map(|(process, _)| process.pid));
                    taken
                }
                Err(_) if some.len() > 1 || had_more => {
                    line = Line::new((some.len() / 2).max(1));
                    continue;
                }
                Err(error) => {
                    line = Line::new(1);
                    sent.missed += 1;
                    sent.why = Some(error);
                    1
                }
            };
            rest = &rest[taken..];
        }
        sent
    }

    /// Confirms receivers, at least one and not much longer than `PATIENCE`.
    ///
    /// # Errors
    /// The want of descriptors or memory for so many.
    fn take_aim<'a>(&self, some: &[Receiver<'a>], line: &mut Line, until: Option<Duration>) -> io::Result<Aimed<'a>> {
        let by = sys::now() + PATIENCE;
        let by = until.map_or(by, |until| until.min(by));
        let mut aims = vec![];
        let mut taken = 0;
        for Receiver { process, pidfd } in some {
            if taken > 0 && is_late(Some(by)) {
                break;
            }
            taken += 1;
            let aim = match pidfd {
                Some(pidfd) => Some(Aim::Given(*pidfd)),
                None if process.net == Net::Boundary => open(process.pid)?.map(Aim::Opened),
                None => line.confirm(process)?.map(Aim::Confirmed),
            };
            aims.extend(aim.map(|aim| (*process, aim)));
        }
        if aims.iter().any(|(_, aim)| matches!(aim, Aim::Opened(_))) {
            aims = self.prove(aims, line)?;
        }
        Ok(Aimed { taken, aims })
    }

    /// Leaves out those of the opened who are no members of the boundary. The pidfds were opened before membership is read
    /// again: who is still listed, and had not ended when that was read, is the process that the pidfd means.
    fn prove<'a>(&self, aims: Aims<'a>, line: &mut Line) -> io::Result<Aims<'a>> {
        let members = match self.members() {
            Ok(members) => Some(members),
            Err(error) if sys::is_shortage(&error) && aims.len() > 1 => return Err(error),
            // Whoever is no descendant of ours either can't be confirmed.
            Err(_) => None,
        };
        let mut proved = vec![];
        for (process, aim) in aims {
            let pid = process.pid;
            let aim = match (aim, &members) {
                (Aim::Opened(pidfd), Some(members)) => (members.contains(&pid.as_raw_pid())
                    && !sys::has_exited(pidfd.as_fd()))
                .then_some(Aim::Opened(pidfd)),
                (Aim::Opened(pidfd), None) => {
                    // The line needs the descriptor.
                    drop(pidfd);
                    line.confirm(process)?.map(Aim::Confirmed)
                }
                (aim, _) => Some(aim),
            };
            proved.extend(aim.map(|aim| (process, aim)));
        }
        Ok(proved)
    }
}

/// A pidfd; `None` if nobody has this pid.
///
/// # Errors
/// The want of descriptors or memory.
pub(super) fn open(pid: Pid) -> io::Result<Option<OwnedFd>> {
    match pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from) {
        Ok(pidfd) => Ok(Some(pidfd)),
        Err(error) if sys::is_shortage(&error) => Err(error),
        Err(_) => Ok(None),
    }
}

/// Sends a signal; whether that could be done.
pub fn deliver(pidfd: BorrowedFd<'_>, sig: Sig, and_then: AndThen) -> bool {
    let is_sent = sys::send_signal(pidfd, sig).is_ok();
    if is_sent && and_then == AndThen::Continue && !matches!(sig, Sig::KILL | Sig::CONT) {
        // It may have acted on the first already.
        let _ = sys::send_signal(pidfd, Sig::CONT);
    }
    is_sent
}
