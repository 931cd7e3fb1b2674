//! A run costs few system calls, and none of the kinds that make it wait.

mod common;

use std::process::Command;

use common::needs;
use common::program::{example, wrapper};

/// What a run of `true` may take from `main` on, in a build that is not optimized. `make bench-check` is stricter, on the
/// build that is.
const MOST_CALLS: u64 = 90;

/// The kinds of call that a run has none of: they block for ten milliseconds, or cost more the more processes there are.
const NONE_OF: [&str; 4] =
    ["writes to cgroup.procs", "waits for cgroup.events", "sleeps", "reads of other processes' /proc"];

#[test]
fn a_normal_run_takes_few_system_calls_and_none_that_wait() {
    needs::require!("cgroup", "tracer");
    // Calls are counted from `main` on, so the tracer has to find that; a release build has a twin with its symbols.
    let twin = wrapper().with_extension("symbols");
    let program = if twin.exists() { twin } else { wrapper() };
    let output = Command::new(example("bench")).arg("calls").arg(program).output();
    let output = output.expect("cargo builds it beside the tests");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    let count = |what: &str| -> u64 {
        let number = text.lines().find_map(|line| line.strip_suffix(what)?.trim().parse().ok());
        number.unwrap_or_else(|| panic!("no count of {what}\n{text}"))
    };
    let calls = count("system calls of front and keeper");
    assert!((20..=MOST_CALLS).contains(&calls), "{calls} system calls\n{text}");
    for what in NONE_OF {
        assert_eq!(count(what), 0, "{what}\n{text}");
    }
    // The list is of a whole run.
    for place in ["front  exit_group", "keeper clone3", "birth  execve", "keeper unlinkat"] {
        assert!(text.contains(place), "no {place}\n{text}");
    }
}
