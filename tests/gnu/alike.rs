//! Generated command lines through the machine's GNU timeout and through a link to us: both refuse or accept, print or
//! don't, and end alike. `TREEKILL_GNU_LINES` is the number of lines, `TREEKILL_GNU_SEED` repeats a run.

use std::fs::File;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Signal, set_parent_process_death_signal, setsid};

use crate::common::dice::Dice;
use crate::common::running::{is_dead, open_process};
use crate::common::{Backend, Nest, needs, sys};
use crate::lines::{Line, line};
use crate::named::Timeout;

const GNU: &str = "/usr/bin/timeout";

/// More workers than processors, since many lines wait.
const WORKERS: usize = 4;

/// What a line that hangs is given.
const PATIENCE: Duration = Duration::from_secs(25);

/// The unit of time in a line: first a short one; a line that differs is tried again with longer ones, alone.
const UNIT: Duration = Duration::from_millis(200);
const LONGER: [Duration; 2] = [Duration::from_millis(600), Duration::from_secs(2)];

/// What can be seen of the end of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Ended { refused: bool, printed: bool, status: i32 },
    Hung,
}

#[test]
fn generated_lines_end_as_with_gnu_timeout() {
    if let Err(why) = is_gnu() {
        needs::skip("gnu-timeout", &why);
        return;
    }
    let count = number("TREEKILL_GNU_LINES", 300);
    let seed = number("TREEKILL_GNU_SEED", u64::from(std::process::id()));
    println!("seed {seed}");
    let mut dice = Dice::new(seed);
    let lines: Vec<Line> = (0..count).map(|_| line(&mut dice)).collect();

    let ours = Timeout::link(Backend::Auto);
    let field = Field { nest: Nest::new(), link: PathBuf::from(&ours.words()[0]) };
    let (next, suspects) = (AtomicUsize::new(0), Mutex::new(vec![]));
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(line) = lines.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if field.difference(line, UNIT).is_some() {
                        suspects.lock().expect("no worker panics").push(line.clone());
                    }
                }
            });
        }
    });
    // Two loaded processors can turn any two moments round; what differs for a reason differs on a quiet one.
    let suspects = suspects.into_inner().expect("no worker panics");
    let differences: Vec<String> = suspects
        .iter()
        .filter_map(|line| {
            let found = LONGER.map(|unit| field.difference(line, unit));
            found.into_iter().collect::<Option<Vec<String>>>()?.pop()
        })
        .collect();
    for difference in &differences {
        println!("{difference}");
    }
    println!("lines {count} differences {}", differences.len());
    assert!(differences.is_empty(), "seed {seed}: {differences:#?}");
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

fn is_gnu() -> Result<(), String> {
    let _forking = sys::forking();
    let output = Command::new(GNU).arg("--version").output().map_err(|error| format!("{GNU}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if text.contains("GNU coreutils") { Ok(()) } else { Err(format!("{GNU} is not GNU's")) }
}

/// Where the lines are run.
struct Field {
    /// Holds whatever GNU timeout leaves.
    nest: Option<Nest>,
    link: PathBuf,
}

impl Field {
    /// What differs between the two.
    fn difference(&self, line: &Line, unit: Duration) -> Option<String> {
        let words = line.words(unit);
        let theirs = self.run(Path::new(GNU), &words);
        let ours = self.run(&self.link, &words);
        (theirs != ours).then(|| format!("{words:?}: GNU {theirs:?}, ours {ours:?}"))
    }

    fn run(&self, program: &Path, words: &[String]) -> Seen {
        let stdout: File = memfd_create("stdout", MemfdFlags::CLOEXEC).expect("a file in memory can be had").into();
        let mut command = Command::new(program);
        // Both are called by the same name, and speak the same language.
        command.arg0("timeout").args(words).env("LC_ALL", "C").env_remove("POSIXLY_CORRECT").current_dir("/");
        command.stdin(Stdio::null()).stderr(Stdio::null());
        command.stdout(stdout.try_clone().expect("a descriptor can be duplicated"));
        if let Some(nest) = &self.nest {
            nest.receive(&mut command);
        }
        sys::before_exec(&mut command, || {
            setsid()?;
            Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
        });
        let forking = sys::forking();
        let mut child = command.spawn().expect("the program can be started");
        drop(forking);
        let pidfd = open_process(child.id()).expect("our unreaped child has a pidfd");
        if !is_dead(&pidfd, PATIENCE) {
            let _ = child.kill();
            let _ = child.wait();
            return Seen::Hung;
        }
        let status = child.wait().expect("it is our child");
        // GNU timeout dies of the KILL that it sends to its own group, where we end with 137; and so may a command.
        let status = match (status.code(), status.signal()) {
            (Some(code), _) => code,
            (None, Some(9)) => 137,
            (None, signal) => -signal.unwrap_or_default(),
        };
        let printed = stdout.metadata().is_ok_and(|data| data.len() > 0);
        Seen::Ended { refused: status == 125, printed, status }
    }
}
