//! Confirming that a process descends from us, by ancestry alone.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};

use rustix::process::Pid;

use super::{open, procfs};
use crate::sys;

/// How often a line of descent that changes under our eyes is followed.
const ATTEMPTS: usize = 5;

/// Processes that were confirmed to descend from us, with the pidfds that make it stay so.
pub(super) struct Line {
    /// How many of them are kept.
    most: usize,
    confirmed: BTreeMap<i32, OwnedFd>,
    /// The oldest first.
    order: VecDeque<i32>,
}

impl Line {
    pub(super) fn new(most: usize) -> Line {
        Line { most, confirmed: BTreeMap::new(), order: VecDeque::new() }
    }

    /// A pidfd of a process that is proved to descend from us; `None` if that can't be shown.
    pub(super) fn confirm(&mut self, pid: Pid) -> Option<&OwnedFd> {
        for _ in 0..ATTEMPTS {
            if self.try_confirm(pid).is_some() {
                return self.get(pid);
            }
            // An ancestor that ends meanwhile has handed its children to us by the time its pidfd tells: ask again. Of
            // one that has ended itself there is nothing to ask.
            procfs::stat(pid).filter(|stat| !stat.is_dead())?;
        }
        None
    }

    /// Going up, the numbers of its ancestors are read. Then, from the top, a pidfd of each is opened and its parent read
    /// again while the parent's pidfd shows that it still lives, so that both numbers mean those very processes.
    fn try_confirm(&mut self, pid: Pid) -> Option<()> {
        let me = sys::own_pid();
        let mut ancestors = vec![];
        let mut next = pid;
        while next != me && self.get(next).is_none() && ancestors.len() < DEEPEST {
            ancestors.push(next);
            next = procfs::stat(next)?.parent?;
        }
        for pid in ancestors.into_iter().rev() {
            let pidfd = open(pid)?;
            let parent = procfs::stat(pid)?.parent?;
            // The status was that of the process which the pidfd means only if that has not been reaped.
            if (parent != me && self.get(parent).is_none()) || sys::has_exited(pidfd.as_fd()) {
                return None;
            }
            self.keep(pid, pidfd);
        }
        Some(())
    }

    fn get(&self, pid: Pid) -> Option<&OwnedFd> {
        self.confirmed.get(&pid.as_raw_pid()).filter(|pidfd| !sys::has_exited(pidfd.as_fd()))
    }

    /// Keeps one more; the oldest goes, which is never the parent of the next in a line.
    fn keep(&mut self, pid: Pid, pidfd: OwnedFd) {
        if self.confirmed.insert(pid.as_raw_pid(), pidfd).is_none() {
            self.order.push_back(pid.as_raw_pid());
        }
        if self.order.len() > self.most
            && let Some(oldest) = self.order.pop_front()
        {
            self.confirmed.remove(&oldest);
        }
    }
}

/// A line of descent that seems longer is one that changes while it is read.
const DEEPEST: usize = 1 << 16;
