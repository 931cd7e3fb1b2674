//! What the front does while the keeper works: relay signals, follow the command into a stop by Ctrl-Z, and take the
//! outcome. If the keeper dies without one the front ends the tree itself.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::Pid;

use super::deputy;
use super::terminal::Terminal;
use crate::boundary::{Boundary, Ownerless, Refused};
use crate::keeper::{self, Setup, Ties};
use crate::outcome::{End, Exit, FAILED, SURVIVORS, UNAVAILABLE};
use crate::signals::{Sig, SigSet};
use crate::sys::{self, Reaped};
use crate::tree::{Drained, Tree};
use crate::voice::{Voice, cause};
use crate::wire::{FrontEnd, Source, ToFront, ToKeeper, has_news, is_hung_up};

/// The front after its fork.
pub(super) struct Front {
    /// The keeper or the deputy.
    child: Pid,
    is_deputy: bool,
    socket: FrontEnd,
    signals: OwnedFd,
    terminal: Option<Terminal>,
    boundary: Box<dyn Boundary>,
    drain_limit: Option<Duration>,
    voice: Voice,
    outcome: Option<Exit>,
    /// What could have the terminal was ended before it could tidy up.
    untidy: bool,
    /// The command has the caller's terminal.
    is_in_terminal: bool,
    /// How the child ended.
    end: Option<End>,
    /// The keeper may have more to tell than the outcome. That needs no listening: the keeper's end follows at once.
    listens: bool,
    is_hung_up: bool,
    /// We have just followed the command into a stop: the signals that wait now came meanwhile.
    has_followed: bool,
    /// How often the keeper has told that the command was stopped.
    stops: u8,
    /// The keeper may have started something.
    has_begun: bool,
    /// What had come when the child was forked: neither it nor the command has got that from the terminal.
    missed: SigSet,
}

impl Front {
    /// Keeps what the front needs of the setup and closes its copies of the rest. Nothing here may fail: the child runs.
    pub(super) fn new(
        child: Pid,
        is_deputy: bool,
        socket: FrontEnd,
        terminal: Option<Terminal>,
        setup: Box<Setup>,
        boundary: Box<dyn Boundary>,
        missed: SigSet,
    ) -> Front {
        let Setup { ties: Ties { signals, front, .. }, plan, .. } = *setup;
        // Its own pidfd ends with it.
        std::mem::forget(front);
        Front {
            child,
            is_deputy,
            socket,
            signals,
            terminal,
            boundary,
            drain_limit: plan.drain_limit,
            voice: Voice::new(plan.verbosity),
            outcome: None,
            untidy: false,
            is_in_terminal: plan.policy.is_in_terminal,
            end: None,
            listens: is_deputy || plan.policy.is_in_terminal,
            is_hung_up: false,
            has_followed: false,
            stops: 0,
            has_begun: false,
            missed,
        }
    }

    /// Ends what runs that were killed have left.
    pub(super) fn remove_ownerless(&self) -> Ownerless {
        self.boundary.remove_ownerless()
    }

    /// Blocks until the run is over, and gives the terminal back if what was ended could not; gives how to end.
    pub(super) fn relay_until_the_end(&mut self) -> Exit {
        let exit = self.wait_for_exit();
        if let (true, Some(terminal)) = (self.untidy && self.is_in_terminal, &self.terminal) {
            terminal.give_back();
        }
        exit
    }

    fn wait_for_exit(&mut self) -> Exit {
        loop {
            match (self.outcome, self.end) {
                // The keeper of a dead deputy is no child of ours: it is gone when its end of the socket is.
                (_, Some(End::Signaled(_))) if self.is_deputy && !self.is_hung_up => {}
                (Some(exit), Some(_)) => return exit,
                (None, Some(end)) => return self.end_without_outcome(end),
                (_, None) => {}
            }
            self.wait();
        }
    }

    fn wait(&mut self) {
        // The child's end and stops are told by SIGCHLD, which is never ignored here.
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN)];
        if self.listens && !self.is_hung_up {
            fds.push(PollFd::new(&self.socket, PollFlags::IN));
        }
        let polled = poll(&mut fds, None);
        let is_signalled = !fds[0].revents().is_empty();
        let news = fds.get(1).map_or(PollFlags::empty(), PollFd::revents);
        if let Err(errno) = polled {
            self.give_up("cannot wait for the keeper", errno);
        }
        if is_signalled && self.take_signals() {
            self.look_after_child();
        }
        // After the child's end was seen: what it sent before is there by now.
        if self.end.is_some() || !news.is_empty() {
            self.take_frames();
        }
        self.is_hung_up |= is_hung_up(news);
    }

    /// Without ears nothing can be relayed, and nobody could end the run: it is as if the keeper had been killed.
    fn give_up(&mut self, what: &str, errno: Errno) {
        match (errno, self.end) {
            (Errno::INTR, _) => {}
            (_, None) => {
                self.voice.error(format_args!("{what}: {}", cause(errno.raw_os_error())));
                sys::signal_child(self.child, Sig::KILL);
                sys::reap_at_its_end(self.child);
                self.end = Some(End::Signaled(Sig::KILL));
            }
            // The keeper of a deputy can't be waited for either.
            (_, Some(_)) => self.is_hung_up = true,
        }
    }

    /// Takes what has come; whether the child may have news.
    fn take_signals(&mut self) -> bool {
        let mut has_child_news = false;
        let missed = std::mem::take(&mut self.missed);
        let has_followed = std::mem::take(&mut self.has_followed);
        let taken = sys::read_signals(self.signals.as_fd()).unwrap_or_else(|errno| {
            self.give_up("cannot read signals", errno);
            vec![]
        });
        for incoming in taken {
            let is_own = incoming.pid == sys::own_pid().as_raw_pid().unsigned_abs();
            match incoming.sig {
                Sig::CHLD => has_child_news = true,
                // A write of our own to a broken stderr, or beyond a limit of file size.
                _ if is_own => {}
                // The keeper woke us: nobody else has sent this.
                _ if incoming.is_news => {}
                // The command's end left its group without a parent in the session and with a stopped member, which was us:
                // that, and no terminal, is why the kernel sent this, exit(3). Whoever lives in the group has had it.
                Sig::HUP if has_followed && incoming.is_from_kernel && !self.has_lost_terminal() => {}
                Sig::CONT => self.tell(ToKeeper::Continued { stops: self.stops }),
                sig => {
                    // A hang-up is told to the leader of the session alone, tty_ioctl(4): then nobody else has had it.
                    let is_for_leader = sig == Sig::HUP && leads_session();
                    let is_terminals = incoming.is_from_kernel && sig.is_from_terminals() && !is_for_leader;
                    let source = match is_terminals {
                        true if missed.contains(sig) => Source::EarlyTerminal,
                        true => Source::Terminal,
                        false => Source::Process,
                    };
                    self.tell(ToKeeper::Signal { sig, source, stops: self.stops });
                }
            }
        }
        has_child_news
    }

    /// Stops as the command was stopped, until somebody continues us or the keeper has news.
    fn follow(&mut self, sig: Sig) {
        // Armed before the last look: what the keeper sends after that look continues us.
        sys::continue_on_news(self.socket.bell(), true);
        sys::stop_by(sig, || has_news(&self.socket));
        sys::continue_on_news(self.socket.bell(), false);
        self.socket.silence();
        self.has_followed = true;
    }

    /// Tells the keeper, which may answer.
    fn tell(&mut self, message: ToKeeper) {
        self.listens = true;
        if let Err(errno) = self.socket.send(message) {
            self.give_up("cannot pass a signal on", errno);
        }
    }

    /// Takes what has come before the keeper was there, of which the terminal has sent some to us alone. What it sends from
    /// now on it sends to the command as well.
    pub(super) fn take_early_signals(&mut self) {
        if self.is_in_terminal && self.take_signals() {
            self.catch_up();
        }
    }

    /// Looks after a child whose signal somebody may have taken before us, and takes what it has told.
    pub(super) fn catch_up(&mut self) {
        self.look_after_child();
        if self.end.is_some() {
            self.take_frames();
        }
    }

    /// Continues a stopped keeper and reaps a dead one. As PID 1 it reaps strangers, too.
    fn look_after_child(&mut self) {
        let is_init = sys::own_pid().is_init();
        // Once it is reaped its pid may be that of another.
        while is_init || self.end.is_none() {
            let news = if is_init { sys::reap() } else { sys::reap_only(self.child) };
            match news {
                Reaped::Ended(pid, end) if self.is_child(pid) => self.end = Some(end),
                Reaped::Stopped(pid, _) if self.is_child(pid) => sys::signal_child(pid, Sig::CONT),
                Reaped::Nothing | Reaped::NoChildren => return,
                Reaped::Unknown(errno) => {
                    return self.give_up("cannot ask for the keeper's end", errno);
                }
                _ => {}
            }
        }
    }

    fn is_child(&self, pid: Pid) -> bool {
        self.end.is_none() && pid == self.child
    }

    /// Takes what the keeper has sent. A stop that is outdated by a later frame, or by the keeper's death, is none.
    fn take_frames(&mut self) {
        let mut stop = None;
        // The outcome is the last.
        while let Some(frame) = (self.outcome.is_none()).then(|| self.socket.receive()).flatten() {
            stop = match frame {
                ToFront::Begun | ToFront::Started => {
                    self.has_begun = true;
                    stop
                }
                ToFront::Stopped(sig) => {
                    self.stops = self.stops.wrapping_add(1);
                    Some(sig)
                }
                ToFront::Continued => None,
                // A signal came before this could be heard; no other backend is tried then.
                ToFront::Refused(bytes) => {
                    let why =
                        Refused::from_bytes(bytes).map_or_else(String::new, |refused| refused.explain().to_string());
                    self.voice.error(format_args!("{}: {why}", self.boundary.name()));
                    self.voice.finish();
                    self.outcome = Some(Exit::Code(UNAVAILABLE));
                    None
                }
                ToFront::Outcome { exit, untidy } => {
                    self.outcome = Some(exit);
                    self.untidy = untidy;
                    None
                }
            };
        }
        if let Some(sig) = stop {
            self.follow(sig);
        }
    }

    fn has_lost_terminal(&self) -> bool {
        self.terminal.as_ref().is_some_and(Terminal::is_gone)
    }

    /// The keeper was killed: the tree is ours to end.
    fn end_without_outcome(&mut self, end: End) -> Exit {
        self.untidy = true;
        let drained = match (self.is_deputy, end) {
            (false, _) => Tree::new(&*self.boundary).drain(self.drain_limit, &mut |_| {}),
            (true, End::Exited(deputy::EMPTIED)) => Drained::Empty,
            (true, End::Exited(_)) => Drained::Survivors,
            // It died before its keeper could start anything.
            (true, End::Signaled(_)) if !self.has_begun => {
                let _ = self.boundary.remove();
                Drained::Empty
            }
            // Both are dead: the boundary can be emptied, but nobody is left who could prove the same of the rest.
            (true, End::Signaled(_)) => {
                let _ = self.boundary.kill();
                let _ = self.boundary.remove();
                Drained::Survivors
            }
        };
        let (exit, what) = match drained {
            Drained::Empty => (FAILED, "its processes were ended"),
            Drained::Survivors | Drained::Helpless(_) => {
                (SURVIVORS, "it can't be shown that all of its processes were ended")
            }
        };
        let end = if end == End::Exited(keeper::GAVE_UP) && !self.is_deputy { "gave up" } else { "was killed" };
        self.voice.error(format_args!("the process that watched the command {end}; {what}"));
        self.voice.finish();
        Exit::Code(exit)
    }
}

/// Whether this process leads its session, setsid(2). The session of PID 1 in a namespace may have the number 0.
fn leads_session() -> bool {
    nix::unistd::getsid(None).is_ok_and(|session| session.as_raw() == sys::own_pid().as_raw_pid())
}
