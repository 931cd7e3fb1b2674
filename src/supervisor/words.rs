//! What the state machine is told, and what it answers.

use crate::outcome::{End, Failure};
use crate::signals::Sig;
use crate::wire::Source;

/// Something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The command could not be made to run; its process ends by itself.
    NotStarted(Failure),
    /// The command ended and was reaped.
    CommandEnded(End),
    /// Job control stopped the command.
    CommandStopped(Sig),
    /// The command went on.
    CommandContinued,
    /// It is proved that nothing of the tree is alive.
    Empty,
    /// SIGKILL was sent and the drain limit has passed, and something is alive.
    Survived,
    /// A signal reached one of us.
    Signal(Sig, Source),
    /// The front was killed: nobody is left to take an outcome.
    FrontDied,
    /// treekill-run can't go on: the command could not be born, or the deputy was killed.
    Broken,
    /// The caller died.
    ParentDied,
    /// The tree was looked at and had done something.
    Active,
    /// It had not.
    Idle,
    /// Who is kept running is no part of the tree any more.
    Kept,
    /// Time passed.
    Tick,
}

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Pass this signal on to the command alone.
    Relay(Sig),
    /// Look whether the tree does anything, and tell `Active` or `Idle`.
    Look,
    /// Find those who are kept running, put them outside of the tree, and tell `Kept`.
    Keep,
    /// The leftovers outlived their grace: note who they are.
    NoteLeftovers,
    /// A stop begins: list the tree and send this to its receivers, then SIGCONT.
    Stop(Sig, Receivers),
    /// Send this to those receivers of the first signal that still live.
    StopAgain(Sig),
    /// Send SIGTERM to those receivers of this signal that ignore it and still live, unless they have had one.
    AskDeaf(Sig),
    /// SIGKILL for all, then wait until the tree is empty or the drain limit has passed.
    Kill,
    /// Move what is alive out of the boundary.
    Release,
    /// Stop every process of the tree for job control.
    Suspend,
    /// The same unless the command does something else at this signal, which it gets then.
    SuspendByDefault(Sig),
    /// Continue every process of the tree.
    Resume,
    /// The terminal stopped the command: tell the front.
    TellStopped(Sig),
}

/// Who gets the first signal of a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receivers {
    /// Every process of the tree.
    Tree,
    /// Those of the tree in the command's process group.
    CommandsGroup,
    /// The command alone.
    Command,
    /// Those outside the command's group: the terminal has reached the others.
    NotCommandsGroup,
}
