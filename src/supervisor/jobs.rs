//! Signals and job control while the command runs: what is relayed, what the terminal has sent already, and a clock that
//! stands still while Ctrl-Z stops the job.

use std::time::Duration;

use super::{Action, Event, State, Supervisor, Trigger, after};
use crate::outcome::Cause;
use crate::plan::Personality;
use crate::signals::Sig;
use crate::wire::Source;

impl Supervisor {
    pub(super) fn signal_while_running(
        &mut self,
        now: Duration,
        sig: Sig,
        source: Source,
        paused_at: Option<Duration>,
    ) -> Vec<Action> {
        match (sig, source) {
            (sig, Source::Process) if self.is_expiry(sig) => {
                self.outcome.cause = Cause::TimedOut;
                self.stop(now, Trigger::Limit)
            }
            (sig, Source::Process) if self.begins_stop(sig) => {
                self.outcome.cause = Cause::Signal(sig);
                self.stop(now, Trigger::Signal(sig, Source::Process))
            }
            (Sig::HUP, Source::Terminal) => {
                self.outcome.cause = Cause::Signal(Sig::HUP);
                self.stop(now, Trigger::Signal(Sig::HUP, Source::Terminal))
            }
            // In a session of its own nobody else stops the tree at Ctrl-Z, and by default it would ignore the signal.
            (sig, Source::Terminal) if sig.is_job_stop() && !self.policy.is_in_terminal => {
                if sig == Sig::TSTP {
                    self.pause_clock(now, paused_at);
                }
                self.is_suspended = true;
                vec![Action::Suspend, Action::TellStopped(sig)]
            }
            (sig, Source::Process) if sig.is_job_stop() && !self.policy.is_in_terminal => {
                self.is_suspended = true;
                vec![Action::SuspendByDefault(sig), Action::TellStopped(sig)]
            }

            // The shell continues the whole job, and a CONT of ours that comes later could undo another Ctrl-Z.
            (Sig::CONT, Source::Process) if self.policy.is_in_terminal && !self.is_stopped => vec![],
            (sig, Source::Process) if self.is_stopped && sig.is_job_stop() => vec![],
            // The terminal has sent it before the command was there. It blocks all signals until exec, so that what is sent to
            // it twice before that is one.
            (sig, Source::EarlyTerminal) => vec![Action::Relay(sig)],
            (sig, source) => relay(sig, source),
        }
    }

    /// What the terminal sent to the group before the command was in it: a hang-up is as good as one that a process sends,
    /// and a command that has ended misses nothing.
    pub(super) fn missed_by_command(&self, sig: Sig) -> Event {
        let is_running = matches!(self.state, State::Running { .. });
        let source = match sig {
            Sig::HUP => Source::Process,
            _ if !self.policy.is_in_terminal && !sig.is_job_stop() => Source::Process,
            _ if self.policy.is_in_terminal && is_running => Source::EarlyTerminal,
            _ => Source::Terminal,
        };
        Event::Signal(sig, source)
    }

    /// Ctrl-Z shows that somebody is there who can continue the job. A stop for reading or setting the terminal from the
    /// background shows nothing: a test runner gives its children groups of their own and waits for their ends alone. So
    /// the clock runs then, and so it does if such a stop follows one by Ctrl-Z, whose end may not have been told apart.
    pub(super) fn stop_by_terminal(&mut self, now: Duration, sig: Sig, paused_at: Option<Duration>) {
        match sig {
            Sig::TSTP => self.pause_clock(now, paused_at),
            _ => self.resume_clock(now, paused_at),
        }
    }

    /// While Ctrl-Z stops the tree the clock stands still; not under GNU's rules.
    pub(super) fn pause_clock(&mut self, now: Duration, paused_at: Option<Duration>) {
        if self.policy.personality == Personality::Own {
            self.state = State::Running { paused_at: paused_at.or(Some(now)) };
        }
    }

    pub(super) fn resume_clock(&mut self, now: Duration, paused_at: Option<Duration>) {
        self.give_time_back(now, paused_at);
        self.state = State::Running { paused_at: None };
    }

    /// The front goes on, whatever state the run is in by now, and the tree that stands still because of it does.
    pub(super) fn resume_tree(&mut self, now: Duration) -> Vec<Action> {
        self.is_suspended = false;
        if let State::Running { paused_at } = self.state {
            self.resume_clock(now, paused_at);
        }
        vec![Action::Resume]
    }

    /// What Ctrl-Z took is given back to the clock, and a tree that stood still was not idle.
    pub(super) fn give_time_back(&mut self, now: Duration, paused_at: Option<Duration>) {
        let Some(since) = paused_at else { return };
        self.deadline = self.deadline.and_then(|deadline| after(deadline, Some(now.saturating_sub(since))));
        if let Some(idleness) = &mut self.idleness {
            idleness.restart(now);
        }
    }
}

/// What is passed on outside the beginning of a stop: what the terminal sent has reached the command already.
pub(super) fn relay(sig: Sig, source: Source) -> Vec<Action> {
    if source == Source::Terminal { vec![] } else { vec![Action::Relay(sig)] }
}
