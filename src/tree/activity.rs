//! Whether a tree does anything, from one look at /proc to the next.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Process, procfs};
use crate::sys;

/// One clock tick of /proc.
const TICK: Duration = Duration::from_millis(1000 / procfs::TICKS);

/// Less than this part of one CPU is what runtimes need for their timers.
const IDLE_SHARE: u32 = 100;

/// What has been counted of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counters {
    /// CPU time in ticks.
    cpu: u64,
    /// Page faults of children that it has waited for: they rise whenever one ended.
    children: u64,
    /// Everything in /proc/PID/io; `None` where that is not ours to read.
    io: Option<u64>,
}

/// What was seen when the tree was active last.
#[derive(Default)]
pub struct Activity {
    /// By pid and start.
    counters: BTreeMap<(i32, u64), Counters>,
    at: Duration,
    has_hidden_io: bool,
}

impl Activity {
    /// Whether these processes have done something since the last look at which they had: a birth or an end, any I/O, or a
    /// hundredth of one CPU.
    pub fn look(&mut self, processes: &[Process]) -> bool {
        let now = sys::now();
        let counters: BTreeMap<_, _> = processes.iter().filter_map(count).collect();
        self.has_hidden_io |= counters.values().any(|counters| counters.io.is_none());
        let is_active = has_worked(&self.counters, &counters, now.saturating_sub(self.at));
        if is_active {
            (self.counters, self.at) = (counters, now);
        }
        is_active
    }

    /// Whether the I/O of a process could not be read.
    pub fn has_hidden_io(&self) -> bool {
        self.has_hidden_io
    }
}

fn count(process: &Process) -> Option<((i32, u64), Counters)> {
    let stat = process.stat.as_ref()?;
    let counters = Counters { cpu: stat.cpu, children: stat.child_faults, io: procfs::io(process.pid) };
    Some(((process.pid.as_raw_pid(), stat.start), counters))
}

type Counted = BTreeMap<(i32, u64), Counters>;

fn has_worked(before: &Counted, now: &Counted, elapsed: Duration) -> bool {
    if !before.keys().eq(now.keys()) {
        return true;
    }
    let pairs = || before.values().zip(now.values());
    if pairs().any(|(before, now)| now.children != before.children || (now.io > before.io && before.io.is_some())) {
        return true;
    }
    let used: u64 = pairs().map(|(before, now)| now.cpu.saturating_sub(before.cpu)).sum();
    // Each process may have been about to fill a tick when it was counted first.
    let rounding = u64::try_from(pairs().filter(|(before, now)| now.cpu > before.cpu).count()).unwrap_or(u64::MAX);
    let ticks = u32::try_from(used.saturating_sub(rounding)).unwrap_or(u32::MAX);
    ticks > 0 && TICK * ticks >= elapsed / IDLE_SHARE
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn one(cpu: u64, children: u64, io: Option<u64>) -> Counted {
        BTreeMap::from([((7, 1), Counters { cpu, children, io })])
    }

    #[test]
    fn births_ends_and_io_are_activity() {
        let before = one(10, 5, Some(3));
        assert!(!has_worked(&before, &before, SECOND));
        assert!(has_worked(&before, &one(10, 5, Some(4)), SECOND));
        assert!(has_worked(&before, &one(10, 6, Some(3)), SECOND));
        assert!(has_worked(&before, &BTreeMap::new(), SECOND));
        let reused = BTreeMap::from([((7, 2), before[&(7, 1)])]);
        assert!(has_worked(&before, &reused, SECOND), "the same pid, another process");
        assert!(!has_worked(&before, &one(10, 5, None), SECOND), "what can't be read has not risen");
    }

    #[test]
    fn a_hundredth_of_a_cpu_is_activity_whatever_the_time() {
        let before = one(10, 0, None);
        for (ticks, elapsed, is_active) in
            [(1, SECOND, false), (2, SECOND, true), (5, 10 * SECOND, false), (11, 10 * SECOND, true)]
        {
            assert_eq!(has_worked(&before, &one(10 + ticks, 0, None), elapsed), is_active, "{ticks} in {elapsed:?}");
        }
        assert!(has_worked(&before, &one(20, 0, None), SECOND / 8));
        assert!(!has_worked(&before, &one(11, 0, None), SECOND / 8), "half a tick counts as one");
    }
}
