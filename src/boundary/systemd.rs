//! A transient scope of systemd, for a process that may not make cgroups where it is: that of a login session, say.
//!
//! The scope is made around the process that is to be the keeper, or the deputy that forks it, and the command is born in
//! a leaf below, `run`: the scope's own cgroup vanishes the moment its last process ends, before anything could be read
//! there. Only a member of the scope can put a process into the leaf, cgroups(7); killing and removing is anybody's who
//! owns it.

mod bus;

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Pid, geteuid};

use super::cgroup::{Leaf, Limited, locate, random_hex};
use super::{Boundary, Counters, Hits, Occupancy};
use crate::plan::Plan;
use crate::signals::SigSet;
use crate::sys;
use crate::voice::{Why, cause, in_words, printable};
use bus::Unit;

pub use bus::NoScope;

/// A scope that can be asked for.
pub struct Offer {
    bus: OwnedFd,
    unit: Unit,
}

/// The name of the leaf in a scope.
const LEAF: &std::ffi::CStr = c"run";

/// How many characters of the command line a unit's description shows.
const SHOWN: usize = 200;

impl Offer {
    /// Finds a bus that listens; nothing is asked of it yet.
    ///
    /// # Errors
    /// Why there is none.
    // Not inlined, so that its stack is free again.
    #[inline(never)]
    pub(super) fn find(plan: &Plan, command: &[OsString]) -> Result<Offer, Why> {
        let bus = reach(&bus_socket())?;
        let hex = random_hex().map_err(|errno| cause(errno.raw_os_error()))?;
        let unit = Unit {
            name: format!("treekill-run-{hex}.scope"),
            description: describe(command),
            run_limit: plan.longest.run,
            stop_limit: plan.longest.stop,
            limits: plan.limits,
        };
        Ok(Offer { bus, unit })
    }

    /// What the scope will be called.
    pub fn name(&self) -> String {
        name(&self.unit.name)
    }

    /// Has systemd make the scope around this process, a child of ours that waits to be told of it, and makes the leaf.
    /// `ours` processes of our own will live in it. Blocks as long as systemd takes, within limits, or until one of the
    /// signals `ends` comes, which are blocked.
    ///
    /// # Errors
    /// Why there is none.
    pub fn around(self, first: Pid, ours: u64, ends: SigSet) -> Result<Box<dyn Boundary>, NoScope> {
        bus::start_scope(self.bus, &self.unit, first, ours, ends)?;
        Ok(Scope::open(&self.unit, &first.as_raw_pid().to_string())?)
    }

    /// The scope as the process knows it that it was made around, or a child of that one.
    ///
    /// # Errors
    /// Why its leaf can't be opened.
    pub fn inside(self) -> Result<Box<dyn Boundary>, Why> {
        Scope::open(&self.unit, "self")
    }
}

fn name(unit: &str) -> String {
    format!("systemd scope {unit}")
}

/// The command line as `systemctl status` shows it.
fn describe(command: &[OsString]) -> String {
    let words: Vec<String> = command.iter().map(|word| printable(&word.to_string_lossy())).collect();
    let line = words.join(" ");
    let more = if line.chars().nth(SHOWN).is_some() { "..." } else { "" };
    format!("treekill-run: {}{more}", line.chars().take(SHOWN).collect::<String>())
}

/// The bus that the manager of this user is on: root's is the system's.
fn bus_socket() -> PathBuf {
    let uid = geteuid();
    if uid.is_root() {
        return "/run/dbus/system_bus_socket".into();
    }
    let runtime = match std::env::var_os("XDG_RUNTIME_DIR") {
        // After su(1) it may be another user's.
        Some(path) if std::fs::metadata(&path).is_ok_and(|found| found.uid() == uid.as_raw()) => path.into(),
        _ => PathBuf::from(format!("/run/user/{}", uid.as_raw())),
    };
    runtime.join("bus")
}

/// Connects to a bus, without waiting.
fn reach(path: &Path) -> Result<OwnedFd, Why> {
    let shown = path.display();
    let failed = |errno: Errno| unreachable(path, errno, runs(), geteuid().is_root());
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(failed)?;
    connect(&socket, &address).map_err(failed)?;
    // It would take the number of our process for that of a stranger.
    match sys::peer(socket.as_fd()) {
        Ok(Some(_)) => Ok(socket),
        Ok(None) => Err(format!("the bus at {shown} is outside of this PID namespace").into()),
        Err(error) => Err(format!("cannot see who listens at {shown}: {}", in_words(&error)).into()),
    }
}

/// Whether systemd is this machine's init, sd_booted(3).
pub fn runs() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// Why a bus can't be connected to.
fn unreachable(path: &Path, errno: Errno, systemd_runs: bool, is_root: bool) -> Why {
    let cause = format!("cannot connect to {}: {}", path.display(), cause(errno.raw_os_error()));
    match errno {
        Errno::NOENT | Errno::CONNREFUSED if !systemd_runs => "it does not run here".into(),
        Errno::NOENT | Errno::CONNREFUSED if is_root => Why::new(cause, "systemd is asked over D-Bus: install dbus"),
        Errno::NOENT | Errno::CONNREFUSED => {
            Why::new(cause, "`loginctl enable-linger` gives this user a systemd of its own")
        }
        _ => cause.into(),
    }
}

/// A scope that a keeper is in.
struct Scope {
    unit: String,
    leaf: Leaf,
    limited: Option<Limited>,
}

impl Scope {
    /// Opens the leaf of the scope that this process, by its name in /proc, must be in by now.
    fn open(unit: &Unit, process: &str) -> Result<Box<dyn Boundary>, Why> {
        let place = locate::cgroup_of(process)?;
        // With cgroup v1 systemd keeps its units elsewhere; a foreign /proc shows a stranger.
        if Path::new(&place).file_name().is_none_or(|name| name != &*unit.name) {
            return Err(format!("systemd has made {}, but no cgroup v2 for it: {place}", unit.name).into());
        }
        let limited = if unit.limits.is_none() { None } else { Some(Limited::given(unit.limits, &place)?) };
        Ok(Box::new(Scope { unit: unit.name.clone(), leaf: Leaf::share(&place, LEAF)?, limited }))
    }
}

impl Boundary for Scope {
    fn name(&self) -> String {
        name(&self.unit)
    }

    fn birthplace(&self) -> Option<BorrowedFd<'_>> {
        self.leaf.birthplace()
    }

    fn entrance(&self) -> io::Result<OwnedFd> {
        self.leaf.entrance()
    }

    fn members(&self) -> io::Result<Vec<Pid>> {
        self.leaf.members()
    }

    fn kill(&self) -> io::Result<()> {
        self.leaf.kill()
    }

    /// The limits are the scope's, and their counters with them.
    fn remove(&self) -> io::Result<Occupancy> {
        if let Some(limited) = &self.limited {
            limited.look_at_home();
        }
        self.leaf.remove()
    }

    fn events(&self) -> Option<BorrowedFd<'_>> {
        self.leaf.events()
    }

    /// They come to where the keeper lives, and stay in the scope: nobody in it may move a process to where the caller lives.
    /// The scope ends with its last process.
    fn release(&self, is_chosen: &dyn Fn(Pid) -> bool) -> io::Result<Vec<Pid>> {
        self.leaf.release(is_chosen)
    }

    /// Those of the leaf: the scope's own would count us as well.
    fn count(&self) {
        self.leaf.count();
    }

    fn counters(&self) -> Counters {
        self.leaf.counters()
    }

    fn hits(&self) -> Hits {
        self.limited.as_ref().map(Limited::hits).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_systemd_does_not_run_nobody_is_told_to_ask_it_for_more() {
        let told = |systemd_runs, is_root| {
            unreachable("/run/user/1000/bus".as_ref(), Errno::NOENT, systemd_runs, is_root).to_string()
        };
        for is_root in [true, false] {
            assert_eq!(told(false, is_root), "it does not run here");
        }
        assert!(told(true, false).ends_with("; `loginctl enable-linger` gives this user a systemd of its own"));
        assert!(!told(true, true).contains("linger"));
    }

    #[test]
    fn a_description_is_one_harmless_line_of_bounded_length() {
        assert_eq!(
            describe(&["sh".into(), "-c".into(), "a\n\x1b[1m b".into()]),
            "treekill-run: sh -c a\\n\\u{1b}[1m b"
        );
        let long = describe(&["é".repeat(1000).into()]);
        assert_eq!(long.chars().count(), "treekill-run: ".len() + SHOWN + 3);
    }
}
