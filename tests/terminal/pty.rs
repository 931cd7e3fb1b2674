//! A terminal of a test's own, and an interactive bash on it.

use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, Termios, Winsize, tcgetattr, tcgetpgrp, tcsetwinsize};

use crate::common::running::state_of;
use crate::common::{self, BOUND, Backend, Ended, Run, Running, Scratch};

/// What Ctrl-C, Ctrl-D, Ctrl-Z and Ctrl-\ send.
pub(crate) const CTRL_C: u8 = 3;
pub(crate) const CTRL_D: u8 = 4;
pub(crate) const CTRL_Z: u8 = 26;
pub(crate) const CTRL_BACKSLASH: u8 = 28;

/// A process that leads the session of a terminal, and our end of that terminal.
///
/// What is typed is echoed, so that a text to wait for must not be part of what was typed. Words of the tether are never
/// echoed. The process and all it started are killed, and the terminal is hung up, when it is dropped.
pub(crate) struct Shell {
    running: Running,
    /// Our end; `None` once the terminal was hung up.
    master: Option<OwnedFd>,
    /// Everything that appeared.
    screen: String,
    /// How much of it was waited for.
    seen: usize,
    /// Its working directory.
    pub(crate) scratch: Scratch,
}

impl Shell {
    /// An interactive bash at its first prompt. `$TK` is treekill-run with this backend, `$TG` the same with GNU
    /// timeout's grammar, and `$FX` the fixture.
    pub(crate) fn new(backend: Backend) -> Shell {
        let mut shell = Shell::on_terminal(Run::control(["bash", "--norc", "--noprofile", "-i"]), backend);
        assert_eq!(shell.prompt(), 0);
        shell
    }

    /// A run that leads the session of a new terminal.
    pub(crate) fn on_terminal(run: Run, backend: Backend) -> Shell {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC);
        let master = master.expect("a pseudo-terminal can be had");
        unlockpt(&master).expect("it is ours");
        // So wide that no line is ever wrapped.
        let size = Winsize { ws_row: 50, ws_col: 4000, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&master, size).expect("it is ours");
        rustix::io::ioctl_fionbio(&master, true).expect("it can be read without blocking");
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let slave = ioctl_tiocgptpeer(&master, flags).expect("the other end can be opened");
        let stream = || Stdio::from(slave.try_clone().expect("a descriptor can be duplicated"));
        let scratch = Scratch::new();
        let wrapper = common::wrapper().display().to_string();
        let environment = [
            ("TK", format!("{wrapper} --backend {}", backend.name())),
            ("TG", format!("{wrapper} --gnu --backend={}", backend.name())),
            ("FX", common::fixture().display().to_string()),
            ("PS1", "{$?}".into()),
            ("PROMPT_COMMAND", String::new()),
            ("HISTFILE", String::new()),
            // Interpreters leave their history there.
            ("HOME", scratch.path().display().to_string()),
            ("INPUTRC", "/dev/null".into()),
            ("LESSHISTFILE", "-".into()),
            ("PYTHON_BASIC_REPL", "1".into()),
            ("PYTHONSTARTUP", String::new()),
            // No escape sequences, and no bracketed paste.
            ("TERM", "dumb".into()),
            ("LC_ALL", "C".into()),
        ];
        let run = run.with(backend).stdin(stream()).stdout(stream()).stderr(stream()).directory(scratch.path());
        let run = environment.into_iter().fold(run, |run, (name, value)| run.env(name, value));
        // The run leads a session by now, and takes the terminal that its stdin is for its own.
        let running = run.setup(|| Ok(rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?)).spawn();
        Shell { running, master: Some(master), screen: String::new(), seen: 0, scratch }
    }

    /// Types a line, and Enter.
    pub(crate) fn command(&mut self, line: &str) {
        self.keys(format!("{line}\n").as_bytes());
    }

    pub(crate) fn key(&mut self, key: u8) {
        self.keys(&[key]);
    }

    pub(crate) fn keys(&mut self, keys: &[u8]) {
        let master = self.master.as_ref().expect("the terminal is there");
        let length = rustix::io::write(master, keys);
        assert_eq!(length, Ok(keys.len()), "the terminal takes what is typed");
    }

    /// Waits until this appears, and goes behind it; gives what appeared before.
    pub(crate) fn sees(&mut self, text: &str) -> String {
        let (start, end) = self.wait_for(|screen| screen.find(text).map(|at| (at, at + text.len())), text);
        let before = self.screen[self.seen..self.seen + start].to_owned();
        self.seen += end;
        before
    }

    /// Waits for the shell's next prompt; gives the status that it shows.
    pub(crate) fn prompt(&mut self) -> i32 {
        let (_, status) = self.prompt_after();
        status
    }

    /// The same, and what appeared before it.
    pub(crate) fn prompt_after(&mut self) -> (String, i32) {
        let find = |screen: &str| {
            screen.match_indices('{').find_map(|(at, _)| {
                let (number, _) = screen[at + 1..].split_once('}')?;
                number.parse::<u8>().is_ok().then_some((at, at + 1 + number.len() + 1))
            })
        };
        let (start, end) = self.wait_for(find, "a prompt");
        let screen = &self.screen[self.seen..];
        let status = screen[start + 1..end - 1].parse().expect("it was found as a number");
        let before = screen[..start].to_owned();
        self.seen += end;
        (before, status)
    }

    /// Types a line and waits for the prompt; fails unless it shows this status.
    #[track_caller]
    pub(crate) fn does(&mut self, line: &str, status: i32) -> String {
        self.command(line);
        self.ends_with(status)
    }

    /// Waits for the prompt; fails unless it shows this status.
    #[track_caller]
    pub(crate) fn ends_with(&mut self, status: i32) -> String {
        let (before, shown) = self.prompt_after();
        assert_eq!(shown, status, "the status of the last command\nscreen: {}", self.screen);
        before
    }

    /// Types a line, and then Enter until bash says this of its jobs, which it does before a prompt.
    pub(crate) fn notices(&mut self, line: &str, text: &str) {
        let deadline = Instant::now() + BOUND;
        self.command(line);
        while !self.prompt_after().0.contains(text) {
            if Instant::now() > deadline {
                self.fail(&format!("bash does not say '{text}'"));
            }
            self.command("");
        }
    }

    /// Brings a job to the foreground, of whose command line bash says this then; only now it may be typed to.
    pub(crate) fn resumes(&mut self, line: &str, text: &str) {
        self.command(line);
        self.sees(text);
    }

    /// Waits until job control has stopped this process. One that reads the terminal could still take what is typed next
    /// when its shell shows a prompt already.
    pub(crate) fn stops(&mut self, pid: &str) {
        self.is_in_state(pid, 'T');
    }

    /// Waits until it goes on, and waits for something by itself. Between naming a job and continuing it a shell would miss
    /// the next Ctrl-Z.
    pub(crate) fn goes_on(&mut self, pid: &str) {
        self.is_in_state(pid, 'S');
    }

    fn is_in_state(&mut self, pid: &str, wanted: char) {
        self.awaits(&format!("{pid} is not in state {wanted}"), || state_of(pid) == Some(wanted));
    }

    /// Takes what the terminal shows until this is so.
    pub(crate) fn awaits(&mut self, failure: &str, is_so: impl Fn() -> bool) {
        if !self.becomes(BOUND, |_| is_so()) {
            self.fail(failure);
        }
    }

    /// The same for so long at most; whether it has become so.
    pub(crate) fn becomes(&mut self, within: Duration, is_so: impl Fn(&Shell) -> bool) -> bool {
        let deadline = Instant::now() + within;
        while !is_so(self) {
            if Instant::now() > deadline {
                return false;
            }
            self.read_some(Instant::now() + Duration::from_millis(5));
        }
        true
    }

    /// Waits until the foreground job has forked.
    pub(crate) fn awaits_keeper(&mut self) {
        let deadline = Instant::now() + BOUND;
        // A tracer may be a child of the wrapper for a moment.
        let has_forked = |shell: &Shell| {
            let job = shell.foreground().as_raw_pid().unsigned_abs();
            let is_ours = |pid: &u32| common::kin::is_wrapper(*pid);
            !shell.has_terminal() && is_ours(&job) && common::kin::children(job).iter().any(is_ours)
        };
        while !has_forked(self) {
            if Instant::now() > deadline {
                self.fail("the foreground job does not fork");
            }
            self.read_some(Instant::now() + Duration::from_millis(5));
        }
    }

    /// Waits for a word on the tether and gives what is behind it.
    pub(crate) fn expect(&mut self, word: &str) -> String {
        self.running.expect(word)
    }

    /// A pidfd of the process that says this word.
    pub(crate) fn expect_process(&mut self, word: &str) -> OwnedFd {
        self.running.expect_process(word)
    }

    /// The process group in the foreground.
    pub(crate) fn foreground(&self) -> Pid {
        tcgetpgrp(self.master.as_ref().expect("the terminal is there")).expect("somebody has the terminal")
    }

    /// A pidfd of the leader of the foreground group: the wrapper, if it is a job of its own.
    pub(crate) fn foreground_leader(&self) -> OwnedFd {
        let leader = self.foreground().as_raw_pid().unsigned_abs();
        common::running::open_process(leader).expect("the foreground job has a leader")
    }

    /// Whether the shell itself is in the foreground.
    pub(crate) fn has_terminal(&self) -> bool {
        self.foreground().as_raw_pid().unsigned_abs() == self.running.pid()
    }

    pub(crate) fn modes(&self) -> Termios {
        tcgetattr(self.master.as_ref().expect("the terminal is there")).expect("a terminal has modes")
    }

    pub(crate) fn echoes(&self) -> bool {
        self.modes().local_modes.contains(LocalModes::ECHO)
    }

    /// Whether a program that reads gets whole lines.
    pub(crate) fn is_line_by_line(&self) -> bool {
        self.modes().local_modes.contains(LocalModes::ICANON)
    }

    pub(crate) fn resize(&self, columns: u16) {
        let size = Winsize { ws_row: 50, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(self.master.as_ref().expect("the terminal is there"), size).expect("it is ours");
    }

    /// Sends a signal to the process that leads the session.
    pub(crate) fn signal(&self, signal: Signal) {
        self.running.signal(signal);
    }

    /// Closes our end of the terminal.
    pub(crate) fn hang_up(&mut self) {
        self.read_what_is_there();
        self.master = None;
    }

    /// Waits until everybody is dead, and nothing else may be left.
    pub(crate) fn all_die(&mut self) {
        self.running.all_die();
        self.running.leaves_no_trace();
    }

    /// Ends the shell and expects that nothing is left.
    pub(crate) fn leave(&mut self) -> Ended {
        self.command("exit 0");
        let ended = self.wait();
        self.all_die();
        ended
    }

    /// Waits for the end of the process that leads the session.
    pub(crate) fn wait(&mut self) -> Ended {
        self.running.wait()
    }

    pub(crate) fn screen(&self) -> &str {
        &self.screen
    }

    pub(crate) fn fail(&mut self, why: &str) -> ! {
        self.running.fail(why)
    }

    fn wait_for(&mut self, find: impl Fn(&str) -> Option<(usize, usize)>, what: &str) -> (usize, usize) {
        let deadline = Instant::now() + BOUND;
        loop {
            if let Some(found) = find(&self.screen[self.seen..]) {
                return found;
            }
            if !self.read_some(deadline) {
                self.fail(&format!("{what} did not appear on the terminal"));
            }
        }
    }

    fn read_what_is_there(&mut self) {
        while self.read_some(Instant::now()) {}
    }

    /// False when the time is over or nobody has the terminal open any more.
    fn read_some(&mut self, deadline: Instant) -> bool {
        let Some(master) = &self.master else { return false };
        let mut bytes = [0; 4096];
        loop {
            match rustix::io::read(master, &mut bytes) {
                Ok(0) | Err(Errno::IO) => return false,
                Ok(length) => {
                    self.screen.push_str(&String::from_utf8_lossy(&bytes[..length]));
                    return true;
                }
                Err(Errno::AGAIN) if deadline <= Instant::now() => return false,
                Err(Errno::AGAIN | Errno::INTR) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    let left = Timespec::try_from(left).expect("the bound is short");
                    let _ = rustix::event::poll(&mut [PollFd::new(master, PollFlags::IN)], Some(&left));
                }
                Err(error) => panic!("cannot read the terminal: {error}"),
            }
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.read_what_is_there();
            eprintln!("screen:\n{}", self.screen);
        }
    }
}

/// How long a run may last that is expected to end long before.
pub(crate) const LONG: Duration = Duration::from_secs(20);
