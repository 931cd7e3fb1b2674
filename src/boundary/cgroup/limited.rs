//! Limits of a leaf: where one can be made that has the controllers, writing them, and what became of them.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, Mode, accessat};

use super::directory::{DIRECTORY, read, write};
use super::locate;
use crate::limits::{Controller, Limits};
use crate::voice::{Why, cause, in_words};

/// How often limits were hit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// Processes that were killed because the tree had no memory left, `oom_kill` of memory.events.
    pub memory: u64,
    /// Forks that failed because the tree had its processes, `max` of pids.events.
    pub pids: u64,
    /// For how long the tree had to wait for CPU time, in microseconds, `throttled_usec` of cpu.stat.
    pub throttled_us: u64,
}

/// The limits of a leaf.
pub(in super::super) struct Limited {
    limits: Limits,
    /// The cgroup of this process, where those go who are left running.
    pub(super) home: OwnedFd,
    /// What was read last; the leaf may be gone.
    hits: Cell<Hits>,
}

/// The directory in which a leaf gets the controllers: the nearest one from our own upwards that gives them to its
/// children and lets us make and enter one there. Never above a run that encloses this one: its tree would not hold ours.
///
/// # Errors
/// Why there is none.
pub(super) fn place(limits: &Limits) -> Result<String, Why> {
    let own = locate::own_cgroup(None)?;
    let mut place = own.as_str();
    let mut closed = None;
    let mut is_enclosed = false;
    loop {
        match gives(place, &limits.controllers()) {
            Ok(true) if can_be_made_in(place) => return Ok(place.into()),
            Ok(true) => closed = closed.or(Some(place)),
            Ok(false) => {}
            // No cgroup any more.
            Err(_) => break,
        }
        let Some((above, name)) = place.rsplit_once('/').filter(|(above, _)| !above.is_empty()) else { break };
        if name.starts_with("treekill-run") {
            is_enclosed = true;
            break;
        }
        place = above;
    }
    let names: Vec<&str> = limits.controllers().into_iter().map(Controller::name).collect();
    let names = names.join(", ");
    if let Some(why) = elsewhere(&limits.controllers()) {
        return Err(why);
    }
    Err(match closed {
        _ if is_enclosed => Why::new(
            format!("this run is inside of another treekill-run's, whose cgroup {place} gives none below it {names}"),
            "give the limit to the outer run",
        ),
        Some(closed) => Why::new(
            format!("{closed} gives cgroups in it {names}, but is not ours to make one in"),
            "try as root, or below systemd-run --user --scope -p Delegate=yes",
        ),
        None => Why::new(
            format!("no cgroup from {own} upwards gives those in it {names}"),
            format!(
                "write +{} to the cgroup.subtree_control of one that holds no processes itself",
                names.replace(", ", " +")
            ),
        ),
    })
}

/// Whether a cgroup gives its children these controllers.
fn gives(place: &str, controllers: &[Controller]) -> io::Result<bool> {
    let given = std::fs::read_to_string(format!("{place}/cgroup.subtree_control"))?;
    let mut needed = controllers.iter();
    Ok(needed.all(|controller| given.split_whitespace().any(|word| word == controller.name())))
}

/// Whether this user may make a cgroup here and move from our own into it: the right to write to the common ancestor's
/// cgroup.procs decides, cgroups(7).
fn can_be_made_in(place: &str) -> bool {
    let Ok(directory) = rustix::fs::open(place, DIRECTORY, Mode::empty()) else { return false };
    let access = |name, access| accessat(&directory, name, access, AtFlags::EACCESS).is_ok();
    access(c"cgroup.procs", rustix::fs::Access::WRITE_OK) && access(c".", rustix::fs::Access::WRITE_OK)
}

/// Why the controllers can't be had in any cgroup v2, if that is so.
fn elsewhere(controllers: &[Controller]) -> Option<Why> {
    let table = std::fs::read_to_string("/proc/cgroups").ok()?;
    controllers.iter().find_map(|controller| {
        let name = controller.name();
        let row: Vec<&str> =
            table.lines().map(|line| line.split('\t').collect()).find(|row: &Vec<_>| row.first() == Some(&name))?;
        match (row.get(1), row.get(3)) {
            (_, Some(&"0")) => Some(Why::new(
                format!("the {name} controller is disabled on this machine"),
                format!("boot it without cgroup_disable={name}"),
            )),
            (Some(hierarchy), _) if *hierarchy != "0" => Some(Why::new(
                format!("the {name} controller is bound to cgroup v1 on this machine"),
                format!("boot it with cgroup_no_v1={name}, or systemd.unified_cgroup_hierarchy=1"),
            )),
            _ => None,
        }
    })
}

/// The number behind a key, which ends in its blank.
pub(super) fn count_in(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key)?.trim_start().parse().ok())
}

/// The period of cpu.max in microseconds: the kernel's default.
const PERIOD: u64 = 100_000;

impl Limited {
    /// Writes the limits into a leaf that nothing lives in yet.
    ///
    /// # Errors
    /// Which could not be written, and why, as a sentence.
    pub(super) fn write(limits: Limits, directory: &OwnedFd) -> Result<Limited, String> {
        let memory = limits.memory.map(|bytes| bytes.to_string());
        let cpu = limits.cpu.map(|percent| format!("{} {PERIOD}", u64::from(percent) * PERIOD / 100));
        for (name, value) in
            [(c"memory.max", memory), (c"pids.max", limits.pids.map(|pids| pids.to_string())), (c"cpu.max", cpu)]
        {
            let Some(value) = value else { continue };
            write(directory, name, value.as_bytes())
                .map_err(|error| format!("cannot write {value} to {}: {}", name.to_string_lossy(), in_words(&error)))?;
        }
        let home = locate::own_cgroup(None)?;
        let home = rustix::fs::open(&*home, DIRECTORY, Mode::empty())
            .map_err(|errno| format!("cannot open {home}: {}", cause(errno.raw_os_error())))?;
        Ok(Limited { limits, home, hits: Cell::default() })
    }

    /// The limits of a cgroup that somebody else has given them.
    ///
    /// # Errors
    /// Which it has not, and why.
    pub(in super::super) fn given(limits: Limits, place: &str) -> Result<Limited, Why> {
        let controllers = limits.controllers();
        let lacks = |controller: &&Controller| !Path::new(&format!("{place}/{}.max", controller.name())).exists();
        if let Some(controller) = controllers.iter().find(lacks) {
            let name = controller.name();
            return Err(elsewhere(&controllers).unwrap_or_else(|| {
                let help = "its slice would have to be delegated with it";
                Why::new(format!("systemd has no {name} controller for the scope"), help)
            }));
        }
        let home = rustix::fs::open(place, DIRECTORY, Mode::empty())
            .map_err(|errno| format!("cannot open {place}: {}", cause(errno.raw_os_error())))?;
        Ok(Limited { limits, home, hits: Cell::default() })
    }

    /// Reads the counters of a cgroup that is also `home`.
    pub(in super::super) fn look_at_home(&self) {
        self.look(&self.home);
    }

    /// Reads the counters while the leaf is there.
    pub(super) fn look(&self, directory: &OwnedFd) {
        let count = |name, key| count_in(&read(directory, name).ok()?, key);
        let before = self.hits.get();
        // A leaf that the kernel took limits for keeps its counters; one that is gone says nothing new.
        let mut hits = before;
        if self.limits.memory.is_some() {
            // Of this leaf's own limit, not of a stricter one that the command may have set below it or the host above.
            let own = count(c"memory.events.local", "oom ").unwrap_or_default();
            let killed = count(c"memory.events", "oom_kill ").unwrap_or_default();
            hits.memory = before.memory.max(if own > 0 { killed } else { 0 });
        }
        if self.limits.pids.is_some() {
            hits.pids = before.pids.max(count(c"pids.events", "max ").unwrap_or_default());
        }
        if self.limits.cpu.is_some() {
            hits.throttled_us = before.throttled_us.max(count(c"cpu.stat", "throttled_usec ").unwrap_or_default());
        }
        self.hits.set(hits);
    }

    pub(in super::super) fn hits(&self) -> Hits {
        self.hits.get()
    }
}
