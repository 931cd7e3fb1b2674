//! What plain killpg(2), kill(2) and timeout(1) get wrong, shown first, and that treekill-run gets it right.

mod common;

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use common::{A_DEATH, BOUND, Backend, Run, Running, both_backends, fixture, kin, needs, running};
use rustix::process::{Pid, Signal, kill_process_group, pidfd_send_signal};

both_backends! {
    killpg_misses_an_escaped_daemon_and_we_do_not
    timeout_returns_while_a_daemon_lives_and_we_do_not
    the_orphans_parent_is_the_keeper_before_the_first_signal
    nothing_is_populated_when_we_return
    a_parents_death_reaches_the_command_within_milliseconds
}

/// The command and a daemon of its own session, each of which says its name.
const WITH_DAEMON: &str = "daemon [ say daemon hang ] say command hang";

/// The command alone, without a wrapper.
fn bare() -> Run {
    Run::control([] as [&str; 0])
}

/// The command under timeout(1), which takes SIGALRM for the end of the time.
fn timeout() -> Run {
    Run::control(["timeout", "5m"])
}

/// Reads the PIDs that these words come with, in whatever order they are said.
fn said<const N: usize>(run: &mut Running, words: [&str; N]) -> [u32; N] {
    let mut pids = [0; N];
    while pids.contains(&0) {
        let line = run.line();
        let (word, pid) = line.split_once(' ').expect("a word and a PID");
        if let Some(place) = words.iter().position(|wanted| *wanted == word) {
            pids[place] = pid.parse().expect("a PID");
        }
    }
    pids
}

fn open(pid: u32) -> OwnedFd {
    running::open_process(pid).expect("it lives until the test ends it")
}

fn is_alive(pidfd: &OwnedFd) -> bool {
    !running::is_dead(pidfd, Duration::ZERO)
}

fn killpg_misses_an_escaped_daemon_and_we_do_not(backend: Backend) {
    let mut control = bare().fixture(WITH_DAEMON).spawn();
    let [_, daemon] = said(&mut control, ["command", "daemon"]).map(open);
    // The harness gave it a session, and so a group, of its own; it is our child and not reaped yet.
    let group = Pid::from_raw(control.pid().cast_signed()).expect("a PID");
    kill_process_group(group, Signal::KILL).expect("the group is there");
    control.wait().died_of(Signal::KILL);
    assert!(!running::is_dead(&daemon, A_DEATH), "the control: killpg reached a daemon");

    let mut run = Run::new(backend).fixture(WITH_DAEMON).spawn();
    let processes = said(&mut run, ["command", "daemon"]).map(open);
    run.signal(Signal::TERM);
    run.wait().died_of(Signal::TERM);
    assert!(!processes.iter().any(is_alive), "somebody is alive after the return");
}

fn timeout_returns_while_a_daemon_lives_and_we_do_not(backend: Backend) {
    needs::require!("timeout");
    let mut control = timeout().fixture(WITH_DAEMON).spawn();
    let [_, daemon] = said(&mut control, ["command", "daemon"]).map(open);
    control.signal(Signal::ALARM);
    control.wait().exited(124);
    assert!(!running::is_dead(&daemon, A_DEATH), "the control: timeout(1) reached a daemon");

    let mut run = Run::new(backend).fixture(WITH_DAEMON).spawn();
    let processes = said(&mut run, ["command", "daemon"]).map(open);
    run.signal(Signal::TERM);
    run.wait().died_of(Signal::TERM);
    assert!(!processes.iter().any(is_alive), "somebody is alive after the return");
}

fn the_orphans_parent_is_the_keeper_before_the_first_signal(backend: Backend) {
    needs::require!("timeout");
    // The command waits for the process between it and the daemon, so it speaks when the daemon is an orphan.
    let parents = |run: &mut Running| {
        said(run, ["command", "daemon"]).map(|pid| kin::state_and_parent(pid).expect("it is alive").1)
    };
    let mut control = timeout().fixture(WITH_DAEMON).spawn();
    let [commands, orphans] = parents(&mut control);
    assert_eq!(commands, control.pid());
    assert_ne!(orphans, commands, "the control: timeout(1) adopted an orphan");

    let mut run = Run::new(backend).fixture(WITH_DAEMON).spawn();
    let [commands, orphans] = parents(&mut run);
    let keeper = kin::children(run.pid());
    assert_eq!([commands, orphans].map(|parent| vec![parent]), [keeper.clone(), keeper], "parents and the keeper");
    run.signal(Signal::TERM);
    run.wait().died_of(Signal::TERM);
}

fn nothing_is_populated_when_we_return(backend: Backend) {
    needs::require!("cgroup", "timeout");
    let populated = |run: &Running| {
        let nest = run.nest().expect("there are cgroups here").path().to_owned();
        fs::read_to_string(nest.join("cgroup.events")).expect("a cgroup of ours").contains("populated 1")
    };
    let mut control = timeout().fixture(WITH_DAEMON).spawn();
    said(&mut control, ["command", "daemon"]);
    control.signal(Signal::ALARM);
    control.wait().exited(124);
    assert!(populated(&control), "the control: timeout(1) left nothing");
    // What a member did to its session or to its signals means nothing to the kernel here, cgroups(7).
    let nest = control.nest().expect("there are cgroups here");
    if fs::write(nest.path().join("cgroup.kill"), "1").is_ok() {
        assert!(nest.is_deserted(), "cgroup.kill did not empty the cgroup");
    }

    let mut run = Run::new(backend).fixture(WITH_DAEMON).spawn();
    said(&mut run, ["command", "daemon"]);
    let leaf = kin::leaves(run.nest()).pop().map(|leaf| File::open(leaf.join("cgroup.events")).expect("a leaf"));
    assert_eq!(leaf.is_some(), backend == Backend::Cgroup, "whether there is a leaf");
    run.signal(Signal::TERM);
    run.wait();
    assert!(!populated(&run), "something is populated after the return");
    // The kernel lets nobody remove a cgroup with a process in it.
    let read = leaf.map(|leaf| leaf.read_at(&mut [0; 64], 0).map_err(|error| error.raw_os_error()));
    assert!(read.is_none_or(|read| read == Err(Some(nix::libc::ENODEV))), "the leaf is there: {read:?}");
}

fn a_parents_death_reaches_the_command_within_milliseconds(backend: Backend) {
    needs::require!("timeout");
    let (stdin, hold) = std::io::pipe().expect("a pipe can be had");
    let mut control = timeout().fixture("say command read say went-on").stdin(stdin).spawn();
    control.expect("command");
    control.signal(Signal::KILL);
    control.wait().died_of(Signal::KILL);
    drop(hold);
    control.expect("went-on");

    for of_front in [true, false] {
        let mut run = Run::new(backend).fixture(WITH_DAEMON).may_leave().spawn();
        let processes = said(&mut run, ["command", "daemon"]).map(open);
        let (_, keeper) = kin::last_child(run.pid()).expect("there is a keeper");
        let killed = Instant::now();
        if of_front {
            run.signal(Signal::KILL);
        } else {
            pidfd_send_signal(&keeper, Signal::KILL).expect("the keeper is alive");
        }
        for process in &processes {
            assert!(running::is_dead(process, BOUND), "a process outlives the wrapper");
        }
        // It takes one or two milliseconds; two seconds are for machines that do many other things.
        assert!(killed.elapsed() < Duration::from_secs(2), "it took {:?}", killed.elapsed());
        run.wait();
        run.all_die();
        run.leaves_no_trace();
    }
}

#[test]
fn a_reaped_pids_pidfd_says_esrch_and_nobody_else_is_hit() {
    needs::require!("pidns");
    let run = Run::control(needs::as_pid_1());
    let ended = run.command([fixture().as_os_str(), "tree".as_ref(), "recycle".as_ref()]).finish();
    // The control is the last of them: a signal to the remembered number hits the stranger.
    ended.exited(0).said("refused", 1).said("spared", 1).said("hit", 1);
}
