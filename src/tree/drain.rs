//! The end of a tree: SIGKILL until the kernel says that nothing is left.

use std::collections::VecDeque;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Pid;

use super::{AndThen, Receiver, Tree, procfs};
use crate::boundary::Occupancy;
use crate::signals::Sig;
use crate::sys::{self, Reaped};

/// How a drain ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// No descendant is left and the boundary is empty.
    Empty,
    /// The limit has passed, and something is left.
    Survivors,
    /// The same, and this process can't send SIGKILL, for this errno: another one may.
    Helpless(i32),
}

/// The first wait for news before SIGKILL is sent again; it doubles up to `LONGEST_PAUSE`.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// The wait for news after which all are looked for, not only our children. A thousand dying processes keep the CPUs for
/// milliseconds from the first whose end we hear of, and looking for them takes longer than they do.
const LONG_PAUSE: Duration = Duration::from_millis(8);

/// A dying task may hold its cgroup for some microseconds after it was reaped, from Linux 6.19 on.
const FIRST_LINGER: Duration = Duration::from_micros(50);

/// How many are reaped at least before the children are read again.
const REAP_AT_LEAST: usize = 64;

/// The children that were killed, in the order in which they die: the kernel's list, which waitid(2) would search from its
/// start for each that it reaps. Of a child that was reaped otherwise the kernel says that there is none.
#[derive(Default)]
struct Dying {
    pids: VecDeque<Pid>,
}

/// So many of the next are asked for: two CPUs end them nearly in order.
const NEXT: usize = 16;

impl Tree<'_> {
    /// Kills the tree and blocks until it is empty or the limit has passed; `None` waits for ever. Every child that
    /// ends is told to `on_reaped`. SIGCHLD must be blocked.
    pub fn drain(&self, limit: Option<Duration>, on_reaped: &mut dyn FnMut(Reaped)) -> Drained {
        let deadline = limit.and_then(|limit| sys::now().checked_add(limit));
        let remaining = |pause: Duration| match deadline {
            Some(deadline) => deadline.checked_sub(sys::now()).map(|left| left.min(pause)),
            None => Some(pause),
        };
        self.kill_boundary();
        if !self.reap_children(&remaining, on_reaped) {
            // The dead whom a tracer keeps from being reaped hold no cgroup.
            let _ = self.boundary.remove();
            return self.survivors();
        }
        // No child is left: who still lives in the boundary never was ours to reap, or escaped into a PID namespace.
        let mut pause = FIRST_LINGER;
        while !matches!(self.boundary.remove(), Ok(Occupancy::Empty)) {
            let Some(wait) = remaining(pause) else { return self.survivors() };
            self.wait_for_boundary(wait);
            self.kill_boundary();
            self.kill_listed();
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Drained::Empty
    }

    fn survivors(&self) -> Drained {
        self.obstacle.get().map_or(Drained::Survivors, Drained::Helpless)
    }

    /// Kills and reaps until no child is left; false if time ran out.
    ///
    /// A fork storm is ended by killing each child as it is read and by reaping no more than were seen before reading
    /// again: whoever reads the whole list first, or reaps without a bound, is outrun.
    fn reap_children(
        &self,
        remaining: &dyn Fn(Duration) -> Option<Duration>,
        on_reaped: &mut dyn FnMut(Reaped),
    ) -> bool {
        let mut pause = FIRST_PAUSE;
        let mut next_sweep = Duration::ZERO;
        let mut dying = Dying::default();
        loop {
            let mut bound = REAP_AT_LEAST;
            if sys::now() >= next_sweep {
                (dying, next_sweep) = self.sweep();
                bound = bound.max(dying.pids.len());
            }
            match dying.reap_some(bound, on_reaped) {
                Reaped::NoChildren => return true,
                Reaped::Nothing if self.is_spared_alone() => {
                    // All others are dead. Those of them who are not among the next are reaped now.
                    dying.pids.clear();
                    dying.reap_some(usize::MAX, on_reaped);
                    return true;
                }
                Reaped::Nothing | Reaped::Unknown(_) => {}
                // More may be waiting; new children are looked for first.
                _ => {
                    pause = FIRST_PAUSE;
                    if remaining(pause).is_none() {
                        return false;
                    }
                    continue;
                }
            }
            let Some(wait) = remaining(pause) else { return false };
            if sys::wait_for_child_signal(wait) {
                pause = FIRST_PAUSE;
            } else {
                // Nobody died in this time: something holds up a part of the tree that is out of reach from here, or
                // cgroup.kill has passed over a process whose first thread has ended.
                if pause >= LONG_PAUSE {
                    self.kill_boundary();
                    self.kill_listed();
                }
                next_sweep = Duration::ZERO;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    /// Kills our children; gives who they were, and when that is worth its time again.
    fn sweep(&self) -> (Dying, Duration) {
        let start = sys::now();
        let dying = Dying { pids: self.kill_children() };
        let end = sys::now();
        // The boundary's own kill has reached nearly all: sweeping takes no more than a small share of the time.
        let is_second_net = self.boundary.events().is_some();
        (dying, if is_second_net { end + (end - start).max(FIRST_PAUSE) * 8 } else { end })
    }

    /// Sends SIGKILL to each child of ours; gives who they were. Nothing is reaped meanwhile, so no pid of a child can have
    /// become somebody else's.
    fn kill_children(&self) -> VecDeque<Pid> {
        let mut killed = VecDeque::new();
        if self.sees_ancestry() {
            // What can't be read now is tried again until no child is left.
            let read = procfs::for_each_child(sys::own_pid(), &mut |pid| {
                if !self.is_spared(pid) {
                    sys::signal_child(pid, Sig::KILL);
                    killed.push_back(pid);
                }
            });
            self.obstacle.set(self.obstacle.get().or(read.err().and_then(|error| error.raw_os_error())));
        }
        killed
    }

    fn kill_listed(&self) {
        let list = self.list(None);
        let receivers: Vec<Receiver<'_>> = list.iter().map(Receiver::from).collect();
        self.signal(&receivers, Sig::KILL, AndThen::Nothing, None);
    }

    fn kill_boundary(&self) {
        // A failure leaves it populated, which the loops above see and name at their limit.
        self.obstacle.set(self.boundary.kill().err().and_then(|error| error.raw_os_error()));
    }

    /// Blocks until the boundary may have changed, at most this long.
    fn wait_for_boundary(&self, timeout: Duration) {
        let events = self.boundary.events();
        let mut fds: Vec<_> =
            events.map(|events| PollFd::from_borrowed_fd(events, PollFlags::PRI)).into_iter().collect();
        // A wake-up is a hint: the caller looks again, whatever this says.
        let _ = poll(&mut fds, Some(&Timespec::try_from(timeout).expect("at most a pause")));
        if let Some(events) = events {
            let _ = crate::boundary::acknowledge(events);
        }
    }
}

impl Dying {
    /// Reaps at most this many children; gives the last news.
    fn reap_some(&mut self, bound: usize, on_reaped: &mut dyn FnMut(Reaped)) -> Reaped {
        let mut last = Reaped::Nothing;
        for count in 0..bound {
            last = self.reap_next();
            // If not even the first of the next has died, others may have, or the end of all is to be seen.
            if last == Reaped::Nothing && (count == 0 || self.pids.is_empty()) {
                last = sys::reap_ended();
            }
            if matches!(last, Reaped::Nothing | Reaped::NoChildren | Reaped::Unknown(_)) {
                break;
            }
            on_reaped(last);
        }
        last
    }

    /// Reaps one of the next.
    fn reap_next(&mut self) -> Reaped {
        let mut at = 0;
        while at < self.pids.len().min(NEXT) {
            match sys::reap_only(self.pids[at]) {
                reaped @ Reaped::Ended(..) => {
                    self.pids.remove(at);
                    return reaped;
                }
                Reaped::NoChildren => drop(self.pids.remove(at)),
                Reaped::Nothing | Reaped::Unknown(_) => at += 1,
                // A moment before it was killed: it is asked again.
                Reaped::Stopped(..) | Reaped::Continued(_) => {}
            }
        }
        Reaped::Nothing
    }
}
