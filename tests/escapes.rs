//! Ways out of a tree that work with timeout(1) or a group kill, and not here. Each kind has its control: the same
//! tree under what people use today, which must leave somebody alive, or the test shows nothing.

mod common;

use std::time::Duration;

use common::running::is_dead;
use common::{A_DEATH, BOUND, Backend, Nest, Run, all_backends, needs};
use rustix::process::{Pid, Signal, kill_process_group};

const LONG: Duration = Duration::from_secs(20);

/// A tree whose member escapes from a process group: the steps, and the word by which the member says that it is there.
struct Escape {
    steps: &'static str,
    word: &'static str,
}

const SETSID: Escape = Escape { steps: "fork [ setsid say member hang ] say root hang", word: "member" };
const OWN_GROUP: Escape = Escape { steps: "fork [ setpgid say member hang ] say root hang", word: "member" };
const DAEMON: Escape = Escape { steps: "daemon [ say member hang ] say root hang", word: "member" };
const STUBBORN_DAEMON: Escape =
    Escape { steps: "daemon [ ignore TERM ignore HUP say member hang ] say root hang", word: "member" };
/// What looks for marks in environments or holds on to pipes does not see this one.
const BARE_DAEMON: Escape =
    Escape { steps: "daemon [ say member clear-environment close-all hang ] say root hang", word: "member" };
const SIBLING: Escape = Escape { steps: "fork [ sibling [ setsid say member hang ] ] say root hang", word: "member" };
const STOPPED: Escape = Escape { steps: "daemon [ say member kill self STOP hang ] say root hang", word: "member" };
const ZOMBIE_LEADER: Escape =
    Escape { steps: "daemon [ leader-exits [ say member hang ] ] say root hang", word: "member" };

/// The escape is no escape from us, whoever ends it and why.
fn is_no_escape(backend: Backend, escape: &Escape) {
    // A request.
    let run = |options: &str| Run::new(backend).options(options).fixture(escape.steps);
    let mut running = run("-k 300ms").spawn();
    let member = expect_all(&mut running, escape);
    running.signal(Signal::TERM);
    let ended = running.wait();
    ended.died_of(Signal::TERM).took_less_than(LONG);
    assert!(is_dead(&member, Duration::ZERO), "the member is alive\n{ended}");

    // The limit.
    run("-t 500ms -k 300ms").finish().exited(124).took_less_than(LONG);

    // The death of the wrapper.
    let mut running = run("-k 60").spawn();
    let member = expect_all(&mut running, escape);
    running.signal(Signal::KILL);
    running.wait_for_death();
    running.all_die();
    assert!(is_dead(&member, BOUND), "the member outlived the wrapper");
    running.leaves_no_trace();
}

/// The same tree does escape from a kill of its process group, and from timeout(1).
fn escapes_from_others(escape: &Escape) {
    let mut running = Run::control(Vec::<String>::new()).fixture(escape.steps).spawn();
    let member = expect_all(&mut running, escape);
    let group = Pid::from_raw(i32::try_from(running.pid()).expect("a PID")).expect("a PID");
    kill_process_group(group, Signal::KILL).expect("the group is there");
    running.wait();
    assert!(!is_dead(&member, A_DEATH), "killpg got it: this is no escape");
    drop(running);

    let mut running = under_timeout(escape.steps).spawn();
    let member = expect_all(&mut running, escape);
    running.signal(END_OF_TIME);
    running.wait().exited(124);
    assert!(!is_dead(&member, A_DEATH), "timeout(1) got it: this is no escape");
}

/// A run whose time is over when the test says so, however long the command takes to start.
fn under_timeout(steps: &str) -> Run {
    Run::control(["timeout", "-k", "2", "5m"]).fixture(steps)
}

/// timeout(1) takes it for the end of the time.
const END_OF_TIME: Signal = Signal::ALARM;

/// Waits for root and member.
fn expect_all(running: &mut common::Running, escape: &Escape) -> std::os::fd::OwnedFd {
    let member = running.expect_process(escape.word);
    running.expect("root");
    member
}

all_backends! {
    a_member_with_a_session_of_its_own_dies
    a_member_with_a_group_of_its_own_dies
    a_daemon_dies
    a_stubborn_daemon_dies
    a_daemon_without_environment_and_descriptors_dies
    a_clone_with_its_parents_parent_dies
    a_stopped_daemon_dies
    a_process_whose_first_thread_has_ended_dies
    a_process_whose_first_thread_has_ended_is_a_leftover
    a_command_whose_first_thread_has_ended_is_still_running
    children_forked_in_a_term_handler_die
    a_chain_of_short_lived_processes_ends
    a_chain_left_by_a_success_ends
    a_chain_ends_with_the_wrapper
    nested_cgroups_of_the_command_are_emptied_and_removed
    a_frozen_cgroup_of_the_command_is_ended
    a_frozen_cgroup_ends_with_the_wrapper
    a_threaded_cgroup_of_the_command_is_ended
    a_daemon_that_moved_to_another_cgroup_dies
    a_command_that_moved_to_another_cgroup_keeps_its_status
}

/// Yelp/dumb-init#191, iOfficeAI/AionCore#752.
fn a_member_with_a_session_of_its_own_dies(backend: Backend) {
    is_no_escape(backend, &SETSID);
}

fn a_member_with_a_group_of_its_own_dies(backend: Backend) {
    is_no_escape(backend, &OWN_GROUP);
}

/// mozilla/sccache#2145, daintreehq/daintree#12203.
fn a_daemon_dies(backend: Backend) {
    is_no_escape(backend, &DAEMON);
}

fn a_stubborn_daemon_dies(backend: Backend) {
    is_no_escape(backend, &STUBBORN_DAEMON);
}

/// Runners that look for a mark in environments miss it.
fn a_daemon_without_environment_and_descriptors_dies(backend: Backend) {
    is_no_escape(backend, &BARE_DAEMON);
}

fn a_clone_with_its_parents_parent_dies(backend: Backend) {
    is_no_escape(backend, &SIBLING);
}

/// ValveSoftware/Fossilize#129.
fn a_stopped_daemon_dies(backend: Backend) {
    is_no_escape(backend, &STOPPED);
}

/// openclaw/openclaw#137726, systemd/systemd#12621: the first thread was a zombie, so it was taken for dead.
fn a_process_whose_first_thread_has_ended_dies(backend: Backend) {
    is_no_escape(backend, &ZOMBIE_LEADER);
}

fn a_process_whose_first_thread_has_ended_is_a_leftover(backend: Backend) {
    let steps = "fork [ setsid leader-exits [ say member hang ] ] read exit 0";
    let mut running = Run::new(backend).options("-k 1").gated().fixture(steps).spawn();
    let member = running.expect_process("member");
    running.open_gate();
    running.wait().exited(193).took_less_than(LONG);
    assert!(is_dead(&member, Duration::ZERO));
}

fn a_command_whose_first_thread_has_ended_is_still_running(backend: Backend) {
    let steps = "leader-exits [ say member read exit 7 ]";
    let mut running = Run::new(backend).options("-k 1").gated().fixture(steps).spawn();
    running.expect("member");
    assert!(running.is_running());
    running.open_gate();
    running.wait().exited(7);
}

/// openclaw/openclaw#121051, brightwave-inc/tidebreak#2451: children of the handler were in no kill list.
fn children_forked_in_a_term_handler_die(backend: Backend) {
    let mut running = Run::new(backend).options("-k 300ms").fixture(FORKS_IN_HANDLER).spawn();
    running.expect("root");
    running.signal(Signal::TERM);
    running.wait().exited(0).said("late", 4);
    Run::new(backend).options("-t 1 -k 300ms").fixture(FORKS_IN_HANDLER).finish().exited(124).said("late", 4);
}

/// actions/runner#4601: one look at the process table, and whatever was born in between outlived the job.
fn a_chain_of_short_lived_processes_ends(backend: Backend) {
    let ended = Run::new(backend).options("-t 1 -k 300ms").fixture("ignore TERM chain 60000 hang").finish();
    ended.exited(137).said("chain-ended", 0).took_less_than(LONG);
}

fn a_chain_left_by_a_success_ends(backend: Backend) {
    let ended = Run::new(backend).options("-k 300ms").fixture("ignore TERM chain 60000 exit 0").finish();
    ended.exited(193).said("chain-ended", 0).took_less_than(LONG);
}

fn a_chain_ends_with_the_wrapper(backend: Backend) {
    let mut running = Run::new(backend).fixture("ignore TERM chain 60000 hang").spawn();
    running.expect("chain");
    running.signal(Signal::KILL);
    running.wait_for_death();
    running.all_die();
    running.leaves_no_trace();
}

/// kata-containers/kata-containers#13264, containers/crun#657, systemd/systemd#16350.
fn nested_cgroups_of_the_command_are_emptied_and_removed(backend: Backend) {
    needs::require!("cgroup");
    let steps = "cgroup make nested cgroup make nested/inner cgroup make empty
        daemon [ cgroup enter nested/inner say member hang ] read exit 0";
    let mut running = on_its_own_cgroup(backend, "-k 1").gated().fixture(steps).spawn();
    let member = running.expect_process("member");
    running.open_gate();
    running.wait().exited(193).said("refused", 0).took_less_than(LONG);
    assert!(is_dead(&member, Duration::ZERO));
}

/// opencontainers/runc#2105, sosy-lab/benchexec#841: the kill sequence waited for ever.
fn a_frozen_cgroup_of_the_command_is_ended(backend: Backend) {
    needs::require!("cgroup");
    let mut running = on_its_own_cgroup(backend, "-k 500ms").gated().fixture(FROZEN).spawn();
    let member = running.expect_process("member");
    running.open_gate();
    running.expect("root");
    running.signal(Signal::TERM);
    running.wait().died_of(Signal::TERM).said("refused", 0).took_less_than(LONG);
    assert!(is_dead(&member, Duration::ZERO));
}

fn a_frozen_cgroup_ends_with_the_wrapper(backend: Backend) {
    needs::require!("cgroup");
    let mut running = on_its_own_cgroup(backend, "-k 60").gated().fixture(FROZEN).spawn();
    running.expect("member");
    running.open_gate();
    running.expect("root");
    running.signal(Signal::KILL);
    running.wait_for_death();
    running.all_die();
    running.leaves_no_trace();
}

/// In a threaded subtree `cgroup.procs` cannot be read (cgroups(7)).
fn a_threaded_cgroup_of_the_command_is_ended(backend: Backend) {
    needs::require!("cgroup");
    let steps = "cgroup make threads cgroup thread threads
        fork [ setsid ignore TERM cgroup enter-thread threads say member hang ] say root hang";
    let mut running = on_its_own_cgroup(backend, "-k 300ms").fixture(steps).spawn();
    let member = running.expect_process("member");
    running.signal(Signal::TERM);
    running.wait().died_of(Signal::TERM).said("refused", 0).took_less_than(LONG);
    assert!(is_dead(&member, Duration::ZERO));
}

/// systemd/systemd#22874, #6356, #10761: su and PAM moved processes, and the old group looked empty.
fn a_daemon_that_moved_to_another_cgroup_dies(backend: Backend) {
    needs::require!("cgroup");
    let elsewhere = Nest::new().expect("cgroups can be made");
    let enter = format!("daemon [ ignore TERM cgroup enter {} say member hang ]", elsewhere.path().display());
    let mut running = Run::new(backend).options("-k 300ms").gated().fixture(&format!("{enter} read exit 0")).spawn();
    let member = running.expect_process("member");
    running.open_gate();
    running.wait().exited(193).said("refused", 0).took_less_than(LONG);
    assert!(is_dead(&member, Duration::ZERO));

    let mut running = Run::new(backend).options("-k 60").fixture(&format!("{enter} say root hang")).spawn();
    let member = running.expect_process("member");
    running.signal(Signal::KILL);
    running.wait_for_death();
    running.all_die();
    assert!(is_dead(&member, BOUND));
}

fn a_command_that_moved_to_another_cgroup_keeps_its_status(backend: Backend) {
    needs::require!("cgroup");
    let elsewhere = Nest::new().expect("cgroups can be made");
    let steps = format!("cgroup enter {} fork [ setsid hang ] exit 3", elsewhere.path().display());
    Run::new(backend).options("-k 1").fixture(&steps).finish().exited(3).said("refused", 0);
}

const FORKS_IN_HANDLER: &str = "on TERM [
        fork [ setsid say late hang ] fork [ setsid say late hang ]
        fork [ setsid say late hang ] fork [ setsid say late hang ] exit 0 ]
    say root hang";

/// A member in a nested cgroup that the command freezes once the gate is open.
const FROZEN: &str =
    "cgroup make ice fork [ setsid cgroup enter ice say member hang ] read cgroup freeze ice say root hang";

/// A run whose command makes cgroups; those it makes under the subreaper backend are not the wrapper's to remove.
fn on_its_own_cgroup(backend: Backend, options: &str) -> Run {
    let run = Run::new(backend).options(options);
    if backend == Backend::Cgroup { run } else { run.makes_cgroups() }
}

#[test]
fn control_a_session_of_its_own_escapes_from_others() {
    escapes_from_others(&SETSID);
}

#[test]
fn control_a_group_of_its_own_escapes_from_others() {
    escapes_from_others(&OWN_GROUP);
}

#[test]
fn control_a_daemon_escapes_from_others() {
    escapes_from_others(&DAEMON);
}

#[test]
fn control_a_stubborn_daemon_escapes_from_others() {
    escapes_from_others(&STUBBORN_DAEMON);
}

#[test]
fn control_a_bare_daemon_escapes_from_others() {
    escapes_from_others(&BARE_DAEMON);
}

#[test]
fn control_a_clone_with_its_parents_parent_escapes_from_others() {
    escapes_from_others(&SIBLING);
}

#[test]
fn control_a_stopped_daemon_escapes_from_others() {
    escapes_from_others(&STOPPED);
}

#[test]
fn control_a_process_without_first_thread_escapes_from_others() {
    escapes_from_others(&ZOMBIE_LEADER);
}

#[test]
fn control_children_forked_in_a_term_handler_escape_from_timeout() {
    let mut running = under_timeout(FORKS_IN_HANDLER).spawn();
    running.expect("root");
    running.signal(END_OF_TIME);
    let late = running.expect_process("late");
    running.wait().exited(124);
    assert!(!is_dead(&late, A_DEATH));
}

#[test]
fn control_a_chain_escapes_from_timeout() {
    let mut running = under_timeout("ignore TERM chain 60000 say root hang").spawn();
    running.expect("root");
    running.signal(END_OF_TIME);
    // A process of the chain lives for a moment only, but the tether is held by the next.
    running.wait();
    assert!(!running.all_die_within(A_DEATH), "timeout(1) ended the chain: this is no escape");
}

#[test]
fn control_an_orphan_that_ignores_term_escapes_from_timeout() {
    let steps = "fork [ ignore TERM say member hang ] say root hang";
    let mut running = under_timeout(steps).spawn();
    let member = running.expect_process("member");
    running.expect("root");
    running.signal(END_OF_TIME);
    running.wait().exited(124);
    assert!(!is_dead(&member, A_DEATH));
}

#[test]
fn control_a_frozen_member_escapes_from_timeout() {
    needs::require!("cgroup");
    let mut running = under_timeout(FROZEN).makes_cgroups().gated().spawn();
    let member = running.expect_process("member");
    running.open_gate();
    running.expect("root");
    running.signal(END_OF_TIME);
    running.wait();
    assert!(!is_dead(&member, A_DEATH));
}
