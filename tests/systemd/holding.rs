//! What a scope holds: the command and its tree, whoever kills whom, in whatever surroundings.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::process::{Signal, pidfd_send_signal};

use super::{LONG, cgroup_of, is_session, run};
use crate::common::needs::{is_root, require};
use crate::common::systemd::{is_forgotten, systemctl, unit, unit_of};
use crate::common::{Backend, Run, Running, cgroups, fixture, kin, sys, unique};

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
        let away = slice.join(format!("tk-away-{}", unique()));
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
            words.push(fixture().into_os_string());
            words.extend(steps.split(' ').map(Into::into));
            let ended = Run::new(backend).options("-t 2 -k 300ms").command(words).finish();
            ended.exited(status);
        }
    }
}
