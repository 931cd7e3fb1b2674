//! Random trees under treekill-run: whatever they do and whatever the machine lacks, nothing is alive when it returns,
//! no leaf is left, and nobody else is hit.
//!
//! Each condition prints a line for each backend, which `tests/endurance` adds up. A failure prints the seed of its tree;
//! `TREEKILL_CHAOS_SEED=N TREEKILL_CHAOS_TREES=1` grows that one again under each condition, and `TREEKILL_CHAOS_TREES`
//! alone is how many are grown on each backend under the first condition, and in proportion under the others;
//! `TREEKILL_CHAOS_BACKENDS` names the backends.

mod common;

#[path = "chaos/growing.rs"]
mod growing;
#[allow(dead_code, reason = "how a tree is grown is the fixture's business")]
#[path = "fixture/tree/plan.rs"]
mod plan;
#[path = "chaos/scenario.rs"]
mod scenario;
#[path = "chaos/trees.rs"]
mod trees;

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use common::{BOUND, Backend, Fence, dice, needs, systemd};
use growing::{Condition, Grower, Totals};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use trees::{Bystander, Tree, Wrapper, next_ended};

/// How many trees are in the air at a time on each backend: they spend most of their lives waiting.
const WORKERS: usize = 2;

/// How many wrappers start at once in a crowd.
const CROWD: u64 = 200;

/// One would disturb the other.
static ONE_CONDITION_AT_A_TIME: Mutex<()> = Mutex::new(());

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number, not '{text}'")))
}

fn first_seed() -> u64 {
    number_from("TREEKILL_CHAOS_SEED").unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(0, |time| time.as_secs()) * 1_000_000
    })
}

/// How many trees are grown on each backend.
fn trees_under(condition: Condition) -> u64 {
    let of_hundred = number_from("TREEKILL_CHAOS_TREES").unwrap_or(60);
    (of_hundred * condition.share()).div_ceil(100)
}

/// Those that work here, or those of them that `TREEKILL_CHAOS_BACKENDS` names.
fn backends() -> Vec<Backend> {
    let mut backends = vec![Backend::Subreaper];
    if needs::has("cgroup") {
        backends.push(Backend::Cgroup);
    }
    if needs::has("pidns") {
        backends.push(Backend::Pidns);
    }
    // Elsewhere its tests run in a machine of their own, and so do these.
    if systemd::is_reachable().is_ok() {
        backends.push(Backend::Systemd);
    }
    if let Ok(chosen) = std::env::var("TREEKILL_CHAOS_BACKENDS") {
        backends.retain(|backend| chosen.split(',').any(|name| name == backend.name()));
    }
    backends
}

/// Grows trees under a condition on each backend and prints what they came to.
fn grow_under(condition: Condition, grow: impl Fn(Backend, u64, &Totals) -> Result<(), usize> + Sync) {
    let _alone = ONE_CONDITION_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let started = Instant::now();
    let trees = trees_under(condition);
    let results: Vec<_> = std::thread::scope(|scope| {
        let grow = &grow;
        let grown = |backend| {
            let totals = Totals::default();
            let result = grow(backend, trees, &totals);
            (backend, totals, result)
        };
        let backends: Vec<_> = backends().into_iter().map(|backend| scope.spawn(move || grown(backend))).collect();
        backends.into_iter().map(|backend| backend.join().expect("it counts what it catches")).collect()
    });
    for (backend, totals, _) in &results {
        if *backend == Backend::Systemd {
            totals.leaves.fetch_add(units_left(), Ordering::Relaxed);
        }
        println!("chaos: {:<7} {:<9} {totals}", condition.name(), backend.name());
    }
    eprintln!("{} took {:?}", condition.name(), started.elapsed());
    for (backend, totals, result) in &results {
        let name = backend.name();
        assert!(result.is_ok(), "{result:?} workers on {name} met a tree that failed, see above: {totals}");
        assert_eq!(totals.leaves.load(Ordering::Relaxed), 0, "leaves on {name}");
    }
}

/// Scopes of ours that systemd still has when it has had time to forget them.
fn units_left() -> u64 {
    let deadline = Instant::now() + BOUND;
    loop {
        let list = systemd::systemctl(&["list-units", "--all", "--plain", "--no-legend", "treekill-run-*.scope"]);
        let left = list.lines().count() as u64;
        if left == 0 || Instant::now() > deadline {
            return left;
        }
    }
}

/// Each worker grows every `WORKERS`th tree.
fn grow_one_by_one(condition: Condition, workers: usize) {
    grow_under(condition, |backend, trees, totals| {
        let first = first_seed();
        let failed = std::thread::scope(|scope| {
            let worker = |number| {
                let seeds = (first..first + trees).skip(number).step_by(workers);
                scope.spawn(move || Grower::new(Wrapper::Ours(backend), condition, totals).grow_all(seeds))
            };
            let workers: Vec<_> = (0..workers).map(worker).collect();
            workers.into_iter().filter_map(|worker| worker.join().err()).count()
        });
        if failed == 0 { Ok(()) } else { Err(failed) }
    });
}

#[test]
fn random_trees_leave_nothing_alive_and_no_stranger_is_hit() {
    grow_one_by_one(Condition::Calm, WORKERS);
}

#[test]
fn trees_whose_front_or_keeper_is_killed_leave_nothing_alive() {
    grow_one_by_one(Condition::Killed, WORKERS);
}

#[test]
fn trees_in_a_full_pid_table_end_or_do_not_begin() {
    if needs::is_root() && Fence::of("pids").is_none() {
        return needs::skip("pids", "no pids controller is here to limit root with");
    }
    // A limit on a user's processes counts those of all workers.
    grow_one_by_one(Condition::Pids, 1);
}

#[test]
fn trees_under_memory_pressure_leave_nothing_alive() {
    if Fence::of("memory").is_none() {
        return needs::skip("memory", "no memory controller is here to limit these tests with");
    }
    grow_one_by_one(Condition::Memory, 1);
}

#[test]
fn two_hundred_trees_at_once_leave_nothing_alive() {
    // A run holds a handful of descriptors.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })
        .expect("up to the hard limit");
    grow_under(Condition::Crowd, |backend, trees, totals| {
        let crowd = || {
            let mut grower = Grower::new(Wrapper::Ours(backend), Condition::Crowd, totals);
            let (first, share) = (first_seed(), CROWD / backends().len() as u64 + 1);
            let rounds = trees.div_ceil(share);
            for round in 0..rounds {
                let seeds = first + round * share..first + (round + 1) * share;
                let mut trees: Vec<Tree> = seeds.map(|seed| grower.plant(seed)).collect();
                trees.iter().for_each(Tree::disturb);
                while !trees.is_empty() {
                    let finding = next_ended(&mut trees).harvest();
                    if let Some(fault) = totals.add(&finding, &mut grower.bystander) {
                        panic!("in a crowd from TREEKILL_CHAOS_SEED={first}: {fault}");
                    }
                }
            }
        };
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(crowd)).map_err(|_| 1)
    });
}

// The controls: what does not hold its tree, leaves a leaf or hits a stranger is seen.

#[test]
fn control_a_survivor_is_seen() {
    needs::require!("timeout", "cgroup");
    let totals = Totals::default();
    // Within twenty trees somebody leaves the process group, if there is time for it before the limit.
    let has_survivors = ["0.05", "0.5", "5"].iter().any(|limit| {
        let timeout = Wrapper::Control(["timeout", "-k", "0.05", limit].map(String::from).to_vec());
        let mut grower = Grower::new(timeout, Condition::Crowd, &totals);
        (1..=20).any(|seed| grower.grow(seed).is_some() && totals.survivors.load(Ordering::Relaxed) != 0)
    });
    assert!(has_survivors, "timeout(1) holds random trees: {totals}");
}

#[test]
fn control_a_stranger_that_is_hit_is_seen() {
    let totals = Totals::default();
    let bystander = Bystander::new();
    let script = format!("kill -9 {}", bystander.pid());
    let hits = Wrapper::Control(["sh", "-c", &script, "sh"].map(String::from).to_vec());
    let mut grower = Grower::new(hits, Condition::Crowd, &totals);
    grower.bystander = bystander;
    // The wrapper ends at once: its victim may be on its way still.
    assert!(grower.grow(1).is_some_and(|fault| fault.contains("nobody's child")), "{totals}");
    assert_eq!(totals.strangers.load(Ordering::Relaxed), 1, "{totals}");
}

#[test]
fn control_a_leaf_that_is_left_is_seen() {
    needs::require!("cgroup");
    let totals = Totals::default();
    let mount = common::cgroups::mount_point().expect("there is one");
    let script = format!("mkdir {}$(sed -n s/^0:://p /proc/self/cgroup)/treekill-run-0", mount.display());
    let leaves = Wrapper::Control(["sh", "-c", &script, "sh"].map(String::from).to_vec());
    let mut grower = Grower::new(leaves, Condition::Crowd, &totals);
    assert!(grower.grow(1).is_some_and(|fault| fault.contains("leaves that were not removed")), "{totals}");
    assert_eq!(totals.leaves.load(Ordering::Relaxed), 1, "{totals}");
}
