//! SIGKILL of the front, of the keeper, of the deputy between them, at every moment of a run: nothing is left.
//!
//! A moment is a system call of one of them, at which a tracer holds it, or a point in time. What stays of a run is
//! seen by the tether, which every process of it holds: its end-of-file says that all are dead and no pipe is open.

mod common;

#[path = "kill_matrix/target.rs"]
mod target;

use std::time::{Duration, Instant};

use common::{BOUND, Backend, Ended, Run, Running, all_backends, both_backends, kin, needs, running};
use running::next_run;
use rustix::process::{Signal, pidfd_send_signal};
use target::{DEPUTY, FRONT, Generation, Scenario, Setting};

/// The command ends by itself and leaves a daemon that has to be killed.
const LEAVING: Scenario =
    Scenario { options: "--leftover-grace 2ms --kill-after 2ms", steps: "daemon [ ignore TERM hang ]", usual: &[193] };

/// The command and its daemon ignore the polite end of the time limit: the run goes through all of a stop.
const STUBBORN: Scenario = Scenario {
    options: "--timeout 15ms --kill-after 10ms",
    steps: "ignore TERM daemon [ ignore TERM hang ] hang",
    usual: &[124, 137],
};

const KEEPER: Generation = 1;
const COMMAND: Generation = 2;

const DEPUTYS_KEEPER: Generation = 2;

all_backends! {
    sigkill_at_a_system_call_of_front_or_keeper_leaves_nothing
    sigkill_while_the_command_is_between_clone_and_exec_leaves_nothing
    sigkill_of_a_deputy_or_around_one_leaves_nothing_and_spares_inherited_children
    sigkill_at_any_microsecond_leaves_nothing
    sigkill_while_running_or_in_the_grace_is_told_to_the_caller
    a_front_that_is_pid_1_survives_the_death_of_its_deputy
}

// Nothing outlives a PID namespace.
both_backends! {
    without_a_guard_the_command_outlives_a_killed_front
}

fn sigkill_at_a_system_call_of_front_or_keeper_leaves_nothing(backend: Backend) {
    for scenario in [LEAVING, STUBBORN] {
        let setting = Setting { backend, scenario, has_deputy: false };
        for (held, victim) in [(FRONT, FRONT), (KEEPER, KEEPER), (KEEPER, FRONT), (FRONT, KEEPER)] {
            setting.assail(held, victim, 30);
        }
    }
}

fn sigkill_while_the_command_is_between_clone_and_exec_leaves_nothing(backend: Backend) {
    let setting = Setting { backend, scenario: STUBBORN, has_deputy: false };
    for victim in [FRONT, KEEPER] {
        setting.assail(COMMAND, victim, 30);
    }
}

fn sigkill_of_a_deputy_or_around_one_leaves_nothing_and_spares_inherited_children(backend: Backend) {
    let setting = Setting { backend, scenario: STUBBORN, has_deputy: true };
    for (held, victim) in
        [(FRONT, FRONT), (DEPUTY, DEPUTY), (DEPUTY, FRONT), (DEPUTYS_KEEPER, DEPUTYS_KEEPER), (DEPUTYS_KEEPER, DEPUTY)]
    {
        setting.assail(held, victim, 12);
    }
}

fn sigkill_at_any_microsecond_leaves_nothing(backend: Backend) {
    for scenario in [LEAVING, STUBBORN] {
        let setting = Setting { backend, scenario, has_deputy: false };
        let started = Instant::now();
        let undisturbed = setting.start();
        let prepared = started.elapsed();
        undisturbed.check(None, "undisturbed");
        let length = started.elapsed().saturating_sub(prepared);
        for victim in [FRONT, KEEPER] {
            for moment in sweep(length) {
                let target = setting.start();
                // The moment is what is tried here; nothing is waited for.
                std::thread::sleep(moment);
                let kill = target.strike(&[target.run.pid()], victim);
                target.check(Some(&kill), &format!("{victim} killed after {moment:?} of {length:?}, {setting:?}"));
            }
        }
    }
}

fn sigkill_while_running_or_in_the_grace_is_told_to_the_caller(backend: Backend) {
    for phase in ["ready", "asked"] {
        for victim in [FRONT, KEEPER] {
            let steps = "on TERM [ say asked ] daemon [ ignore TERM hang ] say ready hang";
            let mut run = Run::new(backend).options("--kill-after 5m").fixture(steps).may_leave().spawn();
            run.expect("ready");
            if phase == "asked" {
                run.signal(Signal::TERM);
                run.expect("asked");
            }
            kill(&run, victim);
            let ended = run.wait();
            is_told(&ended, victim);
            run.all_die();
            run.leaves_no_trace();
        }
    }
}

fn without_a_guard_the_command_outlives_a_killed_front(backend: Backend) {
    let (stdin, hold) = std::io::pipe().expect("a pipe can be had");
    let steps = "daemon [ hang ] say ready read say went-on";
    let mut run = Run::new(backend).options("--no-guard -t 5m").fixture(steps).stdin(stdin).may_leave().spawn();
    let command = run.expect_process("ready");
    let (_, keeper) = kin::last_child(run.pid()).expect("there is a keeper");
    kill(&run, FRONT);
    is_told(&run.wait(), FRONT);
    // The keeper has nothing more to do, and nobody is left to do anything to the command.
    assert!(running::is_dead(&keeper, BOUND), "the keeper stays");
    assert!(!running::is_dead(&command, Duration::ZERO), "the command is dead");
    drop(hold);
    run.expect("went-on");
    assert!(running::is_dead(&command, BOUND), "the command does not end by itself");
    if let Some(nest) = run.nest().filter(|_| backend == Backend::Cgroup) {
        next_run(nest);
        assert_eq!(kin::leaves(Some(nest)).len(), 0, "leaves");
    }
}

fn a_front_that_is_pid_1_survives_the_death_of_its_deputy(backend: Backend) {
    needs::require!("pidns");
    for victim in [DEPUTY, DEPUTYS_KEEPER] {
        let steps = "daemon [ ignore TERM hang ] ignore TERM say ready hang";
        let mut run = Run::new(backend).fixture(steps).prefixed(needs::as_pid_1()).spawn();
        run.expect("ready");
        let (front, _) = kin::last_child(run.pid()).expect("unshare has a child");
        let (deputy, deputys_pidfd) = kin::last_child(front).expect("PID 1 has a deputy");
        let (_, keepers_pidfd) = kin::last_child(deputy).expect("the deputy has a keeper");
        let pidfd = if victim == DEPUTY { deputys_pidfd } else { keepers_pidfd };
        pidfd_send_signal(pidfd, Signal::KILL).expect("it is alive");
        run.wait().exited(125);
    }
}

/// Thirty-two moments: half of them in the first milliseconds, where a run sets itself up, half spread over all of it.
fn sweep(length: Duration) -> impl Iterator<Item = Duration> {
    let start_up = length.min(Duration::from_millis(4));
    let spread = |over: Duration| (0..16).map(move |number| over * number / 16);
    spread(start_up).chain(spread(length * 11 / 10))
}

fn kill(run: &Running, victim: Generation) {
    if victim == FRONT {
        return run.signal(Signal::KILL);
    }
    let (_, keeper) = kin::last_child(run.pid()).expect("a running front has a keeper");
    pidfd_send_signal(keeper, Signal::KILL).expect("a running front has a keeper");
}

/// What the caller sees of a run whose command cannot have ended by itself.
fn is_told(ended: &Ended, victim: Generation) {
    if victim == FRONT {
        ended.died_of(Signal::KILL);
    } else {
        ended.exited(125);
    }
}

#[test]
fn the_next_run_ends_the_tree_of_a_front_and_keeper_that_were_killed_at_once() {
    needs::require!("cgroup");
    let steps = "daemon [ ignore TERM say daemon hang ] hang";
    let mut run = Run::new(Backend::Cgroup).fixture(steps).may_leave().spawn();
    let daemon = run.expect_process("daemon");
    let (keepers_pid, keeper) = kin::last_child(run.pid()).expect("there is a keeper");
    // Stopped, neither can do anything about the death of the other; the front first, since it wakes its keeper.
    run.signal(Signal::STOP);
    is_stopped(run.pid());
    pidfd_send_signal(&keeper, Signal::STOP).expect("the keeper is alive");
    is_stopped(keepers_pid);
    pidfd_send_signal(&keeper, Signal::KILL).expect("the keeper is alive");
    run.signal(Signal::KILL);
    is_told(&run.wait(), FRONT);
    assert!(running::is_dead(&keeper, BOUND), "a keeper that dies still owns its leaf");

    let nest = run.nest().expect("the cgroup backend works here");
    assert_eq!(kin::leaves(Some(nest)).len(), 1, "the leaf of the dead");
    assert!(!running::is_dead(&daemon, Duration::ZERO), "the daemon died without the next run");
    next_run(nest);
    run.all_die();
    // A run never waits for what is dying: its own end may have been too early for the last rmdir.
    let nest = run.nest().expect("it is still there");
    next_run(nest);
    assert_eq!(kin::leaves(Some(nest)).len(), 0, "leaves after two runs");
}

/// Waits until a process that was sent SIGSTOP stands still.
fn is_stopped(pid: u32) {
    let deadline = Instant::now() + BOUND;
    while kin::state_and_parent(pid).is_none_or(|(state, _)| state != "T") {
        assert!(Instant::now() < deadline, "{pid} does not stop");
        std::thread::yield_now();
    }
}
