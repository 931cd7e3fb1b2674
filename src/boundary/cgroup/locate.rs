//! Where a cgroup is in the file system: pure v2, hybrid and namespaced mounts.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{Mode, open, stat, statfs};

use super::directory::{READ, read_whole};
use crate::sys;
use crate::voice::in_words;

/// `CGROUP2_SUPER_MAGIC` of linux/magic.h.
const CGROUP2_MAGIC: u64 = 0x6367_7270;

/// Where cgroup2 is mounted on nearly every host: pure, then hybrid.
const USUAL_MOUNTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// The directory of the cgroup that this process is in. A pidfd of it is a help.
///
/// # Errors
/// Why it has none that can be reached.
pub(super) fn own_cgroup(pidfd: Option<BorrowedFd<'_>>) -> Result<String, String> {
    find("self", pidfd.and_then(sys::cgroup_id))
}

/// The same of a process by its name in /proc, which the caller must know to show our PID namespace.
///
/// # Errors
/// As above.
pub(in crate::boundary) fn cgroup_of(process: &str) -> Result<String, String> {
    find(process, None)
}

/// Finds the cgroup of this process, whose number it may be, name_to_handle_at(2).
fn find(process: &str, number: Option<u64>) -> Result<String, String> {
    let file = format!("/proc/{process}/cgroup");
    let text = open(&*file, READ, Mode::empty())
        .map_err(io::Error::from)
        .and_then(read_whole)
        .map_err(|error| format!("cannot read {file}: {}", in_words(&error)))?;
    let path = v2_path(&text).ok_or("this kernel has no cgroup v2")?;
    let is_cgroup = |directory: &String| {
        statfs(directory.as_str()).is_ok_and(|status| u64::try_from(status.f_type) == Ok(CGROUP2_MAGIC))
    };
    // In another namespace the mount may be from outside of it, where the same path means somebody else's cgroup. To ask for
    // the namespace takes as long as all else here.
    let is_meant = |directory: &String| match number {
        Some(number) => stat(directory.as_str()).is_ok_and(|status| status.st_ino == number),
        None => sees_all_cgroups(),
    };
    let found = USUAL_MOUNTS.iter().map(|mount| join(mount, path)).find(is_cgroup).filter(is_meant);
    if let Some(directory) = found {
        return Ok(directory);
    }
    let mounts = fs::read("/proc/self/mountinfo")
        .map_err(|error| format!("cannot read /proc/self/mountinfo: {}", in_words(&error)))?;
    find_in(&mounts, path).ok_or_else(|| format!("no mounted cgroup v2 file system shows the cgroup {path}"))
}

/// Whether this process is in the first cgroup namespace, cgroup_namespaces(7), whose number is fixed, linux/nsfs.h.
fn sees_all_cgroups() -> bool {
    stat("/proc/self/ns/cgroup").is_ok_and(|namespace| namespace.st_ino == 4_026_531_835)
}

/// The path in the v2 hierarchy, from the line `0::PATH`, cgroups(7). A name may end in a carriage return.
pub(super) fn v2_path(text: &str) -> Option<&str> {
    text.split('\n').find_map(|line| line.strip_prefix("0::"))
}

/// Looks through mountinfo, proc_pid_mountinfo(5), for a cgroup2 mount whose root is our cgroup or above it. Both are
/// seen from our cgroup namespace; one that leads out of it starts with `/..` and matches nothing.
pub(super) fn find_in(mountinfo: &[u8], path: &str) -> Option<String> {
    mountinfo.split(|&byte| byte == b'\n').find_map(|line| {
        let (mount, source) = split_at(line, b" - ")?;
        if !source.starts_with(b"cgroup2 ") {
            return None;
        }
        let mut fields = mount.split(|&byte| byte == b' ');
        let root = unescape(fields.nth(3)?);
        let point = unescape(fields.next()?);
        let below = if root == "/" { path } else { path.strip_prefix(root.as_str())? };
        (below.is_empty() || below.starts_with('/'))
            .then(|| join(&point, below))
            .filter(|directory| Path::new(OsStr::from_bytes(directory.as_bytes())).is_dir())
    })
}

fn join(mount: &str, path: &str) -> String {
    format!("{mount}{}", path.trim_end_matches('/'))
}

fn split_at<'a>(line: &'a [u8], separator: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let at = line.windows(separator.len()).position(|window| window == separator)?;
    Some((&line[..at], &line[at + separator.len()..]))
}

/// Undoes mountinfo's octal escapes of blanks and backslashes.
pub(super) fn unescape(field: &[u8]) -> String {
    let text = String::from_utf8_lossy(field);
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.into_owned(), |text, (escape, plain)| text.replace(escape, plain))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::process::{PidfdFlags, pidfd_open};

    use super::*;

    #[test]
    fn our_cgroup_is_the_same_with_a_number_and_without() {
        let pidfd = pidfd_open(sys::own_pid(), PidfdFlags::empty()).expect("our own pidfd");
        let Ok(directory) = own_cgroup(None) else { return eprintln!("no cgroup v2 is mounted here") };
        assert_eq!(own_cgroup(Some(pidfd.as_fd())).as_ref(), Ok(&directory));
        // Who is not told the right one looks at all mounts.
        assert_eq!(find("self", Some(0)).as_ref(), Ok(&directory));
        if let Some(number) = sys::cgroup_id(pidfd.as_fd()) {
            assert_eq!(stat(directory.as_str()).map(|status| status.st_ino), Ok(number));
        }
    }

    #[test]
    fn a_path_is_the_line_of_the_v2_hierarchy() {
        assert_eq!(v2_path("4:memory:/a\n0::/user.slice/x:y\n"), Some("/user.slice/x:y"));
        assert_eq!(v2_path("4:memory:/a\n"), None);
        assert_eq!(v2_path("0::/a\r\n"), Some("/a\r"));
    }

    #[test]
    fn a_mount_that_shows_our_cgroup_is_found() {
        let folder = std::env::temp_dir().canonicalize().expect("a folder");
        let folder = folder.to_str().expect("a plain name").trim_end_matches('/');
        let mounts = |root: &str| {
            format!(
                "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n41 31 0:38 {root} {folder} rw shared:9 - cgroup2 cgroup2 rw\n"
            )
        };
        let find = |root: &str, path: &str| find_in(mounts(root).as_bytes(), path);
        assert_eq!(find("/", "/").as_deref(), Some(folder));
        assert_eq!(find("/docker/abc", "/docker/abc").as_deref(), Some(folder), "a bind mount of our own cgroup");
        assert_eq!(find("/docker/ab", "/docker/abc"), None, "a sibling with a shorter name");
        assert_eq!(find("/..", "/"), None, "a mount from outside of our cgroup namespace");
        assert_eq!(find("/", "/no-such-cgroup"), None);
    }

    #[test]
    fn a_blank_in_a_mount_point_is_understood() {
        assert_eq!(unescape(br"/mnt/a\040b\134c"), r"/mnt/a b\c");
    }
}
