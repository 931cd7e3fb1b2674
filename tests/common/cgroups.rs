//! Where cgroup v2 is, seen from one process; shared by the tests and the fixture.

use std::fs;
use std::path::{Path, PathBuf};

/// Directory of the cgroup v2 group of a process (`self` or a number).
pub(crate) fn of_process(process: &str) -> Option<PathBuf> {
    let mount = mount_point()?;
    let groups = fs::read_to_string(format!("/proc/{process}/cgroup")).ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(if group.is_empty() { mount } else { mount.join(group) })
}

/// The first cgroup2 mount of this mount namespace, found by its type: hybrid hosts have it elsewhere.
pub(crate) fn mount_point() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        right.starts_with("cgroup2 ").then(|| PathBuf::from(left.split(' ').nth(4).unwrap_or_default()))
    })
}

/// Moves the calling process into a cgroup.
pub(crate) fn enter(directory: &Path) -> std::io::Result<()> {
    fs::write(directory.join("cgroup.procs"), "0")
}
