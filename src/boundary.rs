//! What holds the tree besides ancestry, and the choice of it. The front makes the boundary, front and keeper share it.

mod cgroup;

use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::process::Pid;

use cgroup::Leaf;
pub use cgroup::{Counters, Hits, Ownerless, acknowledge, remove_ownerless};

use crate::limits::Limits;
use crate::plan::Backend;
use crate::tree::procfs;

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

    /// The cgroup in which the command is born.
    fn birthplace(&self) -> Option<BorrowedFd<'_>>;

    /// Opens the file through which a process enters it, for kernels and containers that refuse clone3.
    ///
    /// # Errors
    /// Those of open(2).
    fn entrance(&self) -> io::Result<OwnedFd>;

    /// The processes in it, at some moment between call and return.
    ///
    /// # Errors
    /// Those of reading a cgroup; what can't be read is not empty.
    fn members(&self) -> io::Result<Vec<Pid>>;

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
    fn events(&self) -> Option<BorrowedFd<'_>>;

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

    /// Moves everything in it to where the caller lives, and removes it; gives those that were moved.
    ///
    /// # Errors
    /// Those of writing to a cgroup.
    fn release(&self) -> io::Result<Vec<Pid>>;
}

/// Ancestry alone.
struct Nothing;

impl Boundary for Nothing {
    fn name(&self) -> String {
        "subreaper".into()
    }

    fn birthplace(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn entrance(&self) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn members(&self) -> io::Result<Vec<Pid>> {
        Ok(vec![])
    }

    fn kill(&self) -> io::Result<()> {
        Ok(())
    }

    fn remove(&self) -> io::Result<Occupancy> {
        Ok(Occupancy::Empty)
    }

    fn events(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn release(&self) -> io::Result<Vec<Pid>> {
        Ok(vec![])
    }
}

/// A backend that was asked for and can't be had.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// Which.
    pub backend: Backend,
    /// Why not, and what would help.
    pub why: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.backend, self.why)
    }
}

/// A boundary and what was preferred to it.
pub struct Choice {
    /// The first that works.
    pub boundary: Box<dyn Boundary>,
    /// Those before it in the list.
    pub refusals: Vec<Refusal>,
}

/// Makes the first boundary of the list that can be had.
///
/// # Errors
/// Why each of them can't.
pub fn choose(backends: &[Backend], is_guarded: bool, limits: &Limits) -> Result<Choice, Vec<Refusal>> {
    let mut refusals = vec![];
    for backend in backends.iter().flat_map(|backend| expand(*backend)) {
        match make(*backend, is_guarded, limits) {
            Ok(boundary) => return Ok(Choice { boundary, refusals }),
            Err(why) => refusals.push(Refusal { backend: *backend, why }),
        }
    }
    Err(refusals)
}

fn expand(backend: Backend) -> &'static [Backend] {
    match backend {
        Backend::Auto => &[Backend::Cgroup, Backend::Subreaper],
        Backend::Cgroup => &[Backend::Cgroup],
        Backend::Systemd => &[Backend::Systemd],
        Backend::Pidns => &[Backend::Pidns],
        Backend::Subreaper => &[Backend::Subreaper],
    }
}

fn make(backend: Backend, is_guarded: bool, limits: &Limits) -> Result<Box<dyn Boundary>, String> {
    match backend {
        Backend::Cgroup => Ok(Box::new(Leaf::make(is_guarded, limits)?)),
        Backend::Subreaper => {
            if !limits.is_none() {
                return Err("ancestry alone can't limit a tree".into());
            }
            procfs::check_trustworthy()?;
            Ok(Box::new(Nothing))
        }
        Backend::Systemd | Backend::Pidns => Err("this release does not have it".into()),
        Backend::Auto => unreachable!("expanded before"),
    }
}
