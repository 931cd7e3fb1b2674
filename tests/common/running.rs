//! A run under way, and one that has ended.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::tether::Tether;
use super::{BOUND, MARK, Nest, Scratch, wrapper};

/// A run under way. It is killed, with all it started, when dropped.
pub(crate) struct Running {
    pub(super) child: Child,
    pub(super) pidfd: OwnedFd,
    pub(super) started: Instant,
    pub(super) words: Vec<OsString>,
    pub(super) mark: String,
    pub(super) tether: Tether,
    /// Lines that no test has asked for yet.
    pub(super) unasked: Vec<String>,
    pub(super) nest: Option<Nest>,
    /// Where stdout and stderr go.
    pub(super) output: (File, File),
    pub(super) report: Option<Scratch>,
    pub(super) may_leave: bool,
    pub(super) makes_cgroups: bool,
    pub(super) gate: Option<OwnedFd>,
    pub(super) status: Option<ExitStatus>,
}

/// A run that has ended.
pub(crate) struct Ended {
    /// The status of the wrapper, or of its caller.
    pub(crate) status: ExitStatus,
    /// From the start to the return.
    pub(crate) took: Duration,
    /// What the tree said on the tether.
    pub(crate) lines: Vec<String>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
    words: Vec<OsString>,
    report: Option<Scratch>,
}

impl Running {
    /// The wrapper's (or its caller's) PID.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The cgroup that the run was started in.
    pub(crate) fn nest(&self) -> Option<&Nest> {
        self.nest.as_ref()
    }

    /// Takes the cgroup of the run away, for another run to live in.
    pub(crate) fn take_nest(&mut self) -> Option<Nest> {
        self.nest.take()
    }

    /// Gives a cgroup back that was taken.
    pub(crate) fn put_nest(&mut self, nest: Option<Nest>) {
        self.nest = nest;
    }

    /// Lets those go on who read from stdin.
    pub(crate) fn open_gate(&mut self) {
        self.gate = None;
    }

    /// Sends a signal to the wrapper (or its caller).
    pub(crate) fn signal(&self, signal: Signal) {
        pidfd_send_signal(&self.pidfd, signal).expect("an unreaped child can be signalled");
    }

    /// The next line of the tree that was not asked for yet.
    pub(crate) fn line(&mut self) -> String {
        if !self.unasked.is_empty() {
            return self.unasked.remove(0);
        }
        match self.tether.line(BOUND) {
            Some(line) => line,
            None => self.fail("the tree said nothing more"),
        }
    }

    /// Waits for a line of this word, whatever others say before it, and returns the rest of it: by custom the PID of
    /// who said it.
    pub(crate) fn expect(&mut self, word: &str) -> String {
        let rest = |line: &str| Some(line.strip_prefix(word)?.strip_prefix(' ')?.to_owned());
        if let Some(index) = self.unasked.iter().position(|line| rest(line).is_some()) {
            return rest(&self.unasked.remove(index)).unwrap_or_default();
        }
        loop {
            let Some(line) = self.tether.line(BOUND) else {
                self.fail(&format!("'{word}' was not said"));
            };
            match rest(&line) {
                Some(rest) => return rest,
                None => self.unasked.push(line),
            }
        }
    }

    /// A pidfd of the process that says this word.
    pub(crate) fn expect_process(&mut self, word: &str) -> OwnedFd {
        let pid = self.expect(word);
        match pid.parse().ok().and_then(open_process) {
            Some(pidfd) => pidfd,
            None => self.fail(&format!("the process that said {word} is not there")),
        }
    }

    /// The same of one that may have ended by now.
    pub(crate) fn expect_process_or_gone(&mut self, word: &str) -> Option<OwnedFd> {
        self.expect(word).parse().ok().and_then(open_process)
    }

    /// A pidfd of the wrapper (or its caller).
    pub(crate) fn pidfd(&self) -> &OwnedFd {
        &self.pidfd
    }

    /// Waits for the end of a wrapper that was killed: its tree may die a moment later.
    pub(crate) fn wait_for_death(&mut self) -> Ended {
        self.may_leave = true;
        self.wait()
    }

    /// Whether all holders of the tether are dead by now.
    pub(crate) fn is_all_dead(&mut self) -> bool {
        self.all_die_within(Duration::ZERO)
    }

    pub(crate) fn all_die_within(&mut self, time: Duration) -> bool {
        self.tether.ends(time)
    }

    /// Waits until all holders of the tether are dead, the wrapper and its keeper included.
    pub(crate) fn all_die(&mut self) {
        if !self.tether.ends(BOUND) {
            self.fail("somebody is still alive");
        }
    }

    /// Waits for the wrapper's end. Unless the run may leave something, at that moment everything is dead and every
    /// leaf removed.
    pub(crate) fn wait(&mut self) -> Ended {
        if !is_dead(&self.pidfd, BOUND) {
            self.fail("the wrapper does not return");
        }
        let took = self.started.elapsed();
        self.status = Some(self.child.wait().expect("it is our child"));
        let all_dead = self.tether.ends(Duration::ZERO);
        if !self.may_leave {
            if !all_dead {
                self.fail("the wrapper returned before its tree was dead");
            }
            self.leaves_no_trace();
        }
        self.ended(took)
    }

    /// A second opinion: no marked process, no member of the nest, no leaf.
    pub(crate) fn leaves_no_trace(&mut self) {
        if let Some(nest) = &self.nest {
            if !nest.is_deserted() {
                self.fail("a process is left in the test's cgroup");
            }
            let leaves = nest.children();
            if !self.makes_cgroups && !leaves.is_empty() {
                self.fail(&format!("left behind: {leaves:?}"));
            }
        }
        let marked = marked(&self.mark);
        if !marked.is_empty() {
            self.fail(&format!("still alive: {marked:?}"));
        }
    }

    /// Whether the wrapper has not ended yet.
    pub(crate) fn is_running(&self) -> bool {
        !is_dead(&self.pidfd, Duration::ZERO)
    }

    fn ended(&mut self, took: Duration) -> Ended {
        Ended {
            status: self.status.unwrap_or_default(),
            took,
            lines: self.tether.lines.clone(),
            stdout: content(&self.output.0),
            stderr: String::from_utf8_lossy(&content(&self.output.1)).into_owned(),
            words: self.words.clone(),
            report: self.report.take(),
        }
    }

    /// Fails the test with everything that is known of the run.
    pub(crate) fn fail(&mut self, why: &str) -> ! {
        while self.tether.line(Duration::ZERO).is_some() {}
        let alive = marked(&self.mark);
        let took = self.started.elapsed();
        let status = self.status.map_or_else(|| "none yet".into(), |status| status.to_string());
        let ended = self.ended(took);
        panic!("{why}\nstatus: {status}\nalive: {alive:#?}\n{ended}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.status.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        // What a broken wrapper left; with a nest, the nest's own end is surer still.
        for line in marked(&self.mark) {
            if let Some(pid) = line.split(' ').next().and_then(|pid| pid.parse().ok())
                && let Some(pidfd) = open_process(pid)
                && is_marked(pid, &self.mark)
            {
                let _ = pidfd_send_signal(&pidfd, Signal::KILL);
            }
        }
    }
}

impl Ended {
    /// The status is this number, by exit and not by a signal.
    #[track_caller]
    pub(crate) fn exited(&self, code: i32) -> &Ended {
        assert_eq!(self.status.code(), Some(code), "wrong exit status\n{self}");
        self
    }

    /// The status is one of these.
    #[track_caller]
    pub(crate) fn exited_with_one_of(&self, codes: &[i32]) -> &Ended {
        let code = self.status.code();
        assert!(code.is_some_and(|code| codes.contains(&code)), "wanted one of {codes:?}\n{self}");
        self
    }

    /// It died of this signal.
    #[track_caller]
    pub(crate) fn died_of(&self, signal: Signal) -> &Ended {
        assert_eq!(self.status.signal(), Some(signal.as_raw()), "wrong death\n{self}");
        self
    }

    /// So many lines of the tether begin with this word.
    #[track_caller]
    pub(crate) fn said(&self, word: &str, times: usize) -> &Ended {
        assert_eq!(self.count(word), times, "times that '{word}' was said\n{self}");
        self
    }

    pub(crate) fn count(&self, word: &str) -> usize {
        let said = |line: &&String| line.split(' ').next() == Some(word);
        self.lines.iter().filter(said).count()
    }

    /// What stands behind the word on the first line that begins with it.
    #[track_caller]
    pub(crate) fn value(&self, word: &str) -> &str {
        let value = self.lines.iter().find_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("'{word}' was not said\n{self}"))
    }

    #[track_caller]
    pub(crate) fn took_at_least(&self, time: Duration) -> &Ended {
        assert!(self.took >= time, "returned before {time:?}\n{self}");
        self
    }

    /// Returned well before something that was to last this long would have ended.
    #[track_caller]
    pub(crate) fn took_less_than(&self, time: Duration) -> &Ended {
        assert!(self.took < time, "returned after {time:?}\n{self}");
        self
    }

    /// Something on stderr mentions this.
    #[track_caller]
    pub(crate) fn complained_of(&self, text: &str) -> &Ended {
        assert!(self.stderr.contains(text), "nothing of '{text}' on stderr\n{self}");
        self
    }

    #[track_caller]
    pub(crate) fn printed(&self, text: impl AsRef<[u8]>) -> &Ended {
        assert!(self.stdout == text.as_ref(), "wanted {:?} on stdout\n{self}", String::from_utf8_lossy(text.as_ref()));
        self
    }

    /// The report that was asked for.
    #[track_caller]
    pub(crate) fn report(&self) -> serde_json::Value {
        let scratch = self.report.as_ref().expect("the test asked for a report");
        let text = fs::read_to_string(scratch.join("report.json"));
        let text = text.unwrap_or_else(|error| panic!("no report: {error}\n{self}"));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}\n{self}"))
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<_> = self.words.iter().map(|word| word.to_string_lossy()).collect();
        let line: String = words.join(" ").chars().take(3000).collect();
        writeln!(f, "command line: {line}")?;
        writeln!(f, "ended: {} after {:?}", self.status, self.took)?;
        writeln!(f, "stdout: {}", String::from_utf8_lossy(&self.stdout))?;
        writeln!(f, "stderr: {}", self.stderr)?;
        write!(f, "tether: {:#?}", self.lines)
    }
}

/// Whether the process has ended, or ends within this time.
pub(crate) fn is_dead(pidfd: impl AsFd, within: Duration) -> bool {
    let deadline = Instant::now() + within;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).expect("the bound is short");
        let mut poll = [PollFd::new(&pidfd, PollFlags::IN)];
        match rustix::event::poll(&mut poll, Some(&left)) {
            Ok(ready) => return ready == 1,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("cannot poll a pidfd: {error}"),
        }
    }
}

/// Another run in the same cgroup, which clears away what dead owners left there.
pub(crate) fn next_run(nest: &Nest) {
    let mut command = Command::new(wrapper());
    command.args(["--backend", "cgroup", "--", "true"]).stdin(Stdio::null());
    nest.receive(&mut command);
    let output = command.output().expect("the wrapper can be started");
    assert!(output.status.success(), "the next run: {}", String::from_utf8_lossy(&output.stderr));
}

/// A pidfd, unless there is no such process.
pub(crate) fn open_process(pid: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// The state letter of proc_pid_stat(5), `None` if there is no such process.
pub(crate) fn state_of(pid: &str) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next()
}

fn content(file: &File) -> Vec<u8> {
    let length = file.metadata().map_or(0, |data| data.len());
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    let _ = file.read_exact_at(&mut bytes, 0);
    bytes
}

fn is_marked(pid: u32, mark: &str) -> bool {
    let wanted = format!("{MARK}={mark}").into_bytes();
    fs::read(format!("/proc/{pid}/environ")).is_ok_and(|all| all.split(|byte| *byte == 0).any(|one| one == wanted))
}

/// Living processes that inherited this mark: `PID (comm) state ...`.
fn marked(mark: &str) -> Vec<String> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| is_marked(*pid, mark))
        .filter_map(|pid| fs::read_to_string(format!("/proc/{pid}/stat")).ok())
        .map(|stat| stat.chars().take(60).collect())
        .collect()
}
