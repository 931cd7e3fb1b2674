//! The state machine of a run. Pure: it is told what happened and when, and answers what to do; the keeper carries
//! that out. Moments are times on the monotonic clock, as everywhere.
//!
//! ```text
//! Running ----- command ended ----> Lingering ---- empty, -----> Over
//!    |                                |     |       released      ^
//!    | deadline, signal,              |     | grace over, signal, |
//!    | idle, parent died              |     v idle, parent died   |
//!    +------------------------------- | -> Stopping --- empty ----+
//!    |                                |     |                     |
//!    | front died,                    |     | last stage, second signal,
//!    | failure                        v     v front died, failure |
//!    +-----------------------------> Killing --- empty, survived -+
//! ```
//!
//! Without a guard, the death of the front leads to Over instead, and nothing is killed.

mod idleness;
mod jobs;
mod stopping;
#[cfg(test)]
mod tests;
mod words;

use std::time::Duration;

use crate::cli::Leftovers;
use crate::outcome::{Cause, End, Outcome};
use crate::plan::{Personality, Policy, Stages};
use crate::signals::Sig;
use crate::wire::Source;
use idleness::Idleness;
use jobs::relay;
pub use words::{Action, Event, Receivers};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The command lives and no stop has begun. While Ctrl-Z stops it the clock stands still.
    Running { paused_at: Option<Duration> },
    /// The command ended by itself; something else of the tree may live until then.
    Lingering { until: Option<Duration> },
    /// Signals were sent; the next stage comes then.
    Stopping { since: Duration, stage: usize, until: Option<Duration> },
    /// SIGKILL was sent to all.
    Killing,
    /// Nothing is left to do.
    Over,
}

/// What begins a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trigger {
    /// A limit that has passed, or the death of the parent.
    Limit,
    /// A signal that somebody sent, which takes the place of the first stage's.
    Signal(Sig, Source),
}

/// One run, from the birth of the command to the proof that its tree is gone.
#[derive(Debug)]
pub struct Supervisor {
    policy: Policy,
    state: State,
    deadline: Option<Duration>,
    idleness: Option<Idleness>,
    /// When those who are kept are looked for once more.
    keep_again_at: Option<Duration>,
    /// When those who ignore a stop's signal are looked for again, and how long after that once more: a job that a shell was
    /// about to start ignores it late.
    ask_again: Option<(Duration, Duration)>,
    /// What asked for the end of the leftovers, which begins once those who are kept are safe.
    end_of_leftovers: Option<Trigger>,
    stages: Stages,
    outcome: Outcome,
    /// The command is stopped, by whatever.
    is_stopped: bool,
    /// The whole tree is, by us: it has a session of its own, and the terminal stopped the front.
    is_suspended: bool,
    /// When a process first asked for the stop that is under way.
    requested_at: Option<Duration>,
}

impl Supervisor {
    /// A run whose command is born at this moment.
    pub fn new(policy: Policy, now: Duration) -> Supervisor {
        let outcome = Outcome {
            cause: Cause::Ended,
            failure: None,
            end: None,
            needed_kill: false,
            left_over: false,
            survived: false,
            limit_hit: false,
        };
        Supervisor {
            state: State::Running { paused_at: None },
            deadline: after(now, policy.timeout),
            idleness: policy.idle_timeout.map(|limit| Idleness::new(limit, now)),
            keep_again_at: None,
            ask_again: None,
            end_of_leftovers: None,
            stages: policy.stages.clone(),
            policy,
            outcome,
            is_stopped: false,
            is_suspended: false,
            requested_at: None,
        }
    }

    /// The moment at which a `Tick` is wanted, if nothing else happens before.
    pub fn next_deadline(&self) -> Option<Duration> {
        match self.state {
            State::Running { paused_at: None } => self.deadline.into_iter().chain(self.next_look()).min(),
            State::Running { paused_at: Some(_) } | State::Killing | State::Over => None,
            State::Lingering { until } => until.into_iter().chain(self.next_look()).chain(self.keep_again_at).min(),
            State::Stopping { until, .. } => until.into_iter().chain(self.ask_again.map(|(at, _)| at)).min(),
        }
    }

    /// When the stage of a stop that is under way ends.
    pub fn stage_end(&self) -> Option<Duration> {
        match self.state {
            State::Stopping { until, .. } => until,
            _ => None,
        }
    }

    /// When the tree is to be looked at, if it can be found idle.
    fn next_look(&self) -> Option<Duration> {
        let can_be_idle = match self.state {
            State::Running { paused_at } => paused_at.is_none(),
            State::Lingering { .. } => self.policy.leftovers == Leftovers::Wait,
            _ => false,
        };
        self.idleness.as_ref().filter(|_| can_be_idle).map(Idleness::next)
    }

    /// What idleness has to say: it is told in the same way whether the command still lives or not.
    fn look_for_idleness(&mut self, now: Duration, event: Event) -> Option<Vec<Action>> {
        self.next_look()?;
        let idleness = self.idleness.as_mut()?;
        match event {
            Event::Tick => idleness.is_due(now).then(|| vec![Action::Look]),
            Event::Active => {
                idleness.restart(now);
                Some(vec![])
            }
            Event::Idle if idleness.is_over(now) => {
                self.outcome.cause = Cause::Idle;
                Some(self.stop(now, Trigger::Limit))
            }
            _ => None,
        }
    }

    /// Whether the run is over.
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Whether SIGKILL was sent to all, or nothing is left to do.
    fn is_at_its_end(&self) -> bool {
        matches!(self.state, State::Killing | State::Over)
    }

    /// Whether a stop is under way, in which nothing may be written that a reader could hold up.
    pub fn is_stopping(&self) -> bool {
        matches!(self.state, State::Stopping { .. } | State::Killing)
    }

    /// What has become of the run; final once it is over.
    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// Takes an event and answers what to do, in this order.
    #[must_use]
    pub fn on_event(&mut self, now: Duration, event: Event) -> Vec<Action> {
        match event {
            Event::CommandStopped(_) => self.is_stopped = true,
            Event::CommandContinued => self.is_stopped = false,
            _ => {}
        }
        let event = match event {
            Event::Broken => return self.break_off(),
            Event::Signal(Sig::CONT, Source::Process) if self.is_suspended && !self.is_at_its_end() => {
                return self.resume_tree(now);
            }
            Event::Signal(sig, Source::EarlyTerminal) => self.missed_by_command(sig),
            // The terminal has not reached a command in a session of its own.
            Event::Signal(sig, Source::Terminal) if !self.policy.is_in_terminal && !sig.is_job_stop() => {
                Event::Signal(sig, Source::Process)
            }
            event => event,
        };
        let actions = match self.state {
            State::Running { paused_at } => self.while_running(now, event, paused_at),
            State::Lingering { until } => self.while_lingering(now, event, until),
            State::Stopping { since, stage, until } => self.while_stopping(now, event, since, stage, until),
            State::Killing => self.while_killing(event),
            State::Over => vec![],
        };
        // A limit that has passed counts first.
        if actions.is_empty() { self.look_for_idleness(now, event).unwrap_or_default() } else { actions }
    }

    fn while_running(&mut self, now: Duration, event: Event, paused_at: Option<Duration>) -> Vec<Action> {
        match event {
            Event::NotStarted(failure) => {
                self.outcome.failure = Some(failure);
                vec![]
            }
            Event::CommandEnded(end) => self.linger(now, end, paused_at),
            Event::CommandStopped(sig) if self.policy.is_in_terminal && sig.is_job_stop() => {
                self.stop_by_terminal(now, sig, paused_at);
                vec![Action::TellStopped(sig)]
            }
            // One that somebody else continued is no sign that the tree goes on, which is suspended.
            Event::CommandContinued if !self.is_suspended => {
                self.resume_clock(now, paused_at);
                vec![]
            }
            Event::Tick if paused_at.is_none() && has_passed(self.deadline, now) => {
                self.outcome.cause = Cause::TimedOut;
                self.stop(now, Trigger::Limit)
            }
            Event::Signal(sig, source) => self.signal_while_running(now, sig, source, paused_at),
            Event::ParentDied => {
                self.outcome.cause = Cause::ParentDied;
                self.stop(now, Trigger::Limit)
            }
            Event::FrontDied => self.front_died(),
            Event::Empty
            | Event::Survived
            | Event::CommandStopped(_)
            | Event::CommandContinued
            | Event::Active
            | Event::Idle
            | Event::Kept
            | Event::Tick
            | Event::Broken => vec![],
        }
    }

    /// The command has ended by itself: its leftovers get their time.
    fn linger(&mut self, now: Duration, end: End, paused_at: Option<Duration>) -> Vec<Action> {
        self.outcome.end = Some(end);
        self.give_time_back(now, paused_at);
        let grace = after(now, Some(self.policy.leftover_grace));
        let until = match self.policy.leftovers {
            Leftovers::Kill | Leftovers::Leave => grace,
            Leftovers::Wait => self.deadline,
        };
        self.state = State::Lingering { until };
        if !self.policy.keeps {
            return vec![];
        }
        // Some may not yet be what they are to be kept for: they are looked for once more after the grace.
        self.keep_again_at = grace;
        vec![Action::Keep]
    }

    fn while_lingering(&mut self, now: Duration, event: Event, until: Option<Duration>) -> Vec<Action> {
        match event {
            Event::Empty => self.over(),
            Event::Tick if has_passed(self.keep_again_at, now) && self.policy.leftovers == Leftovers::Wait => {
                self.keep_again_at = None;
                vec![Action::Keep]
            }
            Event::Kept => self.end_of_leftovers.take().map_or(vec![], |trigger| self.stop_leftovers(now, trigger)),
            Event::Tick if has_passed(until, now) => match self.policy.leftovers {
                Leftovers::Kill => self.end_leftovers(now, Trigger::Limit),
                Leftovers::Leave => self.release(),
                Leftovers::Wait => {
                    self.outcome.cause = Cause::TimedOut;
                    self.stop(now, Trigger::Limit)
                }
            },
            // The job that the shell waits for is the front now.
            Event::Signal(sig, Source::Terminal) if sig.is_job_stop() => vec![Action::TellStopped(sig)],
            // From the terminal too: there is no command any more that could decide what Ctrl-C means.
            Event::Signal(sig, source) if self.begins_stop(sig) => {
                self.end_leftovers(now, Trigger::Signal(sig, source))
            }
            Event::ParentDied => self.end_leftovers(now, Trigger::Limit),
            Event::FrontDied if self.policy.leftovers == Leftovers::Leave => self.release(),
            Event::FrontDied => self.front_died(),
            Event::NotStarted(_)
            | Event::CommandEnded(_)
            | Event::CommandStopped(_)
            | Event::CommandContinued
            | Event::Survived
            | Event::Signal(..)
            | Event::Active
            | Event::Idle
            | Event::Tick
            | Event::Broken => vec![],
        }
    }

    fn while_stopping(
        &mut self,
        now: Duration,
        event: Event,
        since: Duration,
        stage: usize,
        until: Option<Duration>,
    ) -> Vec<Action> {
        match event {
            Event::CommandEnded(end) => {
                self.outcome.end = Some(end);
                match self.policy.personality {
                    Personality::Own => self.ask_deaf(now, stage).into_iter().collect(),
                    Personality::Gnu => self.stop_rest(now, since, stage),
                }
            }
            Event::NotStarted(failure) => {
                self.outcome.failure = Some(failure);
                vec![]
            }
            Event::Empty => self.over(),
            Event::Tick if has_passed(until, now) => self.enter_stage(now, since, stage + 1, None),
            Event::Tick => self.ask_deaf_again(now, stage).into_iter().collect(),
            Event::Signal(sig, Source::Process) if self.is_expiry(sig) => self.enter_stage(now, since, stage + 1, None),
            Event::Signal(sig, source) if self.is_request(source) && self.begins_stop(sig) => {
                match self.policy.personality {
                    Personality::Own => self.request_again(now),
                    Personality::Gnu => vec![Action::Stop(sig, self.receivers(Some(source)))],
                }
            }
            Event::Signal(sig, source) => relay(sig, source),
            Event::FrontDied => self.front_died(),
            Event::CommandStopped(_)
            | Event::CommandContinued
            | Event::Survived
            | Event::ParentDied
            | Event::Active
            | Event::Idle
            | Event::Kept
            | Event::Broken => vec![],
        }
    }

    fn while_killing(&mut self, event: Event) -> Vec<Action> {
        match event {
            Event::CommandEnded(end) => {
                self.outcome.end = Some(end);
                self.outcome.needed_kill = end == End::Signaled(Sig::KILL);
                vec![]
            }
            Event::NotStarted(failure) => {
                self.outcome.failure = Some(failure);
                vec![]
            }
            Event::Empty => self.over(),
            Event::Survived => {
                self.outcome.survived = true;
                self.over()
            }
            Event::CommandStopped(_)
            | Event::CommandContinued
            | Event::Signal(..)
            | Event::FrontDied
            | Event::ParentDied
            | Event::Active
            | Event::Idle
            | Event::Kept
            | Event::Tick
            | Event::Broken => vec![],
        }
    }
}

/// The moment this long after another; `None` if it never comes.
fn after(moment: Duration, wait: Option<Duration>) -> Option<Duration> {
    moment.checked_add(wait?)
}

fn has_passed(moment: Option<Duration>, now: Duration) -> bool {
    moment.is_some_and(|moment| now >= moment)
}
