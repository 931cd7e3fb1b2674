//! What must be true of a run after a fault.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;

use nix::libc;
use rustix::process::Signal;

use crate::common::running::next_run;
use crate::common::{Ended, Nest, Running, Scratch, kin};
use crate::point::Fault;
use crate::setting::{DEPUTY, FRONT, INIT, LEFTOVER, REPORT, Role, Setting, UNBORN};

/// A run that is left to itself.
pub(crate) struct Subject {
    pub(crate) run: Running,
    pub(crate) setting: Setting,
    /// Holds the report.
    pub(crate) scratch: Scratch,
}

/// What befell which process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hit {
    pub(crate) role: Role,
    pub(crate) call: i64,
    pub(crate) fault: Fault,
    /// The front had forked already.
    pub(crate) had_child: bool,
}

/// The statuses of a run that says why it failed.
const TOLD: [i32; 3] = [125, 194, 195];

/// What is said on stderr is said by these.
const SPEAKING: [i64; 3] = [libc::SYS_write, libc::SYS_writev, libc::SYS_pwritev2];

/// What happens is heard of by these.
const LISTENING: [i64; 4] = [libc::SYS_poll, libc::SYS_ppoll, libc::SYS_read, libc::SYS_waitid];

/// Without memory the runtime aborts, and says so.
const REMEMBERING: [i64; 4] = [libc::SYS_mmap, libc::SYS_mremap, libc::SYS_mprotect, libc::SYS_madvise];

impl Hit {
    fn is_kill_of(&self, role: Role) -> bool {
        self.fault == Fault::Killed && self.role == role
    }

    fn is_failure_of(&self, calls: &[i64]) -> bool {
        matches!(self.fault, Fault::Fails { .. } | Fault::FailsForEver { .. }) && calls.contains(&self.call)
    }
}

impl Subject {
    pub(crate) fn check(mut self, hit: Option<&Hit>, what: &str) {
        let ended = self.run.wait();
        let bystander = self.setting.has_deputy.then(|| ended.value("bystander").parse().expect("a PID"));
        if !self.is_true(&ended, hit) {
            self.run.fail(&format!("{what}: wrong status"));
        }
        if !is_told(&ended, hit) {
            self.run.fail(&format!("{what}: not told"));
        }
        let is_front_dead_by_signal = ended.status.code().is_none();
        let mut alive = self.members(bystander);
        let is_deaf = |hit: &Hit| hit.role == FRONT && hit.is_failure_of(&LISTENING);
        if hit.is_some_and(|hit| hit.is_kill_of(DEPUTY) || is_deaf(hit)) {
            // Nobody can wait for the child of a deputy that was killed: it may be about to exit. Nor can a front
            // that hears nothing wait for the keeper of a deputy.
            alive.retain(|pid| !kin::is_wrapper(*pid));
        }
        // Whoever can't show that all are dead says so.
        let is_uncertain = ended.status.code() == Some(194);
        if !is_front_dead_by_signal && !is_uncertain && !alive.is_empty() {
            self.run.fail(&format!("{what}: {alive:?} alive when the front returned"));
        }
        self.run.all_die();
        self.check_leaves(hit, bystander, what);
        self.check_report(&ended, hit, what);
        let is_dead = |pid| kin::state_and_parent(pid).is_none_or(|(state, _)| state == "Z");
        if bystander.is_some_and(is_dead) {
            self.run.fail(&format!("{what}: the bystander is dead"));
        }
    }

    /// Whether the caller was told the truth.
    fn is_true(&self, ended: &Ended, hit: Option<&Hit>) -> bool {
        let code = ended.status.code();
        let is_usual = code.is_some_and(|code| self.setting.scenario.usual.contains(&code));
        // What ends with the command's own status has run it; a time limit may come before that.
        let is_usual = is_usual && (ended.count("ran") == 1 || matches!(code, Some(124 | 137)));
        let Some(hit) = hit else { return is_usual };
        let has_failed = code.is_some_and(|code| TOLD.contains(&code));
        let died_of = |signal: Signal| ended.status.signal() == Some(signal.as_raw());
        match hit.fault {
            Fault::Stopped => is_usual,
            Fault::Killed if hit.role == FRONT => died_of(Signal::KILL),
            // All in its namespace dies with it.
            Fault::Killed if hit.role == INIT => is_usual || has_failed || died_of(Signal::KILL) || code == Some(137),
            // Or it had done all by then.
            Fault::Killed => is_usual || code == Some(125),
            _ if hit.is_failure_of(&REMEMBERING) && died_of(Signal::ABORT) => hit.role == FRONT,
            _ if hit.role == UNBORN && matches!(code, Some(126 | 127)) => hit.call == libc::SYS_execve,
            _ => is_usual || has_failed || code == Some(self.setting.scenario.unheard),
        }
    }

    fn check_leaves(&mut self, hit: Option<&Hit>, bystander: Option<u32>, what: &str) {
        let left = kin::leaves(self.run.nest());
        if left.is_empty() {
            return;
        }
        // Before it has forked, the front is alone in knowing of its leaf.
        let is_orphaned = hit.is_some_and(|hit| hit.role == FRONT && !hit.had_child && hit.fault == Fault::Killed);
        let is_kept = hit.is_some_and(|hit| hit.is_failure_of(&[libc::SYS_unlinkat]));
        if !is_orphaned && !is_kept {
            self.run.fail(&format!("{what}: left {left:?}"));
        }
        let members = self.members(bystander);
        let nest = self.run.nest().expect("it has the leaf");
        assert!(members.is_empty(), "{what}: a leaf that was left has members {members:?}");
        next_run(nest);
        assert!(kin::leaves(Some(nest)).is_empty(), "{what}: the next run did not remove {left:?}");
    }

    /// A report is there as a whole or not at all, and nothing else is.
    fn check_report(&mut self, ended: &Ended, hit: Option<&Hit>, what: &str) {
        if self.setting.scenario != LEFTOVER {
            return;
        }
        let report = fs::read(self.scratch.join(REPORT));
        let is_whole = |text: &Vec<u8>| serde_json::from_slice::<serde_json::Value>(text).is_ok();
        let was_killed = hit.is_some_and(|hit| hit.fault == Fault::Killed) || ended.status.code().is_none();
        let is_dumb = hit.is_some_and(|hit| hit.is_failure_of(&SPEAKING));
        if !report.as_ref().map_or(was_killed || is_dumb || !ended.stderr.is_empty(), is_whole) {
            self.run.fail(&format!("{what}: the report is {report:?}"));
        }
        let names: Vec<_> = fs::read_dir(self.scratch.path()).expect("it is ours").flatten().collect();
        let others = names.iter().filter(|entry| entry.file_name() != REPORT).count();
        let may_be_left =
            was_killed || hit.is_some_and(|hit| hit.is_failure_of(&[libc::SYS_unlink, libc::SYS_unlinkat]));
        if others > 0 && !may_be_left {
            self.run.fail(&format!("{what}: left {names:?}"));
        }
    }

    /// What lives in the test's cgroup and below, the bystander left out.
    fn members(&self, bystander: Option<u32>) -> Vec<u32> {
        let members = self.run.nest().map(Nest::members).unwrap_or_default();
        members.into_iter().filter(|pid| Some(*pid) != bystander).collect()
    }
}

/// Whether a run that failed says why.
fn is_told(ended: &Ended, hit: Option<&Hit>) -> bool {
    let has_said = |start| ended.stderr.lines().any(|line: &str| line.starts_with(start));
    match ended.status.code() {
        Some(code) if TOLD.contains(&code) || matches!(code, 126 | 127) => {
            has_said("treekill-run: ") || hit.is_some_and(|hit| hit.is_failure_of(&SPEAKING))
        }
        None if ended.status.signal() == Some(Signal::ABORT.as_raw()) => has_said("memory allocation of "),
        _ => true,
    }
}
