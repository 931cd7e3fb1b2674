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
mod signalling;

use std::cell::{Cell, OnceCell};
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::process::Pid;

pub use activity::Activity;
pub use births::Births;
pub use drain::Drained;
pub use picture::{Picture, Seen};
use serde::Serialize;
pub use signalling::{AndThen, Receiver, Sent, batch, deliver};

use crate::boundary::{Boundary, Namespace};
use crate::signals::Sig;
use crate::sys;

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

    /// Whether it goes by another name in another listing, as after execve(2). False where that can't be seen.
    pub fn is_another_program(&self, other: &Process) -> bool {
        let names = (self.stat.as_ref().map(|stat| &stat.comm), other.stat.as_ref().map(|stat| &stat.comm));
        matches!(names, (Some(one), Some(other)) if one != other)
    }

    /// Whether it may do something of its own about this signal: it has a handler, or takes it from a descriptor. True where
    /// that can't be seen.
    pub fn acts_on(&self, sig: Sig) -> bool {
        let acts = |stat: &procfs::Stat| {
            !stat.ignored.contains(sig) && (stat.caught.contains(sig) || stat.blocked.contains(sig))
        };
        sig.is_real_time() || self.stat.as_ref().is_none_or(acts)
    }

    /// Whether it leaves this signal to the kernel's default action. True where that can't be seen.
    pub fn has_default_for(&self, sig: Sig) -> bool {
        let has_own_way =
            |stat: &procfs::Stat| [stat.ignored, stat.caught, stat.blocked].iter().any(|set| set.contains(sig));
        !self.stat.as_ref().is_some_and(has_own_way)
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

/// What a look at the tree has found.
struct Look {
    processes: Vec<Process>,
    /// Why it may lack somebody, if something could not be read.
    unread: Option<io::Error>,
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
    /// Why the last listing may lack somebody.
    unread: Cell<Option<io::Error>>,
}

impl<'a> Tree<'a> {
    /// The tree below this process, which must be the subreaper of the command.
    pub fn new(boundary: &'a dyn Boundary) -> Tree<'a> {
        Tree {
            boundary,
            sees_ancestry: OnceCell::new(),
            spared: vec![],
            obstacle: Cell::new(None),
            unread: Cell::new(None),
        }
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
        if same.peek().is_none() {
            return false;
        }
        match procfs::try_stat(pid) {
            // The number may have become another's.
            Ok(stat) => stat.is_some_and(|stat| same.any(|spared| spared.started_at(stat.start))),
            // It is seldom another's, and who was to be spared can't be brought back.
            Err(_) => true,
        }
    }

    /// Whether nothing is left of the tree but those who were spared. There is no other proof of that than two walks that
    /// agree, which a listing is.
    pub fn is_spared_alone(&self) -> bool {
        if self.spared.is_empty() {
            return false;
        }
        let look = self.look(None);
        look.processes.is_empty() && look.unread.is_none()
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
        let look = self.look(until);
        self.unread.set(look.unread);
        look.processes
    }

    /// Why the last listing may lack somebody, if something could not be read.
    pub fn take_unread(&self) -> Option<io::Error> {
        self.unread.take()
    }

    fn look(&self, until: Option<Duration>) -> Look {
        // A tree has more processes than a soft limit may leave us descriptors to look at it.
        let _ = batch();
        let mut look = Look { processes: vec![], unread: None };
        // Whom the boundary does not name for that ancestry does.
        let members = self.members().unwrap_or_else(|error| {
            look.unread = Some(error);
            BTreeSet::new()
        });
        // It is ours and no part of the tree: whoever signals or names the tree does not mean it.
        let init = self.boundary.namespace().map(Namespace::init);
        for pid in members.iter().copied().filter_map(Pid::from_raw).take_while(|_| !is_late(until)) {
            if self.is_spared(pid) {
                continue;
            }
            let stat = if self.sees_ancestry() { procfs::try_stat(pid) } else { Ok(None) };
            let is_living = match &stat {
                Ok(Some(stat)) => is_somebody(pid, stat),
                Ok(None) => signalling::open(pid)
                    .map_or(true, |pidfd| pidfd.is_some_and(|pidfd| !sys::has_exited(pidfd.as_fd()))),
                Err(_) => true,
            };
            // Whoever moved us into the boundary does not make us a part of the tree.
            if is_living && pid != sys::own_pid() {
                look.processes.push(Process { pid, stat: stat.unwrap_or_default(), net: Net::Boundary });
            }
        }
        if self.sees_ancestry() {
            let is_outside = |pid: &Pid| !members.contains(&pid.as_raw_pid()) && Some(*pid) != init;
            let (descendants, unread) = self.descendants(until);
            look.unread = look.unread.or(unread);
            for pid in descendants.into_iter().filter(is_outside).take_while(|_| !is_late(until)) {
                let stat = match procfs::try_stat(pid) {
                    Ok(Some(stat)) if is_somebody(pid, &stat) => Some(stat),
                    // Hidden or gone.
                    Ok(_) => continue,
                    Err(_) => None,
                };
                look.processes.push(Process { pid, stat, net: Net::Ancestry });
            }
        }
        look
    }

    fn members(&self) -> io::Result<BTreeSet<i32>> {
        Ok(self.boundary.members()?.into_iter().map(Pid::as_raw_pid).collect())
    }

    /// Everything below this process, parents before their children, as far as /proc shows it at this moment, and why
    /// not all of it could be read, if that was for want of descriptors or memory.
    fn descendants(&self, until: Option<Duration>) -> (Vec<Pid>, Option<io::Error>) {
        let mut unread = None;
        let mut found = vec![];
        let mut known = BTreeSet::new();
        for _ in 0..WALKS {
            let before = found.len();
            let mut queue = VecDeque::from([sys::own_pid()]);
            let mut visited = BTreeSet::new();
            while let Some(parent) = queue.pop_front().filter(|_| !is_late(until)) {
                // A process that ended in between has no children any more: they are ours.
                let read = procfs::for_each_child(parent, &mut |pid| {
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
                unread = unread.or(read.err().filter(sys::is_shortage));
            }
            if found.len() == before {
                break;
            }
        }
        (found, unread)
    }
}

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

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;
    use crate::boundary::Occupancy;

    /// A boundary around somebody who lives; `None` can't be read.
    struct Around(Option<Pid>);

    impl Boundary for Around {
        fn name(&self) -> String {
            "around".into()
        }
        fn members(&self) -> io::Result<Vec<Pid>> {
            self.0.map(|pid| vec![pid]).ok_or(Errno::MFILE.into())
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
        let boundary = Around(Some(parent));
        let tree = Tree::new(&boundary);
        let names = |until| tree.list(until).iter().any(|process| process.pid == parent);
        assert!(names(None));
        assert!(!names(Some(sys::now())));
    }

    #[test]
    fn a_boundary_that_cannot_be_read_is_not_one_that_nobody_is_in() {
        let parent = rustix::process::getppid().expect("somebody runs the tests");
        let spared = || [Process { pid: parent, stat: procfs::stat(parent), net: Net::Boundary }];
        for (boundary, is_read) in [(Around(Some(parent)), true), (Around(None), false)] {
            let mut tree = Tree::new(&boundary);
            tree.spare(spared());
            let _ = tree.list(None);
            assert_eq!(tree.take_unread().is_none(), is_read);
            assert!(is_read || !tree.is_spared_alone());
        }
    }
}
