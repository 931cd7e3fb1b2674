//! A test a cell of the state machine; GNU's rules have a room of their own, and so has a random walk that keeps the
//! invariants and takes every transition.

mod deaf;
mod gnu;
mod idleness;
mod invariants;
mod jobs;
mod transitions;
mod walk;

use super::*;
use crate::cli::SignalTo;
use crate::outcome::{ExitPolicy, Failure, LEFTOVERS};
use crate::plan::parse_stages;

const SECOND: Duration = Duration::from_secs(1);
const START: Duration = Duration::from_secs(1000);

fn policy() -> Policy {
    Policy {
        personality: Personality::Own,
        timeout: Some(10 * SECOND),
        idle_timeout: None,
        stages: Stages::new(Sig::TERM, 5 * SECOND),
        leftover_stages: Stages::new(Sig::TERM, 5 * SECOND),
        signal_to: SignalTo::Tree,
        leftovers: Leftovers::Kill,
        keeps: false,
        leftover_grace: SECOND,
        guard: true,
        is_in_terminal: true,
        exit: ExitPolicy { preserve_status: false, leftover_status: LEFTOVERS },
    }
}

/// A run and its clock.
struct Run(Supervisor);

impl Run {
    fn new(policy: Policy) -> Run {
        Run(Supervisor::new(policy, START))
    }

    /// Tells an event this many milliseconds after the start.
    fn at(&mut self, millis: u64, event: Event) -> Vec<Action> {
        self.0.on_event(START + Duration::from_millis(millis), event)
    }

    fn deadline(&self) -> Option<u64> {
        self.0.next_deadline().map(|moment| u64::try_from((moment - START).as_millis()).expect("small"))
    }
}

const EXITED: Event = Event::CommandEnded(End::Exited(0));
const KILLED: Event = Event::CommandEnded(End::Signaled(Sig::KILL));
const STOP: [Action; 1] = [Action::Stop(Sig::TERM, Receivers::Tree)];

fn from_process(sig: Sig) -> Event {
    Event::Signal(sig, Source::Process)
}

fn from_terminal(sig: Sig) -> Event {
    Event::Signal(sig, Source::Terminal)
}

#[test]
fn a_command_that_leaves_nothing_ends_the_run() {
    let mut run = Run::new(policy());
    assert_eq!(run.deadline(), Some(10_000));
    assert_eq!(run.at(5, EXITED), []);
    assert_eq!(run.at(5, Event::Empty), []);
    assert!(run.0.is_over());
    assert_eq!(*run.0.outcome(), Outcome { end: Some(End::Exited(0)), ..Run::new(policy()).0.outcome });
}

#[test]
fn the_deadline_begins_a_stop_whose_grace_ends_in_a_kill() {
    let mut run = Run::new(policy());
    assert_eq!(run.at(9_999, Event::Tick), []);
    assert_eq!(run.at(10_000, Event::Tick), STOP);
    assert_eq!(run.deadline(), Some(15_000));
    assert_eq!(run.at(14_999, Event::Tick), []);
    assert_eq!(run.at(15_000, Event::Tick), [Action::Kill]);
    assert_eq!(run.at(15_001, KILLED), []);
    assert_eq!(run.at(15_001, Event::Empty), []);
    assert_eq!(run.0.outcome().cause, Cause::TimedOut);
    assert!(run.0.outcome().needed_kill);
}

#[test]
fn a_stop_ends_the_moment_the_tree_is_empty() {
    let mut run = Run::new(policy());
    let _ = run.at(10_000, Event::Tick);
    assert_eq!(run.at(10_001, EXITED), []);
    assert!(!run.0.is_over(), "the wait is for the tree, not for the command");
    assert_eq!(run.at(10_002, Event::Empty), []);
    assert!(run.0.is_over());
    assert!(!run.0.outcome().left_over, "what a stop ends is no leftover");
}

#[test]
fn a_command_that_ended_before_the_kill_did_not_need_it() {
    let mut run = Run::new(policy());
    let _ = run.at(10_000, Event::Tick);
    let _ = run.at(10_001, EXITED);
    assert_eq!(run.at(15_000, Event::Tick), [Action::Kill]);
    let _ = run.at(15_001, Event::Empty);
    assert!(!run.0.outcome().needed_kill);
}

#[test]
fn leftovers_have_their_grace() {
    let mut run = Run::new(policy());
    let _ = run.at(5, EXITED);
    assert_eq!(run.deadline(), Some(1_005), "the command's end disarms the timeout");
    assert_eq!(run.at(1_005, Event::Tick), [&[Action::NoteLeftovers][..], &STOP].concat());
    assert!(run.0.outcome().left_over);
    assert_eq!(run.0.outcome().cause, Cause::Ended);
}

#[test]
fn leftovers_are_left_or_waited_for_as_told() {
    let mut run = Run::new(Policy { leftovers: Leftovers::Leave, ..policy() });
    let _ = run.at(5, EXITED);
    assert_eq!(run.at(1_005, Event::Tick), [Action::Release]);
    assert!(run.0.is_over() && !run.0.outcome().left_over);

    let mut run = Run::new(Policy { leftovers: Leftovers::Wait, ..policy() });
    let _ = run.at(5, EXITED);
    assert_eq!(run.deadline(), Some(10_000), "the clock goes on");
    assert_eq!(run.at(10_000, Event::Tick), STOP);
    assert_eq!(run.0.outcome().cause, Cause::TimedOut);
}

#[test]
fn a_signal_after_the_commands_end_ends_the_leftovers_at_once() {
    for leftovers in [Leftovers::Kill, Leftovers::Wait, Leftovers::Leave] {
        let mut run = Run::new(Policy { leftovers, ..policy() });
        let _ = run.at(5, EXITED);
        let stop = [Action::NoteLeftovers, Action::Stop(Sig::INT, Receivers::Tree), Action::AskDeaf(Sig::INT)];
        assert_eq!(run.at(6, from_process(Sig::INT)), stop);
        assert_eq!(run.0.outcome().cause, Cause::Ended, "the command's own status stays");
    }
}

#[test]
fn ctrl_c_ends_leftovers_that_are_waited_for() {
    let mut run = Run::new(Policy { leftovers: Leftovers::Wait, ..policy() });
    let _ = run.at(5, EXITED);
    let stop = Action::Stop(Sig::INT, Receivers::NotCommandsGroup);
    let stop = [Action::NoteLeftovers, stop, Action::AskDeaf(Sig::INT)];
    assert_eq!(run.at(6, from_terminal(Sig::INT)), stop);
}

#[test]
fn a_relayed_request_replaces_the_first_signal_but_not_its_grace() {
    for sig in [Sig::TERM, Sig::INT, Sig::HUP, Sig::QUIT] {
        let mut run = Run::new(policy());
        assert_eq!(run.at(100, from_process(sig)), [Action::Stop(sig, Receivers::Tree)]);
        assert_eq!(run.deadline(), Some(5_100));
        assert_eq!(run.0.outcome().cause, Cause::Signal(sig));
    }
}

#[test]
fn a_second_request_kills_unless_it_comes_with_the_first() {
    let mut run = Run::new(policy());
    let _ = run.at(100, from_process(Sig::TERM));
    assert_eq!(run.at(299, from_process(Sig::HUP)), [], "a logout sends both");
    assert_eq!(run.at(300, from_process(Sig::INT)), [Action::Kill]);
}

#[test]
fn the_first_request_in_a_stop_that_the_clock_began_does_not_cut_its_grace() {
    let mut run = Run::new(policy());
    let _ = run.at(10_000, Event::Tick);
    assert_eq!(run.at(11_000, from_process(Sig::TERM)), []);
    assert_eq!(run.at(11_199, from_process(Sig::TERM)), []);
    assert_eq!(run.at(11_200, from_process(Sig::TERM)), [Action::Kill]);
}

#[test]
fn ctrl_c_is_a_request_in_a_stop_that_has_outlived_the_command() {
    let mut run = Run::new(policy());
    let _ = run.at(10_000, Event::Tick);
    assert_eq!(run.at(10_100, from_terminal(Sig::INT)), [], "the command has it, and decides what it means");
    let _ = run.at(10_200, EXITED);
    assert_eq!(run.at(11_000, from_terminal(Sig::INT)), []);
    assert_eq!(run.at(11_200, from_terminal(Sig::INT)), [Action::Kill]);
    let mut run = Run::new(policy());
    let _ = run.at(0, EXITED);
    let _ = run.at(100, from_terminal(Sig::INT));
    assert_eq!(run.at(300, from_terminal(Sig::INT)), [Action::Kill]);
}

#[test]
fn other_signals_go_to_the_command_only() {
    let usr1 = Sig::new(nix::libc::SIGUSR1).expect("a signal");
    let mut run = Run::new(policy());
    assert_eq!(run.at(1, from_process(usr1)), [Action::Relay(usr1)]);
    let _ = run.at(2, from_process(Sig::TERM));
    assert_eq!(run.at(900, from_process(usr1)), [Action::Relay(usr1)]);
}

#[test]
fn each_stage_has_its_time() {
    let stages = parse_stages("INT:1s,QUIT:2s,TERM").expect("a list");
    let mut run = Run::new(Policy { stages, ..policy() });
    assert_eq!(run.at(10_000, Event::Tick), [Action::Stop(Sig::INT, Receivers::Tree)]);
    assert_eq!(run.at(11_000, Event::Tick), [Action::StopAgain(Sig::QUIT)]);
    assert_eq!(run.at(13_000, Event::Tick), [Action::StopAgain(Sig::TERM)]);
    assert_eq!(run.deadline(), None, "a list that does not end in KILL never kills");
}

#[test]
fn a_first_signal_of_kill_kills_at_once() {
    let mut run = Run::new(Policy { stages: Stages::new(Sig::KILL, SECOND), ..policy() });
    assert_eq!(run.at(10_000, Event::Tick), [Action::Kill]);
}

#[test]
fn the_first_signal_goes_to_whom_the_options_say() {
    for (signal_to, receivers) in [(SignalTo::Group, Receivers::CommandsGroup), (SignalTo::Command, Receivers::Command)]
    {
        let policy = Policy { signal_to, ..policy() };
        let mut run = Run::new(policy.clone());
        assert_eq!(run.at(10_000, Event::Tick), [Action::Stop(Sig::TERM, receivers)]);
        let mut run = Run::new(policy);
        let _ = run.at(5, EXITED);
        assert_eq!(run.at(2_000, Event::Tick).last(), Some(&STOP[0]), "for leftovers always the tree");
    }
}

#[test]
fn the_death_of_the_front_kills_or_releases() {
    let mut run = Run::new(policy());
    assert_eq!(run.at(1, Event::FrontDied), [Action::Kill]);
    let mut run = Run::new(Policy { guard: false, ..policy() });
    assert_eq!(run.at(1, Event::FrontDied), [Action::Release]);
    let mut run = Run::new(Policy { leftovers: Leftovers::Leave, ..policy() });
    assert_eq!(run.at(1, Event::FrontDied), [Action::Kill], "leave is no exception before the command's end");
    let mut run = Run::new(Policy { leftovers: Leftovers::Leave, ..policy() });
    let _ = run.at(1, EXITED);
    assert_eq!(run.at(2, Event::FrontDied), [Action::Release]);
}

#[test]
fn the_death_of_the_caller_begins_a_stop() {
    let mut run = Run::new(policy());
    assert_eq!(run.at(1, Event::ParentDied), STOP);
    assert_eq!(run.0.outcome().cause, Cause::ParentDied);
}

#[test]
fn a_broken_run_is_killed_in_every_state() {
    for before in [None, Some(EXITED), Some(from_process(Sig::TERM))] {
        let mut run = Run::new(Policy { guard: false, ..policy() });
        if let Some(event) = before {
            let _ = run.at(1, event);
        }
        assert_eq!(run.at(2, Event::Broken), [Action::Kill]);
        assert_eq!(run.0.outcome().failure, Some(Failure::Internal));
    }
}

#[test]
fn a_survivor_ends_the_run_as_such() {
    let mut run = Run::new(policy());
    let _ = run.at(1, Event::FrontDied);
    assert_eq!(run.at(2, Event::Survived), []);
    assert!(run.0.is_over() && run.0.outcome().survived);
}

#[test]
fn who_is_kept_is_put_aside_before_the_others_are_ended() {
    let keeping = || Policy { keeps: true, ..policy() };
    let mut run = Run::new(keeping());
    assert_eq!(run.at(100, EXITED), [Action::Keep]);
    assert_eq!(run.at(100, Event::Kept), []);
    assert_eq!(run.at(1_100, Event::Tick), [Action::Keep]);
    assert_eq!(run.at(1_100, Event::Kept), [Action::NoteLeftovers, STOP[0].clone()]);
    assert!(run.0.outcome().left_over);

    let mut run = Run::new(keeping());
    assert_eq!(run.at(100, EXITED), [Action::Keep]);
    assert_eq!(run.at(500, from_process(Sig::INT)), [Action::Keep]);
    assert_eq!(run.at(500, Event::Empty), [], "nobody else was left");
    assert_eq!(run.at(500, Event::Kept), []);
    assert!(run.0.is_over() && !run.0.outcome().left_over);

    let mut run = Run::new(Policy { leftovers: Leftovers::Wait, ..keeping() });
    assert_eq!(run.at(100, EXITED), [Action::Keep]);
    assert_eq!(run.at(1_100, Event::Tick), [Action::Keep], "once more after the grace");
    assert_eq!(run.at(1_100, Event::Kept), []);
    assert_eq!(run.deadline(), Some(10_000));
}
