//! A random walk over the state machine. It keeps every invariant, takes only the ways of the table, and takes all of
//! them; then every run comes to its end. `TREEKILL_MODEL_SEQUENCES` says how many runs there are.

use std::cell::{Cell, RefCell};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};

use super::invariants::{INVARIANTS, Past, Phase, Step, View};
use super::transitions::Ways;
use super::*;

/// What can happen, the usual more often than what ends a run at once.
fn any_event() -> impl Strategy<Value = Event> {
    let sigs = [Sig::TERM, Sig::INT, Sig::HUP, Sig::QUIT, Sig::TSTP, Sig::TTIN, Sig::CONT, Sig::ALRM, Sig::WINCH];
    let ends = [End::Exited(0), End::Exited(3), End::Signaled(Sig::KILL), End::Signaled(Sig::TERM)];
    let mut events = vec![Event::FrontDied, Event::Broken, Event::NotStarted(Failure::Exec(2))];
    events.extend([Event::ParentDied; 4].into_iter().chain([Event::Kept; 2]).chain([Event::Active; 2]));
    events.extend([from_process(Sig::CONT); 3]);
    events.extend([Event::Survived; 4].into_iter().chain([Event::Idle; 6]).chain([Event::Empty; 6]));
    events.extend([Event::Tick; 16].into_iter().chain([Event::CommandContinued; 4]));
    events.extend(ends.map(Event::CommandEnded));
    events.extend([Sig::TSTP, Sig::TTIN, Sig::STOP, Sig::TSTP].map(Event::CommandStopped));
    events.extend(sigs.map(from_process).into_iter().chain(sigs.map(from_terminal)));
    events.extend(sigs.map(|sig| Event::Signal(sig, Source::EarlyTerminal)));
    prop::sample::select(events)
}

/// What the options can ask for.
fn any_policy() -> impl Strategy<Value = Policy> {
    let leftovers = prop::sample::select(vec![Leftovers::Kill, Leftovers::Wait, Leftovers::Leave]);
    let stages = prop::sample::select(vec!["TERM:1s,KILL", "INT:1s,TERM:1s,KILL", "KILL", "TERM"]);
    let signal_to = prop::sample::select(vec![SignalTo::Tree, SignalTo::Group, SignalTo::Command]);
    let limit = || prop::option::of((1_u64..5_000).prop_map(Duration::from_millis));
    (leftovers, stages, signal_to, any::<[bool; 4]>(), limit(), limit()).prop_map(
        |(leftovers, stages, signal_to, [is_gnu, guard, is_in_terminal, keeps], timeout, idle_timeout)| {
            let personality = if is_gnu { Personality::Gnu } else { Personality::Own };
            let stages = parse_stages(stages).expect("a list");
            let leftover_stages = if is_gnu { Stages::new(Sig::TERM, 10 * SECOND) } else { stages.clone() };
            let keeps = keeps && leftovers != Leftovers::Leave;
            Policy {
                personality,
                timeout,
                idle_timeout,
                stages,
                leftover_stages,
                signal_to,
                leftovers,
                keeps,
                guard,
                is_in_terminal,
                ..policy()
            }
        },
    )
}

/// A run, what is known of it apart from itself, and where it has been.
struct Walk<'a> {
    policy: Policy,
    run: Supervisor,
    now: Duration,
    past: Past,
    ways: &'a RefCell<Ways>,
}

impl Walk<'_> {
    /// Tells an event and checks what became of it, and the answers that the keeper gives at once.
    fn step(&mut self, pause: Duration, event: Event) -> Result<(), TestCaseError> {
        let mut next = Some(event);
        self.now += pause;
        self.past.pass(View::of(&self.run).phase, pause);
        while let Some(event) = next.take() {
            let before = View::of(&self.run);
            let actions = self.run.on_event(self.now, event);
            let after = View::of(&self.run);
            let step =
                Step { policy: &self.policy, past: &self.past, now: self.now, event, before, actions: &actions, after };
            for (name, holds) in INVARIANTS {
                prop_assert!(holds(&step), "{name}: {step:?}");
            }
            let mut past = self.past.clone();
            past.add(&step);
            self.past = past;
            let is_known = self.ways.borrow_mut().take(before.phase, event, after.phase);
            prop_assert!(is_known, "no way of the table: {:?} to {:?} by {event:?}", before.phase, after.phase);
            if actions.contains(&Action::Keep) {
                next = Some(Event::Kept);
            }
        }
        Ok(())
    }

    /// The command ends once, and only then can the tree be empty: the kernel sees to that.
    fn can_be(&self, event: Event) -> bool {
        let is_ended = self.run.outcome().end.is_some();
        match event {
            Event::CommandEnded(_) | Event::CommandStopped(_) | Event::CommandContinued | Event::NotStarted(_) => {
                !is_ended
            }
            Event::Empty => is_ended,
            Event::Survived => self.past.kills > 0,
            _ => true,
        }
    }

    /// Nothing happens any more but that time passes: then a run with a limit that ends in SIGKILL comes to it, and any
    /// run is over when its tree is empty.
    fn come_to_the_end(&mut self) -> Result<(), TestCaseError> {
        const ENOUGH: usize = 100;
        for _ in 0..ENOUGH {
            let Some(deadline) = self.run.next_deadline() else { break };
            self.step(deadline.saturating_sub(self.now), Event::Tick)?;
            if self.policy.idle_timeout.is_some() {
                self.step(Duration::ZERO, Event::Idle)?;
            }
        }
        let deadline = self.run.next_deadline();
        prop_assert!(deadline.is_none(), "there is always another deadline: {:?}", self.run);
        let is_bounded = self.policy.timeout.is_some() && self.policy.stages != parse_stages("TERM").expect("a list");
        let phase = View::of(&self.run).phase;
        prop_assert!(!is_bounded || matches!(phase, Phase::Paused | Phase::Killing | Phase::Over), "{:?}", self.run);
        if self.can_be(EXITED) {
            self.step(Duration::ZERO, EXITED)?;
        }
        self.step(Duration::ZERO, Event::Empty)?;
        prop_assert!(self.run.is_over(), "nothing lives, and it is not over: {:?}", self.run);
        Ok(())
    }
}

fn walk(policy: Policy, events: Vec<(u64, Event)>, ways: &RefCell<Ways>) -> Result<(), TestCaseError> {
    let mut walk = Walk { run: Supervisor::new(policy.clone(), START), policy, now: START, past: Past::new(), ways };
    for (pause, event) in events {
        if walk.can_be(event) {
            walk.step(Duration::from_millis(pause), event)?;
        }
    }
    walk.come_to_the_end()
}

#[test]
fn every_run_keeps_its_promises_by_every_way_there_is() {
    // Each way of the table is taken by a dozen of these at least.
    const SEQUENCES: u32 = 20_000;
    let asked = std::env::var("TREEKILL_MODEL_SEQUENCES").ok();
    let sequences = asked.map_or(SEQUENCES, |text| text.parse().expect("a number of sequences"));
    let (ways, walked) = (RefCell::new(Ways::new()), Cell::new(0_u64));
    let events = prop::collection::vec((0_u64..1_500, any_event()), 1..20);
    let mut runner = TestRunner::new(Config { cases: sequences, failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&(any_policy(), events), |(policy, events)| {
        walked.set(walked.get() + 1);
        walk(policy, events, &ways)
    });
    let ways = ways.into_inner();
    let (count, missing) = (ways.count(), ways.missing());
    println!("{} invariants; the rarest way: {:?}", INVARIANTS.len(), ways.rarest());
    println!(
        "figures: sequences {}, transitions {} of {count} covered, violations {}",
        walked.get(),
        count - missing.len(),
        u8::from(outcome.is_err())
    );
    match outcome {
        Err(TestError::Fail(why, case)) => panic!("{why}\nby {case:?}"),
        outcome => outcome.expect("enough sequences can be made"),
    }
    assert!(missing.is_empty(), "never taken: {missing:?}");
}
