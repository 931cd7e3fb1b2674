//! Where a report can go: what is replaced, what is written in place, and what is refused before anything starts.

mod common;

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use common::kin::state_and_parent;
use common::running::open_process;
use common::{Backend, Run, Scratch, USER, all_backends, both_backends, needs};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::process::{Signal, pidfd_send_signal};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;

/// More than any report, so that what stays of it is seen.
const LONG_AGO: &[u8] = &[b'x'; 100_000];

all_backends! {
    a_replaced_file_keeps_its_mode_and_owner
    a_pipe_by_name_gets_the_report
}

both_backends! {
    a_file_that_is_a_mount_point_is_written_in_place
    a_file_in_a_folder_that_may_not_be_written_is_written_in_place
    a_symbolic_link_stays_and_its_target_is_replaced
    a_dangling_link_is_refused_and_stays
    a_link_to_what_may_not_be_written_is_refused
    a_file_with_other_names_is_replaced_under_its_own_alone
    what_appears_under_the_name_meanwhile_is_replaced_and_not_followed
    a_standard_stream_that_is_closed_is_refused
    a_number_that_is_not_open_is_refused
    a_number_that_is_open_for_reading_is_refused
    with_a_terminal_a_number_that_is_not_open_is_refused_too
    a_stream_by_name_is_written_where_the_caller_was
    a_pipe_that_nobody_reads_fails_a_success
    a_socket_by_name_gets_the_report
    a_refusal_leaves_no_temporary_file
    a_kill_of_front_and_keeper_leaves_no_temporary_file
    a_device_is_written_and_not_replaced
}

fn to(backend: Backend, target: impl AsRef<Path>) -> Run {
    Run::new(backend).option_list(["--report".as_ref(), target.as_ref().as_os_str()])
}

#[track_caller]
fn is_report(bytes: &[u8], status: i32) {
    let report: Value = serde_json::from_slice(bytes).unwrap_or_else(|error| {
        panic!("{error} in {}", String::from_utf8_lossy(&bytes[..bytes.len().min(3000)]));
    });
    assert_eq!(report["exit_status"], status, "{report:#}");
}

#[track_caller]
fn holds_report(file: impl AsRef<Path>, status: i32) {
    is_report(&fs::read(file).expect("the report can be read"), status);
}

#[track_caller]
fn holds_only(scratch: &Scratch, wanted: &[&str]) {
    let entries = fs::read_dir(scratch.path()).expect("the directory is ours").flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name()).collect();
    names.sort();
    assert_eq!(names, wanted, "what is in the folder");
}

#[track_caller]
fn refuses(run: Run, why: &str) {
    let ended = run.fixture("say started").finish();
    ended.exited(125).said("started", 0).complained_of(why);
}

/// A shell that does this first, then becomes the wrapper.
fn after(script: &str) -> [String; 4] {
    ["sh".into(), "-c".into(), format!("{script}; exec \"$@\""), "sh".into()]
}

fn a_replaced_file_keeps_its_mode_and_owner(backend: Backend) {
    for mode in [0o600, 0o640, 0o666] {
        let scratch = Scratch::new();
        let file = scratch.file("report", LONG_AGO, mode);
        let owner = if needs::is_root() { USER } else { fs::metadata(&file).expect("it is there").uid() };
        std::os::unix::fs::chown(&file, Some(owner), None).expect("root may, and others change nothing");
        to(backend, &file).fixture("exit 3").finish().exited(3);
        holds_report(&file, 3);
        let status = fs::metadata(&file).expect("it is there");
        assert_eq!((status.mode() & 0o7777, status.uid()), (mode, owner), "{:o}", status.mode());
        holds_only(&scratch, &["report"]);
    }
}

/// As container runtimes hand in single files. rename(2): "EBUSY".
fn a_file_that_is_a_mount_point_is_written_in_place(backend: Backend) {
    needs::require!("mountns");
    let scratch = Scratch::new();
    let below = scratch.file("below", b"untouched", 0o644);
    let outside = Scratch::new();
    let file = outside.file("file", LONG_AGO, 0o600);
    let mut words = vec!["unshare".to_owned(), "--mount".into()];
    if !needs::is_root() {
        words.push("--map-root-user".into());
    }
    words.extend(after(&format!("mount --bind {} {} || exit 71", file.display(), below.display())));
    let ended = to(backend, &below).prefixed(words).fixture("exit 3").finish();
    if ended.status.code() == Some(71) {
        return needs::skip("mountns", "mounts cannot be changed here");
    }
    ended.exited(3);
    holds_report(&file, 3);
    assert_eq!(fs::read(&below).expect("it is there"), b"untouched");
    holds_only(&scratch, &["below"]);
    holds_only(&outside, &["file"]);
}

fn a_file_in_a_folder_that_may_not_be_written_is_written_in_place(backend: Backend) {
    let scratch = Scratch::new();
    let file = scratch.file("report", LONG_AGO, 0o600);
    let mut run = to(backend, &file).directory("/");
    if needs::is_root() {
        needs::require!("user");
        std::os::unix::fs::chown(&file, Some(USER), Some(USER)).expect("root gives away a file");
        run = run.by_user(USER);
    }
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o555)).expect("it is ours");
    let ended = run.fixture("exit 3").finish();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).expect("it is ours");
    ended.exited(3);
    assert_eq!(ended.stderr, "", "{ended}");
    holds_report(&file, 3);
    holds_only(&scratch, &["report"]);
}

fn a_symbolic_link_stays_and_its_target_is_replaced(backend: Backend) {
    let scratch = Scratch::new();
    fs::create_dir(scratch.join("folder")).expect("the directory is ours");
    let file = scratch.file("folder/file", LONG_AGO, 0o640);
    let link = scratch.join("link");
    symlink("folder/file", &link).expect("the directory is ours");
    to(backend, &link).fixture("exit 3").finish().exited(3);
    assert_eq!(fs::read_link(&link).expect("it is a link"), Path::new("folder/file"));
    holds_report(&file, 3);
    assert_eq!(fs::metadata(&file).expect("it is there").mode() & 0o777, 0o640);
    holds_only(&scratch, &["folder", "link"]);
}

fn a_dangling_link_is_refused_and_stays(backend: Backend) {
    let scratch = Scratch::new();
    let link = scratch.join("link");
    symlink("missing", &link).expect("the directory is ours");
    refuses(to(backend, &link), "it is a link to 'missing', which does not exist");
    assert!(link.is_symlink());
    holds_only(&scratch, &["link"]);
}

/// In a folder that is ours a rename would replace even what may not be written.
fn a_link_to_what_may_not_be_written_is_refused(backend: Backend) {
    let Some((scratch, run)) = as_ordinary_user(backend) else { return };
    let precious = scratch.file("precious", b"precious", 0o400);
    let link = scratch.join("link");
    symlink("precious", &link).expect("the directory is ours");
    owned_by_user(&precious);
    refuses(run(&link), "Permission denied");
    assert_eq!(fs::read(precious).expect("it is there"), b"precious");
    holds_only(&scratch, &["link", "precious"]);
}

/// A folder that is an ordinary user's, and a run of that user's with a report to a path. `None` where there is none.
fn as_ordinary_user(backend: Backend) -> Option<(Scratch, impl Fn(&Path) -> Run)> {
    if needs::is_root() && !needs::has("user") {
        return None;
    }
    let scratch = Scratch::new();
    owned_by_user(scratch.path());
    let run = move |path: &Path| {
        let run = to(backend, path).directory("/");
        if needs::is_root() { run.by_user(USER) } else { run }
    };
    Some((scratch, run))
}

fn owned_by_user(path: &Path) {
    if needs::is_root() {
        std::os::unix::fs::chown(path, Some(USER), Some(USER)).expect("root gives away a file");
    }
}

/// Who can write the folder of a report swaps a link in at any moment of the start: between the look at what is there, its
/// opening and whatever else is done by the path.
#[test]
fn a_link_that_is_swapped_in_never_leads_to_what_may_not_be_written() {
    let Some((scratch, run)) = as_ordinary_user(Backend::Subreaper) else { return };
    // So that a rename would find what it replaces there.
    let (shelf, file) = (scratch.join("shelf"), scratch.file("report", b"old", 0o600));
    fs::create_dir(&shelf).expect("the directory is ours");
    let precious = scratch.file("shelf/precious", b"precious", 0o400);
    let link = scratch.join("link");
    symlink("shelf/precious", &link).expect("the directory is ours");
    [&shelf, &file, &precious].into_iter().for_each(|path| owned_by_user(path));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let _ = renameat_with(CWD, &file, CWD, &link, RenameFlags::EXCHANGE);
            }
        });
        let runs = || {
            for _ in 0..100 {
                run(&file).fixture("exit 3").finish().exited_with_one_of(&[3, 125]);
                assert_eq!(fs::read(&precious).expect("it is there"), b"precious", "it was replaced");
                // Either of the two may have been replaced.
                if !file.is_symlink() && !link.is_symlink() {
                    let _ = fs::remove_file(&link);
                    let _ = symlink("shelf/precious", &link);
                }
            }
        };
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(runs));
        is_over.store(true, Ordering::Relaxed);
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
}

/// link(2): a hard link that somebody planted leads to the same file, which keeps what it has.
fn a_file_with_other_names_is_replaced_under_its_own_alone(backend: Backend) {
    let scratch = Scratch::new();
    let precious = scratch.file("precious", b"precious", 0o600);
    fs::hard_link(&precious, scratch.join("report")).expect("the file is ours");
    to(backend, scratch.join("report")).fixture("exit 3").finish().exited(3);
    holds_report(scratch.join("report"), 3);
    assert_eq!(fs::read(precious).expect("it is there"), b"precious");
    holds_only(&scratch, &["precious", "report"]);
}

/// The command itself may be the one that plants it. rename(2) follows no link.
fn what_appears_under_the_name_meanwhile_is_replaced_and_not_followed(backend: Backend) {
    for plant in ["ln -s precious report", "ln precious report", "mkfifo report"] {
        let scratch = Scratch::new();
        let precious = scratch.file("precious", b"precious", 0o600);
        let file = scratch.join("report");
        let ended = to(backend, &file).directory(scratch.path()).bash(&format!("{plant} && exit 3")).finish();
        ended.exited(3);
        assert_eq!(ended.stderr, "", "{plant}: {ended}");
        assert!(fs::symlink_metadata(&file).expect("it is there").is_file(), "{plant}");
        holds_report(&file, 3);
        assert_eq!(fs::read(precious).expect("it is there"), b"precious", "{plant}");
        holds_only(&scratch, &["precious", "report"]);
    }
}

fn a_standard_stream_that_is_closed_is_refused(backend: Backend) {
    let names = ["stdin", "stdout", "stderr"];
    for (number, name) in names.iter().enumerate() {
        let closing = after(&format!("exec {number}>&-"));
        let closed = Run::new(backend).options(&format!("--report-fd {number}")).prefixed(closing.clone());
        // Nothing can be said on what is closed.
        let why = if *name == "stderr" { "" } else { "not open" };
        refuses(closed, why);
        for path in [format!("/dev/{name}"), format!("/dev/fd/{number}"), format!("/proc/self/fd/{number}")] {
            refuses(to(backend, path).prefixed(closing.clone()), why);
        }
    }
}

const CLOSED: &str = "exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&-";

fn a_number_that_is_not_open_is_refused(backend: Backend) {
    for number in (3..=8).chain([77, 65535]) {
        let remedy = format!("not open; a shell opens it by {number}>FILE");
        refuses(Run::new(backend).options(&format!("--report-fd {number}")).prefixed(after(CLOSED)), &remedy);
        refuses(to(backend, format!("/dev/fd/{number}")).prefixed(after(CLOSED)), &remedy);
    }
}

fn a_number_that_is_open_for_reading_is_refused(backend: Backend) {
    let run = Run::new(backend).options("--report-fd 0").prefixed(after("exec </dev/null"));
    refuses(run, "descriptor 0: not open for writing");
}

/// What the wrapper itself opens for the terminal is no target.
fn with_a_terminal_a_number_that_is_not_open_is_refused_too(backend: Backend) {
    for number in 3..=8 {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
        grantpt(&master).expect("it is ours");
        unlockpt(&master).expect("it is ours");
        let name = ptsname(&master, Vec::new()).expect("it has a name");
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
        let terminal = rustix::fs::open(name, flags, rustix::fs::Mode::empty()).expect("it can be opened");
        let run = Run::new(backend).options(&format!("--report-fd {number}")).prefixed(after(CLOSED));
        let run = run.stdin(terminal).setup(|| Ok(rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?));
        refuses(run, "not open");
    }
}

/// A shell's `(echo; treekill-run --report /dev/stdout ...; echo) >file` keeps everything and its order.
fn a_stream_by_name_is_written_where_the_caller_was(backend: Backend) {
    for path in ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"] {
        let scratch = Scratch::new();
        let path_of_file = scratch.join("file");
        let mut file = File::create_new(&path_of_file).expect("the directory is ours");
        file.write_all(b"before\n").expect("there is room");
        let copy = file.try_clone().expect("a descriptor can be duplicated");
        to(backend, path).stdout(copy).fixture("print command exit 3").finish().exited(3);
        file.write_all(b"after").expect("there is room");
        let text = fs::read_to_string(&path_of_file).expect("it is text");
        let report = text.strip_prefix("before\ncommand").and_then(|text| text.strip_suffix("\nafter"));
        is_report(report.unwrap_or_else(|| panic!("{path}: {text}")).as_bytes(), 3);
        holds_only(&scratch, &["file"]);
    }
}

fn a_pipe_by_name_gets_the_report(backend: Backend) {
    for path in ["/dev/stdout", "/dev/fd/1"] {
        let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe");
        to(backend, path).stdout(write).fixture("exit 3").finish().exited(3);
        is_report(&all(File::from(read)), 3);
    }
}

/// open(2) of a socket by such a name would be ENXIO.
fn a_pipe_that_nobody_reads_fails_a_success(backend: Backend) {
    let scratch = Scratch::new();
    let path = scratch.join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).expect("a FIFO");
    for (own, status) in [(0, 125), (3, 3)] {
        let ended = to(backend, &path).fixture(&format!("exit {own}")).finish();
        ended.exited(status);
        assert!(ended.stderr.contains("cannot write the report") && ended.stderr.contains("pipe"), "{ended}");
    }
}

fn a_socket_by_name_gets_the_report(backend: Backend) {
    for path in ["/dev/stdout", "/proc/self/fd/1"] {
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        to(backend, path).stdout(OwnedFd::from(theirs)).fixture("exit 3").finish().exited(3);
        is_report(&all(ours), 3);
    }
}

fn all(mut stream: impl std::io::Read) -> Vec<u8> {
    let mut bytes = vec![];
    stream.read_to_end(&mut bytes).expect("it can be read");
    bytes
}

/// The target is opened first, and what can't be had is found afterwards.
fn a_refusal_leaves_no_temporary_file(backend: Backend) {
    needs::require!("pidns");
    let scratch = Scratch::new();
    let run = |name| to(backend, scratch.join(name)).options("--leftovers leave").prefixed(needs::as_pid_1());
    run("new").fixture("say started").finish().exited(195).said("started", 0);
    holds_only(&scratch, &[]);
    let old = scratch.file("old", b"old", 0o600);
    run("old").fixture("say started").finish().exited(195).said("started", 0);
    holds_only(&scratch, &["old"]);
    assert_eq!(fs::read(old).expect("it is there"), b"old");
}

fn a_kill_of_front_and_keeper_leaves_no_temporary_file(backend: Backend) {
    for old in [false, true] {
        let scratch = Scratch::new();
        let file = scratch.join("report");
        if old {
            scratch.file("report", b"old", 0o600);
        }
        let mut running = to(backend, &file).fixture("say ready hang").spawn();
        let command = running.expect("ready").parse().expect("a PID");
        let (_, keeper) = state_and_parent(command).expect("the command is there");
        let keeper = open_process(keeper).expect("its parent is there");
        // Held, so that neither learns of the other's death.
        running.signal(Signal::STOP);
        pidfd_send_signal(&keeper, Signal::KILL).expect("it is there");
        running.signal(Signal::KILL);
        running.wait_for_death().died_of(Signal::KILL);
        running.all_die();
        if old {
            assert_eq!(fs::read(&file).expect("it is there"), b"old");
        }
        holds_only(&scratch, if old { &["report"] } else { &[] });
    }
}

fn a_device_is_written_and_not_replaced(backend: Backend) {
    Run::new(backend).options("--report /dev/null").fixture("exit 0").finish().exited(0);
    assert!(fs::metadata("/dev/null").expect("it is there").file_type().is_char_device());
}
