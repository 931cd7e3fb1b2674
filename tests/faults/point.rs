//! A point of the walk: one system call of one process of ours, and what befalls it there.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use nix::libc;
use rustix::process::{Signal, pidfd_send_signal};

use crate::calls::{self, Trial};
use crate::common::tracer::Call;
use crate::common::{kin, running};
use crate::setting::{Setting, Target, UNBORN};
use crate::verdict::{Hit, Subject};

/// What befalls a process at a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The call fails once.
    Fails { errno: i32, is_made: bool },
    /// It fails, and so do all others of its kind from then on.
    FailsForEver { errno: i32, is_made: bool },
    /// SIGKILL.
    Killed,
    /// SIGSTOP, and SIGCONT after a while.
    Stopped,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    setting: Setting,
    number: i64,
    /// Which of the process's calls of this number.
    nth: usize,
    fault: Fault,
}

/// What became of a point.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Tried {
    Reached,
    /// The process did not make the call this time.
    NotReached,
}

/// No call comes back with these for ever.
const PASSING: [i32; 2] = [libc::EINTR, libc::EAGAIN];

/// How long a process may go on whose calls fail for ever.
const LONGEST: Duration = Duration::from_secs(8);

/// How long one that is stopped stays so, if nobody else continues it.
const STOPPED: Duration = Duration::from_secs(1);

impl Point {
    /// Every point of a process.
    pub(crate) fn all_of(setting: Setting) -> Vec<Point> {
        let calls = setting.calls();
        let mut counts = BTreeMap::new();
        for number in &calls {
            *counts.entry(*number).or_insert(0_usize) += 1;
        }
        let mut seen = BTreeMap::new();
        let mut points = vec![];
        for number in calls {
            let nth = seen.entry(number).or_insert(0);
            *nth += 1;
            let (_, trial) = calls::find(number);
            let (errors, is_made) = match trial {
                Trial::Fails(errors) => (errors, false),
                Trial::FailsAfterwards(errors) => (errors, true),
                Trial::Never(_) => (&[][..], false),
            };
            let mut faults: Vec<Fault> = errors.iter().map(|&errno| Fault::Fails { errno, is_made }).collect();
            // From the first, from the one in the middle, and from the last.
            if [1, counts[&number] / 2 + 1, counts[&number]].contains(nth) {
                let lasting = errors.iter().filter(|errno| !PASSING.contains(errno));
                faults.extend(lasting.map(|&errno| Fault::FailsForEver { errno, is_made }));
            }
            // To kill the command is not to kill one of us.
            if setting.role != UNBORN {
                faults.extend([Fault::Killed, Fault::Stopped]);
            }
            points.extend(faults.into_iter().map(|fault| Point { setting, number, nth: *nth, fault }));
        }
        points
    }

    /// Has it happen in a run, and looks at what became of that.
    pub(crate) fn attempt(&self) -> Tried {
        let mut target = self.setting.start();
        let what = self.to_string();
        if !self.reach(&mut target) {
            target.let_go().check(None, &what);
            return Tried::NotReached;
        }
        let hit = Hit {
            role: self.setting.role,
            call: self.number,
            fault: self.fault,
            had_child: kin::children(target.subject.run.pid()).len() > usize::from(self.setting.has_deputy),
        };
        self.befall(target, &what).check(Some(&hit), &what);
        Tried::Reached
    }

    /// Lets the process run to its call; false if it never makes it.
    fn reach(&self, target: &mut Target) -> bool {
        let mut has_begun = false;
        let mut nth = 0;
        while let Some(call) = target.traced.next_call() {
            has_begun |= self.setting.begins_with(call);
            nth += usize::from(has_begun && call.number == self.number);
            if nth == self.nth {
                return true;
            }
        }
        false
    }

    fn befall(&self, mut target: Target, what: &str) -> Subject {
        let pid = target.traced.pid().as_raw().cast_unsigned();
        // It stands still, so that the number is its own.
        let pidfd = running::open_process(pid).expect("nobody has reaped it");
        match self.fault {
            Fault::Fails { errno, is_made } => target.traced.fail_call(errno, is_made),
            Fault::FailsForEver { errno, is_made } => {
                let started = Instant::now();
                let mut call = Some(self.number);
                while let Some(number) = call {
                    if number == self.number {
                        target.traced.fail_call(errno, is_made);
                    }
                    if started.elapsed() > LONGEST {
                        target.subject.run.fail(&format!("{what}: the process goes on for ever"));
                    }
                    call = target.traced.next_call().map(|call: Call| call.number);
                }
            }
            // One that was killed by the others is no failure.
            Fault::Killed => drop(pidfd_send_signal(&pidfd, Signal::KILL)),
            Fault::Stopped => {
                let _ = pidfd_send_signal(&pidfd, Signal::STOP);
                let subject = target.let_go();
                if !running::is_dead(subject.run.pidfd(), STOPPED) {
                    let _ = pidfd_send_signal(&pidfd, Signal::CONT);
                }
                return subject;
            }
        }
        target.let_go()
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Point { setting, number, nth, fault } = self;
        write!(f, "{setting} {}#{nth} ", calls::find(*number).0)?;
        let name = |errno: &i32| nix::errno::Errno::from_raw(*errno);
        match fault {
            Fault::Fails { errno, .. } => write!(f, "{:?}", name(errno)),
            Fault::FailsForEver { errno, .. } => write!(f, "{:?} for-ever", name(errno)),
            Fault::Killed => write!(f, "killed"),
            Fault::Stopped => write!(f, "stopped"),
        }
    }
}
