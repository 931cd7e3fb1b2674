//! The README's console blocks, each run in one shell: every command gives the output that stands below it.

use std::fmt::Write as _;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::{env, fs};

use crate::common::{Scratch, wrapper};
use crate::{blocks, read};

/// An interactive shell gives up the rest of a line whose command died of SIGINT.
#[test]
fn no_example_of_the_readme_goes_on_in_a_line_after_an_interrupt() {
    for block in blocks(&read("README.md"), "console") {
        for step in steps(&block) {
            let (_, rest) = step.command.split_once("kill -INT $$'").unwrap_or_default();
            assert!(rest.is_empty(), "this is not reached: {rest}");
        }
    }
}

#[test]
fn every_example_of_the_readme_gives_the_output_that_stands_below_it() {
    // Its examples look for their processes on the whole machine, where another run of this test may be at work: the
    // numbers 432N become a run's own, as long as they are.
    let own = format!("sleep {}", 100 + std::process::id() % 900);
    let examples = blocks(&read("README.md").replace("sleep 432", &own), "console");
    assert!(!examples.is_empty(), "README.md has no console block");
    // They mostly wait.
    std::thread::scope(|scope| {
        for block in &examples {
            scope.spawn(|| gives_the_output_below(&steps(block)));
        }
    });
}

fn gives_the_output_below(steps: &[Step]) {
    let shown = Session::new().run(steps);
    for (step, output) in steps.iter().zip(shown) {
        assert!(
            is_match(&step.output, &output),
            "$ {}\nREADME.md says:\n{}\nbut it was:\n{output}",
            step.command,
            step.output
        );
    }
}

/// A command of a console block and the lines that stand below it.
struct Step {
    command: String,
    output: String,
}

fn steps(block: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = vec![];
    for line in block.lines() {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (Some(command), _) => steps.push(Step { command: command.to_owned(), output: String::new() }),
            (None, Some(step)) => writeln!(step.output, "{line}").expect("a String takes everything"),
            (None, None) => panic!("a console block starts with a command, not with {line}"),
        }
    }
    steps
}

/// Whether the texts are alike, but for numbers in parentheses, which are pids, for ages, for the net that is to be had,
/// and for the blanks that all of them bring.
fn is_match(expected: &str, shown: &str) -> bool {
    let alike = |text: &str| {
        let text = without_pids(text).replace("held by ancestry", "held by boundary");
        let words = |line: &str| line.split_whitespace().map(without_age).collect::<Vec<_>>().join(" ");
        text.lines().map(words).collect::<Vec<_>>()
    };
    alike(expected) == alike(shown)
}

/// `1.0s` is as good as `1.1s`; `1s` is a limit.
fn without_age(word: &str) -> &str {
    let is_age = word.strip_suffix('s').is_some_and(|number| number.contains('.') && number.parse::<f64>().is_ok());
    if is_age { "AGE" } else { word }
}

fn without_pids(text: &str) -> String {
    let mut pieces = text.split('(');
    let mut result = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        result.push('(');
        result.push_str(piece.trim_start_matches(|c: char| c.is_ascii_digit()));
    }
    result
}

/// A directory with what the README's examples use.
struct Session {
    directory: Scratch,
}

/// Printed between the commands of a session, with the status kept for `$?`.
const SEPARATOR: &str = "@@ next @@";

impl Session {
    fn new() -> Session {
        let directory = Scratch::new();
        directory.file("Makefile", b"test:\n\t@echo 1 test passed\n", 0o644);
        directory.file("job", b"#!/bin/sh\n", 0o755);
        Session { directory }
    }

    /// Runs the commands in one shell and gives what each printed.
    fn run(&self, steps: &[Step]) -> Vec<String> {
        let mut script = String::from("exec 2>&1\n");
        for step in steps {
            let again = format!("status=$?; echo '{SEPARATOR}'; (exit $status)");
            writeln!(script, "{}\n{again}", step.command).expect("a String takes everything");
        }
        self.shell(&script);
        let text = fs::read_to_string(self.directory.join("shown")).expect("the shell's output is text");
        let shown: Vec<String> = text.split(&format!("{SEPARATOR}\n")).map(str::to_owned).collect();
        assert_eq!(shown.len(), steps.len() + 1, "the shell ended early: {text}");
        shown
    }

    /// The output goes to a file: a process that an example leaves alive must not hold the test up.
    fn shell(&self, script: &str) {
        let binary = wrapper();
        let inherited = env::var_os("PATH").unwrap_or_default();
        let folders = binary.parent().into_iter().map(Path::to_owned).chain(env::split_paths(&inherited));
        Command::new("timeout")
            .args(["60", "bash", "-c", script])
            .current_dir(self.directory.path())
            .env("PATH", env::join_paths(folders).expect("PATH came from one"))
            .env_remove("MAKEFLAGS")
            .env_remove("MAKELEVEL")
            .stdin(Stdio::null())
            .stdout(File::create(self.directory.join("shown")).expect("the directory is ours"))
            .status()
            .expect("there are timeout and bash");
    }
}
