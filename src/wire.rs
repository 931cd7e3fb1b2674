//! The frames between front and keeper: fixed size, one a message over a SEQPACKET socket pair, unix(7). Each end has
//! its own type, so that the directions can't be swapped. Pure but for the two types that hold a socket's end.
//!
//! They are written and read as if to a file: sandboxes refuse the calls for sockets to those who are to reach no network.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, read, retry_on_intr, write};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::outcome::Exit;
use crate::signals::Sig;

/// Where a signal came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A process sent it.
    Process,
    /// The terminal sent it, to the whole foreground group or session.
    Terminal,
    /// The same, when the command may not have been in that group yet.
    EarlyTerminal,
}

/// What the front tells the keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToKeeper {
    /// The command may be born: the scope is there, and what the terminal sent before is known. The first frame where the
    /// keeper waits for it.
    Admitted,
    /// This signal, no SIGCONT, reached the front.
    Signal {
        /// Which.
        sig: Sig,
        /// Where from.
        source: Source,
        /// How many `Stopped` the front had taken by then, modulo 256.
        stops: u8,
    },
    /// SIGCONT reached the front.
    Continued {
        /// As above.
        stops: u8,
    },
}

/// What the keeper tells the front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToFront {
    /// The terminal stopped the command by this signal; the front stops itself likewise.
    Stopped(Sig),
    /// The command went on; so does the front.
    Continued,
    /// From now on there may be a tree: the keeper of a deputy is about to start the command.
    Begun,
    /// The command runs, in a boundary that might have been refused.
    Started,
    /// There is no command, since this step into the boundary was refused, and nothing is left.
    Refused([u8; 3]),
    /// The run is over and the tree is gone: end like this.
    Outcome {
        /// How.
        exit: Exit,
        /// A signal that was our doing has ended what could have the terminal: it could not tidy up behind itself.
        untidy: bool,
    },
}

const FRAME: usize = 4;
type Frame = [u8; FRAME];

impl ToKeeper {
    pub(crate) fn encode(self) -> Frame {
        match self {
            ToKeeper::Admitted => frame(b'a', 0),
            ToKeeper::Continued { stops } => frame(b'g', stops),
            ToKeeper::Signal { sig, source, stops } => [source_byte(source), sig_byte(sig), stops, 0],
        }
    }

    pub(crate) fn decode(frame: Frame) -> Option<ToKeeper> {
        match frame {
            [b'a', 0, 0, 0] => Some(ToKeeper::Admitted),
            [b'g', stops, 0, 0] => Some(ToKeeper::Continued { stops }),
            [kind, sig, stops, 0] => {
                Some(ToKeeper::Signal { sig: Sig::new(sig.into())?, source: source_of(kind)?, stops })
            }
            _ => None,
        }
    }
}

impl ToFront {
    pub(crate) fn encode(self) -> Frame {
        match self {
            ToFront::Begun => frame(b'b', 0),
            ToFront::Continued => frame(b'g', 0),
            ToFront::Stopped(sig) => frame(b's', sig_byte(sig)),
            ToFront::Started => frame(b'x', 0),
            ToFront::Refused([a, b, c]) => [b'n', a, b, c],
            ToFront::Outcome { exit: Exit::Code(code), untidy } => [b'c', code, untidy.into(), 0],
            ToFront::Outcome { exit: Exit::Raise(sig), untidy } => [b'r', sig_byte(sig), untidy.into(), 0],
        }
    }

    pub(crate) fn decode(frame: Frame) -> Option<ToFront> {
        match frame {
            [b'b', 0, 0, 0] => Some(ToFront::Begun),
            [b'g', 0, 0, 0] => Some(ToFront::Continued),
            [b's', sig, 0, 0] => Some(ToFront::Stopped(Sig::new(sig.into())?)),
            [b'x', 0, 0, 0] => Some(ToFront::Started),
            [b'n', a, b, c] => Some(ToFront::Refused([a, b, c])),
            [b'c', code, untidy @ 0..=1, 0] => Some(ToFront::Outcome { exit: Exit::Code(code), untidy: untidy == 1 }),
            [b'r', sig, untidy @ 0..=1, 0] => {
                Some(ToFront::Outcome { exit: Exit::Raise(Sig::new(sig.into())?), untidy: untidy == 1 })
            }
            _ => None,
        }
    }
}

fn frame(kind: u8, value: u8) -> Frame {
    [kind, value, 0, 0]
}

fn source_byte(source: Source) -> u8 {
    match source {
        Source::Process => b'p',
        Source::Terminal => b't',
        Source::EarlyTerminal => b'e',
    }
}

fn source_of(byte: u8) -> Option<Source> {
    [Source::Process, Source::Terminal, Source::EarlyTerminal].into_iter().find(|source| source_byte(*source) == byte)
}

fn sig_byte(sig: Sig) -> u8 {
    u8::try_from(sig.number()).expect("signals are at most 64")
}

/// The front's end. The bell is a pipe that the keeper writes to behind each frame that continues a stopped front, and
/// that hangs up with it. The socket would not do: of the frame that told of the stop, too, the kernel may tell its signal
/// handlers long after it woke the reader, fcntl(2), `F_SETOWN`, and that would continue the front again.
#[derive(Debug)]
pub struct FrontEnd {
    socket: OwnedFd,
    bell: OwnedFd,
}

/// The keeper's end.
#[derive(Debug)]
pub struct KeeperEnd {
    socket: OwnedFd,
    bell: OwnedFd,
    /// The front was told of a stop: it may have followed.
    has_told_stop: Cell<bool>,
}

/// A connected pair, close-on-exec and non-blocking.
///
/// # Errors
/// EMFILE, ENFILE, ENOMEM of socketpair(2) and pipe(2).
pub fn pair() -> io::Result<(FrontEnd, KeeperEnd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (front, keeper) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let (hear, ring) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    Ok((
        FrontEnd { socket: front, bell: hear },
        KeeperEnd { socket: keeper, bell: ring, has_told_stop: Cell::new(false) },
    ))
}

impl FrontEnd {
    /// Sends a frame. A keeper that is dead, or stopped behind a full socket, does not get it: its end tells of the
    /// first, and the second has enough signals already. SIGPIPE must be blocked.
    ///
    /// # Errors
    /// ENOMEM and others of write(2): it is lost.
    pub fn send(&self, message: ToKeeper) -> Result<(), Errno> {
        match retry_on_intr(|| write(&self.socket, &message.encode())) {
            Ok(_) | Err(Errno::PIPE | Errno::CONNRESET | Errno::AGAIN) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Takes one frame; `None` when there is none, or nobody to send one any more.
    pub fn receive(&self) -> Option<ToFront> {
        // One that can't be taken is missed: then the child's end comes without an outcome.
        receive(|frame| read(&self.socket, frame)).ok().flatten().and_then(ToFront::decode)
    }

    /// The frame that is the next to be received.
    pub fn peek(&self) -> Option<ToFront> {
        let peek = |frame: &mut Frame| recv(&self.socket, frame, RecvFlags::PEEK).map(|(length, _)| length);
        receive(peek).ok().flatten().and_then(ToFront::decode)
    }

    /// What rings when a stopped front is to go on.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Takes what has rung, so that there is room for more.
    pub fn silence(&self) {
        let _ = read(&self.bell, &mut [0; 64]);
    }
}

/// Whether something can be received now: a frame, or that nobody is left to send one.
pub fn has_news(end: &FrontEnd) -> bool {
    let mut fds = [PollFd::new(&end.socket, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|count| count > 0)
}

/// Whether poll(2) says that nobody is left to send a frame; those sent before may still be there.
pub fn is_hung_up(flags: PollFlags) -> bool {
    flags.intersects(PollFlags::HUP | PollFlags::ERR)
}

impl KeeperEnd {
    /// Sends a frame. SIGPIPE must be blocked.
    ///
    /// # Errors
    /// EAGAIN if the front does not read and the socket is full. Others mean that it is dead, as its pidfd tells.
    pub fn send(&self, message: ToFront) -> Result<(), Errno> {
        retry_on_intr(|| write(&self.socket, &message.encode()))?;
        if matches!(message, ToFront::Stopped(_)) {
            self.has_told_stop.set(true);
        } else if self.has_told_stop.get() {
            // It is never full: a front that goes on has heard it.
            let _ = write(&self.bell, b"!");
        }
        Ok(())
    }

    /// Takes one frame; `None` when there is none, or nobody to send one any more.
    ///
    /// # Errors
    /// ENOMEM and others of read(2): whether there is one is not known.
    pub fn receive(&self) -> Result<Option<ToKeeper>, Errno> {
        Ok(receive(|frame| read(&self.socket, frame))?.and_then(ToKeeper::decode))
    }
}

fn receive(take: impl Fn(&mut Frame) -> Result<usize, Errno>) -> Result<Option<Frame>, Errno> {
    let mut frame = Frame::default();
    let mut receive = || retry_on_intr(|| take(&mut frame));
    let mut received = receive();
    // A peer that ended with a frame of ours unread leaves this error, once, in front of the frames that it sent.
    if received == Err(Errno::CONNRESET) {
        received = receive();
    }
    match received {
        // A longer message can't be: both ends are ours.
        Ok(length) => Ok((length == FRAME).then_some(frame)),
        Err(Errno::AGAIN | Errno::CONNRESET) => Ok(None),
        Err(errno) => Err(errno),
    }
}

impl AsFd for FrontEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsFd for KeeperEnd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_arrives_as_it_was_sent() {
        for sig in Sig::all() {
            for message in [ToFront::Stopped(sig), ToFront::Outcome { exit: Exit::Raise(sig), untidy: true }] {
                assert_eq!(ToFront::decode(message.encode()), Some(message));
            }
            for source in [Source::Process, Source::Terminal, Source::EarlyTerminal] {
                let message = ToKeeper::Signal { sig, source, stops: 255 };
                assert_eq!(ToKeeper::decode(message.encode()), Some(message));
            }
        }
        for message in [ToFront::Begun, ToFront::Continued, ToFront::Started, ToFront::Refused([1, 2, 3])] {
            assert_eq!(ToFront::decode(message.encode()), Some(message));
        }
        assert_eq!(ToKeeper::decode(ToKeeper::Admitted.encode()), Some(ToKeeper::Admitted));
        for stops in 0..=255 {
            let message = ToKeeper::Continued { stops };
            assert_eq!(ToKeeper::decode(message.encode()), Some(message));
        }
        for code in 0..=255 {
            let message = ToFront::Outcome { exit: Exit::Code(code), untidy: false };
            assert_eq!(ToFront::decode(message.encode()), Some(message));
        }
    }

    #[test]
    fn a_message_crosses_the_socket_and_a_closed_one_gives_none() {
        let (front, keeper) = pair().expect("a socket pair");
        assert_eq!(front.receive(), None);
        assert_eq!(front.peek(), None);
        let outcome = ToFront::Outcome { exit: Exit::Code(7), untidy: false };
        keeper.send(outcome).expect("room for a frame");
        drop(keeper);
        assert_eq!(front.peek(), Some(outcome));
        assert_eq!(front.receive(), Some(outcome), "a frame outlives its sender");
        assert_eq!(front.receive(), None);
    }

    #[test]
    fn what_tells_of_a_stop_does_not_ring_and_what_ends_it_does() {
        let (front, keeper) = pair().expect("a socket pair");
        let rings = || {
            let mut fds = [PollFd::from_borrowed_fd(front.bell(), PollFlags::IN)];
            poll(&mut fds, Some(&Timespec::default())).expect("a pipe can be asked") > 0
        };
        keeper.send(ToFront::Stopped(Sig::TSTP)).expect("room for a frame");
        assert!(!rings());
        keeper.send(ToFront::Continued).expect("room for a frame");
        assert!(rings());
        front.silence();
        assert!(!rings());
        drop(keeper);
        assert!(rings(), "nobody is left");
    }

    #[test]
    fn a_frame_that_the_other_end_never_read_hides_no_outcome() {
        let (front, keeper) = pair().expect("a socket pair");
        front.send(ToKeeper::Continued { stops: 0 }).expect("room for a frame");
        keeper.send(ToFront::Begun).expect("room for a frame");
        drop(keeper);
        assert_eq!(front.receive(), Some(ToFront::Begun));
    }
}
