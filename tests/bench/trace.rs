//! Runs of the wrapper under ptrace(2): every system call, or every instruction, of the front, of the keeper, and of the
//! command's process until it has become the command.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::process::Stdio;

use nix::libc;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::call::View;
use crate::elf;
use crate::machine::command;
use crate::sys;

/// Whose system call it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Who {
    Front,
    Keeper,
    /// The command's process before its exec.
    Birth,
    Other,
}

pub(crate) struct Call {
    pub(crate) who: Who,
    pub(crate) number: i64,
    /// What it is about: a path, or what is waited for.
    pub(crate) about: String,
    /// What a run should have none of.
    pub(crate) fault: Option<&'static str>,
}

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Grain {
    Calls,
    Instructions,
}

struct Tracer {
    /// Where this process may run afterwards.
    cpus: CpuSet,
    grain: Grain,
    front: i32,
    tracees: BTreeMap<i32, Tracee>,
    calls: Vec<Call>,
    /// How often each instruction ran.
    steps: BTreeMap<(Who, u64), u64>,
    status: Option<i32>,
}

struct Tracee {
    who: Who,
    /// Where the last counted instruction stood.
    last: u64,
}

/// The system calls of a run from its `main` on. That is where a breakpoint stands, so the program must have its symbols;
/// what comes before is the C library's, the loader's and the hook's.
pub(crate) fn calls(line: &[String]) -> Result<Vec<Call>, String> {
    let mut tracer = Tracer::start(line, Grain::Calls)?;
    tracer.go_to_main(&line[0])?;
    tracer.resume(tracer.front, 0).map_err(text)?;
    tracer.run()?;
    Ok(std::mem::take(&mut tracer.calls))
}

/// The instructions of a run from its exec on, in user mode: how many ran of whom, at which address of the program's file.
pub(crate) fn instructions(line: &[String]) -> Result<BTreeMap<(Who, u64), u64>, String> {
    let mut tracer = Tracer::start(line, Grain::Instructions)?;
    let moved = tracer.offset(&line[0])?;
    tracer.resume(tracer.front, 0).map_err(text)?;
    tracer.run()?;
    Ok(tracer.steps.iter().map(|((who, at), count)| ((*who, at.wrapping_sub(moved)), *count)).collect())
}

fn text(error: io::Error) -> String {
    format!("cannot trace: {error}")
}

impl Drop for Tracer {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, &self.cpus);
    }
}

impl Tracer {
    fn start(line: &[String], grain: Grain) -> Result<Tracer, String> {
        if !cfg!(target_arch = "x86_64") {
            return Err("the tracer knows x86-64 only".into());
        }
        let mut line = line.to_vec();
        line[0] =
            fs::canonicalize(&line[0]).map_or_else(|_| line[0].clone(), |path| path.to_string_lossy().into_owned());
        let mut command = command(&line);
        // The same in every place that it is run from.
        command.env_clear().env("PATH", "/usr/bin:/bin").stdin(Stdio::null()).current_dir("/");
        sys::traced(&mut command);
        // On one CPU front and keeper take turns, so that each finds the other as far as in every run: how often they wake
        // up depends on that.
        let cpus = sched_getaffinity(None).map_err(|error| error.to_string())?;
        let mut one = CpuSet::new();
        one.set((0..CpuSet::MAX_CPU).find(|cpu| cpus.is_set(*cpu)).unwrap_or(0));
        sched_setaffinity(None, &one).map_err(|error| error.to_string())?;
        let child = command.spawn().map_err(|error| format!("cannot start {}: {error}", line[0]))?;
        let front = i32::try_from(child.id()).expect("a PID");
        let tracer = Tracer {
            cpus,
            grain,
            front,
            tracees: BTreeMap::from([(front, Tracee { who: Who::Front, last: 0 })]),
            calls: vec![],
            steps: BTreeMap::new(),
            status: None,
        };
        // It stopped at its exec.
        let (pid, status) = sys::wait_any().map_err(text)?;
        if pid != front || !libc::WIFSTOPPED(status) {
            return Err(format!("{} did not stop at its exec", line[0]));
        }
        let options = libc::PTRACE_O_EXITKILL
            | libc::PTRACE_O_TRACESYSGOOD
            | libc::PTRACE_O_TRACEFORK
            | libc::PTRACE_O_TRACEVFORK
            | libc::PTRACE_O_TRACECLONE
            | libc::PTRACE_O_TRACEEXEC;
        let options = usize::try_from(options).expect("flags");
        sys::ptrace(libc::PTRACE_SETOPTIONS, front, 0, options).map_err(text)?;
        Ok(tracer)
    }

    /// Runs to a breakpoint at `main`.
    #[cfg(target_arch = "x86_64")]
    fn go_to_main(&mut self, program: &str) -> Result<(), String> {
        let image = fs::read(program).map_err(|error| format!("{program}: {error}"))?;
        let main = elf::symbol(&image, "main").ok_or_else(|| format!("{program} has no symbols"))?;
        let at = main.wrapping_add(self.offset(program)?);
        let memory = self.memory(self.front, true).map_err(text)?;
        let mut before = [0; 1];
        memory.read_exact_at(&mut before, at).map_err(text)?;
        memory.write_all_at(&[0xcc], at).map_err(text)?;
        sys::ptrace(libc::PTRACE_CONT, self.front, 0, 0).map_err(text)?;
        let (_, status) = sys::wait_any().map_err(text)?;
        if !libc::WIFSTOPPED(status) || libc::WSTOPSIG(status) != libc::SIGTRAP {
            return Err(format!("{program} did not come to its main"));
        }
        memory.write_all_at(&before, at).map_err(text)?;
        sys::set_instruction_pointer(self.front, at).map_err(text)
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn go_to_main(&mut self, _: &str) -> Result<(), String> {
        Err("the tracer knows x86-64 only".into())
    }

    /// How far the program was loaded from where its file says.
    fn offset(&self, program: &str) -> Result<u64, String> {
        let image = fs::read(program).map_err(|error| format!("{program}: {error}"))?;
        let entry = elf::entry(&image).ok_or_else(|| format!("{program} is no ELF file"))?;
        Ok(self.actual_entry().ok_or("no auxiliary vector")?.wrapping_sub(entry))
    }

    /// Where the program's entry has been loaded to, from its auxiliary vector.
    fn actual_entry(&self) -> Option<u64> {
        let vector = fs::read(format!("/proc/{}/auxv", self.front)).ok()?;
        let number = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes).ok();
        let mut pairs = vector.chunks_exact(16);
        pairs.find(|pair| number(&pair[..8]) == Some(libc::AT_ENTRY)).and_then(|pair| number(&pair[8..]))
    }

    fn memory(&self, pid: i32, write: bool) -> io::Result<fs::File> {
        fs::File::options().read(true).write(write).open(format!("/proc/{pid}/mem"))
    }

    fn resume(&self, pid: i32, signal: i32) -> io::Result<()> {
        let request = match self.grain {
            Grain::Calls => libc::PTRACE_SYSCALL,
            Grain::Instructions => libc::PTRACE_SINGLESTEP,
        };
        sys::ptrace(request, pid, 0, usize::try_from(signal).expect("positive"))
    }

    /// Follows all of them until the last one has ended.
    fn run(&mut self) -> Result<(), String> {
        loop {
            let (pid, status) = match sys::wait_any() {
                Ok(got) => got,
                Err(error) if error.raw_os_error() == Some(libc::ECHILD) => break,
                Err(error) => return Err(text(error)),
            };
            if libc::WIFSTOPPED(status) {
                let signal = self.stopped(pid, libc::WSTOPSIG(status), status >> 16);
                if let Some(signal) = signal {
                    // One that is gone was killed.
                    let _ = self.resume(pid, signal);
                }
            } else {
                self.tracees.remove(&pid);
                if pid == self.front {
                    self.status = Some(status);
                }
            }
        }
        match self.status {
            Some(0) => Ok(()),
            other => Err(format!("the traced run ended with status {other:?}")),
        }
    }

    /// A tracee has stopped: the signal to go on with; `None` to leave it alone.
    fn stopped(&mut self, pid: i32, signal: i32, event: i32) -> Option<i32> {
        if let Entry::Vacant(place) = self.tracees.entry(pid) {
            // Its parent's event comes later: it stays as it is until then.
            place.insert(Tracee { who: Who::Other, last: 0 });
            return None;
        }
        match event {
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => {
                if let Ok(child) = sys::event_message(pid) {
                    self.adopt(pid, child);
                }
                return Some(0);
            }
            libc::PTRACE_EVENT_EXEC => {
                // It has become the command, which is not ours to count.
                let _ = sys::ptrace(libc::PTRACE_DETACH, pid, 0, 0);
                self.tracees.remove(&pid);
                return None;
            }
            _ => {}
        }
        if signal == libc::SIGTRAP | 0x80 {
            self.note_call(pid);
            return Some(0);
        }
        if signal == libc::SIGTRAP && self.grain == Grain::Instructions {
            self.note_step(pid);
            return Some(0);
        }
        // A new tracee's first stop, or a signal of its own.
        Some(if signal == libc::SIGSTOP || signal == libc::SIGTRAP { 0 } else { signal })
    }

    /// A child was born. It may have stopped before its parent's event came, and is waited for otherwise.
    fn adopt(&mut self, parent: i32, child: i32) {
        let who = match self.tracees.get(&parent).map(|tracee| tracee.who) {
            Some(Who::Front) if !self.tracees.values().any(|tracee| tracee.who == Who::Keeper) => Who::Keeper,
            Some(Who::Keeper) => Who::Birth,
            _ => Who::Other,
        };
        let has_stopped = self.tracees.contains_key(&child);
        self.tracees.insert(child, Tracee { who, last: 0 });
        if has_stopped {
            let _ = self.resume(child, 0);
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn note_step(&mut self, pid: i32) {
        let at = sys::instruction_pointer(pid);
        let Some(tracee) = self.tracees.get_mut(&pid) else { return };
        // A repeated string instruction stops at each of its turns, and is one.
        if tracee.last != at {
            tracee.last = at;
            *self.steps.entry((tracee.who, at)).or_default() += 1;
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn note_step(&mut self, _: i32) {}

    fn note_call(&mut self, pid: i32) {
        let Ok(Some((number, args))) = sys::call_at_entry(pid) else { return };
        let who = self.tracees.get(&pid).map_or(Who::Other, |tracee| tracee.who);
        let view = View { pid, number, args };
        self.calls.push(Call { who, number, about: view.about(), fault: view.fault() });
    }
}
