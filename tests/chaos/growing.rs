//! How trees are grown under a condition, and what they came to.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, Signal, set_parent_process_death_signal, setrlimit};

use crate::common::{BOUND, Fence, Run, fixture, needs, sys};
use crate::dice::Dice;
use crate::trees::{Bystander, Finding, Tree, Wrapper};

/// The memory of a worker's trees, and what presses on it.
const MEMORY: u64 = 64 << 20;
const HOG_MEBIBYTES: &str = "128";

/// What the trees have to bear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    Calm,
    /// Something takes all the memory that they and their wrapper may have, again and again.
    Memory,
    /// There is room for a few processes only, the wrapper's included.
    Pids,
    /// Two hundred wrappers start at once.
    Crowd,
    /// Front or keeper is killed at some moment.
    Killed,
}

impl Condition {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Condition::Calm => "calm",
            Condition::Memory => "memory",
            Condition::Pids => "pids",
            Condition::Crowd => "crowd",
            Condition::Killed => "killed",
        }
    }

    /// How many trees of a hundred.
    pub(crate) fn share(self) -> u64 {
        match self {
            Condition::Calm => 100,
            Condition::Killed | Condition::Pids => 60,
            Condition::Crowd => 50,
            Condition::Memory => 15,
        }
    }
}

/// What all trees of a backend came to.
#[derive(Default)]
pub(crate) struct Totals {
    trees: AtomicU64,
    processes: AtomicU64,
    pub(crate) survivors: AtomicU64,
    pub(crate) strangers: AtomicU64,
    pub(crate) leaves: AtomicU64,
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (trees, processes) = (of(&self.trees), of(&self.processes));
        let (survivors, strangers, leaves) = (of(&self.survivors), of(&self.strangers), of(&self.leaves));
        write!(f, "trees {trees} processes {processes} survivors {survivors} strangers {strangers} leaves {leaves}")
    }
}

impl Totals {
    /// Counts a tree; gives what is wrong with it.
    pub(crate) fn add(&self, finding: &Finding, bystander: &mut Bystander) -> Option<String> {
        let stranger_is_hit = !bystander.answers();
        if stranger_is_hit {
            *bystander = Bystander::new();
        }
        let add = |count: &AtomicU64, number: usize| count.fetch_add(number as u64, Ordering::Relaxed);
        add(&self.trees, 1);
        add(&self.processes, finding.processes);
        add(&self.survivors, finding.survivors.len());
        add(&self.strangers, usize::from(stranger_is_hit));
        add(&self.leaves, finding.leaves.len());
        let faults = [
            (!finding.survivors.is_empty()).then(|| format!("alive after the return: {:?}", finding.survivors)),
            (!finding.leaves.is_empty()).then(|| format!("leaves that were not removed: {:?}", finding.leaves)),
            stranger_is_hit.then(|| "killed, and nobody's child: the bystander".into()),
            finding.complaint.clone(),
        ];
        let faults: Vec<String> = faults.into_iter().flatten().collect();
        (!faults.is_empty()).then(|| faults.join("\n"))
    }
}

/// Grows trees under a condition.
pub(crate) struct Grower<'a> {
    wrapper: Wrapper,
    condition: Condition,
    totals: &'a Totals,
    pub(crate) bystander: Bystander,
    fence: Option<Fence>,
    /// There are PID namespaces to escape into.
    has_elsewhere: bool,
}

impl<'a> Grower<'a> {
    pub(crate) fn new(wrapper: Wrapper, condition: Condition, totals: &'a Totals) -> Grower<'a> {
        let fence = match condition {
            Condition::Memory | Condition::Pids => Fence::of(condition.name()),
            _ => None,
        };
        // Who goes there outlives a control on any machine.
        let is_ours = matches!(wrapper, Wrapper::Ours(_));
        let has_elsewhere = is_ours && needs::is_root() && needs::has("pidns");
        Grower { wrapper, condition, totals, bystander: Bystander::new(), fence, has_elsewhere }
    }

    pub(crate) fn plant(&self, seed: u64) -> Tree {
        let room = 1 + Dice::new(seed).below(12);
        let shape = |run: Run| match (self.condition, &self.fence) {
            (Condition::Pids, Some(fence)) => {
                fence.allow_processes(room);
                fence.around(run)
            }
            (Condition::Pids, None) => {
                let most = Some(own_tasks() + room - 1);
                run.setup(move || Ok(setrlimit(Resource::Nproc, Rlimit { current: most, maximum: most })?))
            }
            (_, Some(fence)) => fence.around(run),
            (_, None) => run,
        };
        Tree::plant(&self.wrapper, self.condition, seed, self.has_elsewhere, shape)
    }

    /// Grows a tree; gives what is wrong with it.
    pub(crate) fn grow(&mut self, seed: u64) -> Option<String> {
        let mut tree = self.plant(seed);
        if self.condition == Condition::Killed {
            tree.strike(seed);
        } else {
            tree.disturb();
        }
        self.totals.add(&tree.harvest(), &mut self.bystander)
    }

    /// Grows every one of these, or stops at the first fault.
    pub(crate) fn grow_all(&mut self, seeds: impl Iterator<Item = u64>) {
        let _hog = match &self.fence {
            Some(fence) if self.condition == Condition::Memory => Some(Hog::in_(fence)),
            _ => None,
        };
        for seed in seeds {
            let grown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.grow(seed)));
            let fault = grown.unwrap_or_else(|panic| {
                let text = panic.downcast_ref::<String>();
                Some(text.cloned().unwrap_or_else(|| "a panic, see above".into()))
            });
            if let Some(fault) = fault {
                let condition = self.condition.name();
                panic!("TREEKILL_CHAOS_SEED={seed} TREEKILL_CHAOS_TREES=1 {condition} {:?}: {fault}", self.wrapper);
            }
        }
    }
}

/// What takes the memory of a fence.
struct Hog(Child);

impl Hog {
    /// One that has run out of memory already: it goes on like that.
    fn in_(fence: &Fence) -> Hog {
        fence.allow_memory(MEMORY);
        let mut command = Command::new(fixture());
        command.args(["tree", "hog", HOG_MEBIBYTES]).stdin(Stdio::null());
        fence.receive(&mut command);
        sys::before_exec(&mut command, || Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
        let hog = {
            let _forking = sys::forking();
            Hog(command.spawn().expect("the fixture was built"))
        };
        let end = Instant::now() + BOUND;
        while fence.memory_kills() == 0 {
            assert!(Instant::now() < end, "nobody is short of memory: this shows nothing");
            std::thread::sleep(Duration::from_millis(5));
        }
        hog
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How many tasks there are of this user's: what the limit on them counts, getrlimit(2).
fn own_tasks() -> u64 {
    let own = rustix::process::geteuid().as_raw();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let owned = processes.filter(|entry| entry.metadata().is_ok_and(|data| data.uid() == own));
    let tasks = owned.map(|entry| fs::read_dir(entry.path().join("task")).map_or(0, Iterator::count));
    tasks.sum::<usize>() as u64
}
