//! What `--doctor` says is what a run does.

mod common;

use std::process::Stdio;

use common::needs::require;
use common::{Backend, Ended, Run, wrapper};
use serde_json::Value;

/// A doctor in these surroundings.
fn doctor(prefix: &[&str], options: &[&str]) -> Ended {
    let words = prefix.iter().map(Into::into).chain([wrapper().into_os_string(), "--doctor".into()]);
    Run::control(words.chain(options.iter().map(Into::into)).collect::<Vec<std::ffi::OsString>>()).finish()
}

fn findings(prefix: &[&str], options: &[&str]) -> Value {
    let ended = doctor(prefix, &[options, &["--report-fd", "1"]].concat());
    serde_json::from_slice(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended}"))
}

fn finding<'a>(found: &'a Value, kind: &str, name: &str) -> &'a Value {
    let list = found[kind].as_array().expect("a list");
    list.iter().find(|finding| finding["name"] == name).unwrap_or_else(|| panic!("no {name} in {found:#}"))
}

#[test]
fn each_backend_works_if_a_run_on_it_does() {
    let found = findings(&[], &[]);
    for backend in ["cgroup", "systemd", "pidns", "subreaper"] {
        let words = [wrapper().into_os_string(), "--backend".into(), backend.into(), "true".into()];
        let status =
            std::process::Command::new(&words[0]).args(&words[1..]).stderr(Stdio::null()).status().expect("it runs");
        let found = finding(&found, "backends", backend);
        assert_eq!(found["works"], status.success(), "{found:#}");
        assert!(!found["detail"].as_str().expect("a text").is_empty());
    }
}

#[test]
fn the_one_that_is_taken_is_the_one_that_a_run_takes() {
    let taken = |options: &[&str]| findings(&[], options)["takes"].as_str().map(str::to_owned);
    let report = Run::new(Backend::Auto).report().fixture("exit 0").finish().report();
    let name = report["backend"]["name"].as_str().expect("a name").split(' ').next().map(str::to_owned);
    assert_eq!(taken(&[]), name);
    assert_eq!(taken(&["-b", "subreaper,cgroup"]).as_deref(), Some("subreaper"));
}

#[test]
fn people_get_a_table_and_what_it_guarantees() {
    let ended = doctor(&[], &[]);
    ended.exited(0);
    let text = String::from_utf8_lossy(&ended.stdout);
    for words in ["subreaper  works", "Limits", "memory", "Taken: ", "holds", "does not hold"] {
        assert!(text.contains(words), "no '{words}' in {text}");
    }
    assert_eq!(ended.stderr, "");
}

#[test]
fn what_does_not_work_has_its_reason_and_what_would_help() {
    require!("pidns");
    // A /proc of another PID namespace.
    let mut prefix = vec!["unshare", "--pid", "--fork", "--kill-child"];
    if !common::needs::is_root() {
        prefix.push("--map-root-user");
    }
    let found = findings(&prefix, &[]);
    let subreaper = finding(&found, "backends", "subreaper");
    assert_eq!(subreaper["works"], false);
    assert!(subreaper["detail"].as_str().expect("a text").contains("/proc"), "{subreaper:#}");
    assert!(subreaper["help"].as_str().expect("a text").contains("mount"), "{subreaper:#}");
    let ended = doctor(&prefix, &["-b", "subreaper"]);
    assert_eq!(ended.status.code(), Some(195), "{ended}");
}

#[test]
fn a_limit_works_if_a_run_can_have_it() {
    let found = findings(&[], &[]);
    for (name, option) in [("memory", "--memory-max=1G"), ("pids", "--pids-max=100"), ("cpu", "--cpu-max=100")] {
        let run = Run::new(Backend::Auto).options(option).fixture("exit 0").finish();
        let found = finding(&found, "limits", name);
        assert_eq!(found["works"], run.status.success(), "{found:#}\n{run}");
    }
}

/// What a run with these options does, and what the doctor says of them.
fn agrees_with_a_run(options: &[&str]) {
    let words = [wrapper().into_os_string()].into_iter().chain(options.iter().map(Into::into));
    let words: Vec<std::ffi::OsString> = words.chain(["true".into()]).collect();
    let run = Run::control(words).finish();
    let ended = doctor(&[], options);
    assert_eq!(ended.status.code(), run.status.code(), "{options:?}\n{run}\n{ended}");
    let found = findings(&[], options);
    assert_eq!(found["takes"].is_string(), run.status.success(), "{found:#}");
}

#[test]
fn the_other_options_are_taken_into_account() {
    agrees_with_a_run(&["--memory-max", "1G"]);
    agrees_with_a_run(&["--backend", "subreaper", "--pids-max", "100"]);
    agrees_with_a_run(&["--backend", "pidns", "--keep", "x"]);
    agrees_with_a_run(&["--backend", "pidns,subreaper", "--no-guard"]);
    let found = findings(&[], &["--backend", "pidns", "--keep", "x"]);
    let pidns = finding(&found, "backends", "pidns");
    assert_eq!((&pidns["works"], &pidns["detail"]), (&false.into(), &"nothing of it can be left running".into()));
    assert!(pidns["help"].as_str().expect("a text").starts_with("try "), "{pidns:#}");
}

/// Without cgroup.kill and the right to signal everybody, who became another user lives on.
#[test]
fn what_is_guaranteed_depends_on_the_user() {
    let is_claimed = |options: &[&str], key: &str, words: &str| {
        findings(&[], options)[key]
            .as_array()
            .expect("a list")
            .iter()
            .any(|line| line.as_str().expect("a text").contains(words))
    };
    let alone = ["--backend", "subreaper"];
    let is_root = common::needs::is_root();
    assert_eq!(is_claimed(&alone, "holds", "parent or user"), is_root);
    assert_eq!(is_claimed(&alone, "does_not_hold", "sudo"), !is_root);
    assert!(!is_claimed(&[&alone[..], &["--no-new-privs"]].concat(), "does_not_hold", "sudo"));
    assert!(is_claimed(&[&alone[..], &["--no-guard"]].concat(), "does_not_hold", "the command goes on"));
}

#[test]
fn a_short_time_limit_does_not_stop_it() {
    let found = findings(&[], &["-t", "1us", "--idle-timeout", "1us", "-v", "--stats"]);
    assert_eq!(finding(&found, "backends", "subreaper")["works"], true, "{found:#}");
}

#[test]
fn it_runs_nothing() {
    let ended = doctor(&[], &["touch", "/nonexistent"]);
    assert_eq!(ended.status.code(), Some(125), "{ended}");
    assert!(ended.stderr.contains("--doctor"), "{ended}");
}

/// Without SIGCHLD's default nobody could learn how an attempt ended.
#[test]
fn an_ignored_sigchld_does_not_matter() {
    let ended = Run::control([wrapper().into_os_string(), "--doctor".into()])
        .setup(|| common::sys::ignore(rustix::process::Signal::CHILD.as_raw()))
        .finish();
    ended.exited(0);
}

#[test]
fn it_is_timeouts_too() {
    let ended = Run::control([wrapper().into_os_string(), "--gnu".into(), "--doctor".into()]).finish();
    ended.exited(0);
    assert!(String::from_utf8_lossy(&ended.stdout).contains("Backends"), "{ended}");
}

#[test]
fn what_cannot_be_printed_is_said() {
    for option in ["--doctor", "--help", "--version", "--report-schema"] {
        let ended = Run::control([wrapper().into_os_string(), option.into()])
            .setup(|| {
                common::sys::close(1);
                Ok(())
            })
            .finish();
        ended.exited(125).complained_of("stdout");
    }
}
