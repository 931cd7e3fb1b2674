//! What holds the tree besides ancestry, and the choice of it. The front makes the boundary, front and keeper share it.

mod cgroup;
mod pidns;
mod systemd;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::process::Pid;

use cgroup::Leaf;
#[cfg(any(test, fuzzing))]
pub(crate) use cgroup::properties;
pub use cgroup::{Counters, Hits, Ownerless, acknowledge, kernel_kills};
use pidns::Pidns;
pub use pidns::{Namespace, Refused, show_own_namespace};
pub use systemd::{NoScope, Offer, runs as systemd_runs};

use crate::plan::{Backend, Plan};
use crate::tree::procfs;
use crate::voice::Why;

/// Whether anything lives in a boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occupancy {
    /// The kernel says that nothing does.
    Empty,
    /// Something does, or may.
    Populated,
}

/// A second net around the tree. One that holds nothing is always empty.
pub trait Boundary {
    /// What it is, for messages and the report.
    fn name(&self) -> String;

    /// Makes what only the parent of the command can make. The keeper calls it once, before the birth.
    ///
    /// # Errors
    /// What was refused.
    fn begin(&mut self) -> Result<(), Refused> {
        Ok(())
    }

    /// The PID namespace that the command is born in, once it is made.
    fn namespace(&self) -> Option<&Namespace> {
        None
    }

    /// The cgroup in which the command is born, if it is one.
    fn birthplace(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Opens the file through which a process enters it, for kernels and containers that refuse clone3.
    ///
    /// # Errors
    /// Those of open(2).
    fn entrance(&self) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The processes in it, at some moment between call and return.
    ///
    /// # Errors
    /// Those of reading a cgroup; what can't be read is not empty.
    fn members(&self) -> io::Result<Vec<Pid>> {
        Ok(vec![])
    }

    /// SIGKILL for everything in it, without waiting.
    ///
    /// # Errors
    /// Those of writing to a cgroup.
    fn kill(&self) -> io::Result<()>;

    /// Removes it if nothing lives in it, with what the command made below it.
    ///
    /// # Errors
    /// Those of rmdir(2) but EBUSY.
    fn remove(&self) -> io::Result<Occupancy>;

    /// Has an exceptional condition when its occupancy may have changed, cgroups(7).
    fn events(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Ends what runs that were killed have left beside it.
    fn remove_ownerless(&self) -> Ownerless {
        Ownerless::default()
    }

    /// How often the tree has hit its limits; final once it was removed.
    fn hits(&self) -> Hits {
        Hits::default()
    }

    /// From now on looks at what its processes have used before it is removed.
    fn count(&self) {}

    /// What its processes have used, if it was told to count; final once it was removed.
    fn counters(&self) -> Counters {
        Counters::default()
    }

    /// Lets the chosen of its processes go on: moved to where the caller lives, or where that can't be left in it. Gives
    /// those that were let go.
    ///
    /// # Errors
    /// Those of writing to a cgroup.
    fn release(&self, is_chosen: &dyn Fn(Pid) -> bool) -> io::Result<Vec<Pid>>;
}

/// Ancestry alone.
struct Nothing;

impl Boundary for Nothing {
    fn name(&self) -> String {
        "subreaper".into()
    }

    fn kill(&self) -> io::Result<()> {
        Ok(())
    }

    fn remove(&self) -> io::Result<Occupancy> {
        Ok(Occupancy::Empty)
    }

    fn release(&self, _: &dyn Fn(Pid) -> bool) -> io::Result<Vec<Pid>> {
        Ok(vec![])
    }
}

/// A backend that was asked for and can't be had.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// Which.
    pub backend: Backend,
    /// Why not.
    pub why: Why,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.backend, self.why)
    }
}

/// A second net, before the keeper is there.
pub enum Net {
    /// One that is ready for the command.
    Ready(Box<dyn Boundary>),
    /// One that is made around the process that is to be the keeper.
    Scope(Offer),
    /// One that the keeper makes, if nobody refuses it.
    Promised(Box<dyn Boundary>),
}

impl Net {
    /// What it is, for messages and the report.
    pub fn name(&self) -> String {
        match self {
            Net::Ready(boundary) | Net::Promised(boundary) => boundary.name(),
            Net::Scope(offer) => offer.name(),
        }
    }
}

/// The backends that a list means, in its order.
pub fn in_order(backends: &[Backend]) -> impl Iterator<Item = Backend> {
    backends.iter().flat_map(|backend| expand(*backend)).copied()
}

fn expand(backend: Backend) -> &'static [Backend] {
    match backend {
        Backend::Auto => &[Backend::Cgroup, Backend::Systemd, Backend::Subreaper],
        Backend::Cgroup => &[Backend::Cgroup],
        Backend::Systemd => &[Backend::Systemd],
        Backend::Pidns => &[Backend::Pidns],
        Backend::Subreaper => &[Backend::Subreaper],
    }
}

/// Where limits can be had.
const WITH_LIMITS: &str = "limits need --backend cgroup or systemd";

/// Makes the net of this backend, as far as that can be done before there is a keeper. The pidfd is of this process.
///
/// # Errors
/// Why it can't be had.
pub fn find(backend: Backend, plan: &Plan, command: &[OsString], pidfd: BorrowedFd<'_>) -> Result<Net, Why> {
    match backend {
        Backend::Cgroup => Ok(Net::Ready(Box::new(Leaf::make(plan.policy.guard, &plan.limits, Some(pidfd))?))),
        Backend::Systemd => Ok(Net::Scope(Offer::find(plan, command)?)),
        Backend::Subreaper => {
            if !plan.limits.is_none() {
                return Err(Why::new("ancestry alone can't limit a tree", WITH_LIMITS));
            }
            procfs::check_trustworthy()?;
            Ok(Net::Ready(Box::new(Nothing)))
        }
        Backend::Pidns if !plan.limits.is_none() => Err(Why::new("a PID namespace can't limit a tree", WITH_LIMITS)),
        Backend::Pidns => Ok(Net::Promised(Box::new(Pidns::promise(&plan.policy)?))),
        Backend::Auto => unreachable!("expanded before"),
    }
}
