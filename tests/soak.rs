//! Runs of every kind, again and again: afterwards the machine and the process that started them have as many processes,
//! descriptors, cgroups, mounts, files, bytes and units as before.
//!
//! `TREEKILL_SOAK_SECONDS` says how long; the figures are one line.

mod common;

use std::fmt;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use common::running::open_process;
use common::{BOUND, Backend, Nest, Scratch, fixture, kin, needs, sys, systemd, wrapper};
use rustix::process::{Pid, Signal, WaitOptions, pidfd_send_signal, set_child_subreaper, setsid};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};

/// What there is of everything that a run could leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Census {
    processes: i64,
    /// Of the process that starts the runs.
    descriptors: i64,
    /// Of a command.
    inherited: i64,
    /// Those that were removed and that the kernel still keeps are counted too.
    cgroups: i64,
    mounts: i64,
    files: i64,
    bytes: i64,
    units: i64,
}

impl Census {
    fn since(self, before: Census) -> Census {
        Census {
            processes: self.processes - before.processes,
            descriptors: self.descriptors - before.descriptors,
            inherited: self.inherited - before.inherited,
            cgroups: self.cgroups - before.cgroups,
            mounts: self.mounts - before.mounts,
            files: self.files - before.files,
            bytes: self.bytes - before.bytes,
            units: self.units - before.units,
        }
    }
}

impl fmt::Display for Census {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Census { processes, descriptors, inherited, cgroups, mounts, files, bytes, units } = self;
        write!(f, "processes {processes:+}, descriptors {descriptors:+}, inherited descriptors {inherited:+}, ")?;
        write!(f, "cgroups {cgroups:+}, mounts {mounts:+}, files {files:+}, bytes {bytes:+}, units {units:+}")
    }
}

/// What one has open the other would count.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Where the runs are, and where what they leave would be.
struct Place {
    nest: Option<Nest>,
    scratch: Scratch,
    /// What a command finds open is counted under this backend.
    backend: Backend,
}

impl Place {
    fn new(backend: Backend) -> Place {
        Place { nest: Nest::new(), scratch: Scratch::new(), backend }
    }

    /// The wrapper with these words, in a session of its own.
    fn command<S: AsRef<std::ffi::OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(wrapper());
        command.args(words).env("TMPDIR", self.scratch.path()).current_dir(self.scratch.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        if let Some(nest) = &self.nest {
            nest.receive(&mut command);
        }
        sys::before_exec(&mut command, || Ok(setsid().map(drop)?));
        command
    }

    /// The wrapper with these options around the fixture with these steps.
    fn fixture(&self, backend: Backend, options: &str, steps: &str) -> Command {
        let fixture = fixture().to_string_lossy().into_owned();
        let words = ["--backend", backend.name()].into_iter().chain(options.split_whitespace());
        self.command(words.chain(["--", &fixture]).chain(steps.split_whitespace()))
    }

    fn census(&self) -> Census {
        Census { inherited: self.inherited(), ..self.census_without_a_run() }
    }

    /// The kernel keeps the leaf of a run for a moment longer.
    fn census_without_a_run(&self) -> Census {
        reap_orphans();
        let files = self.files();
        let sizes = files.iter().filter_map(|path| fs::symlink_metadata(path).ok()).map(|data| data.len());
        Census {
            processes: count(&kin_of_this()) + self.nest.as_ref().map_or(0, |nest| count(&nest.members())),
            descriptors: fs::read_dir("/proc/self/fd").map_or(0, |list| count(&list.collect::<Vec<_>>())),
            inherited: 0,
            cgroups: self.nest.as_ref().map_or(0, |nest| cgroups_in(nest.path())),
            mounts: fs::read_to_string("/proc/self/mountinfo")
                .map_or(0, |text| count(&text.lines().collect::<Vec<_>>())),
            bytes: i64::try_from(sizes.sum::<u64>()).unwrap_or(i64::MAX),
            files: count(&files),
            units: units(),
        }
    }

    /// What a command of the wrapper's finds open.
    fn inherited(&self) -> i64 {
        let output = run(self.command(["--backend", self.backend.name(), "sh", "-c", "echo /proc/self/fd/*"]));
        count(&String::from_utf8_lossy(&output.1).split_whitespace().collect::<Vec<_>>())
    }

    /// All files of the runs' own folder for such, and what has our name where programs leave things.
    fn files(&self) -> Vec<PathBuf> {
        let mut found = vec![];
        list(self.scratch.path(), &|_| true, &mut found);
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let folders = ["/run", "/dev/shm"].into_iter().map(PathBuf::from).chain(runtime);
        for folder in folders {
            list(&folder, &|name| name.contains("treekill-run"), &mut found);
        }
        found.sort();
        found.dedup();
        found
    }
}

/// Files and folders whose names are wanted, a few levels deep.
fn list(folder: &Path, is_wanted: &dyn Fn(&str) -> bool, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if is_wanted(&entry.file_name().to_string_lossy()) {
            found.push(path.clone());
        }
        if path.components().count() < 5 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            list(&path, is_wanted, found);
        }
    }
}

fn count<T>(list: &[T]) -> i64 {
    i64::try_from(list.len()).unwrap_or(i64::MAX)
}

/// Children of this process, whichever thread has started them.
fn kin_of_this() -> Vec<u32> {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = threads.map(|thread| fs::read_to_string(thread.path().join("children")).unwrap_or_default());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<u32>>()).collect()
}

/// The keeper of a front that was killed is ours, and ends.
fn reap_orphans() {
    while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
}

/// How many are below this one, and how many the kernel still keeps of those that were removed.
fn cgroups_in(path: &Path) -> i64 {
    let stat = fs::read_to_string(path.join("cgroup.stat")).unwrap_or_default();
    let numbers =
        stat.lines().filter(|line| line.starts_with("nr_descendants") || line.starts_with("nr_dying_descendants"));
    numbers.filter_map(|line| line.split(' ').nth(1)?.parse::<i64>().ok()).sum()
}

/// Scopes of ours, where there is a systemd to have them.
fn units() -> i64 {
    if systemd::is_reachable().is_err() {
        return 0;
    }
    let list = systemd::systemctl(&["list-units", "--all", "--plain", "--no-legend", "treekill-run-*.scope"]);
    count(&list.lines().collect::<Vec<_>>())
}

/// Runs it to its end; gives status and stdout.
fn run(command: Command) -> (ExitStatus, Vec<u8>) {
    let (mut child, _) = start(command, false);
    let mut text = vec![];
    // Its end is that of all who hold it.
    child.stdout.take().expect("it was asked for").read_to_end(&mut text).expect("a pipe can be read");
    (child.wait().expect("it is our child"), text)
}

/// Starts it, and waits until its tree says that it is ready if it is to.
fn start(mut command: Command, is_to_be_ready: bool) -> (Child, OwnedFd) {
    let mut child = {
        let _forking = sys::forking();
        command.spawn().expect("the wrapper can be started")
    };
    if is_to_be_ready {
        let mut word = [0; 5];
        child.stdout.as_mut().expect("it was asked for").read_exact(&mut word).expect("the tree says that it is there");
        assert_eq!(&word, b"ready");
    }
    let pidfd = open_process(child.id()).expect("our unreaped child has a pidfd");
    (child, pidfd)
}

/// Ends a run in some way and waits until all its processes are dead.
fn ended_by(command: Command, end: impl FnOnce(&OwnedFd, u32)) -> ExitStatus {
    let (mut child, pidfd) = start(command, true);
    end(&pidfd, child.id());
    let mut rest = vec![];
    child.stdout.take().expect("it was asked for").read_to_end(&mut rest).expect("a pipe can be read");
    child.wait().expect("it is our child")
}

#[track_caller]
fn is(status: ExitStatus, wanted: i32) {
    let shown = status.code().or(status.signal().map(|signal| 128 + signal));
    assert_eq!(shown, Some(wanted), "{status}");
}

const TREE: &str = "daemon [ ignore TERM hang ] fork [ setsid hang ]";
/// The same without anybody who waits for SIGKILL, which the command would get too if it was late.
const WILLING: &str = "daemon [ hang ] fork [ setsid hang ]";

/// One run of each kind; gives how many.
fn round(place: &Place, backend: Backend) -> u64 {
    let fixture = |options: &str, steps: &str| place.fixture(backend, options, steps);
    let ready = format!("{TREE} print ready hang");
    is(run(fixture("", "exit 3")).0, 3);
    is(run(deaf(fixture("-t 15ms -k 5ms", &format!("{TREE} hang")))).0, 137);
    is(run(fixture("--leftover-grace 2ms -k 2ms", &format!("{TREE} exit 0"))).0, 193);
    is(run(fixture("--idle-timeout 40ms", &format!("{WILLING} hang"))).0, 197);
    let willing = format!("{WILLING} print ready hang");
    is(ended_by(fixture("", &willing), |front, _| signal(front, Signal::TERM)), 143);
    is(ended_by(fixture("", &ready), |front, _| signal(front, Signal::KILL)), 137);
    let kill_keeper = |_: &OwnedFd, front| {
        let (_, keeper) = kin::last_child(front).expect("a running front has a keeper");
        signal(&keeper, Signal::KILL);
    };
    is(ended_by(fixture("", &ready), kill_keeper), 125);

    let report = place.scratch.join("report.json");
    let to_report = format!("--report {} --stats", report.display());
    for end in ["exit 0", "exit 4"] {
        run(fixture(&to_report, end));
        let text = fs::read(&report).expect("there is a report");
        serde_json::from_slice::<serde_json::Value>(&text).expect("it is whole");
    }
    fs::remove_file(report).expect("it is there");

    is(run(fixture("-t nonsense", "exit 0")).0, 125);
    is(run(fixture("--report /no/such/folder/report", "exit 0")).0, 125);
    is(run(fixture("--report-fd 77", "exit 0")).0, 125);
    is(run(place.command(["--backend", backend.name(), "no-such-command-of-treekill"])).0, 127);
    is(run(place.command(["--backend", "nonsense", "true"])).0, 125);
    if backend == Backend::Subreaper {
        is(run(fixture("--memory-max 1G", "exit 0")).0, 195);
    }
    on_terminal(deaf(fixture("-t 15ms -k 5ms", &format!("{TREE} hang"))), 137);
    on_terminal(fixture("", "exit 5"), 5);
    // In an hour they would be thousands.
    reap_orphans();
    17
}

/// Its command ignores TERM from its first moment on, however late that is.
fn deaf(mut command: Command) -> Command {
    sys::before_exec(&mut command, || sys::ignore(Signal::TERM.as_raw()));
    command
}

fn signal(pidfd: &OwnedFd, signal: Signal) {
    pidfd_send_signal(pidfd, signal).expect("an unreaped child can be signalled");
}

/// With a terminal of its own.
fn on_terminal(mut command: Command, status: i32) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags).expect("a pseudo-terminal can be had");
    unlockpt(&master).expect("it is ours");
    let slave = ioctl_tiocgptpeer(&master, flags).expect("the other end can be opened");
    command.stdin(slave);
    sys::before_exec(&mut command, || Ok(rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?));
    is(run(command).0, status);
}

fn backends() -> Vec<Backend> {
    let mut backends = vec![Backend::Subreaper, Backend::Auto];
    backends.extend(needs::has("cgroup").then_some(Backend::Cgroup));
    backends.extend(needs::has("pidns").then_some(Backend::Pidns));
    backends.extend(systemd::is_reachable().is_ok().then_some(Backend::Systemd));
    backends
}

/// What there is more than before, once what is still ending has ended.
fn settled(place: &Place, before: Census) -> Census {
    let inherited = place.inherited();
    let deadline = Instant::now() + BOUND;
    loop {
        let more = Census { inherited, ..place.census_without_a_run() }.since(before);
        if more == before.since(before) || Instant::now() > deadline {
            return more;
        }
    }
}

#[test]
fn runs_of_every_kind_leave_everything_as_it_was() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let seconds = std::env::var("TREEKILL_SOAK_SECONDS").ok().map(|text| text.parse().expect("a number of seconds"));
    let length = Duration::from_secs(seconds.unwrap_or(4));
    // Who loses its parent is seen among our children.
    set_child_subreaper(Some(Pid::INIT)).expect("any process may");
    let backends = backends();
    let place = Place::new(Backend::Auto);
    let inherited = place.inherited();
    // The leaf of that run is still counted for a moment.
    let before = Census { inherited, cgroups: 0, ..place.census_without_a_run() };
    let started = Instant::now();
    let mut runs = 0;
    while runs == 0 || started.elapsed() < length {
        runs += backends.iter().map(|&backend| round(&place, backend)).sum::<u64>();
    }
    let took = started.elapsed().as_secs();
    let more = settled(&place, before);
    println!("soak: runs {runs} in {took} s; {more}");
    assert_eq!(more, before.since(before), "{more}, on top of {before:?}; files: {:?}", place.files());
}

/// The control: one of each that is left is seen.
#[test]
fn control_what_is_left_is_seen() {
    needs::require!("cgroup");
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let place = Place::new(Backend::Subreaper);
    let before = place.census();
    let nest = place.nest.as_ref().expect("cgroups can be made");
    let mut child = {
        let mut command = Command::new("cat");
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        nest.receive(&mut command);
        let _forking = sys::forking();
        command.spawn().expect("cat is everywhere")
    };
    fs::create_dir(nest.path().join("left")).expect("the nest is ours");
    fs::write(place.scratch.join("left"), "12345").expect("the folder is ours");
    let file = File::open("/dev/null").expect("it is there");
    let inherited = rustix::io::fcntl_dupfd_cloexec(&file, 50).expect("there is room");
    rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty()).expect("it is open");
    let more = place.census().since(before);
    child.kill().expect("it is ours");
    child.wait().expect("it is ours");
    assert!(more.processes > 0 && more.cgroups > 0 && more.inherited == 1, "{more}");
    // The file, its copy and the pipe of the process.
    assert_eq!((more.descriptors, more.files, more.bytes), (3, 1, 5), "{more}");
}
