//! The caller's terminal. A full-screen program that was killed leaves it in its own modes, and a job of its own in the
//! foreground: then, and only then, the front gives both back as they were.

use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process_group};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

/// A controlling terminal, and how it was at the start if we were in its foreground.
pub(super) struct Terminal {
    tty: OwnedFd,
    before: Option<(Pid, Termios)>,
}

impl Terminal {
    /// The controlling terminal of this process, tty(4); `None` if it has none.
    pub(super) fn of_caller(own_group: Option<Pid>) -> Option<Terminal> {
        let tty = open("/dev/tty", OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let group = own_group.filter(|group| tcgetpgrp(&tty).is_ok_and(|foreground| foreground == *group));
        let before = group.and_then(|group| Some((group, tcgetattr(&tty).ok()?)));
        Some(Terminal { tty, before })
    }

    /// Whether it is no longer this process's terminal: hung up, or the leader of the session has ended.
    pub(super) fn is_gone(&self) -> bool {
        tcgetpgrp(&self.tty).is_err()
    }

    /// Gives foreground and modes back after SIGKILL. Not if another living group has the terminal: the shell has made
    /// something else its foreground job. SIGTTOU must be blocked.
    pub(super) fn give_back(&self) {
        let Some((group, modes)) = &self.before else { return };
        let is_ours_or_nobodys = match tcgetpgrp(&self.tty) {
            Ok(foreground) => foreground == *group || test_kill_process_group(foreground) == Err(Errno::SRCH),
            Err(_) => false,
        };
        if is_ours_or_nobodys {
            // A terminal that has vanished has no use for either.
            let _ = tcsetpgrp(&self.tty, *group);
            let _ = tcsetattr(&self.tty, OptionalActions::Now, modes);
        }
    }
}
