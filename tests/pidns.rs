//! What is special about a PID namespace around the command, and where none can be had.

mod common;

use std::fs;
use std::io::Read as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::needs::{self, is_root, require};
use common::running::{is_dead, open_process};
use common::tracer::{self, Traced};
use common::{BOUND, Backend, Run, Running, USER, kin, sys};
use nix::libc;
use rustix::process::{Signal, pidfd_send_signal};

const LONG: Duration = Duration::from_secs(20);

fn run() -> Run {
    Run::new(Backend::Pidns).options("-k 60")
}

fn own_namespace() -> String {
    fs::read_link("/proc/self/ns/pid").expect("it is there").to_string_lossy().into_owned()
}

/// The keeper and its init, by their numbers outside.
fn keeper_and_init(running: &Running) -> (u32, u32) {
    let (keeper, _) = kin::last_child(running.pid()).expect("there is a keeper");
    (keeper, kin::children(keeper)[0])
}

#[test]
fn proc_shows_the_namespace_and_nothing_else() {
    require!("pidns");
    let script = "cd /proc; echo [0-9]*; read -r _ name _ <1/stat; echo $name $$ $PPID";
    let inside = format!("{script}; [ $(readlink self/ns/pid) != {} ]", own_namespace());
    run().bash(&inside).finish().exited(0).printed("1 2\n(tk-keeper) 2 0\n");
}

/// As for a process that `docker exec` starts: its parent has no number in there.
#[test]
fn the_parent_is_number_0_and_orphans_are_inits() {
    require!("pidns");
    let ended =
        run().fixture("parent-inside fork [ fork [ orphaned parent-inside exit 0 ] exit 0 ] wait exit 0").finish();
    ended.exited(0);
    assert_eq!(ended.lines, ["parent -1", "parent 1"], "{ended}");
}

/// Only the command's own group is in reach of that number, kill(2).
#[test]
fn kill_of_the_parent_signals_the_commands_own_group_alone() {
    require!("pidns");
    let ended = run().bash("trap 'echo term >&9; exit 5' TERM; kill $PPID; while :; do sleep .1; done").finish();
    ended.exited(5).said("term", 1).took_less_than(LONG);
}

/// capabilities(7): a user namespace gives all of them to its maker, and they must not reach the command.
#[test]
fn an_ordinary_user_stays_who_it_is_and_gains_nothing() {
    require!("pidns", "unprivileged");
    let me = rustix::process::geteuid().as_raw();
    let script = "id -u; id -g; grep -E 'Cap(Inh|Prm|Eff|Amb)' /proc/self/status | grep -vc '0000000000000000'; \
                  cat /proc/self/uid_map /proc/self/setgroups | tr -s ' '; stat -c %u /";
    let ended = run().bash(script).finish();
    ended.exited(0).printed(format!("{me}\n{me}\n0\n {me} {me} 1\ndeny\n65534\n"));
}

#[test]
fn root_keeps_its_capabilities_and_makes_no_user_namespace() {
    require!("pidns", "root");
    let script = "readlink /proc/self/ns/user; grep CapEff /proc/self/status";
    let without = Run::control(["bash", "-c", script]).finish();
    let with = run().bash(script).finish();
    with.exited(0).printed(&without.stdout);
}

/// A container's root often lacks it.
#[test]
fn root_without_the_capability_is_195() {
    require!("pidns", "root", "setpriv");
    let bare = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-all"];
    let ended = run().prefixed(bare).fixture("say started").finish();
    ended.exited(195).said("started", 0).complained_of("CAP_SYS_ADMIN");
}

#[test]
fn mounts_stay_inside_and_the_working_directory_stays() {
    require!("pidns");
    let scratch = common::Scratch::new();
    let before = fs::read_to_string("/proc/self/mountinfo").expect("it is there");
    let script = if is_root() { "pwd; mount -t tmpfs none . && touch $PWD/covered" } else { "pwd" };
    let ended = run().directory(scratch.path()).bash(script).finish();
    ended.exited(0).printed(format!("{}\n", scratch.path().display()));
    assert_eq!(fs::read_to_string("/proc/self/mountinfo").expect("it is there"), before);
    assert_eq!(fs::read_dir(scratch.path()).expect("it is there").count(), 0);
}

/// Of the backends only this one can do that.
#[test]
fn sigkill_of_front_and_keeper_at_once_leaves_nothing() {
    require!("pidns");
    let steps =
        "daemon [ ignore TERM say daemon hang ] fork [ setsid clear-environment say member hang ] say ready hang";
    let mut running = run().fixture(steps).spawn();
    for word in ["daemon", "member", "ready"] {
        running.expect(word);
    }
    let (_, keeper) = kin::last_child(running.pid()).expect("there is a keeper");
    // A stopped front sees nothing of the keeper's death.
    running.signal(Signal::STOP);
    pidfd_send_signal(&keeper, Signal::KILL).expect("the keeper is alive");
    running.signal(Signal::KILL);
    running.wait_for_death().died_of(Signal::KILL);
    running.all_die();
    running.leaves_no_trace();
}

#[test]
fn sigkill_of_init_is_the_commands_death() {
    require!("pidns");
    let mut running = run().fixture("daemon [ ignore TERM say daemon hang ] say ready hang").spawn();
    running.expect("daemon");
    running.expect("ready");
    let (_, init) = keeper_and_init(&running);
    pidfd_send_signal(open_process(init).expect("it is alive"), Signal::KILL).expect("it is ours");
    running.wait().died_of(Signal::KILL);
}

#[test]
fn a_stopped_init_is_continued() {
    require!("pidns");
    let mut running = run().gated().fixture("say ready read exit 3").spawn();
    running.expect("ready");
    let (_, init) = keeper_and_init(&running);
    pidfd_send_signal(open_process(init).expect("it is alive"), Signal::STOP).expect("it is ours");
    running.open_gate();
    running.wait().exited(3).took_less_than(LONG);
}

/// Nobody but the front continues it, which only waits for its word then.
#[test]
fn a_keeper_that_is_stopped_before_it_has_a_namespace_is_continued() {
    require!("pidns");
    let mut running = run().setup(tracer::be_traced).fixture("exit 3").spawn();
    let Some(keeper) = Traced::follow(running.pid(), 1, &[0]) else { running.fail("there is no keeper") };
    pidfd_send_signal(open_process(keeper.lineage()[1]).expect("it is alive"), Signal::STOP).expect("it is ours");
    keeper.let_go();
    running.wait().exited(3).took_less_than(LONG);
}

/// A signal from outside reaches it no more than one from inside: it is no part of the tree.
#[test]
fn init_is_nobody_to_signal_or_to_name() {
    require!("pidns");
    let steps = "daemon [ ignore TERM say daemon hang ] fork [ setsid hang ] exit 0";
    let ended = Run::new(Backend::Pidns).options("-k 300ms").report().fixture(steps).finish();
    ended.exited(193);
    let leftovers = ended.report()["leftovers"].clone();
    assert_eq!(leftovers.as_array().map(Vec::len), Some(2), "{leftovers:#}");
    assert!(!leftovers.to_string().contains("\"comm\":\"treekill-run\""), "{leftovers:#}");
    assert_eq!(ended.report()["steps"][0]["count"], 2, "{:#}", ended.report());
}

/// What the command closed is closed: no helper of ours keeps a pipe open, once front and keeper are left out.
#[test]
fn init_holds_none_of_the_commands_descriptors() {
    require!("pidns");
    let mut running = run().gated().fixture("say ready read exit 0").spawn();
    running.expect("ready");
    let (_, init) = keeper_and_init(&running);
    let files = || -> Vec<PathBuf> {
        let files = fs::read_dir(format!("/proc/{init}/fd")).expect("it is alive").flatten();
        files.filter_map(|entry| fs::read_link(entry.path()).ok()).collect()
    };
    // The command may be faster than init.
    let deadline = Instant::now() + BOUND;
    while !files().iter().all(|file| file.to_string_lossy().starts_with("anon_inode:")) {
        assert!(Instant::now() < deadline, "{:?}", files());
        std::thread::yield_now();
    }
    running.open_gate();
    running.wait().exited(0);
}

/// Every reader gets its end of file when the wrapper returns, not later.
#[test]
fn stdout_is_at_its_end_when_the_wrapper_returns() {
    require!("pidns");
    let (mut read, write) = std::io::pipe().expect("a pipe can be had");
    let mut running = run().options("-k 1").stdout(write).fixture("daemon [ hang ] print done exit 0").spawn();
    running.wait().exited(193);
    let mut text = String::new();
    read.read_to_string(&mut text).expect("it is readable");
    assert_eq!(text, "done");
}

/// clone(2), CLONE_PARENT: a child of the keeper's, which init does not see.
#[test]
fn a_sibling_of_the_command_has_its_grace() {
    require!("pidns");
    let run = |options: &str, steps: &str| Run::new(Backend::Pidns).options(options).fixture(steps).finish();
    let sibling = "sibling [ on TERM [ say term exit 0 ] say sibling hang ] exit 0";
    run("-k 60", sibling).exited(193).said("term", 1).took_less_than(LONG);
    run("--leftovers wait", "sibling [ say sibling exit 0 ] daemon [ say daemon exit 0 ] exit 0")
        .exited(0)
        .said("sibling", 1)
        .said("daemon", 1);
    // An orphan that outlives the sibling, and a sibling that outlives the orphan.
    run("--leftovers wait", "sibling [ daemon [ say orphan exit 0 ] exit 0 ] exit 4").exited(4).said("orphan", 1);
}

/// A run that leaves nothing is not taken for one that does, however soon that is asked.
#[test]
fn without_a_grace_an_end_is_an_end() {
    require!("pidns");
    for steps in ["exit 0", "daemon [ exit 0 ] exit 0", "fork [ exit 0 ] wait exit 0"] {
        for _ in 0..10 {
            let ended = Run::new(Backend::Pidns).options("--leftover-grace 0 -k 1").fixture(steps).finish();
            // The daemon may be alive indeed.
            ended.exited_with_one_of(if steps.starts_with("daemon") { &[0, 193] } else { &[0] });
        }
    }
}

/// Sandboxes do that: the first process of theirs dies of SIGKILL only, what is inside has its TERM.
#[test]
fn a_trap_runs_before_a_nested_namespace_dies() {
    require!("pidns");
    let map = if is_root() { "" } else { "--map-root-user" };
    let script = format!(
        "trap 'echo outer >&9; wait; exit 6' TERM
         unshare {map} --pid --fork --mount-proc bash -c 'trap \"echo inner >&9; exit 0\" TERM; \
             (while :; do sleep .1; done) & echo ready >&9; while :; do wait; done; :' &
         while :; do wait; done"
    );
    let mut running = Run::new(Backend::Pidns).options("-k 60").bash(&script).spawn();
    while running.line() != "ready" {}
    running.signal(Signal::TERM);
    let ended = running.wait();
    ended.exited(6).said("outer", 1).said("inner", 1);
}

#[test]
fn three_backends_deep_statuses_and_limits_come_through() {
    require!("pidns");
    let outer = if needs::has("cgroup") { Backend::Cgroup } else { Backend::Subreaper };
    let innermost = |options: &str, steps: &str| Run::new(Backend::Pidns).options(options).fixture(steps).words();
    let nested = |options: &str, steps: &str| {
        let middle = Run::new(Backend::Pidns).options("-k 60").command(innermost(options, steps)).words();
        Run::new(outer).options("-k 60").with(Backend::Pidns).command(middle)
    };
    nested("", "exit 9").finish().exited(9);
    nested("-k 1", "daemon [ ignore TERM hang ] exit 0").finish().exited(193);
    nested("-t 300ms -k 300ms", "ignore TERM daemon [ ignore TERM hang ] hang").finish().exited(137);
    let mut running = nested("", "daemon [ say daemon hang ] on TERM [ say term exit 4 ] say ready hang").spawn();
    running.expect("daemon");
    running.expect("ready");
    running.signal(Signal::TERM);
    running.wait().exited(4).said("term", 1);
    let mut running = nested("", "daemon [ ignore TERM say daemon hang ] say ready hang").spawn();
    running.expect("daemon");
    running.expect("ready");
    running.signal(Signal::KILL);
    running.wait_for_death();
    running.all_die();
    running.leaves_no_trace();
}

#[test]
fn what_would_have_to_outlive_the_namespace_is_195_or_the_next_backend() {
    require!("pidns");
    for options in ["--leftovers leave", "--no-guard"] {
        let ended = Run::new(Backend::Pidns).options(options).fixture("say started").finish();
        ended.exited(195).said("started", 0).complained_of("pidns: ");
        let list = format!("{options} --backend pidns,subreaper");
        let ended = Run::new(Backend::Auto).options(&list).report().fixture("exit 9").finish();
        assert_eq!(ended.exited(9).report()["backend"]["name"], "subreaper", "{ended}");
    }
}

#[test]
fn the_report_names_it_and_auto_never_takes_it() {
    require!("pidns");
    let ended = run().report().fixture("say ready exit 0").finish();
    let report = ended.exited(0).report();
    let name = if is_root() { "pidns" } else { "pidns with a user namespace" };
    assert_eq!((&report["backend"]["name"], &report["proof"]), (&name.into(), &"kernel".into()), "{report:#}");
    // The number outside.
    assert_eq!(report["pid"].to_string(), ended.value("ready"));
    let ended = Run::new(Backend::Auto).report().fixture("exit 0").finish();
    assert!(!ended.exited(0).report()["backend"].to_string().contains("pidns"), "{ended}");
}

/// Nothing is started, and the reason is said.
fn is_refused(run: Run, reason: &str) {
    let ended = run.fixture("say started").finish();
    ended.exited(195).said("started", 0).complained_of(reason).took_less_than(LONG);
    assert_eq!(ended.stderr.lines().count(), 1, "{ended}");
}

#[test]
fn where_namespaces_are_forbidden_it_is_195_or_the_next_backend() {
    require!("pidns", "seccomp");
    let forbidden = |run: Run| run.setup(|| sys::refuse(libc::SYS_unshare, libc::EPERM));
    is_refused(
        forbidden(run()),
        if is_root() { "cannot make a PID namespace" } else { "user namespaces are forbidden" },
    );
    let list = "--backend pidns,subreaper -k 1";
    let next = || forbidden(Run::new(Backend::Auto).options(list)).fixture("daemon [ hang ] exit 0");
    next().finish().exited(193);
    // A front with a child from before, which lives longer than the run takes to begin.
    let with_a_child = ["sh", "-c", "sleep 3 9>&- & exec \"$@\"", "sh"];
    let ended = next().options("-v").prefixed(with_a_child).finish();
    assert!(!ended.exited(193).stderr.contains("SIGKILL"), "nothing was there to be killed\n{ended}");
    // One that ends the run may come before or after.
    let words = ["env", "--block-signal=TERM", "sh", "-c", "kill -TERM $$\nexec \"$@\"", "sh"];
    next().prefixed(words).finish().took_less_than(LONG);
}

/// A keeper leaves its CPU to a front that has nothing left to start.
#[test]
fn the_next_backends_command_runs_on_every_cpu() {
    require!("pidns", "seccomp");
    const LINE: &str = "Cpus_allowed_list:";
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc is there");
    let wanted = status.lines().find(|line| line.starts_with(LINE)).expect("proc(5) has it");
    let run = Run::new(Backend::Auto).options("--backend pidns,subreaper");
    let run = run.setup(|| sys::refuse(libc::SYS_unshare, libc::EPERM));
    let ended = run.command(["grep", LINE, "/proc/self/status"]).finish();
    assert_eq!(ended.exited(0).stdout.trim_ascii_end(), wanted.as_bytes(), "{ended}");
}

/// Neither a child from before that ends nor a signal that waits through exec says anything of the keeper, which is late here.
#[test]
fn a_signal_that_ends_no_run_does_not_cost_the_next_backend() {
    require!("pidns", "strace");
    let late = "strace -f -qq -o /dev/null -e trace=unshare -e inject=unshare:error=EPERM:delay_enter=500ms";
    let blocked = "env --block-signal=CHLD --block-signal=USR1 sh -c";
    for from_before in ["sleep .1 9>&- &", "kill -USR1 $$"] {
        let script = format!("{from_before}\nexec \"$@\"");
        let words = late.split(' ').chain(blocked.split(' ')).chain([script.as_str(), "sh"]);
        let run = Run::new(Backend::Auto).options("--backend pidns,subreaper -k 1").prefixed(words);
        run.fixture("daemon [ hang ] exit 0").finish().exited(193);
    }
}

/// namespaces(7): a user namespace has a limit of its own.
#[test]
fn where_no_more_user_namespaces_are_allowed_it_is_195() {
    require!("pidns", "unprivileged", "setpriv");
    let me = format!("--map-user={}", rustix::process::geteuid().as_raw());
    let limit = "echo 0 >/proc/sys/user/max_user_namespaces && exec setpriv --inh-caps=-all --ambient-caps=-all \"$@\"";
    let words = ["unshare", "--user", &me, "--keep-caps", "sh", "-c", limit, "sh"];
    is_refused(run().prefixed(words), "user.max_user_namespaces");
}

/// As in containers: a /proc that is covered in parts can't be had anew in a user namespace, whoever is root in it.
#[test]
fn with_a_masked_proc_it_is_195() {
    require!("pidns", "mountns", "setpriv");
    let mask = "mount -t tmpfs -o ro none /proc/sys && exec \"$@\"; exit 71";
    let me = rustix::process::geteuid().as_raw();
    let words = if is_root() {
        require!("user");
        format!("unshare --mount sh -c MASK sh setpriv --reuid={USER} --regid={USER} --clear-groups --inh-caps=-all")
    } else {
        format!("unshare --map-root-user --mount sh -c MASK sh unshare --user --map-user={me} --map-group={me}")
    };
    let words = words.split(' ').map(|word| if word == "MASK" { mask } else { word });
    let ended = run().prefixed(words).directory("/").fixture("say started").finish();
    if ended.status.code() == Some(71) {
        return needs::skip("mountns", "mounts cannot be changed here");
    }
    ended.exited(195).said("started", 0).complained_of("/proc").complained_of("systempaths=unconfined");
}

/// A /proc of another namespace shows strangers; it is never believed.
#[test]
fn with_a_foreign_proc_it_is_195() {
    require!("pidns");
    let mut words = vec!["unshare", "--pid", "--fork", "--kill-child"];
    if !is_root() {
        words.push("--map-root-user");
    }
    is_refused(run().prefixed(words), "shows another PID namespace");
}

/// Terminal mode: the command is in the caller's group, which it can't name.
#[test]
fn in_the_foreground_a_group_without_a_number_is_joined() {
    require!("pidns");
    let mut running = run().options("--foreground").gated().fixture("say ready read exit 0").spawn();
    let command = running.expect("ready").parse().expect("a PID");
    let place = kin::group_and_session(command);
    let (keeper, init) = keeper_and_init(&running);
    let group_of = |pid| kin::group_and_session(pid).map(|(group, _)| group);
    // The command may be faster than init.
    let deadline = Instant::now() + BOUND;
    while group_of(init) == Some(running.pid()) && Instant::now() < deadline {
        std::thread::yield_now();
    }
    let groups = [keeper, init].map(group_of);
    let pidfd = open_process(command).expect("it is alive");
    running.open_gate();
    running.wait().exited(0);
    assert_eq!(place, Some((running.pid(), running.pid())));
    assert_eq!(groups, [Some(keeper), Some(init)], "keeper and init are out of reach of the group");
    assert!(is_dead(&pidfd, BOUND));
}
