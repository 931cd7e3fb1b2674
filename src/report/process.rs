//! A process as the report and the messages name it.

use serde::Serialize;

use super::milliseconds;
use crate::outcome::End;
use crate::signals::Sig;
use crate::tree::{Net, Process, procfs};

/// A process of the tree.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessReport {
    /// Its pid.
    pub pid: i32,
    /// Its parent's pid; null where it can't be seen.
    pub ppid: Option<i32>,
    /// The name of its program.
    pub comm: String,
    /// Its arguments.
    pub argv: Vec<String>,
    /// Its state as a word.
    pub state: &'static str,
    /// Its age in milliseconds.
    pub age_ms: Option<u64>,
    /// Its cgroup.
    pub cgroup: Option<String>,
    /// What held it: `boundary` or `ancestry`.
    pub held_by: Net,
    /// The pid of the process that traces it.
    pub tracer: Option<i32>,
    /// The signal that it died of, or else the last one that it was sent; null if it was sent none, or lives.
    pub ended_by: Option<String>,
}

/// How long a command line is in a message.
const SHOWN: usize = 60;

impl ProcessReport {
    /// What can be seen of a process now; without details only what the listing knew.
    pub fn of(process: &Process, has_details: bool) -> ProcessReport {
        // Where /proc shows nothing of it, what it shows under this number is somebody else.
        let stat = process.stat.as_ref();
        let seen = stat.filter(|_| has_details);
        ProcessReport {
            pid: process.pid.as_raw_pid(),
            ppid: stat.and_then(|stat| stat.parent).map(|pid| pid.as_raw_pid()),
            comm: stat.map_or_else(|| "?".into(), |stat| stat.comm.clone()),
            argv: seen.map(|stat| procfs::arguments(process.pid, stat)).unwrap_or_default(),
            state: procfs::state_word(stat.map(|stat| stat.state)),
            age_ms: stat.map(|stat| milliseconds(stat.age())),
            cgroup: seen.and_then(|_| procfs::cgroup(process.pid)),
            held_by: process.net,
            tracer: seen.and_then(|_| procfs::tracer(process.pid)).map(|pid| pid.as_raw_pid()),
            ended_by: None,
        }
    }

    /// Notes a signal that it was sent.
    pub fn sent(&mut self, sig: Sig) {
        self.ended_by = Some(sig.to_string());
    }

    /// Notes how it ended.
    pub fn ended(&mut self, end: End) {
        if let End::Signaled(sig) = end {
            self.sent(sig);
        }
    }

    /// `sleep 60 (123, 0.2s old, held by boundary, ended by SIGTERM)`: its command line, and what there is to know of it.
    pub fn in_words(&self) -> String {
        let mut facts = vec![self.pid.to_string()];
        facts.extend(self.age_ms.map(|age| format!("{} old", super::seconds(age))));
        facts.push(format!("held by {}", self.held_by.in_words()));
        if !matches!(self.state, "running" | "sleeping") {
            facts.push(self.state.into());
        }
        facts.extend(self.tracer.map(|tracer| format!("traced by {tracer}")));
        facts.extend(self.ended_by.as_ref().map(|sig| format!("ended by SIG{sig}")));
        format!("{} ({})", command_line(&self.comm, &self.argv, SHOWN), facts.join(", "))
    }
}

/// A command line in at most this many characters: the program without its folder, then the arguments, those with blanks
/// in quotes. Where there are none the name has to do.
pub fn command_line(comm: &str, argv: &[String], most: usize) -> String {
    let Some((program, arguments)) = argv.split_first() else { return comm.to_owned() };
    let mut line = program.rsplit('/').next().unwrap_or(program).to_owned();
    for argument in arguments {
        // Enough to be cut: an argument may be megabytes.
        if line.len() > most * 4 {
            break;
        }
        let argument: String = argument.chars().take(most + 1).collect();
        if argument.is_empty() || argument.contains(char::is_whitespace) {
            line += &format!(" '{}'", argument.replace('\'', "'\\''"));
        } else {
            line = line + " " + &argument;
        }
    }
    let mut chars = line.char_indices().skip(most.saturating_sub(1));
    if let (Some((cut, _)), Some(_)) = (chars.next(), chars.next()) {
        line.truncate(cut);
        line.push('…');
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|&word| word.into()).collect()
    }

    #[test]
    fn a_command_line_names_the_program_and_is_cut() {
        assert_eq!(command_line("sh", &words(&["/bin/sh", "-c", "a b"]), 60), "sh -c 'a b'");
        assert_eq!(command_line("x", &words(&["x", "", "it's a"]), 60), "x '' 'it'\\''s a'");
        assert_eq!(command_line("sh", &[], 60), "sh");
        assert_eq!(command_line("x", &words(&["sleep", "1234"]), 10), "sleep 1234");
        assert_eq!(command_line("x", &words(&["sleep", "12345"]), 10), "sleep 123…");
        assert_eq!(command_line("x", &words(&["é", &"é".repeat(1 << 20)]), 4), "é é…");
    }
}
