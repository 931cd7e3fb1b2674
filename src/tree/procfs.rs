//! Reading /proc: who a process is and who its children are. Nothing of it is ever believed without a pidfd that was
//! opened first, or without its being our own child.

mod text;

use std::fs::{self, File};
use std::io;

use rustix::process::{Pid, geteuid};

use super::calls;
use crate::sys;
use crate::voice::{Why, in_words};

use text::pid_of;
pub use text::{Stat, state_word};
pub(super) use text::{
    TICKS, hides_processes, io_in, is_terminal, parse_stat, read_numbers, split_arguments, to_ticks, tracer_in,
};

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

/// How much a process has read and written, in calls and bytes taken together, proc_pid_io(5); `None` where that is not
/// ours to read.
pub fn io(pid: Pid) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{}/io", pid.as_raw_pid())).ok()?;
    Some(io_in(&text))
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

/// Whether the children of this process are born in another PID namespace than its own, unshare(2). Until the first is born
/// the link leads nowhere; kernels before 4.12 have none.
fn forks_into_another_namespace() -> bool {
    const FOR_CHILDREN: &str = "/proc/self/ns/pid_for_children";
    match (fs::read_link("/proc/self/ns/pid"), fs::read_link(FOR_CHILDREN)) {
        (Ok(own), Ok(childrens)) => own != childrens,
        _ => fs::symlink_metadata(FOR_CHILDREN).is_ok(),
    }
}

/// Whether /proc shows the processes of our own PID namespace, and all of them.
///
/// # Errors
/// What is wrong with it.
pub fn check_trustworthy() -> Result<(), Why> {
    check_namespace()?;
    if forks_into_another_namespace() {
        return Err(Why::new(
            "what this process starts is in another PID namespace",
            "begin that with a fork (unshare --fork)",
        ));
    }
    let mounts = read_text("/proc/self/mountinfo")
        .map_err(|error| format!("cannot read /proc/self/mountinfo: {}", in_words(&error)))?;
    if hides_processes(&mounts) && !geteuid().is_root() {
        return Err(Why::new("/proc hides other users' processes (hidepid)", "mount it without"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_no_text_hides_nothing_else_of_a_process() {
        rustix::thread::set_name(c"(\xff\n)").expect("any bytes do");
        let status = read_text("/proc/thread-self/status").expect("readable");
        assert!(status.contains("TracerPid:\t") && !status.contains("\n)"), "{status}");
        let stat = parse_stat(&fs::read("/proc/thread-self/stat").expect("readable")).expect("a status line");
        assert_eq!(stat.comm, "(\u{fffd}\n)");
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
}
