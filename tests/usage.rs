//! What the tree has used, against known loads.

mod common;

use common::needs::require;
use common::{Backend, Ended, Run, both_backends};
use serde_json::Value;

both_backends! {
    cpu_time_of_the_whole_tree_is_counted
    the_peak_of_memory_is_counted
    stats_are_one_line_that_was_asked_for
    without_a_command_nothing_was_used
}

fn usage(ended: &Ended) -> Value {
    ended.report()["usage"].clone()
}

/// A count is the cgroup's where there is one, and says who made it.
#[track_caller]
fn source(backend: Backend, count: &Value) {
    match backend {
        Backend::Subreaper => assert_eq!(count["source"], "rusage", "{count:#}"),
        _ => assert!(count["source"] == "cgroup" || count["source"] == "rusage", "{count:#}"),
    }
}

fn cpu_time_of_the_whole_tree_is_counted(backend: Backend) {
    // One burns as a child, one as a grandchild, one is left over.
    let steps = "fork [ burn 100 ] fork [ fork [ burn 100 ] wait ] daemon [ burn 100 hang ] wait exit 0";
    let ended = Run::new(backend).report().options("--leftover-grace 2 -k 5").fixture(steps).finish();
    let usage = usage(ended.exited(193));
    let cpu = &usage["cpu"];
    let used = cpu["user_ms"].as_u64().expect("a number") + cpu["system_ms"].as_u64().expect("a number");
    assert!((290..1500).contains(&used), "{usage:#}");
    source(backend, cpu);
    if backend == Backend::Cgroup {
        assert_eq!(cpu["source"], "cgroup", "{usage:#}");
    }
}

fn the_peak_of_memory_is_counted(backend: Backend) {
    let ended = Run::new(backend).report().fixture("fork [ fill 64 ] wait exit 0").finish();
    let usage = usage(ended.exited(0));
    let peak = usage["memory_peak"]["bytes"].as_u64().expect("a number");
    assert!((64 << 20..96 << 20).contains(&peak), "{usage:#}");
    source(backend, &usage["memory_peak"]);
    source(backend, &usage["io"]);
    if backend == Backend::Subreaper {
        assert_eq!(usage["processes_peak"], Value::Null, "{usage:#}");
    }
}

fn stats_are_one_line_that_was_asked_for(backend: Backend) {
    for options in ["--stats", "-q --stats"] {
        let ended = Run::new(backend).options(options).fixture("burn 50 exit 3").finish();
        let lines: Vec<&str> = ended.exited(3).stderr.lines().collect();
        assert!(lines.len() == 1 && lines[0].starts_with("treekill-run: 0."), "{ended}");
        assert!(
            lines[0].contains("s, CPU 0.") && lines[0].contains(" system, ") && lines[0].contains(" peak"),
            "{ended}"
        );
    }
    let ended = Run::new(backend).options("--stats -t 300ms").fixture("fork [ hang ] hang").finish();
    assert!(ended.exited(124).stderr.lines().last().is_some_and(|line| line.contains(" peak")), "{ended}");
}

fn without_a_command_nothing_was_used(backend: Backend) {
    let ended = Run::new(backend).report().options("--stats").command(["no-such-command-of-treekill"]).finish();
    assert_eq!(ended.exited(127).stderr.lines().count(), 2, "{ended}");
}

#[test]
fn who_did_not_ask_does_not_pay_for_counting() {
    require!("cgroup", "strace");
    let scratch = common::Scratch::new();
    let looks = |options: &str| {
        let trace = scratch.join("trace");
        let strace = ["strace", "-f", "-e", "trace=openat", "-o", trace.to_str().expect("text")];
        Run::new(Backend::Cgroup).prefixed(strace).options(options).fixture("exit 0").finish().exited(0);
        std::fs::read_to_string(&trace).expect("a trace").matches("cpu.stat").count()
    };
    assert_eq!(looks("-t 20"), 0);
    assert!(looks("-t 20 --stats") > 0);
}

/// A cgroup with the controllers counts the whole tree's memory and processes, not the biggest process.
#[test]
fn a_cgroup_with_controllers_counts_the_tree_as_a_whole() {
    require!("controllers");
    let steps = "fork [ fill 24 say full hang ] fork [ fill 24 say full hang ] wait";
    let run = Run::new(Backend::Cgroup).report().options("--memory-max 1G --pids-max 500 --stats");
    let mut running = run.fixture(steps).spawn();
    (0..2).for_each(|_| drop(running.expect("full")));
    running.signal(rustix::process::Signal::TERM);
    let ended = running.wait();
    let usage = usage(&ended);
    // The files are of Linux 5.19 and 6.1.
    if usage["memory_peak"]["source"] == "cgroup" {
        let peak = usage["memory_peak"]["bytes"].as_u64().expect("a number");
        assert!((48 << 20..128 << 20).contains(&peak), "{usage:#}");
    }
    if !usage["processes_peak"].is_null() {
        assert_eq!(
            (&usage["processes_peak"]["count"], &usage["processes_peak"]["source"]),
            (&3.into(), &"cgroup".into())
        );
        ended.complained_of("3 processes at most");
    }
}
