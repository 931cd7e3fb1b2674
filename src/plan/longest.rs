//! How long a run may take, for whoever is to end its tree when none of us is left.

use std::time::Duration;

use super::{Personality, Policy};
use crate::cli::Leftovers;

/// How long things take at most, with time to spare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Longest {
    /// The run; `None` if it may last for ever, or if something may live on afterwards.
    pub run: Option<Duration>,
    /// A stop, until nothing is left; `None` if that may last for ever.
    pub stop: Option<Duration>,
}

/// What is added, so that nobody else ends what we are about to end.
const SPARE: Duration = Duration::from_secs(5);

impl Longest {
    pub(super) fn new(policy: &Policy, drain_limit: Option<Duration>, has_terminal: bool) -> Longest {
        let sum =
            |parts: &[Option<Duration>]| parts.iter().try_fold(Duration::ZERO, |sum, part| sum.checked_add((*part)?));
        let rest = match policy.personality {
            Personality::Own => Some(Duration::ZERO),
            // The command's stages, and then those of what it leaves.
            Personality::Gnu => policy.leftover_stages.total(),
        };
        let stop = sum(&[policy.stages.total(), rest, drain_limit]);
        // Job control stops the clock of the run, and no other.
        let is_bounded = policy.guard && !has_terminal && !policy.keeps && policy.leftovers != Leftovers::Leave;
        let run = sum(&[policy.timeout, Some(policy.leftover_grace), stop, Some(SPARE)]).filter(|_| is_bounded);
        Longest { run, stop: sum(&[stop, Some(SPARE)]) }
    }
}
