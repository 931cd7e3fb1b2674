//! A fault at every system call of ours: it fails, or the process that makes it is killed or stopped there. Whatever the
//! run comes to then, its status is true and says why, nobody else pays for it, and nothing stays.
//!
//! The points are found by following runs without a fault. A sample of them, spread evenly, is tried each time; `make
//! faults` tries them all. `TREEKILL_FAULTS="cgroup keeper ppoll"` tries those whose names hold all of these words, and
//! `TREEKILL_FAULTS_SEED=N` another sample.
#![cfg(target_arch = "x86_64")]

mod common;

#[path = "faults/calls.rs"]
mod calls;
#[path = "faults/point.rs"]
mod point;
#[path = "faults/setting.rs"]
mod setting;
#[path = "faults/verdict.rs"]
mod verdict;

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{Backend, needs};
use point::{Point, Tried};
use setting::{DEPUTY, FOREGROUND, FRONT, INIT, KEEPER, LEFTOVER, NORMAL, RELAYED, Setting, TIMEOUT, UNBORN};

/// How many points are tried unless others are asked for.
const SAMPLE: usize = 400;

/// Most points wait for something most of the time.
const WORKERS: usize = 8;

/// Every process of ours in every kind of run.
fn settings() -> Vec<Setting> {
    let mut settings = vec![];
    let mut add = |backend, scenarios: &[_], has_deputy, roles: &[_]| {
        for &scenario in scenarios {
            settings.extend(roles.iter().map(|&role| Setting { backend, scenario, role, has_deputy }));
        }
    };
    for backend in [Backend::Cgroup, Backend::Subreaper] {
        if backend == Backend::Cgroup && !needs::has("cgroup") {
            continue;
        }
        add(backend, &[NORMAL, TIMEOUT, RELAYED, LEFTOVER], false, &[FRONT, KEEPER]);
        add(backend, &[NORMAL, FOREGROUND], false, &[UNBORN]);
        add(backend, &[FOREGROUND], false, &[FRONT, KEEPER]);
        add(backend, &[TIMEOUT], true, &[FRONT, DEPUTY, KEEPER]);
    }
    if needs::has("pidns") {
        add(Backend::Pidns, &[NORMAL, TIMEOUT], false, &[FRONT, KEEPER]);
        add(Backend::Pidns, &[NORMAL], false, &[INIT, UNBORN]);
    }
    settings
}

/// The points that are to be tried of all that there are.
fn chosen(all: Vec<Point>) -> Vec<Point> {
    let Ok(words) = std::env::var("TREEKILL_FAULTS") else {
        let seed: usize = std::env::var("TREEKILL_FAULTS_SEED").map_or(0, |text| text.parse().expect("a number"));
        let count = SAMPLE.min(all.len());
        println!("{count} of {} points, TREEKILL_FAULTS_SEED={seed}", all.len());
        let place = |number: usize| (number * all.len() / count + seed) % all.len();
        return (0..count).map(|number| all[place(number)]).collect();
    };
    let has_all = |name: &str| words.split_whitespace().all(|word| name.contains(word));
    all.into_iter().filter(|point| has_all(&point.to_string())).collect()
}

/// What is tried by all workers together.
#[derive(Default)]
struct Totals {
    next: AtomicUsize,
    tried: AtomicUsize,
    failed: AtomicUsize,
    not_reached: AtomicUsize,
}

impl Totals {
    fn walk(&self, points: &[Point]) {
        while let Some(point) = points.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            match catch_unwind(AssertUnwindSafe(|| point.attempt())) {
                Ok(Tried::Reached) => {}
                Ok(Tried::NotReached) => {
                    self.not_reached.fetch_add(1, Ordering::Relaxed);
                }
                Err(_) => {
                    eprintln!("FAILED: TREEKILL_FAULTS='{point}'");
                    self.failed.fetch_add(1, Ordering::Relaxed);
                }
            }
            let tried = self.tried.fetch_add(1, Ordering::Relaxed) + 1;
            if tried.is_multiple_of(500) {
                println!("{tried} of {} points", points.len());
                let _ = std::io::stdout().flush();
            }
        }
    }
}

#[test]
fn a_fault_at_any_system_call_leaves_nothing_and_is_told() {
    needs::require!("tracer");
    let all: Vec<Point> = in_parallel(&settings(), |setting| Point::all_of(*setting)).into_iter().flatten().collect();
    let points = chosen(all);
    let totals = Totals::default();
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| totals.walk(&points));
        }
    });
    let [tried, failed, not_reached] = [totals.tried, totals.failed, totals.not_reached].map(AtomicUsize::into_inner);
    println!("{not_reached} calls were not made when their turn came");
    println!("points {tried} tried, {failed} failed");
    assert_eq!(failed, 0, "see above");
    assert!(tried > 0, "there is no such point");
}

/// Each on a thread of its own, since a thread is what traces.
fn in_parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = items.iter().map(|item| scope.spawn(|| work(item))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a run without a fault is right")).collect()
    })
}
