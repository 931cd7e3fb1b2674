//! What the keeper is told: how exec went, signals, and what the front says.

use std::ffi::OsStr;
use std::fs::{Metadata, OpenOptions};
use std::io::Read as _;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use nix::libc::{ENOENT, O_NONBLOCK};

use super::Keeper;
use crate::outcome::Failure;
use crate::signals::Sig;
use crate::spawn::{self, News, Trouble};
use crate::supervisor::Event;
use crate::sys::{self, Incoming};
use crate::voice::{cause, dangling, printable};
use crate::wire::{Source, ToFront, ToKeeper};

impl Keeper<'_> {
    /// Whether somebody is to know of the start at once. Otherwise it is early enough to hear of it with whatever comes next,
    /// as does the end of a child that could not exec: that saves each run a wake-up.
    pub(super) fn tells_the_start(&self) -> bool {
        self.boundary.namespace().is_some() || self.is_verbose()
    }

    fn say_started(&mut self) {
        if self.boundary.namespace().is_some() {
            // A front that is dead is told by its pidfd.
            let _ = self.ties.socket.send(ToFront::Started);
        }
        if !self.is_verbose() {
            return;
        }
        let (name, boundary) = (self.name(), self.boundary.name());
        self.voice.step(format_args!("started {name} as {} in {boundary}", self.report.pid.unwrap_or_default()));
        if let Some(degraded) = self.report.backend.degraded {
            self.voice.step(format_args!("the guarantee is weaker here: {degraded}"));
        }
    }

    /// Reads how exec went, once it is known.
    pub(super) fn hear_news(&mut self) {
        let Some(command) = &mut self.command else { return };
        let trouble = match command.take_news() {
            News::Trouble(trouble) => trouble,
            News::Gone => return self.say_started(),
            News::Pending => return,
        };
        let name = self.name();
        let failure = match trouble {
            Trouble::Exec(errno) => {
                self.voice.error(format_args!("cannot run {name}: {}", why_not_run(self.program(), errno)));
                Failure::Exec(errno)
            }
            Trouble::Cgroup(errno) => {
                self.voice.error(format_args!("cannot move {name} into its cgroup: {}", cause(errno)));
                Failure::Internal
            }
            Trouble::Namespace(refused) => {
                self.refused = Some(refused);
                Failure::Internal
            }
            Trouble::Session(errno) => {
                self.voice.error(format_args!("cannot place {name} in its session: {}", cause(errno)));
                Failure::Internal
            }
        };
        self.handle(Event::NotStarted(failure));
    }

    pub(super) fn take_signals(&mut self) {
        for incoming in self.read_signals() {
            // To the caller's group, while we left the session by way of it: the command has had it, and so has the front.
            if !self.is_terminals(&incoming) {
                self.take_signal(&incoming);
            }
        }
    }

    /// Takes what has come before we left the caller's group. What the terminal sent the command has missed, and the front,
    /// which has it too, may take it to have reached it.
    pub(super) fn take_early_signals(&mut self) {
        for incoming in self.read_signals() {
            if self.is_terminals(&incoming) {
                self.early.insert(incoming.sig);
                self.handle(Event::Signal(incoming.sig, Source::EarlyTerminal));
            } else {
                self.take_signal(&incoming);
            }
        }
    }

    fn read_signals(&mut self) -> Vec<Incoming> {
        sys::read_signals(self.ties.signals.as_fd()).unwrap_or_else(|errno| {
            self.break_off("cannot read signals", errno);
            vec![]
        })
    }

    fn is_terminals(&self, incoming: &Incoming) -> bool {
        self.plan.policy.is_in_terminal && incoming.is_from_kernel && incoming.sig.is_from_terminals()
    }

    fn take_signal(&mut self, incoming: &Incoming) {
        let is_own = incoming.pid == sys::own_pid().as_raw_pid().unsigned_abs();
        match incoming.sig {
            Sig::CHLD => self.must_reap = true,
            // A write of our own to a closed pipe, or beyond a limit of file size.
            _ if is_own => {}
            // Job control that is meant for the front.
            Sig::CONT | Sig::TSTP | Sig::TTIN | Sig::TTOU => {}
            // Whoever signals the command's parent means the run.
            sig => self.handle(Event::Signal(sig, Source::Process)),
        }
    }

    pub(super) fn take_frames(&mut self) {
        loop {
            let frame = match self.ties.socket.receive() {
                Ok(Some(frame)) => frame,
                Ok(None) => return,
                Err(errno) => return self.break_off("cannot hear the caller's process", errno),
            };
            match frame {
                // It belongs to the stop of the job that the front has yet to follow, and that fg may have ended by now.
                ToKeeper::Signal { sig, stops, .. } if sig.is_job_stop() && self.is_outdated(stops) => {}
                // We have had it as well, and have handled it.
                ToKeeper::Signal { sig, source: Source::EarlyTerminal, .. } if self.early.contains(sig) => {
                    self.early = self.early.without([sig].into_iter().collect());
                }
                ToKeeper::Signal { sig, source, .. } => self.handle(Event::Signal(sig, source)),
                // Taken before there was a command.
                ToKeeper::Admitted => {}
                ToKeeper::Continued { stops } => {
                    // The command may have been continued with the front, and stopped again since: that stop is to stay.
                    self.reap();
                    if !self.is_outdated(stops) {
                        self.handle(Event::Signal(Sig::CONT, Source::Process));
                    }
                }
            }
        }
    }

    /// Whether a frame left the front before it had heard of the last stop of the job that both share.
    fn is_outdated(&self, stops: u8) -> bool {
        self.plan.policy.is_in_terminal && stops != self.stops_told
    }
}

/// What execve(2) did not find: it says the same of a command, of what a link leads to and of an interpreter.
fn why_not_run(program: &OsStr, errno: i32) -> String {
    if errno != ENOENT {
        return cause(errno);
    }
    let is_looked_for = !program.is_empty() && !program.as_bytes().contains(&b'/');
    match spawn::place(program, std::env::var_os("PATH").as_deref()) {
        None if is_looked_for => "not found in PATH".into(),
        None => cause(errno),
        Some(file) => dangling(&file).or_else(|| missing_interpreter(&file)).unwrap_or_else(|| cause(errno)),
    }
}

/// The interpreter that a script names in its first line, if there is none, execve(2).
fn missing_interpreter(script: &Path) -> Option<String> {
    // Opening what is no regular file could wait, also if it is put there in between.
    script.metadata().ok().filter(Metadata::is_file)?;
    let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(script).ok()?;
    let mut start = vec![];
    file.take(LONGEST_FIRST_LINE).read_to_end(&mut start).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?.trim_ascii_start();
    let name = OsStr::from_bytes(line.split(|byte| matches!(byte, b' ' | b'\t')).next()?);
    let is_missing = !Path::new(name).exists();
    is_missing.then(|| format!("its interpreter '{}' does not exist", printable(&name.to_string_lossy())))
}

/// What the kernel reads of it, execve(2).
const LONGEST_FIRST_LINE: u64 = 256;
