//! What holds at every step of every run, whatever happens in whatever order: a name and a predicate each.

use super::*;

/// Whether an action may stop the tree for job control.
fn suspends(action: &Action) -> bool {
    matches!(action, Action::Suspend | Action::SuspendByDefault(_))
}

/// A state of the diagram; one in which Ctrl-Z holds the clock is a state of its own here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    Running,
    Paused,
    Lingering,
    Stopping,
    Killing,
    Over,
}

/// What can be seen of a run at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub(super) phase: Phase,
    pub(super) deadline: Option<Duration>,
    pub(super) outcome: Outcome,
}

impl View {
    pub(super) fn of(run: &Supervisor) -> View {
        let phase = match run.state {
            State::Running { paused_at: None } => Phase::Running,
            State::Running { paused_at: Some(_) } => Phase::Paused,
            State::Lingering { .. } => Phase::Lingering,
            State::Stopping { .. } => Phase::Stopping,
            State::Killing => Phase::Killing,
            State::Over => Phase::Over,
        };
        View { phase, deadline: run.next_deadline(), outcome: *run.outcome() }
    }
}

/// What has happened before a step, counted apart from the state machine.
#[derive(Clone, Debug, Default)]
pub(super) struct Past {
    pub(super) kills: usize,
    stops: usize,
    is_suspended: bool,
    has_sent_term: bool,
    /// For how long the clock of `--timeout` has run.
    clock: Duration,
    /// When the tree was last known to do something, or to be held by Ctrl-Z.
    alive_at: Duration,
    stopping_since: Duration,
    first_request: Option<Duration>,
}

impl Past {
    pub(super) fn new() -> Past {
        Past { alive_at: START, ..Past::default() }
    }

    /// The time up to a step goes by.
    pub(super) fn pass(&mut self, phase: Phase, time: Duration) {
        if matches!(phase, Phase::Running | Phase::Lingering) {
            self.clock += time;
        }
    }

    pub(super) fn add(&mut self, step: &Step) {
        self.kills += step.count(|action| *action == Action::Kill);
        self.stops += step.count(|action| matches!(action, Action::Stop(..)));
        let sends_term = |action: &Action| matches!(action, Action::Stop(Sig::TERM, _) | Action::StopAgain(Sig::TERM));
        self.has_sent_term |= step.asks(sends_term);
        self.is_suspended |= step.asks(suspends);
        self.is_suspended &= !step.asks(|action| *action == Action::Resume);
        let is_awake = step.event == Event::Active || step.before.phase == Phase::Paused;
        if is_awake && step.before.phase <= Phase::Lingering {
            self.alive_at = step.now;
        }
        if step.enters(Phase::Stopping) {
            self.stopping_since = step.now;
        }
        // Where some are kept, the stop that was asked for begins once they are safe.
        if step.is_request() && (step.after.phase == Phase::Stopping || step.asks(|action| *action == Action::Keep)) {
            self.first_request.get_or_insert(step.now);
        }
    }
}

/// An event and what the state machine made of it.
#[derive(Debug)]
pub(super) struct Step<'a> {
    pub(super) policy: &'a Policy,
    pub(super) past: &'a Past,
    pub(super) now: Duration,
    pub(super) event: Event,
    pub(super) before: View,
    pub(super) actions: &'a [Action],
    pub(super) after: View,
}

impl Step<'_> {
    fn count(&self, is_meant: impl Fn(&Action) -> bool) -> usize {
        self.actions.iter().filter(|action| is_meant(action)).count()
    }

    fn asks(&self, is_meant: impl Fn(&Action) -> bool) -> bool {
        self.count(is_meant) > 0
    }

    fn enters(&self, phase: Phase) -> bool {
        self.before.phase != phase && self.after.phase == phase
    }

    fn is_gnu(&self) -> bool {
        self.policy.personality == Personality::Gnu
    }

    /// Whether a process asks for a stop, or the terminal in the place of one.
    fn is_request(&self) -> bool {
        let Event::Signal(sig, source) = self.event else { return false };
        let is_processes = match source {
            Source::Process => true,
            // There is no command any more that could decide what Ctrl-C means.
            _ if self.before.outcome.end.is_some() => true,
            Source::Terminal => !self.policy.is_in_terminal,
            Source::EarlyTerminal => sig == Sig::HUP || !self.policy.is_in_terminal,
        };
        sig.is_request_to_end() && is_processes
    }

    /// From the first signal to SIGKILL.
    fn grace(&self) -> Duration {
        let stages = if self.after.outcome.left_over { &self.policy.leftover_stages } else { &self.policy.stages };
        (0..).map_while(|index| stages.get(index)).filter_map(|stage| stage.wait).sum()
    }

    /// What `timed_out` in the outcome is worth: the clock has run for as long as the options say, or GNU's rules take a
    /// signal for that.
    fn has_run_out(&self) -> bool {
        let is_alarm = self.is_gnu() && matches!(self.event, Event::Signal(Sig::ALRM, _));
        is_alarm || self.policy.timeout.is_some_and(|timeout| self.past.clock >= timeout)
    }
}

type Predicate = fn(&Step) -> bool;

pub(super) const INVARIANTS: &[(&str, Predicate)] = &[
    ("SIGKILL is ordered at most once", |step| step.past.kills + step.count(|action| *action == Action::Kill) <= 1),
    ("nothing softer follows SIGKILL", |step| step.past.kills == 0 || step.actions.is_empty()),
    ("a stop begins at most once, though GNU's rules pass further signals on", |step| {
        step.is_gnu() || step.past.stops + step.count(|action| matches!(action, Action::Stop(..))) <= 1
    }),
    ("no way leads back to an earlier state, but that a paused run goes on", |step| {
        step.after.phase >= step.before.phase
            || (step.before.phase, step.after.phase) == (Phase::Paused, Phase::Running)
    }),
    ("a run is over only when the tree is empty, released, or has outlived SIGKILL", |step| {
        let is_proved = match step.event {
            Event::Empty => step.after.outcome.end.is_some(),
            Event::Survived => step.past.kills == 1 && step.after.outcome.survived,
            _ => step.asks(|action| *action == Action::Release),
        };
        !step.enters(Phase::Over) || is_proved
    }),
    ("an empty tree whose command has ended is over at once", |step| {
        let is_done = step.event == Event::Empty && step.before.outcome.end.is_some();
        !is_done || step.after.phase == Phase::Over
    }),
    ("once over a run asks for nothing, and its outcome is final", |step| {
        let is_final =
            step.actions.is_empty() && step.after.outcome == step.before.outcome && step.after.deadline.is_none();
        step.before.phase != Phase::Over || is_final
    }),
    ("the tree is released only after the command's end, or without a guard after the front's death", |step| {
        let is_left = step.policy.leftovers == Leftovers::Leave && step.before.outcome.end.is_some();
        let is_unguarded = !step.policy.guard && step.event == Event::FrontDied;
        !step.asks(|action| *action == Action::Release) || is_left || is_unguarded
    }),
    ("a guarded run whose front has died is killed at once", |step| {
        let may_be_left = step.policy.leftovers == Leftovers::Leave && step.before.phase == Phase::Lingering;
        let is_alarm = step.event == Event::FrontDied && step.policy.guard && !may_be_left;
        !is_alarm || step.after.phase >= Phase::Killing
    }),
    ("a broken run is killed at once", |step| step.event != Event::Broken || step.after.phase >= Phase::Killing),
    ("how the command ended is noted once and stays", |step| match step.before.outcome.end {
        Some(end) => step.after.outcome.end == Some(end),
        None => step.after.outcome.end.is_none() || matches!(step.event, Event::CommandEnded(_)),
    }),
    ("the cause of a stop stays, unless the front dies", |step| {
        let (before, after) = (step.before.outcome.cause, step.after.outcome.cause);
        before == Cause::Ended || after == before || (after == Cause::FrontDied && step.event == Event::FrontDied)
    }),
    ("timed out means that the clock has run for all of its time", |step| {
        let is_new = step.after.outcome.cause == Cause::TimedOut && step.before.outcome.cause != Cause::TimedOut;
        !is_new || step.has_run_out()
    }),
    ("a clock that has run for all of its time begins a stop at the next tick", |step| {
        let is_counted = match step.before.phase {
            Phase::Running => true,
            Phase::Lingering => step.policy.leftovers == Leftovers::Wait,
            _ => false,
        };
        // Those who are kept are looked for first.
        let comes_later = step.actions == [Action::Keep];
        !(is_counted && step.event == Event::Tick && step.has_run_out())
            || step.after.phase >= Phase::Stopping
            || comes_later
    }),
    ("idle means that nothing was seen of the tree for all of that time", |step| {
        let is_new = step.after.outcome.cause == Cause::Idle && step.before.outcome.cause != Cause::Idle;
        let is_true = step.policy.idle_timeout.is_some_and(|limit| step.now - step.past.alive_at >= limit);
        !is_new || is_true
    }),
    ("leftovers are noted once, and only of a command that ended before any stop", |step| {
        let is_new = step.after.outcome.left_over && !step.before.outcome.left_over;
        let notes = step.asks(|action| *action == Action::NoteLeftovers);
        is_new == notes && (!is_new || (step.before.outcome.end.is_some() && step.before.phase == Phase::Lingering))
    }),
    ("the clock kills only after the whole grace", |step| {
        let is_clocks =
            step.enters(Phase::Killing) && step.event == Event::Tick && step.before.phase == Phase::Stopping;
        !is_clocks || step.is_gnu() || step.now - step.past.stopping_since >= step.grace()
    }),
    ("a second request kills, unless it came with the first", |step| {
        let is_again = step.before.phase == Phase::Stopping && step.is_request() && !step.is_gnu();
        let is_impatient = step.past.first_request.is_some_and(|first| step.now - first >= Duration::from_millis(200));
        !is_again || is_impatient == step.enters(Phase::Killing)
    }),
    ("needing SIGKILL means that the command lived when it was sent, and died of it", |step| {
        let is_new = step.after.outcome.needed_kill && !step.before.outcome.needed_kill;
        !is_new || (step.event == KILLED && step.before.phase == Phase::Killing && step.before.outcome.end.is_none())
    }),
    ("only Ctrl-Z stops the clock, and a later stop by the terminal lets it run", |step| {
        let is_by = |wanted: fn(Sig) -> bool| match step.event {
            Event::CommandStopped(sig) => step.policy.is_in_terminal && wanted(sig),
            Event::Signal(sig, source) => {
                !step.policy.is_in_terminal && source != Source::Process && wanted(sig) && !step.is_gnu()
            }
            _ => false,
        };
        let runs_again =
            matches!(step.event, Event::CommandStopped(Sig::TTIN | Sig::TTOU)) && step.policy.is_in_terminal;
        (!step.enters(Phase::Paused) || is_by(|sig| sig == Sig::TSTP))
            && !(runs_again && step.after.phase == Phase::Paused)
    }),
    ("a paused clock wants no tick", |step| step.after.phase != Phase::Paused || step.after.deadline.is_none()),
    ("a tick leaves no deadline behind that has passed", |step| {
        let is_passed = step.after.deadline.is_some_and(|deadline| deadline <= step.now);
        // Then the answer of the keeper comes before another tick.
        let is_asked = step.asks(|action| matches!(action, Action::Keep | Action::Look));
        step.event != Event::Tick || !is_passed || is_asked
    }),
    ("the terminal's keys are not sent to a command that has them", |step| {
        let is_terminals = matches!(step.event, Event::Signal(_, Source::Terminal)) && step.policy.is_in_terminal;
        !is_terminals || !step.asks(|action| matches!(action, Action::Relay(_)))
    }),
    ("Ctrl-C and Ctrl-\\ of the terminal leave the decision to the command", |step| {
        let is_key = matches!(step.event, Event::Signal(Sig::INT | Sig::QUIT, Source::Terminal));
        let decides = step.policy.is_in_terminal && step.before.phase <= Phase::Paused;
        !(is_key && decides) || (step.actions.is_empty() && step.after.phase == step.before.phase)
    }),
    ("a tree is suspended only in a session of its own, and continued only if it was", |step| {
        let suspends = step.asks(suspends);
        let resumes = step.asks(|action| *action == Action::Resume);
        (!suspends || !step.policy.is_in_terminal) && (!resumes || step.past.is_suspended)
    }),
    ("a suspended tree is continued by SIGCONT for as long as it can be", |step| {
        let is_continued = step.past.is_suspended && step.event == from_process(Sig::CONT);
        !is_continued || step.before.phase >= Phase::Killing || step.actions == [Action::Resume]
    }),
    ("the clock of a suspended tree stands still until the whole of it goes on", |step| {
        let goes_on = step.before.phase == Phase::Paused && step.after.phase == Phase::Running;
        !(step.past.is_suspended && goes_on) || step.actions == [Action::Resume]
    }),
    ("what is left of a tree without its command is asked whole", |step| {
        let is_whole = |receivers| matches!(receivers, Receivers::Tree | Receivers::NotCommandsGroup);
        let spares = |action: &Action| matches!(action, Action::Stop(_, receivers) if !is_whole(*receivers));
        step.after.outcome.end.is_none() || !step.asks(spares)
    }),
    (
        "who ignores a signal is asked by SIGTERM only in a stop whose command has ended, and after that signal",
        |step| {
            let is_late = |sig| {
                let sends =
                    |action: &Action| matches!(action, Action::Stop(sent, _) | Action::StopAgain(sent) if *sent == sig);
                let is_sent = step.asks(sends) || step.before.phase == Phase::Stopping;
                is_sent && step.after.phase == Phase::Stopping && step.after.outcome.end.is_some()
            };
            step.actions
                .iter()
                .all(|action| !matches!(action, Action::AskDeaf(sig) if *sig == Sig::TERM || !is_late(*sig)))
        },
    ),
    ("a command that ends in a stop without SIGTERM has those asked who ignore what was sent", |step| {
        let ends = matches!(step.event, Event::CommandEnded(_)) && step.before.phase == Phase::Stopping;
        let asks = step.asks(|action| matches!(action, Action::AskDeaf(_)));
        !ends || step.is_gnu() || asks != step.past.has_sent_term
    }),
    ("under our own rules only a request to end begins a stop by signal", |step| match step.event {
        Event::Signal(sig, _) if !step.is_gnu() && step.enters(Phase::Stopping) => sig.is_request_to_end(),
        _ => true,
    }),
    ("those who are kept are looked for only if the options name some, and never in a stop", |step| {
        let looks = step.asks(|action| *action == Action::Keep);
        !looks || (step.policy.keeps && step.after.phase == Phase::Lingering)
    }),
];
