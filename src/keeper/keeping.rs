//! Who is kept running when the command has ended, as `--keep` says.

use std::collections::BTreeSet;

use rustix::process::Pid;

use super::Keeper;
use crate::report::ProcessReport;
use crate::supervisor::Event;
use crate::tree::{Process, Tree, procfs};
use crate::voice::in_words;

/// How often those are looked for who are forked meanwhile. What forks faster than that is no server to be kept.
const ATTEMPTS: usize = 16;

impl Keeper<'_> {
    /// Puts those who are to be kept running where the caller lives. Afterwards they are no part of the tree.
    pub(super) fn keep(&mut self) {
        // One that forks while it is moved leaves its child behind: look again until nobody new is found.
        for _ in 0..ATTEMPTS {
            let kept = kept(&self.plan.keep, &self.tree, self.tree.list(None));
            if kept.is_empty() {
                break;
            }
            let is_kept = |pid: Pid| kept.iter().any(|process| process.pid == pid);
            if let Err(error) = self.boundary.release(&is_kept) {
                let boundary = self.boundary.name();
                self.voice
                    .error(format_args!("cannot keep processes, moving them out of {boundary}: {}", in_words(&error)));
                break;
            }
            self.record("keep", None, Some(kept.len()));
            self.report.kept.extend(kept.iter().map(|process| ProcessReport::of(process, true)));
            self.tree.spare(kept);
        }
        // Nobody else may be left to say so by an end.
        self.reap();
        self.handle(Event::Kept);
    }
}

/// Those of a listing who are to be kept, with all that descends from them in it.
fn kept(patterns: &[String], tree: &Tree<'_>, list: Vec<Process>) -> Vec<Process> {
    let is_meant = |process: &Process| {
        let Some(stat) = &process.stat else { return false };
        // Forked while its parent was moved, it is in the boundary still.
        if stat.parent.is_some_and(|parent| tree.is_spared(parent)) {
            return true;
        }
        let argv = procfs::arguments(process.pid, stat);
        patterns.iter().any(|pattern| names(pattern, &stat.comm, &argv))
    };
    let mut pids: BTreeSet<i32> =
        list.iter().filter(|process| is_meant(process)).map(|process| process.pid.as_raw_pid()).collect();
    let is_child = |process: &Process, pids: &BTreeSet<i32>| {
        let parent = process.stat.as_ref().and_then(|stat| stat.parent);
        parent.is_some_and(|parent| pids.contains(&parent.as_raw_pid()))
    };
    // A listing is in no order of descent.
    loop {
        let before = pids.len();
        let children = list.iter().filter(|process| is_child(process, &pids)).map(|process| process.pid.as_raw_pid());
        pids.extend(children.collect::<Vec<_>>());
        if pids.len() == before {
            break;
        }
    }
    list.into_iter().filter(|process| pids.contains(&process.pid.as_raw_pid())).collect()
}

/// Whether a pattern is a process's name, the last part of argument 0's path, or a whole argument or what is behind its
/// last dot, as in a Java class.
fn names(pattern: &str, comm: &str, argv: &[String]) -> bool {
    let program = argv.first().map(|program| program.rsplit('/').next().unwrap_or(program));
    comm == pattern
        || program == Some(pattern)
        || argv.iter().any(|word| word == pattern || word.rsplit('.').next() == Some(pattern))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_a_name_or_a_word() {
        let argv = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        for (pattern, comm, words, is_meant) in [
            ("sccache", "sccache", &["x"][..], true),
            ("sccache", "x", &["/opt/bin/sccache", "--server"], true),
            ("sccache", "x", &["sccache"], true),
            (
                "GradleDaemon",
                "java",
                &["java", "-Xmx1g", "org.gradle.launcher.daemon.bootstrap.GradleDaemon", "8.5"],
                true,
            ),
            ("--server", "x", &["adb", "--server"], true),
            ("sccache", "x", &["/opt/sccache/bin/cc"], false),
            ("ccache", "sccache", &["sccache"], false),
            ("Gradle", "java", &["java", "org.GradleDaemon"], false),
            ("x", "", &[], false),
        ] {
            assert_eq!(names(pattern, comm, &argv(words)), is_meant, "{pattern} in {comm} {words:?}");
        }
    }
}
