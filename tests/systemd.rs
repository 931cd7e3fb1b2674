//! The scope that systemd makes for a run. Each test runs as whoever runs the tests: in a login session, where no other
//! net with a cgroup can be had, in a delegated cgroup, or as root.

mod common;

#[path = "terminal/pty.rs"]
#[expect(dead_code, reason = "the tests of terminals need more of it")]
mod pty;
#[path = "peers/table.rs"]
mod table;
#[path = "peers/trial.rs"]
mod trial;

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use common::needs::{is_root, require};
use common::running::{is_dead, open_process};
use common::systemd::{bus, is_forgotten, property, systemctl, unit, unit_of};
use common::{BOUND, Backend, Nest, Run, Running, Scratch, cgroups, kin, sys};
use rustix::process::{Pid, Resource, Rlimit, Signal, pidfd_send_signal, prlimit};

const LONG: Duration = Duration::from_secs(20);

fn run(options: &str) -> Run {
    Run::new(Backend::Systemd).options(options)
}

fn cgroup_of(process: &str) -> String {
    cgroups::of_process(process).expect("there is a cgroup2 mount").to_string_lossy().into_owned()
}

fn is_session() -> bool {
    !is_root() && Nest::new().is_none()
}

#[test]
fn auto_takes_a_scope_where_no_leaf_can_be_made_and_says_nothing() {
    require!("systemd");
    let ended = Run::new(Backend::Auto).report().fixture("cgroup say exit 0").finish();
    let report = ended.exited(0).report();
    let name = report["backend"]["name"].as_str().expect("a name").to_owned();
    assert_eq!(ended.stderr, "");
    if is_session() {
        assert_eq!(name, format!("systemd scope {}", unit_of(ended.value("cgroup"))));
        assert_eq!(report["backend"]["refused"][0]["name"], "cgroup", "{report:#}");
    } else {
        assert!(name.starts_with("cgroup "), "{name}");
    }
}

#[test]
fn the_command_is_born_in_a_leaf_of_the_scope_and_the_keeper_is_outside_of_it() {
    require!("systemd");
    let mut running = run("").gated().fixture("parent keeper cgroup say read exit 9").spawn();
    let keeper = running.expect("keeper");
    let leaf = running.expect("cgroup");
    let unit = unit_of(&leaf);
    assert!(unit.starts_with("treekill-run-"), "{unit}");
    assert_eq!(Path::new(&leaf).parent().map(Path::to_owned), Some(PathBuf::from(cgroup_of(&keeper))));
    running.open_gate();
    running.wait().exited(9);
    assert!(!Path::new(&leaf).exists());
    assert!(is_forgotten(&unit), "{}", systemctl(&["status", &unit]));
}

#[test]
fn the_commands_end_is_mimicked() {
    require!("systemd");
    run("").fixture("exit 3").finish().exited(3);
    run("").fixture("kill self KILL hang").finish().died_of(Signal::KILL);
    run("").command(["no-such-command-of-treekill"]).finish().exited(127);
    let mut running = run("-k 60").fixture("on TERM [ say term exit 5 ] say ready hang").spawn();
    running.expect("ready");
    running.signal(Signal::TERM);
    running.wait().exited(5).said("term", 1);
}

#[test]
fn daemons_die_with_the_command_or_at_the_limit() {
    require!("systemd");
    run("-k 20").fixture("daemon [ hang ] exit 0").finish().exited(193).took_less_than(LONG);
    run("-k 300ms").fixture("daemon [ ignore TERM hang ] exit 0").finish().exited(193).took_less_than(LONG);
    run("-t 500ms").fixture("daemon [ hang ] fork [ setsid hang ] hang").finish().exited(124).took_less_than(LONG);
    let ended = run("-t 500ms -k 300ms").fixture("daemon [ ignore TERM hang ] ignore TERM hang").finish();
    ended.exited(137).took_less_than(LONG);
}

/// systemd/systemd#22874: processes moved, and the old group looked empty.
#[test]
fn who_leaves_the_leaf_is_held_by_ancestry() {
    require!("systemd");
    let into_scope = run("-k 300ms").fixture("daemon [ cgroup enter .. cgroup say ignore TERM hang ] exit 0").finish();
    into_scope.exited(193).said("refused", 0);
    let unit = into_scope.value("cgroup").rsplit('/').next().unwrap_or_default();
    assert!(unit.ends_with(".scope"), "{into_scope}");
    assert!(is_forgotten(unit));

    let away = Away::new();
    let steps = format!("daemon [ cgroup enter {} say away ignore TERM hang ] exit 0", away.0.display());
    run("-k 300ms").fixture(&steps).finish().exited(193).said("refused", 0).said("away", 1);
}

/// A cgroup that has nothing to do with the run, where both can be entered from: beside the scopes.
struct Away(PathBuf);

impl Away {
    fn new() -> Away {
        let mut running = run("").gated().fixture("cgroup say read exit 0").spawn();
        let leaf = PathBuf::from(running.expect("cgroup"));
        let slice = leaf.ancestors().nth(2).expect("a scope is in a slice");
        let away = slice.join(format!("tk-away-{}", common::unique()));
        std::fs::create_dir(&away).expect("the slice is ours");
        running.open_gate();
        running.wait().exited(0);
        Away(away)
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

const TREE: &str = "parent keeper cgroup say daemon [ ignore TERM say member hang ] ignore TERM say ready hang";

/// Starts a tree; gives the pidfd of its keeper, and its scope.
fn start(options: &str) -> (Running, OwnedFd, String) {
    let mut running = run(options).fixture(TREE).spawn();
    let keeper = running.expect_process("keeper");
    let unit = unit(&mut running);
    running.expect("member");
    running.expect("ready");
    (running, keeper, unit)
}

#[test]
fn sigkill_of_the_front_ends_the_tree() {
    require!("systemd");
    let (mut running, _, unit) = start("-k 60");
    running.signal(Signal::KILL);
    running.wait_for_death().died_of(Signal::KILL);
    running.all_die();
    assert!(is_forgotten(&unit));
}

#[test]
fn sigkill_of_the_keeper_ends_the_tree() {
    require!("systemd");
    let (mut running, keeper, unit) = start("-k 60");
    pidfd_send_signal(&keeper, Signal::KILL).expect("it is alive");
    running.wait().exited(125).complained_of("killed");
    assert!(is_forgotten(&unit));
}

/// Nobody of ours is left: systemd ends the scope at the time that the run may take at most.
#[test]
fn sigkill_of_both_leaves_it_to_systemd() {
    require!("systemd");
    let options = "-t 1 -k 100ms --drain-limit 100ms --leftover-grace 0";
    let mut running =
        run(options).fixture("parent keeper cgroup say daemon [ say member hang ] say ready hang").spawn();
    let keeper = running.expect_process("keeper");
    let unit = unit(&mut running);
    let member = running.expect_process("member");
    running.expect("ready");
    // A stopped front sees nothing of the keeper's death.
    running.signal(Signal::STOP);
    pidfd_send_signal(&keeper, Signal::KILL).expect("it is alive");
    running.signal(Signal::KILL);
    running.wait_for_death();
    assert!(!is_dead(&member, Duration::ZERO), "nothing was left: this shows nothing");
    running.all_die();
    assert!(is_forgotten(&unit));
}

#[test]
fn systemd_knows_the_longest_time_only_if_there_is_one() {
    require!("systemd");
    let limit = |options: &str| {
        let mut running = run(options).gated().may_leave().fixture("cgroup say read exit 0").spawn();
        let unit = unit(&mut running);
        let limit = property(&unit, "RuntimeMaxUSec");
        running.open_gate();
        running.wait().exited(0);
        limit
    };
    assert_eq!(limit("-t 60 -k 3 --drain-limit 2 --leftover-grace 10"), "1min 20s");
    for options in ["-k 1", "-t 60 -k 0", "-t 60 --drain-limit 0", "-t 60 --leftovers leave", "-t 60 --no-guard"] {
        assert_eq!(limit(options), "infinity", "{options}");
    }
}

/// A folder where a bus should be.
fn with_buses_in(folder: &Scratch, options: &str) -> Run {
    let run = run(options);
    if !is_root() {
        return run.env("XDG_RUNTIME_DIR", folder.path());
    }
    let script = format!("mount --bind {} /run/dbus && exec \"$@\"", folder.path().display());
    run.prefixed(["unshare", "--mount", "sh", "-c", &script, "sh"])
}

#[test]
fn without_a_bus_it_is_195_with_the_reason_and_what_would_help() {
    require!("systemd");
    let folder = Scratch::new();
    let ended = with_buses_in(&folder, "").fixture("say started").finish();
    ended.exited(195).said("started", 0).complained_of("No such file or directory").took_less_than(LONG);
    if !is_root() {
        ended.complained_of("loginctl enable-linger");
    }
    assert_eq!(ended.stderr.lines().count(), 1, "{ended}");
}

#[test]
fn on_a_dead_bus_it_is_195() {
    require!("systemd");
    let folder = Scratch::new();
    drop(UnixListener::bind(folder.join(bus().1)).expect("the folder is ours"));
    let ended = with_buses_in(&folder, "").fixture("say started").finish();
    ended.exited(195).said("started", 0).complained_of("Connection refused").took_less_than(LONG);
}

#[test]
fn a_bus_that_never_answers_is_given_up_after_a_while() {
    require!("systemd");
    let folder = Scratch::new();
    let _bus = UnixListener::bind(folder.join(bus().1)).expect("the folder is ours");
    let ended = with_buses_in(&folder, "").fixture("say started").finish();
    ended.exited(195).said("started", 0).complained_of("does not answer").took_less_than(LONG);
    assert_eq!(ended.stderr.lines().count(), 1, "{ended}");
}

#[test]
fn after_a_bus_that_never_answers_the_next_of_the_list_is_taken() {
    require!("systemd");
    let folder = Scratch::new();
    let _bus = UnixListener::bind(folder.join(bus().1)).expect("the folder is ours");
    let next = with_buses_in(&folder, "--backend systemd,subreaper").report().fixture("daemon [ hang ] exit 0");
    let ended = next.finish();
    let report = ended.exited(193).report();
    assert_eq!(report["backend"]["name"], "subreaper", "{report:#}");
    assert_eq!(report["backend"]["refused"][0]["name"], "systemd", "{report:#}");
}

#[test]
fn sigkill_of_the_front_while_it_waits_for_systemd_leaves_nothing() {
    require!("systemd");
    let folder = Scratch::new();
    let bus = UnixListener::bind(folder.join(bus().1)).expect("the folder is ours");
    let mut running = with_buses_in(&folder, "").fixture("say started").spawn();
    let mut connection = bus.accept().expect("it connects").0;
    // Not before the child is there that speaks to the bus.
    let _ = std::io::Read::read(&mut connection, &mut [0; 1]);
    running.signal(Signal::KILL);
    running.wait_for_death();
    running.all_die();
}

/// A scope that was made around a process which died too early would stay, empty, for ever.
#[test]
fn sigkill_of_the_front_at_any_moment_of_the_start_leaves_no_unit() {
    require!("systemd");
    let word = common::unique();
    for round in 0..60 {
        // Several at once: one in a hundred was left.
        let mut runs = [(); 4].map(|()| run("-k 60").fixture(&format!("say {word} hang")).spawn());
        // They do not end by themselves.
        assert!(!is_dead(runs[0].pidfd(), Duration::from_millis(round % 10)));
        for running in &mut runs {
            running.signal(Signal::KILL);
            running.wait_for_death();
            running.all_die();
        }
    }
    let deadline = Instant::now() + BOUND;
    let known = || systemctl(&["list-units", "--all", "--plain", "--no-legend", "treekill-run-*"]);
    while known().contains(&word) {
        assert!(Instant::now() < deadline, "{}", known());
    }
}

/// Nothing has been asked for then.
#[test]
fn a_request_to_end_is_heard_while_systemd_does_not_answer() {
    require!("systemd");
    for (options, signal) in [
        ("", Signal::TERM),
        ("", Signal::INT),
        ("--backend systemd,subreaper", Signal::HUP),
        ("--backend auto", Signal::QUIT),
        ("--gnu", Signal::USR1),
    ] {
        let folder = Scratch::new();
        let bus = UnixListener::bind(folder.join(bus().1)).expect("the folder is ours");
        let run = match options {
            // Where a leaf can be made nobody asks systemd.
            "--backend auto" if !is_session() => continue,
            "--gnu" if is_root() => continue,
            "--backend auto" => with_buses_in(&folder, "").options(options),
            // It must be the first.
            "--gnu" => {
                let program = common::wrapper();
                let words = [&*program.to_string_lossy(), "--gnu", "--backend", "systemd", "60"];
                Run::control(words).env("XDG_RUNTIME_DIR", folder.path())
            }
            _ => with_buses_in(&folder, options),
        };
        let mut running = run.fixture("say started").spawn();
        let connection = bus.accept().expect("it connects");
        // What is no request stays for the command that may come.
        running.signal(Signal::WINCH);
        running.signal(signal);
        let ended = running.wait();
        ended.died_of(signal).said("started", 0).took_less_than(Duration::from_secs(4));
        assert_eq!(ended.stderr, "", "{ended}");
        drop(connection);
    }
}

#[test]
fn a_request_to_end_that_the_caller_ignores_is_not_heard() {
    require!("systemd");
    let folder = Scratch::new();
    let bus = UnixListener::bind(folder.join(bus().1)).expect("the folder is ours");
    let run = with_buses_in(&folder, "").setup(|| sys::ignore(nix::libc::SIGHUP));
    let mut running = run.fixture("say started").spawn();
    let connection = bus.accept().expect("it connects");
    running.signal(Signal::HUP);
    drop((connection, bus));
    running.wait().exited(195).said("started", 0);
}

/// The bus of the manager, stopped: whoever has connected waits.
struct StoppedBus(OwnedFd);

impl StoppedBus {
    fn new() -> StoppedBus {
        // It is started when it is first needed.
        run("").fixture("exit 0").finish().exited(0);
        let pid = property("dbus.service", "MainPID").parse().expect("a number");
        let pidfd = open_process(pid).expect("it is alive");
        pidfd_send_signal(&pidfd, Signal::STOP).expect("it is ours");
        StoppedBus(pidfd)
    }
}

impl Drop for StoppedBus {
    fn drop(&mut self) {
        let _ = pidfd_send_signal(&self.0, Signal::CONT);
    }
}

/// The child that is to be the keeper, once it waits: in its session it has nothing else to do.
fn waiting_keeper(running: &Running) -> u32 {
    let deadline = Instant::now() + BOUND;
    let waits = |pid: u32| {
        kin::group_and_session(pid).is_some_and(|(_, session)| session == pid)
            && kin::state_and_parent(pid).is_some_and(|(state, _)| state == "S")
    };
    loop {
        if let Some(&pid) = kin::children(running.pid()).first().filter(|&&pid| waits(pid)) {
            return pid;
        }
        assert!(Instant::now() < deadline, "no keeper waits");
    }
}

#[test]
fn a_signal_to_a_keeper_that_waits_for_its_scope_is_not_lost() {
    require!("systemd");
    let bus = StoppedBus::new();
    let mut running = run("-k 60").fixture("hang").spawn();
    let keeper = open_process(waiting_keeper(&running)).expect("it waits");
    pidfd_send_signal(keeper, Signal::TERM).expect("it waits");
    drop(bus);
    running.wait().died_of(Signal::TERM).took_less_than(LONG);
}

#[test]
fn a_keeper_that_cannot_open_its_scope_says_so_and_nothing_else() {
    require!("systemd");
    let bus = StoppedBus::new();
    let mut running = run("").fixture("say started").spawn();
    let keeper = Pid::from_raw(waiting_keeper(&running).cast_signed());
    let none = Rlimit { current: Some(3), maximum: Some(3) };
    prlimit(keeper, Resource::Nofile, none).expect("it is ours");
    drop(bus);
    let ended = running.wait();
    ended
        .exited(125)
        .said("started", 0)
        .complained_of("cannot start the command: ")
        .complained_of("Too many open files");
    assert_eq!(ended.stderr.lines().count(), 1, "{ended}");
}

/// Nothing was started, and no backend was refused.
#[test]
fn sigkill_of_the_keeper_while_it_waits_for_systemd_is_125() {
    require!("systemd");
    let folder = Scratch::new();
    let bus = UnixListener::bind(folder.join(bus().1)).expect("the folder is ours");
    let mut running = with_buses_in(&folder, "--backend systemd,subreaper").fixture("say started").spawn();
    let mut connection = bus.accept().expect("it connects").0;
    // Not before the younger child is there, that speaks to the bus.
    let _ = std::io::Read::read(&mut connection, &mut [0; 1]);
    let keeper = open_process(kin::children(running.pid())[0]).expect("it waits");
    pidfd_send_signal(&keeper, Signal::KILL).expect("it waits");
    assert!(is_dead(&keeper, BOUND));
    drop((connection, bus));
    running.wait().exited(125).said("started", 0).complained_of("killed");
}

#[test]
fn fifty_runs_leave_no_unit() {
    require!("systemd");
    let mut units = vec![];
    for number in 0..50 {
        let ended = run("-k 300ms --leftover-grace 0").fixture("cgroup say daemon [ ignore TERM hang ] exit 0");
        let ended = if number % 2 == 0 { ended } else { run("").fixture("cgroup say exit 7") }.finish();
        ended.exited(if number % 2 == 0 { 193 } else { 7 });
        units.push(unit_of(ended.value("cgroup")));
    }
    assert!(units.iter().all(|unit| is_forgotten(unit)));
    let known = systemctl(&["list-units", "--all", "--plain", "--no-legend", "treekill-run-*"]);
    assert!(!units.iter().any(|unit| known.contains(unit)), "{known}");
}

#[test]
fn systemctl_shows_the_command_line_and_stops_the_run() {
    require!("systemd");
    let steps = "cgroup say on TERM [ exit 5 ] say these-words hang";
    let mut running = run("-k 60").fixture(steps).spawn();
    let unit = unit(&mut running);
    running.expect("these-words");
    let status = systemctl(&["status", &unit]);
    assert!(status.contains("treekill-run: ") && status.contains("say these-words hang"), "{status}");
    let description = property(&unit, "Description");
    assert!(description.ends_with(steps), "{description}");
    systemctl(&["stop", &unit]);
    running.wait().exited(5);
    assert!(is_forgotten(&unit));
}

#[test]
fn what_is_left_stays_in_its_scope_until_it_ends() {
    require!("systemd");
    let steps = "cgroup say daemon [ say member hang ] read exit 0";
    let mut running = run("--leftovers leave").gated().may_leave().fixture(steps).spawn();
    let leaf = running.expect("cgroup");
    let member = running.expect("member");
    running.open_gate();
    running.wait().exited(0);
    stays_until_it_ends(&member, &leaf);
}

#[test]
fn without_a_guard_the_command_goes_on_in_its_scope() {
    require!("systemd");
    let steps = "cgroup say daemon [ say member hang ] on USR1 [ say still-here exit 0 ] say ready hang";
    let mut running = run("--no-guard -t 1").may_leave().fixture(steps).spawn();
    let leaf = running.expect("cgroup");
    let member = running.expect("member");
    let command = running.expect_process("ready");
    running.signal(Signal::KILL);
    running.wait();
    pidfd_send_signal(&command, Signal::USR1).expect("it is alive");
    running.expect("still-here");
    stays_until_it_ends(&member, &leaf);
}

fn stays_until_it_ends(member: &str, leaf: &str) {
    let unit = unit_of(leaf);
    // In the leaf until the keeper has moved it to where itself lives.
    assert!(cgroup_of(member).trim_end_matches("/run").ends_with(&unit), "{}", cgroup_of(member));
    assert_eq!(property(&unit, "ActiveState"), "active");
    let pidfd = open_process(member.parse().expect("a PID")).expect("it is alive");
    pidfd_send_signal(&pidfd, Signal::KILL).expect("it is ours");
    assert!(is_dead(&pidfd, BOUND));
    assert!(is_forgotten(&unit));
}

/// A run in a run is held by both, also where the inner one leaves the outer one's scope for its own.
#[test]
fn runs_can_be_nested() {
    require!("systemd");
    let inner =
        |backend| Run::new(backend).options("-k 60").fixture("daemon [ ignore TERM say member hang ] hang").words();
    for backend in [Backend::Auto, Backend::Systemd] {
        let mut running = run("-k 300ms").command(inner(backend)).spawn();
        running.expect("member");
        running.signal(Signal::TERM);
        running.wait().took_less_than(LONG);
        let mut running = run("-k 60").command(inner(backend)).spawn();
        running.expect("member");
        running.signal(Signal::KILL);
        running.wait_for_death();
        running.all_die();
    }
}

/// The process that stands between front and keeper is in the scope too.
#[test]
fn a_front_with_children_of_the_callers_has_a_scope() {
    require!("systemd");
    let with_a_child = |run: Run| run.prefixed(["sh", "-c", "sleep 60 9>&- & exec \"$@\"", "sh"]).may_leave();
    let steps = "cgroup say daemon [ ignore TERM say member hang ] exit 0";
    let ended = with_a_child(run("-k 300ms")).fixture(steps).finish();
    ended.exited(193);
    assert!(is_forgotten(&unit_of(ended.value("cgroup"))));

    let mut running = with_a_child(run("-k 60")).fixture(TREE).spawn();
    let unit = unit(&mut running);
    running.expect("ready");
    let (_, deputy) = kin::last_child(running.pid()).expect("the deputy is alive");
    pidfd_send_signal(&deputy, Signal::KILL).expect("it is alive");
    running.wait();
    running.all_die();
    assert!(is_forgotten(&unit));
}

#[test]
fn where_clone3_is_refused_the_leaf_is_entered_otherwise() {
    require!("systemd", "seccomp");
    let run = run("-k 1").setup(|| sys::refuse_clone3(nix::libc::ENOSYS));
    let ended = run.fixture("cgroup say daemon [ hang ] exit 0").finish();
    ended.exited(193);
    assert!(unit_of(ended.value("cgroup")).starts_with("treekill-run-"));
}

/// The C library takes this answer of a filter for an end of all threads, and D-Bus needs some.
#[test]
fn where_no_thread_can_be_started_it_is_195() {
    require!("systemd", "seccomp");
    let refuse = || sys::refuse_clone3(nix::libc::EPERM);
    let ended = run("").setup(refuse).fixture("say started").finish();
    ended.exited(195).said("started", 0).complained_of("Operation not permitted");
    assert_eq!(ended.stderr.lines().count(), 1, "{ended}");
    run("--backend systemd,subreaper").setup(refuse).fixture("daemon [ hang ] exit 0").finish().exited(193);
}

/// A caller's umask is for its files and may take every right from its own directories.
#[test]
fn a_umask_of_everything_does_not_lock_us_out_of_the_leaf() {
    require!("systemd");
    let closed = || {
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o777));
        Ok(())
    };
    run("-k 1").setup(closed).fixture("daemon [ hang ] exit 0").finish().exited(193);
}

/// To a systemd outside, the number of our process is that of a stranger, who would be moved.
#[test]
fn in_another_pid_namespace_than_systemds_it_is_195() {
    require!("systemd", "unshare");
    let mut words = vec!["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    if !is_root() {
        words.push("--map-current-user");
    }
    let is_possible = {
        // Between its fork and its exec it holds the tethers of other tests' runs.
        let _alone = sys::forking();
        Command::new(words[0]).args(&words[1..]).arg("true").status().is_ok_and(|status| status.success())
    };
    if !is_possible {
        common::needs::skip("pidns", "no PID namespace can be had");
        return;
    }
    let ended = run("").prefixed(words).fixture("say started").finish();
    ended.exited(195).said("started", 0).complained_of("PID namespace");
}

/// systemd takes the property even where the kernel has the controller elsewhere.
#[test]
fn a_limit_holds_or_is_refused() {
    require!("systemd");
    let mount = cgroups::mount_point().expect("there is a cgroup2 mount");
    let controllers = std::fs::read_to_string(mount.join("cgroup.controllers")).unwrap_or_default();
    let ended = run("--memory-max 32M").report().fixture("fill 256 say survived exit 0").finish();
    if controllers.split_whitespace().any(|name| name == "memory") {
        ended.exited(196).complained_of("memory limit of 32M");
        assert_eq!(ended.report()["limits"]["memory_kills"], 1, "{ended}");
        // We have a process in the scope, too.
        run("--pids-max 1").fixture("exit 3").finish().exited(3);
    } else {
        ended.exited(195).said("survived", 0).complained_of("memory controller");
    }
}

#[test]
fn what_is_kept_goes_on_in_its_scope() {
    require!("systemd");
    let scratch = Scratch::new();
    let server = scratch.join("tk-server");
    std::os::unix::fs::symlink("/bin/sleep", &server).expect("the folder is ours");
    let steps = format!("cgroup say daemon [ say server exec {} 60 ] exit 0", server.display());
    let mut running = run("--keep tk-server").may_leave().fixture(&steps).spawn();
    let unit = unit(&mut running);
    let pid = running.expect("server");
    let process = open_process(pid.parse().expect("a PID")).expect("it lives");
    running.wait().exited(0);
    assert!(!is_dead(&process, Duration::ZERO), "it was ended");
    assert!(cgroup_of(&pid).ends_with(&unit), "{}", cgroup_of(&pid));
    pidfd_send_signal(&process, Signal::KILL).expect("it lives");
    assert!(is_forgotten(&unit));
}

/// What the inner run can't have where it is, as systemd in a PID namespace, is 195 there; nothing is left either way.
#[test]
fn any_backend_holds_any_other_three_deep() {
    require!("systemd");
    let all = [Backend::Cgroup, Backend::Systemd, Backend::Pidns, Backend::Subreaper];
    for (outer, inner) in all.iter().flat_map(|outer| all.iter().map(move |inner| (*outer, *inner))) {
        let steps = "daemon [ ignore TERM hang ] fork [ setsid ignore TERM hang ] ignore TERM hang";
        let innermost = Run::new(outer).options("-k 60").fixture(steps).words();
        let middle = Run::new(inner).options("-k 60").command(innermost).words();
        // SIGKILL of a whole run leaves its empty leaf, which the next run removes.
        let run = Run::new(outer).options("-t 700ms -k 300ms").makes_cgroups();
        let ended = run.command(middle).finish();
        ended.exited_with_one_of(&[124, 137, 195]).took_less_than(LONG);
    }
}

/// It asks the manager itself, and is a member of our leaf no more.
#[test]
fn a_command_that_moves_into_a_scope_of_its_own_is_held() {
    require!("systemd");
    let steps = ["ignore TERM daemon [ ignore TERM hang ] hang", "daemon [ ignore TERM hang ] exit 0"];
    for (steps, status) in steps.into_iter().zip([137, 193]) {
        for backend in [Backend::Auto, Backend::Systemd, Backend::Subreaper] {
            let mut words: Vec<std::ffi::OsString> = vec!["systemd-run".into(), "--scope".into(), "--quiet".into()];
            if !is_root() {
                words.insert(1, "--user".into());
            }
            words.push(common::fixture().into_os_string());
            words.extend(steps.split(' ').map(Into::into));
            let ended = Run::new(backend).options("-t 2 -k 300ms").command(words).finish();
            ended.exited(status);
        }
    }
}

#[test]
fn systemd_run_with_a_scope_does_what_the_table_of_peers_says() {
    require!("systemd", "systemd-run");
    trial::beside_systemd(table::Peer::Scope);
}

#[test]
fn systemd_run_with_a_service_does_what_the_table_of_peers_says() {
    require!("systemd", "systemd-run");
    trial::beside_systemd(table::Peer::Service);
}
