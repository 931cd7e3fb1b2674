//! The runs that faults are tried on.

use std::fmt;

use crate::common::tracer::{self, Call, Traced};
use crate::common::{Backend, Run, Scratch};
use crate::verdict::Subject;

/// What the command does and how the run ends without a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    options: &'static str,
    steps: &'static str,
    pub(crate) usual: &'static [i32],
    /// A status that is as true when a signal could not be sent.
    pub(crate) unheard: i32,
}

pub(crate) const NORMAL: Scenario =
    Scenario { name: "normal", options: "--kill-after 1s", steps: "say ran exit 7", usual: &[7], unheard: 7 };

/// The keeper waits until the front has looked, and the command until the keeper has left the caller's group.
pub(crate) const FOREGROUND: Scenario = Scenario {
    name: "foreground",
    options: "--foreground --kill-after 1s",
    steps: "say ran exit 7",
    usual: &[7],
    unheard: 7,
};

/// The command and its daemon ignore the polite end: the run goes through all of a stop.
pub(crate) const TIMEOUT: Scenario = Scenario {
    name: "timeout",
    options: "--timeout 40ms --kill-after 10ms",
    steps: "say ran ignore TERM daemon [ ignore TERM hang ] hang",
    usual: &[124, 137],
    unheard: 137,
};

pub(crate) const RELAYED: Scenario = Scenario {
    name: "relayed",
    options: "--kill-after 500ms",
    steps: "say ran daemon [ hang ] on TERM [ exit 5 ] kill front TERM hang",
    usual: &[5],
    unheard: 137,
};

pub(crate) const LEFTOVER: Scenario = Scenario {
    name: "leftover",
    options: "--leftover-grace 2ms --kill-after 2ms --stats",
    steps: "say ran daemon [ ignore TERM hang ] exit 0",
    usual: &[193],
    unheard: 193,
};

/// A process of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Role {
    name: &'static str,
    /// By how many generations it is younger than the front, a deputy not counted.
    generation: usize,
    /// It is the first child of its parent, where another is followed otherwise.
    is_first: bool,
}

const fn role(name: &'static str, generation: usize, is_first: bool) -> Role {
    Role { name, generation, is_first }
}

pub(crate) const FRONT: Role = role("front", 0, false);
pub(crate) const DEPUTY: Role = role("deputy", 0, false);
pub(crate) const KEEPER: Role = role("keeper", 1, false);
/// The command before its exec.
pub(crate) const UNBORN: Role = role("unborn", 2, false);
/// Of the pidns backend.
pub(crate) const INIT: Role = role("init", 2, true);

/// A process of ours in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) backend: Backend,
    pub(crate) scenario: Scenario,
    pub(crate) role: Role,
    /// The front has a child that it inherited from the shell whose place it took.
    pub(crate) has_deputy: bool,
}

/// A run under way, one process of which is traced.
pub(crate) struct Target {
    pub(crate) traced: Traced,
    pub(crate) subject: Subject,
}

impl Target {
    /// Ends the tracing.
    pub(crate) fn let_go(self) -> Subject {
        self.traced.let_go();
        self.subject
    }
}

pub(crate) const REPORT: &str = "report.json";

/// The shell leaves a child behind that neither belongs to the tree nor holds the tether.
const LEAVE_A_CHILD: &str = "sleep 300 9>&- & echo bystander $! >&9; exec \"$@\"";

impl Setting {
    pub(crate) fn start(self) -> Target {
        // What can't be proved to be gone is not waited for any longer than that.
        let mut run = Run::new(self.backend)
            .options("--drain-limit 2s")
            .options(self.scenario.options)
            .fixture(self.scenario.steps)
            .may_leave();
        if self.has_deputy {
            run = run.prefixed(["sh", "-c", LEAVE_A_CHILD, "sh"]);
        }
        let scratch = Scratch::new();
        if self.scenario == LEFTOVER {
            run = run.option_list(["--report".as_ref(), scratch.join(REPORT).as_os_str()]);
        }
        let mut run = run.setup(tracer::be_traced).spawn();
        // The shell is the first of two images.
        let execs = if self.has_deputy { 2 } else { 1 };
        match Traced::follow(run.pid(), execs, &self.births_before()) {
            Some(traced) => Target { traced, subject: Subject { run, setting: self, scratch } },
            None => run.fail(&format!("{self}: the process was never born")),
        }
    }

    /// How many children each generation has before the one that is followed: on the pidns backend the keeper has an init
    /// before the command.
    fn births_before(self) -> Vec<usize> {
        let is_keeper = |parent| parent == KEEPER.generation;
        let births = (0..self.role.generation)
            .map(|parent| usize::from(self.backend == Backend::Pidns && is_keeper(parent) && !self.role.is_first));
        let deputys = self.has_deputy && self.role != FRONT;
        births.chain(deputys.then_some(0)).collect()
    }

    /// Whether this call is the first of ours: what comes before is the loader's, and not ours to fail.
    pub(crate) fn begins_with(self, call: Call) -> bool {
        // The hook looks whether the standard streams are open before anything else.
        self.role != FRONT
            || (matches!(call.number, nix::libc::SYS_newfstatat | nix::libc::SYS_fstat) && call.first_argument == 0)
    }

    /// The calls that the process makes in a run without a fault.
    pub(crate) fn calls(self) -> Vec<i64> {
        let mut target = self.start();
        let mut calls = vec![];
        while let Some(call) = target.traced.next_call() {
            if !calls.is_empty() || self.begins_with(call) {
                calls.push(call.number);
            }
        }
        target.let_go().check(None, &format!("{self} without a fault"));
        calls
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let deputy = if self.has_deputy { " with-deputy" } else { "" };
        write!(f, "{} {}{deputy} {}", self.backend.name(), self.scenario.name, self.role.name)
    }
}
