//! The cells in which a tree is idle.

use super::*;

fn idle_policy() -> Policy {
    Policy { timeout: None, idle_timeout: Some(4 * SECOND), ..policy() }
}

#[test]
fn a_tree_that_is_idle_for_too_long_is_stopped() {
    let mut run = Run::new(idle_policy());
    assert_eq!(run.deadline(), Some(1_000));
    assert_eq!(run.at(1_000, Event::Tick), [Action::Look]);
    assert_eq!(run.at(1_000, Event::Active), []);
    for at in [2_000, 3_000, 4_000] {
        assert_eq!(run.at(at, Event::Tick), [Action::Look]);
        assert_eq!(run.at(at, Event::Idle), []);
    }
    assert_eq!(run.at(5_000, Event::Tick), [Action::Look]);
    assert_eq!(run.at(5_000, Event::Idle), STOP);
    assert_eq!(run.0.outcome().cause, Cause::Idle);
    assert_eq!(run.deadline(), Some(10_000), "the grace, and no further look");
}

#[test]
fn while_ctrl_z_stops_the_command_it_is_not_idle() {
    let mut run = Run::new(idle_policy());
    assert_eq!(run.at(500, Event::CommandStopped(Sig::TSTP)), [Action::TellStopped(Sig::TSTP)]);
    assert_eq!(run.deadline(), None);
    assert_eq!(run.at(60_000, Event::CommandContinued), []);
    assert_eq!(run.deadline(), Some(61_000));
    assert_eq!(run.at(61_000, Event::Tick), [Action::Look]);
    assert_eq!(run.at(61_000, Event::Idle), []);
}

#[test]
fn a_command_that_waits_for_the_terminal_is_idle() {
    let mut run = Run::new(idle_policy());
    assert_eq!(run.at(500, Event::CommandStopped(Sig::TTIN)), [Action::TellStopped(Sig::TTIN)]);
    assert_eq!(run.deadline(), Some(1_000));
    assert_eq!(run.at(1_000, Event::Tick), [Action::Look]);
    assert_eq!(run.at(4_000, Event::Idle), STOP);
    assert_eq!(run.0.outcome().cause, Cause::Idle);
}

#[test]
fn what_outlives_a_command_killed_while_it_was_stopped_has_not_been_idle() {
    let mut run = Run::new(Policy { leftovers: Leftovers::Wait, ..idle_policy() });
    let _ = run.at(500, Event::CommandStopped(Sig::TSTP));
    let _ = run.at(60_000, KILLED);
    assert_eq!(run.deadline(), Some(61_000));
    assert_eq!(run.at(61_000, Event::Tick), [Action::Look]);
    assert_eq!(run.at(61_000, Event::Idle), []);
}

#[test]
fn leftovers_can_be_idle_only_if_they_are_waited_for() {
    let mut run = Run::new(idle_policy());
    assert_eq!(run.at(500, EXITED), []);
    assert_eq!(run.deadline(), Some(1_500), "their grace");
    let mut run = Run::new(Policy { leftovers: Leftovers::Wait, ..idle_policy() });
    assert_eq!(run.at(500, EXITED), []);
    assert_eq!(run.at(1_000, Event::Tick), [Action::Look]);
    assert_eq!(run.at(4_000, Event::Idle), STOP);
}
