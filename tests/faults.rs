//! System calls of ours that fail: whatever the run comes to then, nobody else pays for it, and nothing stays.

mod common;

use std::time::Duration;

use common::running::is_dead;
use common::{Backend, Run, both_backends, fixture, needs};

const LONG: Duration = Duration::from_secs(20);

/// What front, deputy and keeper need before and while the command runs, and how the want of it shows.
const CALLS: [&str; 6] = [
    "pidfd_open:error=EMFILE",
    "signalfd4:error=EMFILE",
    "socketpair:error=EMFILE",
    "pipe2:error=EMFILE",
    "clone:error=EAGAIN",
    "clone3:error=EAGAIN",
];

/// No process of ours makes more of any of them in a run without a stop.
const MOST: usize = 3;

both_backends! {
    a_call_that_fails_anywhere_spares_the_jobs_that_an_exec_handed_down
    a_call_that_fails_anywhere_leaves_nothing
}

/// strace(1) makes each process's nth call fail. `check` gets its words, and whether a fixture could not even fork.
fn with_each_fault(check: impl Fn(Vec<String>, bool)) {
    for call in CALLS {
        for nth in 1..=MOST {
            eprintln!("{call}, call {nth} of each process");
            let inject = format!("inject={call}:when={nth}");
            let words = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", &inject].map(String::from).into();
            check(words, call.starts_with("clone:"));
        }
    }
}

/// The front, the deputy and the keeper each stand in for another that is gone; the caller's children are never theirs.
fn a_call_that_fails_anywhere_spares_the_jobs_that_an_exec_handed_down(backend: Backend) {
    needs::require!("strace");
    with_each_fault(|mut words, fails_fixture| {
        if fails_fixture {
            return;
        }
        // The tracer is nobody's parent, so that the job is the wrapper's.
        words.extend(["-D".into(), fixture().display().to_string()]);
        words.extend("fork [ say job exec sleep 120 ] exec".split(' ').map(String::from));
        let mut running = Run::new(backend).options("-k 1").prefixed(words).may_leave().fixture("exit 7").spawn();
        let job = running.expect_process("job");
        running.wait().exited_with_one_of(&[7, 125, 195]).took_less_than(LONG);
        assert!(!is_dead(&job, Duration::from_millis(20)), "the caller's job was killed");
    });
}

fn a_call_that_fails_anywhere_leaves_nothing(backend: Backend) {
    needs::require!("strace");
    with_each_fault(|words, fails_fixture| {
        let steps = if fails_fixture { "exit 7" } else { "daemon [ hang ] exit 7" };
        let ended = Run::new(backend).options("-k 1").prefixed(words).fixture(steps).finish();
        ended.exited_with_one_of(&[7, 125, 195]).took_less_than(LONG);
    });
}
