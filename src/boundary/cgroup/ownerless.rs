//! Leaves whose owners are dead: every run that has a leaf looks for those of its user beside its own.

use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::fs::{Dir, FlockOperation, Mode, flock, fstat, openat};
use rustix::process::geteuid;

use super::super::Occupancy;
use super::{DIRECTORY, GUARDED, UNGUARDED, kill, kill_members, limited, locate, remove};
use crate::limits::Limits;

/// Ownerless leaves that could not be removed yet.
#[derive(Default)]
pub struct Ownerless {
    leaves: Vec<Left>,
}

struct Left {
    parent: Rc<OwnedFd>,
    name: CString,
    directory: OwnedFd,
}

/// Kills and removes the leaves of this user that nobody owns any more, in our own cgroup and where one with these limits
/// is made. It never waits: what still dies is tried once more by `Ownerless::retry`, then left to the next run.
pub fn remove_ownerless(limits: &Limits) -> Ownerless {
    let mut ownerless = Ownerless::default();
    let own = locate::own_cgroup();
    let other = if limits.is_none() { None } else { limited::place(limits).ok() };
    for place in own.iter().chain(other.iter().filter(|place| own.as_ref() != Ok(place))) {
        // What can't be read or removed here is a later run's.
        let _ = ownerless.remove_in(place);
    }
    ownerless
}

impl Ownerless {
    fn remove_in(&mut self, place: &str) -> io::Result<()> {
        let parent = Rc::new(rustix::fs::open(place, DIRECTORY, Mode::empty())?);
        for entry in Dir::read_from(&*parent)? {
            let Ok(entry) = entry else { break };
            let name = entry.file_name();
            let is_guarded = name.to_bytes().starts_with(GUARDED.as_bytes());
            if !is_guarded && !name.to_bytes().starts_with(UNGUARDED.as_bytes()) {
                continue;
            }
            // A scope is systemd's to remove, and the leaf in it is what its owners hold.
            if name.to_bytes().ends_with(b".scope") {
                continue;
            }
            let Ok(directory) = openat(&*parent, name, DIRECTORY, Mode::empty()) else { continue };
            // Only our own: another user's leaf with our prefix is none of our business, and root's is not a user's to kill.
            if fstat(&directory).is_ok_and(|status| status.st_uid != geteuid().as_raw())
                || flock(&directory, FlockOperation::NonBlockingLockExclusive).is_err()
            {
                continue;
            }
            if is_guarded {
                let _ = kill(&directory);
            }
            let mut is_removed = matches!(remove(&parent, name, &directory), Ok(Occupancy::Empty));
            if !is_removed && is_guarded {
                // Kernels before 5.14 have no cgroup.kill, and it passes over processes whose first thread has ended.
                let _ = kill_members(&directory);
                is_removed = matches!(remove(&parent, name, &directory), Ok(Occupancy::Empty));
            }
            if !is_removed {
                self.leaves.push(Left { parent: Rc::clone(&parent), name: name.to_owned(), directory });
            }
        }
        Ok(())
    }

    /// Tries once more to remove them.
    pub fn retry(&self) {
        for Left { parent, name, directory } in &self.leaves {
            // What still lives is the next run's.
            let _ = remove(parent, name, directory);
        }
    }
}
