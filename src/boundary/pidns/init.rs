//! PID 1 of the namespace. It reaps who was orphaned in there, and ends when it finds itself alone, from the keeper's first
//! question on: that comes when the command is over. Its death, however it comes, is the death of all in there.

use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, poll};

use super::ONE;
use crate::outcome::FAILED;
use crate::sys::{self, Reaped};

/// Runs it, forked by the keeper with all signals blocked. Of its descriptors it keeps none but these, so that no pipe of
/// the command's stays open because of it.
pub(super) fn run([keeper, questions, answers, signals]: [BorrowedFd<'_>; 4]) -> ! {
    sys::die_with_thread_that_forked();
    // A keeper that died before the line above will never make the kernel send that signal; getppid() tells nothing
    // here, since the parent is outside.
    if sys::has_exited(keeper) {
        sys::exit_now(FAILED);
    }
    // Signals to the caller's group, which the keeper is still in, are not for us. It can't fail here.
    let _ = rustix::process::setpgid(None, None);
    sys::close_all_but([keeper, questions, answers, signals]);
    let mut is_command_over = false;
    loop {
        let mut sources = [keeper, questions, signals].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        // EINTR can't be, with all signals blocked; whatever it is, everything is looked at again.
        let _ = poll(&mut sources, None);
        if sys::has_exited(keeper) {
            sys::exit_now(FAILED);
        }
        // Signals are taken before children are reaped: who ends after that makes another.
        let _ = sys::read_signals(signals);
        let is_asked = rustix::io::read(questions, &mut [0; 8]).is_ok();
        is_command_over |= is_asked;
        let has_children = reap() != Reaped::NoChildren;
        // The keeper has children in here, too, as the parent of who cloned itself as the command's sibling.
        if is_command_over && !has_children && sys::is_alone_in_namespace() {
            sys::exit_now(0);
        }
        if is_asked {
            let _ = rustix::io::write(answers, &ONE);
        }
    }
}

/// Reaps who has ended; gives the last answer.
fn reap() -> Reaped {
    loop {
        if let last @ (Reaped::Nothing | Reaped::NoChildren | Reaped::Unknown(_)) = sys::reap() {
            return last;
        }
    }
}
