//! A machine that gives too little, and targets that cannot be written: one clear line, and nothing left.

mod common;

use std::ffi::OsStr;
use std::os::unix::fs::FileTypeExt as _;
use std::time::Duration;

use common::{Backend, Run, Scratch, both_backends, needs, sys};
use rustix::process::{Resource, Rlimit, setrlimit};

const LONG: Duration = Duration::from_secs(20);

/// A user of this file's own, so that its processes can be counted.
const LONELY_USER: u32 = 1998;

fn limit(resource: Resource, number: u64) -> std::io::Result<()> {
    setrlimit(resource, Rlimit { current: Some(number), maximum: Some(number) })?;
    Ok(())
}

both_backends! {
    a_full_process_table_is_125_and_leaves_nothing
    a_user_without_processes_to_spare_gets_125
    too_few_descriptors_are_125_and_leave_nothing
    with_few_descriptors_a_big_tree_still_ends
    a_report_that_cannot_be_written_fails_a_success_and_nothing_else
    a_report_that_cannot_be_opened_is_125_and_starts_nothing
    a_report_for_a_reader_that_never_comes_does_not_hang
    a_report_on_a_closed_descriptor_is_said
    a_device_is_written_and_not_replaced
    a_working_directory_that_is_gone_is_no_obstacle
    without_any_environment_everything_works
    without_a_tether_everything_works
}

/// fork(2): "EAGAIN ... RLIMIT_NPROC". One process more is allowed each time, so that each fork is refused once.
fn a_full_process_table_is_125_and_leaves_nothing(backend: Backend) {
    needs::require!("user");
    let mut refused = 0;
    for processes in 1..6 {
        let run = Run::new(backend).options("-k 1 --leftover-grace 0").by_user(LONELY_USER).directory("/");
        let ended = run.setup(move || limit(Resource::Nproc, processes)).fixture("exit 0").finish();
        ended.exited_with_one_of(&[0, 125]).took_less_than(LONG);
        if ended.status.code() == Some(125) {
            refused += 1;
            ended.complained_of("treekill-run: cannot ");
            assert_eq!(ended.stderr.lines().count(), 1, "{ended}");
        }
    }
    assert!(refused >= 2, "front and keeper both fork, and {refused} were refused");
}

fn a_user_without_processes_to_spare_gets_125(backend: Backend) {
    needs::require!("unprivileged");
    let ended = Run::new(backend).setup(|| limit(Resource::Nproc, 1)).fixture("say started").finish();
    ended.exited(125).said("started", 0).complained_of("treekill-run: cannot ");
}

/// open(2): "EMFILE". Whichever descriptor is the one too many.
fn too_few_descriptors_are_125_and_leave_nothing(backend: Backend) {
    let mut worked = 0;
    for descriptors in 4..32 {
        let run = Run::new(backend).options("-t 25 -k 1").setup(move || limit(Resource::Nofile, descriptors));
        let ended = run.fixture("exit 0").finish();
        // 195 where the leaf can't be had for lack of descriptors, since that backend was asked for.
        ended.exited_with_one_of(&[0, 125, 195]).took_less_than(LONG);
        match ended.status.code() {
            Some(0) => worked += 1,
            _ => assert_eq!(ended.complained_of("treekill-run: ").stderr.lines().count(), 1, "{ended}"),
        }
    }
    assert!(worked > 5, "worked with {worked} of 28 limits");
}

/// A tree does not get out of hand because its keeper has few descriptors.
fn with_few_descriptors_a_big_tree_still_ends(backend: Backend) {
    let members = "fork [ setsid hang ] ".repeat(60);
    let run = || Run::new(backend).options("-t 1 -k 500ms").setup(|| limit(Resource::Nofile, 40));
    run().fixture(&format!("{members} hang")).finish().exited(124).took_less_than(LONG);
    let members = "daemon [ ignore TERM hang ] ".repeat(60);
    run().fixture(&format!("{members} hang")).finish().exited(124).took_less_than(LONG);
}

fn a_report_that_cannot_be_written_fails_a_success_and_nothing_else(backend: Backend) {
    let run = || Run::new(backend).options("--report /dev/full -k 1");
    run().fixture("exit 0").finish().exited(125).complained_of("treekill-run: cannot ");
    run().fixture("exit 3").finish().exited(3).complained_of("treekill-run: cannot ");
    run().fixture("daemon [ hang ] exit 0").finish().exited(193);
}

/// The target is opened before the command starts.
fn a_report_that_cannot_be_opened_is_125_and_starts_nothing(backend: Backend) {
    let scratch = Scratch::new();
    let missing = scratch.join("no/such/folder/report");
    for target in [missing.as_os_str(), scratch.path().as_os_str(), OsStr::new("")] {
        let run = Run::new(backend).option_list([OsStr::new("--report"), target]);
        let ended = run.fixture("say started").finish();
        ended.exited(125).said("started", 0).complained_of("treekill-run: ");
        assert_eq!(ended.stderr.lines().count(), 1, "{ended}");
    }
}

fn a_report_for_a_reader_that_never_comes_does_not_hang(backend: Backend) {
    let scratch = Scratch::new();
    let fifo = scratch.join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .expect("the directory is ours");
    let ended = Run::new(backend).option_list([OsStr::new("--report"), fifo.as_os_str()]).fixture("exit 3").finish();
    ended.exited(3).took_less_than(LONG);
}

fn a_report_on_a_closed_descriptor_is_said(backend: Backend) {
    let ended = Run::new(backend).options("--report-fd 77").fixture("exit 0").finish();
    ended.exited(125).complained_of("77");
}

fn a_device_is_written_and_not_replaced(backend: Backend) {
    Run::new(backend).options("--report /dev/null").fixture("exit 0").finish().exited(0);
    assert!(std::fs::metadata("/dev/null").expect("it is there").file_type().is_char_device());
}

fn a_working_directory_that_is_gone_is_no_obstacle(backend: Backend) {
    let scratch = Scratch::new();
    let gone = scratch.join("gone");
    std::fs::create_dir(&gone).expect("the directory is ours");
    let run = Run::new(backend).directory(&gone).options("-k 1").setup(|| {
        rustix::fs::unlinkat(rustix::fs::CWD, c"../gone", rustix::fs::AtFlags::REMOVEDIR)?;
        Ok(())
    });
    run.fixture("exit 9").finish().exited(9);
}

/// What the mark in the environment is to our second look is nothing to the wrapper.
fn without_any_environment_everything_works(backend: Backend) {
    Run::new(backend).options("-k 1").prefixed(["env", "-i"]).fixture("daemon [ hang ] exit 0").finish().exited(193);
}

fn without_a_tether_everything_works(backend: Backend) {
    Run::new(backend)
        .options("-k 1")
        .untethered()
        .setup(|| {
            sys::close(common::TETHER);
            Ok(())
        })
        .fixture("daemon [ hang ] exit 0")
        .finish()
        .exited(193);
}
