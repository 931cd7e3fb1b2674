//! A random walk with the invariants that every run keeps.

use proptest::prelude::*;

use super::*;

fn any_event() -> impl Strategy<Value = Event> {
    let sig = prop_oneof![
        Just(Sig::TERM),
        Just(Sig::INT),
        Just(Sig::HUP),
        Just(Sig::TSTP),
        Just(Sig::CONT),
        Just(Sig::WINCH)
    ];
    let end =
        prop_oneof![(0_u8..4).prop_map(End::Exited), Just(End::Signaled(Sig::KILL)), Just(End::Signaled(Sig::TERM))];
    let source = prop_oneof![Just(Source::Process), Just(Source::Terminal), Just(Source::EarlyTerminal)];
    prop_oneof![
        4 => Just(Event::Tick),
        2 => end.prop_map(Event::CommandEnded),
        2 => Just(Event::Empty),
        3 => (sig.clone(), source).prop_map(|(sig, source)| Event::Signal(sig, source)),
        1 => sig.prop_map(Event::CommandStopped),
        1 => Just(Event::CommandContinued),
        1 => Just(Event::Active),
        2 => Just(Event::Kept),
        2 => Just(Event::Idle),
        1 => Just(Event::Survived),
        1 => Just(Event::FrontDied),
        1 => Just(Event::ParentDied),
        1 => Just(Event::Broken),
        1 => Just(Event::NotStarted(Failure::Exec(2))),
    ]
}

fn any_policy() -> impl Strategy<Value = Policy> {
    let leftovers = prop_oneof![Just(Leftovers::Kill), Just(Leftovers::Wait), Just(Leftovers::Leave)];
    let stages = prop_oneof![Just("TERM:1s,KILL"), Just("INT:1s,TERM:1s,KILL"), Just("KILL"), Just("TERM")];
    let personality = prop_oneof![Just(Personality::Own), Just(Personality::Gnu)];
    let idle_timeout = prop_oneof![Just(None), (1_u64..5_000).prop_map(|millis| Some(Duration::from_millis(millis)))];
    let rest = (personality, any::<bool>(), any::<bool>(), idle_timeout);
    (leftovers, stages, rest).prop_map(|(leftovers, stages, (personality, guard, is_in_terminal, idle_timeout))| {
        Policy {
            idle_timeout,
            personality,
            leftovers,
            stages: parse_stages(stages).expect("a list"),
            guard,
            is_in_terminal,
            ..policy()
        }
    })
}

proptest! {
    /// Whatever happens in whatever order:
    /// - SIGKILL is ordered at most once, and nothing softer after it;
    /// - a stop begins at most once, though GNU's rules pass further signals on;
    /// - the run is over only when the tree is empty, released or past its drain limit;
    /// - once over it stays so, and asks for nothing;
    /// - a deadline that passes moves it on: no Tick at a deadline leaves the same deadline behind.
    #[test]
    fn every_run_keeps_its_promises(policy in any_policy(), events in prop::collection::vec((0_u64..3_000, any_event()), 1..60)) {
        let is_gnu = policy.personality == Personality::Gnu;
        let mut run = Run::new(policy);
        let (mut clock, mut kills, mut stops, mut is_ended) = (0, 0, 0, false);
        for (pause, event) in events {
            // The command ends once, and only then can the tree be empty: the kernel sees to that.
            match event {
                Event::CommandEnded(_) if std::mem::replace(&mut is_ended, true) => continue,
                Event::Empty if !is_ended => continue,
                Event::Survived if kills == 0 => continue,
                _ => {}
            }
            clock += pause;
            let was_over = run.0.is_over();
            let deadline = run.0.next_deadline();
            let actions = run.at(clock, event);
            prop_assert!(!was_over || actions.is_empty() && run.0.is_over());
            for action in &actions {
                match action {
                    Action::Kill => kills += 1,
                    Action::Stop(..) => stops += 1,
                    _ => {}
                }
                prop_assert!(kills == 0 || *action == Action::Kill || was_over, "{action:?} after SIGKILL");
            }
            prop_assert!(kills <= 1 && (stops <= 1 || is_gnu));
            if !was_over && run.0.is_over() {
                let is_proved = matches!(event, Event::Empty | Event::Survived) || actions.contains(&Action::Release);
                prop_assert!(is_proved, "over by {event:?}");
            }
            if event == Event::Tick && deadline.is_some_and(|deadline| deadline <= START + Duration::from_millis(clock)) {
                prop_assert_ne!(run.0.next_deadline(), deadline);
            }
        }
    }
}
