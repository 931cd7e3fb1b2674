//! The end of a run: what is said, the report, the outcome frame.

use std::io;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::outcome::{Exit, FAILED, Outcome, exit_for};
use crate::report::Usage;
use crate::supervisor::Event;
use crate::sys;
use crate::voice::in_words;
use crate::wire::ToFront;

use super::{GAVE_UP, Keeper, TOLD};

impl Keeper<'_> {
    /// There is no command: whatever a failed birth may have left is ended before that is said.
    pub(super) fn could_not_spawn(&mut self, error: &io::Error) {
        let name = self.name();
        self.voice.error(format_args!("cannot start {name} in {}: {}", self.boundary.name(), in_words(error)));
        self.handle(Event::Broken);
    }

    /// Says and writes what happened; gives the status of this process.
    pub(super) fn end(mut self) -> u8 {
        if self.is_helpless {
            self.voice.finish();
            return GAVE_UP;
        }
        let last = match self.refused {
            Some(refused) => ToFront::Refused(refused.to_bytes()),
            None => self.conclude(),
        };
        self.voice.finish();
        // It continues a front that is stopped, too. One that somebody else stopped may have left no room for it.
        while self.ties.socket.send(last) == Err(Errno::AGAIN) {
            let room = PollFd::new(&self.ties.socket, PollFlags::OUT);
            let _ = poll(&mut [room, PollFd::new(&self.ties.front, PollFlags::IN)], None);
        }
        if matches!(last, ToFront::Outcome { .. }) {
            // It has nothing left to do but to end. With another backend it would have, and give the CPU on to the command.
            sys::lend_cpu_to_forker();
        }
        std::mem::forget(self);
        TOLD
    }

    fn conclude(&mut self) -> ToFront {
        let hits = self.boundary.hits();
        let outcome = Outcome { limit_hit: hits.memory > 0 || hits.pids > 0, ..*self.supervisor.outcome() };
        let mut exit = exit_for(&outcome, &self.plan.policy.exit);
        self.say_what_happened(&outcome);
        self.say_limits(hits);
        if self.report.pid.is_some() && (self.target.is_some() || self.plan.has_stats) {
            self.report.usage = Some(Usage::gather(&self.boundary.counters()));
        }
        self.report.conclude(&outcome, exit, sys::now() - self.start);
        self.say_stats();
        if let Some(target) = self.target.take() {
            let name = target.name().to_owned();
            if let Err(error) = target.write(&self.report.to_json()) {
                self.voice.error(format_args!("cannot write the report to {name}: {}", in_words(&error)));
                if exit == Exit::Code(0) {
                    exit = Exit::Code(FAILED);
                }
            }
        }
        ToFront::Outcome { exit, untidy: self.has_killed || outcome.cuts_off() }
    }
}
