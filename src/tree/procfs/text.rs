//! The texts of /proc as the kernel writes them, read as whatever they are: none of them is trusted to be well-formed.

use std::io::{self, Read};
use std::time::Duration;

use rustix::process::Pid;

use crate::signals::SigSet;
use crate::sys;

/// What /proc/PID/stat says of a process, proc_pid_stat(5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The name of its program, at most 15 bytes, whatever they are.
    pub comm: String,
    /// Its state letter.
    pub state: char,
    /// Its parent; `None` for one outside our PID namespace.
    pub parent: Option<Pid>,
    /// Its process group.
    pub group: i32,
    /// Page faults of the children that it has waited for.
    pub child_faults: u64,
    /// How many threads it has.
    pub threads: u32,
    /// CPU time that its threads have used, in clock ticks.
    pub cpu: u64,
    /// When it started, in clock ticks since boot.
    pub start: u64,
    /// Memory that it has in RAM, in pages.
    pub resident: u64,
    /// The signals that its first thread blocks, as far as they are no real-time ones.
    pub blocked: SigSet,
    /// The signals that it ignores, as far as they are no real-time ones.
    pub ignored: SigSet,
    /// Those that it has a handler for, as far.
    pub caught: SigSet,
}

/// Clock ticks a second as /proc counts them: USER_HZ, which is 100 on every architecture of Linux.
pub(in crate::tree) const TICKS: u64 = 100;

/// A time in clock ticks, as /proc gives it.
pub(in crate::tree) fn to_ticks(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX) / (1000 / TICKS)
}

/// A time that /proc gives in clock ticks.
fn from_ticks(ticks: u64) -> Duration {
    Duration::from_millis(ticks.saturating_mul(1000 / TICKS))
}

impl Stat {
    /// Whether nothing of it runs any more. The first thread may be a zombie while others work.
    pub fn is_dead(&self) -> bool {
        self.state == 'X' || (self.state == 'Z' && self.threads <= 1)
    }

    /// How long ago it was started.
    pub fn age(&self) -> Duration {
        sys::since_boot().saturating_sub(from_ticks(self.start))
    }

    /// CPU time that it has used.
    pub fn cpu_time(&self) -> Duration {
        from_ticks(self.cpu)
    }

    /// Memory that it has in RAM, in bytes.
    pub fn memory(&self) -> u64 {
        self.resident.saturating_mul(rustix::param::page_size() as u64)
    }
}

/// The name is anything between the first `(` and the last `)`.
pub(in crate::tree) fn parse_stat(line: &[u8]) -> Option<Stat> {
    let open = line.iter().position(|&byte| byte == b'(')?;
    let close = line.iter().rposition(|&byte| byte == b')')?;
    let comm = String::from_utf8_lossy(line.get(open + 1..close)?).into_owned();
    let rest = std::str::from_utf8(line.get(close + 2..)?).ok()?;
    // The first of these is field 3 of the page.
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).copied();
    let number = |number: usize| field(number)?.parse::<u64>().ok();
    Some(Stat {
        comm,
        state: field(3)?.chars().next()?,
        parent: pid_of(field(4)?.parse::<i32>().ok()?),
        group: field(5)?.parse().ok()?,
        child_faults: number(11)?.saturating_add(number(13)?),
        threads: field(20)?.parse().ok()?,
        cpu: number(14)?.saturating_add(number(15)?),
        start: field(22)?.parse().ok()?,
        resident: number(24).unwrap_or_default(),
        blocked: SigSet(number(32).unwrap_or_default()),
        ignored: SigSet(number(33).unwrap_or_default()),
        caught: SigSet(number(34).unwrap_or_default()),
    })
}

/// 0 is who is outside of our PID namespace, and what no process can have is nobody.
pub(in crate::tree) fn pid_of(number: impl TryInto<i32>) -> Option<Pid> {
    number.try_into().ok().filter(|number| *number > 0).and_then(Pid::from_raw)
}

/// The states of proc_pid_stat(5) in words.
pub fn state_word(state: Option<char>) -> &'static str {
    match state {
        Some('R') => "running",
        Some('S') => "sleeping",
        Some('D') => "uninterruptible",
        Some('Z') => "zombie",
        Some('T') => "stopped",
        Some('t') => "traced",
        Some('I') => "idle",
        Some('X') => "dead",
        _ => "unknown",
    }
}

/// The words of /proc/PID/cmdline.
pub(in crate::tree) fn split_arguments(bytes: &[u8]) -> Vec<String> {
    let mut bytes = bytes.strip_suffix(&[0]).unwrap_or(bytes);
    // An empty last word may be an argument. More of them are what a title left of the arguments that it was written over.
    if bytes.ends_with(&[0, 0]) {
        let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        bytes = &bytes[..end];
    }
    if bytes.is_empty() {
        return vec![];
    }
    bytes.split(|&byte| byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

pub(in crate::tree) fn io_in(text: &str) -> u64 {
    let counters = text.lines().filter_map(|line| line.split_once(": ")?.1.parse::<u64>().ok());
    counters.fold(0, u64::wrapping_add)
}

pub(in crate::tree) fn tracer_in(status: &str) -> Option<Pid> {
    let value = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?;
    pid_of(value.trim().parse::<i32>().ok()?)
}

/// Whether a descriptor that shows as this is a terminal.
pub(in crate::tree) fn is_terminal(target: &str) -> bool {
    target.starts_with("/dev/pts/") || target.starts_with("/dev/tty")
}

/// Visits the blank-separated pids of a file piece by piece.
pub(in crate::tree) fn read_numbers(mut file: impl Read, visit: &mut dyn FnMut(Pid)) -> io::Result<()> {
    let mut piece = [0; 4096];
    let mut number = 0_u64;
    loop {
        let length = match file.read(&mut piece) {
            Ok(0) => break,
            Ok(length) => length,
            // The thread ended while its file was read.
            Err(error) if error.raw_os_error() == Some(nix::libc::ESRCH) => break,
            Err(error) => return Err(error),
        };
        for byte in &piece[..length] {
            if byte.is_ascii_digit() {
                number = number.saturating_mul(10).saturating_add(u64::from(byte - b'0'));
            } else if let Some(pid) = pid_of(std::mem::take(&mut number)) {
                visit(pid);
            }
        }
    }
    if let Some(pid) = pid_of(number) {
        visit(pid);
    }
    Ok(())
}

/// Whether the mount on /proc has hidepid, proc(5); the last one listed is the one that is seen.
pub(in crate::tree) fn hides_processes(mountinfo: &str) -> bool {
    let on_proc = mountinfo.lines().rfind(|line| line.split(' ').nth(4) == Some("/proc"));
    let options = on_proc.and_then(|line| line.rsplit(' ').next()).unwrap_or_default();
    let value = options.split(',').find_map(|option| option.strip_prefix("hidepid="));
    value.is_some_and(|value| !matches!(value, "0" | "off"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_anything() {
        let line = b"42 (a) b\n(c) S) R 7 6 5 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 3 0 99 1 2\n";
        let stat = parse_stat(line).expect("a status line");
        assert_eq!(stat.comm, "a) b\n(c) S");
        assert_eq!((stat.state, stat.parent, stat.group, stat.threads, stat.start), ('R', Pid::from_raw(7), 6, 3, 99));
    }

    #[test]
    fn a_zombie_leader_with_threads_is_alive() {
        let line = |threads| format!("42 (x) Z 7 6 5 0 -1 0 1 2 3 4 5 6 7 8 20 0 {threads} 0 99 1 2");
        let is_dead = |threads| parse_stat(line(threads).as_bytes()).expect("a status line").is_dead();
        assert!(is_dead(1));
        assert!(!is_dead(2));
    }

    #[test]
    fn numbers_are_read_across_pieces() {
        let pids: Vec<i32> = (1..3000).collect();
        let text = pids.iter().map(|pid| format!("{pid} ")).collect::<String>();
        let mut seen = vec![];
        read_numbers(text.as_bytes(), &mut |pid| seen.push(pid.as_raw_pid())).expect("readable");
        assert_eq!(seen, pids);
    }

    #[test]
    fn hidepid_is_seen_in_the_mount_that_covers_others() {
        let open = "22 1 0:20 / /proc rw,nosuid shared:12 - proc proc rw";
        let hiding = "99 1 0:21 / /proc rw - proc proc rw,hidepid=invisible";
        assert!(!hides_processes(open));
        assert!(hides_processes(&format!("{open}\n{hiding}\n")));
        assert!(!hides_processes(&format!("{hiding}\n{open}\n")));
        assert!(!hides_processes("9 1 0:1 / /proc rw - proc proc rw,hidepid=0"));
    }

    #[test]
    fn what_no_process_can_have_is_no_pid() {
        assert_eq!(parse_stat(b"42 (x) R -1 6 5 0 -1 0 1 2 3 4 5 6 7 8 20 0 1 0 9").and_then(|stat| stat.parent), None);
        assert_eq!(tracer_in("TracerPid:\t-1\n"), None);
        let mut seen = vec![];
        read_numbers(&b"0 7 2147483648 -1"[..], &mut |pid| seen.push(pid.as_raw_pid())).expect("readable");
        assert_eq!(seen, [7, 1]);
    }

    /// As this program's own keeper writes its name over them, and sshd and postgres a title.
    #[test]
    fn arguments_that_were_overwritten_are_not_drawn() {
        assert_eq!(split_arguments(b"treekill-keeper\0\0\0\0\0"), ["treekill-keeper"]);
        assert_eq!(split_arguments(b"\0\0\0\0"), [""; 0]);
        assert_eq!(split_arguments(b"sh\0-c\0\0"), ["sh", "-c", ""]);
    }
}
