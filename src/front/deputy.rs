//! The deputy: stands between a front that has children of its own already and the keeper, so that strangers' orphans
//! never mix with ours. It is the subreaper in the front's place, and ends the tree if the keeper is killed.

use std::fmt;
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::boundary::Boundary;
use crate::keeper::{self, Setup, Ties};
use crate::outcome::{End, Exit, FAILED};
use crate::signals::Sig;
use crate::sys::{self, Fork, Reaped};
use crate::tree::{Drained, Tree};
use crate::voice::in_words;
use crate::wire::ToFront;

/// The deputy ends so when the keeper was killed and the tree is gone.
pub(super) const EMPTIED: u8 = 1;
/// The deputy ends so when the keeper was killed and it can't be shown that the tree is gone.
const SURVIVED: u8 = 2;

/// Forks the keeper and watches it; gives the status to end with.
pub(super) fn run(mut setup: Box<Setup>, boundary: Box<dyn Boundary>) -> u8 {
    match pidfd_open(sys::own_pid(), PidfdFlags::empty()) {
        Ok(pidfd) => setup.ties.deputy = Some(pidfd),
        Err(errno) => return refuse(setup, &*boundary, &errno.into()),
    }
    match sys::fork() {
        Ok(Fork::Child) => sys::exit_now(match keeper::settle_in(&setup) {
            Ok(()) => keeper::run(setup, boundary),
            Err(errno) => refuse(setup, &*boundary, &errno.into()),
        }),
        Ok(Fork::Parent(child)) => {
            keeper::leave_group(setup.plan.session, &setup.ties);
            watch(child, setup, &*boundary)
        }
        Err(error) => refuse(setup, &*boundary, &error),
    }
}

fn watch(keeper: Pid, setup: Box<Setup>, boundary: &dyn Boundary) -> u8 {
    // Only what is needed stays open here: above all not the keeper's socket, whose closing is a sign to the front.
    let Setup { ties: Ties { signals, socket, front, parent, .. }, plan, target, .. } = *setup;
    drop((socket, front, parent, target));
    loop {
        match sys::reap() {
            Reaped::Ended(pid, End::Exited(status)) if pid == keeper && status == keeper::TOLD => return keeper::TOLD,
            Reaped::Ended(pid, _) if pid == keeper => break,
            // Nobody else continues it.
            Reaped::Stopped(pid, _) if pid == keeper => sys::signal_child(pid, Sig::CONT),
            Reaped::Nothing => {
                // Everything is blocked, and SIGCHLD is the only signal that is of interest.
                let is_deaf = match poll(&mut [PollFd::new(&signals, PollFlags::IN)], None) {
                    Ok(_) | Err(Errno::INTR) => sys::read_signals(signals.as_fd()).is_err(),
                    Err(_) => true,
                };
                if is_deaf {
                    break end(keeper);
                }
            }
            Reaped::Unknown(_) => break end(keeper),
            Reaped::NoChildren => break,
            _ => {}
        }
    }
    match Tree::new(boundary).drain(plan.drain_limit, &mut |_| {}) {
        Drained::Empty => EMPTIED,
        Drained::Survivors | Drained::Helpless(_) => SURVIVED,
    }
}

/// Who can't watch the keeper ends the tree in its place. The keeper goes first: it would take our SIGKILL for the
/// command's own end, and tell that.
fn end(keeper: Pid) {
    sys::signal_child(keeper, Sig::KILL);
    sys::reap_at_its_end(keeper);
}

/// Nothing was started.
fn refuse(mut setup: Box<Setup>, boundary: &dyn Boundary, error: &std::io::Error) -> u8 {
    let _ = boundary.remove();
    give_up(&mut setup, format_args!("cannot start the keeper: {}", in_words(error)))
}

/// Says why nothing was started, and has the front end by that: without an outcome it would say that somebody was killed.
/// Gives the status to end with.
pub(super) fn give_up(setup: &mut Setup, why: fmt::Arguments<'_>) -> u8 {
    setup.voice.error(why);
    setup.voice.finish();
    // The first frame of all fits.
    let _ = setup.ties.socket.send(ToFront::Outcome { exit: Exit::Code(FAILED), untidy: false });
    keeper::TOLD
}
