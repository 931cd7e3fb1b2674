//! Confirming that a process descends from us, by ancestry alone.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use rustix::process::Pid;

use super::signalling::open;
use super::{Process, procfs};
use crate::sys;

/// How often a line of descent that changes under our eyes is followed.
const ATTEMPTS: usize = 5;

/// A line of descent that seems longer is one that changes while it is read.
const DEEPEST: usize = 1 << 16;

/// Processes that were confirmed to descend from us, with the pidfds that make it stay so.
pub(super) struct Line {
    /// How many of them are kept.
    pub(super) most: usize,
    confirmed: BTreeMap<i32, Confirmed>,
    /// The oldest first.
    order: VecDeque<i32>,
}

struct Confirmed {
    pidfd: Rc<OwnedFd>,
    start: u64,
}

impl Line {
    pub(super) fn new(most: usize) -> Line {
        Line { most, confirmed: BTreeMap::new(), order: VecDeque::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// A pidfd of a process of a listing that is proved to descend from us; `None` if that can't be shown. Who has got its
    /// pid since may descend from us, too, and is another.
    ///
    /// # Errors
    /// The want of descriptors or memory.
    pub(super) fn confirm(&mut self, process: &Process) -> io::Result<Option<Rc<OwnedFd>>> {
        let pid = process.pid;
        let is_it = |confirmed: &&Confirmed| process.stat.is_none() || process.started_at(confirmed.start);
        for _ in 0..ATTEMPTS {
            if self.try_confirm(pid)? {
                return Ok(self.get(pid).filter(is_it).map(|confirmed| confirmed.pidfd.clone()));
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
        let mut ancestors = vec![];
        let mut next = pid;
        while next != me && self.get(next).is_none() && ancestors.len() < DEEPEST {
            ancestors.push(next);
            let Some(parent) = procfs::try_stat(next)?.and_then(|stat| stat.parent) else { return Ok(false) };
            next = parent;
        }
        for pid in ancestors.into_iter().rev() {
            let Some(pidfd) = open(pid)? else { return Ok(false) };
            let Some(stat) = procfs::try_stat(pid)? else { return Ok(false) };
            let Some(parent) = stat.parent else { return Ok(false) };
            // The status was that of the process which the pidfd means only if that has not been reaped.
            if (parent != me && self.get(parent).is_none()) || sys::has_exited(pidfd.as_fd()) {
                return Ok(false);
            }
            self.keep(pid, Confirmed { pidfd: pidfd.into(), start: stat.start });
        }
        Ok(true)
    }

    fn get(&self, pid: Pid) -> Option<&Confirmed> {
        self.confirmed.get(&pid.as_raw_pid()).filter(|confirmed| !sys::has_exited(confirmed.pidfd.as_fd()))
    }

    /// Keeps one more; the oldest goes, which is never the parent of the next in a line.
    fn keep(&mut self, pid: Pid, confirmed: Confirmed) {
        if self.confirmed.insert(pid.as_raw_pid(), confirmed).is_none() {
            self.order.push_back(pid.as_raw_pid());
        }
        if self.order.len() > self.most
            && let Some(oldest) = self.order.pop_front()
        {
            self.confirmed.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::tree::Net;

    #[test]
    fn a_child_is_confirmed_and_who_has_got_the_pid_of_another_is_not() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().expect("cat is everywhere");
        let pid = Pid::from_child(&child);
        let mut process = Process { pid, stat: procfs::stat(pid), net: Net::Ancestry };
        let confirm = |process: &Process| Line::new(4).confirm(process).expect("there are descriptors").is_some();
        assert!(confirm(&process));
        process.stat.as_mut().expect("it lives").start -= 1;
        assert!(!confirm(&process));
        drop(child.stdin.take());
        child.wait().expect("it is our child");
    }
}
