//! What the wrapper is asked to do with a random tree, and how that may end.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::common::{BOUND, Backend, Run};
use crate::dice::Dice;
use crate::plan::{End, Plan, Reaction};

/// What the wrapper is asked to do with a tree, times in milliseconds.
#[derive(Debug)]
pub(crate) struct Scenario {
    timeout: Option<u64>,
    kill_after: u64,
    leftover_grace: u64,
    waits_for_leftovers: bool,
    /// Microseconds after the start, and what is sent to the front then.
    pub(crate) signals: Vec<(u64, Signal)>,
}

impl Scenario {
    pub(crate) fn of_seed(seed: u64, plan: &Plan) -> Scenario {
        let mut dice = Dice::new(!seed);
        let has_timeout = !plan.command_ends() || dice.percent(50);
        let timeout = 1 + dice.below(60);
        let mut scenario = Scenario {
            timeout: has_timeout.then_some(timeout),
            kill_after: 1 + dice.below(60),
            leftover_grace: dice.below(30),
            waits_for_leftovers: has_timeout && dice.percent(15),
            signals: Vec::new(),
        };
        for chance in [40, 15] {
            if dice.percent(chance) {
                let signal =
                    dice.pick(&[Signal::TERM, Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1]);
                scenario.signals.push((dice.below(50_000), signal));
            }
        }
        scenario.signals.sort_by_key(|(at, _)| *at);
        scenario.stretched(slowness())
    }

    /// On a machine that is so many times slower a tree grows so much later.
    fn stretched(mut self, times: u64) -> Scenario {
        self.timeout = self.timeout.map(|timeout| timeout * times);
        self.kill_after *= times;
        self.leftover_grace *= times;
        self.signals.iter_mut().for_each(|(at, _)| *at *= times);
        self
    }

    pub(crate) fn options(&self) -> String {
        let Scenario { kill_after, leftover_grace, .. } = self;
        let timeout = self.timeout.unwrap_or(0);
        let policy = if self.waits_for_leftovers { "wait" } else { "kill" };
        format!(
            "--timeout {timeout}ms --kill-after {kill_after}ms --leftovers {policy} --leftover-grace {leftover_grace}ms"
        )
    }

    /// The statuses that the exit table knows for this command, these options and these signals.
    pub(crate) fn allowed(&self, plan: &Plan, was_set_up: bool) -> Vec<Status> {
        let command = plan.command();
        let is_signalled = !self.signals.is_empty();
        let mut allowed = Vec::new();
        match command.end {
            End::Exit(0) | End::ThreadExit(0) => {
                // A stop that a signal began before the command's end leaves no leftovers behind.
                if is_signalled || self.waits_for_leftovers || !plan.surely_leaves_somebody() {
                    allowed.push(Status::Code(0));
                }
                allowed.push(Status::Code(193));
            }
            End::Exit(status) | End::ThreadExit(status) => allowed.push(Status::Code(status)),
            End::Signal(signal) => allowed.push(Status::Death(signal)),
            End::Never | End::Stop | End::Freeze => {}
        }
        // The default is death by the first signal. It comes at once, unless the command is stopped or frozen then, or so
        // new that it has everything blocked, as a new thread has, or has to act itself, since a core dump may go with it.
        let acts_late = matches!(command.end, End::Stop | End::Freeze | End::ThreadExit(_));
        let dies_late = !was_set_up || acts_late || self.sends(Signal::QUIT);
        let can_need_kill = command.reaction != Reaction::Default || dies_late;
        if self.timeout.is_some() {
            allowed.push(Status::Code(124));
        }
        if can_need_kill && (self.timeout.is_some() || is_signalled) {
            allowed.push(Status::Code(137));
        }
        // A signal may come before the command has set its reaction up, or even before the front has.
        allowed.extend(self.signals.iter().map(|(_, signal)| Status::Death(signal.as_raw())));
        if let (Reaction::Exit { status, .. }, true) = (command.reaction, is_signalled) {
            allowed.push(Status::Code(status));
        }
        allowed
    }

    fn sends(&self, wanted: Signal) -> bool {
        self.signals.iter().any(|(_, signal)| *signal == wanted)
    }

    /// The longest that the wrapper may take on a machine that is busy with other things too.
    pub(crate) fn bound(&self) -> Duration {
        let own = self.timeout.unwrap_or(0) + self.kill_after + self.leftover_grace;
        Duration::from_millis(own) + BOUND / 2
    }
}

/// How the wrapper ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Code(u8),
    Death(i32),
}

impl From<ExitStatus> for Status {
    fn from(status: ExitStatus) -> Status {
        match (status.code(), status.signal()) {
            (Some(code), _) => Status::Code(u8::try_from(code).expect("an exit status is a byte")),
            (None, signal) => Status::Death(signal.expect("it exited or died")),
        }
    }
}

/// How many times longer a run takes here than on a usual machine, an emulated one for example.
fn slowness() -> u64 {
    static TIMES: OnceLock<u64> = OnceLock::new();
    *TIMES.get_or_init(|| {
        let usual = Duration::from_millis(10);
        let takes = || {
            let started = Instant::now();
            Run::new(Backend::Subreaper).untethered().command(["true"]).finish().exited(0);
            started.elapsed()
        };
        // The first one has files to read.
        let shortest = (0..3).map(|_| takes()).min().unwrap_or(usual);
        u64::try_from(shortest.as_micros() / usual.as_micros()).unwrap_or(1).max(1)
    })
}
