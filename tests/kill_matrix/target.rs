//! A run that is to be killed in some way, and what must be true of it afterwards.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;

use rustix::process::{Signal, pidfd_send_signal};

use crate::common::running::{self, next_run};
use crate::common::tracer::{self, Traced};
use crate::common::{Backend, Nest, Run, Running, Scratch, kin};

/// A run that is killed again and again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scenario {
    pub(crate) options: &'static str,
    pub(crate) steps: &'static str,
    /// The statuses that it has when nobody is killed.
    pub(crate) usual: &'static [i32],
}

/// A process of the wrapper, by its place below the front.
pub(crate) type Generation = usize;
pub(crate) const FRONT: Generation = 0;
/// Where there is one; the keeper is one generation younger then.
pub(crate) const DEPUTY: Generation = 1;

/// The setting of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) backend: Backend,
    pub(crate) scenario: Scenario,
    /// The front has a child that it inherited from the shell whose place it took.
    pub(crate) has_deputy: bool,
}

/// A run in a setting.
pub(crate) struct Target {
    pub(crate) run: Running,
    setting: Setting,
    /// Holds the report.
    scratch: Scratch,
}

/// What was there when the victims were killed.
pub(crate) struct Kill {
    killed_front: bool,
    killed_deputy: bool,
    had_keeper: bool,
}

const REPORT: &str = "report.json";

/// The shell leaves a child behind that neither belongs to the tree nor holds the tether.
const LEAVE_A_CHILD: &str = "sleep 300 9>&- & echo bystander $! >&9; exec \"$@\"";

impl Setting {
    pub(crate) fn start(self) -> Target {
        self.start_with(|run| run)
    }

    fn start_with(self, shape: impl FnOnce(Run) -> Run) -> Target {
        let mut run = Run::new(self.backend).options(self.scenario.options).fixture(self.scenario.steps).may_leave();
        if self.has_deputy {
            run = run.prefixed(["sh", "-c", LEAVE_A_CHILD, "sh"]);
        }
        let scratch = Scratch::new();
        let report = scratch.join(REPORT);
        run = run.option_list(["--report".as_ref(), report.as_os_str()]);
        Target { run: shape(run).spawn(), setting: self, scratch }
    }

    /// Starts a run and follows it to the birth of the process that is to be held.
    fn start_and_follow(self, held: Generation, what: &str) -> (Target, Traced) {
        let mut target = self.start_with(|run| run.setup(tracer::be_traced));
        // The shell is the first of two images.
        let execs = if self.has_deputy { 2 } else { 1 };
        match Traced::follow(target.run.pid(), execs, &self.births_before(held)) {
            Some(traced) => (target, traced),
            None => target.run.fail(&format!("{what}: the process to be held was never born")),
        }
    }

    /// How many children each generation has before the one that is followed, down to the one that is held: on the pidns
    /// backend the keeper has an init before the command.
    fn births_before(self, held: Generation) -> Vec<usize> {
        let keeper = 1 + usize::from(self.has_deputy);
        (FRONT..held).map(|parent| usize::from(self.backend == Backend::Pidns && parent == keeper)).collect()
    }

    /// Holds a process at moments spread over all of its life, and kills another, or it, then. A moment is the begin or
    /// the end of a system call; an undisturbed run tells how many there are.
    pub(crate) fn assail(self, held: Generation, victim: Generation, moments: usize) {
        let (target, mut traced) = self.start_and_follow(held, "undisturbed");
        let length = traced.advance(usize::MAX);
        traced.let_go();
        target.check(None, "undisturbed");

        let moments = moments.min(length);
        for moment in (0..moments).map(|number| number * length / moments) {
            let what = format!("{victim} killed while {held} is held at {moment} of {length}, {self:?}");
            let (target, mut traced) = self.start_and_follow(held, &what);
            let reached = traced.advance(moment);
            let kill = (reached == moment).then(|| target.strike(&traced.lineage(), victim));
            traced.let_go();
            target.check(kill.as_ref(), &what);
        }
    }
}

impl Target {
    /// Kills the victim, if it exists. The lineage is what is known of the wrapper's processes.
    pub(crate) fn strike(&self, lineage: &[u32], victim: Generation) -> Kill {
        let front = self.run.pid();
        let had_keeper = kin::children(front).len() > usize::from(self.setting.has_deputy);
        // The last of a lineage stands still and the others are its ancestors: unless the front is one that ended, in which
        // case it is unreaped.
        let pidfd = match lineage.get(victim) {
            Some(&pid) => running::open_process(pid),
            None => kin::last_child(front).map(|(_, pidfd)| pidfd),
        };
        // One that has just ended by itself is no failure.
        if let Some(pidfd) = pidfd {
            let _ = pidfd_send_signal(pidfd, Signal::KILL);
        }
        let killed_deputy = self.setting.has_deputy && victim == DEPUTY;
        Kill { killed_front: victim == FRONT, killed_deputy, had_keeper }
    }

    /// The caller was told the truth, everything is dead, no leaf is left and no stranger was hit.
    pub(crate) fn check(mut self, kill: Option<&Kill>, what: &str) {
        let ended = self.run.wait();
        let bystander = self.setting.has_deputy.then(|| ended.value("bystander").parse().expect("a PID"));
        let died_of_kill = ended.status.signal() == Some(Signal::KILL.as_raw());
        let is_true = match kill {
            Some(kill) if kill.killed_front && died_of_kill => true,
            Some(kill) if !kill.killed_front && ended.status.code() == Some(125) => true,
            // Nobody was killed, or only after it had been said how it all ended.
            _ => ended.status.code().is_some_and(|code| self.setting.scenario.usual.contains(&code)),
        };
        if !is_true {
            self.run.fail(&format!("{what}: wrong status"));
        }
        let mut alive = self.members(bystander);
        if kill.is_some_and(|kill| kill.killed_deputy) {
            // A keeper without its deputy is nobody's child that could be waited for: it may be about to exit.
            alive.retain(|pid| !kin::is_wrapper(*pid));
        }
        if !died_of_kill && !alive.is_empty() {
            self.run.fail(&format!("{what}: {alive:?} alive when the front returned"));
        }
        self.run.all_die();
        self.check_leaves(kill, bystander, what);
        // Whenever its writer is killed, a report is there as a whole or not at all.
        let report = fs::read(self.scratch.join(REPORT));
        let is_whole = |text: &Vec<u8>| serde_json::from_slice::<serde_json::Value>(text).is_ok();
        if !report.as_ref().map_or(kill.is_some(), is_whole) {
            self.run.fail(&format!("{what}: the report is {report:?}"));
        }
        let is_dead = |pid| kin::state_and_parent(pid).is_none_or(|(state, _)| state == "Z");
        if bystander.is_some_and(is_dead) {
            self.run.fail(&format!("{what}: the bystander is dead"));
        }
    }

    fn check_leaves(&mut self, kill: Option<&Kill>, bystander: Option<u32>, what: &str) {
        let left = kin::leaves(self.run.nest());
        // Between the birth of the leaf and that of the keeper the front is alone in knowing of it.
        let may_leave_one = kill.is_some_and(|kill| kill.killed_front && !kill.had_keeper);
        if !left.is_empty() && !may_leave_one {
            self.run.fail(&format!("{what}: left {left:?}"));
        }
        if let (false, Some(nest)) = (left.is_empty(), self.run.nest()) {
            assert!(self.members(bystander).is_empty(), "{what}: a leaf that never had a keeper has members");
            next_run(nest);
            assert!(kin::leaves(Some(nest)).is_empty(), "{what}: the next run did not remove {left:?}");
        }
    }

    /// What lives in the test's cgroup and below, the bystander left out.
    fn members(&self, bystander: Option<u32>) -> Vec<u32> {
        let members = self.run.nest().map(Nest::members).unwrap_or_default();
        members.into_iter().filter(|pid| Some(*pid) != bystander).collect()
    }
}
