//! Leaves whose owners are dead: every run that has a leaf looks for those of its user beside its own.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::fs::{FlockOperation, Mode, RawDir, flock, fstat, openat};
use rustix::process::geteuid;

use super::super::Occupancy;
use super::directory::{DIRECTORY, kill, kill_members, remove};
use super::{GUARDED, UNGUARDED};

/// Ownerless leaves that could not be removed yet.
#[derive(Default)]
pub struct Ownerless {
    leaves: Vec<Left>,
}

struct Left {
    parent: OwnedFd,
    name: CString,
    directory: OwnedFd,
}

impl Ownerless {
    /// Kills and removes the leaves of this user in a cgroup that nobody owns any more, all but our own. It never waits: what
    /// still dies is tried once more by `retry`, then left to the next run.
    pub(super) fn remove_in(&mut self, parent: &OwnedFd, own: &CStr) -> io::Result<()> {
        let mut buffer = [MaybeUninit::uninit(); 1024];
        let mut entries = RawDir::new(parent, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name();
            let is_guarded = name.to_bytes().starts_with(GUARDED.as_bytes());
            if name == own || (!is_guarded && !name.to_bytes().starts_with(UNGUARDED.as_bytes())) {
                continue;
            }
            // A scope is systemd's to remove, and the leaf in it is what its owners hold.
            if name.to_bytes().ends_with(b".scope") {
                continue;
            }
            let Ok(directory) = openat(parent, name, DIRECTORY, Mode::empty()) else { continue };
            // Only our own: another user's leaf with our prefix is none of our business, and root's is not a user's to kill.
            if fstat(&directory).is_ok_and(|status| status.st_uid != geteuid().as_raw())
                || flock(&directory, FlockOperation::NonBlockingLockExclusive).is_err()
            {
                continue;
            }
            if is_guarded {
                let _ = kill(&directory);
            }
            let mut is_removed = matches!(remove(parent, name, &directory), Ok(Occupancy::Empty));
            if !is_removed && is_guarded {
                // Kernels before 5.14 have no cgroup.kill, and it passes over processes whose first thread has ended.
                let _ = kill_members(&directory);
                is_removed = matches!(remove(parent, name, &directory), Ok(Occupancy::Empty));
            }
            if !is_removed {
                self.leaves.push(Left { parent: parent.try_clone()?, name: name.to_owned(), directory });
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
