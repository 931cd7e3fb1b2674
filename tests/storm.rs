//! A fork storm is ended, among strangers who get the PIDs that it gives back, and none of them is hit.
//!
//! A storm that got loose would take the machine with it. It is bounded by itself, by its count of forks and its time,
//! and by a fence: a PID namespace that ends with the test, in a cgroup of the `pids` controller, or, for an ordinary
//! user, under a limit on that user's processes, which would not hold root.

mod common;

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use common::{Backend, Ended, Fence, Run, Running, all_backends, both_backends, fixture, kin, needs, running};
use rustix::process::{Resource, Rlimit, Signal, pidfd_send_signal, setrlimit};

/// More than the processes of a storm at any time, and far less than a machine can bear.
const MOST_PROCESSES: u64 = 3000;

const CHAINS: usize = 100;

/// When a storm is over by itself. A wrapper that returns later has ended nothing.
const LONGEST_STORM: Duration = Duration::from_secs(10);

/// Two storms at a time would only starve each other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// What keeps a storm from the rest of the machine, besides its PID namespace.
enum Bound {
    /// A cgroup of the `pids` controller.
    Cgroup(Fence),
    /// A limit on the processes of an ordinary user.
    Limit,
}

impl Bound {
    /// Builds one; where none can be had there is no storm.
    fn build() -> Option<Bound> {
        if !needs::is_root() {
            return Some(Bound::Limit);
        }
        let Some(fence) = Fence::of("pids") else {
            needs::skip("pids", "no pids controller is here to fence a storm with");
            return None;
        };
        fence.allow_processes(MOST_PROCESSES);
        Some(Bound::Cgroup(fence))
    }

    /// Whether the storm is inside, as far as that can be seen.
    fn holds(&self) -> bool {
        match self {
            Bound::Cgroup(fence) => fence.is_used(),
            Bound::Limit => true,
        }
    }

    fn around(&self, run: Run) -> Run {
        let mut words: Vec<_> = needs::as_pid_1().into_iter().map(PathBuf::from).collect();
        words.extend([fixture(), "tree".into(), "strangers".into()]);
        let run = run.prefixed(words);
        match self {
            Bound::Limit => run.setup(|| {
                let most = Rlimit { current: Some(MOST_PROCESSES), maximum: Some(MOST_PROCESSES) };
                Ok(setrlimit(Resource::Nproc, most)?)
            }),
            Bound::Cgroup(fence) => fence.around(run),
        }
    }
}

fn storm(backend: Backend, options: &str, sessions: &str) -> Run {
    let seconds = LONGEST_STORM.as_secs();
    Run::new(backend).options(options).fixture(&format!("tree storm {CHAINS} 20000 {seconds} {sessions}"))
}

/// The storm was ended, not waited out; nothing but the first process of the namespace is left in it, and no stranger
/// ended in another way than by itself.
fn is_over(ended: &Ended) {
    ended.said("calm", 0).took_less_than(LONGEST_STORM);
    assert_eq!(ended.value("left"), "0", "processes are left\n{ended}");
    assert_eq!(ended.value("hit"), "0", "strangers were hit\n{ended}");
    assert_ne!(ended.value("strangers"), "0", "there were no strangers\n{ended}");
}

/// Waits until all chains are started.
fn begins(run: &mut Running, bound: &Bound) {
    assert_eq!(run.line(), "storm", "the first that a storm says");
    assert!(bound.holds(), "the storm is not in its cgroup");
}

all_backends! {
    a_fork_storm_is_ended_at_the_time_limit
    a_fork_storm_does_not_outlive_its_front
}

both_backends! {
    a_fork_storm_is_ended_by_a_signal_to_the_front
}

fn a_fork_storm_is_ended_at_the_time_limit(backend: Backend) {
    needs::require!("pidns");
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for sessions in ["", "setsid"] {
        let Some(bound) = Bound::build() else { return };
        let ended = bound.around(storm(backend, "--timeout 500ms --kill-after 100ms", sessions)).finish();
        ended.exited(124);
        is_over(&ended);
    }
}

fn a_fork_storm_is_ended_by_a_signal_to_the_front(backend: Backend) {
    needs::require!("pidns");
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for sessions in ["", "setsid"] {
        let Some(bound) = Bound::build() else { return };
        let mut run = bound.around(storm(backend, "--kill-after 100ms", sessions)).spawn();
        begins(&mut run, &bound);
        pidfd_send_signal(front(&run), Signal::TERM).expect("the front is alive");
        let ended = run.wait();
        ended.exited(143);
        is_over(&ended);
    }
}

fn a_fork_storm_does_not_outlive_its_front(backend: Backend) {
    needs::require!("pidns");
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(bound) = Bound::build() else { return };
    let mut run = bound.around(storm(backend, "", "setsid")).spawn();
    begins(&mut run, &bound);
    // The first process of the namespace stays until the keeper has ended.
    pidfd_send_signal(front(&run), Signal::KILL).expect("the front is alive");
    let ended = run.wait();
    ended.exited(137).took_less_than(LONGEST_STORM);
    assert_eq!(ended.value("left-at-last"), "0", "the keeper ended before its tree\n{ended}");
    assert_eq!(ended.value("hit"), "0", "strangers were hit\n{ended}");
}

/// The front, seen from outside of its PID namespace: the first child of that namespace's first process.
fn front(run: &Running) -> std::os::fd::OwnedFd {
    let (first, _) = kin::last_child(run.pid()).expect("unshare has a child");
    let front = kin::children(first)[0];
    running::open_process(front).expect("the front is there, or not reaped")
}
