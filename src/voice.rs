//! What is said on stderr. Nothing ever waits for its reader: a line is written when poll(2) says that it fits, and what
//! does not fit until the end of the run gets one more second.

use std::ffi::OsStr;
use std::fmt::{self, Display};
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::{Errno, IoSlice, ReadWriteFlags, pwritev2, write};

use crate::cli;
use crate::plan::Verbosity;
use crate::sys;

/// Why something can't be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    /// What is in the way.
    pub cause: String,
    /// What would help, if anything does.
    pub help: Option<String>,
}

impl Why {
    /// A cause, and what would help.
    pub fn new(cause: impl Into<String>, help: impl Into<String>) -> Why {
        Why { cause: cause.into(), help: Some(help.into()) }
    }
}

impl From<String> for Why {
    fn from(cause: String) -> Why {
        Why { cause, help: None }
    }
}

impl From<&str> for Why {
    fn from(cause: &str) -> Why {
        cause.to_owned().into()
    }
}

impl Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause)?;
        self.help.iter().try_for_each(|help| write!(f, "; {help}"))
    }
}

/// A line that was said, without the name that it begins with.
pub fn without_name(line: &str) -> &str {
    line.strip_prefix(own_name()).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(line)
}

/// Lines on their way to stderr.
pub struct Voice {
    name: &'static str,
    verbosity: Verbosity,
    pending: Vec<u8>,
    dropped: usize,
    /// While a stop is under way nothing is written: a reader that hangs must not keep the tree alive.
    is_held: bool,
}

/// We were called by GNU timeout's name.
static IS_TIMEOUT: AtomicBool = AtomicBool::new(false);

/// From now on each line begins with the name that we were called by.
pub fn set_name(program: Option<&OsStr>) {
    IS_TIMEOUT.store(cli::is_timeout(program), Relaxed);
}

fn own_name() -> &'static str {
    if IS_TIMEOUT.load(Relaxed) { cli::TIMEOUT } else { cli::OWN_NAME }
}

/// Poll says "writable" when this much fits, pipe(7).
const PIPE_BUF: usize = 4096;
/// More than this is not kept for a reader that does not read.
const MOST: usize = 64 * 1024;
/// How long the reader has at the end of the run.
const LAST_WAIT: Duration = Duration::from_secs(1);

impl Voice {
    /// A voice that says as much as this, each line beginning with the name that we were called by.
    pub fn new(verbosity: Verbosity) -> Voice {
        Voice { name: own_name(), verbosity, pending: vec![], dropped: 0, is_held: false }
    }

    /// Says an error of our own.
    pub fn error(&mut self, text: impl Display) {
        self.line(text);
    }

    /// Says what was out of the ordinary.
    pub fn note(&mut self, text: impl Display) {
        if self.verbosity >= Verbosity::Normal {
            self.line(text);
        }
    }

    /// Says what was asked for.
    pub fn answer(&mut self, text: impl Display) {
        self.line(text);
    }

    /// Shows lines that were drawn, harmless as they are, behind the line that they belong to.
    pub fn drawing(&mut self, lines: &[String]) {
        if self.verbosity >= Verbosity::Normal {
            lines.iter().for_each(|line| self.push(&format!("{line}\n")));
            self.write_unless_held();
        }
    }

    /// Says a step.
    pub fn step(&mut self, text: impl Display) {
        if self.verbosity >= Verbosity::Verbose {
            self.line(text);
        }
    }

    /// Says at once, if it fits, what is told apart from everything else that is kept back.
    pub fn announce(&mut self, text: impl Display) {
        let is_held = std::mem::replace(&mut self.is_held, false);
        self.line(text);
        self.is_held = is_held;
    }

    /// Keeps everything back until `finish`.
    pub fn hold(&mut self) {
        self.is_held = true;
    }

    fn line(&mut self, text: impl Display) {
        self.push(&format!("{}: {}\n", self.name, printable(&text.to_string())));
        self.write_unless_held();
    }

    fn push(&mut self, line: &str) {
        if self.pending.len() + line.len() > MOST {
            self.dropped += 1;
        } else {
            self.pending.extend_from_slice(line.as_bytes());
        }
    }

    fn write_unless_held(&mut self) {
        if !self.is_held {
            self.write(Duration::ZERO);
        }
    }

    /// Writes what is left, waiting for a slow reader for at most a second in all; then gives up.
    pub fn finish(&mut self) {
        if self.dropped > 0 {
            let line = format!("{}: {} lines were dropped\n", self.name, self.dropped);
            self.pending.extend_from_slice(line.as_bytes());
        }
        self.write(LAST_WAIT);
        self.pending.clear();
    }

    fn write(&mut self, patience: Duration) {
        let mut rest = self.pending.as_slice();
        // A stderr that is broken or that nobody reads can't be told so.
        let _ = write_within(rustix::stdio::stderr(), &mut rest, patience);
        let written = self.pending.len() - rest.len();
        self.pending.drain(..written);
    }
}

/// Writes as much as fits within this time, and leaves in `rest` what does not.
///
/// # Errors
/// Those of write(2); TimedOut when the reader does not read.
pub fn write_within(fd: BorrowedFd<'_>, rest: &mut &[u8], patience: Duration) -> io::Result<()> {
    let deadline = sys::now() + patience;
    while !rest.is_empty() {
        let left = Timespec::try_from(deadline.saturating_sub(sys::now())).expect("at most a second");
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
        // Where it can't be asked whether there is room, the write itself tells.
        if poll(&mut fds, Some(&left)) == Ok(0) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match write_without_waiting(fd, &rest[..rest.len().min(PIPE_BUF)]) {
            Ok(length) => *rest = &rest[length..],
            Err(Errno::AGAIN) if sys::now() < deadline => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Another writer may fill a pipe between poll(2) and write(2), and the flags of a description that is not ours can't be
/// changed: the write itself is told not to wait, pwritev2(2), where the kind of file can be.
fn write_without_waiting(fd: BorrowedFd<'_>, piece: &[u8]) -> Result<usize, Errno> {
    const AT_ITS_POSITION: u64 = u64::MAX;
    let kind = fstat(fd).map(|status| FileType::from_raw_mode(status.st_mode));
    if kind.is_ok_and(|kind| kind != FileType::Fifo && kind != FileType::Socket) {
        // A file never makes us wait for a reader, and a terminal does only while its user holds it.
        return write(fd, piece);
    }
    match pwritev2(fd, &[IoSlice::new(piece)], AT_ITS_POSITION, ReadWriteFlags::NOWAIT) {
        // Before Linux 5.12 pipes can't be told so.
        Err(Errno::OPNOTSUPP | Errno::SPIPE | Errno::INVAL) => write(fd, piece),
        written => written,
    }
}

/// A text that can harm no terminal and stays one line: control characters are written as escapes, and so are those that
/// end lines or turn the direction of writing around.
pub fn printable(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if is_harmless(c) { line.push(c) } else { line.extend(c.escape_default()) }
    }
    line
}

/// Whether a terminal shows this character and does nothing else.
pub fn is_harmless(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    !turns && !c.is_control()
}

/// The cause of an error as users know it: "No such file or directory".
pub fn cause(errno: i32) -> String {
    let text = io::Error::from_raw_os_error(errno).to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// Why nothing is found at a path whose last part is a link: it leads nowhere.
pub fn dangling(path: &Path) -> Option<String> {
    let target = std::fs::read_link(path).ok().filter(|_| !path.exists())?;
    Some(format!("it is a link to '{}', which does not exist", printable(&target.to_string_lossy())))
}

/// An I/O error as users know it.
pub fn in_words(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(errno) => cause(errno),
        None if error.kind() == io::ErrorKind::TimedOut => "nobody reads it".into(),
        None => error.to_string(),
    }
}

/// An error with its contexts in one line, `cannot VERB OBJECT: CAUSE`.
pub fn in_one_line(error: &anyhow::Error) -> String {
    let part = |error: &(dyn std::error::Error + 'static)| {
        let errno = error.downcast_ref::<Errno>().map(|errno| cause(errno.raw_os_error()));
        errno.or_else(|| error.downcast_ref().map(in_words)).unwrap_or_else(|| error.to_string())
    };
    error.chain().map(part).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_stays_one_harmless_line() {
        assert_eq!(printable("a\x1b[31m\nb\u{9b}\té"), "a\\u{1b}[31m\\nb\\u{9b}\\té");
        assert_eq!(printable("a\u{202e}b\u{2028}"), "a\\u{202e}b\\u{2028}");
    }

    #[test]
    fn a_full_pipe_is_not_waited_for() {
        use std::os::fd::AsFd;
        let (_reader, writer) = rustix::pipe::pipe().expect("a pipe");
        let much = vec![b'x'; 1 << 20];
        let mut rest = much.as_slice();
        for _ in 0..2 {
            let error = write_within(writer.as_fd(), &mut rest, Duration::ZERO).expect_err("it can't fit");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert!(!rest.is_empty() && rest.len() < much.len());
        }
    }
}
