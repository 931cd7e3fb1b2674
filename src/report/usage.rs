//! What the whole tree has used, and who counted it.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;
use serde::Serialize;

use super::amount;
use crate::boundary::Counters;

/// What the tree has used; null where the kernel did not count it.
#[derive(Clone, Debug, Serialize)]
pub struct Usage {
    /// CPU time.
    pub cpu: Option<Cpu>,
    /// The most memory at once.
    pub memory_peak: Option<MemoryPeak>,
    /// The most processes at once.
    pub processes_peak: Option<ProcessesPeak>,
    /// What was read from and written to disks.
    pub io: Option<Io>,
}

/// Who counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// The cgroup: everything that ever was in it.
    Cgroup,
    /// getrusage(2) of the keeper: everything that was reaped, by it or by others below it.
    Rusage,
}

/// CPU time in milliseconds.
#[derive(Clone, Debug, Serialize)]
pub struct Cpu {
    /// In programs.
    pub user_ms: u64,
    /// In the kernel.
    pub system_ms: u64,
    /// Who counted.
    pub source: Source,
}

/// Memory in bytes.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryPeak {
    /// Of the whole tree if a cgroup counted, else of the biggest process.
    pub bytes: u64,
    /// Who counted.
    pub source: Source,
}

/// Processes and threads.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessesPeak {
    /// How many there were.
    pub count: u64,
    /// Who counted.
    pub source: Source,
}

/// Bytes from and to disks; what the page cache had is not counted.
#[derive(Clone, Debug, Serialize)]
pub struct Io {
    /// Read.
    pub read_bytes: u64,
    /// Written.
    pub written_bytes: u64,
    /// Who counted.
    pub source: Source,
}

/// The block that getrusage(2) counts in.
const BLOCK: u64 = 512;

impl Usage {
    /// What the boundary has counted, and for the rest what was reaped by now.
    pub fn gather(counted: &Counters) -> Usage {
        let reaped = getrusage(UsageWho::RUSAGE_CHILDREN).ok();
        let number = |value: i64| u64::try_from(value).unwrap_or_default();
        let source = Source::Cgroup;
        let cpu = counted.cpu.map(|(user, system)| Cpu { user_ms: user / 1000, system_ms: system / 1000, source });
        let memory_peak = counted.memory_peak.map(|bytes| MemoryPeak { bytes, source });
        let processes_peak = counted.pids_peak.map(|count| ProcessesPeak { count, source });
        let io = counted.io.map(|(read_bytes, written_bytes)| Io { read_bytes, written_bytes, source });
        let source = Source::Rusage;
        Usage {
            cpu: cpu.or(reaped.map(|usage| Cpu {
                user_ms: number(usage.user_time().num_milliseconds()),
                system_ms: number(usage.system_time().num_milliseconds()),
                source,
            })),
            memory_peak: memory_peak
                .or(reaped.map(|usage| MemoryPeak { bytes: number(usage.max_rss()) * 1024, source })),
            processes_peak,
            io: io.or(reaped.map(|usage| Io {
                read_bytes: number(usage.block_reads()) * BLOCK,
                written_bytes: number(usage.block_writes()) * BLOCK,
                source,
            })),
        }
    }

    /// `CPU 0.85s user 0.10s system, 64M peak, 12 processes at most`.
    pub fn in_words(&self) -> String {
        let hundredths = |milliseconds: u64| format!("{}.{:02}s", milliseconds / 1000, milliseconds % 1000 / 10);
        let mut parts = vec![];
        if let Some(cpu) = &self.cpu {
            parts.push(format!("CPU {} user {} system", hundredths(cpu.user_ms), hundredths(cpu.system_ms)));
        }
        if let Some(peak) = &self.memory_peak {
            let whose = if peak.source == Source::Cgroup { "" } else { " in the biggest process" };
            parts.push(format!("{} peak{whose}", amount(peak.bytes)));
        }
        if let Some(peak) = &self.processes_peak {
            let what = if peak.count == 1 { "process" } else { "processes" };
            parts.push(format!("{} {what} at most", peak.count));
        }
        if let Some(io) = self.io.as_ref().filter(|io| io.read_bytes > 0 || io.written_bytes > 0) {
            parts.push(format!("{} read {} written", amount(io.read_bytes), amount(io.written_bytes)));
        }
        parts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_said_in_one_line() {
        let source = Source::Cgroup;
        let whole = Usage {
            cpu: Some(Cpu { user_ms: 850, system_ms: 12_104, source }),
            memory_peak: Some(MemoryPeak { bytes: 64 << 20, source }),
            processes_peak: Some(ProcessesPeak { count: 12, source }),
            io: Some(Io { read_bytes: 0, written_bytes: 1_300_000, source }),
        };
        assert_eq!(
            whole.in_words(),
            "CPU 0.85s user 12.10s system, 64M peak, 12 processes at most, 0 bytes read 1.2M written"
        );
        let peak = MemoryPeak { bytes: 1536, source: Source::Rusage };
        let little = Usage { cpu: None, memory_peak: Some(peak), processes_peak: None, io: None };
        assert_eq!(little.in_words(), "1.5K peak in the biggest process");
    }
}
