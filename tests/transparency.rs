//! The command gets what the wrapper got, bit for bit, and the wrapper works whatever that was.

mod common;

use std::io::Write as _;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::Duration;

use common::{Backend, Run, Scratch, all_backends, both_backends, sys};
use rustix::process::{Resource, Rlimit, Signal, setrlimit};
use serde_json::Value;

const LONG: Duration = Duration::from_secs(20);

/// What the fixture finds when it is started by `run`, without what has to differ.
fn state(run: Run) -> Value {
    let ended = run.fixture("state").finish();
    ended.exited(0);
    let mut state: Value = serde_json::from_str(ended.value("state")).expect("the fixture writes JSON");
    for differs in ["pid", "parent", "group", "session", "cgroup", "parent_death_signal"] {
        state[differs] = Value::Null;
    }
    state["environment"][common::MARK] = Value::Null;
    let descriptors = state["descriptors"].as_object_mut().expect("an object");
    // The harness's, on one backend only.
    descriptors.retain(|number, target| *number != common::PROC.to_string() || target != "/proc");
    // Each run has pipes of its own.
    for target in descriptors.values_mut() {
        let name = target.as_str().expect("a path").split('[').next().unwrap_or_default().to_owned();
        *target = name.into();
    }
    state
}

fn bits(state: &Value, set: &str) -> u64 {
    state[set].as_u64().expect("a set of signals")
}

/// The fixture finds the same under the wrapper as without.
fn hands_on(backend: Backend, shape: impl Fn(Run) -> Run) -> Value {
    let without = state(shape(Run::control(Vec::<String>::new())));
    let with = state(shape(Run::new(backend)));
    assert_eq!(with, without, "under the wrapper (left) and without (right)");
    with
}

all_backends! {
    a_clean_caller_has_a_clean_command
    every_ignored_signal_stays_ignored_and_no_other
    every_signal_that_can_be_ignored_stays_so
    the_signal_mask_is_handed_on
    closed_standard_streams_stay_closed
    extra_descriptors_are_handed_on_and_none_of_ours
    every_low_descriptor_can_be_taken
    umask_directory_and_environment_are_handed_on
    limits_and_niceness_are_handed_on
    no_new_privs_is_set_only_on_request
    standard_streams_are_the_callers_own
    data_passes_unchanged_through_stdin_and_stdout
    the_command_may_read_from_a_pipe_at_its_own_pace
    with_sigchld_ignored_everything_works
    with_everything_blocked_everything_works
    without_standard_streams_everything_works
}

both_backends! {
    a_full_stderr_does_not_keep_the_tree_alive
    a_stderr_without_a_reader_changes_nothing
    a_stderr_on_a_full_device_changes_nothing
    the_callers_stderr_keeps_its_flags
    with_all_signals_ignored_the_limit_works
    a_working_directory_that_is_gone_is_no_obstacle
    without_any_environment_everything_works
    without_a_tether_everything_works
}

fn a_clean_caller_has_a_clean_command(backend: Backend) {
    let state = hands_on(backend, |run| run);
    // SIGPIPE is the one that runtimes ignore on their own account.
    assert_eq!(bits(&state, "ignored") & (1 << 12), 0, "{state:#}");
}

/// uutils/coreutils#10254: SIGPIPE was ignored in every child; procServ#48, oven-sh/bun#38926.
fn every_ignored_signal_stays_ignored_and_no_other(backend: Backend) {
    for set in [&[13][..], &[17], &[1], &[2, 3], &[13, 17, 1, 2, 3, 15, 10, 12, 20, 21, 22, 34, 50, 64]] {
        let state =
            hands_on(backend, move |run| run.setup(move || set.iter().try_for_each(|signal| sys::ignore(*signal))));
        let mask = set.iter().fold(0_u64, |mask, signal| mask | 1 << (signal - 1));
        assert_eq!(bits(&state, "ignored") & mask, mask);
    }
}

fn every_signal_that_can_be_ignored_stays_so(backend: Backend) {
    let all = (1..=64).filter(|signal| ![9, 19, 32, 33].contains(signal));
    hands_on(backend, move |run| {
        let mut all = all.clone();
        run.setup(move || all.try_for_each(sys::ignore))
    });
}

/// kovidgoyal/kitty#5500: TERM was blocked for ever by an inherited mask.
fn the_signal_mask_is_handed_on(backend: Backend) {
    for mask in [1 << 14, 1 << 16, 1 << 12, (1 << 31) | (1 << 32), u64::MAX] {
        let state = hands_on(backend, move |run| run.setup(move || sys::block(mask)));
        // SIGKILL and SIGSTOP cannot be blocked.
        assert_eq!(state["blocked"], mask & !(1 << 8 | 1 << 18));
    }
}

/// rust-lang/rust#47271, eradman/entr#40: with 0, 1 or 2 closed the next open() landed there.
fn closed_standard_streams_stay_closed(backend: Backend) {
    for closed in [&[0][..], &[1], &[2], &[0, 1], &[1, 2], &[0, 1, 2]] {
        let state = hands_on(backend, move |run| {
            run.setup(move || {
                closed.iter().for_each(|fd| sys::close(*fd));
                Ok(())
            })
        });
        for fd in closed {
            assert_eq!(state["descriptors"][fd.to_string()], Value::Null);
        }
    }
}

/// A make jobserver needs its pipe.
fn extra_descriptors_are_handed_on_and_none_of_ours(backend: Backend) {
    let file = sys::out_of_the_way(std::fs::File::open("/dev/zero").expect("it is there"));
    let fd = file.as_raw_fd();
    let state = hands_on(backend, move |run| {
        run.setup(move || [3, 4, 10, 63, 200].iter().try_for_each(|to| sys::give_descriptor(fd, *to)))
    });
    for given in ["3", "4", "10", "63", "200"] {
        assert_eq!(state["descriptors"][given], "/dev/zero");
    }
}

fn every_low_descriptor_can_be_taken(backend: Backend) {
    let file = sys::out_of_the_way(std::fs::File::open("/dev/zero").expect("it is there"));
    let fd = file.as_raw_fd();
    hands_on(backend, move |run| {
        run.setup(move || (3..100).filter(|to| *to != common::TETHER).try_for_each(|to| sys::give_descriptor(fd, to)))
    });
}

fn umask_directory_and_environment_are_handed_on(backend: Backend) {
    let scratch = Scratch::new();
    let state = hands_on(backend, |run| {
        run.directory(scratch.path()).env("TREEKILL", "x=y\nz").env("EMPTY", "").env("PWD", "/a/lie").setup(|| {
            rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o027));
            Ok(())
        })
    });
    assert_eq!(state["umask"], "0027");
    assert_eq!(state["environment"]["TREEKILL"], "x=y\nz");
}

fn limits_and_niceness_are_handed_on(backend: Backend) {
    hands_on(backend, |run| {
        run.setup(|| {
            for (resource, current) in [(Resource::Nofile, 64), (Resource::Stack, 4 << 20), (Resource::Fsize, 1 << 30)]
            {
                setrlimit(resource, Rlimit { current: Some(current), maximum: None })
                    .or_else(|_| setrlimit(resource, Rlimit { current: Some(current), maximum: Some(current) }))?;
            }
            setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
            rustix::process::nice(5)?;
            Ok(())
        })
    });
}

fn no_new_privs_is_set_only_on_request(backend: Backend) {
    assert_eq!(
        state(Run::new(backend).setup(|| Ok(())))["no_new_privs"],
        state(Run::control(Vec::<String>::new()))["no_new_privs"]
    );
    assert_eq!(state(Run::new(backend).options("--no-new-privs"))["no_new_privs"], "1");
}

fn standard_streams_are_the_callers_own(backend: Backend) {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe can be had");
    let inode = rustix::fs::fstat(&read).expect("it is open").st_ino;
    let ended = Run::new(backend).stdout(write).bash("readlink /proc/$$/fd/1 >&9").finish();
    ended.exited(0);
    assert_eq!(ended.lines, [format!("pipe:[{inode}]")], "{ended}");
}

fn data_passes_unchanged_through_stdin_and_stdout(backend: Backend) {
    let mut input =
        std::fs::File::from(rustix::fs::memfd_create("input", rustix::fs::MemfdFlags::CLOEXEC).expect("memory"));
    input.write_all(&b"through ".repeat(20_000)).expect("memory");
    std::io::Seek::rewind(&mut input).expect("memory");
    Run::new(backend).stdin(input).command(["tr", "a-z", "A-Z"]).finish().exited(0).printed(b"THROUGH ".repeat(20_000));
}

fn the_command_may_read_from_a_pipe_at_its_own_pace(backend: Backend) {
    let mut running = Run::new(backend).gated().fixture("say ready read exit 4").spawn();
    running.expect("ready");
    running.open_gate();
    running.wait().exited(4);
}

/// oven-sh/bun#43203, util-linux/util-linux#4014, bspwm#1534: ECHILD, lost status, endless loop.
fn with_sigchld_ignored_everything_works(backend: Backend) {
    let run = || Run::new(backend).setup(|| sys::ignore(Signal::CHILD.as_raw()));
    run().fixture("exit 9").finish().exited(9).took_less_than(LONG);
    run().fixture("kill self KILL hang").finish().died_of(Signal::KILL);
    run().options("-t 500ms -k 20").fixture("fork [ setsid hang ] hang").finish().exited(124).took_less_than(LONG);
    run().options("-k 20").fixture("daemon [ hang ] exit 0").finish().exited_with_one_of(&[193]);
    run().command(["no-such-command-of-treekill"]).finish().exited(127);
}

fn with_everything_blocked_everything_works(backend: Backend) {
    let run = || Run::new(backend).setup(|| sys::block(u64::MAX));
    run().fixture("exit 6").finish().exited(6).took_less_than(LONG);
    run().fixture("kill self KILL hang").finish().died_of(Signal::KILL);
    // The mask is the command's as well: it does not hear TERM.
    run().options("-t 300ms -k 300ms").fixture("hang").finish().exited(137).took_less_than(LONG);
    run().options("-t 700ms -k 20").fixture("on TERM [ exit 0 ] hang").finish().exited(124).took_less_than(LONG);
    run()
        .options("-k 20")
        .fixture("daemon [ on TERM [ exit 0 ] hang ] exit 0")
        .finish()
        .exited(193)
        .took_less_than(LONG);
    let mut running = run().options("-k 20").fixture("on TERM [ say term exit 4 ] say ready hang").spawn();
    running.expect("ready");
    running.signal(Signal::TERM);
    running.wait().exited(4).said("term", 1);
}

fn with_all_signals_ignored_the_limit_works(backend: Backend) {
    let ignore = || (1..=64).filter(|signal| ![9, 19, 32, 33].contains(signal)).try_for_each(sys::ignore);
    let run = || Run::new(backend).setup(ignore);
    run().fixture("exit 6").finish().exited(6);
    run().options("-t 300ms -k 300ms").fixture("hang").finish().exited(137).took_less_than(LONG);
    run().options("-k 300ms").fixture("daemon [ hang ] exit 0").finish().exited(193).took_less_than(LONG);
}

fn without_standard_streams_everything_works(backend: Backend) {
    let run = || {
        Run::new(backend).setup(|| {
            (0..3).for_each(sys::close);
            Ok(())
        })
    };
    run().fixture("exit 4").finish().exited(4);
    run().options("-v -t 300ms -k 300ms").fixture("ignore TERM hang").finish().exited(137).took_less_than(LONG);
    run().options("-v -k 20").fixture("daemon [ hang ] exit 0").finish().exited(193);
    run().command(["no-such-command-of-treekill"]).finish().exited(127);
}

/// The reader of our messages may itself be waiting for the tree to end.
fn a_full_stderr_does_not_keep_the_tree_alive(backend: Backend) {
    let (read, write) = full_pipe();
    let run = || Run::new(backend).stderr(write.try_clone().expect("a descriptor can be duplicated"));
    run().options("-v -t 300ms -k 300ms").fixture("ignore TERM hang").finish().exited(137).took_less_than(LONG);
    run().options("-v -k 20").fixture("daemon [ hang ] exit 0").finish().exited(193).took_less_than(LONG);
    run().options("-v").fixture("exit 5").finish().exited(5).took_less_than(LONG);
    run().command(["no-such-command-of-treekill"]).finish().exited(127).took_less_than(LONG);
    drop(read);
}

fn a_stderr_without_a_reader_changes_nothing(backend: Backend) {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe can be had");
    drop(read);
    let run = || Run::new(backend).stderr(write.try_clone().expect("a descriptor can be duplicated"));
    run().options("-v -t 300ms -k 300ms").fixture("ignore TERM hang").finish().exited(137);
    run().options("-v -k 20").fixture("daemon [ hang ] exit 0").finish().exited(193);
    run().command(["no-such-command-of-treekill"]).finish().exited(127);
}

fn a_stderr_on_a_full_device_changes_nothing(backend: Backend) {
    let full = std::fs::File::options().write(true).open("/dev/full").expect("it is there");
    let run = || Run::new(backend).stderr(full.try_clone().expect("a descriptor can be duplicated"));
    run().options("-v -k 20").fixture("daemon [ hang ] exit 0").finish().exited(193);
    run().options("-v").fixture("exit 5").finish().exited(5);
}

/// The stop must not wait for a reader, whatever the caller set on the open file it shares with us.
fn the_callers_stderr_keeps_its_flags(backend: Backend) {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe can be had");
    let ours = write.try_clone().expect("a descriptor can be duplicated");
    let before = rustix::fs::fcntl_getfl(&ours).expect("it is open");
    Run::new(backend).options("-v -t 300ms -k 1").stderr(write).fixture("hang").finish().exited(124);
    assert_eq!(rustix::fs::fcntl_getfl(&ours).expect("it is open"), before);
    drop(read);
}

/// A pipe that takes not one byte more, and blocks who tries.
fn full_pipe() -> (OwnedFd, OwnedFd) {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe can be had");
    rustix::io::ioctl_fionbio(&write, true).expect("a pipe can be written without blocking");
    while rustix::io::write(&write, &[b'x'; 4096]).is_ok() {}
    while rustix::io::write(&write, b"x").is_ok() {}
    rustix::io::ioctl_fionbio(&write, false).expect("a pipe can be written with blocking");
    (read, write)
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
