//! Reading /proc: who a process is and who its children are. Nothing of it is ever believed without a pidfd that was
//! opened first, or without its being our own child.

use std::fs::{self, File};
use std::io::{self, Read};
use std::time::Duration;

use rustix::process::{Pid, geteuid};

use super::calls;
use crate::signals::SigSet;
use crate::sys;
use crate::voice::{Why, in_words};

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
pub(super) const TICKS: u64 = 100;

/// A time in clock ticks, as /proc gives it.
pub(super) fn to_ticks(time: Duration) -> u64 {
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

/// Reads a process's status line; `None` if it is gone or hidden.
pub fn stat(pid: Pid) -> Option<Stat> {
    try_stat(pid).ok().flatten()
}

/// The same for those to whom a process that they fail to see is not nobody.
///
/// # Errors
/// The want of descriptors or memory.
pub fn try_stat(pid: Pid) -> io::Result<Option<Stat>> {
    match fs::read(format!("/proc/{}/stat", pid.as_raw_pid())) {
        Ok(line) => Ok(parse_stat(&line)),
        Err(error) if sys::is_shortage(&error) => Err(error),
        Err(_) => Ok(None),
    }
}

/// The name is anything between the first `(` and the last `)`.
pub(super) fn parse_stat(line: &[u8]) -> Option<Stat> {
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
fn pid_of(number: impl TryInto<i32>) -> Option<Pid> {
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

/// The number that the kernel gave last in our PID namespace, proc_sys_kernel(5); `None` where it does not say that.
pub fn last_pid() -> Option<i32> {
    std::str::from_utf8(&fs::read("/proc/sys/kernel/ns_last_pid").ok()?).ok()?.trim().parse().ok()
}

/// The arguments of a process, bytes that are no UTF-8 replaced; empty if it is gone, hidden, or overwrote them, and if
/// reading them might take for ever.
pub fn arguments(pid: Pid, stat: &Stat) -> Vec<String> {
    if may_hold_its_memory(pid, stat) {
        return vec![];
    }
    split_arguments(&fs::read(format!("/proc/{}/cmdline", pid.as_raw_pid())).unwrap_or_default())
}

/// The words of /proc/PID/cmdline.
pub(super) fn split_arguments(bytes: &[u8]) -> Vec<String> {
    let bytes = bytes.strip_suffix(&[0]).unwrap_or(bytes);
    if bytes.is_empty() {
        return vec![];
    }
    bytes.split(|&byte| byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// How much a process has read and written, in calls and bytes taken together, proc_pid_io(5); `None` where that is not
/// ours to read.
pub fn io(pid: Pid) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{}/io", pid.as_raw_pid())).ok()?;
    Some(io_in(&text))
}

pub(super) fn io_in(text: &str) -> u64 {
    let counters = text.lines().filter_map(|line| line.split_once(": ")?.1.parse::<u64>().ok());
    counters.fold(0, u64::wrapping_add)
}

/// How many threads are asked what they wait for: a look at thousands would take as long as it is to save.
const ASKED_THREADS: usize = 64;

/// Whether a thread may wait, out of any signal's reach, while it holds the lock of the process's memory. Its arguments
/// lie there, and who reads them would wait with it.
pub(super) fn may_hold_its_memory(pid: Pid, stat: &Stat) -> bool {
    let is_stuck = |directory: &str, state: char| {
        // Between system calls it waits for a page; in one, those that map memory are the ones to be afraid of.
        state == 'D'
            && fs::read_to_string(format!("{directory}/syscall")).map_or(true, |text| calls::maps_memory(&text))
    };
    let directory = format!("/proc/{}", pid.as_raw_pid());
    if stat.threads <= 1 {
        return is_stuck(&directory, stat.state);
    }
    let Ok(tasks) = fs::read_dir(format!("{directory}/task")) else { return true };
    tasks.flatten().take(ASKED_THREADS).any(|task| {
        let task = task.path().to_string_lossy().into_owned();
        let state = fs::read(format!("{task}/stat")).ok().and_then(|line| parse_stat(&line)).map(|stat| stat.state);
        is_stuck(&task, state.unwrap_or('X'))
    })
}

/// Reads a file that names what others have named: a process, a cgroup, a mount point. Those are any bytes.
fn read_text(path: &str) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
}

/// The v2 cgroup of a process.
pub fn cgroup(pid: Pid) -> Option<String> {
    let text = read_text(&format!("/proc/{}/cgroup", pid.as_raw_pid())).ok()?;
    text.split('\n').find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

/// The process that traces this one, which can hold up even SIGKILL's effect.
pub fn tracer(pid: Pid) -> Option<Pid> {
    let text = read_text(&format!("/proc/{}/status", pid.as_raw_pid())).ok()?;
    tracer_in(&text)
}

pub(super) fn tracer_in(status: &str) -> Option<Pid> {
    let value = status.lines().find_map(|line| line.strip_prefix("TracerPid:"))?;
    pid_of(value.trim().parse::<i32>().ok()?)
}

/// Calls `visit` with each child of a process as it is read, so that it can be acted on before more is read: a fork
/// storm outruns whoever reads first and acts later. Misses some while the process forks.
///
/// # Errors
/// Those of reading /proc; NotFound for a process that is gone.
pub fn for_each_child(pid: Pid, visit: &mut dyn FnMut(Pid)) -> io::Result<()> {
    let tasks = format!("/proc/{}/task", pid.as_raw_pid());
    for task in fs::read_dir(&tasks)? {
        let path = task?.path().join("children");
        match File::open(&path) {
            Ok(file) => read_numbers(file, visit)?,
            // A thread that ended, or a kernel without CONFIG_PROC_CHILDREN.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if !std::path::Path::new("/proc/thread-self/children").exists() {
                    return for_each_child_by_walk(pid, visit);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The same by a walk over all processes.
fn for_each_child_by_walk(parent: Pid, visit: &mut dyn FnMut(Pid)) -> io::Result<()> {
    for_each_process(&mut |pid, stat| {
        if stat.parent == Some(parent) {
            visit(pid);
        }
    })
}

/// Calls `visit` with each process that can be seen.
///
/// # Errors
/// Those of reading /proc.
pub fn for_each_process(visit: &mut dyn FnMut(Pid, Stat)) -> io::Result<()> {
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let pid = name.to_str().and_then(|name| name.parse::<i32>().ok()).and_then(pid_of);
        if let Some((pid, stat)) = pid.and_then(|pid| Some((pid, stat(pid)?))) {
            visit(pid, stat);
        }
    }
    Ok(())
}

/// Whether a process can read its terminal: it is its stdin, or it has opened it by its name for everybody, tty(4). One
/// whose descriptors may not be seen can.
pub fn may_read_terminal(pid: Pid) -> bool {
    let Ok(entries) = fs::read_dir(format!("/proc/{}/fd", pid.as_raw_pid())) else { return true };
    entries.flatten().any(|entry| {
        let target = fs::read_link(entry.path()).unwrap_or_default();
        let target = target.to_string_lossy();
        target == "/dev/tty" || (entry.file_name() == "0" && is_terminal(&target))
    })
}

/// Whether a descriptor that shows as this is a terminal.
pub(super) fn is_terminal(target: &str) -> bool {
    target.starts_with("/dev/pts/") || target.starts_with("/dev/tty")
}

/// Visits the blank-separated pids of a file piece by piece.
pub(super) fn read_numbers(mut file: impl Read, visit: &mut dyn FnMut(Pid)) -> io::Result<()> {
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

/// Whether the numbers in /proc are pids of our own PID namespace.
///
/// # Errors
/// Those of readlink(2) on a /proc that is there.
pub fn shows_our_namespace() -> io::Result<bool> {
    match fs::read_link("/proc/self") {
        Ok(shown) => Ok(shown.to_str() == Some(&sys::own_pid().as_raw_pid().to_string())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether /proc shows the processes of our own PID namespace.
///
/// # Errors
/// What is wrong with it.
pub fn check_namespace() -> Result<(), Why> {
    if shows_our_namespace().map_err(|error| format!("cannot read /proc/self: {}", in_words(&error)))? {
        return Ok(());
    }
    let help = "mount one for this namespace (unshare --mount-proc)";
    Err(Why::new("/proc is not there or shows another PID namespace", help))
}

/// Whether /proc shows the processes of our own PID namespace, and all of them.
///
/// # Errors
/// What is wrong with it.
pub fn check_trustworthy() -> Result<(), Why> {
    check_namespace()?;
    let mounts = read_text("/proc/self/mountinfo")
        .map_err(|error| format!("cannot read /proc/self/mountinfo: {}", in_words(&error)))?;
    if hides_processes(&mounts) && !geteuid().is_root() {
        return Err(Why::new("/proc hides other users' processes (hidepid)", "mount it without"));
    }
    Ok(())
}

/// Whether the mount on /proc has hidepid, proc(5); the last one listed is the one that is seen.
pub(super) fn hides_processes(mountinfo: &str) -> bool {
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
    fn a_name_that_is_no_text_hides_nothing_else_of_a_process() {
        rustix::thread::set_name(c"(\xff\n)").expect("any bytes do");
        let status = read_text("/proc/thread-self/status").expect("readable");
        assert!(status.contains("TracerPid:\t") && !status.contains("\n)"), "{status}");
        let stat = parse_stat(&fs::read("/proc/thread-self/stat").expect("readable")).expect("a status line");
        assert_eq!(stat.comm, "(\u{fffd}\n)");
    }

    #[test]
    fn a_zombie_leader_with_threads_is_alive() {
        let line = |threads| format!("42 (x) Z 7 6 5 0 -1 0 1 2 3 4 5 6 7 8 20 0 {threads} 0 99 1 2");
        let is_dead = |threads| parse_stat(line(threads).as_bytes()).expect("a status line").is_dead();
        assert!(is_dead(1));
        assert!(!is_dead(2));
    }

    #[test]
    fn we_are_our_parents_child() {
        let (me, parent) = (sys::own_pid(), rustix::process::getppid().expect("a parent"));
        assert_eq!(stat(me).and_then(|stat| stat.parent), Some(parent));
        for find in [for_each_child, for_each_child_by_walk] {
            let mut children = vec![];
            find(parent, &mut |pid| children.push(pid)).expect("readable");
            assert!(children.contains(&me), "{children:?}");
        }
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
}
