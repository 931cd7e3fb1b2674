//! How long the tree has been idle: when it is looked at, and since when nothing was seen.

use std::time::Duration;

/// How often the tree is looked at while it may be idle that long.
const LOOKS: u32 = 4;

/// The limit of `--idle-timeout` and what is known.
#[derive(Debug)]
pub(super) struct Idleness {
    limit: Duration,
    since: Duration,
    next: Duration,
}

impl Idleness {
    /// Counts from this moment.
    pub(super) fn new(limit: Duration, now: Duration) -> Idleness {
        Idleness { limit, since: now, next: now.saturating_add(limit / LOOKS) }
    }

    /// When the tree is to be looked at.
    pub(super) fn next(&self) -> Duration {
        self.next
    }

    /// Whether it is to be looked at now; then the next look is due a while later.
    pub(super) fn is_due(&mut self, now: Duration) -> bool {
        let is_due = now >= self.next;
        if is_due {
            self.next = now.saturating_add((self.limit / LOOKS).max(Duration::from_nanos(1)));
        }
        is_due
    }

    /// It was active, or stood still for another reason.
    pub(super) fn restart(&mut self, now: Duration) {
        *self = Idleness::new(self.limit, now);
    }

    /// It was not: whether that has lasted for too long.
    pub(super) fn is_over(&self, now: Duration) -> bool {
        now.saturating_sub(self.since) >= self.limit
    }
}
