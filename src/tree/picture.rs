//! A picture of the tree: what each process was doing at one moment. The keeper takes it between the listing of a stop and
//! the first signal, so it ends at a deadline, reads nothing that could make it wait, and changes nothing.

pub(super) mod sockets;

use std::collections::{BTreeMap, VecDeque};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, RawDir, openat, readlinkat};
use rustix::process::Pid;
use serde::Serialize;

use super::{Net, Process, calls, procfs};
use crate::sys;
use sockets::Listening;

/// The tree at one moment.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Picture {
    /// The processes, each behind its parent, siblings in the order of the listing.
    pub processes: Vec<Seen>,
    /// How many more there were than could be looked at in time.
    pub left_out: usize,
}

/// What one process was doing.
#[derive(Clone, Debug, Serialize)]
pub struct Seen {
    /// How many ancestors of it are in the picture.
    pub depth: usize,
    /// Its pid.
    pub pid: i32,
    /// Its parent's pid; null where it can't be seen.
    pub ppid: Option<i32>,
    /// The name of its program.
    pub comm: String,
    /// Its arguments.
    pub argv: Vec<String>,
    /// Its state as a word.
    pub state: &'static str,
    /// Time since its start, in milliseconds.
    pub age_ms: Option<u64>,
    /// CPU time that it has used, in milliseconds.
    pub cpu_ms: Option<u64>,
    /// Memory that it has in RAM, in bytes.
    pub memory: Option<u64>,
    /// How many threads it has.
    pub threads: Option<u32>,
    /// Where in the kernel it waits, if the system call is not known or can't be interrupted.
    pub wait_channel: Option<String>,
    /// The system call that it is blocked in.
    pub system_call: Option<&'static str>,
    /// What that reads, writes or waits on: a path, `pipe:[INODE]`, `socket:[INODE]`.
    pub waits_on: Option<String>,
    /// Its working directory.
    pub cwd: Option<String>,
    /// The terminal that is its stdin.
    pub terminal: Option<String>,
    /// Those of the caller's `stdout` and `stderr` that are pipes or sockets and that it holds open: whoever reads them
    /// to their end waits for it.
    pub holds: Vec<&'static str>,
    /// The addresses that it listens on, `tcp ADDRESS:PORT` or `unix PATH`.
    pub listens: Vec<String>,
    /// What held it.
    pub held_by: Net,
}

impl Seen {
    /// A process that /proc says nothing of.
    pub(crate) fn hidden(pid: i32, held_by: Net) -> Seen {
        Seen {
            depth: 0,
            pid,
            ppid: None,
            comm: "?".into(),
            argv: vec![],
            state: procfs::state_word(None),
            age_ms: None,
            cpu_ms: None,
            memory: None,
            threads: None,
            wait_channel: None,
            system_call: None,
            waits_on: None,
            cwd: None,
            terminal: None,
            holds: vec![],
            listens: vec![],
            held_by,
        }
    }
}

/// How much of a file is read: a command line may be megabytes.
const MOST_BYTES: usize = 256 << 10;

/// How many descriptors of a process are looked at.
const MOST_DESCRIPTORS: usize = 256;

/// How many are looked at in any case: work of a millisecond, however little of the CPUs others leave us.
const AT_LEAST: usize = 16;

impl Picture {
    /// Looks at the processes of a listing, parents first, until this moment.
    pub fn take(list: &[Process], until: Duration) -> Picture {
        let family = Family::of(list);
        let caller = Caller::look();
        let mut seen: BTreeMap<usize, Seen> = BTreeMap::new();
        let mut sockets = BTreeMap::new();
        let mut left_out = list.len();
        let order = family.top_down().into_iter().enumerate();
        for (_, index) in order.take_while(|(rank, _)| *rank < AT_LEAST || sys::now() < until) {
            left_out -= 1;
            // One that has ended since is nobody to be seen.
            let Some((process, inodes)) = look(&list[index], &caller) else { continue };
            seen.insert(index, process);
            if !inodes.is_empty() {
                sockets.insert(index, inodes);
            }
        }
        let mut listening = Listening::default();
        for (index, inodes) in sockets {
            if let Some(process) = seen.get_mut(&index) {
                process.listens = listening.of(process.pid, &inodes, until);
            }
        }
        Picture { processes: family.in_order(seen), left_out }
    }
}

/// Who is whose child in a listing.
struct Family {
    roots: Vec<usize>,
    children: Vec<Vec<usize>>,
}

impl Family {
    fn of(list: &[Process]) -> Family {
        let numbers: BTreeMap<i32, usize> =
            list.iter().enumerate().map(|(index, process)| (process.pid.as_raw_pid(), index)).collect();
        let mut family = Family { roots: vec![], children: vec![vec![]; list.len()] };
        for (index, process) in list.iter().enumerate() {
            let parent = process.stat.as_ref().and_then(|stat| stat.parent);
            match parent.and_then(|parent| numbers.get(&parent.as_raw_pid())) {
                Some(parent) => family.children[*parent].push(index),
                None => family.roots.push(index),
            }
        }
        family
    }

    /// Parents before children, and all of one depth before the next. Numbers that were reused while they were read may
    /// make two processes each other's parent: those come last.
    fn top_down(&self) -> Vec<usize> {
        let mut order = vec![];
        let mut is_met = vec![false; self.children.len()];
        let mut queue: VecDeque<usize> = self.roots.iter().copied().collect();
        let mut others = 0..self.children.len();
        loop {
            let Some(index) = queue.pop_front().or_else(|| others.find(|index| !is_met[*index])) else { return order };
            if !std::mem::replace(&mut is_met[index], true) {
                order.push(index);
                queue.extend(&self.children[index]);
            }
        }
    }

    /// Each behind its parent, with its depth. Not by recursion: a tree can be as deep as there are pids.
    fn in_order(&self, mut seen: BTreeMap<usize, Seen>) -> Vec<Seen> {
        let mut order = vec![];
        let mut stack: Vec<(usize, usize)> = self.roots.iter().rev().map(|root| (*root, 0)).collect();
        loop {
            let next = stack.pop().or_else(|| seen.keys().next().map(|index| (*index, 0)));
            let Some((index, depth)) = next else { return order };
            let Some(process) = seen.remove(&index) else {
                // Its children have another parent by now.
                stack.extend(
                    self.children[index]
                        .iter()
                        .rev()
                        .filter(|child| seen.contains_key(child))
                        .map(|child| (*child, depth)),
                );
                continue;
            };
            order.push(Seen { depth, ..process });
            stack.extend(self.children[index].iter().rev().map(|child| (*child, depth + 1)));
        }
    }
}

/// What the caller reads.
struct Caller {
    pipes: Vec<(String, &'static str)>,
}

impl Caller {
    fn look() -> Caller {
        let link = |number| std::fs::read_link(format!("/proc/self/fd/{number}")).ok();
        let streams = [(1, "stdout"), (2, "stderr")].into_iter().filter_map(|(number, name)| {
            let target = link(number)?.to_string_lossy().into_owned();
            (target.starts_with("pipe:") || target.starts_with("socket:")).then_some((target, name))
        });
        Caller { pipes: streams.collect() }
    }
}

/// What can be seen of a process, and the sockets that it has open, by inode; `None` if it has ended.
fn look(process: &Process, caller: &Caller) -> Option<(Seen, Vec<u64>)> {
    let mut seen = Seen::hidden(process.pid.as_raw_pid(), process.net);
    // Where the listing could see nothing of it, what /proc shows under this number is somebody else.
    let Some(listed) = &process.stat else { return Some((seen, vec![])) };
    let folder = Folder::open(process.pid)?;
    let stat = procfs::parse_stat(&folder.read("stat")?).filter(|stat| stat.start == listed.start)?;
    let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    seen.ppid = stat.parent.map(Pid::as_raw_pid);
    seen.state = procfs::state_word(Some(stat.state));
    seen.age_ms = Some(milliseconds(stat.age()));
    seen.cpu_ms = Some(milliseconds(stat.cpu_time()));
    seen.memory = Some(stat.memory());
    seen.threads = Some(stat.threads);
    seen.comm.clone_from(&stat.comm);
    if stat.is_dead() {
        return Some((seen, vec![]));
    }
    if !procfs::may_hold_its_memory(process.pid, &stat) {
        seen.argv = procfs::split_arguments(&folder.read("cmdline").unwrap_or_default());
    }
    let text = |name| folder.read(name).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    if stat.state != 'R' {
        let call = text("syscall").and_then(|line| calls::parse(&line));
        seen.system_call = call.and_then(|call| call.name);
        seen.waits_on = call.and_then(|call| call.descriptor).and_then(|number| folder.link(&format!("fd/{number}")));
        // A call that is known says as much, and the kernel takes its time to find the name.
        if seen.system_call.is_none() || stat.state == 'D' {
            seen.wait_channel = text("wchan").filter(|name| !matches!(name.as_str(), "" | "0"));
        }
    }
    seen.cwd = folder.link("cwd");
    let sockets = folder.descriptors(&mut seen, caller);
    Some((seen, sockets))
}

/// The /proc/PID of one process: what is read there is never another's that got its number.
struct Folder(OwnedFd);

impl Folder {
    fn open(pid: Pid) -> Option<Folder> {
        let path = format!("/proc/{}", pid.as_raw_pid());
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(CWD, path, flags, Mode::empty()).ok().map(Folder)
    }

    /// Most of these files fit the first piece, and then that one read is all: the kernel makes such a file anew for each.
    fn read(&self, name: &str) -> Option<Vec<u8>> {
        let file = openat(&self.0, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let mut piece = [0; 4096];
        let mut bytes = vec![];
        loop {
            let length = rustix::io::read(&file, &mut piece).ok()?;
            bytes.extend_from_slice(&piece[..length]);
            if length < piece.len() || bytes.len() >= MOST_BYTES {
                return Some(bytes);
            }
        }
    }

    fn link(&self, name: &str) -> Option<String> {
        let target = readlinkat(&self.0, name, vec![]).ok()?;
        Some(String::from_utf8_lossy(target.as_bytes()).into_owned())
    }

    /// Notes what it holds that others may wait for; gives its sockets.
    fn descriptors(&self, seen: &mut Seen, caller: &Caller) -> Vec<u64> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut sockets = vec![];
        let Ok(folder) = openat(&self.0, "fd", flags, Mode::empty()) else { return sockets };
        let mut buffer = [MaybeUninit::uninit(); 2048];
        let mut entries = RawDir::new(&folder, &mut buffer);
        let mut left = MOST_DESCRIPTORS;
        while let Some(Ok(entry)) = entries.next().filter(|_| left > 0) {
            if matches!(entry.file_name().to_bytes(), b"." | b"..") {
                continue;
            }
            left -= 1;
            let Ok(target) = readlinkat(&folder, entry.file_name(), vec![]) else { continue };
            let Ok(target) = target.into_string() else { continue };
            if let Some((_, name)) =
                caller.pipes.iter().find(|(pipe, name)| *pipe == target && !seen.holds.contains(name))
            {
                seen.holds.push(name);
            }
            if let Some(inode) = target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']')) {
                sockets.extend(inode.parse::<u64>());
            }
            if entry.file_name() == c"0" && procfs::is_terminal(&target) {
                seen.terminal = Some(target);
            }
        }
        sockets
    }
}

#[cfg(test)]
mod tests;
