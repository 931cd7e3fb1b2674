//! What callers are like: shells with jobs, threads that come and go, parents that die, PID 1, other wrappers.

mod common;

use std::ffi::OsString;
use std::time::{Duration, Instant};

use common::needs;
use common::running::{is_dead, open_process};
use common::{BOUND, Backend, Run, all_backends, fixture, kin};
use rustix::process::{Signal, pidfd_send_signal};

const LONG: Duration = Duration::from_secs(20);

/// A caller with a job and with a job that has a child, which then becomes the wrapper by exec.
fn from_a_shell_with_jobs(backend: Backend, options: &str, command: &str) -> Run {
    let jobs = "fork [ say job hang ] fork [ fork [ say jobs-child hang ] say parent-job read exit 0 ]";
    let run = Run::new(backend).options(options).called_by(&format!("{jobs} exec"), "");
    run.gated().may_leave().fixture(command)
}

all_backends! {
    jobs_that_an_exec_handed_down_are_not_touched
    a_job_that_ends_meanwhile_is_not_taken_for_the_command
    the_wrappers_death_ends_its_tree_and_no_inherited_job
    the_end_of_the_launching_thread_changes_nothing
    sigkill_of_all_with_a_word_of_the_command_line_leaves_nothing
    sigkill_of_all_of_our_name_leaves_nothing
    the_parents_death_ends_the_tree_when_asked_for
    the_parents_death_is_a_stop_with_a_grace
    without_the_option_the_parents_death_changes_nothing
    caller_and_sibling_in_the_same_group_live
    caller_and_sibling_live_when_the_command_shares_their_group
    of_two_wrappers_the_outer_limit_ends_both_trees
    of_two_wrappers_the_inner_status_comes_out
    three_wrappers_deep_status_signal_and_request_come_through
    an_inner_wrapper_that_is_killed_leaves_nothing
    pid_1_of_a_namespace_runs_a_command
    pid_1_reaps_orphans_of_others
}

/// SIGKILL of those among front, keeper, a deputy between them and the command that somebody picks by what this file of
/// theirs in /proc says.
fn kill_by(run: Run, file: &str, text: &str) {
    let mut running = run.fixture("daemon [ ignore TERM hang ] fork [ setsid hang ] say ready hang").spawn();
    let command: u32 = running.expect("ready").parse().expect("a PID");
    let mut line = vec![command];
    while *line.last().expect("one at least") != running.pid() {
        let (_, parent) = kin::state_and_parent(*line.last().expect("as above")).expect("it is alive");
        line.push(parent);
    }
    let is_meant = |pid: &&u32| {
        let said = std::fs::read(format!("/proc/{pid}/{file}")).expect("it is alive");
        String::from_utf8_lossy(&said).contains(text)
    };
    let meant: Vec<_> = line.iter().filter(is_meant).filter_map(|pid| open_process(*pid)).collect();
    assert!(!meant.is_empty(), "nobody is meant by {text}");
    for pidfd in &meant {
        pidfd_send_signal(pidfd, Signal::KILL).expect("they live");
    }
    running.wait_for_death();
    running.all_die();
}

/// `pkill -9 -f`, as people end what they have started.
fn sigkill_of_all_with_a_word_of_the_command_line_leaves_nothing(backend: Backend) {
    kill_by(Run::new(backend).options("-k 60"), "cmdline", "daemon");
    let with_a_child = ["sh", "-c", "sleep 1 9>&- & exec \"$@\"", "sh"];
    kill_by(Run::new(backend).options("-k 60").prefixed(with_a_child), "cmdline", "daemon");
}

/// `pkill -9` and `killall -9`.
fn sigkill_of_all_of_our_name_leaves_nothing(backend: Backend) {
    kill_by(Run::new(backend).options("-k 60"), "comm", "treekill-run");
}

/// pyinstaller/pyinstaller#2966, krallin/tini#130: wait(-1) and subreaping hit processes the program never started.
fn jobs_that_an_exec_handed_down_are_not_touched(backend: Backend) {
    for (options, command, request, status) in [
        ("-k 1", "on USR1 [ exit 5 ] say ready hang", Signal::USR1, Some(5)),
        ("-k 1", "on USR1 [ fork [ setsid hang ] exit 0 ] say ready hang", Signal::USR1, Some(193)),
        ("-k 300ms", "fork [ setsid ignore TERM say member hang ] ignore TERM say ready hang", Signal::TERM, Some(137)),
        ("-k 1", "daemon [ hang ] say ready hang", Signal::TERM, None),
    ] {
        let mut running = from_a_shell_with_jobs(backend, options, command).spawn();
        let job = running.expect_process("job");
        let jobs_child = running.expect_process("jobs-child");
        let parent_job = running.expect_process("parent-job");
        running.expect("ready");
        // One job ends, and its child is handed to the nearest subreaper.
        running.open_gate();
        assert!(is_dead(&parent_job, BOUND));
        running.signal(request);
        let ended = running.wait();
        match status {
            Some(status) => ended.exited(status),
            None => ended.died_of(Signal::TERM),
        };
        for (what, job) in [("a job", &job), ("a job's child", &jobs_child)] {
            assert!(!is_dead(job, Duration::ZERO), "{what} was killed\n{ended}");
        }
        // Nobody else is left.
        for job in [job, jobs_child] {
            pidfd_send_signal(&job, Signal::KILL).expect("it is alive");
        }
        running.all_die();
        running.leaves_no_trace();
    }
}

fn a_job_that_ends_meanwhile_is_not_taken_for_the_command(backend: Backend) {
    let run = Run::new(backend).called_by("fork [ say job read exit 9 ] exec", "").gated();
    let mut running = run.fixture("on USR1 [ exit 5 ] say ready hang").spawn();
    let job = running.expect_process("job");
    running.expect("ready");
    running.open_gate();
    assert!(is_dead(&job, BOUND));
    running.signal(Signal::USR1);
    running.wait().exited(5);
}

fn the_wrappers_death_ends_its_tree_and_no_inherited_job(backend: Backend) {
    let mut running =
        from_a_shell_with_jobs(backend, "-k 60", "fork [ setsid say member hang ] say ready hang").spawn();
    let jobs =
        [running.expect_process("job"), running.expect_process("jobs-child"), running.expect_process("parent-job")];
    let tree = [running.expect_process("ready"), running.expect_process("member")];
    running.signal(Signal::KILL);
    running.wait_for_death().died_of(Signal::KILL);
    assert!(tree.iter().all(|process| is_dead(process, BOUND)), "the tree lives on");
    assert!(jobs.iter().all(|process| !is_dead(process, Duration::ZERO)), "a job was killed");
}

/// containers/bubblewrap#692, golang/go#27505: the parent-death signal is bound to a thread.
fn the_end_of_the_launching_thread_changes_nothing(backend: Backend) {
    let launch = move || {
        Run::new(backend)
            .options("--die-with-parent")
            .gated()
            .outliving_its_thread()
            .fixture("say ready read exit 7")
            .spawn()
    };
    let mut running = std::thread::spawn(launch).join().expect("a wrapper was started");
    running.expect("ready");
    running.open_gate();
    running.wait().exited(7);
}

fn the_parents_death_ends_the_tree_when_asked_for(backend: Backend) {
    let mut running = Run::new(backend)
        .options("--die-with-parent -k 60")
        .called_by("fork [ exec", "] say caller hang")
        .fixture("fork [ setsid say member hang ] say ready hang")
        .spawn();
    for word in ["caller", "member", "ready"] {
        running.expect(word);
    }
    let start = Instant::now();
    running.signal(Signal::KILL);
    running.wait_for_death();
    running.all_die();
    assert!(start.elapsed() < Duration::from_secs(5), "that took {:?}", start.elapsed());
    running.leaves_no_trace();
}

fn the_parents_death_is_a_stop_with_a_grace(backend: Backend) {
    let mut running = Run::new(backend)
        .options("--die-with-parent -k 60")
        .called_by("fork [ exec", "] say caller hang")
        .fixture("on TERM [ say term exit 0 ] say ready hang")
        .spawn();
    running.expect("caller");
    running.expect("ready");
    running.signal(Signal::KILL);
    running.expect("term");
    running.all_die();
}

fn without_the_option_the_parents_death_changes_nothing(backend: Backend) {
    let mut running = Run::new(backend)
        .called_by("fork [ exec", "] say caller hang")
        .may_leave()
        .gated()
        .fixture("say ready read say still-here exit 0")
        .spawn();
    running.expect("caller");
    running.expect("ready");
    running.signal(Signal::KILL);
    running.wait();
    running.open_gate();
    running.expect("still-here");
    running.all_die();
    running.leaves_no_trace();
}

/// librefang/librefang#2472, openclaw/openclaw#71681: a group kill hit the caller or the runner itself.
fn caller_and_sibling_in_the_same_group_live(backend: Backend) {
    let mut running = Run::new(backend)
        .options("-t 1 -k 300ms")
        .may_leave()
        .called_by("fork [ say sibling hang ] call [", "] say caller exit 0")
        .fixture("ignore TERM ignore INT hang")
        .spawn();
    let sibling = running.expect_process("sibling");
    let ended = running.wait();
    ended.exited(0).said("caller", 1);
    assert_eq!(ended.value("returned"), "137", "{ended}");
    assert!(!is_dead(&sibling, Duration::ZERO), "the sibling was hit\n{ended}");
}

/// The group of the command is the caller's when a terminal is shared.
fn caller_and_sibling_live_when_the_command_shares_their_group(backend: Backend) {
    let mut running = Run::new(backend)
        .options("--foreground -t 500ms -k 300ms")
        .may_leave()
        .called_by("fork [ say sibling hang ] call [", "] say caller exit 0")
        .fixture("ignore TERM ignore INT fork [ hang ] hang")
        .spawn();
    let sibling = running.expect_process("sibling");
    let ended = running.wait();
    assert_eq!(ended.exited(0).value("returned"), "137", "{ended}");
    assert!(!is_dead(&sibling, Duration::ZERO), "the sibling was hit\n{ended}");
}

/// AgentWorkforce/relay#1646, wrapt_timeout_decorator#40.
fn of_two_wrappers_the_outer_limit_ends_both_trees(backend: Backend) {
    let inner = Run::new(backend).options("-t 25 -k 1").fixture(TREE);
    let outer = Run::new(backend).options("-t 1 -k 5").command(inner.words());
    outer.finish().exited(124).took_less_than(LONG);
}

fn of_two_wrappers_the_inner_status_comes_out(backend: Backend) {
    let inner = || Run::new(backend).options("-t 500ms -k 1").fixture(TREE);
    Run::new(backend).options("-t 25 -k 1").command(inner().words()).finish().exited(124).took_less_than(LONG);
    let inner = Run::new(backend).options("-k 1").fixture("daemon [ hang ] exit 0");
    Run::new(backend).options("-t 25 -k 1").command(inner.words()).finish().exited(193).took_less_than(LONG);
}

fn three_wrappers_deep_status_signal_and_request_come_through(backend: Backend) {
    let deep = |steps: &str| {
        let inner = Run::new(backend).options("-t 25").fixture(steps);
        let middle = Run::new(backend).options("-t 25").command(inner.words());
        Run::new(backend).options("-t 25").command(middle.words())
    };
    deep("exit 17").finish().exited(17);
    deep("kill self KILL hang").finish().died_of(Signal::KILL);
    let mut running = deep("on TERM [ say term exit 4 ] say ready hang").spawn();
    running.expect("ready");
    running.signal(Signal::TERM);
    running.wait().exited(4).said("term", 1);
    let mut running = deep(TREE).spawn();
    running.expect("ready");
    running.signal(Signal::KILL);
    running.wait_for_death();
    running.all_die();
    running.leaves_no_trace();
}

fn an_inner_wrapper_that_is_killed_leaves_nothing(backend: Backend) {
    let inner = Run::new(backend).options("-k 60").fixture(TREE);
    // The command of the outer one is a process that kills the inner one's front.
    let words = inner.words();
    let mut command = vec![fixture().into_os_string()];
    command.extend("fork [ exec".split(' ').map(Into::into));
    command.extend(words);
    command.extend("] wait exit 6".split(' ').map(Into::into));
    let mut running = Run::new(backend).options("-k 20").command(command).spawn();
    running.expect("ready");
    let keeper = running.expect("keeper");
    let front = parent_of(&keeper);
    pidfd_send_signal(&front, Signal::KILL).expect("the inner front is alive");
    running.wait().exited(6);
}

/// A container's first process: a shell shows 128+n, since nothing kills PID 1 from inside (pid_namespaces(7)).
fn pid_1_of_a_namespace_runs_a_command(backend: Backend) {
    needs::require!("pidns");
    as_pid_1(backend, "-k 1").fixture("exit 9").finish().exited(9);
    as_pid_1(backend, "-k 1").fixture("kill self KILL hang").finish().exited(137);
    as_pid_1(backend, "-k 1").fixture("kill self TERM hang").finish().exited(143);
    as_pid_1(backend, "-k 1").fixture("daemon [ hang ] exit 0").finish().exited(193);
    as_pid_1(backend, "-k 1 -t 500ms").fixture("daemon [ hang ] hang").finish().exited(124);
    as_pid_1(backend, "-k 300ms -t 500ms").fixture("daemon [ ignore TERM hang ] ignore TERM hang").finish().exited(137);
}

/// Strangers' orphans come to PID 1, in docker exec for instance; they are reaped and are none of the tree.
fn pid_1_reaps_orphans_of_others(backend: Backend) {
    needs::require!("pidns");
    // The first process of the namespace forks a stranger that outlives the command, then becomes the wrapper.
    let run = Run::new(backend).options("-k 1 --leftover-grace 0").may_leave();
    let mut words: Vec<_> = needs::as_pid_1().into_iter().map(OsString::from).collect();
    words.push(fixture().into());
    words.extend("fork [ fork [ say stranger hang ] say parent exit 0 ] exec".split(' ').map(Into::into));
    let mut running = run.prefixed(words).gated().fixture("say command read exit 0").spawn();
    for word in ["stranger", "parent", "command"] {
        running.expect(word);
    }
    running.open_gate();
    running.wait().exited(0);
}

/// A command with members in other sessions.
const TREE: &str = "parent keeper fork [ setsid hang ] daemon [ hang ] say ready hang";

fn as_pid_1(backend: Backend, options: &str) -> Run {
    Run::new(backend).options(options).prefixed(needs::as_pid_1())
}

/// A pidfd of a process's parent.
fn parent_of(pid: &str) -> std::os::fd::OwnedFd {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process is there");
    let fields = stat.rsplit(") ").next().expect("a line");
    let parent = fields.split(' ').nth(1).and_then(|parent| parent.parse().ok()).expect("a PID");
    common::running::open_process(parent).expect("the parent is alive")
}

/// oven-sh/bun#43203, firejail#3500, puppeteer/puppeteer#1825: zombies piled up, and the wait took a whole CPU.
#[test]
fn waiting_costs_nothing_and_orphans_are_reaped_meanwhile() {
    let orphans = "daemon [ exit 0 ] ".repeat(60);
    let stopped = "daemon [ say stopped kill self STOP hang ]";
    let steps = format!("on TERM [ say term read exit 0 ] parent keeper {orphans} {stopped} say ready hang");
    let mut running = Run::new(Backend::Auto).options("-t 2 -k 20").gated().fixture(&steps).spawn();
    let keeper = running.expect("keeper");
    running.expect("stopped");
    running.expect("ready");
    let start = Instant::now();
    while zombies_of(&keeper) > 0 {
        assert!(start.elapsed() < BOUND, "zombies are left");
        std::thread::yield_now();
    }
    let front = running.pid().to_string();
    let before = (wakeups(&keeper), wakeups(&front));
    // The rest of the limit passes.
    running.expect("term");
    let after = (wakeups(&keeper), wakeups(&front));
    assert!(after.0 - before.0 < 20 && after.1 - before.1 < 20, "woken {before:?} to {after:?} times in two seconds");
    running.open_gate();
    running.wait().exited(124);
}

fn zombies_of(keeper: &str) -> usize {
    let children = std::fs::read_to_string(format!("/proc/{keeper}/task/{keeper}/children")).unwrap_or_default();
    children.split(' ').filter(|pid| common::running::state_of(pid) == Some('Z')).count()
}

/// How often a process has gone to sleep, proc_pid_status(5).
fn wakeups(pid: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process is there");
    let line = status.lines().filter_map(|line| line.split_once("voluntary_ctxt_switches:"));
    line.filter_map(|(_, count)| count.trim().parse::<u64>().ok()).sum()
}
