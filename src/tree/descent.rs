//! Confirming that a process descends from us, by ancestry alone.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use rustix::process::Pid;

use super::procfs;
use super::signalling::open;
use crate::sys;

/// How often a line of descent that changes under our eyes is followed.
const ATTEMPTS: usize = 5;

/// A line of descent that seems longer is one that changes while it is read.
const DEEPEST: usize = 1 << 16;

/// Processes that were confirmed to descend from us, with the pidfds that make it stay so.
pub(super) struct Line {
    /// How many of them are kept.
    pub(super) most: usize,
    confirmed: BTreeMap<i32, Rc<OwnedFd>>,
    /// The oldest first.
    order: VecDeque<i32>,
}

impl Line {
    pub(super) fn new(most: usize) -> Line {
        Line { most, confirmed: BTreeMap::new(), order: VecDeque::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// A pidfd of a process that is proved to descend from us; `None` if that can't be shown.
    ///
    /// # Errors
    /// The want of descriptors or memory.
    pub(super) fn confirm(&mut self, pid: Pid) -> io::Result<Option<Rc<OwnedFd>>> {
        for _ in 0..ATTEMPTS {
            if self.try_confirm(pid)? {
                return Ok(self.get(pid).cloned());
            }
            // An ancestor that ends meanwhile has handed its children to us by the time its pidfd tells: ask again. Of
            // one that has ended itself there is nothing to ask.
            if procfs::try_stat(pid)?.is_none_or(|stat| stat.is_dead()) {
                break;
            }
        }
        Ok(None)
    }

    /// Going up, the numbers of its ancestors are read. Then, from the top, a pidfd of each is opened and its parent read
    /// again while the parent's pidfd shows that it still lives, so that both numbers mean those very processes.
    fn try_confirm(&mut self, pid: Pid) -> io::Result<bool> {
        let me = sys::own_pid();
        let parent_of = |pid| Ok::<_, io::Error>(procfs::try_stat(pid)?.and_then(|stat| stat.parent));
        let mut ancestors = vec![];
        let mut next = pid;
        while next != me && self.get(next).is_none() && ancestors.len() < DEEPEST {
            ancestors.push(next);
            let Some(parent) = parent_of(next)? else { return Ok(false) };
            next = parent;
        }
        for pid in ancestors.into_iter().rev() {
            let Some(pidfd) = open(pid)? else { return Ok(false) };
            let Some(parent) = parent_of(pid)? else { return Ok(false) };
            // The status was that of the process which the pidfd means only if that has not been reaped.
            if (parent != me && self.get(parent).is_none()) || sys::has_exited(pidfd.as_fd()) {
                return Ok(false);
            }
            self.keep(pid, pidfd);
        }
        Ok(true)
    }

    fn get(&self, pid: Pid) -> Option<&Rc<OwnedFd>> {
        self.confirmed.get(&pid.as_raw_pid()).filter(|pidfd| !sys::has_exited(pidfd.as_fd()))
    }

    /// Keeps one more; the oldest goes, which is never the parent of the next in a line.
    fn keep(&mut self, pid: Pid, pidfd: OwnedFd) {
        if self.confirmed.insert(pid.as_raw_pid(), pidfd.into()).is_none() {
            self.order.push_back(pid.as_raw_pid());
        }
        if self.order.len() > self.most
            && let Some(oldest) = self.order.pop_front()
        {
            self.confirmed.remove(&oldest);
        }
    }
}
