//! The unit that a run is to systemd: what systemctl shows of it, how long it may last, what stays in it, and when it is gone.

use std::time::Duration;

use rustix::process::{Signal, pidfd_send_signal};

use super::{cgroup_of, run};
use crate::common::needs::require;
use crate::common::running::{is_dead, open_process};
use crate::common::systemd::{is_forgotten, property, systemctl, unit, unit_of};
use crate::common::{BOUND, Scratch};

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
