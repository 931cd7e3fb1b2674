//! What a leaf has counted of its processes, Documentation/admin-guide/cgroup-v2. Read only for those who want to know.

use std::ffi::CStr;
use std::os::fd::OwnedFd;

use super::directory::read;

/// What the processes of a boundary have used, as far as it counts that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// CPU time in programs and in the kernel, in microseconds.
    pub cpu: Option<(u64, u64)>,
    /// The most memory at once, in bytes; from Linux 5.19 on.
    pub memory_peak: Option<u64>,
    /// The most processes and threads at once; from Linux 6.1 on.
    pub pids_peak: Option<u64>,
    /// Bytes read from and written to block devices.
    pub io: Option<(u64, u64)>,
}

impl Counters {
    /// Reads what there is; what is gone or was never counted stays as it was.
    pub(super) fn look(self, directory: &OwnedFd) -> Counters {
        let text = |name: &CStr| read(directory, name).ok();
        let number = |name: &CStr| text(name).and_then(|text| text.trim().parse().ok());
        Counters {
            cpu: text(c"cpu.stat").and_then(|text| cpu(&text)).or(self.cpu),
            memory_peak: number(c"memory.peak").or(self.memory_peak),
            pids_peak: number(c"pids.peak").or(self.pids_peak),
            io: text(c"io.stat").map(|text| io(&text)).or(self.io),
        }
    }
}

pub(super) fn cpu(text: &str) -> Option<(u64, u64)> {
    let value = |key| text.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok());
    Some((value("user_usec ")?, value("system_usec ")?))
}

/// The sum of all devices: `8:0 rbytes=1 wbytes=2 rios=3 ...` each.
pub(super) fn io(text: &str) -> (u64, u64) {
    let sum = |key| {
        let values = text.split_ascii_whitespace().filter_map(|word| word.strip_prefix(key)?.parse::<u64>().ok());
        values.fold(0, u64::saturating_add)
    };
    (sum("rbytes="), sum("wbytes="))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_as_the_kernel_writes_them() {
        assert_eq!(cpu("usage_usec 30\nuser_usec 20\nsystem_usec 10\nnr_periods 0\n"), Some((20, 10)));
        assert_eq!(cpu("nonsense"), None);
        let text = "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n8:16 rbytes=10 wbytes=20 rios=1 wios=1\n7:0\n";
        assert_eq!((io(text), io("")), ((11, 22), (0, 0)));
    }
}
