//! The cells in which GNU timeout's rules differ.

use super::*;

fn gnu(kill_after: Duration) -> Policy {
    let leftover_stages = Stages::new(Sig::TERM, 10 * SECOND);
    Policy { personality: Personality::Gnu, stages: Stages::new(Sig::TERM, kill_after), leftover_stages, ..policy() }
}

#[test]
fn gnu_passes_every_fatal_signal_on_and_kills_for_none() {
    let usr1 = Sig::new(nix::libc::SIGUSR1).expect("a signal");
    let mut run = Run::new(gnu(5 * SECOND));
    assert_eq!(run.at(1, from_process(usr1)), [Action::Stop(usr1, Receivers::Tree)]);
    assert_eq!(run.deadline(), Some(5_001), "it arms --kill-after");
    assert_eq!(run.at(900, from_process(Sig::TERM)), [Action::Stop(Sig::TERM, Receivers::Tree)]);
    assert_eq!(run.deadline(), Some(5_001));
}

#[test]
fn gnu_takes_an_alarm_for_the_end_of_the_time() {
    let mut run = Run::new(gnu(5 * SECOND));
    assert_eq!(run.at(1, from_process(Sig::ALRM)), STOP);
    assert_eq!(run.0.outcome().cause, Cause::TimedOut);
    assert_eq!(run.at(2, from_process(Sig::ALRM)), [Action::Kill], "and a second one for the end of the grace");
}

#[test]
fn gnu_never_kills_a_command_without_kill_after_but_does_kill_what_outlives_it() {
    let mut run = Run::new(gnu(Duration::ZERO));
    assert_eq!(run.at(10_000, Event::Tick), STOP);
    assert_eq!(run.deadline(), None);
    assert_eq!(run.at(12_000, EXITED), [], "the rest has had its SIGTERM");
    assert_eq!(run.deadline(), Some(20_000));
    assert_eq!(run.at(20_000, Event::Tick), [Action::Kill]);
    assert!(!run.0.outcome().needed_kill);
}

#[test]
fn gnu_asks_the_rest_with_sigterm_if_the_stop_has_not() {
    for policy in [
        Policy { stages: Stages::new(Sig::INT, Duration::ZERO), ..gnu(Duration::ZERO) },
        Policy { signal_to: SignalTo::Command, ..gnu(Duration::ZERO) },
    ] {
        let mut run = Run::new(policy);
        let _ = run.at(10_000, Event::Tick);
        assert_eq!(run.at(11_000, EXITED), STOP);
        assert_eq!(run.deadline(), Some(21_000));
    }
}

#[test]
fn gnu_has_a_clock_that_no_job_control_stops() {
    let mut run = Run::new(gnu(Duration::ZERO));
    assert_eq!(run.at(4_000, Event::CommandStopped(Sig::TSTP)), [Action::TellStopped(Sig::TSTP)]);
    assert_eq!(run.deadline(), Some(10_000));
}

#[test]
fn gnu_continues_a_whole_tree_that_ctrl_z_suspended() {
    let mut run = Run::new(Policy { is_in_terminal: false, ..gnu(Duration::ZERO) });
    assert_eq!(run.at(1, from_terminal(Sig::TSTP)), [Action::Suspend, Action::TellStopped(Sig::TSTP)]);
    assert_eq!(run.deadline(), Some(10_000));
    assert_eq!(run.at(2, from_process(Sig::CONT)), [Action::Resume]);
}

#[test]
fn gnu_asks_those_by_sigterm_who_outlive_the_command_and_ignore_what_was_passed_on() {
    let mut run = Run::new(gnu(Duration::ZERO));
    let _ = run.at(5, EXITED);
    let stop = [Action::NoteLeftovers, Action::Stop(Sig::INT, Receivers::Tree), Action::AskDeaf(Sig::INT)];
    assert_eq!(run.at(6, from_process(Sig::INT)), stop);
}
