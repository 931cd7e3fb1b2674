//! What treekill-run and the programs that one would take instead do: the table that README.md and the manual show. Each
//! of its cells is tried, by `trial`.
#![allow(dead_code, reason = "those who show the table and those who try it use different parts")]

/// treekill-run, and programs that run a command like it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Ours,
    Timeout,
    Tini,
    DumbInit,
    /// systemd-run(1), which becomes the command in a scope of its own.
    Scope,
    /// systemd-run(1), which waits for a service that the manager starts.
    Service,
    Bwrap,
    Unshare,
}

pub(crate) const PEERS: [Peer; 8] =
    [Peer::Ours, Peer::Timeout, Peer::Tini, Peer::DumbInit, Peer::Scope, Peer::Service, Peer::Bwrap, Peer::Unshare];

impl Peer {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Peer::Ours => "treekill-run",
            Peer::Timeout => "timeout",
            Peer::Tini => "tini",
            Peer::DumbInit => "dumb-init",
            Peer::Scope => "systemd-run --scope",
            Peer::Service => "systemd-run --pipe",
            Peer::Bwrap => "bwrap",
            Peer::Unshare => "unshare",
        }
    }

    /// The words in front of the command that let it hold on to most.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Peer::Ours => "treekill-run -t LIMIT -k GRACE",
            Peer::Timeout => "timeout -k GRACE LIMIT",
            Peer::Tini => "tini -s -g --",
            Peer::DumbInit => "dumb-init",
            Peer::Scope => "systemd-run --scope --collect -p RuntimeMaxSec=LIMIT -p TimeoutStopSec=GRACE",
            Peer::Service => "systemd-run --pipe --wait --collect -p RuntimeMaxSec=LIMIT -p TimeoutStopSec=GRACE",
            Peer::Bwrap => "bwrap --dev-bind / / --proc /proc --unshare-pid --die-with-parent",
            Peer::Unshare => "unshare --pid --fork --kill-child --mount-proc",
        }
    }

    /// The option by which the command gets a network of its own.
    pub(crate) fn network(self) -> Option<&'static str> {
        match self {
            Peer::Service => Some("-pPrivateNetwork=yes"),
            Peer::Bwrap => Some("--unshare-net"),
            Peer::Unshare => Some("--net"),
            _ => None,
        }
    }
}

/// What one may want of such a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    Limit,
    Asks,
    Group,
    Session,
    Daemon,
    Background,
    DaemonOfSuccess,
    Names,
    Killed,
    Status,
    Inherits,
    Job,
    Numbers,
    Bare,
    First,
    Network,
}

/// A row of the table: a wish, and who fulfils it.
pub(crate) struct Row {
    pub(crate) case: Case,
    pub(crate) wish: &'static str,
    pub(crate) by: &'static [Peer],
}

const fn row(case: Case, wish: &'static str, by: &'static [Peer]) -> Row {
    Row { case, wish, by }
}

pub(crate) const ROWS: [Row; 16] = {
    use Peer::{Bwrap, DumbInit, Ours, Scope, Service, Timeout, Tini, Unshare};
    [
        row(Case::Limit, "has a time limit, and a grace from SIGTERM to SIGKILL", &[Ours, Timeout, Scope, Service]),
        row(Case::Asks, "a stop asks the command by SIGTERM first", &[Ours, Timeout, Tini, DumbInit, Scope, Service]),
        row(
            Case::Group,
            "a stop ends a child that ignores SIGTERM, when the command does not",
            &[Ours, Scope, Service, Bwrap, Unshare],
        ),
        row(Case::Session, "a stop ends a child that called setsid(2)", &[Ours, Scope, Service, Bwrap, Unshare]),
        row(Case::Daemon, "a stop ends a daemon that forked twice", &[Ours, Scope, Service, Bwrap, Unshare]),
        row(Case::Background, "after a success, ends what was left with &", &[Ours, DumbInit, Service, Bwrap, Unshare]),
        row(Case::DaemonOfSuccess, "after a success, ends a daemon that was left", &[Ours, Service, Bwrap, Unshare]),
        row(Case::Names, "says what was left", &[Ours]),
        row(Case::Killed, "SIGKILL of it ends the tree", &[Ours, Bwrap, Unshare]),
        row(
            Case::Status,
            "the status is the command's, also of a death by signal",
            &[Ours, Timeout, Tini, DumbInit, Scope, Bwrap],
        ),
        row(
            Case::Inherits,
            "the command has the caller's environment and descriptors",
            &[Ours, Timeout, Tini, DumbInit, Scope, Bwrap, Unshare],
        ),
        row(Case::Job, "Ctrl-Z stops the command and gives the prompt", &[Ours, Timeout, DumbInit, Scope, Bwrap]),
        row(
            Case::Numbers,
            "the command sees the processes outside, by the same PIDs",
            &[Ours, Timeout, Tini, DumbInit, Scope, Service],
        ),
        row(Case::Bare, "needs no capabilities, user namespaces or systemd", &[Ours, Timeout, Tini, DumbInit]),
        row(Case::First, "as PID 1 of a container, reaps orphans and passes signals on", &[Ours, Tini, DumbInit]),
        row(Case::Network, "can keep the network from the command", &[Service, Bwrap, Unshare]),
    ]
};

/// Whether the table says so.
pub(crate) fn does(peer: Peer, case: Case) -> bool {
    ROWS.iter().any(|row| row.case == case && row.by.contains(&peer))
}
