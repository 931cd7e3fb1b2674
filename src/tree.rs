//! The tree of the command as its subreaper sees it: listing, confirming, signalling; `drain` ends it. The keeper runs
//! it, and the front or the deputy if the keeper is dead.
//!
//! No signal goes to a pid that was only read somewhere: a pidfd is opened first, and then the process is confirmed to
//! be ours, by membership in the boundary or by ancestry from the top.

mod drain;
pub mod procfs;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};

pub use drain::Drained;

use crate::boundary::Boundary;
use crate::signals::Sig;
use crate::sys;

/// How many pidfds are open at once at most.
const LARGEST_BATCH: usize = 256;

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

/// Which net holds a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Net {
    /// It is in the boundary.
    Boundary,
    /// It descends from us, and has left the boundary.
    Ancestry,
}

/// A process of the tree at the moment of a listing.
#[derive(Clone, Debug)]
pub struct Process {
    /// Its pid.
    pub pid: Pid,
    /// What /proc said of it; `None` where that is hidden.
    pub stat: Option<procfs::Stat>,
    /// What holds it.
    pub net: Net,
}

impl Process {
    /// The same process in another listing: same pid, and where that can be seen same start.
    pub fn is(&self, other: &Process) -> bool {
        let start = |process: &Process| process.stat.as_ref().map(|stat| stat.start);
        self.pid == other.pid && start(self) == start(other)
    }
}

/// The tree below this process and in its boundary.
pub struct Tree<'a> {
    boundary: &'a dyn Boundary,
    /// Ancestry can be read in /proc.
    sees_ancestry: bool,
}

impl<'a> Tree<'a> {
    /// The tree below this process, which must be the subreaper of the command.
    pub fn new(boundary: &'a dyn Boundary) -> Tree<'a> {
        Tree { boundary, sees_ancestry: procfs::shows_our_namespace() }
    }

    /// Lists the processes that are alive, in the boundary or below us.
    pub fn list(&self) -> Vec<Process> {
        let members: BTreeSet<i32> =
            self.boundary.members().unwrap_or_default().into_iter().map(Pid::as_raw_pid).collect();
        let mut processes = vec![];
        let mut seen = BTreeSet::new();
        if self.sees_ancestry {
            for pid in descendants() {
                seen.insert(pid.as_raw_pid());
                let net = if members.contains(&pid.as_raw_pid()) { Net::Boundary } else { Net::Ancestry };
                // One that has ended since is nobody to signal or to name, unless a tracer keeps us from reaping it.
                if let Some(stat) = procfs::stat(pid).filter(|stat| !stat.is_dead() || procfs::tracer(pid).is_some()) {
                    processes.push(Process { pid, stat: Some(stat), net });
                }
            }
        }
        for pid in members.into_iter().filter(|pid| !seen.contains(pid)).filter_map(Pid::from_raw) {
            let stat = if self.sees_ancestry { procfs::stat(pid) } else { None };
            if !stat.as_ref().is_some_and(procfs::Stat::is_dead) {
                processes.push(Process { pid, stat, net: Net::Boundary });
            }
        }
        processes
    }

    /// Sends a signal to those of a listing that are still alive and ours, each followed by SIGCONT so that a stopped one
    /// can act on it; gives how many got it.
    pub fn signal(&self, processes: &[&Process], sig: Sig) -> usize {
        let (inside, outside): (Vec<&Process>, Vec<&Process>) =
            processes.iter().copied().partition(|process| process.net == Net::Boundary);
        let batch = batch();
        let inside: usize = inside.chunks(batch).map(|members| self.signal_members(members, sig)).sum();
        let mut line = Line { longest: batch, confirmed: BTreeMap::new() };
        inside
            + outside
                .iter()
                .filter(|process| line.confirm(process.pid).is_some_and(|pidfd| deliver(pidfd, sig)))
                .count()
    }

    /// Signals members of the boundary. The pidfds are opened before membership is read again: who is still listed, and
    /// had not ended when that was read, is the process that the pidfd means.
    fn signal_members(&self, processes: &[&Process], sig: Sig) -> usize {
        let pidfds: Vec<(Pid, OwnedFd)> =
            processes.iter().filter_map(|process| Some((process.pid, open(process.pid)?))).collect();
        let members: BTreeSet<i32> =
            self.boundary.members().unwrap_or_default().into_iter().map(Pid::as_raw_pid).collect();
        let is_confirmed = |pid: &Pid, pidfd: &OwnedFd| members.contains(&pid.as_raw_pid()) && is_alive(pidfd);
        pidfds.iter().filter(|(pid, pidfd)| is_confirmed(pid, pidfd) && deliver(pidfd, sig)).count()
    }
}

/// How often the tree is walked for a listing: one walk can miss a process that is just getting a new parent. What a
/// tree that changes all the time hides even so is SIGKILL's to find.
const WALKS: usize = 3;

/// Everything below this process, parents before their children, as far as /proc shows it at this moment.
fn descendants() -> Vec<Pid> {
    let mut found = vec![];
    let mut known = BTreeSet::new();
    for _ in 0..WALKS {
        let before = found.len();
        let mut queue = VecDeque::from([getpid()]);
        let mut visited = BTreeSet::new();
        while let Some(parent) = queue.pop_front() {
            // A process that ended in between has no children any more: they are ours.
            let _ = procfs::for_each_child(parent, &mut |pid| {
                // Reading /proc of the thousands of dead that a fork storm leaves takes seconds where the storm has the CPUs.
                if parent == getpid() && sys::has_ended(pid) {
                    return;
                }
                if visited.insert(pid.as_raw_pid()) {
                    queue.push_back(pid);
                    if known.insert(pid.as_raw_pid()) {
                        found.push(pid);
                    }
                }
            });
        }
        if found.len() == before {
            break;
        }
    }
    found
}

/// How often a line of descent that changes under our eyes is followed.
const ATTEMPTS: usize = 5;

/// Lines of descent that were confirmed, with the pidfds that make it stay so.
struct Line {
    /// How many pidfds a line may take.
    longest: usize,
    confirmed: BTreeMap<i32, OwnedFd>,
}

impl Line {
    /// A pidfd of a process that is proved to descend from us; `None` if that can't be shown.
    fn confirm(&mut self, pid: Pid) -> Option<&OwnedFd> {
        // An ancestor that ends meanwhile has handed its children to us by the time its pidfd tells: ask again.
        (0..ATTEMPTS).find_map(|_| self.try_confirm(pid))?;
        self.confirmed.get(&pid.as_raw_pid()).filter(|pidfd| is_alive(pidfd))
    }

    /// Going up, a pidfd of each ancestor is opened; then, from the top, each one's parent is read again while the
    /// parent's pidfd shows that it still lives, so that the number read means that very process.
    fn try_confirm(&mut self, pid: Pid) -> Option<()> {
        if self.confirmed.len() > self.longest {
            self.confirmed.clear();
        }
        let me = getpid();
        let mut line = vec![];
        let mut next = pid;
        while next != me && !self.confirmed.contains_key(&next.as_raw_pid()) && line.len() < self.longest {
            line.push((next, open(next)?));
            next = procfs::stat(next)?.parent?;
        }
        for (pid, pidfd) in line.into_iter().rev() {
            let parent = procfs::stat(pid)?.parent?;
            if parent != me && !self.confirmed.get(&parent.as_raw_pid()).is_some_and(is_alive) {
                return None;
            }
            // The status was that of the process which the pidfd means only if that has not been reaped.
            if !is_alive(&pidfd) {
                return None;
            }
            self.confirmed.insert(pid.as_raw_pid(), pidfd);
        }
        Some(())
    }
}

fn open(pid: Pid) -> Option<OwnedFd> {
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Whether a process has not ended; its pid is its own at least as long.
fn is_alive(pidfd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())) == Ok(0)
}

/// Sends a signal and then SIGCONT; whether the first could be sent.
pub fn deliver(pidfd: &OwnedFd, sig: Sig) -> bool {
    let is_sent = sys::send_signal(pidfd.as_fd(), sig).is_ok();
    if is_sent && !matches!(sig, Sig::KILL | Sig::CONT) {
        // It may have acted on the first already.
        let _ = sys::send_signal(pidfd.as_fd(), Sig::CONT);
    }
    is_sent
}
