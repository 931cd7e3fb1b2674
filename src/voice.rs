//! What is said on stderr. Nothing ever waits for its reader: a line is written when poll(2) says that it fits, and what
//! does not fit until the end of the run gets one more second.

use std::fmt::Display;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::plan::Verbosity;
use crate::sys;

/// Lines on their way to stderr.
pub struct Voice {
    verbosity: Verbosity,
    pending: Vec<u8>,
    dropped: usize,
    /// While a stop is under way nothing is written: a reader that hangs must not keep the tree alive.
    is_held: bool,
}

/// Poll says "writable" when this much fits, pipe(7).
const PIPE_BUF: usize = 4096;
/// More than this is not kept for a reader that does not read.
const MOST: usize = 64 * 1024;
/// How long the reader has at the end of the run.
const LAST_WAIT: Duration = Duration::from_secs(1);

impl Voice {
    /// A voice that says as much as this.
    pub fn new(verbosity: Verbosity) -> Voice {
        Voice { verbosity, pending: vec![], dropped: 0, is_held: false }
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

    /// Says a step.
    pub fn step(&mut self, text: impl Display) {
        if self.verbosity >= Verbosity::Verbose {
            self.line(text);
        }
    }

    /// Keeps everything back until `finish`.
    pub fn hold(&mut self) {
        self.is_held = true;
    }

    fn line(&mut self, text: impl Display) {
        let line = format!("treekill-run: {}\n", printable(&text.to_string()));
        if self.pending.len() + line.len() > MOST {
            self.dropped += 1;
            return;
        }
        self.pending.extend_from_slice(line.as_bytes());
        if !self.is_held {
            self.write(Duration::ZERO);
        }
    }

    /// Writes what is left, waiting for a slow reader for at most a second in all; then gives up.
    pub fn finish(&mut self) {
        if self.dropped > 0 {
            let line = format!("treekill-run: {} lines were dropped\n", self.dropped);
            self.pending.extend_from_slice(line.as_bytes());
        }
        self.write(LAST_WAIT);
        self.pending.clear();
    }

    fn write(&mut self, patience: Duration) {
        let written = write_within(rustix::stdio::stderr(), &self.pending, patience);
        self.pending.drain(..written);
    }
}

/// Writes as much as fits within this time and gives how much that was; stops at an error, since a stderr or report that
/// is broken can't be told so.
pub fn write_within(fd: BorrowedFd<'_>, bytes: &[u8], patience: Duration) -> usize {
    let deadline = sys::now() + patience;
    let mut written = 0;
    while written < bytes.len() {
        let left = Timespec::try_from(deadline.saturating_sub(sys::now())).expect("at most a second");
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
        let fits =
            poll(&mut fds, Some(&left)).is_ok_and(|count| count > 0) && fds[0].revents().contains(PollFlags::OUT);
        if !fits {
            break;
        }
        let piece = &bytes[written..bytes.len().min(written + PIPE_BUF)];
        match rustix::io::write(fd, piece) {
            Ok(length) => written += length,
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) if sys::now() < deadline => {}
            Err(_) => break,
        }
    }
    written
}

/// A text that can harm no terminal and stays one line: control characters are written as escapes.
pub fn printable(text: &str) -> String {
    text.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

/// The cause of an error as users know it: "No such file or directory".
pub fn cause(errno: i32) -> String {
    let text = io::Error::from_raw_os_error(errno).to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// An error with its contexts in one line, `cannot VERB OBJECT: CAUSE`.
pub fn in_one_line(error: &anyhow::Error) -> String {
    let part = |error: &(dyn std::error::Error + 'static)| {
        let io = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
        let errno = error.downcast_ref::<rustix::io::Errno>().map(|errno| errno.raw_os_error());
        io.or(errno).map_or_else(|| error.to_string(), cause)
    };
    error.chain().map(part).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_stays_one_harmless_line() {
        assert_eq!(printable("a\x1b[31m\nb\u{9b}\té"), "a\\u{1b}[31m\\nb\\u{9b}\\té");
    }

    #[test]
    fn a_full_pipe_is_not_waited_for() {
        use std::os::fd::AsFd;
        let (_reader, writer) = rustix::pipe::pipe().expect("a pipe");
        let much = vec![b'x'; 1 << 20];
        let written = write_within(writer.as_fd(), &much, Duration::ZERO);
        assert!(written < much.len());
        assert_eq!(write_within(writer.as_fd(), &much, Duration::ZERO), 0);
    }
}
