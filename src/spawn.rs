//! The birth of the command: everything is prepared before it; the child makes system calls only. The keeper runs it. It
//! never blocks on the birth: errors of the child come over a pipe that closes when exec succeeds.

mod program;

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::libc;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, getppid, setpgid, setsid};

use crate::boundary::{self, Boundary, Refused};
use crate::sys::{self, Disposition, Handed, Inherited, Memory, Nursery};
pub use program::{Program, place};

/// Where and how the command is born.
pub struct Birth<'a> {
    /// The state it gets back.
    pub inherited: Inherited,
    /// The process group it joins in the caller's session; `None` gives it a session of its own.
    pub join_group: Option<Pid>,
    /// Instead it gets a group of its own in the keeper's session and leads neither, as below GNU timeout: setsid(1) and
    /// setpgid(2) do what they do in a script. The tree shares the keeper's autogroup then, sched(7), and the kernel looks
    /// through the group at each end of a child of the keeper's: thousands take several times as long to end. The keeper has
    /// the caller's session then, unless that has a terminal.
    pub founds_group: bool,
    /// SIGKILL of the keeper kills it at once.
    pub dies_with_keeper: bool,
    /// It may not gain privileges.
    pub no_new_privs: bool,
    /// What it has of the keeper before exec.
    pub memory: Memory,
    /// The net it is born in.
    pub boundary: &'a dyn Boundary,
}

/// A command that was born.
pub struct Command {
    /// Its pid, ours until we reap it.
    pub pid: Pid,
    /// Its pidfd.
    pub pidfd: OwnedFd,
    /// The process group that it is to be in.
    pub group: Pid,
    /// Tells how exec went, until that is known.
    pub news: Option<OwnedFd>,
    /// Whether it could be put there from here.
    placed: Result<(), Errno>,
    /// Lets it go on to exec, where it waits for that.
    gate: Option<OwnedFd>,
}

/// What the child could not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Enter its cgroup, with this errno.
    Cgroup(i32),
    /// Show its own namespace in /proc.
    Namespace(Refused),
    /// Take its place in the session, with this errno.
    Session(i32),
    /// Become the program, with this errno.
    Exec(i32),
}

/// How exec went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// The program runs, or was killed before it could.
    Gone,
    /// It does not run.
    Trouble(Trouble),
    /// Not known yet.
    Pending,
}

/// The child between birth and exec. It may share the keeper's memory, so that all it uses is its own.
struct Child {
    program: Program,
    inherited: Inherited,
    join_group: Option<Pid>,
    dies_with_keeper: bool,
    no_new_privs: bool,
    keeper: Pid,
    entry: Entry,
    /// The two ends of a pipe at which it waits before exec, and so until the keeper lets it go or is dead.
    gate: Option<(Handed, Handed)>,
    errors: Handed,
}

/// How the child comes to be where it belongs.
#[derive(Clone, Copy)]
enum Entry {
    /// It is born there.
    Born,
    /// It moves itself into a cgroup by this file.
    Cgroup(Handed),
    /// It is born in a PID namespace and lacks a /proc that shows it; its process group has no number in there, and its
    /// parent none either, but this pidfd.
    Namespace(Handed),
}

/// Starts the program.
///
/// # Errors
/// EAGAIN, ENOMEM, EMFILE as of clone(2) and pipe(2); EACCES and others where the cgroup takes no process.
// Not inlined, so that its stack is free again.
#[inline(never)]
pub fn spawn(program: Program, birth: &Birth<'_>) -> io::Result<Command> {
    let (news, errors) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let namespace = birth.boundary.namespace();
    // In terminal mode the keeper is still in the group that the command joins, and has to leave it first.
    let needs_gate = namespace.is_some() || birth.join_group.is_some();
    let gate = needs_gate.then(|| pipe_with(PipeFlags::CLOEXEC)).transpose()?;
    let nursery = Nursery::new(birth.memory)?;
    let mut founder = if birth.founds_group { nursery.found_group().ok() } else { None };
    let child = Child {
        program,
        inherited: birth.inherited,
        join_group: birth.join_group.or(founder),
        dies_with_keeper: birth.dies_with_keeper,
        no_new_privs: birth.no_new_privs,
        keeper: sys::own_pid(),
        entry: namespace.map_or(Entry::Born, |namespace| Entry::Namespace(Handed::new(namespace.keeper()))),
        gate: gate.as_ref().map(|(waiting, opening)| (Handed::new(waiting.as_fd()), Handed::new(opening.as_fd()))),
        errors: Handed::new(errors.as_fd()),
    };
    let mut born = bear(&nursery, birth.boundary, child);
    if let Some(group) = founder {
        // Each of the two puts it there: one that is beyond exec is no longer to be put from here.
        let _ = born.as_ref().map(|(pid, _)| setpgid(Some(*pid), Some(group)));
        sys::reap_at_its_end(group);
        born = match born {
            // There may be room for one.
            Err((error, child)) if error.raw_os_error() == Some(libc::EAGAIN) => {
                founder = None;
                bear(&nursery, birth.boundary, Child { join_group: None, ..child })
            }
            born => born,
        };
    }
    let (pid, pidfd) = born.map_err(|(error, _)| error)?;
    let group = birth.join_group.or(founder).unwrap_or(pid);
    // As long as the keeper is in the same session.
    let placed = match (namespace, birth.join_group) {
        (Some(_), Some(group)) => setpgid(Some(pid), Some(group)),
        _ => Ok(()),
    };
    Ok(Command { pid, pidfd, group, placed, news: Some(news), gate: gate.map(|(_, opening)| opening) })
}

/// Clones the child in the boundary. It comes back with an error, to be tried again in another way.
#[expect(clippy::result_large_err, reason = "it is moved once, in a case of errors")]
fn bear(nursery: &Nursery, boundary: &dyn Boundary, child: Child) -> Result<(Pid, OwnedFd), (io::Error, Child)> {
    let birthplace = boundary.birthplace();
    match nursery.spawn(birthplace, child, Child::live) {
        // clone3 is too old, or a container's seccomp filter refuses it: the child moves itself before exec.
        Err((error, child))
            if birthplace.is_some()
                && matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM | libc::EINVAL)) =>
        {
            let procs = match boundary.entrance() {
                Ok(procs) => procs,
                Err(error) => return Err((error, child)),
            };
            let child = Child { entry: Entry::Cgroup(Handed::new(procs.as_fd())), ..child };
            nursery.spawn(None, child, Child::live)
        }
        born => born,
    }
}

/// Waits until the keeper is where it belongs, and this process in its group if it can't join that itself.
fn wait_at(gate: Handed) -> Result<(), Errno> {
    let mut errno = [0; 4];
    if rustix::io::read(gate, &mut errno)? == 0 {
        return Err(Errno::PIPE);
    }
    match i32::from_ne_bytes(errno) {
        0 => Ok(()),
        errno => Err(Errno::from_raw_os_error(errno)),
    }
}

impl Child {
    /// System calls only.
    fn live(mut self) -> ! {
        if self.dies_with_keeper {
            sys::die_with_thread_that_forked();
            // A keeper that died before the line above will never make the kernel send that signal.
            if self.is_orphan() {
                sys::exit_now(crate::outcome::FAILED);
            }
        }
        if let Err(trouble) = self.take_place() {
            self.fail(trouble);
        }
        if self.no_new_privs {
            // Can't fail since Linux 3.5, prctl(2).
            let _ = rustix::thread::set_no_new_privs(true);
        }
        // exec resets handlers, and no other disposition was touched.
        for sig in sys::CHANGED {
            let ignored = self.inherited.ignored.contains(sig);
            sys::set_disposition(sig, if ignored { Disposition::Ignore } else { Disposition::Default });
        }
        for (fd, was_closed) in (0..).zip(self.inherited.closed) {
            if was_closed {
                sys::close_standard_stream(fd);
            }
        }
        // Last: from here on a signal that was already sent to us acts as it will on the program.
        sys::set_mask(self.inherited.mask);
        let errno = self.program.exec();
        self.fail(Trouble::Exec(errno))
    }

    fn fail(&self, trouble: Trouble) -> ! {
        // The pipe is empty and holds more than this; if the keeper is gone nobody wants to know.
        let _ = rustix::io::write(self.errors, &trouble.encode());
        sys::exit_now(crate::outcome::FAILED)
    }

    fn is_orphan(&self) -> bool {
        match self.entry {
            Entry::Namespace(keeper) => sys::has_exited(keeper.as_fd()),
            Entry::Born | Entry::Cgroup(_) => getppid() != Some(self.keeper),
        }
    }

    /// Goes to where it belongs.
    fn take_place(&self) -> Result<(), Trouble> {
        match self.entry {
            Entry::Born => {}
            Entry::Cgroup(procs) => {
                rustix::io::write(procs, b"0").map_err(|errno| Trouble::Cgroup(errno.raw_os_error()))?;
            }
            Entry::Namespace(_) => {
                boundary::show_own_namespace().map_err(Trouble::Namespace)?;
            }
        }
        let joined = match (self.join_group, self.entry) {
            // The keeper does it, from outside.
            (Some(_), Entry::Namespace(_)) => Ok(()),
            (Some(group), _) if self.gate.is_some() => setpgid(None, Some(group)),
            // A filter of system calls may refuse the one and not the other.
            (Some(founder), _) => setpgid(None, Some(founder)).or_else(|_| setsid().map(drop)),
            (None, _) => setsid().map(drop),
        };
        let placed = joined.and_then(|()| {
            let Some((gate, opening)) = self.gate else { return Ok(()) };
            // So that it is at its end when the keeper has closed it without a word.
            opening.close();
            wait_at(gate)
        });
        placed.map_err(|errno| Trouble::Session(errno.raw_os_error()))
    }
}

impl Command {
    /// Lets it go on to exec, once the keeper is where it belongs.
    pub fn let_go(&mut self) {
        let Some(gate) = self.gate.take() else { return };
        // An empty pipe takes this without blocking; a child that was killed does not read it.
        let _ = rustix::io::write(&gate, &self.placed.map_or_else(Errno::raw_os_error, |()| 0).to_ne_bytes());
    }

    /// Whether exec has succeeded or failed, once; never blocks. A stop that finds all other descriptors taken has that
    /// of the pipe then.
    pub fn take_news(&mut self) -> News {
        let Some(pipe) = self.news.take() else { return News::Pending };
        let mut frame = [0; Trouble::FRAME];
        match rustix::io::read(&pipe, &mut frame) {
            Ok(Trouble::FRAME) => Trouble::decode(frame).map_or(News::Gone, News::Trouble),
            Ok(_) => News::Gone,
            Err(_) => {
                self.news = Some(pipe);
                News::Pending
            }
        }
    }
}

impl Trouble {
    const FRAME: usize = 5;

    fn encode(self) -> [u8; Trouble::FRAME] {
        let (kind, detail) = match self {
            Trouble::Cgroup(errno) => (b'c', errno.to_ne_bytes()),
            Trouble::Namespace(refused) => {
                let [a, b, c] = refused.to_bytes();
                (b'n', [a, b, c, 0])
            }
            Trouble::Session(errno) => (b's', errno.to_ne_bytes()),
            Trouble::Exec(errno) => (b'x', errno.to_ne_bytes()),
        };
        let [a, b, c, d] = detail;
        [kind, a, b, c, d]
    }

    fn decode([kind, a, b, c, d]: [u8; Trouble::FRAME]) -> Option<Trouble> {
        let errno = i32::from_ne_bytes([a, b, c, d]);
        match kind {
            b'c' => Some(Trouble::Cgroup(errno)),
            b'n' => Refused::from_bytes([a, b, c]).map(Trouble::Namespace),
            b's' => Some(Trouble::Session(errno)),
            b'x' => Some(Trouble::Exec(errno)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_is_told_as_it_was() {
        for trouble in [Trouble::Cgroup(1), Trouble::Session(-1), Trouble::Exec(i32::MAX)] {
            assert_eq!(Trouble::decode(trouble.encode()), Some(trouble));
        }
    }
}
