//! Random trees under treekill-run: whatever they do, nothing is alive when it returns, and nobody else is hit.
//!
//! A failure prints the seed of its tree; `TREEKILL_CHAOS_SEED=N TREEKILL_CHAOS_TREES=1` grows that one again, and
//! `TREEKILL_CHAOS_TREES` alone is how many are grown on each backend.

mod common;

#[allow(dead_code, reason = "how a tree is grown is the fixture's business")]
#[path = "fixture/tree/plan.rs"]
mod plan;

use std::fmt;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{BOUND, Backend, Nest, Run, kin, needs};
use plan::{Dice, End, Plan, Reaction};
use rustix::process::Signal;

/// How many trees are in the air at a time on each backend: they spend most of their lives waiting.
const WORKERS: usize = 2;

/// What the wrapper is asked to do with a tree, times in milliseconds.
#[derive(Debug)]
struct Scenario {
    timeout: Option<u64>,
    kill_after: u64,
    leftover_grace: u64,
    waits_for_leftovers: bool,
    /// Microseconds after the start, and what is sent to the front then.
    signals: Vec<(u64, Signal)>,
}

impl Scenario {
    fn of_seed(seed: u64, plan: &Plan) -> Scenario {
        let mut dice = Dice::new(!seed);
        let has_timeout = !plan.command_ends() || dice.percent(50);
        let timeout = 1 + dice.below(60);
        let mut scenario = Scenario {
            timeout: has_timeout.then_some(timeout),
            kill_after: 1 + dice.below(60),
            leftover_grace: dice.below(30),
            waits_for_leftovers: has_timeout && dice.percent(15),
            signals: Vec::new(),
        };
        for chance in [40, 15] {
            if dice.percent(chance) {
                let signal =
                    dice.pick(&[Signal::TERM, Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1]);
                scenario.signals.push((dice.below(50_000), signal));
            }
        }
        scenario.signals.sort_by_key(|(at, _)| *at);
        scenario
    }

    fn options(&self) -> String {
        let Scenario { kill_after, leftover_grace, .. } = self;
        let timeout = self.timeout.unwrap_or(0);
        let policy = if self.waits_for_leftovers { "wait" } else { "kill" };
        format!(
            "--timeout {timeout}ms --kill-after {kill_after}ms --leftovers {policy} --leftover-grace {leftover_grace}ms"
        )
    }

    /// The statuses that the exit table knows for this command, these options and these signals.
    fn allowed(&self, plan: &Plan, was_set_up: bool) -> Vec<Status> {
        let command = plan.command();
        let is_signalled = !self.signals.is_empty();
        let mut allowed = Vec::new();
        match command.end {
            End::Exit(0) | End::ThreadExit(0) => {
                // A stop that a signal began before the command's end leaves no leftovers behind.
                if is_signalled || self.waits_for_leftovers || !plan.surely_leaves_somebody() {
                    allowed.push(Status::Code(0));
                }
                allowed.push(Status::Code(193));
            }
            End::Exit(status) | End::ThreadExit(status) => allowed.push(Status::Code(status)),
            End::Signal(signal) => allowed.push(Status::Death(signal)),
            End::Never | End::Stop | End::Freeze => {}
        }
        // The default is death by the first signal. It comes at once, unless the command is stopped or frozen then, or so
        // new that it has everything blocked, as a new thread has, or has to act itself, since a core dump may go with it.
        let acts_late = matches!(command.end, End::Stop | End::Freeze | End::ThreadExit(_));
        let dies_late = !was_set_up || acts_late || self.sends(Signal::QUIT);
        let can_need_kill = command.reaction != Reaction::Default || dies_late;
        if self.timeout.is_some() {
            allowed.push(Status::Code(124));
        }
        if can_need_kill && (self.timeout.is_some() || is_signalled) {
            allowed.push(Status::Code(137));
        }
        // A signal may come before the command has set its reaction up, or even before the front has.
        allowed.extend(self.signals.iter().map(|(_, signal)| Status::Death(signal.as_raw())));
        if let (Reaction::Exit { status, .. }, true) = (command.reaction, is_signalled) {
            allowed.push(Status::Code(status));
        }
        allowed
    }

    fn sends(&self, wanted: Signal) -> bool {
        self.signals.iter().any(|(_, signal)| *signal == wanted)
    }

    /// The longest that the wrapper may take on a machine that is busy with other things too.
    fn bound(&self) -> Duration {
        let own = self.timeout.unwrap_or(0) + self.kill_after + self.leftover_grace;
        Duration::from_millis(own) + BOUND / 2
    }
}

/// How the wrapper ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Code(u8),
    Death(i32),
}

impl From<ExitStatus> for Status {
    fn from(status: ExitStatus) -> Status {
        match (status.code(), status.signal()) {
            (Some(code), _) => Status::Code(u8::try_from(code).expect("an exit status is a byte")),
            (None, signal) => Status::Death(signal.expect("it exited or died")),
        }
    }
}

/// A process that has nothing to do with any tree.
struct Bystander(Child);

impl Bystander {
    fn new() -> Bystander {
        // It ends with its stdin, and so with this test.
        Bystander(Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("cat is everywhere"))
    }

    fn is_alive(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A PID namespace that exists before the tree that escapes into it; its end is the end of all in it.
struct Elsewhere(Child);

impl Elsewhere {
    fn new() -> Elsewhere {
        let mut child = Command::new("unshare")
            .args(["--pid", "--fork", "--kill-child", "sh", "-c", "echo ready && exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("root makes PID namespaces");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it was asked for");
        BufReader::new(stdout).read_line(&mut line).expect("its first process says that it is there");
        assert_eq!(line, "ready\n");
        Elsewhere(child)
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/pid_for_children", self.0.id())
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What all trees together came to.
#[derive(Default)]
struct Totals {
    trees: AtomicU64,
    processes: AtomicU64,
    survivors: AtomicU64,
    strangers: AtomicU64,
    leaves: AtomicU64,
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (trees, processes) = (of(&self.trees), of(&self.processes));
        let (survivors, strangers, leaves) = (of(&self.survivors), of(&self.strangers), of(&self.leaves));
        write!(f, "trees {trees} processes {processes} survivors {survivors} strangers {strangers} leaves {leaves}")
    }
}

/// Counts what must be nothing and fails when it is not.
fn none_of(count: &AtomicU64, found: &[impl fmt::Debug], what: &str) {
    count.fetch_add(found.len() as u64, Ordering::Relaxed);
    assert!(found.is_empty(), "{what}: {found:?}");
}

/// Grows trees one after the other.
struct Grower<'a> {
    backend: Backend,
    totals: &'a Totals,
    bystander: Bystander,
    /// A cgroup outside every boundary.
    away: Option<Nest>,
    /// There are PID namespaces to escape into.
    has_elsewhere: bool,
}

impl Grower<'_> {
    fn grow(&mut self, seed: u64) {
        let plan = Plan::of_seed(seed);
        let scenario = Scenario::of_seed(seed, &plan);
        let elsewhere = (plan.escapes() && self.has_elsewhere).then(Elsewhere::new);
        let mut steps = format!("tree grow --seed {seed}");
        if let Some(away) = &self.away {
            steps += &format!(" --away {}", away.path().display());
        }
        if let Some(elsewhere) = &elsewhere {
            steps += &format!(" --elsewhere {}", elsewhere.path());
        }
        let started = Instant::now();
        let mut running = Run::new(self.backend).options(&scenario.options()).fixture(&steps).may_leave().spawn();
        for (at, signal) in &scenario.signals {
            // The moment is what is tried here, so this is the one place that sleeps.
            std::thread::sleep((started + Duration::from_micros(*at)).saturating_duration_since(Instant::now()));
            running.signal(*signal);
        }
        let ended = running.wait();

        // Ancestry alone cannot hold those who joined another PID namespace: they are escaped, not overlooked.
        if elsewhere.is_none() || self.backend == Backend::Cgroup {
            let survivors: Vec<u32> =
                [running.nest(), self.away.as_ref()].into_iter().flatten().flat_map(Nest::members).collect();
            none_of(&self.totals.survivors, &survivors, "alive after the return");
        }
        drop(elsewhere);
        running.all_die();
        none_of(&self.totals.leaves, &kin::leaves(running.nest()), "leaves that were not removed");
        let strangers = if self.bystander.is_alive() { &[][..] } else { &["the bystander"] };
        none_of(&self.totals.strangers, strangers, "killed, and nobody's child");

        let was_set_up = ended.lines.iter().any(|line| line == "born 0");
        let (status, allowed) = (Status::from(ended.status), scenario.allowed(&plan, was_set_up));
        assert!(allowed.contains(&status), "{status:?} is none of {allowed:?}\n{scenario:?}\n{plan:#?}\n{ended}");
        ended.took_less_than(scenario.bound());
        self.totals.trees.fetch_add(1, Ordering::Relaxed);
        self.totals.processes.fetch_add(ended.count("born") as u64, Ordering::Relaxed);
    }
}

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number, not '{text}'")))
}

/// Grows every `WORKERS`th tree and says the seed of the one that failed.
fn grow_some(backend: Backend, totals: &Totals, seeds: impl Iterator<Item = u64>) {
    let has_elsewhere = needs::is_root() && needs::has("pidns");
    let mut grower = Grower { backend, totals, bystander: Bystander::new(), away: Nest::new(), has_elsewhere };
    for seed in seeds {
        let grown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| grower.grow(seed)));
        if let Err(panic) = grown {
            eprintln!("failed: TREEKILL_CHAOS_SEED={seed} TREEKILL_CHAOS_TREES=1, backend {}", backend.name());
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn random_trees_leave_nothing_alive_and_no_stranger_is_hit() {
    let trees = number_from("TREEKILL_CHAOS_TREES").unwrap_or(100);
    let first = number_from("TREEKILL_CHAOS_SEED").unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(0, |time| time.as_secs()) * 1_000_000
    });
    let mut backends = vec![Backend::Subreaper];
    if needs::has("cgroup") {
        backends.push(Backend::Cgroup);
    }
    let totals = Totals::default();
    let panics: Vec<_> = std::thread::scope(|scope| {
        let worker = |backend, worker| {
            let (seeds, totals) = ((first..first + trees).skip(worker).step_by(WORKERS), &totals);
            scope.spawn(move || grow_some(backend, totals, seeds))
        };
        let workers: Vec<_> =
            backends.iter().flat_map(|&backend| (0..WORKERS).map(move |number| worker(backend, number))).collect();
        workers.into_iter().filter_map(|worker| worker.join().err()).collect()
    });
    println!("{totals}");
    assert!(panics.is_empty(), "{} workers met a tree that failed, see above", panics.len());
}
