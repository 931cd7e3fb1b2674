//! Who ignores a stop's signal when the command has ended.

use super::*;

#[test]
fn who_ignores_the_signal_is_asked_by_sigterm_once_the_command_has_ended() {
    for sig in [Sig::INT, Sig::HUP, Sig::QUIT] {
        let mut run = Run::new(policy());
        assert_eq!(run.at(100, from_process(sig)), [Action::Stop(sig, Receivers::Tree)]);
        assert_eq!(run.at(900, EXITED), [Action::AskDeaf(sig)]);
        // A job that was about to be started ignores it late.
        assert_eq!((run.deadline(), run.at(950, Event::Tick)), (Some(950), vec![Action::AskDeaf(sig)]));
        assert_eq!((run.deadline(), run.at(1_050, Event::Tick)), (Some(1_050), vec![Action::AskDeaf(sig)]));
        for at in [1_250, 1_650, 2_450] {
            assert_eq!(run.at(at, Event::Tick), [Action::AskDeaf(sig)]);
        }
        assert_eq!(run.deadline(), Some(5_100), "the grace stays what it is");
    }
    let mut run = Run::new(policy());
    let _ = run.at(100, from_process(Sig::TERM));
    assert_eq!(run.at(900, EXITED), []);
    let mut run = Run::new(Policy { stages: Stages::new(Sig::INT, SECOND), ..policy() });
    assert_eq!(run.at(10_000, Event::Tick), [Action::Stop(Sig::INT, Receivers::Tree)]);
    assert_eq!(run.at(11_000, Event::Tick), [Action::Kill]);
    assert_eq!(run.at(11_001, KILLED), [], "SIGKILL was for all");
}

#[test]
fn each_stage_asks_who_ignores_it_until_one_has_sent_sigterm() {
    let stages = parse_stages("INT:1s,QUIT:1s,TERM:1s,HUP:1s,KILL").expect("a list");
    let mut run = Run::new(Policy { stages, ..policy() });
    assert_eq!(run.at(10_000, Event::Tick), [Action::Stop(Sig::INT, Receivers::Tree)]);
    assert_eq!(run.at(10_500, EXITED), [Action::AskDeaf(Sig::INT)]);
    assert_eq!(run.at(11_000, Event::Tick), [Action::StopAgain(Sig::QUIT), Action::AskDeaf(Sig::QUIT)]);
    assert_eq!(run.at(12_000, Event::Tick), [Action::StopAgain(Sig::TERM)]);
    assert_eq!(run.at(13_000, Event::Tick), [Action::StopAgain(Sig::HUP)], "they have had it");
}
