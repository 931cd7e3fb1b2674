//! What a traced system call is about, read from its process while that stands before it.

use std::fs;
use std::os::unix::fs::FileExt as _;

use nix::libc;

/// A system call and the process that makes it.
pub(crate) struct View {
    pub(crate) pid: i32,
    pub(crate) number: i64,
    pub(crate) args: [u64; 6],
}

/// A descriptor that is waited for: its number and where it leads.
type Waited = (i32, String);

impl View {
    fn is_one_of(&self, numbers: &[libc::c_long]) -> bool {
        numbers.contains(&self.number)
    }

    pub(crate) fn about(&self) -> String {
        if let Some(path) = self.opened() {
            return path;
        }
        if let Some(waited) = self.waited() {
            return waited.into_iter().map(|(_, target)| target).collect::<Vec<_>>().join(" ");
        }
        if self.is_one_of(&[libc::SYS_read, libc::SYS_write, libc::SYS_pread64, libc::SYS_close]) {
            return self.link(self.args[0]);
        }
        String::new()
    }

    /// What a normal run should have none of.
    pub(crate) fn fault(&self) -> Option<&'static str> {
        let is_write = self.is_one_of(&[libc::SYS_write, libc::SYS_pwrite64, libc::SYS_writev]);
        if is_write && ["/cgroup.procs", "/cgroup.threads"].iter().any(|end| self.link(self.args[0]).ends_with(end)) {
            return Some("writes to cgroup.procs");
        }
        if self.is_one_of(&[libc::SYS_nanosleep, libc::SYS_clock_nanosleep]) {
            return Some("sleeps");
        }
        if let Some(waited) = self.waited().filter(|_| self.may_block()) {
            if waited.is_empty() {
                return Some("sleeps");
            }
            if waited.iter().any(|(_, target)| target.ends_with("/cgroup.events")) {
                return Some("waits for cgroup.events");
            }
        }
        let path = self.opened()?;
        let rest = path.strip_prefix("/proc/")?;
        let process: i32 = rest.split('/').next()?.parse().ok()?;
        (process != self.pid).then_some("reads of other processes' /proc")
    }

    /// The path of a call that opens or looks at a file, with the directory that it is relative to.
    fn opened(&self) -> Option<String> {
        let (directory, path) = match self.number {
            libc::SYS_openat | libc::SYS_newfstatat | libc::SYS_unlinkat | libc::SYS_mkdirat => {
                (Some(self.args[0]), self.args[1])
            }
            libc::SYS_faccessat | libc::SYS_faccessat2 | libc::SYS_readlinkat | libc::SYS_openat2 => {
                (Some(self.args[0]), self.args[1])
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_open | libc::SYS_stat | libc::SYS_access | libc::SYS_readlink | libc::SYS_mkdir => {
                (None, self.args[0])
            }
            libc::SYS_statfs | libc::SYS_execve => (None, self.args[0]),
            _ => return None,
        };
        let path = self.string(path)?;
        let directory = directory.map(|fd| self.link(fd)).filter(|_| !path.starts_with('/'));
        Some(match directory {
            Some(directory) if !directory.is_empty() => format!("{directory}/{path}"),
            _ => path,
        })
    }

    /// What a call waits for; `None` if it does not wait for descriptors.
    fn waited(&self) -> Option<Vec<Waited>> {
        let is_poll = match self.number {
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => true,
            libc::SYS_ppoll => true,
            _ => false,
        };
        if !is_poll {
            return None;
        }
        let count = usize::try_from(self.args[1]).ok()?;
        let bytes = self.bytes(self.args[0], count.min(64) * 8);
        let fds = bytes.chunks_exact(8).filter_map(|entry| entry[..4].try_into().ok().map(i32::from_ne_bytes));
        Some(fds.filter(|fd| *fd >= 0).map(|fd| (fd, self.link(fd.unsigned_abs().into()))).collect())
    }

    /// Whether a poll has time to wait.
    fn may_block(&self) -> bool {
        #[cfg(target_arch = "x86_64")]
        if self.number == libc::SYS_poll {
            return self.args[2] != 0;
        }
        self.args[2] == 0 || self.bytes(self.args[2], 16).iter().any(|byte| *byte != 0)
    }

    /// Where a descriptor leads.
    #[expect(clippy::cast_possible_truncation, reason = "a descriptor is an int in the low half of the register")]
    fn link(&self, fd: u64) -> String {
        let fd = fd as i32;
        let link = if fd == libc::AT_FDCWD {
            format!("/proc/{}/cwd", self.pid)
        } else {
            format!("/proc/{}/fd/{fd}", self.pid)
        };
        fs::read_link(link).map(|path| path.to_string_lossy().into_owned()).unwrap_or_default()
    }

    fn bytes(&self, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let read = fs::File::open(format!("/proc/{}/mem", self.pid)).and_then(|memory| memory.read_at(&mut bytes, at));
        bytes.truncate(read.unwrap_or(0));
        bytes
    }

    fn string(&self, at: u64) -> Option<String> {
        // Not across the end of a mapping.
        let bytes = self.bytes(at, 512);
        let end = bytes.iter().position(|byte| *byte == 0)?;
        Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }
}
