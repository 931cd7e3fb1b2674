//! Who was born before a moment: those whom the listing of a stop has missed are told from the helpers that what it sends
//! makes others start. The kernel gives PIDs in turn, so the last one given before the first signal divides them. When a
//! process started, which /proc gives in hundredths of a second, says it where that number is not to be had.

use std::collections::{BTreeMap, BTreeSet};

use rustix::process::Pid;

use super::{Process, procfs};
use crate::sys;

/// A moment as births are counted.
#[derive(Clone, Copy, Debug)]
pub struct Births {
    /// The PID that was given last.
    last: Option<i32>,
    /// Clock ticks since boot.
    ticks: u64,
}

impl Births {
    /// This moment.
    pub fn now() -> Births {
        // In this order: whoever has a number up to the last has a start that is not long after it.
        let last = procfs::last_pid();
        Births { last, ticks: procfs::to_ticks(sys::since_boot()) }
    }

    /// Whether anybody may have been born since that moment, here or elsewhere on the machine.
    pub fn are_more_than(self, earlier: Births) -> bool {
        match (earlier.last, self.last) {
            (Some(earlier), Some(last)) => earlier != last,
            _ => true,
        }
    }

    /// Those of a later listing, made before the moment `then`, who are not in the known ones and were certainly born before
    /// this moment, or to one of those since: none of them had a signal that was sent to the known ones, and nothing that it
    /// made others do has started them. Of who has lost its parent meanwhile only the former can be told.
    pub fn missed<'a>(
        self,
        known: impl IntoIterator<Item = &'a Process>,
        list: Vec<Process>,
        then: Births,
    ) -> Vec<Process> {
        let known: BTreeMap<i32, Option<u64>> =
            known.into_iter().map(|process| (process.pid.as_raw_pid(), start(process))).collect();
        let mut missed = BTreeSet::new();
        let mut is_missed = |process: &Process| {
            let pid = process.pid.as_raw_pid();
            let parent = process.stat.as_ref().and_then(|stat| stat.parent).map(Pid::as_raw_pid);
            let is_old = known.get(&pid) == Some(&start(process));
            let is_meant =
                !is_old && (self.are_after(process, then) || parent.is_some_and(|parent| missed.contains(&parent)));
            is_meant && missed.insert(pid)
        };
        list.into_iter().filter(|process| is_missed(process)).collect()
    }

    /// Whether it is certain that this process, which lived at the moment `then`, was born before this one.
    fn are_after(self, process: &Process, then: Births) -> bool {
        // A number up to the last one may be a new one if they have begun again from the lowest.
        let is_in_turn = match (self.last, then.last) {
            (Some(last), Some(then)) => last <= then && process.pid.as_raw_pid() <= last,
            _ => false,
        };
        match start(process) {
            Some(start) => start < self.ticks || (is_in_turn && start <= self.ticks + 1),
            None => is_in_turn,
        }
    }
}

fn start(process: &Process) -> Option<u64> {
    process.stat.as_ref().map(|stat| stat.start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Net;

    const BEFORE: Births = Births { last: Some(1000), ticks: 500 };
    const LATER: Births = Births { last: Some(1020), ticks: 503 };

    fn born(pid: i32, parent: i32, start: u64) -> Process {
        let line = format!("{pid} (x) S {parent} 6 5 0 -1 0 1 2 3 4 5 6 7 8 20 0 1 0 {start} 1 2");
        Process { stat: procfs::parse_stat(line.as_bytes()), ..hidden(pid) }
    }

    fn hidden(pid: i32) -> Process {
        Process { pid: Pid::from_raw(pid).expect("a PID"), stat: None, net: Net::Boundary }
    }

    fn missed(at: Births, list: Vec<Process>, then: Births) -> Vec<i32> {
        let known = [born(900, 1, 400), born(990, 900, 499)];
        at.missed(&known, list, then).iter().map(|process| process.pid.as_raw_pid()).collect()
    }

    #[test]
    fn who_has_a_number_up_to_the_last_was_born_before() {
        let list = vec![born(900, 1, 400), born(990, 900, 499), born(995, 900, 500), born(1001, 900, 500)];
        assert_eq!(missed(BEFORE, list, LATER), [995], "neither the known nor who may be a helper");
        assert_eq!(missed(BEFORE, vec![born(995, 1, 500)], LATER), [995], "whoever is its parent by now");
        assert_eq!(missed(BEFORE, vec![hidden(995), hidden(1001)], LATER), [995]);
    }

    #[test]
    fn who_is_born_to_one_that_was_sent_nothing_is_no_helper() {
        let list = vec![born(995, 900, 500), born(1002, 995, 501), born(1003, 1002, 501), born(1004, 900, 501)];
        assert_eq!(missed(BEFORE, list, LATER), [995, 1002, 1003]);
    }

    #[test]
    fn a_number_that_was_given_again_means_another() {
        assert_eq!(missed(BEFORE, vec![born(990, 900, 500)], LATER), [990]);
        assert_eq!(missed(BEFORE, vec![born(990, 900, 502)], LATER), [0; 0], "long after that moment");
    }

    #[test]
    fn where_the_numbers_do_not_tell_the_start_does() {
        let again = Births { last: Some(310), ..LATER };
        let silent = Births { last: None, ..BEFORE };
        for (at, then) in [(BEFORE, again), (silent, Births { last: None, ..LATER })] {
            let list = vec![born(305, 900, 500), born(995, 900, 499), born(996, 900, 500), hidden(997)];
            assert_eq!(missed(at, list, then), [995]);
        }
    }

    #[test]
    fn nobody_is_looked_for_if_nobody_was_born() {
        assert!(!BEFORE.are_more_than(Births { ticks: 490, ..BEFORE }));
        assert!(LATER.are_more_than(BEFORE));
        assert!(BEFORE.are_more_than(Births { last: None, ..BEFORE }));
    }

    #[test]
    fn the_kernel_says_which_number_it_gave_last() {
        let last = procfs::last_pid();
        assert!(last.is_none_or(|last| last > 0), "{last:?}");
        assert!(Births::now().ticks >= procfs::stat(sys::own_pid()).expect("we live").start);
    }
}
