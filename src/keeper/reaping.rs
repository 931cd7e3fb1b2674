//! Reaping: what became of the keeper's children, and whether the boundary is empty once none is left.

use std::time::Duration;

use rustix::process::Pid;

use super::Keeper;
use crate::boundary::{self, Namespace, Occupancy};
use crate::signals::Sig;
use crate::supervisor::Event;
use crate::sys::{self, Reaped};
use crate::wire::ToFront;

/// When the boundary is looked at again, should the kernel not say that it changed: a dying task may hold it for
/// microseconds, a stranger in it for hours.
pub(super) struct Watch {
    pub(super) at: Duration,
    pause: Duration,
}

const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How many children are reaped before the clock and the other descriptors get their turn. A storm of sessions leaves us
/// a hundredth of a CPU: more than these could take seconds.
const REAP_AT_MOST: usize = 64;

impl Keeper<'_> {
    pub(super) fn reap(&mut self) {
        self.must_reap = false;
        for _ in 0..REAP_AT_MOST {
            match sys::reap() {
                Reaped::Nothing if self.tree.is_spared_alone() => return self.look_at_boundary(),
                // Init may be the last of them, and is reaped next then.
                Reaped::Nothing if self.is_namespace_over() => {}
                Reaped::Nothing => return,
                Reaped::NoChildren => return self.look_at_boundary(),
                Reaped::Unknown(errno) => return self.break_off("cannot ask for the ends of processes", errno),
                news => self.take_reaped(news),
            }
            if self.supervisor.is_over() {
                return;
            }
        }
        // SIGCHLD was taken, but more of them may be waiting.
        self.must_reap = true;
    }

    /// Whether nothing is left in the namespace of a command that has ended.
    fn is_namespace_over(&self) -> bool {
        self.command.is_none() && self.boundary.namespace().is_some_and(Namespace::is_over)
    }

    pub(super) fn take_reaped(&mut self, reaped: Reaped) {
        let is_init = |pid: Pid| self.boundary.namespace().map(Namespace::init) == Some(pid);
        let is_command = |pid: Pid| self.command.as_ref().is_some_and(|command| command.pid == pid);
        match reaped {
            Reaped::Ended(pid, end) if is_command(pid) => {
                self.hear_news();
                self.command = None;
                // Who is on a list made from now on under its pid is another.
                self.receivers.iter_mut().for_each(|receivers| receivers.retain(|process| process.pid != pid));
                self.handle(Event::CommandEnded(end));
            }
            Reaped::Stopped(pid, sig) if is_command(pid) => self.handle(Event::CommandStopped(sig)),
            Reaped::Continued(pid) if is_command(pid) => {
                // In a session of its own the front goes on first, and the command because of it.
                if self.front_is_stopped && self.plan.policy.is_in_terminal {
                    self.front_is_stopped = self.ties.socket.send(ToFront::Continued).is_err();
                }
                self.handle(Event::CommandContinued);
            }
            // Nobody else continues it, and orphans wait for it to reap them.
            Reaped::Stopped(pid, _) if is_init(pid) => sys::signal_child(pid, Sig::CONT),
            Reaped::Ended(pid, end) => self.note_end(pid, end),
            _ => {}
        }
    }

    /// No child is left, hence no descendant: the boundary decides whether the tree is empty.
    pub(super) fn look_at_boundary(&mut self) {
        let watched = self.watch.take();
        // Acknowledged before it is read, so that a change in between is not lost.
        if let Some(events) = watched.as_ref().and_then(|_| self.boundary.events()) {
            let _ = boundary::acknowledge(events);
        }
        let pause = watched.map_or(FIRST_PAUSE, |watch| (watch.pause * 2).min(LONGEST_PAUSE));
        match self.boundary.remove() {
            Ok(Occupancy::Empty) => self.handle(Event::Empty),
            // What can't be removed counts as populated, until a limit of the options passes.
            Ok(Occupancy::Populated) | Err(_) => self.watch = Some(Watch { at: sys::now() + pause, pause }),
        }
    }
}
