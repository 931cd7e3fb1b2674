//! Modes and foreground group of the terminal: given back after SIGKILL, and touched at no other time.
//!
//! The caller is a program that does nothing about the terminal itself, where bash would.

use rustix::process::{Signal, pidfd_send_signal};

use crate::common::running::is_dead;
use crate::common::{BOUND, Backend, all_backends, both_backends};
use crate::pty::{CTRL_Z, Shell};

all_backends! {
    the_modes_are_given_back_when_the_command_was_killed
    the_modes_are_given_back_when_the_keeper_was_killed
    the_modes_stay_when_the_command_ended_by_itself
    the_modes_stay_when_the_command_obeyed
    the_modes_stay_when_somebody_else_killed_the_command
    nothing_is_touched_when_another_job_has_the_terminal
    nothing_is_touched_by_a_job_that_began_in_the_background
}

// In a PID namespace the caller's group has the number 0, which a bash with -m takes for a reason to stop.
both_backends! {
    the_foreground_is_given_back_when_the_command_was_killed
}

/// A full-screen program in its own modes.
const RAW: &str = "bash -c 'stty raw -echo; exec $FX ignore TERM ignore HUP parent keeper say raw hang'";

fn the_modes_are_given_back_when_the_command_was_killed(backend: Backend) {
    for program in ["$TK -t 500ms -k 200ms", "$TG -k .2 .5", "$TG -s KILL .5"] {
        let mut shell = Shell::new(backend);
        shell.command(&format!("$FX call [ {program} {RAW} ] say caller read exit 0"));
        shell.expect("raw");
        assert!(!shell.echoes() && !shell.is_line_by_line());
        assert_eq!(shell.expect("returned"), "137");
        assert!(shell.echoes() && shell.is_line_by_line(), "the modes are the killed program's: {program}");
        shell.expect("caller");
        shell.command("");
        shell.ends_with(0);
        shell.leave();
    }
}

fn the_modes_are_given_back_when_the_keeper_was_killed(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command(&format!("$FX call [ $TK {RAW} ] say caller read exit 0"));
    let keeper = shell.expect_process("keeper");
    shell.expect("raw");
    pidfd_send_signal(keeper, Signal::KILL).expect("the keeper is there");
    assert_eq!(shell.expect("returned"), "125");
    assert!(shell.echoes() && shell.is_line_by_line());
    shell.expect("caller");
    shell.command("");
    shell.ends_with(0);
    shell.leave();
}

/// The group that has the terminal dies with the tree; without a foreground the caller could not even read.
fn the_foreground_is_given_back_when_the_command_was_killed(backend: Backend) {
    let mut shell = Shell::new(backend);
    let inner = "bash -mc '$FX ignore TERM ignore HUP say in-front hang; :'";
    shell.command(&format!("$FX call [ $TK -t 500ms -k 200ms {inner} ] say caller read exit 0"));
    let in_front = shell.expect("in-front");
    let group = shell.foreground();
    assert_eq!(group.as_raw_pid().to_string(), in_front, "the inner job has a group of its own");
    shell.expect("returned");
    let caller = shell.expect("caller");
    assert_eq!(shell.foreground().as_raw_pid().to_string(), caller, "the caller leads its job");
    // It can read.
    shell.command("");
    shell.ends_with(0);
    shell.leave();
}

fn modes_stay(backend: Backend, program: &str, command: &str, returned: &str) {
    let mut shell = Shell::new(backend);
    shell.command(&format!("$FX call [ {program} bash -c '{command}' ] say caller read exit 0"));
    assert_eq!(shell.expect("returned"), returned);
    assert!(!shell.echoes(), "the modes were changed: {program} {command}");
    assert!(!shell.has_terminal());
    shell.expect("caller");
    shell.command("");
    shell.ends_with(0);
    shell.leave();
}

/// `stty -echo` is a command like others.
fn the_modes_stay_when_the_command_ended_by_itself(backend: Backend) {
    modes_stay(backend, "$TK", "stty -echo", "0");
    modes_stay(backend, "$TK", "stty -echo; exit 3", "3");
    modes_stay(backend, "$TK", "stty -echo; kill $$", "143");
    modes_stay(backend, "$TK -k 60", "stty -echo; $FX fork [ setsid hang ] exit 0", "193");
}

fn the_modes_stay_when_the_command_obeyed(backend: Backend) {
    modes_stay(backend, "$TK -t 500ms -k 60", "stty -echo; exec $FX hang", "124");
    modes_stay(backend, "$TG -k 60 .5", "stty -echo; exec $FX hang", "124");
}

fn the_modes_stay_when_somebody_else_killed_the_command(backend: Backend) {
    modes_stay(backend, "$TK", "stty -echo; kill -KILL $$", "137");
}

fn nothing_is_touched_when_another_job_has_the_terminal(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("$TK -k 300ms $FX ignore TERM on CONT [ say cont ] say ready hang");
    shell.expect("ready");
    let wrapper = shell.foreground_leader();
    shell.key(CTRL_Z);
    shell.ends_with(148);
    shell.does("bg", 0);
    shell.expect("cont");
    another_job_keeps_the_terminal(&mut shell, || {
        pidfd_send_signal(&wrapper, Signal::TERM).expect("the wrapper is there");
        assert!(is_dead(&wrapper, BOUND));
    });
    shell.leave();
}

fn nothing_is_touched_by_a_job_that_began_in_the_background(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.does("$TK -k 300ms $FX ignore TERM parent keeper say ready hang &", 0);
    let keeper = shell.expect_process("keeper");
    shell.expect("ready");
    another_job_keeps_the_terminal(&mut shell, || {
        // As good as the wrapper itself.
        pidfd_send_signal(&keeper, Signal::TERM).expect("the keeper is there");
        assert!(is_dead(&keeper, BOUND));
    });
    assert!(shell.has_terminal());
    shell.leave();
}

fn another_job_keeps_the_terminal(shell: &mut Shell, meanwhile: impl FnOnce()) {
    shell.command("bash -c 'stty -echo; $FX say other read; stty echo'");
    shell.expect("other");
    let other = shell.foreground();
    meanwhile();
    assert_eq!(shell.foreground(), other, "the terminal was stolen");
    assert!(!shell.echoes(), "the modes of another job were changed");
    shell.notices("", "Exit 137");
}
