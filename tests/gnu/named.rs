//! The program under the names that stand for GNU timeout: a link called `timeout`, and `treekill-run --gnu`.

use std::ffi::OsString;
use std::os::unix::fs::symlink;

use crate::common::{Backend, Ended, Run, Scratch, fixture, wrapper};

/// One of the two.
pub(crate) struct Timeout {
    words: Vec<OsString>,
    /// What its messages begin with.
    pub(crate) name: &'static str,
    _scratch: Scratch,
}

impl Timeout {
    /// A link in a directory of its own.
    pub(crate) fn link(backend: Backend) -> Timeout {
        let scratch = Scratch::new();
        let link = scratch.join("timeout");
        symlink(wrapper(), &link).expect("the directory is ours");
        let words = vec![link.into(), format!("--backend={}", backend.name()).into()];
        Timeout { words, name: "timeout", _scratch: scratch }
    }

    /// The program by its own name.
    pub(crate) fn option(backend: Backend) -> Timeout {
        let words = vec![wrapper().into(), "--gnu".into(), format!("--backend={}", backend.name()).into()];
        Timeout { words, name: "treekill-run", _scratch: Scratch::new() }
    }

    pub(crate) fn both(backend: Backend) -> [Timeout; 2] {
        [Timeout::link(backend), Timeout::option(backend)]
    }

    /// The words that call it.
    pub(crate) fn words(&self) -> &[OsString] {
        &self.words
    }

    /// A run with these words.
    pub(crate) fn run(&self, words: &[&str]) -> Run {
        Run::control(&self.words).command(words)
    }

    /// A run with these options and this duration, separated by blanks, and the fixture for its command.
    pub(crate) fn fixture(&self, words: &str, steps: &str) -> Run {
        let program = fixture().into_os_string();
        let words = words.split_whitespace().map(OsString::from);
        let steps = steps.split_whitespace().map(OsString::from);
        Run::control(&self.words).command(words.chain([program]).chain(steps))
    }

    /// The same of words that hold blanks, which come before a command that exits with 7.
    pub(crate) fn seven(&self, words: &[&str]) -> Ended {
        let program = fixture().into_os_string();
        let words = words.iter().map(OsString::from);
        finish(Run::control(&self.words).command(words.chain([program, "exit".into(), "7".into()])))
    }
}

/// Starts it, waits for its end, and expects that nothing is left then.
pub(crate) fn finish(run: Run) -> Ended {
    ends(run.spawn())
}

/// The same of what was started.
pub(crate) fn ends(mut running: crate::common::Running) -> Ended {
    let ended = running.wait();
    if !running.is_all_dead() {
        running.fail("timeout returned before its tree was dead");
    }
    running.leaves_no_trace();
    ended
}
