//! Fork storms. One that got loose would take the machine with it: besides its own bounds there is a fence, a PID
//! namespace that is killed at a deadline, in a cgroup of the v1 `pids` controller (root) or under a limit on an
//! ordinary user's processes.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, ExitCode};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use nix::libc::SIGTERM;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::machine::{Machine, command, find, line, span, spawn};
use crate::stops::born_in;
use crate::sys::{self, Board};
use crate::table::{Row, Value, median};

/// More than the processes of a storm at any time, and far less than a machine can bear.
const MOST_PROCESSES: u64 = 3000;

/// When the whole namespace is killed, and when the storm is over by itself.
const DEADLINE: Duration = Duration::from_secs(30);
const LONGEST_STORM: &str = "10";
const FORKS: &str = "20000";

/// The ordinary user that root makes one of.
const USER: &str = "1999";

/// What the first process of the namespace notes on the board, behind what the storm does.
const ORDER: usize = 10;
const END: usize = 11;
const FORKS_AT_KILL: usize = 12;
const FORKS_AT_END: usize = 13;
const LEFT: usize = 14;
const HAS_ENDED: usize = 15;

pub(crate) fn storms(machine: &Machine, rows: &mut Vec<Row>) {
    const CGROUP: &str = "storm of 400 chains, cgroup: order to empty";
    const AFTER: &str = "storm of 400 chains, cgroup: forks after SIGKILL";
    const SUBREAPER: &str = "storm of 100 chains, subreaper, ordinary user: to empty";
    let several = |backend: &str, chains: &str, user: bool| -> Result<(f64, f64), String> {
        let (mut times, mut forks) = (vec![], 0.0_f64);
        for _ in 0..machine.rounds(5) {
            let (time, after) = storm(machine, backend, chains, user)?;
            times.push(time);
            forks = forks.max(after);
        }
        Ok((median(&times), forks))
    };
    match several("cgroup", "400", false) {
        Ok((time, forks)) => {
            rows.push(Row::value(CGROUP, Value::Time(time)).gate(100e6, 50e6));
            rows.push(Row::value(AFTER, Value::Count(forks)).gate(0.0, 0.0));
        }
        Err(why) => rows.push(Row::not_measured(CGROUP, why)),
    }
    match several("subreaper", "100", true) {
        Ok((time, _)) => rows.push(Row::value(SUBREAPER, Value::Time(time)).gate(2e9, 0.5e9)),
        Err(why) => rows.push(Row::not_measured(SUBREAPER, why)),
    }
}

/// One storm in its fence: from the order to end it to the wrapper's exit, and how many were forked after SIGKILL.
#[expect(clippy::cast_precision_loss, reason = "a count of forks")]
fn storm(machine: &Machine, backend: &str, chains: &str, as_user: bool) -> Result<(f64, f64), String> {
    let is_root = rustix::process::geteuid().is_root();
    let board = Board::new();
    let ours = machine.ours.as_ref().map_err(String::clone)?;
    let mut words = vec![find("unshare")?];
    words.extend(["--pid", "--fork", "--kill-child", "--mount-proc"].map(str::to_owned));
    if !is_root {
        words.push("--map-root-user".to_owned());
    }
    if as_user && is_root {
        let (uid, gid) = (format!("--reuid={USER}"), format!("--regid={USER}"));
        words.extend(line(&find("setpriv")?, &[&uid, &gid, "--clear-groups", "--inh-caps=-all"], &[] as &[&str]));
    }
    words.extend([&machine.bench, "inside", &board.word(), ours, backend, chains].map(|word| word.to_string()));
    let fence = if is_root { Some(Fence::build()?) } else { None };
    let mut command = command(&words);
    if let Some(fence) = &fence {
        born_in(&mut command, &fence.0)?;
    }
    let mut child = command.spawn().map_err(|error| format!("unshare: {error}"))?;
    let status = end_by(&mut child, DEADLINE);
    drop(fence);
    if board.get(END) == 0 {
        return Err(format!("it was not over in {} s, or did not begin ({status})", DEADLINE.as_secs()));
    }
    if board.get(LEFT) > 0 || board.get(HAS_ENDED) != 137 + 1 {
        return Err(format!("the wrapper ended with {}, {} left", board.get(HAS_ENDED) - 1, board.get(LEFT)));
    }
    let forks = board.get(FORKS_AT_END) - board.get(FORKS_AT_KILL);
    Ok((span(board.get(ORDER), board.get(END)), forks as f64))
}

/// Waits for a child, and kills it at the deadline; its namespace dies with it.
fn end_by(child: &mut Child, deadline: Duration) -> String {
    let pid = rustix::process::Pid::from_child(child);
    if let Ok(pidfd) = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) {
        let deadline = Timespec::try_from(deadline).expect("it fits");
        let _ = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&deadline));
    }
    let _ = child.kill();
    child.wait().map_or_else(|error| error.to_string(), |status| status.to_string())
}

/// A cgroup of the v1 `pids` controller.
struct Fence(PathBuf);

impl Fence {
    fn build() -> Result<Fence, String> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(|error| error.to_string())?;
        let controller = mounts.lines().find_map(|line| {
            let (left, right) = line.split_once(" - ")?;
            let is_it = right.starts_with("cgroup ") && right.rsplit([' ', ',']).any(|word| word == "pids");
            is_it.then(|| left.split(' ').nth(4).map(PathBuf::from))?
        });
        let controller = controller.ok_or("there is no cgroup v1 pids controller to fence a storm of root's with")?;
        let cgroup = controller.join(format!("tk-bench-{}-storm", std::process::id()));
        fs::create_dir(&cgroup).map_err(|error| format!("cannot make a fence: {error}"))?;
        let fence = Fence(cgroup);
        let limited = fs::write(fence.0.join("pids.max"), MOST_PROCESSES.to_string());
        limited.map_err(|error| format!("cannot limit a fence: {error}"))?;
        Ok(fence)
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        for _ in 0..100 {
            // The namespace's last processes are just ending.
            if fs::remove_dir(&self.0).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The first process of the namespace: starts the wrapper around the storm, asks it twice to end it, and notes when.
pub(crate) fn inside(words: &[&str]) -> ExitCode {
    let [board, ours, backend, chains] = words else { return ExitCode::from(2) };
    let slots = sys::board(board);
    // It holds an ordinary user only; root is held by the cgroup.
    let most = Rlimit { current: Some(MOST_PROCESSES), maximum: Some(MOST_PROCESSES) };
    let _ = setrlimit(Resource::Nproc, most);
    let bench = std::env::current_exe().expect("/proc is mounted").to_string_lossy().into_owned();
    let storm = [&*bench, "as", "storm", board, chains, FORKS, LONGEST_STORM];
    let Ok(mut child) = spawn(&line(ours, &["-b", backend, "-k", "0"], &storm)) else { return ExitCode::FAILURE };
    if sys::wait_for(&slots[1], 1).is_err() {
        return ExitCode::FAILURE;
    }
    let kill = watch_kill(child.id());
    sys::signal(child.id(), SIGTERM);
    std::thread::sleep(Duration::from_millis(300));
    // A front that the storm has kept from the CPU would take both for one.
    while is_pending(child.id(), SIGTERM) {
        std::thread::sleep(Duration::from_millis(1));
    }
    slots[ORDER].store(sys::now(), SeqCst);
    sys::signal(child.id(), SIGTERM);
    if let Some(kill) = &kill {
        note_kill(kill, slots);
    }
    let status = child.wait().expect("it is our child");
    slots[END].store(sys::now(), SeqCst);
    slots[FORKS_AT_END].store(slots[0].load(SeqCst), SeqCst);
    if kill.is_none() {
        slots[FORKS_AT_KILL].store(slots[0].load(SeqCst), SeqCst);
    }
    let status = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(0);
    slots[HAS_ENDED].store(u64::try_from(status).expect("positive") + 1, SeqCst);
    slots[LEFT].store(processes().saturating_sub(1), SeqCst);
    ExitCode::SUCCESS
}

fn is_pending(pid: u32, signal: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
    mask.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask & 1 << (signal - 1) != 0))
}

/// Notices of writes to `cgroup.kill` of the leaf that the command lives in.
fn watch_kill(front: u32) -> Option<File> {
    let command = children(front).first().and_then(|keeper| children(*keeper).first().copied())?;
    let own = |pid: &str| {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        text.lines().find_map(|line| line.strip_prefix("0::").map(str::to_owned))
    };
    let leaf = own(&command.to_string())?;
    if leaf == own("self")? {
        return None;
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "))?.split(' ').nth(4)?;
    let watch = inotify::init(inotify::CreateFlags::CLOEXEC).ok()?;
    inotify::add_watch(&watch, format!("{mount}{leaf}/cgroup.kill"), inotify::WatchFlags::MODIFY).ok()?;
    Some(File::from(watch))
}

/// The kernel says that the write is done: from here on nothing of the storm may fork.
fn note_kill(kill: &File, slots: &[AtomicU64]) {
    let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
    let _ = poll(&mut [PollFd::new(kill, PollFlags::IN)], Some(&limit));
    slots[FORKS_AT_KILL].store(slots[0].load(SeqCst), SeqCst);
}

/// The children of a process with one thread.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

fn processes() -> u64 {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_process = |name: &std::ffi::OsStr| name.to_string_lossy().bytes().all(|byte| byte.is_ascii_digit());
    entries.filter(|entry| is_process(&entry.file_name())).count().try_into().unwrap_or(u64::MAX)
}
