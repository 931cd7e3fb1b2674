//! The pipe that every process of a run holds: lines while they live, end-of-file when all are dead.

use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

/// Our end of the pipe, and what was read from it.
#[derive(Debug)]
pub(crate) struct Tether {
    read: OwnedFd,
    /// Our copy of the other end, until the run has started.
    write: Option<OwnedFd>,
    buffer: Vec<u8>,
    /// Every line so far.
    pub(crate) lines: Vec<String>,
    is_at_end: bool,
}

impl Tether {
    pub(crate) fn new() -> Tether {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe can be had");
        rustix::io::ioctl_fionbio(&read, true).expect("a pipe can be read without blocking");
        Tether { read, write: Some(write), buffer: Vec::new(), lines: Vec::new(), is_at_end: false }
    }

    pub(crate) fn write_end(&self) -> RawFd {
        self.write.as_ref().map_or(-1, |fd| fd.as_raw_fd())
    }

    /// A name of the pipe, for processes of the same user to open it by whose parents handed nothing on.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.read.as_raw_fd())
    }

    /// Gives up our copy of the other end: from now on end-of-file means that all holders are dead.
    pub(crate) fn let_go(&mut self) {
        self.write = None;
    }

    /// The next line, `None` at end-of-file or when the time is over.
    pub(crate) fn line(&mut self, within: Duration) -> Option<String> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let rest = self.buffer.split_off(end + 1);
                let line = std::mem::replace(&mut self.buffer, rest);
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                self.lines.push(line.clone());
                return Some(line);
            }
            if self.is_at_end || !self.read_some(deadline) {
                return None;
            }
        }
    }

    /// Reads to the end-of-file; false if somebody still holds the pipe when the time is over.
    pub(crate) fn ends(&mut self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        while self.line(deadline.saturating_duration_since(Instant::now())).is_some() {}
        self.is_at_end
    }

    /// Waits for bytes or the end; false when the time is over.
    fn read_some(&mut self, deadline: Instant) -> bool {
        let mut bytes = [0; 4096];
        loop {
            match rustix::io::read(&self.read, &mut bytes) {
                Ok(0) => {
                    self.is_at_end = true;
                    return true;
                }
                Ok(length) => {
                    self.buffer.extend_from_slice(&bytes[..length]);
                    return true;
                }
                Err(Errno::AGAIN) if deadline <= Instant::now() => return false,
                Err(Errno::AGAIN | Errno::INTR) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    let left = Timespec::try_from(left).expect("the bound is short");
                    let _ = rustix::event::poll(&mut [PollFd::new(&self.read, PollFlags::IN)], Some(&left));
                }
                Err(error) => panic!("cannot read the tether: {error}"),
            }
        }
    }
}
