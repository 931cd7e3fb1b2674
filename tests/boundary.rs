//! The leaf of a run, whose it is, and what happens where none can be had.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use common::needs::require;
use common::running::is_dead;
use common::{BOUND, Backend, Nest, Run, Running, Scratch, USER, sys};
use rustix::process::{Signal, pidfd_send_signal};

/// Starts a run on a leaf, in a nest that is given.
fn start(nest: Nest, options: &str, steps: &str) -> Running {
    Run::new(Backend::Cgroup).options(options).within(nest).gated().may_leave().fixture(steps).spawn()
}

fn nest() -> Nest {
    Nest::new().expect("a cgroup can be made")
}

#[test]
fn the_command_is_born_in_a_leaf_of_its_own_that_is_private_and_removed() {
    require!("cgroup");
    let mut running = Run::new(Backend::Cgroup).gated().fixture("cgroup say read exit 0").spawn();
    let leaf = PathBuf::from(running.expect("cgroup"));
    let mode = fs::metadata(&leaf).expect("the leaf is there").permissions().mode() & 0o7777;
    let parent = running.nest().map(|nest| nest.path().to_owned());
    running.open_gate();
    running.wait().exited(0);
    // Others must not be able to lock it (flock(2) needs a descriptor).
    assert_eq!(mode, 0o700);
    assert_eq!(leaf.parent(), parent.as_deref());
    let name = leaf.file_name().expect("a name").to_string_lossy().into_owned();
    assert!(name.starts_with("treekill-run-"), "{name}");
    assert!(!leaf.exists());
}

/// What says that a leaf has an owner is a lock that dies with its holders.
#[test]
fn a_leaf_is_locked_while_its_owners_live() {
    require!("cgroup");
    let mut running = Run::new(Backend::Cgroup).gated().fixture("cgroup say read exit 0").spawn();
    let leaf = fs::File::open(running.expect("cgroup")).expect("the leaf is there");
    let lock = rustix::fs::flock(&leaf, rustix::fs::FlockOperation::NonBlockingLockExclusive);
    running.open_gate();
    running.wait().exited(0);
    assert_eq!(lock, Err(rustix::io::Errno::WOULDBLOCK));
}

/// Front and keeper at once: nobody is left to end the tree.
fn kill_front_and_keeper(running: &mut Running, keeper: &str) {
    let keeper = common::running::open_process(keeper.parse().expect("a PID")).expect("the keeper is alive");
    // A stopped front sees nothing of the keeper's death.
    running.signal(Signal::STOP);
    pidfd_send_signal(&keeper, Signal::KILL).expect("the keeper is alive");
    running.signal(Signal::KILL);
    assert!(is_dead(&keeper, BOUND));
    running.wait_for_death();
}

/// A run that dies as a whole and leaves its leaf with a member in it; the next run finds it.
fn is_ended_by_the_next_run(member: &str) {
    let steps = format!("parent keeper cgroup say fork [ setsid ignore TERM {member} ] hang");
    let mut dead = start(nest(), "-k 60", &steps);
    let keeper = dead.expect("keeper");
    let member = dead.expect_process("member");
    let leaf = PathBuf::from(dead.expect("cgroup"));
    kill_front_and_keeper(&mut dead, &keeper);
    assert!(!is_dead(&member, Duration::ZERO), "nothing was left: this shows nothing");

    let nest = dead.take_nest().expect("a nest");
    let mut next = start(nest, "-k 60", "say ready read exit 0");
    next.expect("ready");
    assert!(is_dead(&member, BOUND), "the next run did not end it");
    next.open_gate();
    next.wait().exited(0);
    // It never waits for the dying; they are gone by its own end here.
    assert!(!leaf.exists(), "the leaf is still there");
    next.leaves_no_trace();
}

#[test]
fn a_leaf_without_owner_is_emptied_and_removed_by_the_next_run() {
    require!("cgroup");
    is_ended_by_the_next_run("say member hang");
}

/// SIGKILL from `cgroup.kill` is for the first thread; one that has ended takes no notice.
#[test]
fn a_leaf_without_owner_is_emptied_of_a_process_whose_first_thread_has_ended() {
    require!("cgroup");
    is_ended_by_the_next_run("leader-exits [ say member hang ]");
}

/// A container runtime or an administrator may do that.
#[test]
fn who_is_put_into_the_leaf_by_others_counts_as_ours() {
    require!("cgroup");
    let mut stranger = Run::control(Vec::<String>::new()).fixture("ignore TERM say stranger hang").spawn();
    let pid = stranger.expect("stranger");
    let mut running = start(nest(), "-k 300ms", "cgroup say read exit 0");
    fs::write(PathBuf::from(running.expect("cgroup")).join("cgroup.procs"), pid).expect("both are ours");
    running.open_gate();
    running.wait().exited(193);
    stranger.wait().died_of(Signal::KILL);
    running.leaves_no_trace();
}

#[test]
fn an_empty_leaf_without_owner_is_removed_by_the_next_run() {
    require!("cgroup");
    let nest = nest();
    let leaf = nest.path().join("treekill-run-0123456789abcdef");
    fs::create_dir(&leaf).expect("the nest is ours");
    fs::set_permissions(&leaf, fs::Permissions::from_mode(0o700)).expect("it is ours");
    let mut running = start(nest, "-k 1", "exit 0");
    running.wait().exited(0);
    assert!(!leaf.exists(), "the leaf is still there");
}

#[test]
fn a_leaf_with_an_owner_is_let_be() {
    require!("cgroup");
    let mut owner = start(nest(), "-k 60", "cgroup say on USR1 [ exit 5 ] say ready hang");
    let leaf = PathBuf::from(owner.expect("cgroup"));
    owner.expect("ready");
    let mut other = start(owner.take_nest().expect("a nest"), "-k 1", "exit 0");
    other.wait().exited(0);
    assert!(leaf.exists());
    owner.signal(Signal::USR1);
    owner.wait().exited(5);
    other.leaves_no_trace();
}

/// POSIX's wording: SIGKILL of timeout calls off the limit, and the command goes on.
#[test]
fn what_an_unguarded_run_left_is_let_be_by_the_next() {
    require!("cgroup");
    let steps = "parent keeper fork [ setsid say member hang ] on USR1 [ say still-here exit 0 ] say ready hang";
    let mut dead = start(nest(), "--no-guard", steps);
    let keeper = dead.expect("keeper");
    let member = dead.expect_process("member");
    let command = dead.expect_process("ready");
    kill_front_and_keeper(&mut dead, &keeper);
    let nest = dead.take_nest().expect("a nest");
    let mut next = start(nest, "-k 1", "exit 0");
    next.wait().exited(0);
    assert!(!is_dead(&member, Duration::ZERO) && !is_dead(&command, Duration::ZERO), "the next run killed it");
    pidfd_send_signal(&command, Signal::USR1).expect("it is alive");
    dead.expect("still-here");
}

#[test]
fn without_a_guard_the_death_of_the_wrapper_lets_the_command_go_on() {
    for backend in [Backend::Cgroup, Backend::Subreaper] {
        if backend == Backend::Cgroup {
            require!("cgroup");
        }
        let steps = "daemon [ say member hang ] on USR1 [ say still-here exit 0 ] say ready hang";
        let mut running = Run::new(backend).options("--no-guard -t 1").may_leave().fixture(steps).spawn();
        let member = running.expect_process("member");
        let command = running.expect_process("ready");
        running.signal(Signal::KILL);
        running.wait();
        pidfd_send_signal(&command, Signal::USR1).expect("it is alive");
        running.expect("still-here");
        assert!(!is_dead(&member, Duration::ZERO));
    }
}

/// Icinga/icinga2#8723, python-trio/trio#1209: kill(2) was refused, so the timeout crashed or the sudo child ran on.
#[test]
fn a_root_member_dies_in_a_cgroup_delegated_to_a_user() {
    require!("delegation", "setpriv");
    let scratch = Scratch::new();
    let Some(become_root) = set_user_id_helper(&scratch) else { return };
    let script = format!(
        "{} --reuid=0 bash -c 'trap : TERM; echo member $$ >&9; for i in {{1..250}}; do sleep .1; done' & exec sleep 25",
        become_root.display()
    );
    for (options, status) in [("-k 300ms", None), ("-t 1 -k 300ms", Some(124))] {
        let run = Run::new(Backend::Cgroup).options(options).by_user(USER).directory("/");
        let mut running = run.bash(&script).spawn();
        let member = running.expect_process("member");
        if status.is_none() {
            running.signal(Signal::TERM);
        }
        let ended = running.wait();
        assert!(is_dead(&member, Duration::ZERO), "the root member is alive\n{ended}");
        match status {
            Some(status) => ended.exited(status),
            None => ended.died_of(Signal::TERM),
        };
    }
}

/// A copy of setpriv(1) with the set-user-ID bit, behind a directory that only the ordinary user's group can pass.
fn set_user_id_helper(scratch: &Scratch) -> Option<PathBuf> {
    let gate = scratch.join("gate");
    let helper = gate.join("become-root");
    fs::create_dir(&gate).expect("the directory is ours");
    fs::set_permissions(&gate, fs::Permissions::from_mode(0o700)).expect("it is ours");
    fs::copy("/usr/bin/setpriv", &helper).expect("setpriv is there");
    std::os::unix::fs::chown(&gate, Some(0), Some(USER)).expect("root may");
    fs::set_permissions(&helper, fs::Permissions::from_mode(0o4755)).expect("it is ours");
    fs::set_permissions(&gate, fs::Permissions::from_mode(0o710)).expect("it is ours");
    let become_root = [helper.as_os_str(), "--reuid=0".as_ref(), "id".as_ref(), "-u".as_ref()];
    let run = Run::control(become_root).setup(|| sys::become_user(USER)).directory("/");
    let ended = run.finish();
    if ended.stdout == b"0\n" {
        return Some(helper);
    }
    common::needs::skip("setuid", "the temporary directory is mounted without set-user-ID");
    None
}

/// Where there is no boundary to kill it by, a member must not become another user's in the first place.
#[test]
fn without_new_privileges_no_member_becomes_root() {
    require!("delegation", "setpriv");
    let scratch = Scratch::new();
    let Some(become_root) = set_user_id_helper(&scratch) else { return };
    let run = |options: &str| {
        let command = [become_root.as_os_str(), "--reuid=0".as_ref(), "id".as_ref(), "-u".as_ref()];
        Run::new(Backend::Auto).options(options).by_user(USER).directory("/").command(command).finish()
    };
    run("").exited(0).printed("0\n");
    assert_ne!(run("--no-new-privs").status.code(), Some(0));
}

/// In a subtree of their own users have the same net as root.
#[test]
fn a_delegated_subtree_is_enough_for_a_user() {
    require!("delegation");
    let run = || Run::new(Backend::Cgroup).options("-k 1").by_user(USER).directory("/");
    run().fixture("exit 9").finish().exited(9);
    run().fixture("daemon [ hang ] exit 0").finish().exited(193);
    run().options("-t 500ms").fixture("daemon [ ignore TERM hang ] hang").finish().exited(124);
}

/// A caller's umask is for its files and may take every right from its own directories.
#[test]
fn a_umask_of_everything_does_not_lock_us_out_of_the_leaf() {
    require!("cgroup");
    let closed = || {
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o777));
        Ok(())
    };
    let run = Run::new(Backend::Cgroup).options("-k 1").setup(closed);
    run.fixture("daemon [ hang ] exit 0").finish().exited(193);
}

/// One run's leaf and tree are not another's.
#[test]
fn runs_side_by_side_do_not_disturb_each_other() {
    require!("cgroup");
    let mut first = start(nest(), "-k 60", "fork [ setsid say member hang ] on USR1 [ exit 5 ] say ready hang");
    let member = first.expect_process("member");
    first.expect("ready");
    for _ in 0..10 {
        let nest = first.take_nest().expect("a nest");
        let mut other = start(nest, "-k 100ms", "daemon [ ignore TERM hang ] exit 0");
        other.wait().exited(193);
        first.put_nest(other.take_nest());
    }
    assert!(!is_dead(&member, Duration::ZERO));
    assert!(first.is_running());
}
