//! What became of a run, and the one table that turns it into an exit status. Pure.

use crate::signals::Sig;

/// How a process ended, wait(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It called exit with this status.
    Exited(u8),
    /// A signal killed it.
    Signaled(Sig),
}

/// Why the run came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The command ended by itself before any stop began.
    Ended,
    /// `--timeout` passed.
    TimedOut,
    /// `--idle-timeout` passed while the tree did nothing.
    Idle,
    /// A signal asked for a stop.
    Signal(Sig),
    /// The caller died and `--die-with-parent` was given.
    ParentDied,
    /// The process that the caller knows was killed: nobody is left to take a status.
    FrontDied,
}

/// Why the command did not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// execve(2) refused with this errno.
    Exec(i32),
    /// treekill-run itself failed.
    Internal,
}

/// Everything about a run that its exit status depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Why it ended.
    pub cause: Cause,
    /// Why the command did not run, if it did not.
    pub failure: Option<Failure>,
    /// How the command ended; `None` if it never ran or could not be killed.
    pub end: Option<End>,
    /// The command was still alive when SIGKILL was sent and died of it.
    pub needed_kill: bool,
    /// The command ended by itself and processes that outlived it had to be ended.
    pub left_over: bool,
    /// Something outlived SIGKILL and the drain limit.
    pub survived: bool,
    /// The tree was refused memory or processes by a limit of the options.
    pub limit_hit: bool,
}

impl Outcome {
    /// Whether the command died of a signal in place of which its caller may see a status, or one that a stop has sent: it
    /// could not put the terminal back, and no shell need know of that.
    pub fn cuts_off(&self) -> bool {
        let is_dead_by_signal = matches!(self.end, Some(End::Signaled(_)));
        is_dead_by_signal && (self.cause != Cause::Ended || self.limit_hit)
    }
}

/// The options that bear on the exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitPolicy {
    /// `--preserve-status`.
    pub preserve_status: bool,
    /// `--leftover-status`; 0 leaves the command's own.
    pub leftover_status: u8,
}

/// How the front ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// With this status.
    Code(u8),
    /// By this signal, so that the caller sees the death that the command died.
    Raise(Sig),
}

impl Exit {
    /// The status as a shell shows it.
    pub fn status(self) -> u8 {
        match self {
            Exit::Code(code) => code,
            Exit::Raise(sig) => shell_status(sig),
        }
    }
}

/// Timed out.
pub const TIMED_OUT: u8 = 124;
/// treekill-run itself failed.
pub const FAILED: u8 = 125;
/// Found, but cannot be executed.
pub const CANNOT_EXECUTE: u8 = 126;
/// Not found.
pub const NOT_FOUND: u8 = 127;
/// The command needed SIGKILL: 128 + 9.
pub const KILLED: u8 = 137;
/// The command succeeded but left processes; the default of `--leftover-status`.
pub const LEFTOVERS: u8 = 193;
/// Something outlived SIGKILL.
pub const SURVIVORS: u8 = 194;
/// What was asked for is not available.
pub const UNAVAILABLE: u8 = 195;
/// The tree hit its limit of memory or processes.
pub const LIMIT_HIT: u8 = 196;
/// The tree was idle for too long.
pub const IDLE: u8 = 197;

/// A row of the exit table.
pub struct ExitRow {
    /// The status as help and manual name it.
    pub status: &'static str,
    /// What it means, a sentence without its full stop.
    pub meaning: &'static str,
}

/// The exit statuses as `--help`, the manual and the README print them; `exit_for` is the same table as code.
pub const EXIT_TABLE: &[ExitRow] = &[
    ExitRow { status: "N", meaning: "the command's own status: it ended by itself and left nothing running" },
    ExitRow { status: "128+N", meaning: "the command died of signal N; treekill-run dies of the same signal" },
    ExitRow { status: "124", meaning: "timed out" },
    ExitRow { status: "125", meaning: "treekill-run itself failed; nothing of the command is alive" },
    ExitRow { status: "126", meaning: "the command was found but cannot be executed" },
    ExitRow { status: "127", meaning: "the command was not found" },
    ExitRow { status: "137", meaning: "the command timed out, was idle or was stopped, and needed SIGKILL" },
    ExitRow { status: "193", meaning: "the command succeeded but left processes behind; they were ended" },
    ExitRow { status: "194", meaning: "processes outlived SIGKILL and --drain-limit; they are named" },
    ExitRow { status: "195", meaning: "what was asked for is not available here; the command was not started" },
    ExitRow { status: "196", meaning: "the command did not succeed, and hit --memory-max or --pids-max" },
    ExitRow { status: "197", meaning: "nothing in the tree did anything for --idle-timeout" },
];

/// The status for an outcome. The order of the questions is the order of precedence.
pub fn exit_for(outcome: &Outcome, policy: &ExitPolicy) -> Exit {
    let Outcome { cause, failure, end, needed_kill, left_over, survived, limit_hit } = *outcome;
    if let Some(Failure::Exec(errno)) = failure {
        return Exit::Code(if errno == nix::libc::ENOENT { NOT_FOUND } else { CANNOT_EXECUTE });
    }
    if survived {
        return Exit::Code(SURVIVORS);
    }
    // An internal failure; after that, `end` is missing only for a survivor.
    let (None, Some(end)) = (failure, end) else {
        return Exit::Code(FAILED);
    };
    if limit_hit && end != End::Exited(0) {
        return Exit::Code(LIMIT_HIT);
    }
    match cause {
        Cause::TimedOut | Cause::Idle if needed_kill => Exit::Code(KILLED),
        Cause::TimedOut | Cause::Idle if policy.preserve_status => Exit::Code(match end {
            End::Exited(code) => code,
            End::Signaled(sig) => shell_status(sig),
        }),
        Cause::TimedOut => Exit::Code(TIMED_OUT),
        Cause::Idle => Exit::Code(IDLE),
        Cause::Signal(_) | Cause::ParentDied | Cause::FrontDied if needed_kill => Exit::Code(KILLED),
        _ => match end {
            End::Exited(0) if left_over => Exit::Code(policy.leftover_status),
            End::Exited(code) => Exit::Code(code),
            End::Signaled(sig) => Exit::Raise(sig),
        },
    }
}

/// What a shell shows for a death by this signal.
fn shell_status(sig: Sig) -> u8 {
    128 + u8::try_from(sig.number()).expect("signals are at most 64")
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: ExitPolicy = ExitPolicy { preserve_status: false, leftover_status: LEFTOVERS };
    const ENDED: Outcome = Outcome {
        cause: Cause::Ended,
        failure: None,
        end: Some(End::Exited(0)),
        needed_kill: false,
        left_over: false,
        survived: false,
        limit_hit: false,
    };

    #[test]
    fn the_table_is_honoured_row_by_row() {
        let died = |sig| Some(End::Signaled(sig));
        let term = Cause::Signal(Sig::TERM);
        for (outcome, exit) in [
            (ENDED, Exit::Code(0)),
            (Outcome { end: Some(End::Exited(77)), ..ENDED }, Exit::Code(77)),
            (Outcome { end: died(Sig::INT), ..ENDED }, Exit::Raise(Sig::INT)),
            (Outcome { end: died(Sig::KILL), ..ENDED }, Exit::Raise(Sig::KILL)),
            (Outcome { cause: Cause::TimedOut, end: died(Sig::TERM), ..ENDED }, Exit::Code(124)),
            (Outcome { cause: Cause::TimedOut, ..ENDED }, Exit::Code(124)),
            (Outcome { cause: Cause::TimedOut, end: died(Sig::KILL), needed_kill: true, ..ENDED }, Exit::Code(137)),
            (Outcome { cause: Cause::Idle, end: died(Sig::TERM), ..ENDED }, Exit::Code(197)),
            (Outcome { cause: Cause::Idle, end: died(Sig::KILL), needed_kill: true, ..ENDED }, Exit::Code(137)),
            (Outcome { cause: term, end: died(Sig::TERM), ..ENDED }, Exit::Raise(Sig::TERM)),
            (Outcome { cause: term, end: Some(End::Exited(3)), ..ENDED }, Exit::Code(3)),
            (Outcome { cause: term, end: died(Sig::KILL), needed_kill: true, ..ENDED }, Exit::Code(137)),
            (Outcome { cause: Cause::ParentDied, end: died(Sig::TERM), ..ENDED }, Exit::Raise(Sig::TERM)),
            (Outcome { failure: Some(Failure::Internal), end: None, ..ENDED }, Exit::Code(125)),
            (Outcome { failure: Some(Failure::Exec(nix::libc::EACCES)), ..ENDED }, Exit::Code(126)),
            (Outcome { failure: Some(Failure::Exec(nix::libc::ENOENT)), ..ENDED }, Exit::Code(127)),
            (Outcome { left_over: true, ..ENDED }, Exit::Code(193)),
            (Outcome { survived: true, ..ENDED }, Exit::Code(194)),
            (Outcome { limit_hit: true, end: died(Sig::KILL), ..ENDED }, Exit::Code(196)),
            (Outcome { limit_hit: true, left_over: true, ..ENDED }, Exit::Code(193)),
        ] {
            assert_eq!(exit_for(&outcome, &POLICY), exit, "{outcome:?}");
        }
    }

    #[test]
    fn a_command_that_a_stop_or_a_limit_has_ended_is_cut_off_unless_it_exits() {
        let term = Some(End::Signaled(Sig::TERM));
        for cause in [Cause::TimedOut, Cause::Idle, Cause::Signal(Sig::TERM), Cause::ParentDied] {
            assert!(Outcome { cause, end: term, ..ENDED }.cuts_off());
            assert!(!Outcome { cause, end: Some(End::Exited(143)), ..ENDED }.cuts_off());
        }
        assert!(Outcome { limit_hit: true, end: Some(End::Signaled(Sig::KILL)), ..ENDED }.cuts_off());
        assert!(!Outcome { end: term, ..ENDED }.cuts_off(), "its caller learns of it");
    }

    #[test]
    fn a_graver_fact_hides_a_lesser_one() {
        let all = Outcome {
            cause: Cause::TimedOut,
            end: Some(End::Signaled(Sig::KILL)),
            needed_kill: true,
            left_over: true,
            survived: true,
            limit_hit: true,
            failure: None,
        };
        assert_eq!(
            exit_for(&Outcome { failure: Some(Failure::Exec(nix::libc::ENOENT)), ..all }, &POLICY),
            Exit::Code(127)
        );
        assert_eq!(exit_for(&Outcome { failure: Some(Failure::Internal), ..all }, &POLICY), Exit::Code(194));
        assert_eq!(exit_for(&all, &POLICY), Exit::Code(194));
        assert_eq!(exit_for(&Outcome { survived: false, ..all }, &POLICY), Exit::Code(196));
        assert_eq!(exit_for(&Outcome { survived: false, limit_hit: false, ..all }, &POLICY), Exit::Code(137));
        let failed = Outcome { end: Some(End::Exited(4)), left_over: true, ..ENDED };
        assert_eq!(exit_for(&failed, &POLICY), Exit::Code(4), "a failure is not hidden by leftovers");
    }

    #[test]
    fn preserve_status_gives_the_commands_own_end_after_a_timeout() {
        let policy = ExitPolicy { preserve_status: true, ..POLICY };
        let timed_out = Outcome { cause: Cause::TimedOut, ..ENDED };
        assert_eq!(exit_for(&Outcome { end: Some(End::Exited(7)), ..timed_out }, &policy), Exit::Code(7));
        assert_eq!(exit_for(&Outcome { end: Some(End::Signaled(Sig::TERM)), ..timed_out }, &policy), Exit::Code(143));
    }

    #[test]
    fn a_leftover_status_of_zero_keeps_success() {
        let policy = ExitPolicy { leftover_status: 0, ..POLICY };
        assert_eq!(exit_for(&Outcome { left_over: true, ..ENDED }, &policy), Exit::Code(0));
    }
}
