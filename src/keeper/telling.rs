//! What the keeper says at the end of a run.

use crate::boundary::Hits;
use crate::limits::in_units;
use crate::outcome::{Cause, Outcome};
use crate::plan::{Personality, Verbosity};
use crate::report::{self, ProcessReport, TreeReport};

use super::Keeper;
use super::acting::processes;

/// How many processes a line names, and under -v.
const NAMED: usize = 5;
const ALL_NAMED: usize = 100;

/// How many lines of the tree are drawn after a timeout, and under -v.
const DRAWN: usize = 10;
const ALL_DRAWN: usize = 200;

impl Keeper<'_> {
    pub(super) fn say_what_happened(&mut self, outcome: &Outcome) {
        if outcome.survived {
            let survivors = &self.report.survivors;
            match survivors.len() {
                0 => self
                    .voice
                    .error("cannot show that everything was ended: something is left that can't be seen from here"),
                count => {
                    let names = self.names(survivors);
                    self.voice.error(format_args!("cannot end {}: {names}", processes(count)));
                }
            }
        }
        let killed = if outcome.needed_kill { "; it needed SIGKILL" } else { "" };
        match outcome.cause {
            // GNU timeout says nothing of these.
            _ if self.plan.policy.personality == Personality::Gnu => {}
            Cause::TimedOut => {
                let limit = humantime::format_duration(self.plan.policy.timeout.unwrap_or_default());
                self.note_with_tree(&format!("{} timed out after {limit}{killed}", self.name()));
            }
            Cause::Idle => {
                let limit = humantime::format_duration(self.plan.policy.idle_timeout.unwrap_or_default());
                self.note_with_tree(&format!("{} and all it started did nothing for {limit}{killed}", self.name()));
            }
            Cause::Signal(sig) if outcome.needed_kill || self.is_verbose() => {
                self.note_with_tree(&format!("{} was stopped by SIG{sig}{killed}", self.name()));
            }
            Cause::ParentDied => {
                self.note_with_tree(&format!("{} was stopped because the caller died{killed}", self.name()));
            }
            _ => {}
        }
        if outcome.left_over && !self.report.leftovers.is_empty() {
            let left = processes(self.report.leftovers.len());
            let names = self.names(&self.report.leftovers);
            let fate = if outcome.survived { "" } else { ", now ended" };
            self.note_with_tree(&format!("{} left {left} running{fate}: {names}", self.name()));
        }
        if !self.report.kept.is_empty() {
            let names = self.names(&self.report.kept);
            self.voice.step(format_args!("left {} running: {names}", processes(self.report.kept.len())));
        }
    }

    /// Says a line, with the tree as it was behind it for those who are to see that: one process in the same line.
    fn note_with_tree(&mut self, line: &str) {
        let is_timeout = matches!(self.supervisor.outcome().cause, Cause::TimedOut | Cause::Idle);
        let picture = self.report.tree_at_stop.as_ref().filter(|_| is_timeout || self.is_verbose());
        let Some(TreeReport { picture, .. }) = picture else { return self.voice.note(line) };
        match picture.processes.as_slice() {
            [] => self.voice.note(line),
            [only] if picture.left_out == 0 => {
                self.voice.note(format_args!("{line}; as it was: {}", report::in_one_line(only)));
            }
            _ => {
                let lines = if self.is_verbose() { ALL_DRAWN } else { DRAWN };
                let drawing = report::draw(picture, &report::canvas(lines, self.report.pid));
                self.voice.note(format_args!("{line}; the tree as it was:"));
                self.voice.drawing(&drawing);
            }
        }
    }

    /// A limit that was hit is out of the ordinary, whether the command got over it or not.
    pub(super) fn say_limits(&mut self, hits: Hits) {
        let limits = self.plan.limits;
        if let (Some(bytes), 1..) = (limits.memory, hits.memory) {
            let killed = processes(usize::try_from(hits.memory).unwrap_or(usize::MAX));
            let name = self.name();
            self.voice.note(format_args!(
                "{name} hit its memory limit of {}: the kernel killed {killed} of the tree",
                in_units(bytes)
            ));
        }
        if let (Some(pids), 1..) = (limits.pids, hits.pids) {
            let name = self.name();
            self.voice.note(format_args!("{name} hit its limit of {pids} processes: {} forks failed", hits.pids));
        }
        if let Some(report) = &mut self.report.limits {
            report.memory_kills = hits.memory;
            report.refused_forks = hits.pids;
            report.throttled_ms = hits.throttled_us / 1000;
        }
    }

    /// Says what the tree has used, for those who asked.
    pub(super) fn say_stats(&mut self) {
        if let (true, Some(usage)) = (self.plan.has_stats, &self.report.usage) {
            let milliseconds = self.report.duration_ms;
            let took = format!("{}.{:02}s", milliseconds / 1000, milliseconds % 1000 / 10);
            self.voice.answer(format_args!("{took}, {}", usage.in_words()));
        }
    }

    pub(super) fn is_verbose(&self) -> bool {
        self.plan.verbosity >= Verbosity::Verbose
    }

    fn names(&self, list: &[ProcessReport]) -> String {
        let most = if self.is_verbose() { ALL_NAMED } else { NAMED };
        let mut text = list.iter().take(most).map(ProcessReport::in_words).collect::<Vec<_>>().join(", ");
        if list.len() > most {
            text += &format!(" and {} more", list.len() - most);
        }
        text
    }
}
