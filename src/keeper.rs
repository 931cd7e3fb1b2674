//! The keeper: parent of the command and subreaper of its tree. It owns the clock, the state machine and the messages.
//! It runs one poll loop, turns readiness into events and actions into system calls, and decides nothing itself.
//! It never has a second thread.

mod acting;
mod ending;
mod hearing;
mod keeping;
mod noting;
mod reaping;
mod session;
mod stopping;
mod telling;

use std::collections::BTreeSet;
use std::ffi::{CStr, OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, setpgid, setsid};

use crate::boundary::{Boundary, Refused};
use crate::plan::{Personality, Plan, Session, Verbosity};
use crate::report::{Report, Target};
use crate::signals::{Sig, SigSet};
use crate::spawn::{self, Birth, Command, Program};
use crate::supervisor::{Event, Supervisor};
use crate::sys::{self, Inherited, Memory};
use crate::tree::{Activity, Process, Tree};
use crate::voice::{Voice, cause, printable};
use crate::wire::{KeeperEnd, ToFront};
use reaping::Watch;
pub use session::leave_group;

/// What the front hands over. It is long, and each page of a stack that a copy of it enters costs a page fault: it is in a box.
pub struct Setup {
    /// What was settled before the first process.
    pub plan: Plan,
    /// The command line to run.
    pub command: Vec<OsString>,
    /// The state that the command gets back.
    pub inherited: Inherited,
    /// The process group of the front.
    pub group: Option<Pid>,
    /// The caller has a controlling terminal.
    pub has_terminal: bool,
    /// What is heard of others.
    pub ties: Ties,
    /// What has been settled of the report.
    pub report: Box<Report>,
    /// Where it goes.
    pub target: Option<Target>,
    /// Says what is to be said.
    pub voice: Voice,
}

/// What the keeper hears of others by.
pub struct Ties {
    /// Readable when one of our signals is pending; SIGCHLD among them.
    pub signals: OwnedFd,
    /// The way to the front.
    pub socket: KeeperEnd,
    /// The pidfd of the front.
    pub front: OwnedFd,
    /// The pidfd of the deputy, if there is one.
    pub deputy: Option<OwnedFd>,
    /// The pidfd of the caller, if its death is to end the tree.
    pub parent: Option<OwnedFd>,
    /// In terminal mode, the pidfds of those who keep the front's process group from being orphaned: of its ancestors up to
    /// the first in another group of the session, a shell with job control. None if it is.
    pub shells: Vec<OwnedFd>,
}

/// How the keeper ends once it has told the outcome: whoever reaps it need not look after the tree.
pub const TOLD: u8 = 0;
/// How it ends when it can't do its work: it is for others to end the tree.
pub const GAVE_UP: u8 = 1;

/// What keeper and deputy go by. Who ends processes by a name, or by a word of the command line, hits the front and the
/// command, and not all who could end the tree.
pub const NAME: &CStr = c"tk-keeper";

/// Takes its name and its place in the session, and becomes the subreaper.
///
/// # Errors
/// Those of setpgid(2), setsid(2) and prctl(2): nothing may be started then, since orphans would get away.
pub fn settle_in(setup: &Setup) -> Result<(), Errno> {
    sys::go_by(NAME);
    if setup.plan.session == Session::Own {
        // A session has its own share of the CPUs, sched(7), autogroup: a storm in the tree can't take it. Under GNU's rules the
        // tree is in it anyway, and only waits for its share where others take the CPUs: there a group is enough, unless the
        // command is to be kept from a terminal.
        let has_none = setup.plan.policy.personality == Personality::Gnu && !setup.has_terminal;
        let left = if has_none { setpgid(None, None) } else { Err(Errno::PERM) };
        left.or_else(|_| setsid().map(drop))?;
        // What was sent to the caller's group before that has reached the front too, and is the front's to pass on.
        let _ = sys::read_signals(setup.ties.signals.as_fd());
    }
    // Any number but 0 means yes, prctl(2).
    rustix::process::set_child_subreaper(Some(Pid::INIT))
}

/// Runs the command in this boundary and ends its tree; gives the status to end with.
pub fn run(setup: Box<Setup>, boundary: Box<dyn Boundary>) -> u8 {
    let Setup { plan, command, inherited, group, ties, mut report, target, voice, .. } = *setup;
    let program = Program::new(&command, std::env::var_os("PATH").as_deref());
    let (boundary, begun) = begin(boundary, &ties);
    let is_in_namespace = boundary.namespace().is_some();
    let birth = Birth {
        inherited,
        join_group: group.filter(|_| plan.session == Session::Callers),
        founds_group: plan.session == Session::Own && plan.policy.personality == Personality::Gnu && !is_in_namespace,
        dies_with_keeper: plan.policy.guard,
        no_new_privs: plan.no_new_privs,
        memory: if plan.limits.memory.is_some() { Memory::Copied } else { Memory::Shared },
        boundary,
    };
    if target.is_some() || plan.has_stats {
        boundary.count();
    }
    let born = begun.map(|()| spawn::spawn(program, &birth));
    leave_group(plan.session, &ties);
    let start = sys::now();
    report.begin(command);
    let mut keeper = Keeper {
        supervisor: Supervisor::new(plan.policy.clone(), start),
        tree: Tree::new(boundary),
        boundary,
        plan: &plan,
        command: None,
        start,
        callers_group: group,
        group: None,
        receivers: None,
        asked: BTreeSet::new(),
        leftovers: noting::ByPid::new(),
        activity: Activity::default(),
        early: SigSet::default(),
        must_reap: false,
        refused: None,
        watch: None,
        front_is_stopped: false,
        stops_told: 0,
        has_killed: false,
        is_helpless: false,
        ties,
        report,
        target,
        voice,
    };
    match born {
        Ok(Ok(mut command)) => {
            command.let_go();
            keeper.begin(command);
            keeper.supervise();
        }
        Ok(Err(error)) => keeper.could_not_spawn(&error),
        Err(refused) => keeper.refused = Some(refused),
    }
    keeper.end()
}

/// Begins the boundary, and says to a front behind a deputy that there may be a tree from here on.
fn begin(boundary: Box<dyn Boundary>, ties: &Ties) -> (&'static dyn Boundary, Result<(), Refused>) {
    // This process ends with the run, and the kernel closes its descriptors faster than we do.
    let boundary = Box::leak(boundary);
    let begun = boundary.begin();
    if ties.deputy.is_some() && begun.is_ok() && boundary.namespace().is_none() {
        // A deputy that dies before this leaves nothing to be swept; a namespace never does.
        let _ = ties.socket.send(ToFront::Begun);
    }
    (boundary, begun)
}

struct Keeper<'a> {
    supervisor: Supervisor,
    tree: Tree<'a>,
    boundary: &'a dyn Boundary,
    plan: &'a Plan,
    /// The command until it is reaped.
    command: Option<Command>,
    start: Duration,
    /// That of the front.
    callers_group: Option<Pid>,
    /// The process group that the command was born into.
    group: Option<i32>,
    /// Who got the first signal of the stop, from us or from the terminal, once there was one.
    receivers: Option<Vec<Process>>,
    /// Those of them who were sent SIGTERM because they ignore another signal.
    asked: BTreeSet<i32>,
    /// Where those of the report's leftovers are whose end is not known yet.
    leftovers: noting::ByPid,
    /// What the tree has done.
    activity: Activity,
    /// What came from the terminal before we left the caller's group, until the front tells of it too.
    early: SigSet,
    /// Children may have news.
    must_reap: bool,
    /// What kept the command from its boundary: it is the front's to choose another.
    refused: Option<Refused>,
    /// Set while no child is left and the boundary is still populated.
    watch: Option<Watch>,
    /// The front was told to stop, and not yet to go on.
    front_is_stopped: bool,
    /// How often it was told, modulo 256.
    stops_told: u8,
    /// SIGKILL was sent to the tree.
    has_killed: bool,
    /// SIGKILL can't be sent from here: the front is to try.
    is_helpless: bool,
    ties: Ties,
    report: Box<Report>,
    target: Option<Target>,
    voice: Voice,
}

/// What poll(2) found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wake {
    Signals,
    Frames,
    FrontDied,
    DeputyDied,
    ParentDied,
    ShellDied,
    News,
    Boundary,
}

impl Keeper<'_> {
    fn begin(&mut self, command: Command) {
        self.report.pid = Some(command.pid.as_raw_pid());
        if self.target.is_some() || self.plan.verbosity == Verbosity::Verbose {
            self.report.backend.degraded = self.tree.degraded();
        }
        self.group = Some(command.group.as_raw_pid());
        self.command = Some(command);
        // What the terminal sent before the command was there comes before what it sends now.
        if self.plan.policy.is_in_terminal {
            self.take_early_signals();
        }
    }

    fn supervise(&mut self) {
        while !self.supervisor.is_over() {
            let wakes = self.wait().unwrap_or_else(|errno| {
                self.break_off("cannot wait for the command", errno);
                vec![]
            });
            // Before anything can be known of its end.
            self.hear_news();
            self.look_at_clock();
            if wakes.contains(&Wake::Signals) {
                self.take_signals();
            }
            // Children come before the frames: what a signal means depends on whether the command is stopped.
            if self.must_reap {
                self.reap();
            }
            for wake in wakes {
                self.answer(wake);
            }
            if self.watch.as_ref().is_some_and(|watch| sys::now() >= watch.at) {
                self.look_at_boundary();
            }
        }
    }

    /// Before anything else is answered, since that may take long when the tree takes the CPUs. Only what became of the
    /// command comes first: one that has ended in time has not timed out.
    fn look_at_clock(&mut self) {
        if self.supervisor.next_deadline().is_some_and(|deadline| sys::now() >= deadline) {
            if let Some(command) = &self.command {
                self.take_reaped(sys::reap_only(command.pid));
            }
            self.handle(Event::Tick);
        }
    }

    /// Blocks until something happens or the next deadline comes. Every wake-up is a hint.
    ///
    /// # Errors
    /// Those of poll(2).
    fn wait(&self) -> Result<Vec<Wake>, Errno> {
        let watch = self.watch.as_ref();
        let news = self.command.as_ref().filter(|_| self.tells_the_start());
        let news = news.and_then(|command| command.news.as_ref()).map(AsFd::as_fd);
        let events = watch.and_then(|_| self.boundary.events());
        let sources = [
            (Wake::Signals, Some(self.ties.signals.as_fd())),
            (Wake::Frames, Some(self.ties.socket.as_fd())),
            (Wake::FrontDied, Some(self.ties.front.as_fd())),
            (Wake::DeputyDied, self.ties.deputy.as_ref().map(AsFd::as_fd)),
            (Wake::ParentDied, self.ties.parent.as_ref().map(AsFd::as_fd)),
            (Wake::News, news),
            (Wake::Boundary, events),
        ];
        let shells = self.ties.shells.iter().map(|shell| (Wake::ShellDied, Some(shell.as_fd())));
        let (wakes, mut fds): (Vec<Wake>, Vec<PollFd<'_>>) = sources
            .into_iter()
            .chain(shells)
            .filter_map(|(wake, fd)| {
                let flags = if wake == Wake::Boundary { PollFlags::PRI } else { PollFlags::IN };
                Some((wake, PollFd::from_borrowed_fd(fd?, flags)))
            })
            .unzip();
        let deadline = match self.must_reap {
            true => Some(Duration::ZERO),
            false => self.supervisor.next_deadline().into_iter().chain(watch.map(|watch| watch.at)).min(),
        };
        let timeout = deadline.map(|deadline| to_timespec(deadline.saturating_sub(sys::now())));
        poll(&mut fds, timeout.as_ref())?;
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        Ok(wakes.into_iter().zip(&fds).filter(|(_, fd)| is_ready(fd)).map(|(wake, _)| wake).collect())
    }

    /// Without eyes and ears there is nothing to supervise by: the tree is ended, whatever the run was about.
    fn break_off(&mut self, what: &str, errno: Errno) {
        if errno != Errno::INTR {
            self.voice.error(format_args!("{what}: {}", cause(errno.raw_os_error())));
            self.handle(Event::Broken);
        }
    }

    fn answer(&mut self, wake: Wake) {
        match wake {
            Wake::Frames => self.take_frames(),
            Wake::FrontDied => self.handle(Event::FrontDied),
            Wake::DeputyDied => {
                self.ties.deputy = None;
                self.voice.error("the process between the caller's and the keeper was killed");
                self.handle(Event::Broken);
            }
            Wake::ParentDied => {
                self.ties.parent = None;
                self.handle(Event::ParentDied);
            }
            Wake::ShellDied => self.leave_session(),
            // Answered before the others.
            Wake::Signals | Wake::News => {}
            Wake::Boundary => self.look_at_boundary(),
        }
    }

    fn handle(&mut self, event: Event) {
        let actions = self.supervisor.on_event(sys::now(), event);
        if self.supervisor.is_stopping() {
            self.voice.hold();
        }
        for action in actions {
            self.perform(action);
        }
    }

    /// What the user typed as the program's name.
    fn program(&self) -> &OsStr {
        self.report.command.first().map_or(OsStr::new(""), OsString::as_os_str)
    }

    /// How messages call the command.
    fn name(&self) -> String {
        format!("'{}'", printable(&self.program().to_string_lossy()))
    }

    fn record(&mut self, action: &'static str, signal: Option<Sig>, count: Option<usize>) {
        self.report.step(sys::now() - self.start, action, signal, count);
    }
}

fn to_timespec(duration: Duration) -> Timespec {
    // Beyond what the kernel can count a deadline never comes: a wake-up in a year does no harm.
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    Timespec::try_from(duration.min(YEAR)).expect("a year fits")
}
