//! Every way from one state to another, and the events that lead there. A walk that takes another one is at fault, and so
//! is one that leaves any of these out.

use std::collections::BTreeMap;

use super::invariants::Phase;
use super::*;

/// A paused run is one whose clock Ctrl-Z holds. Where SIGKILL is the first stage, each stop is a kill.
const TRANSITIONS: &str = "
    Running   --> Paused:    CommandStopped Signal
    Running   --> Lingering: CommandEnded
    Running   --> Stopping:  Tick Idle Signal ParentDied
    Running   --> Killing:   Tick Idle Signal ParentDied FrontDied Broken
    Running   --> Over:      FrontDied
    Paused    --> Running:   CommandContinued CommandStopped Signal
    Paused    --> Lingering: CommandEnded
    Paused    --> Stopping:  Signal ParentDied
    Paused    --> Killing:   ParentDied FrontDied Broken
    Paused    --> Over:      FrontDied
    Lingering --> Stopping:  Tick Idle Signal ParentDied Kept
    Lingering --> Killing:   Tick Idle ParentDied Kept FrontDied Broken
    Lingering --> Over:      Empty Tick FrontDied
    Stopping  --> Killing:   Tick Signal FrontDied Broken
    Stopping  --> Over:      Empty FrontDied
    Killing   --> Over:      Empty Survived
";

/// How often each way was taken.
#[derive(Debug)]
pub(super) struct Ways(BTreeMap<String, u64>);

impl Ways {
    /// The ways of the table.
    pub(super) fn new() -> Ways {
        let lines = TRANSITIONS.lines().filter_map(|line| line.split_once(':'));
        let ways = lines.flat_map(|(states, events)| events.split_whitespace().map(move |event| way(states, event)));
        Ways(ways.map(|way| (way, 0)).collect())
    }

    /// Notes a step; false if no way of the table leads there.
    pub(super) fn take(&mut self, before: Phase, event: Event, after: Phase) -> bool {
        let event = format!("{event:?}");
        let name = event.split('(').next().unwrap_or_default();
        let count = self.0.get_mut(&way(&format!("{before:?} --> {after:?}"), name));
        count.map(|count| *count += 1).is_some() || before == after
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Those that were never taken.
    pub(super) fn missing(&self) -> Vec<&str> {
        self.0.iter().filter(|(_, count)| **count == 0).map(|(way, _)| way.as_str()).collect()
    }

    /// The one that was taken the least, and how often.
    pub(super) fn rarest(&self) -> Option<(&str, u64)> {
        self.0.iter().min_by_key(|(_, count)| **count).map(|(way, count)| (way.as_str(), *count))
    }
}

fn way(states: &str, event: &str) -> String {
    let states = states.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{states}: {event}")
}
