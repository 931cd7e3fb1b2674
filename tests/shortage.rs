//! Limits that leave too little, and a /proc or a cgroup that hides what is there: refused at once, or ended all the
//! same.

mod common;

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::running::is_dead;
use common::{Backend, Nest, Run, Running, Scratch, USER, all_backends, both_backends, fixture, kin, needs, sys};
use nix::libc;
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit, setrlimit};

const LONG: Duration = Duration::from_secs(20);

/// A user of this file's own, so that its processes can be counted.
const LONELY_USER: u32 = 1990;

fn limit(resource: Resource, number: u64) -> std::io::Result<()> {
    setrlimit(resource, Rlimit { current: Some(number), maximum: Some(number) })?;
    Ok(())
}

all_backends! {
    with_hardly_any_descriptors_a_run_ends_in_time_or_starts_nothing
    with_hardly_any_descriptors_every_leftover_gets_the_first_signal
    with_few_descriptors_left_by_the_caller_everyone_gets_the_first_signal
    what_cannot_be_left_running_by_pid_1_is_195_and_starts_nothing
}

both_backends! {
    with_hardly_any_descriptors_stubborn_members_end_too
    whom_the_last_descriptors_cannot_reach_does_not_hold_up_a_second_signal
    a_limit_of_file_size_does_not_reach_the_command_as_a_signal
    a_pipe_that_another_writer_fills_does_not_hold_up_the_deadline
    a_pipe_that_is_full_does_not_hold_up_the_deadline
    every_generation_of_a_long_line_gets_the_first_signal
    a_full_process_table_is_125_and_leaves_nothing
    a_user_without_processes_to_spare_gets_125
    too_few_descriptors_are_125_and_leave_nothing
    with_few_descriptors_a_big_tree_still_ends
}

/// Refused with nothing started, or over in time with nothing alive: never something that is left.
fn with_descriptors(backend: Backend, steps: &str, status: i32) {
    for descriptors in 9..=24 {
        let run = Run::new(backend).options("-t 500ms -k 500ms --drain-limit 5s");
        eprintln!("with {descriptors} descriptors");
        let ended = run.setup(move || limit(Resource::Nofile, descriptors)).fixture(steps).finish();
        ended.exited_with_one_of(&[125, 195, status]).took_less_than(LONG);
        let started = usize::from(ended.status.code() == Some(status));
        ended.said("started", started);
    }
}

/// open(2): "EMFILE".
fn with_hardly_any_descriptors_a_run_ends_in_time_or_starts_nothing(backend: Backend) {
    with_descriptors(backend, "say started hang", 124);
}

fn with_hardly_any_descriptors_stubborn_members_end_too(backend: Backend) {
    with_descriptors(backend, "say started fork [ setsid ignore TERM hang ] ignore TERM hang", 137);
}

/// What few can be held at once is signalled in turn. Handlers are there from birth on.
fn with_hardly_any_descriptors_every_leftover_gets_the_first_signal(backend: Backend) {
    const MEMBERS: usize = 12;
    let steps = format!("on TERM [ say term exit 0 ] say started {} exit 0", "fork [ hang ] ".repeat(MEMBERS));
    for descriptors in 9..=20 {
        let run = Run::new(backend).options("-k 20 --leftover-grace 0");
        eprintln!("with {descriptors} descriptors");
        let ended = run.setup(move || limit(Resource::Nofile, descriptors)).fixture(&steps).finish();
        ended.exited_with_one_of(&[125, 195, 193]).took_less_than(LONG);
        if ended.status.code() == Some(193) {
            ended.said("term", MEMBERS);
        }
    }
}

/// Makes a limit of descriptors and takes all but so many of them.
fn leave_free(descriptors: usize) -> std::io::Result<()> {
    limit(Resource::Nofile, 128)?;
    let mut taken = vec![];
    while let Ok(copy) = rustix::io::dup(rustix::stdio::stderr()) {
        taken.push(copy);
    }
    taken.truncate(taken.len() - descriptors);
    std::mem::forget(taken);
    Ok(())
}

/// A share of the limit says nothing where the caller has used up the rest.
fn with_few_descriptors_left_by_the_caller_everyone_gets_the_first_signal(backend: Backend) {
    const SIDE_BY_SIDE: usize = 24;
    const IN_LINE: usize = 8;
    let member = "on TERM [ say term exit 0 ] say ready";
    let line = format!("{} {} ", format!("fork [ {member} ").repeat(IN_LINE), "hang ] ".repeat(IN_LINE));
    let steps = format!("{} {line} {member} hang", format!("fork [ {member} hang ] ").repeat(SIDE_BY_SIDE));
    for descriptors in [13, 14, 16, 20, 28] {
        eprintln!("with {descriptors} descriptors");
        let run = Run::new(backend).options("-k 20").setup(move || leave_free(descriptors));
        let mut running = run.fixture(&steps).spawn();
        let members = SIDE_BY_SIDE + IN_LINE + 1;
        (0..members).for_each(|_| drop(running.expect("ready")));
        running.signal(Signal::TERM);
        running.wait().exited(0).said("term", members).took_less_than(LONG);
    }
}

/// Leaves the keeper so many descriptors from now on, and those of it that it closes. It sleeps.
fn leave_keeper(running: &Running, descriptors: usize) {
    let keeper = kin::children(running.pid())[0];
    let is_free = |number: &u64| fs::symlink_metadata(format!("/proc/{keeper}/fd/{number}")).is_err();
    let number = (0..).filter(is_free).nth(descriptors);
    let keeper = Pid::from_raw(keeper.cast_signed());
    prlimit(keeper, Resource::Nofile, Rlimit { current: number, maximum: number }).expect("it is ours");
}

/// A child of the command's is confirmed by three: its parent's pidfd, its own, and its status. Nothing but the end of the
/// attempts ends them, since this stop has no deadline.
fn whom_the_last_descriptors_cannot_reach_does_not_hold_up_a_second_signal(backend: Backend) {
    // Who stays in the leaf is confirmed by that.
    let leave = if backend == Backend::Cgroup { "cgroup enter .." } else { "" };
    let child = format!("fork [ {leave} on TERM [ say reached ] say ready hang ]");
    let steps = format!("{child} on TERM [ say asked ] on CONT [ say heard ] say ready hang");
    for (descriptors, reached) in [(2, 0), (3, 1)] {
        eprintln!("with {descriptors} descriptors");
        let mut running = Run::new(backend).options("-k 0").fixture(&steps).spawn();
        (0..2).for_each(|_| drop(running.expect("ready")));
        // Afterwards the keeper has heard of the start, and closes nothing more that would count.
        running.signal(Signal::CONT);
        running.expect("heard");
        leave_keeper(&running, descriptors);
        running.signal(Signal::TERM);
        running.expect("asked");
        // One that comes within 200 ms counts as the first.
        assert!(!is_dead(running.pidfd(), Duration::from_millis(250)), "one signal was enough");
        running.signal(Signal::TERM);
        let ended = running.wait();
        ended.exited(137).said("refused", 0).said("reached", reached).took_less_than(LONG);
        if reached == 0 {
            ended.complained_of("cannot send SIGTERM to 1 process: ");
        }
    }
}

/// setrlimit(2): "SIGXFSZ". It is for whoever writes, and that is not the command.
fn a_limit_of_file_size_does_not_reach_the_command_as_a_signal(backend: Backend) {
    let run = |options: &str| {
        let scratch = Scratch::new();
        let file = File::create_new(scratch.join("stderr")).expect("the directory is ours");
        let run = Run::new(backend).options(options).stderr(file);
        run.setup(|| limit(Resource::Fsize, 0))
    };
    run("-v -t 25").fixture("exit 7").finish().exited(7);
    run("-v -t 500ms -k 1").fixture("hang").finish().exited(124);
    run("-v -k 1").fixture("daemon [ hang ] exit 0").finish().exited(193);
    let mut running = run("-v -k 60").fixture("on XFSZ [ say xfsz ] on TERM [ exit 5 ] say ready hang").spawn();
    running.expect("ready");
    running.signal(Signal::USR2);
    running.wait().died_of(Signal::USR2).said("xfsz", 0);
}

/// A pipe, and another description of its writing end that never blocks.
fn pipe() -> (File, File, File) {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe can be had");
    let path = format!("/proc/self/fd/{}", write.as_raw_fd());
    let other = File::options().write(true).custom_flags(libc::O_NONBLOCK).open(path).expect("it is ours");
    (read.into(), write.into(), other)
}

/// pipe(7): what poll(2) said of the room is outdated when the next writer comes.
fn a_pipe_that_another_writer_fills_does_not_hold_up_the_deadline(backend: Backend) {
    let (read, write, mut other) = pipe();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // There is room for a moment, again and again, and the next writer has it.
            let mut bytes = [0; 4096];
            while !is_over.load(Ordering::Relaxed) {
                while other.write(&[b'x'; 4096]).is_ok() {}
                let _ = rustix::io::read(&read, &mut bytes);
            }
        });
        let run = || {
            for _ in 0..5 {
                let stderr = write.try_clone().expect("a descriptor can be duplicated");
                let run = Run::new(backend).options("-v -t 300ms -k 1").stderr(stderr);
                run.fixture("fork [ setsid hang ] hang").finish().exited(124).took_less_than(LONG);
            }
        };
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        is_over.store(true, Ordering::Relaxed);
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
}

fn a_pipe_that_is_full_does_not_hold_up_the_deadline(backend: Backend) {
    let (_read, write, mut other) = pipe();
    while other.write(b"x").is_ok() {}
    let run = Run::new(backend).options("-v -t 300ms -k 1").stderr(write);
    run.fixture("fork [ setsid hang ] hang").finish().exited(124).took_less_than(LONG);
}

/// Deeper than pidfds are kept at once.
fn every_generation_of_a_long_line_gets_the_first_signal(backend: Backend) {
    const GENERATIONS: usize = 400;
    let generation = "on TERM [ say term exit 0 ] fork [ ";
    let steps = format!(
        "{} on TERM [ say term exit 0 ] say ready hang {}",
        generation.repeat(GENERATIONS),
        "] hang ".repeat(GENERATIONS)
    );
    let mut running = Run::new(backend).options("-k 60").fixture(&steps).spawn();
    running.expect("ready");
    running.signal(Signal::TERM);
    running.wait().exited(0).said("term", GENERATIONS + 1);
}

/// pid_namespaces(7): all die with PID 1.
fn what_cannot_be_left_running_by_pid_1_is_195_and_starts_nothing(backend: Backend) {
    needs::require!("pidns");
    for option in ["--leftovers leave", "--no-guard"] {
        let run = Run::new(backend).options(option).prefixed(needs::as_pid_1());
        let ended = run.fixture("say started").finish();
        ended.exited(195).said("started", 0).complained_of("treekill-run: ");
        assert_eq!(ended.stderr.lines().count(), 1, "{ended}");
    }
}

/// A script whose `$own` is the directory of its cgroup.
fn in_its_cgroup(script: &str) -> String {
    let mount = common::cgroups::mount_point().expect("the tests need one");
    format!("own={}$(sed -n s/^0:://p /proc/self/cgroup); {script}", mount.display())
}

/// Cgroups below the leaf that nobody may enter, search or read, one in the other.
fn are_emptied_and_removed(run: &dyn Fn(&str) -> Run) {
    let shut = "mkdir $own/a $own/a/b && chmod 000 $own/a/b $own/a || exit 99";
    run("-k 1").bash(&in_its_cgroup(&format!("{shut}; exit 7"))).finish().exited(7);
    let closed = "umask 777; mkdir $own/a || exit 99";
    run("-k 1").bash(&in_its_cgroup(&format!("{closed}; exit 7"))).finish().exited(7);

    let member = format!("{} say member hang", fixture().display());
    let script = format!(
        "mkdir $own/a $own/a/b || exit 99
        sh -c 'echo $$ >$0/a/b/cgroup.procs; exec {member}' $own &
        until grep -q . $own/a/b/cgroup.procs; do :; done
        chmod 000 $own/a/b $own/a || exit 99"
    );
    run("-k 1").bash(&in_its_cgroup(&format!("{script}; exit 0"))).finish().exited(193);
    run("-t 1 -k 1").bash(&in_its_cgroup(&format!("{script}; wait"))).finish().exited(124);
}

#[test]
fn nested_cgroups_that_shut_everybody_out_do_not_cost_the_status() {
    needs::require!("cgroup");
    are_emptied_and_removed(&|options| Run::new(Backend::Cgroup).options(options));
}

#[test]
fn nested_cgroups_that_shut_a_user_out_do_not_cost_the_status() {
    needs::require!("delegation");
    are_emptied_and_removed(&|options| Run::new(Backend::Cgroup).options(options).by_user(USER).directory("/"));
}

/// proc(5), hidepid: neither the program that became another user's nor its arguments can be seen.
#[test]
fn a_hidden_member_of_the_leaf_gets_the_first_signal() {
    needs::require!("delegation", "mountns", "setpriv");
    let scratch = Scratch::new();
    let Some(program) = set_user_id_fixture(&scratch) else { return };
    let user = USER.to_string();
    let hide = "mount -t proc -o hidepid=2 proc /proc || exit 71; exec \"$@\"";
    let words = ["unshare", "--mount", "sh", "-c", hide, "sh", "setpriv", "--reuid", &user, "--regid", &user];
    let words = words.into_iter().chain(["--clear-groups"]);
    let nest = Nest::new().expect("a cgroup can be made");
    nest.delegate(USER);
    let run = Run::new(Backend::Cgroup).options("-k 60").within(nest).prefixed(words).directory("/");
    let member = format!("exec {program} on TERM [ say term exit 0 ] say member hang");
    let mut running = run.fixture(&format!("fork [ {member} ] on TERM [ say own exit 6 ] say ready hang")).spawn();
    running.expect("member");
    running.expect("ready");
    running.signal(Signal::TERM);
    running.wait().exited(6).said("term", 1).said("own", 1).took_less_than(LONG);
}

/// The fixture with the set-user-ID bit, behind a directory that only the ordinary user's group can pass.
fn set_user_id_fixture(scratch: &Scratch) -> Option<String> {
    let gate = scratch.join("gate");
    let helper = gate.join("fixture");
    fs::create_dir(&gate).expect("the directory is ours");
    fs::set_permissions(&gate, fs::Permissions::from_mode(0o700)).expect("it is ours");
    fs::copy(fixture(), &helper).expect("the fixture was built");
    std::os::unix::fs::chown(&gate, Some(0), Some(USER)).expect("root may");
    fs::set_permissions(&helper, fs::Permissions::from_mode(0o4755)).expect("it is ours");
    fs::set_permissions(&gate, fs::Permissions::from_mode(0o710)).expect("it is ours");
    // Only who became root can enter the directory that is shut.
    let shut = scratch.join("shut");
    fs::create_dir(&shut).expect("the directory is ours");
    fs::set_permissions(&shut, fs::Permissions::from_mode(0o700)).expect("it is ours");
    let words = [helper.as_os_str(), "chdir".as_ref(), shut.as_os_str()];
    let run = Run::control(words).setup(|| sys::become_user(USER)).directory("/");
    if run.finish().status.code() == Some(0) {
        return Some(helper.to_string_lossy().into_owned());
    }
    needs::skip("setuid", "the temporary directory is mounted without set-user-ID");
    None
}

/// Its pidfd still means it, whatever /proc shows.
#[test]
fn where_proc_is_foreign_a_command_that_left_the_leaf_is_ended() {
    needs::require!("cgroup", "pidns");
    let mut words = vec!["unshare", "--pid", "--fork", "--kill-child"];
    if !needs::is_root() {
        words.push("--map-root-user");
    }
    let run = |steps: &str| {
        let run = Run::new(Backend::Cgroup).options("-t 500ms -k 500ms --drain-limit 5s").prefixed(words.clone());
        run.fixture(&format!("cgroup enter .. {steps}")).finish()
    };
    run("say left hang").exited(124).said("left", 1).said("refused", 0).took_less_than(LONG);
    run("ignore TERM say left hang").exited(137).said("left", 1).took_less_than(LONG);
    run("on TERM [ say term exit 6 ] say left hang").exited(124).said("term", 1).took_less_than(LONG);
}

/// fork(2): "EAGAIN ... RLIMIT_NPROC". One process more is allowed each time, so that each fork is refused once.
fn a_full_process_table_is_125_and_leaves_nothing(backend: Backend) {
    needs::require!("user");
    let mut refused = 0;
    for processes in 1..6 {
        let run =
            Run::new(backend).options("-k 1 --leftover-grace 0").by_user(LONELY_USER + backend as u32).directory("/");
        let ended = run.setup(move || limit(Resource::Nproc, processes)).fixture("exit 0").finish();
        ended.exited_with_one_of(&[0, 125]).took_less_than(LONG);
        if ended.status.code() == Some(125) {
            refused += 1;
            ended.complained_of(": Resource temporarily unavailable");
            assert_eq!(ended.stderr.lines().count(), 1, "{ended}");
        }
    }
    // Init is a third.
    let forks = if backend == Backend::Pidns { 3 } else { 2 };
    assert_eq!(refused, forks, "front and keeper both fork");
}

/// Under GNU's rules the command's group has a founder, who can be done without.
#[test]
fn under_gnu_a_run_takes_no_more_processes() {
    needs::require!("user");
    let words = [common::wrapper().into_os_string(), "--gnu".into(), "--backend=subreaper".into(), "60".into()];
    let run = Run::control(words).command(["/bin/sh", "-c", "exit 9"]).by_user(LONELY_USER + 5).directory("/");
    run.setup(|| limit(Resource::Nproc, 3)).finish().exited(9);
}

fn a_user_without_processes_to_spare_gets_125(backend: Backend) {
    needs::require!("unprivileged");
    let ended = Run::new(backend).setup(|| limit(Resource::Nproc, 1)).fixture("say started").finish();
    ended.exited(125).said("started", 0).complained_of(": Resource temporarily unavailable");
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
            _ => {
                // As glibc puts it, and as musl does.
                let words = [": Too many open files", ": No file descriptors available"];
                assert!(words.iter().any(|words| ended.stderr.contains(words)), "{ended}");
                assert_eq!(ended.stderr.lines().count(), 1, "{ended}");
            }
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
