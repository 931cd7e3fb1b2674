//! The tree of the command as its subreaper sees it: listing, confirming, signalling; `drain` ends it. The keeper runs
//! it, and the front or the deputy if the keeper is dead.
//!
//! No signal goes to a pid that was only read somewhere: a pidfd is opened first, and then the process is confirmed to
//! be ours, by membership in the boundary or by ancestry from the top.

mod activity;
mod births;
mod calls;
mod descent;
mod drain;
mod picture;
pub mod procfs;
#[cfg(any(test, fuzzing))]
pub(crate) mod properties;

use std::cell::{Cell, OnceCell};
use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, pidfd_open};

pub use activity::Activity;
pub use births::Births;
use descent::Line;
pub use drain::Drained;
pub use picture::{Picture, Seen};
use serde::Serialize;

use crate::boundary::{Boundary, Namespace};
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Net {
    /// It is in the boundary.
    Boundary,
    /// It descends from us, and has left the boundary.
    Ancestry,
}

impl Net {
    /// As the report and the messages name it.
    pub fn in_words(self) -> &'static str {
        match self {
            Net::Boundary => "boundary",
            Net::Ancestry => "ancestry",
        }
    }
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

    /// Whether it may do something of its own about this signal: it has a handler, or takes it from a descriptor. True where
    /// that can't be seen.
    pub fn acts_on(&self, sig: Sig) -> bool {
        let acts = |stat: &procfs::Stat| {
            !stat.ignored.contains(sig) && (stat.caught.contains(sig) || stat.blocked.contains(sig))
        };
        sig.is_real_time() || self.stat.as_ref().is_none_or(acts)
    }

    /// Whether this signal ends it without its having a say.
    pub fn is_ended_by(&self, sig: Sig) -> bool {
        let ignores = self.stat.as_ref().is_some_and(|stat| stat.ignored.contains(sig));
        sig.is_fatal() && !ignores && !self.acts_on(sig)
    }

    fn started_at(&self, start: u64) -> bool {
        self.stat.as_ref().is_some_and(|stat| stat.start == start)
    }
}

/// The tree below this process and in its boundary.
pub struct Tree<'a> {
    boundary: &'a dyn Boundary,
    /// Ancestry can be read in /proc; asked for when it is first needed, which a run that leaves nothing never does.
    sees_ancestry: OnceCell<bool>,
    /// Who is kept running: they and what descends from them are no part of the tree any more.
    spared: Vec<Process>,
    /// Why the last attempt to send SIGKILL failed, if it did.
    obstacle: Cell<Option<i32>>,
}

impl<'a> Tree<'a> {
    /// The tree below this process, which must be the subreaper of the command.
    pub fn new(boundary: &'a dyn Boundary) -> Tree<'a> {
        Tree { boundary, sees_ancestry: OnceCell::new(), spared: vec![], obstacle: Cell::new(None) }
    }

    fn sees_ancestry(&self) -> bool {
        if self.sees_ancestry.get().is_none() {
            match procfs::shows_our_namespace() {
                Ok(shows) => drop(self.sees_ancestry.set(shows)),
                // It is asked for again.
                Err(error) => self.obstacle.set(error.raw_os_error()),
            }
        }
        self.sees_ancestry.get() == Some(&true)
    }

    /// Takes these out of the tree, with what descends from them.
    pub fn spare(&mut self, processes: impl IntoIterator<Item = Process>) {
        self.spared.extend(processes);
    }

    /// Whether this process was taken out of the tree.
    pub fn is_spared(&self, pid: Pid) -> bool {
        let mut same = self.spared.iter().filter(|spared| spared.pid == pid).peekable();
        // The number may have become another's.
        same.peek().is_some() && procfs::stat(pid).is_some_and(|stat| same.any(|spared| spared.started_at(stat.start)))
    }

    /// Whether nothing is left of the tree but those who were spared. There is no other proof of that than two walks that
    /// agree, which a listing is.
    pub fn is_spared_alone(&self) -> bool {
        !self.spared.is_empty() && self.list(None).is_empty()
    }

    /// What of the two nets is missing here, if anything is.
    pub fn degraded(&self) -> Option<&'static str> {
        (!self.sees_ancestry()).then_some(
            "/proc is not of this PID namespace, so a process that leaves the cgroup is waited for, but cannot be ended",
        )
    }

    /// Lists the processes that are alive, in the boundary or below us. Ends at this moment, if one is given, with whoever
    /// has been found by then: a storm of sessions leaves us little of the CPUs, and the rest is SIGKILL's to find.
    pub fn list(&self, until: Option<Duration>) -> Vec<Process> {
        // A tree has more processes than a soft limit may leave us descriptors to look at it.
        let _ = batch();
        let members = self.members();
        // It is ours and no part of the tree: whoever signals or names the tree does not mean it.
        let init = self.boundary.namespace().map(Namespace::init);
        let mut processes = vec![];
        for pid in members.iter().copied().filter_map(Pid::from_raw).take_while(|_| !is_late(until)) {
            if self.is_spared(pid) {
                continue;
            }
            let stat = if self.sees_ancestry() { procfs::stat(pid) } else { None };
            let is_living = match &stat {
                Some(stat) => is_somebody(pid, stat),
                None => open(pid).is_some_and(|pidfd| !sys::has_exited(pidfd.as_fd())),
            };
            // Whoever moved us into the boundary does not make us a part of the tree.
            if is_living && pid != sys::own_pid() {
                processes.push(Process { pid, stat, net: Net::Boundary });
            }
        }
        if self.sees_ancestry() {
            let is_outside = |pid: &Pid| !members.contains(&pid.as_raw_pid()) && Some(*pid) != init;
            let outside = self.descendants(until).into_iter().filter(is_outside);
            for pid in outside.take_while(|_| !is_late(until)) {
                // Hidden or gone.
                let Some(stat) = procfs::stat(pid) else { continue };
                if is_somebody(pid, &stat) {
                    processes.push(Process { pid, stat: Some(stat), net: Net::Ancestry });
                }
            }
        }
        processes
    }

    fn members(&self) -> BTreeSet<i32> {
        self.boundary.members().unwrap_or_default().into_iter().map(Pid::as_raw_pid).collect()
    }

    /// Everything below this process, parents before their children, as far as /proc shows it at this moment.
    fn descendants(&self, until: Option<Duration>) -> Vec<Pid> {
        let mut found = vec![];
        let mut known = BTreeSet::new();
        for _ in 0..WALKS {
            let before = found.len();
            let mut queue = VecDeque::from([sys::own_pid()]);
            let mut visited = BTreeSet::new();
            while let Some(parent) = queue.pop_front().filter(|_| !is_late(until)) {
                // A process that ended in between has no children any more: they are ours.
                let _ = procfs::for_each_child(parent, &mut |pid| {
                    // Reading /proc of the thousands of dead that a fork storm leaves takes seconds where the storm has the CPUs.
                    if is_late(until) || (parent == sys::own_pid() && sys::has_ended(pid)) {
                        return;
                    }
                    if !self.is_spared(pid) && visited.insert(pid.as_raw_pid()) {
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

    /// Sends a signal to those of a listing that are still alive and ours; gives how many got it. Ends at this moment, if
    /// one is given.
    pub fn signal(&self, processes: &[&Process], sig: Sig, and_then: AndThen, until: Option<Duration>) -> usize {
        self.reach(processes, until, &mut |_, pidfd| deliver(pidfd, sig, and_then))
    }

    /// The same with SIGTERM for those alone that ignore the other signal; gives who got it.
    pub fn ask_deaf(&self, processes: &[&Process], to: Sig, until: Option<Duration>) -> BTreeSet<i32> {
        let mut asked = BTreeSet::new();
        self.reach(processes, until, &mut |process, pidfd| {
            let stat = procfs::stat(process.pid).filter(|stat| process.started_at(stat.start));
            // What was read is of the process that the pidfd means only if that has not been reaped.
            let is_deaf = stat.is_some_and(|stat| stat.ignored.contains(to)) && !sys::has_exited(pidfd.as_fd());
            let is_asked = is_deaf && deliver(pidfd, Sig::TERM, AndThen::Continue);
            asked.extend(is_asked.then_some(process.pid.as_raw_pid()));
            is_asked
        });
        asked
    }

    /// Does this with those of a listing that are still alive and ours, and their pidfds; gives with how many it was done.
    fn reach(&self, processes: &[&Process], until: Option<Duration>, act: &mut Act) -> usize {
        let (inside, outside): (Vec<&Process>, Vec<&Process>) =
            processes.iter().copied().partition(|process| process.net == Net::Boundary);
        let batch = batch();
        let inside: usize =
            inside.chunks(batch).take_while(|_| !is_late(until)).map(|members| self.reach_members(members, act)).sum();
        let mut line = Line::new(batch);
        inside
            + outside
                .iter()
                .take_while(|_| !is_late(until))
                .filter(|process| line.confirm(process.pid).is_some_and(|pidfd| act(process, pidfd)))
                .count()
    }

    /// The same with members of the boundary. The pidfds are opened before membership is read again: who is still listed, and
    /// had not ended when that was read, is the process that the pidfd means.
    fn reach_members(&self, processes: &[&Process], act: &mut Act) -> usize {
        let pidfds: Vec<(&Process, OwnedFd)> =
            processes.iter().filter_map(|process| Some((*process, open(process.pid)?))).collect();
        let members = self.members();
        let is_confirmed = |process: &Process, pidfd: &OwnedFd| {
            members.contains(&process.pid.as_raw_pid()) && !sys::has_exited(pidfd.as_fd())
        };
        pidfds.iter().filter(|(process, pidfd)| is_confirmed(process, pidfd) && act(process, pidfd)).count()
    }
}

/// What is done with a confirmed process and its pidfd, and whether that succeeded.
type Act<'a> = dyn FnMut(&Process, &OwnedFd) -> bool + 'a;

/// How often the tree is walked for a listing: one walk can miss a process that is just getting a new parent. What a
/// tree that changes all the time hides even so is SIGKILL's to find.
const WALKS: usize = 3;

/// One that has ended is nobody to signal or to name, unless a tracer keeps us from reaping it.
fn is_somebody(pid: Pid, stat: &procfs::Stat) -> bool {
    !stat.is_dead() || procfs::tracer(pid).is_some()
}

fn is_late(until: Option<Duration>) -> bool {
    until.is_some_and(|until| sys::now() >= until)
}

fn open(pid: Pid) -> Option<OwnedFd> {
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// What follows a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AndThen {
    /// SIGCONT, so that a stopped process can act on the signal.
    Continue,
    /// Nothing.
    Nothing,
}

/// Sends a signal; whether that could be done.
pub fn deliver(pidfd: &OwnedFd, sig: Sig, and_then: AndThen) -> bool {
    let is_sent = sys::send_signal(pidfd.as_fd(), sig).is_ok();
    if is_sent && and_then == AndThen::Continue && !matches!(sig, Sig::KILL | Sig::CONT) {
        // It may have acted on the first already.
        let _ = sys::send_signal(pidfd.as_fd(), Sig::CONT);
    }
    is_sent
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::boundary::Occupancy;

    /// A boundary around somebody who lives.
    struct Around(Pid);

    impl Boundary for Around {
        fn name(&self) -> String {
            "around".into()
        }
        fn members(&self) -> io::Result<Vec<Pid>> {
            Ok(vec![self.0])
        }
        fn kill(&self) -> io::Result<()> {
            Ok(())
        }
        fn remove(&self) -> io::Result<Occupancy> {
            Ok(Occupancy::Populated)
        }
        fn release(&self, _: &dyn Fn(Pid) -> bool) -> io::Result<Vec<Pid>> {
            Ok(vec![])
        }
    }

    #[test]
    fn a_listing_ends_in_time_whoever_is_left_to_look_at() {
        let parent = rustix::process::getppid().expect("somebody runs the tests");
        let boundary = Around(parent);
        let tree = Tree::new(&boundary);
        let names = |until| tree.list(until).iter().any(|process| process.pid == parent);
        assert!(names(None));
        assert!(!names(Some(sys::now())));
    }
}
