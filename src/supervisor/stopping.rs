//! How a stop begins, goes on from stage to stage, and ends in SIGKILL; where GNU timeout's rules differ, they stand here.

use std::time::Duration;

use super::{Action, Receivers, State, Supervisor, Trigger, after};
use crate::cli::SignalTo;
use crate::outcome::{Cause, Failure};
use crate::plan::Personality;
use crate::signals::Sig;
use crate::wire::Source;

/// A repeat of a request to end counts as the second only after this long: a logout sends TERM and HUP together.
const REPEAT: Duration = Duration::from_millis(200);

/// When those who ignore a signal are looked for a second time, and then after twice that time each, this long at most.
const ASK_AGAIN: Duration = Duration::from_millis(50);
const ASK_LAST: Duration = Duration::from_millis(800);

impl Supervisor {
    /// The first request may meet a stop that the clock began, and is then part of it; a second one is impatient.
    pub(super) fn request_again(&mut self, now: Duration) -> Vec<Action> {
        let first = *self.requested_at.get_or_insert(now);
        if now.saturating_sub(first) >= REPEAT { self.kill() } else { vec![] }
    }

    pub(super) fn stop(&mut self, now: Duration, trigger: Trigger) -> Vec<Action> {
        let Trigger::Signal(sig, source) = trigger else { return self.enter_stage(now, now, 0, None) };
        self.stages = self.stages.starting_with(sig);
        self.requested_at = Some(now).filter(|_| self.is_request(source));
        self.enter_stage(now, now, 0, Some(source))
    }

    /// Those who are kept come out of reach first.
    pub(super) fn end_leftovers(&mut self, now: Duration, trigger: Trigger) -> Vec<Action> {
        if !self.policy.keeps {
            return self.stop_leftovers(now, trigger);
        }
        self.keep_again_at = None;
        self.end_of_leftovers = Some(trigger);
        vec![Action::Keep]
    }

    pub(super) fn stop_leftovers(&mut self, now: Duration, trigger: Trigger) -> Vec<Action> {
        self.outcome.left_over = true;
        self.stages = self.policy.leftover_stages.clone();
        let mut actions = vec![Action::NoteLeftovers];
        actions.extend(self.stop(now, trigger));
        actions
    }

    pub(super) fn enter_stage(
        &mut self,
        now: Duration,
        since: Duration,
        stage: usize,
        source: Option<Source>,
    ) -> Vec<Action> {
        let Some(next) = self.stages.get(stage) else { return vec![] };
        if next.signal == Sig::KILL {
            return self.kill();
        }
        self.state = State::Stopping { since, stage, until: after(now, next.wait) };
        let send = match stage {
            0 => Action::Stop(next.signal, self.receivers(source)),
            _ => Action::StopAgain(next.signal),
        };
        [send].into_iter().chain(self.ask_deaf(now, stage)).collect()
    }

    /// Shells without job control have what they start by `&` ignore SIGINT and SIGQUIT, nohup(1) SIGHUP. As long as the
    /// command lives it may look after those itself; when it has ended they are asked by the signal that they have not
    /// been told to ignore, instead of being let live until SIGKILL. Nobody who acts on what was sent gets another.
    pub(super) fn ask_deaf(&mut self, now: Duration, stage: usize) -> Option<Action> {
        let sent = self.stages.get(stage)?.signal;
        let has_sent_term = (0..=stage).any(|sent| self.stages.get(sent).is_some_and(|sent| sent.signal == Sig::TERM));
        let asks = self.outcome.end.is_some() && !has_sent_term;
        self.ask_again = asks.then_some((now + ASK_AGAIN, 2 * ASK_AGAIN));
        asks.then_some(Action::AskDeaf(sent))
    }

    pub(super) fn ask_deaf_again(&mut self, now: Duration, stage: usize) -> Option<Action> {
        let (_, pause) = self.ask_again.filter(|(at, _)| *at <= now)?;
        self.ask_again = (pause <= ASK_LAST).then_some((now + pause, 2 * pause));
        Some(Action::AskDeaf(self.stages.get(stage)?.signal))
    }

    pub(super) fn receivers(&self, source: Option<Source>) -> Receivers {
        match self.policy.signal_to {
            _ if source == Some(Source::Terminal) => Receivers::NotCommandsGroup,
            // Without a command, what is left of its tree is all there is to ask.
            _ if self.outcome.end.is_some() => Receivers::Tree,
            SignalTo::Tree => Receivers::Tree,
            SignalTo::Group => Receivers::CommandsGroup,
            SignalTo::Command => Receivers::Command,
        }
    }

    /// GNU timeout is done when the command is, and may never have asked the rest, or not with SIGTERM. The rest gets that,
    /// unless the stop has sent it, and its own grace.
    pub(super) fn stop_rest(&mut self, now: Duration, since: Duration, stage: usize) -> Vec<Action> {
        let sent = self.stages.get(stage).map(|stage| stage.signal);
        let reached_all = self.policy.signal_to == SignalTo::Tree;
        self.stages = self.policy.leftover_stages.clone();
        if sent == Some(Sig::TERM) && reached_all {
            let until = after(since, self.stages.get(0).and_then(|first| first.wait));
            self.state = State::Stopping { since, stage: 0, until };
            return vec![];
        }
        self.enter_stage(now, now, 0, None)
    }

    /// Whether a signal from there can ask for anything. What the terminal sends is the command's to decide about, as long as
    /// there is one.
    pub(super) fn is_request(&self, source: Source) -> bool {
        source == Source::Process || self.outcome.end.is_some()
    }

    /// Whether this signal asks for a stop.
    pub(super) fn begins_stop(&self, sig: Sig) -> bool {
        self.policy.personality.begins_stop(sig)
    }

    /// Whether this signal means that the time is over.
    pub(super) fn is_expiry(&self, sig: Sig) -> bool {
        self.policy.personality == Personality::Gnu && sig == Sig::ALRM
    }

    pub(super) fn front_died(&mut self) -> Vec<Action> {
        self.outcome.cause = Cause::FrontDied;
        if self.policy.guard { self.kill() } else { self.release() }
    }

    pub(super) fn break_off(&mut self) -> Vec<Action> {
        if self.is_at_its_end() {
            return vec![];
        }
        self.outcome.failure = self.outcome.failure.or(Some(Failure::Internal));
        self.kill()
    }

    pub(super) fn kill(&mut self) -> Vec<Action> {
        self.state = State::Killing;
        vec![Action::Kill]
    }

    pub(super) fn release(&mut self) -> Vec<Action> {
        self.state = State::Over;
        vec![Action::Release]
    }

    pub(super) fn over(&mut self) -> Vec<Action> {
        self.state = State::Over;
        vec![]
    }
}
