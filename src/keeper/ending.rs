//! The end of a run: what is said, the report, the outcome frame.

use std::io;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::boundary::Hits;
use crate::limits::in_units;
use crate::outcome::{Cause, Exit, FAILED, Outcome, exit_for};
use crate::plan::Personality;
use crate::report::ProcessReport;

use crate::supervisor::Event;
use crate::sys;
use crate::wire::ToFront;

use crate::voice::in_words;

use super::acting::processes;
use super::{Keeper, TOLD};

/// How many processes a line names.
const NAMED: usize = 5;

impl Keeper<'_> {
    /// There is no command: whatever a failed birth may have left is ended before that is said.
    pub(super) fn could_not_spawn(&mut self, error: &io::Error) {
        let name = self.name();
        self.voice.error(format_args!("cannot start {name} in {}: {}", self.boundary.name(), in_words(error)));
        self.handle(Event::Broken);
    }

    /// Says and writes what happened; gives the status of this process.
    pub(super) fn end(mut self) -> u8 {
        let hits = self.boundary.hits();
        let outcome = Outcome { limit_hit: hits.memory > 0 || hits.pids > 0, ..*self.supervisor.outcome() };
        let mut exit = exit_for(&outcome, &self.plan.policy.exit);
        self.say_what_happened(&outcome);
        self.say_limits(hits);
        self.report.conclude(&outcome, exit, sys::now() - self.start);
        if let Some(target) = self.target.take() {
            let name = target.name().to_owned();
            if let Err(error) = target.write(&self.report.to_json()) {
                self.voice.error(format_args!("cannot write the report to {name}: {}", in_words(&error)));
                if exit == Exit::Code(0) {
                    exit = Exit::Code(FAILED);
                }
            }
        }
        self.voice.finish();
        // It continues a front that is stopped, too. One that somebody else stopped may have left no room for it.
        while self.ties.socket.send(ToFront::Outcome { exit, killed: self.has_killed }) == Err(Errno::AGAIN) {
            let room = PollFd::new(&self.ties.socket, PollFlags::OUT);
            let _ = poll(&mut [room, PollFd::new(&self.ties.front, PollFlags::IN)], None);
        }
        std::mem::forget(self);
        TOLD
    }

    fn say_what_happened(&mut self, outcome: &Outcome) {
        if outcome.survived {
            let survivors = std::mem::take(&mut self.report.survivors);
            match survivors.len() {
                0 => self
                    .voice
                    .error("cannot show that everything was ended: something is left that can't be seen from here"),
                count => self.voice.error(format_args!("cannot end {}: {}", processes(count), names(&survivors))),
            }
            self.report.survivors = survivors;
        }
        let name = self.name();
        let killed = if outcome.needed_kill { "; it needed SIGKILL" } else { "" };
        match outcome.cause {
            // GNU timeout says nothing of these.
            _ if self.plan.policy.personality == Personality::Gnu => {}
            Cause::TimedOut => {
                let limit = humantime::format_duration(self.plan.policy.timeout.unwrap_or_default());
                self.voice.note(format_args!("{name} timed out after {limit}{killed}"));
            }
            Cause::Idle => {
                let limit = humantime::format_duration(self.plan.policy.idle_timeout.unwrap_or_default());
                self.voice.note(format_args!("{name} and all it started did nothing for {limit}{killed}"));
            }
            Cause::Signal(sig) if outcome.needed_kill => {
                self.voice.note(format_args!("{name} was stopped by SIG{sig}{killed}"));
            }
            Cause::ParentDied => self.voice.note(format_args!("{name} was stopped because the caller died{killed}")),
            _ => {}
        }
        if outcome.left_over && !self.report.leftovers.is_empty() {
            let left = std::mem::take(&mut self.report.leftovers);
            self.voice.note(format_args!("{name} left {} running, now ended: {}", processes(left.len()), names(&left)));
            self.report.leftovers = left;
        }
        if !self.report.kept.is_empty() {
            let kept = std::mem::take(&mut self.report.kept);
            self.voice.step(format_args!("left {} running: {}", processes(kept.len()), names(&kept)));
            self.report.kept = kept;
        }
    }

    /// A limit that was hit is out of the ordinary, whether the command got over it or not.
    fn say_limits(&mut self, hits: Hits) {
        let name = self.name();
        let limits = self.plan.limits;
        if let (Some(bytes), 1..) = (limits.memory, hits.memory) {
            let killed = processes(usize::try_from(hits.memory).unwrap_or(usize::MAX));
            self.voice.note(format_args!(
                "{name} hit its memory limit of {}: the kernel killed {killed} of the tree",
                in_units(bytes)
            ));
        }
        if let (Some(pids), 1..) = (limits.pids, hits.pids) {
            self.voice.note(format_args!("{name} hit its limit of {pids} processes: {} forks failed", hits.pids));
        }
        if let Some(report) = &mut self.report.limits {
            report.memory_kills = hits.memory;
            report.refused_forks = hits.pids;
            report.throttled_ms = hits.throttled_us / 1000;
        }
    }
}

fn names(list: &[ProcessReport]) -> String {
    let mut text = list.iter().take(NAMED).map(ProcessReport::in_words).collect::<Vec<_>>().join(", ");
    if list.len() > NAMED {
        text += &format!(" and {} more", list.len() - NAMED);
    }
    text
}
