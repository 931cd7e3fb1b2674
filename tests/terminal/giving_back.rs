//! Modes and foreground group of the terminal: given back if the command died of a stop, and touched at no other time.
//!
//! The caller is a program that does nothing about the terminal itself, where bash would.

use rustix::process::{Signal, pidfd_send_signal};

use crate::common::running::is_dead;
use crate::common::{BOUND, Backend, all_backends, both_backends};
use crate::pty::{CTRL_Z, Shell};

all_backends! {
    the_modes_are_given_back_when_the_command_was_killed
    the_modes_are_given_back_when_the_command_died_of_the_first_signal
    the_modes_are_given_back_to_a_job_without_a_terminal_for_its_stdin
    the_modes_are_given_back_when_the_keeper_was_killed
    the_modes_stay_when_the_command_ended_by_itself
    the_modes_stay_when_the_command_ended_itself_in_a_stop
    the_modes_stay_while_a_pager_reads_behind_the_command
    the_modes_stay_when_somebody_else_killed_the_command
    nothing_is_touched_when_another_job_has_the_terminal
    nothing_is_touched_by_a_job_that_began_in_the_background
}

// In a PID namespace the caller's group has the number 0, which a bash with -m takes for a reason to stop.
both_backends! {
    the_foreground_is_given_back_when_the_command_was_killed
    the_foreground_is_given_back_when_the_command_died_of_the_first_signal
    the_modes_stay_in_a_new_session
    the_modes_stay_when_a_script_goes_on_meanwhile
    the_modes_are_given_back_when_a_signal_to_us_ended_the_command
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

/// A prompt for a password, say. The caller sees a status, and a shell that sees no death puts nothing back either.
fn the_modes_are_given_back_when_the_command_died_of_the_first_signal(backend: Backend) {
    for (program, returned) in [
        ("$TK -t 500ms -k 60", "124"),
        ("$TK -t 500ms -k 60 -p", "143"),
        ("$TK --stages INT:60s,KILL -t 500ms", "124"),
        ("$TK --idle-timeout 400ms -k 60", "197"),
        ("$TG -k 60 .5", "124"),
    ] {
        ended_by_a_stop(&mut Shell::new(backend), &format!("{program} bash -c 'stty -echo; read answer'"), returned);
    }
}

/// The group is its own, which that of a job in the background of a script is not. stty(1) looks before bash is back at
/// its prompt, for which it sets modes of its own.
fn the_modes_are_given_back_to_a_job_without_a_terminal_for_its_stdin(backend: Backend) {
    let mut shell = Shell::new(backend);
    let job = "$TK -t 500ms -k 60 bash -c 'stty -echo </dev/tty; echo quiet $$ >&9; read -r </dev/tty' </dev/null";
    shell.command(&format!("{job}; ! stty -a | grep -q -- ' -echo '"));
    shell.expect("quiet");
    assert!(!shell.echoes());
    shell.ends_with(0);
    shell.leave();
}

/// By the same death that the command died; what calls us may be no shell.
fn the_modes_are_given_back_when_a_signal_to_us_ended_the_command(backend: Backend) {
    let signalled = "bash -c 'stty -echo; exec $FX kill parent TERM hang'";
    ended_by_a_stop(&mut Shell::new(backend), &format!("$TK -k 60 {signalled}"), "143");
}

fn ended_by_a_stop(shell: &mut Shell, command: &str, returned: &str) {
    shell.command(&format!("$FX call [ {command} ] say caller read exit 0"));
    assert_eq!(shell.expect("returned"), returned, "{command}");
    assert!(shell.echoes(), "the modes are those of: {command}");
    shell.expect("caller");
    shell.command("");
    shell.ends_with(0);
    shell.leave();
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

fn the_foreground_is_given_back_when_the_command_died_of_the_first_signal(backend: Backend) {
    let mut shell = Shell::new(backend);
    // It does not wait for its own job, which has the terminal.
    let inner = "bash -mc '$FX say in-front hang; :'";
    shell.command(&format!("$FX call [ $TK -t 500ms -k 60 {inner} ] say caller read exit 0"));
    shell.expect("in-front");
    assert_eq!(shell.expect("returned"), "124");
    let caller = shell.expect("caller");
    assert_eq!(shell.foreground().as_raw_pid().to_string(), caller, "the caller leads its job");
    shell.command("");
    shell.ends_with(0);
    shell.leave();
}

/// The modes may be the pager's.
fn the_modes_stay_while_a_pager_reads_behind_the_command(backend: Backend) {
    let mut shell = Shell::new(backend);
    let pager = "bash -c 'read -r line; stty -echo <&3; exec $FX say pager read exit 0 <&3' 3</dev/tty";
    shell.command(&format!("$FX call [ $TK -t 1 -k 60 $FX print $'go\\n' hang ] | {pager}"));
    shell.expect("pager");
    assert_eq!(shell.expect("returned"), "124");
    assert!(!shell.echoes(), "the pager's modes were changed");
    shell.command("");
    shell.ends_with(0);
    shell.leave();
}

/// It asks for a password, say, and a shell without job control has what it starts by `&` in its own group.
fn the_modes_stay_when_a_script_goes_on_meanwhile(backend: Backend) {
    for program in ["$TK -t 1 -k 60 $FX say ready hang", "$TK -t 1 -k 100ms $FX ignore TERM say ready hang"] {
        let mut shell = Shell::new(backend);
        let script = format!("{program} & read -r line; stty -echo; wait $!; $FX say caller read exit 0");
        shell.command(&format!("bash -c '{script}'"));
        // The wrapper has seen the modes as they were.
        shell.expect("ready");
        shell.command("");
        shell.expect("caller");
        assert!(!shell.echoes(), "the modes are those before the script's");
        shell.command("");
        shell.ends_with(0);
        shell.leave();
    }
}

/// What can't reach the terminal can't have changed it.
fn the_modes_stay_in_a_new_session(backend: Backend) {
    let mut shell = Shell::new(backend);
    let neighbour = "fork [ on USR1 [ exec stty -echo ] say neighbour hang ]";
    let wrapper = "$TK -t 1 --new-session $FX say ready hang";
    shell.command(&format!("$FX {neighbour} call [ {wrapper} ] say caller read exit 0"));
    let neighbour = shell.expect_process("neighbour");
    shell.expect("ready");
    pidfd_send_signal(neighbour, Signal::USR1).expect("it is there");
    assert_eq!(shell.expect("returned"), "124");
    shell.expect("caller");
    assert!(!shell.echoes());
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

/// It has had the time to put the terminal back, and has left it as it wants it.
fn the_modes_stay_when_the_command_ended_itself_in_a_stop(backend: Backend) {
    for (program, status) in
        [("$TK -t 500ms -k 60", "124"), ("$TG -k 60 .5", "124"), ("$TK --idle-timeout 400ms", "197")]
    {
        modes_stay(backend, program, "stty -echo; exec $FX on TERM [ exit 1 ] hang", status);
    }
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
