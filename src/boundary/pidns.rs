//! A PID namespace around the command, with an init of ours, pid_namespaces(7). The keeper makes it, forks init as its PID 1
//! and then the command, so that the command stays the keeper's own child. Whether it can be had only the attempt tells: what
//! that needs is spread over the kernel's configuration, sysctls, security modules and mounts.
//!
//! Who loses its parent in there becomes init's child, and whatever a process of it does, it can't get out. SIGKILL for init
//! ends all of it at once, and init can't be reaped before everybody else in it is.

mod init;
mod steps;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

pub use steps::{Refused, show_own_namespace};

use super::{Boundary, Occupancy};
use crate::cli::Leftovers;
use crate::plan::Policy;
use crate::signals::Sig;
use crate::sys::{self, Fork};
use crate::tree::procfs;
use crate::voice::Why;
use steps::{Rights, Step};

/// The backend. In the front it is a promise only.
pub(super) struct Pidns {
    rights: Rights,
    namespace: Option<Namespace>,
}

/// A namespace that was made.
pub struct Namespace {
    init: Pid,
    /// Of init.
    pidfd: OwnedFd,
    /// Of the keeper.
    keeper: OwnedFd,
    questions: OwnedFd,
    answers: OwnedFd,
}

/// How long init's answer is waited for. It comes at once, unless somebody holds init or takes all the CPUs.
const LONGEST_WAIT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

impl Namespace {
    /// Its PID 1, by its number outside: a child of the keeper's and no part of the tree.
    pub fn init(&self) -> Pid {
        self.init
    }

    /// Whether nobody is left in it. Init alone can tell, and has ended then: it ends when it finds itself alone, now or
    /// later. Not before the command is reaped. Blocks for an answer.
    ///
    /// Without waiting, a run that leaves nothing would seem to leave something until init has had the CPU.
    pub fn is_over(&self) -> bool {
        // An answer that came too late is none to this question.
        let _ = rustix::io::read(&self.answers, &mut [0; 8]);
        let _ = rustix::io::write(&self.questions, &ONE);
        let mut fds = [PollFd::new(&self.answers, PollFlags::IN), PollFd::new(&self.pidfd, PollFlags::IN)];
        let _ = poll(&mut fds, Some(&LONGEST_WAIT));
        sys::has_exited(self.pidfd.as_fd())
    }

    /// The pidfd of the keeper, which has no number in it.
    pub fn keeper(&self) -> BorrowedFd<'_> {
        self.keeper.as_fd()
    }
}

impl Pidns {
    /// The promise of one.
    ///
    /// # Errors
    /// Why there can be none for this run.
    pub(super) fn promise(policy: &Policy) -> Result<Pidns, Why> {
        if policy.leftovers == Leftovers::Leave || policy.keeps || !policy.guard {
            let help = "try --leftovers kill, and neither --keep nor --no-guard";
            return Err(Why::new("nothing of it can be left running", help));
        }
        procfs::check_namespace()?;
        Ok(Pidns { rights: steps::rights()?, namespace: None })
    }
}

impl Boundary for Pidns {
    fn name(&self) -> String {
        match self.rights {
            Rights::Own => "pidns".into(),
            Rights::OfUserNamespace => "pidns with a user namespace".into(),
        }
    }

    fn begin(&mut self) -> Result<(), Refused> {
        steps::enter(self.rights)?;
        let refused = |error: io::Error| Step::Fork.refused()(error);
        let keeper = pidfd_open(sys::own_pid(), PidfdFlags::empty()).map_err(|errno| refused(errno.into()))?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let counter = || eventfd(0, flags).map_err(|errno| refused(errno.into()));
        let (questions, answers) = (counter()?, counter()?);
        // Made here, where a failure can be told: init's death would be the command's.
        let signals = sys::signal_descriptor([Sig::CHLD].into_iter().collect()).map_err(refused)?;
        match sys::fork().map_err(refused)? {
            Fork::Child => init::run([&keeper, &questions, &answers, &signals].map(AsFd::as_fd)),
            Fork::Parent(init) => {
                let pidfd = pidfd_open(init, PidfdFlags::empty()).map_err(|errno| {
                    sys::signal_child(init, Sig::KILL);
                    sys::reap_at_its_end(init);
                    refused(errno.into())
                })?;
                self.namespace = Some(Namespace { init, pidfd, keeper, questions, answers });
                Ok(())
            }
        }
    }

    fn namespace(&self) -> Option<&Namespace> {
        self.namespace.as_ref()
    }

    fn kill(&self) -> io::Result<()> {
        match &self.namespace {
            // Once it is reaped nobody is left.
            Some(namespace) => sys::send_signal(namespace.pidfd.as_fd(), Sig::KILL).or(Ok(())),
            None => Ok(()),
        }
    }

    fn remove(&self) -> io::Result<Occupancy> {
        let is_over = |namespace: &Namespace| sys::has_exited(namespace.pidfd.as_fd());
        Ok(if self.namespace.as_ref().is_none_or(is_over) { Occupancy::Empty } else { Occupancy::Populated })
    }

    fn release(&self, _: &dyn Fn(Pid) -> bool) -> io::Result<Vec<Pid>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// What is added to the counter of an eventfd(2).
const ONE: [u8; 8] = 1_u64.to_ne_bytes();
