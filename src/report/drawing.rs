//! The picture of a tree as lines for people. Pure.

use super::{amount, command_line, seconds};
use crate::tree::{Picture, Seen};
use crate::voice::printable;

/// What the lines are drawn for.
#[derive(Clone, Copy, Debug)]
pub struct Canvas {
    /// How wide a line may be, in columns.
    pub width: usize,
    /// Whether colours are understood and wanted.
    pub has_colour: bool,
    /// How many lines there may be.
    pub lines: usize,
    /// The command's pid: the other roots of the forest run in the background.
    pub command: Option<i32>,
}

/// What stands before each line.
const MARGIN: &str = "  ";
/// The part of the width that commands have in any case, in percent; what a process was doing has the rest.
const COMMANDS: usize = 50;
/// Memory and CPU time are named from here on, in bytes and milliseconds.
const MUCH_MEMORY: u64 = 100 << 20;
const MUCH_CPU: u64 = 100;

/// Calls that wait for one of many descriptors.
const EVENTS: [&str; 6] = ["poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait"];

const DIM: &str = "2";
const BOLD: &str = "1";
const GREEN: &str = "32";
const YELLOW: &str = "33";
const RED: &str = "31";

/// Draws the tree; each line is at most as wide as the canvas, and the last says how much there is no room for.
pub fn draw(picture: &Picture, canvas: &Canvas) -> Vec<String> {
    let total = picture.processes.len() + picture.left_out;
    let room = if total > canvas.lines { canvas.lines.saturating_sub(1) } else { canvas.lines };
    let shown = &picture.processes[..picture.processes.len().min(room)];
    let details = details(shown, canvas.command);
    let width = canvas.width.saturating_sub(columns(MARGIN));
    let needed = details.iter().map(|(_, text)| columns(text)).max().unwrap_or_default();
    let most = width.saturating_sub(needed).max(width * COMMANDS / 100);
    let rows: Vec<Row> =
        branches(shown).into_iter().zip(shown).map(|(branch, seen)| Row::new(branch, seen, most)).collect();
    let widest = rows.iter().map(Row::width).max().unwrap_or_default();
    let mut lines: Vec<String> = rows
        .iter()
        .zip(details)
        .map(|(row, (colour, text))| {
            let mut line = Line::new(canvas);
            row.draw(&mut line, widest);
            line.put(&text, colour);
            line.text
        })
        .collect();
    if total > shown.len() {
        let mut line = Line::new(canvas);
        let more = if shown.is_empty() { "" } else { "and " };
        line.put(&format!("{more}{} more", total - shown.len()), Some(DIM));
        lines.push(line.text);
    }
    lines
}

/// What stands behind each command, in columns: state, age, notes; and its colour.
fn details(shown: &[Seen], command: Option<i32>) -> Vec<(Option<&'static str>, String)> {
    let states = shown.iter().map(|seen| seen.state.len()).max().unwrap_or_default();
    let ages = shown.iter().filter_map(|seen| Some(seconds(seen.age_ms?).len())).max().unwrap_or_default();
    let detail = |seen: &Seen| {
        let is_in_background = seen.depth == 0 && Some(seen.pid) != command;
        let notes = notes(seen, is_in_background).join(", ");
        let age = seen.age_ms.map(seconds).unwrap_or_default();
        let text = format!("  {:states$} {age:>ages$}  {notes}", seen.state);
        (state_colour(seen.state), text.trim_end().to_owned())
    };
    shown.iter().map(detail).collect()
}

/// A tree of one process in the words of a sentence: `sleep 60 (123) sleeping 1.0s`.
pub fn in_one_line(seen: &Seen) -> String {
    const MOST: usize = 80;
    let mut line = format!("{} ({}) {}", name(seen, MOST), seen.pid, seen.state);
    if let Some(age) = seen.age_ms {
        line = line + " " + &seconds(age);
    }
    for note in notes(seen, false) {
        line = line + ", " + &note;
    }
    line
}

fn name(seen: &Seen, most: usize) -> String {
    printable(&command_line(&seen.comm, &seen.argv, most))
}

/// The command of a process behind the lines that lead to it.
struct Row {
    branch: String,
    name: String,
    pid: String,
}

impl Row {
    fn new(branch: String, seen: &Seen, most: usize) -> Row {
        let pid = format!(" ({})", seen.pid);
        // Of a deep tree the lines alone may fill the screen.
        let room = most.saturating_sub(columns(&branch) + columns(&pid)).max(8);
        let name = cut(&name(seen, room), room);
        Row { branch, name, pid }
    }

    fn width(&self) -> usize {
        columns(&self.branch) + columns(&self.name) + columns(&self.pid)
    }

    fn draw(&self, line: &mut Line, width: usize) {
        line.put(&self.branch, Some(DIM));
        line.put(&self.name, Some(BOLD));
        line.put(&self.pid, Some(DIM));
        line.put(&" ".repeat(width - self.width()), None);
    }
}

/// The lines that lead to each process. Read from the end, since a branch goes on for as long as a sibling follows.
fn branches(shown: &[Seen]) -> Vec<String> {
    let mut follows: Vec<bool> = vec![];
    let mut branches: Vec<String> = shown
        .iter()
        .rev()
        .map(|seen| {
            let depth = seen.depth;
            let has_next = follows.get(depth).copied().unwrap_or_default();
            follows.resize(depth, false);
            let mut branch = String::new();
            // A tree may be as deep as there are pids; nobody counts more lines than this.
            const DEEPEST: usize = 20;
            let first = depth.saturating_sub(DEEPEST).max(1);
            for goes_on in &follows[first.min(depth)..depth] {
                branch += if *goes_on { "│  " } else { "   " };
            }
            follows.push(true);
            if depth > 0 {
                branch += if has_next { "├─ " } else { "└─ " };
            }
            branch
        })
        .collect();
    branches.reverse();
    branches
}

fn state_colour(state: &str) -> Option<&'static str> {
    match state {
        "running" => Some(GREEN),
        "uninterruptible" | "zombie" => Some(RED),
        "stopped" | "traced" => Some(YELLOW),
        _ => None,
    }
}

/// What a process waits for, holds and has used.
fn notes(seen: &Seen, is_in_background: bool) -> Vec<String> {
    let mut notes = vec![];
    // A server waits for whoever connects: that it listens says it all.
    notes.extend(waiting(seen).filter(|_| seen.listens.is_empty()));
    let listens: Vec<String> = seen.listens.iter().map(|address| short_address(address)).collect();
    if !listens.is_empty() {
        notes.push(format!("listens on {}", listens.join(" and ")));
    }
    // In a terminal that is everybody's stdin. It matters to those who may wait for its user.
    if let Some(terminal) = seen.terminal.as_ref().filter(|_| may_wait_for_input(seen)) {
        notes.push(format!("stdin is {terminal}"));
    }
    // All of a tree inherit the caller's pipes: that is news of those alone that were to be in the background.
    if is_in_background && !seen.holds.is_empty() {
        notes.push(format!("holds {}", seen.holds.join(" and ")));
    }
    if let Some(cpu) = seen.cpu_ms.filter(|cpu| *cpu >= MUCH_CPU) {
        notes.push(format!("{} CPU", seconds(cpu)));
    }
    if let Some(memory) = seen.memory.filter(|memory| *memory >= MUCH_MEMORY) {
        notes.push(amount(memory));
    }
    notes.into_iter().map(|note| printable(&note)).collect()
}

/// Whether it may wait for input in a way that does not name where from.
fn may_wait_for_input(seen: &Seen) -> bool {
    let waits_for_events = seen.system_call.is_some_and(|call| EVENTS.contains(&call));
    seen.state == "stopped" || (waits_for_events && seen.listens.is_empty())
}

/// What it waits for, where the system call tells more than the state does.
fn waiting(seen: &Seen) -> Option<String> {
    let target = || match seen.waits_on.as_deref() {
        Some(target) if target.starts_with("pipe:") => " a pipe".into(),
        Some(target) if target.starts_with("socket:") => " a socket".into(),
        Some(target) => format!(" {target}"),
        None => String::new(),
    };
    let words = match seen.system_call? {
        "wait4" | "waitid" => "waits for a child".into(),
        "read" | "readv" | "pread64" => format!("reads{}", target()),
        "recvfrom" | "recvmsg" | "recvmmsg" => format!("receives from{}", target()),
        "write" | "writev" | "pwrite64" => format!("writes{}", target()),
        "sendto" | "sendmsg" => format!("sends to{}", target()),
        "accept" | "accept4" => "waits for a connection".into(),
        "connect" => "connects".into(),
        "flock" | "fcntl" => format!("waits for the lock of{}", target()),
        "rt_sigsuspend" | "rt_sigtimedwait" => "waits for a signal".into(),
        call if EVENTS.contains(&call) => "waits for events".into(),
        // The state says it.
        "nanosleep" | "clock_nanosleep" | "pause" => return None,
        call => format!("in {call}{}", target()),
    };
    Some(words)
}

/// `tcp 0.0.0.0:80` is `:80` to people.
fn short_address(address: &str) -> String {
    let Some((kind, address)) = address.split_once(' ') else { return address.into() };
    match kind {
        "tcp" => address.strip_prefix("0.0.0.0").or(address.strip_prefix("[::]")).unwrap_or(address).into(),
        _ => address.into(),
    }
}

/// A line that is as wide as the canvas at most.
struct Line {
    text: String,
    left: usize,
    has_colour: bool,
}

impl Line {
    fn new(canvas: &Canvas) -> Line {
        let mut line = Line { text: String::new(), left: canvas.width, has_colour: canvas.has_colour };
        line.put(MARGIN, None);
        line
    }

    /// Adds as much as there is room for.
    fn put(&mut self, text: &str, colour: Option<&str>) {
        let text = cut(text, self.left);
        self.left -= columns(&text);
        match colour.filter(|_| self.has_colour && !text.trim().is_empty()) {
            Some(colour) => self.text += &format!("\x1b[{colour}m{text}\x1b[0m"),
            None => self.text += &text,
        }
    }
}

/// A text in at most so many columns.
fn cut(text: &str, most: usize) -> String {
    if columns(text) <= most {
        return text.into();
    }
    let mut left = most.saturating_sub(1);
    let mut kept = String::new();
    for c in text.chars() {
        let Some(rest) = left.checked_sub(width(c)) else { break };
        left = rest;
        kept.push(c);
    }
    if most > 0 {
        kept.push('…');
    }
    kept
}

/// How wide a text is on a terminal.
fn columns(text: &str) -> usize {
    text.chars().map(width).sum()
}

/// Characters of East Asian scripts and pictures take two columns. Marks that take none are counted all the same: a line
/// that is too short does no harm.
fn width(c: char) -> usize {
    match u32::from(c) {
        0x1100..=0x115f | 0x2e80..=0xa4cf | 0xa960..=0xa97c | 0xac00..=0xd7a3 | 0xf900..=0xfaff => 2,
        0xfe10..=0xfe6f | 0xff00..=0xff60 | 0xffe0..=0xffe6 | 0x1_b000..=0x1_b2ff | 0x1_f000..=0x1_faff => 2,
        0x2_0000..=0x3_ffff => 2,
        0x231a..=0x231b | 0x23e9..=0x23f3 | 0x2614..=0x2615 | 0x2648..=0x2653 | 0x267f | 0x2693 | 0x26a1 => 2,
        0x25fd..=0x25fe
        | 0x26aa..=0x26ab
        | 0x26bd..=0x26ce
        | 0x26d4
        | 0x26ea..=0x26fd
        | 0x2705..=0x27bf
        | 0x2b1b..=0x2b55 => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests;
