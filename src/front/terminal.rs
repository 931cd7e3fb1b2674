//! The caller's terminal. A full-screen program that was ended by a signal leaves it in its own modes, and a job of its own
//! in the foreground: if that was our doing, and only then, the front gives both back as they were.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, fstat, makedev, open};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open, test_kill_process_group};
use rustix::stdio::stdin;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

use super::own_group;
use crate::keeper;
use crate::sys;
use crate::tree::procfs::{self, Stat};

/// A controlling terminal, and how it was at the start if we were in its foreground.
pub(super) struct Terminal {
    tty: OwnedFd,
    before: Option<(Pid, Termios)>,
}

impl Terminal {
    /// The controlling terminal of this process, tty(4); `None` if it has none.
    pub(super) fn of_caller() -> Option<Terminal> {
        let tty = open("/dev/tty", OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let group = own_group().filter(|group| tcgetpgrp(&tty).is_ok_and(|foreground| foreground == *group));
        let before = group.and_then(|group| Some((group, tcgetattr(&tty).ok()?)));
        Some(Terminal { tty, before })
    }

    /// Whether it is no longer this process's terminal: hung up, or the leader of the session has ended.
    pub(super) fn is_gone(&self) -> bool {
        tcgetpgrp(&self.tty).is_err()
    }

    /// Gives foreground and modes back. Not if another living group has the terminal: the shell has made something else its
    /// foreground job. Nor if a neighbour in our job may read it, whose modes they may be: the pager at the end of a
    /// pipeline. SIGTTOU must be blocked.
    pub(super) fn give_back(&self) {
        let Some((group, modes)) = &self.before else { return };
        // The modes are those of the script that goes on meanwhile.
        if is_in_background_of_a_script(*group) {
            return;
        }
        // It takes a while: before the looks that are to be young when something is done.
        if self.has_foreground(*group) && has_reading_neighbour(*group) {
            return;
        }
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

    fn has_foreground(&self, group: Pid) -> bool {
        tcgetpgrp(&self.tty).is_ok_and(|foreground| foreground == group)
    }
}

/// The pidfds of those who keep the process group of this process from being orphaned, setpgid(2): of its ancestors up to the
/// first that is in another group of the session, a shell with job control. None if there is no such: what leads a
/// terminal's session has none, and all in its group, as a command of `ssh -t`, of script(1), of a terminal emulator.
pub(super) fn shells() -> Vec<OwnedFd> {
    // With nix: the group and session of who is outside of a PID namespace have the number 0.
    let place = |pid: Option<Pid>| {
        let pid = pid.map(|pid| nix::unistd::Pid::from_raw(pid.as_raw_pid()));
        (nix::unistd::getsid(pid), nix::unistd::getpgid(pid))
    };
    let (own_session, own_group) = place(None);
    let mut shells = vec![];
    let mut ancestor = getppid();
    while let Some(pid) = ancestor {
        let Ok(shell) = pidfd_open(pid, PidfdFlags::empty()) else { break };
        let (session, group) = place(Some(pid));
        if session != own_session {
            break;
        }
        let stat = procfs::try_stat(pid).ok().flatten();
        // The keeper of a run around this one leaves the session when its shell dies.
        let is_keeper = stat.as_ref().is_some_and(|stat| stat.comm.as_bytes() == keeper::NAME.to_bytes());
        if !is_keeper {
            shells.push(shell);
        }
        if group != own_group && !is_keeper {
            return shells;
        }
        ancestor = stat.and_then(|stat| stat.parent);
    }
    vec![]
}

/// Whether this is what a shell without job control has started by `&`: that is in the group of the shell and has /dev/null
/// as its stdin, null(4).
fn is_in_background_of_a_script(group: Pid) -> bool {
    group != sys::own_pid() && fstat(stdin()).is_ok_and(|status| status.st_rdev == makedev(1, 3))
}

/// Whether somebody else of this group may read its terminal, who neither called us nor was started by us: those wait for
/// us, or have had their end.
fn has_reading_neighbour(group: Pid) -> bool {
    let mut processes = HashMap::new();
    let note = &mut |pid, stat: Stat| {
        if !stat.is_dead() {
            processes.insert(pid, stat);
        }
    };
    // Where /proc shows others than ours, or none, nobody is known.
    if procfs::check_namespace().is_err() || procfs::for_each_process(note).is_err() {
        return false;
    }
    let own = sys::own_pid();
    let is_neighbour = |pid: Pid| !is_above(&processes, pid, own) && !is_above(&processes, own, pid);
    let mut members = processes.iter().filter(|(_, stat)| stat.group == group.as_raw_pid()).map(|(pid, _)| *pid);
    members.any(|pid| is_neighbour(pid) && procfs::may_read_terminal(pid))
}

/// Whether the second is the first or descends from it.
fn is_above(processes: &HashMap<Pid, Stat>, upper: Pid, lower: Pid) -> bool {
    let parent = |pid: &Pid| processes.get(pid).and_then(|stat| stat.parent);
    // A number that was given on while they were read may close a circle.
    std::iter::successors(Some(lower), parent).take(processes.len()).any(|pid| pid == upper)
}
