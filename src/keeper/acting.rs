//! What the keeper does to the tree when the state machine says so.

use std::os::fd::AsFd;
use std::time::Duration;

use crate::signals::Sig;
use crate::supervisor::{Action, Event};
use crate::sys::{self, Reaped, send_signal};
use crate::tree::{AndThen, Drained, Net, Process};
use crate::voice::{cause, in_words};
use crate::wire::ToFront;

use super::Keeper;

impl Keeper<'_> {
    pub(super) fn perform(&mut self, action: Action) {
        match action {
            Action::Relay(sig) => self.relay(sig),
            Action::Look => self.look(),
            Action::Keep => self.keep(),
            Action::NoteLeftovers => self.note_leftovers(),
            Action::Stop(sig, receivers) => self.stop(sig, receivers),
            Action::StopAgain(sig) => self.stop_again(sig),
            Action::AskDeaf(sig) => self.ask_deaf(sig),
            Action::Kill => self.kill(),
            Action::Release => self.release(),
            Action::Suspend => self.send_alone(Sig::STOP),
            Action::SuspendByDefault(sig) => self.suspend_by_default(sig),
            Action::Resume => self.send_alone(Sig::CONT),
            Action::TellStopped(sig) => self.tell_stopped(sig),
        }
    }

    fn look(&mut self) {
        let list = self.tree.list(None);
        let is_active = self.activity.look(&list);
        self.report.idle_without_io = self.activity.has_hidden_io();
        self.handle(if is_active { Event::Active } else { Event::Idle });
    }

    fn tell_stopped(&mut self, sig: Sig) {
        self.front_is_stopped = self.ties.socket.send(ToFront::Stopped(sig)).is_ok();
        self.stops_told = self.stops_told.wrapping_add(self.front_is_stopped.into());
        self.record("stopped", Some(sig), None);
    }

    fn relay(&mut self, sig: Sig) {
        let Some(command) = &self.command else { return };
        // It may have ended, unreaped: then nobody gets it.
        let _ = send_signal(command.pidfd.as_fd(), sig);
        self.record("relay", Some(sig), Some(1));
        self.voice.step(format_args!("passed SIG{sig} on to the command"));
    }

    /// Relayed, a signal of job control would do nothing to a command that does not handle it: the kernel stops no process of
    /// an orphaned group by one, setpgid(2).
    fn suspend_by_default(&mut self, sig: Sig) {
        if self.list().iter().any(|process| self.is_command(process) && !process.has_default_for(sig)) {
            self.relay(sig);
        } else {
            self.send_alone(Sig::STOP);
        }
    }

    /// Sends a signal to the whole tree, and no SIGCONT after it.
    fn send_alone(&mut self, sig: Sig) {
        let list = self.list();
        let sent = self.tree.signal(&self.receivers_of(&list), sig, AndThen::Nothing, self.time_to_signal());
        self.record("signal", Some(sig), Some(sent.to.len()));
    }

    /// When signalling one by one ends at the latest: it takes no more time than the stage has.
    pub(super) fn time_to_signal(&self) -> Option<Duration> {
        self.supervisor.stage_end()
    }

    /// When a listing ends: half of that time is for the signals.
    pub(super) fn time_to_list(&self) -> Option<Duration> {
        let now = sys::now();
        self.time_to_signal().map(|end| now + end.saturating_sub(now) / 2)
    }

    /// The tree, with the command in front for as long as we have not reaped it: where /proc hides it, or descriptors
    /// are short, its pidfd still reaches it.
    pub(super) fn list(&self) -> Vec<Process> {
        self.with_command(self.tree.list(self.time_to_list()))
    }

    pub(super) fn with_command(&self, mut list: Vec<Process>) -> Vec<Process> {
        if let Some(command) = &self.command
            && !list.iter().any(|process| self.is_command(process))
        {
            list.insert(0, Process { pid: command.pid, stat: None, net: Net::Ancestry });
        }
        list
    }

    pub(super) fn is_command(&self, process: &Process) -> bool {
        self.command.as_ref().is_some_and(|command| command.pid == process.pid)
    }

    /// Ends the tree. While it lasts nothing else is looked at: whatever could come asks for what is being done.
    fn kill(&mut self) {
        if self.command.is_some() {
            self.announce(Sig::KILL);
        }
        self.take_picture_before_kill();
        self.has_killed = true;
        self.record("kill", Some(Sig::KILL), None);
        self.voice.step("sending SIGKILL to all that is left");

        self.hear_news();
        let mut command = self.command.take().map(|command| {
            // Whatever else can be seen or opened: this one is in our hand. Then the sweep may need its descriptors.
            let _ = send_signal(command.pidfd.as_fd(), Sig::KILL);
            command.pid
        });
        let (mut command_ended, mut others_ended) = (None, vec![]);
        let drained = self.tree.drain(self.plan.drain_limit, &mut |news| match news {
            // Once it is reaped its pid may be that of another, born while the rest dies.
            Reaped::Ended(pid, end) if Some(pid) == command => (command, command_ended) = (None, Some(end)),
            Reaped::Ended(pid, end) if self.leftovers.contains_key(&pid.as_raw_pid()) => others_ended.push((pid, end)),
            _ => {}
        });
        if let Some(end) = command_ended {
            self.handle(Event::CommandEnded(end));
        }
        for (pid, end) in others_ended {
            self.note_end(pid, end);
        }
        match drained {
            Drained::Empty => self.handle(Event::Empty),
            Drained::Survivors => {
                self.note_survivors();
                self.handle(Event::Survived);
            }
            Drained::Helpless(errno) => {
                let name = self.name();
                self.voice.error(format_args!("cannot send SIGKILL to what {name} has started: {}", cause(errno)));
                self.is_helpless = true;
                self.handle(Event::Survived);
            }
        }
    }

    /// Says a signal as GNU timeout does under -v.
    pub(super) fn announce(&mut self, sig: Sig) {
        if self.plan.announces_signals {
            let name = self.name();
            self.voice.announce(format_args!("sending signal {sig} to command {name}"));
        }
    }

    fn release(&mut self) {
        let released = self.boundary.release(&|_| true);
        // What can't be removed counts as released all the same: it is empty.
        let _ = self.boundary.remove();
        // Afterwards, so that who was forked while others were moved is named too.
        self.report.kept = self.describe_tree();
        self.record("release", None, released.as_ref().map(Vec::len).ok());
        if let Err(error) = released {
            let boundary = self.boundary.name();
            self.voice.error(format_args!("cannot move processes out of {boundary}: {}", in_words(&error)));
        }
    }
}

/// `1 process`, `2 processes`.
pub(super) fn processes(count: usize) -> String {
    format!("{count} {}", if count == 1 { "process" } else { "processes" })
}
