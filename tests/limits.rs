//! Limits of memory, processes and CPU time on the whole tree, where the machine has the controllers, and what is said
//! where it has not.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::needs::require;
use common::running::{is_dead, open_process};
use common::{BOUND, Backend, Ended, Run};
use rustix::process::{Signal, pidfd_send_signal};

fn limited(options: &str) -> Run {
    Run::new(Backend::Cgroup).options(options).report()
}

/// What the report says of limits.
fn fact(ended: &Ended, key: &str) -> u64 {
    ended.report()["limits"][key].as_u64().unwrap_or_else(|| panic!("no {key} in the report\n{ended}"))
}

#[test]
fn a_tree_that_outgrows_its_memory_is_196_and_says_so() {
    require!("controllers");
    let ended = limited("--memory-max 32M").fixture("fill 256 exit 0").finish();
    ended.exited(196);
    assert!(ended.stderr.contains("hit its memory limit of 32M: the kernel killed 1 process"), "{ended}");
    assert_eq!((fact(&ended, "memory_max"), fact(&ended, "memory_kills")), (32 << 20, 1));
}

#[test]
fn a_limit_that_no_program_begins_in_is_196_and_says_so() {
    require!("controllers");
    for limit in ["4K", "16K"] {
        let ended = limited(&format!("--memory-max {limit}")).fixture("say started exit 0").finish();
        ended.exited(196).said("started", 0);
        assert!(
            ended.stderr.contains(&format!("hit its memory limit of {limit}: the kernel killed 1 process")),
            "{ended}"
        );
    }
}

#[test]
fn the_limit_holds_for_the_whole_tree() {
    require!("controllers");
    let members = "fork [ fill 20 say full hang ] fork [ fill 20 say full hang ] fork [ fill 20 say full hang ]";
    let ended =
        limited("--memory-max 48M -t 20 --leftovers wait").fixture(&format!("{members} fill 20 exit 0")).finish();
    assert_ne!(fact(&ended, "memory_kills"), 0, "{ended}");
}

#[test]
fn a_command_that_gets_over_the_loss_keeps_its_status() {
    require!("controllers");
    let ended = limited("--memory-max 32M").fixture("fork [ fill 256 ] wait exit 0").finish();
    ended.exited(0);
    assert!(ended.stderr.contains("hit its memory limit"), "{ended}");
}

#[test]
fn a_command_that_fails_within_its_limits_keeps_its_status() {
    require!("controllers");
    let ended =
        limited("--memory-max 512M --pids-max 100 --cpu-max 100").fixture("fork [ fill 16 ] wait exit 3").finish();
    ended.exited(3);
    assert_eq!((fact(&ended, "memory_kills"), fact(&ended, "refused_forks")), (0, 0));
    assert_eq!(ended.stderr, "");
}

#[test]
fn a_tree_that_may_not_fork_is_196_and_says_so() {
    require!("controllers");
    let ended = limited("--pids-max 1").command(["sh", "-c", "true | true; exit 4"]).finish();
    ended.exited(196);
    assert!(ended.stderr.contains("hit its limit of 1 processes"), "{ended}");
    assert_ne!(fact(&ended, "refused_forks"), 0);
}

#[test]
fn a_tree_gets_no_more_of_the_cpus_than_its_share() {
    require!("controllers");
    let ended = limited("--cpu-max 10% -t 1 -s KILL").command(["sh", "-c", "while :; do :; done"]).finish();
    ended.exited(137);
    assert_ne!(fact(&ended, "throttled_ms"), 0, "{ended}");
}

/// A share of the machine's memory is written in bytes.
#[test]
fn half_of_the_memory_is_counted_from_what_the_machine_has() {
    require!("controllers");
    let ended = limited("--memory-max 50%").fixture("exit 0").finish();
    let total: u64 = fs::read_to_string("/proc/meminfo")
        .expect("there is memory")
        .lines()
        .next()
        .expect("a total")
        .split_whitespace()
        .nth(1)
        .and_then(|kilobytes| kilobytes.parse().ok())
        .expect("a number");
    let half = fact(&ended, "memory_max") / 1024;
    assert!(half.abs_diff(total / 2) < total / 100, "{half} of {total}");
}

#[test]
fn within_a_run_limits_are_the_outer_ones_to_have() {
    require!("controllers");
    let inner = Run::new(Backend::Cgroup).options("--pids-max 5").fixture("exit 0").words();
    let ended = Run::new(Backend::Cgroup).command(inner).finish();
    ended.exited(195);
    assert!(ended.stderr.contains("give the limit to the outer run"), "{ended}");
}

/// They go where the caller lives, not where the leaf was: no process may live there.
#[test]
fn what_is_left_running_leaves_its_limits() {
    require!("controllers");
    let mut running = limited("--pids-max 50 --leftovers leave").may_leave();
    let mut running = {
        running = running.fixture("fork [ say member hang ] cgroup say exit 0");
        running.spawn()
    };
    let member = running.expect("member");
    let leaf = PathBuf::from(running.expect("cgroup"));
    running.wait().exited(0);
    assert!(!leaf.exists(), "the leaf is still there");
    let home = common::cgroups::of_process(&member).expect("it lives");
    assert_eq!(running.nest().map(|nest| nest.path().to_owned()), Some(home));
}

/// The leaf is not in the cgroup of the caller, and is found all the same.
#[test]
fn a_limited_leaf_without_owner_is_ended_by_the_next_limited_run() {
    require!("controllers");
    let steps = "parent keeper cgroup say fork [ setsid say member hang ] hang";
    let mut dead = limited("--pids-max 50").may_leave().fixture(steps).spawn();
    let keeper = open_process(dead.expect("keeper").parse().expect("a PID")).expect("the keeper is alive");
    let leaf = PathBuf::from(dead.expect("cgroup"));
    let member = dead.expect_process("member");
    dead.signal(Signal::STOP);
    pidfd_send_signal(&keeper, Signal::KILL).expect("the keeper is alive");
    dead.signal(Signal::KILL);
    assert!(is_dead(&keeper, BOUND));
    dead.wait_for_death();
    limited("--pids-max 50").fixture("exit 0").finish().exited(0);
    assert!(is_dead(&member, BOUND), "it lives on");
    // Whoever was still dying is the run's after that.
    limited("--pids-max 50").fixture("exit 0").finish().exited(0);
    assert!(!leaf.exists(), "the leaf is still there");
}

#[test]
fn ancestry_and_a_pid_namespace_have_no_limits() {
    for (backend, option) in [(Backend::Subreaper, "--memory-max 1G"), (Backend::Pidns, "--pids-max 10")] {
        let ended = Run::new(backend).options(option).fixture("exit 0").finish();
        ended.exited(195);
        assert!(ended.stderr.starts_with(&format!("treekill-run: {option} can't be had here: ")), "{ended}");
        assert!(ended.stderr.contains(" can't limit a tree; limits need --backend cgroup or systemd"), "{ended}");
    }
}

/// Whatever the reason is, it names the controller; the command is not started.
#[test]
fn limits_that_cannot_be_had_are_195_and_name_the_controller() {
    require!("cgroup");
    if has_v2("memory") {
        return common::needs::skip("no-controllers", "this machine has the memory controller in cgroup v2");
    }
    let ended = Run::new(Backend::Auto).options("--memory-max 1G").fixture("say started exit 0").finish();
    ended.exited(195);
    assert!(ended.stderr.contains(": --memory-max 1G can't be had here: cgroup: "), "{ended}");
    assert!(!ended.stderr.contains("subreaper"), "{ended}");
    assert!(ended.lines.is_empty(), "{ended}");
}

fn has_v2(controller: &str) -> bool {
    let root = common::cgroups::mount_point().expect("there is a cgroup2 mount");
    let controllers = fs::read_to_string(Path::new(&root).join("cgroup.controllers")).unwrap_or_default();
    controllers.split_whitespace().any(|word| word == controller)
}
