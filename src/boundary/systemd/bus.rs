//! Asking systemd for a scope. A child of the front speaks D-Bus, since the library starts threads, and none may be in a
//! process that forks; it is gone before the command starts, whatever systemd does.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::PanicHookInfo;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open, set_parent_process_death_signal};
use zbus::MatchRule;
use zbus::blocking::{MessageIterator, connection};
use zbus::message::Type;
use zbus::zvariant::{Fd, OwnedObjectPath, Value};

use crate::limits::Limits;
use crate::outcome::FAILED;
use crate::signals::{Sig, SigSet};
use crate::sys::{self, Disposition, Fork};
use crate::voice::{Why, in_words};

/// What systemd is to make.
pub(super) struct Unit {
    /// Its name, with `.scope`.
    pub(super) name: String,
    /// What is shown of it.
    pub(super) description: String,
    /// When systemd stops it at the latest; `None` is never.
    pub(super) run_limit: Option<Duration>,
    /// When systemd kills it after it has begun to stop it; `None` leaves its own default.
    pub(super) stop_limit: Option<Duration>,
    /// What the tree may use.
    pub(super) limits: Limits,
}

/// How long systemd has for all of it.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a scope that was asked for may keep us from ending by a signal.
const FATE: Duration = Duration::from_secs(1);

/// What the child says before it asks for the scope.
const ASKING: u8 = b'?';
/// What it says then when the scope is there; anything else is a reason why it is not.
const DONE: &str = "done";
/// A longer reason is cut.
const LONGEST: usize = 2048;

/// Why there is no scope.
pub enum NoScope {
    /// It can't be had.
    Refused(Why),
    /// This signal came, which ends the run before there is a command.
    Signal(Sig),
}

impl From<Why> for NoScope {
    fn from(why: Why) -> NoScope {
        NoScope::Refused(why)
    }
}

impl From<String> for NoScope {
    fn from(cause: String) -> NoScope {
        NoScope::Refused(cause.into())
    }
}

/// Makes the unit, with this child of ours as its first process, and waits until it is there. Blocks for at most
/// `PATIENCE`, and if one of the signals `ends` comes, no longer than what was asked for needs, or `FATE`.
///
/// From the moment of the request until its fate is known, the process must live: systemd takes one that is dying or a
/// zombie for a member, and of a scope that was never populated the kernel never says that it is empty. Hence the child
/// that asks goes on when the front is killed, and the process waits for its end (`is_admitted`). Nobody waits for a
/// systemd that takes longer than that: it finds the process gone and refuses.
///
/// # Errors
/// Why it is not there.
pub(super) fn start_scope(bus: OwnedFd, unit: &Unit, first: Pid, own: u64, ends: SigSet) -> Result<(), NoScope> {
    let failed = |error: std::io::Error| format!("cannot ask systemd: {}", in_words(&error));
    let process = pidfd_open(first, PidfdFlags::empty()).map_err(|errno| failed(errno.into()))?;
    let signals = sys::signal_descriptor(ends).map_err(failed)?;
    let (answer, ours) = UnixStream::pair().map_err(failed)?;
    let front = sys::own_pid();
    match sys::fork().map_err(failed)? {
        Fork::Child => {
            sys::die_with_thread_that_forked();
            // A front that died before the line above will never make the kernel send that signal.
            if getppid() == Some(front) {
                drop((answer, signals));
                end_in_time();
                let ours = Arc::new(ours);
                answer_panics(ours.clone());
                let said = call(UnixStream::from(bus), unit, &Member { pid: first, pidfd: process, own }, &ours);
                let text = said.map_or_else(|error| in_one_line(&error), |()| DONE.to_owned());
                let _ = (&*ours).write_all(text.as_bytes());
            }
            sys::exit_now(FAILED)
        }
        Fork::Parent(child) => {
            drop((bus, ours));
            let heard = hear(&answer, signals.as_fd());
            if let Heard::Signal(_, said) = &heard {
                await_fate(&answer, said.clone());
            }
            // It has nothing more to say, or no more time to say it.
            sys::signal_child(child, Sig::KILL);
            sys::reap_at_its_end(child);
            match heard {
                Heard::Signal(sig, _) => Err(NoScope::Signal(sig)),
                Heard::Nothing => Err(format!("systemd does not answer within {} s", PATIENCE.as_secs()).into()),
                Heard::Words(said) => match said.trim_start_matches(char::from(ASKING)) {
                    DONE => Ok(()),
                    "" => Err("the process that asked systemd was killed".to_owned().into()),
                    why => Err(format!("systemd makes no scope: {why}").into()),
                },
            }
        }
    }
}

/// Who is to be the first in the scope.
struct Member {
    pid: Pid,
    pidfd: OwnedFd,
    /// How many processes of our own there will be.
    own: u64,
}

/// Has the kernel end this process should nobody else do that: a little later than the front would, alarm(2).
fn end_in_time() {
    sys::set_disposition(Sig::ALRM, Disposition::Default);
    sys::set_mask(SigSet::ALL.without([Sig::ALRM].into_iter().collect()));
    nix::unistd::alarm::set(u32::try_from(PATIENCE.as_secs()).expect("seconds") + 1);
}

/// The library panics where it can't start a thread, for one. That is a reason like others, and neither a mess on the
/// user's stderr nor a core.
fn answer_panics(ours: Arc<UnixStream>) {
    let say = move |panic: &PanicHookInfo<'_>| {
        let text = panic.payload().downcast_ref::<String>().map(String::as_str);
        let _ = (&*ours)
            .write_all(text.or_else(|| panic.payload().downcast_ref().copied()).unwrap_or("a panic").as_bytes());
        sys::exit_now(FAILED)
    };
    std::panic::set_hook(Box::new(say));
}

/// What the front has heard.
enum Heard {
    /// All that the child had to say.
    Words(String),
    /// A signal that ends the run, and what the child had said before.
    Signal(Sig, Vec<u8>),
    /// Too little in all the time.
    Nothing,
}

/// Listens to the child until it ends, a signal comes, or that takes too long.
fn hear(answer: &UnixStream, signals: BorrowedFd<'_>) -> Heard {
    let deadline = sys::now() + PATIENCE;
    let mut said = vec![];
    let mut piece = [0; LONGEST];
    loop {
        let Some(left) = deadline.checked_sub(sys::now()) else { return Heard::Nothing };
        let mut fds = [PollFd::new(answer, PollFlags::IN), PollFd::from_borrowed_fd(signals, PollFlags::IN)];
        let _ = poll(&mut fds, Some(&Timespec::try_from(left).expect("seconds")));
        if !fds[0].revents().is_empty() {
            match rustix::io::read(answer, &mut piece) {
                Ok(0) | Err(_) => return Heard::Words(String::from_utf8_lossy(&said).into_owned()),
                Ok(length) => said.extend_from_slice(&piece[..length.min(LONGEST - said.len())]),
            }
        } else if !fds[1].revents().is_empty() {
            // Our own are of writes to a closed pipe, or beyond a limit of file size.
            let own = sys::own_pid().as_raw_pid().unsigned_abs();
            // What can't be read stays there for whoever needs it more.
            let taken = sys::read_signals(signals).unwrap_or_default();
            if let Some(incoming) = taken.into_iter().find(|incoming| incoming.pid != own) {
                return Heard::Signal(incoming.sig, said);
            }
        }
    }
}

/// Keeps the child from asking from now on; if it has asked, waits for its end, for a while.
fn await_fate(answer: &UnixStream, mut said: Vec<u8>) {
    // What the child says from here on fails, unix(7), and it says that it will ask before it does.
    let _ = answer.shutdown(Shutdown::Read);
    let _ = (&*answer).read_to_end(&mut said);
    if said.contains(&ASKING) {
        // Nothing but the hang-up is waited for, which is always reported, poll(2).
        let _ =
            poll(&mut [PollFd::new(answer, PollFlags::empty())], Some(&Timespec::try_from(FATE).expect("a second")));
    }
}

const SYSTEMD: &str = "org.freedesktop.systemd1";
const MANAGER: &str = "/org/freedesktop/systemd1";
const INTERFACE: &str = "org.freedesktop.systemd1.Manager";

/// What systemd says to a property that it does not know.
const UNKNOWN_PROPERTY: &str = "org.freedesktop.DBus.Error.PropertyReadOnly";

/// Calls StartTransientUnit and waits for the end of its job, org.freedesktop.systemd1(5).
fn call(bus: UnixStream, unit: &Unit, member: &Member, mut front: &UnixStream) -> zbus::Result<()> {
    let connection = connection::Builder::async_io_unix_stream(bus).build()?;
    let ends = MatchRule::builder().msg_type(Type::Signal).path(MANAGER)?.interface(INTERFACE)?.member("JobRemoved")?;
    // The third argument is the unit's name; what becomes of others would only fill the queue.
    let ends = ends.arg(2, &*unit.name)?.build();
    // Before the call, so that its end is not missed; without subscribers systemd tells of none.
    let mut ends = MessageIterator::for_match_rule(ends, &connection, None)?;
    connection.call_method(Some(SYSTEMD), MANAGER, Some(INTERFACE), "Subscribe", &())?;
    // Fails if the front is dead or wants no scope any more.
    front.write_all(&[ASKING])?;
    // The front may die now, but not we, before the fate of what we ask for is known.
    let _ = set_parent_process_death_signal(None);
    let no_others: [(&str, Vec<(&str, Value<'_>)>); 0] = [];
    let ask = |who| {
        let request = (&*unit.name, "fail", unit.properties(who, member.own), &no_others[..]);
        connection.call_method(Some(SYSTEMD), MANAGER, Some(INTERFACE), "StartTransientUnit", &request).map(drop)
    };
    // By a descriptor, since the number may be a stranger's by the time that a slow systemd looks.
    match ask(("PIDFDs", Value::from(vec![Fd::from(&member.pidfd)]))) {
        Err(zbus::Error::MethodError(name, ..)) if name.as_str() == UNKNOWN_PROPERTY => {
            ask(("PIDs", Value::from(vec![member.pid.as_raw_pid().unsigned_abs()])))?;
        }
        asked => asked?,
    }
    let end = ends.next().ok_or_else(|| zbus::Error::Failure("the bus has closed the connection".into()))??;
    let (_, _, _, result): (u32, OwnedObjectPath, String, String) = end.body().deserialize()?;
    if result != "done" {
        return Err(zbus::Error::Failure(format!("its job ended as '{result}'")));
    }
    if member.has_ended() {
        // Perhaps before systemd moved it: then the scope would stay, and nothing else can be in it.
        connection.call_method(Some(SYSTEMD), MANAGER, Some(INTERFACE), "StopUnit", &(&*unit.name, "fail"))?;
        return Err(zbus::Error::Failure("the process that was to be in it was killed".into()));
    }
    Ok(())
}

impl Member {
    fn has_ended(&self) -> bool {
        poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&Timespec::default())).is_ok_and(|count| count > 0)
    }
}

impl Unit {
    /// The properties of systemd.scope(5) and systemd.resource-control(5) that the unit is made with.
    fn properties<'a>(&'a self, who: (&'static str, Value<'a>), own_processes: u64) -> Vec<(&'static str, Value<'a>)> {
        let mut properties = vec![
            ("Description", Value::from(&*self.description)),
            who,
            // The cgroups below are ours to make, and systemd lets them be.
            ("Delegate", Value::from(true)),
            // One that failed is forgotten too.
            ("CollectMode", Value::from("inactive-or-failed")),
            // We are counted too. Without a word systemd would give the tree a limit that it had not without us.
            ("TasksMax", Value::from(self.limits.pids.map_or(u64::MAX, |pids| pids.saturating_add(own_processes)))),
        ];
        if let Some(bytes) = self.limits.memory {
            properties.push(("MemoryMax", Value::from(bytes)));
        }
        if let Some(percent) = self.limits.cpu {
            properties.push(("CPUQuotaPerSecUSec", Value::from(u64::from(percent) * 10_000)));
        }
        let limits = [("RuntimeMaxUSec", self.run_limit), ("TimeoutStopUSec", self.stop_limit)];
        for (name, limit) in limits {
            if let Some(limit) = limit.and_then(|limit| u64::try_from(limit.as_micros()).ok()) {
                properties.push((name, Value::from(limit)));
            }
        }
        properties
    }
}

fn in_one_line(error: &zbus::Error) -> String {
    match error {
        zbus::Error::Failure(why) | zbus::Error::MethodError(_, Some(why), _) => why.clone(),
        zbus::Error::InputOutput(error) => in_words(error),
        error => error.to_string(),
    }
}
