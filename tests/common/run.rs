//! A run of treekill-run as a test describes it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, set_parent_process_death_signal, setsid};

use super::readiness;
use super::running::open_process;
use super::tether::Tether;
use super::{Backend, Ended, MARK, Nest, PROC, Running, Scratch, TETHER, TETHER_PATH, fixture, sys, unique, wrapper};

type Setup = Box<dyn FnMut() -> io::Result<()> + Send + Sync>;

/// Builder of a run. Without a word to the contrary: a session of its own (so no terminal), a null stdin, stdout and
/// stderr kept for the test, and nothing may be left when the wrapper returns.
pub(crate) struct Run {
    wrapper: PathBuf,
    options: Vec<OsString>,
    command: Vec<OsString>,
    before: Vec<OsString>,
    after: Vec<OsString>,
    setups: Vec<Setup>,
    /// A set of signals that the command waits for, as a mask of the kernel's.
    awaited: u64,
    environment: Vec<(OsString, OsString)>,
    directory: Option<PathBuf>,
    stdin: Stdio,
    stdout: Option<Stdio>,
    stderr: Option<Stdio>,
    user: Option<u32>,
    nest: Option<Nest>,
    gate: Option<OwnedFd>,
    makes_cgroups: bool,
    dies_with_thread: bool,
    has_tether: bool,
    names_tether: bool,
    has_proc: bool,
    may_leave: bool,
    report: Option<Scratch>,
}

impl Run {
    pub(crate) fn new(backend: Backend) -> Run {
        Run {
            wrapper: wrapper(),
            options: vec!["--backend".into(), backend.name().into()],
            command: Vec::new(),
            before: Vec::new(),
            after: Vec::new(),
            setups: Vec::new(),
            awaited: 0,
            environment: Vec::new(),
            directory: None,
            stdin: Stdio::null(),
            stdout: None,
            stderr: None,
            user: None,
            nest: None,
            gate: None,
            makes_cgroups: false,
            dies_with_thread: true,
            has_tether: true,
            names_tether: false,
            has_proc: backend == Backend::Pidns,
            may_leave: false,
            report: None,
        }
    }

    /// A command run in the same way, but by another program (or by none, with an empty list): a control.
    pub(crate) fn control<S: AsRef<OsStr>>(words: impl IntoIterator<Item = S>) -> Run {
        let mut run = Run::new(Backend::Auto);
        run.options.clear();
        run.wrapper = PathBuf::new();
        run.before = owned(words);
        run.may_leave = true;
        run
    }

    /// Processes of this backend's are in the run, whatever starts them.
    pub(crate) fn with(mut self, backend: Backend) -> Run {
        self.has_proc = backend == Backend::Pidns;
        self
    }

    /// Options of treekill-run, separated by blanks.
    pub(crate) fn options(self, words: &str) -> Run {
        self.option_list(words.split_whitespace())
    }

    pub(crate) fn option_list<S: AsRef<OsStr>>(mut self, words: impl IntoIterator<Item = S>) -> Run {
        self.options.extend(owned(words));
        self
    }

    /// The command and its arguments.
    pub(crate) fn command<S: AsRef<OsStr>>(mut self, words: impl IntoIterator<Item = S>) -> Run {
        self.command = owned(words);
        self
    }

    /// The fixture with these steps (see tests/fixture/script.rs) is the command.
    pub(crate) fn fixture(mut self, steps: &str) -> Run {
        let awaited = readiness::awaited(steps.split_whitespace().map(str::as_bytes));
        self.awaited = awaited.into_iter().fold(0, |mask, signal| mask | 1 << (signal as i32 - 1));
        let program = fixture().into_os_string();
        self.command(std::iter::once(program).chain(steps.split_whitespace().map(OsString::from)))
    }

    /// A bash script is the command.
    pub(crate) fn bash(self, script: &str) -> Run {
        self.command(["bash", "-c", script])
    }

    /// The wrapper is started by the fixture, whose steps end where the wrapper's words begin and go on behind them:
    /// `called_by("fork [ exec", "] say ready hang")`.
    pub(crate) fn called_by(mut self, before: &str, after: &str) -> Run {
        self.before = vec![fixture().into_os_string()];
        self.before.extend(owned(before.split_whitespace()));
        self.after = owned(after.split_whitespace());
        self
    }

    /// These words come before the wrapper's.
    pub(crate) fn prefixed<S: AsRef<OsStr>>(mut self, words: impl IntoIterator<Item = S>) -> Run {
        self.before = owned(words);
        self
    }

    /// Runs in the child before exec; only system calls are allowed there.
    pub(crate) fn setup(mut self, setup: impl FnMut() -> io::Result<()> + Send + Sync + 'static) -> Run {
        self.setups.push(Box::new(setup));
        self
    }

    pub(crate) fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Run {
        self.environment.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    pub(crate) fn directory(mut self, path: impl AsRef<Path>) -> Run {
        self.directory = Some(path.as_ref().to_owned());
        self
    }

    pub(crate) fn stdin(mut self, stdin: impl Into<Stdio>) -> Run {
        self.stdin = stdin.into();
        self
    }

    /// Stdin is a pipe; who reads from it waits until the test opens the gate.
    pub(crate) fn gated(mut self) -> Run {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe can be had");
        self.gate = Some(write);
        self.stdin(read)
    }

    pub(crate) fn stdout(mut self, stdout: impl Into<Stdio>) -> Run {
        self.stdout = Some(stdout.into());
        self
    }

    pub(crate) fn stderr(mut self, stderr: impl Into<Stdio>) -> Run {
        self.stderr = Some(stderr.into());
        self
    }

    /// Runs as this user, in a cgroup subtree handed to that user.
    pub(crate) fn by_user(mut self, user: u32) -> Run {
        self.user = Some(user);
        self
    }

    /// Runs in this cgroup instead of a new one.
    pub(crate) fn within(mut self, nest: Nest) -> Run {
        self.nest = Some(nest);
        self
    }

    /// The command makes cgroups where only its own backend could remove them.
    pub(crate) fn makes_cgroups(mut self) -> Run {
        self.makes_cgroups = true;
        self
    }

    /// The wrapper outlives the thread that starts it.
    pub(crate) fn outliving_its_thread(mut self) -> Run {
        self.dies_with_thread = false;
        self
    }

    /// No process of the run gets the tether.
    pub(crate) fn untethered(mut self) -> Run {
        self.has_tether = false;
        self
    }

    /// The run's environment says where the tether can be opened again by those who lost its descriptor.
    pub(crate) fn naming_the_tether(mut self) -> Run {
        self.names_tether = true;
        self
    }

    /// Processes may be alive when the wrapper returns; they are killed with the test.
    pub(crate) fn may_leave(mut self) -> Run {
        self.may_leave = true;
        self
    }

    /// Asks for a report, which `Ended::report` reads.
    pub(crate) fn report(mut self) -> Run {
        let scratch = Scratch::new();
        let file = scratch.join("report.json");
        self.report = Some(scratch);
        self.option_list([OsStr::new("--report"), file.as_os_str()])
    }

    /// The wrapper's words as another wrapper's command.
    pub(crate) fn words(&self) -> Vec<OsString> {
        let mut words = self.before.clone();
        if !self.wrapper.as_os_str().is_empty() {
            words.push(self.wrapper.clone().into_os_string());
            words.extend(self.options.iter().cloned());
            words.push("--".into());
        }
        words.extend(self.command.iter().cloned());
        words.extend(self.after.iter().cloned());
        words
    }

    /// Starts it.
    pub(crate) fn spawn(self) -> Running {
        let words = self.words();
        let mark = unique();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).envs(self.environment).env(MARK, &mark);
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        let (stdout, stderr) = (memory("stdout"), memory("stderr"));
        command.stdin(self.stdin);
        command.stdout(self.stdout.unwrap_or_else(|| shared(&stdout)));
        command.stderr(self.stderr.unwrap_or_else(|| shared(&stderr)));

        // Joining the nest may need root's rights, so it comes before the change of user; that change clears the
        // parent-death signal (prctl(2)), which therefore comes after it.
        let nest = self.nest.or_else(Nest::new);
        if let Some(nest) = &nest {
            nest.receive(&mut command);
        }
        if let (Some(user), Some(nest)) = (self.user, &nest) {
            nest.delegate(user);
        }
        if let (Some(user), Some(scratch)) = (self.user, &self.report) {
            std::os::unix::fs::chown(scratch.path(), Some(user), Some(user)).expect("root gives away a directory");
        }
        let forking = sys::forking();
        let mut tether = Tether::new();
        let (write_end, has_tether) = (tether.write_end(), self.has_tether);
        if self.names_tether {
            command.env(TETHER_PATH, tether.path());
        }
        let proc = self.has_proc.then(|| sys::out_of_the_way(File::open("/proc").expect("it is there")));
        let (user, dies_with_thread) = (self.user, self.dies_with_thread);
        sys::before_exec(&mut command, move || {
            if has_tether {
                sys::give_descriptor(write_end, TETHER)?;
            }
            if let Some(proc) = &proc {
                sys::give_descriptor(proc.as_raw_fd(), PROC)?;
            }
            setsid()?;
            if let Some(user) = user {
                sys::become_user(user)?;
            }
            if dies_with_thread {
                set_parent_process_death_signal(Some(Signal::KILL))?;
            }
            Ok(())
        });
        // The wrapper hands its mask down. Other programs need the signals that it blocks.
        if !self.wrapper.as_os_str().is_empty() {
            let awaited = self.awaited;
            sys::before_exec(&mut command, move || sys::block(awaited));
        }
        for setup in self.setups {
            sys::before_exec(&mut command, setup);
        }
        let started = Instant::now();
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot start {words:?}: {error}"));
        tether.let_go();
        drop(forking);
        let pidfd = open_process(child.id()).expect("our unreaped child has a pidfd");
        Running {
            child,
            pidfd,
            started,
            words,
            mark,
            tether,
            unasked: Vec::new(),
            nest,
            output: (stdout, stderr),
            report: self.report,
            may_leave: self.may_leave,
            makes_cgroups: self.makes_cgroups,
            gate: self.gate,
            status: None,
        }
    }

    /// Starts it and waits for its end.
    pub(crate) fn finish(self) -> Ended {
        self.spawn().wait()
    }
}

fn owned<S: AsRef<OsStr>>(words: impl IntoIterator<Item = S>) -> Vec<OsString> {
    words.into_iter().map(|word| word.as_ref().to_owned()).collect()
}

/// A file without a name: it can be read at leisure, and no reader has to keep up.
fn memory(name: &str) -> File {
    memfd_create(name, MemfdFlags::CLOEXEC).expect("a file in memory can be had").into()
}

/// The same open file for a child.
fn shared(file: &File) -> Stdio {
    file.try_clone().expect("a descriptor can be duplicated").into()
}
