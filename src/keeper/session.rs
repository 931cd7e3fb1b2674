//! The keeper's place in the caller's session. A process group in which nobody has a parent in another group of the session
//! is orphaned, setpgid(2): no terminal stops it, since nobody could continue it.

use std::os::fd::OwnedFd;

use rustix::io::{Errno, read};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, setpgid, setsid};

use super::{Keeper, Ties};
use crate::plan::Session;
use crate::signals::Sig;
use crate::supervisor::Event;
use crate::sys::{self, Fork};
use crate::wire::Source;

/// Gets out of reach of signals to the caller's group. In terminal mode not before the command is born into that group:
/// what the terminal sends before that comes to the keeper, and after it to the command.
///
/// The keeper stays in the session, for the groups that the command makes, which would be orphaned; unless it would keep the
/// caller's own from being so.
pub fn leave_group(session: Session, ties: &Ties) {
    // Neither can fail but for the leader of a session or group, which this is not.
    let _ = match session {
        Session::Own => Ok(()),
        Session::Callers if ties.shells.is_empty() => setsid().map(drop),
        Session::Callers => setpgid(None, None),
    };
}

impl Keeper<'_> {
    /// The shell is dead. Without us the caller's group would be orphaned now, and if it is stopped the kernel would send all
    /// of it SIGHUP and SIGCONT, exit(3).
    pub(super) fn leave_session(&mut self) {
        self.ties.shells.clear();
        let Some(group) = self.callers_group else { return };
        // What is forked here with a PID namespace is born in that, and can't join a group outside.
        let witness = if self.boundary.namespace().is_none() { Witness::call(group).ok() } else { None };
        // Who leads a group can't leave the session. Where the caller's is gone, nothing of it is left to be orphaned.
        let has_left = setpgid(None, Some(group)).and_then(|()| setsid()).is_ok();
        match witness {
            Some(witness) if has_left => witness.leave(),
            _ if self.front_is_stopped => self.handle(Event::Signal(hang_up(), Source::Process)),
            _ => {}
        }
    }
}

/// What stands for the kernel's hang-up, which the caller may ignore, as nohup(1) does.
fn hang_up() -> Sig {
    if sys::is_ignored(Sig::HUP) { Sig::CONT } else { Sig::HUP }
}

/// A process in the caller's group with a parent in another group of the session. Its end is the last thing that keeps the
/// group from being orphaned: the kernel sees that, and does what it would have done at the death of the shell.
struct Witness {
    parent: Pid,
    gate: OwnedFd,
}

impl Witness {
    fn call(group: Pid) -> Result<Witness, Errno> {
        let (waiting, gate) = pipe_with(PipeFlags::CLOEXEC)?;
        match sys::fork().map_err(|_| Errno::AGAIN)? {
            Fork::Parent(parent) => {
                // By us, who can't leave the session as long as a group has our number.
                let _ = setpgid(Some(parent), Some(parent));
                Ok(Witness { parent, gate })
            }
            Fork::Child => {
                drop(gate);
                // By itself too, since its child must not come first.
                let _ = setpgid(None, None);
                match sys::fork() {
                    Ok(Fork::Child) => {
                        let _ = setpgid(None, Some(group)).and_then(|()| read(&waiting, &mut [0]));
                    }
                    Ok(Fork::Parent(witness)) => sys::reap_at_its_end(witness),
                    Err(_) => {}
                }
                sys::exit_now(0)
            }
        }
    }

    /// Blocks for as long as two processes take to end.
    fn leave(self) {
        drop(self.gate);
        sys::reap_at_its_end(self.parent);
    }
}
