//! What the keeper notes for those who ask what happened: the tree as it was when a stop began, who outlived the command,
//! and what became of them.

use std::collections::BTreeMap;
use std::time::Duration;

use rustix::process::Pid;

use crate::outcome::{Cause, End};
use crate::plan::{Personality, Verbosity};
use crate::report::{ProcessReport, TreeReport};
use crate::signals::Sig;
use crate::sys;
use crate::tree::{Picture, Process, Sent};
use crate::voice::in_words;

use super::Keeper;
use super::acting::processes;

/// How long looking at processes may hold up the first signal.
const LOOK: Duration = Duration::from_millis(15);
/// How long finding out the command lines of processes by name may take besides, but for the first few.
const NAMING: Duration = Duration::from_millis(4);
const NAMED_AT_LEAST: usize = 10;

impl Keeper<'_> {
    /// Takes a picture of the tree for those who will see it; of the first signal of a stop only. That is held up from
    /// `since` on.
    pub(super) fn take_picture(&mut self, list: &[Process], since: Duration) {
        if self.is_picture_wanted() {
            // Of the time that the tree has for the signal it takes no more than a small share.
            let left = self.supervisor.stage_end().map(|deadline| deadline.saturating_sub(since) / 4);
            let picture = Picture::take(list, since + left.map_or(LOOK, |left| left.min(LOOK)));
            self.report.tree_at_stop = Some(TreeReport::new(since - self.start, sys::now() - since, picture));
        }
    }

    /// The same of a stop that begins with SIGKILL, which needs no listing itself.
    pub(super) fn take_picture_before_kill(&mut self) {
        let outcome = self.supervisor.outcome();
        let is_broken = outcome.cause == Cause::FrontDied || outcome.failure.is_some();
        if !is_broken && self.receivers.is_none() && self.is_picture_wanted() {
            let since = sys::now();
            let list = self.tree.list(Some(since + LOOK));
            self.take_picture(&self.with_command(list), since);
        }
    }

    fn is_picture_wanted(&self) -> bool {
        let is_timeout = matches!(self.supervisor.outcome().cause, Cause::TimedOut | Cause::Idle);
        let is_drawn = match self.plan.verbosity {
            Verbosity::Quiet => false,
            Verbosity::Normal => is_timeout && self.plan.policy.personality == Personality::Own,
            Verbosity::Verbose => true,
        };
        self.report.tree_at_stop.is_none() && (is_drawn || self.target.is_some())
    }

    pub(super) fn note_leftovers(&mut self) {
        self.report.leftovers = self.describe_tree();
        let pids = self.report.leftovers.iter().map(|leftover| leftover.pid);
        self.leftovers = pids.zip(0..).collect();
    }

    /// Leftovers among those who got a signal may end because of it. `which` says what was special about them.
    pub(super) fn note_sent(&mut self, sent: &Sent, sig: Sig, which: &str) {
        for index in sent.to.iter().filter_map(|pid| self.leftovers.get(&pid.as_raw_pid())) {
            self.report.leftovers[*index].sent(sig);
        }
        self.record("signal", Some(sig), Some(sent.to.len()));
        self.voice.step(format_args!("sent {} to {}{which}", sig.in_words(), processes(sent.to.len())));
        if let Some(why) = self.tree.take_unread() {
            self.voice.error(format_args!("cannot list the whole tree: {}", in_words(&why)));
        }
        if let Some(why) = &sent.why {
            self.voice.error(format_args!("cannot send SIG{sig} to {}: {}", processes(sent.missed), in_words(why)));
        }
    }

    pub(super) fn note_end(&mut self, pid: Pid, end: End) {
        // Its number may be another's from now on.
        if let Some(index) = self.leftovers.remove(&pid.as_raw_pid()) {
            self.report.leftovers[index].ended(end);
        }
    }

    /// Who survives did not end, whatever it was sent.
    pub(super) fn note_survivors(&mut self) {
        self.report.survivors = self.describe_tree();
        for survivor in &self.report.survivors {
            if let Some(index) = self.leftovers.remove(&survivor.pid) {
                self.report.leftovers[index].ended_by = None;
            }
        }
    }

    pub(super) fn describe_tree(&self) -> Vec<ProcessReport> {
        let list = self.list();
        let until = sys::now() + NAMING;
        let has_time = |rank| rank < NAMED_AT_LEAST || sys::now() < until;
        list.iter().zip(0..).map(|(process, rank)| ProcessReport::of(process, has_time(rank))).collect()
    }
}

/// The leftovers by pid: where they are in the report.
pub(super) type ByPid = BTreeMap<i32, usize>;
