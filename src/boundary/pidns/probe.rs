//! Whether the namespace can be had here. A short-lived child of the front takes all the steps once: what they need is
//! spread over the kernel's configuration, sysctls, security modules and mounts, and asking is surer than reading those.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::{Errno, retry_on_intr};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions, geteuid, waitpid};
use rustix::thread::{CapabilitySet, capabilities};

use super::steps::{self, Failed, Step};
use crate::sys::{self, Fork};
use crate::voice::in_words;

/// What gives the right to make namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rights {
    /// The caller's own, capabilities(7).
    Own,
    /// Those over a user namespace made for it.
    OfUserNamespace,
}

/// Tries it out.
///
/// # Errors
/// Why it can't be had and what would help, as a sentence.
pub(super) fn probe() -> Result<Rights, String> {
    let rights = rights()?;
    match try_out(rights) {
        Ok(Ok(())) => Ok(rights),
        Ok(Err(failed)) => Err(failed.explain(rights)),
        Err(error) => Err(format!("cannot find out whether a PID namespace can be had: {}", in_words(&error))),
    }
}

fn rights() -> Result<Rights, String> {
    let is_able = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
    match is_able {
        true => Ok(Rights::Own),
        // A user namespace would take from root what it is root for: other owners, other users.
        false if geteuid().is_root() => {
            Err("root needs the capability CAP_SYS_ADMIN for it (docker run --cap-add SYS_ADMIN)".into())
        }
        false => Ok(Rights::OfUserNamespace),
    }
}

/// Takes the steps in a child, and waits for it.
fn try_out(rights: Rights) -> io::Result<Result<(), Failed>> {
    let (answer, teller) = pipe_with(PipeFlags::CLOEXEC)?;
    match sys::fork()? {
        Fork::Child => {
            sys::die_with_thread_that_forked();
            sys::exit_now(attempt(rights, teller.as_fd()))
        }
        Fork::Parent(child) => {
            drop(teller);
            let mut frame = [0; FRAME];
            let length = rustix::io::read(&answer, &mut frame)?;
            // Until the end of file, so that nobody is left even if the child is killed before its own.
            while rustix::io::read(&answer, &mut [0; FRAME]).is_ok_and(|length| length > 0) {}
            let is_done = wait(child);
            match decode(frame).filter(|_| length == FRAME) {
                Some(failed) => Ok(Err(failed)),
                None if is_done => Ok(Ok(())),
                // It was killed.
                None => Err(io::ErrorKind::Interrupted.into()),
            }
        }
    }
}

/// The child: makes the namespaces and forks a first process in them, which mounts its /proc. Gives the status to end with.
fn attempt(rights: Rights, teller: BorrowedFd<'_>) -> u8 {
    let tell = |failed: Failed| -> u8 {
        // The pipe is empty and holds more than this.
        let _ = rustix::io::write(teller, &encode(failed));
        1
    };
    if let Err(failed) = steps::enter(rights) {
        return tell(failed);
    }
    match sys::fork() {
        Ok(Fork::Child) => {
            sys::die_with_thread_that_forked();
            sys::exit_now(steps::take_mount_steps().map_or_else(tell, |()| 0))
        }
        Ok(Fork::Parent(child)) => u8::from(!wait(child)),
        Err(error) => tell(Step::Fork.failed()(error)),
    }
}

/// Blocks until a child has ended, and reaps it; whether it ended with 0.
fn wait(child: Pid) -> bool {
    retry_on_intr(|| waitpid(Some(child), WaitOptions::empty()))
        .is_ok_and(|end| end.is_some_and(|(_, status)| status.exit_status() == Some(0)))
}

const FRAME: usize = 5;

fn encode(failed: Failed) -> [u8; FRAME] {
    let step = Step::ALL.iter().position(|step| *step == failed.step).expect("all of them are there");
    let [a, b, c, d] = failed.errno.raw_os_error().to_ne_bytes();
    [u8::try_from(step).expect("there are few"), a, b, c, d]
}

fn decode([step, a, b, c, d]: [u8; FRAME]) -> Option<Failed> {
    let step = *Step::ALL.get(usize::from(step))?;
    let errno = Some(i32::from_ne_bytes([a, b, c, d])).filter(|errno| *errno > 0)?;
    Some(Failed { step, errno: Errno::from_raw_os_error(errno) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_as_it_was() {
        for step in Step::ALL {
            let failed = Failed { step, errno: Errno::PERM };
            assert_eq!(decode(encode(failed)), Some(failed));
        }
    }
}
