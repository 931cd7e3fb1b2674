//! Job control and what the terminal sends.

use super::*;

#[test]
fn what_the_terminal_sent_before_the_command_was_there_reaches_it_through_us() {
    let early = |sig| Event::Signal(sig, Source::EarlyTerminal);
    let mut run = Run::new(policy());
    assert_eq!(run.at(0, early(Sig::INT)), [Action::Relay(Sig::INT)]);
    assert_eq!(run.at(0, early(Sig::TSTP)), [Action::Relay(Sig::TSTP)]);
    assert_eq!(run.at(1, from_terminal(Sig::INT)), []);
    assert_eq!(run.at(2, early(Sig::HUP)), [Action::Stop(Sig::HUP, Receivers::Tree)]);
    let mut run = Run::new(Policy { is_in_terminal: false, ..policy() });
    assert_eq!(run.at(0, early(Sig::INT)), [Action::Stop(Sig::INT, Receivers::Tree)]);
    let mut run = Run::new(policy());
    let _ = run.at(0, EXITED);
    assert_eq!(
        run.at(0, early(Sig::TSTP)),
        [Action::TellStopped(Sig::TSTP)],
        "the job that the shell waits for is the front"
    );
}

#[test]
fn a_command_killed_while_it_is_stopped_gives_its_leftovers_the_time_that_stood_still() {
    let mut run = Run::new(Policy { leftovers: Leftovers::Wait, ..policy() });
    let _ = run.at(4_000, Event::CommandStopped(Sig::TSTP));
    let _ = run.at(9_000, KILLED);
    assert_eq!(run.deadline(), Some(15_000));
}

#[test]
fn what_the_terminal_sent_is_not_sent_again() {
    let mut run = Run::new(policy());
    for sig in [Sig::INT, Sig::QUIT, Sig::WINCH, Sig::TSTP] {
        assert_eq!(run.at(1, from_terminal(sig)), []);
    }
    assert_eq!(run.at(2, from_terminal(Sig::HUP)), [Action::Stop(Sig::HUP, Receivers::NotCommandsGroup)]);
    assert_eq!(run.at(900, from_terminal(Sig::INT)), [], "and never counts as a second signal");
}

#[test]
fn the_clock_stands_still_while_ctrl_z_stops_the_command() {
    let mut run = Run::new(policy());
    assert_eq!(run.at(4_000, Event::CommandStopped(Sig::TSTP)), [Action::TellStopped(Sig::TSTP)]);
    assert_eq!(run.deadline(), None);
    assert_eq!(run.at(60_000, Event::Tick), []);
    assert_eq!(run.at(60_000, Event::CommandContinued), []);
    assert_eq!(run.deadline(), Some(66_000));
    assert_eq!(run.at(66_000, Event::Tick), STOP);
}

#[test]
fn the_clock_runs_while_the_command_waits_for_the_terminal() {
    for sig in [Sig::TTIN, Sig::TTOU] {
        let mut run = Run::new(policy());
        assert_eq!(run.at(4_000, Event::CommandStopped(sig)), [Action::TellStopped(sig)]);
        assert_eq!(run.deadline(), Some(10_000));
        assert_eq!(run.at(5_000, Event::CommandContinued), []);
        assert_eq!(run.at(10_000, Event::Tick), STOP);

        let mut run = Run::new(Policy { is_in_terminal: false, ..policy() });
        assert_eq!(run.at(4_000, from_terminal(sig)), [Action::Suspend, Action::TellStopped(sig)]);
        assert_eq!(run.at(10_000, Event::Tick), STOP);
        assert_eq!(run.at(10_001, from_process(Sig::CONT)), [Action::Resume]);
    }
}

#[test]
fn a_command_that_ctrl_z_stopped_and_that_waits_for_the_terminal_now_has_gone_on() {
    let mut run = Run::new(policy());
    let _ = run.at(4_000, Event::CommandStopped(Sig::TSTP));
    assert_eq!(run.at(7_000, Event::CommandStopped(Sig::TTIN)), [Action::TellStopped(Sig::TTIN)]);
    assert_eq!(run.deadline(), Some(13_000));
}

#[test]
fn sigstop_does_not_stop_the_clock() {
    let mut run = Run::new(policy());
    assert_eq!(run.at(4_000, Event::CommandStopped(Sig::STOP)), []);
    assert_eq!(run.deadline(), Some(10_000));
}

#[test]
fn keys_reach_a_command_in_its_own_session_through_us() {
    let mut run = Run::new(Policy { is_in_terminal: false, ..policy() });
    assert_eq!(run.at(1, from_terminal(Sig::WINCH)), [Action::Relay(Sig::WINCH)]);
    assert_eq!(
        run.at(500, from_process(Sig::TSTP)),
        [Action::SuspendByDefault(Sig::TSTP), Action::TellStopped(Sig::TSTP)]
    );
    assert_eq!(run.deadline(), Some(10_000));
    assert_eq!(run.at(1_000, from_terminal(Sig::TSTP)), [Action::Suspend, Action::TellStopped(Sig::TSTP)]);
    assert_eq!(run.deadline(), None);
    assert_eq!(run.at(3_000, from_process(Sig::CONT)), [Action::Resume]);
    assert_eq!(run.deadline(), Some(12_000));
}

#[test]
fn a_tree_that_ctrl_z_suspended_is_continued_whole_whoever_continued_a_part_of_it() {
    let mut run = Run::new(Policy { is_in_terminal: false, ..policy() });
    let _ = run.at(1_000, from_terminal(Sig::TSTP));
    assert_eq!(run.at(2_000, Event::CommandContinued), []);
    assert_eq!(run.deadline(), None, "the rest stands still");
    assert_eq!(run.at(3_000, from_process(Sig::CONT)), [Action::Resume]);
    assert_eq!(run.deadline(), Some(12_000));
    assert_eq!(run.at(4_000, from_process(Sig::CONT)), [Action::Relay(Sig::CONT)]);
}

#[test]
fn what_outlives_a_suspended_command_is_continued_too() {
    let mut run = Run::new(Policy { is_in_terminal: false, leftovers: Leftovers::Wait, ..policy() });
    let _ = run.at(1_000, from_terminal(Sig::TSTP));
    let _ = run.at(2_000, KILLED);
    assert_eq!(run.at(3_000, from_process(Sig::CONT)), [Action::Resume]);
}

#[test]
fn ctrl_z_gives_the_prompt_back_while_leftovers_are_waited_for() {
    let mut run = Run::new(Policy { leftovers: Leftovers::Wait, ..policy() });
    let _ = run.at(5, EXITED);
    assert_eq!(run.at(6, from_terminal(Sig::TSTP)), [Action::TellStopped(Sig::TSTP)]);
}
