//! A fork storm is ended, among strangers who get the PIDs that it gives back, and none of them is hit.
//!
//! A storm that got loose would take the machine with it. It is bounded by itself, by its count of forks and its time,
//! and by a fence: a PID namespace that ends with the test, in a cgroup of the v1 `pids` controller, or, for an ordinary
//! user, under a limit on that user's processes, which would not hold root.

mod common;

use std::fs::{self, File};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use common::{Backend, Ended, Run, Running, all_backends, both_backends, fixture, kin, needs, running, unique};
use rustix::process::{Resource, Rlimit, Signal, pidfd_send_signal, setrlimit};

/// More than the processes of a storm at any time, and far less than a machine can bear.
const MOST_PROCESSES: u64 = 3000;

const CHAINS: usize = 100;

/// When a storm is over by itself. A wrapper that returns later has ended nothing.
const LONGEST_STORM: Duration = Duration::from_secs(10);

/// Two storms at a time would only starve each other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// What keeps a storm from the rest of the machine, besides its PID namespace.
enum Fence {
    /// A cgroup of the v1 `pids` controller.
    Cgroup(PathBuf),
    /// A limit on the processes of an ordinary user.
    Limit,
}

impl Fence {
    /// Builds one; where none can be had there is no storm.
    fn build() -> Option<Fence> {
        if !needs::is_root() {
            return Some(Fence::Limit);
        }
        let Some(controller) = pids_controller() else {
            needs::skip("pids", "no cgroup v1 pids controller is mounted to fence a storm with");
            return None;
        };
        let cgroup = controller.join(format!("tk-storm-{}", unique()));
        fs::create_dir(&cgroup).expect("root makes cgroups");
        let fence = Fence::Cgroup(cgroup.clone());
        fs::write(cgroup.join("pids.max"), MOST_PROCESSES.to_string()).expect("the controller takes a limit");
        Some(fence)
    }

    /// Whether the storm is inside, as far as that can be seen.
    fn holds(&self) -> bool {
        let Fence::Cgroup(path) = self else { return true };
        fs::read_to_string(path.join("pids.current")).is_ok_and(|count| count.trim() != "0")
    }

    fn around(&self, run: Run) -> Run {
        let mut unshare = vec!["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
        if !needs::is_root() {
            unshare.push("--map-root-user");
        }
        let mut words: Vec<_> = unshare.into_iter().map(PathBuf::from).collect();
        words.extend([fixture(), "tree".into(), "strangers".into()]);
        let run = run.prefixed(words);
        match self {
            Fence::Limit => run.setup(|| {
                let most = Rlimit { current: Some(MOST_PROCESSES), maximum: Some(MOST_PROCESSES) };
                Ok(setrlimit(Resource::Nproc, most)?)
            }),
            Fence::Cgroup(path) => {
                let procs = File::options().write(true).open(path.join("cgroup.procs"));
                let procs = procs.expect("a cgroup of our own has a list of members");
                // Out of the way of the descriptors that a run gives numbers to.
                let procs = rustix::io::fcntl_dupfd_cloexec(procs, 100).expect("there are descriptors enough");
                run.setup(move || {
                    rustix::io::write(procs.as_fd(), b"0")?;
                    Ok(())
                })
            }
        }
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        if let Fence::Cgroup(path) = self {
            // Everything in it is dead; what is not would be seen as a folder that stays.
            let _ = fs::remove_dir(path);
        }
    }
}

fn pids_controller() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let is_controller = right.starts_with("cgroup ") && right.rsplit([' ', ',']).any(|word| word == "pids");
        is_controller.then(|| left.split(' ').nth(4).map(PathBuf::from))?
    })
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
fn begins(run: &mut Running, fence: &Fence) {
    assert_eq!(run.line(), "storm", "the first that a storm says");
    assert!(fence.holds(), "the storm is not in its cgroup");
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
        let Some(fence) = Fence::build() else { return };
        let ended = fence.around(storm(backend, "--timeout 500ms --kill-after 100ms", sessions)).finish();
        ended.exited(124);
        is_over(&ended);
    }
}

fn a_fork_storm_is_ended_by_a_signal_to_the_front(backend: Backend) {
    needs::require!("pidns");
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for sessions in ["", "setsid"] {
        let Some(fence) = Fence::build() else { return };
        let mut run = fence.around(storm(backend, "--kill-after 100ms", sessions)).spawn();
        begins(&mut run, &fence);
        pidfd_send_signal(front(&run), Signal::TERM).expect("the front is alive");
        let ended = run.wait();
        ended.exited(143);
        is_over(&ended);
    }
}

fn a_fork_storm_does_not_outlive_its_front(backend: Backend) {
    needs::require!("pidns");
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(fence) = Fence::build() else { return };
    let mut run = fence.around(storm(backend, "", "setsid")).spawn();
    begins(&mut run, &fence);
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
