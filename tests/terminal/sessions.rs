//! `--new-session` keeps the tree off the terminal; `--foreground` needs none.

use rustix::process::{Signal, pidfd_send_signal};

use crate::common::{Backend, Run, all_backends, both_backends};
use crate::pty::{CTRL_BACKSLASH, CTRL_C, CTRL_Z, LONG, Shell};

all_backends! {
    ctrl_z_stops_nothing_that_nobody_could_continue
    in_a_new_session_the_terminal_cannot_be_opened
    in_a_new_session_ctrl_z_stops_the_wrapper_and_fg_goes_on
}

both_backends! {
    in_a_new_session_ctrl_c_is_passed_on
    in_a_new_session_ctrl_c_twice_kills
    in_a_new_session_ctrl_backslash_is_passed_on
    in_a_new_session_the_whole_tree_stops_and_goes_on
    in_a_new_session_a_hang_up_ends_the_tree
    foreground_without_a_terminal_works
    a_group_of_its_own_in_the_foreground_is_the_commands
}

/// A command of `ssh -t`, of script(1) or of a terminal emulator leads its session, or a script does that has it in its
/// group: no shell with job control is there, and the kernel ignores the key.
fn ctrl_z_stops_nothing_that_nobody_could_continue(backend: Backend) {
    let leader = Run::new(backend).options("-k 60").fixture("say ready read exit 5");
    let script = "$TK -k 60 $FX say ready read exit 5; exit $?";
    for run in [leader, Run::control(["sh", "-c", script])] {
        let mut terminal = Shell::on_terminal(run, backend);
        terminal.expect("ready");
        terminal.key(CTRL_Z);
        // Stopped, it would not get this.
        terminal.command("");
        terminal.wait().exited(5);
    }
}

fn in_a_new_session_the_terminal_cannot_be_opened(backend: Backend) {
    let mut shell = Shell::new(backend);
    let script = "if (: </dev/tty) 2>/dev/null; then exit 1; else exit 42; fi";
    shell.does(&format!("$TK bash -c '{script}'"), 1);
    shell.does(&format!("$TK --new-session bash -c '{script}'"), 42);
    shell.does(&format!("$TK --new-session bash -c '{script}' & wait $!"), 42);
    shell.does(&format!("$TG --new-session 60 bash -c '{script}'"), 42);
    assert!(shell.has_terminal());
    shell.leave();
}

fn in_a_new_session_ctrl_c_is_passed_on(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("$TK -k 60 --new-session $FX on INT [ say int exit 7 ] say ready hang");
    shell.expect("ready");
    shell.key(CTRL_C);
    shell.ends_with(7);
    shell.command("for i in 1 2 3; do $TK -k 60 --new-session $FX daemon [ hang ] say ready hang; done");
    shell.expect("ready");
    shell.key(CTRL_C);
    shell.ends_with(130);
    shell.leave().said("int", 1).said("ready", 2);
}

fn in_a_new_session_ctrl_c_twice_kills(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("$TK -k 60 --new-session $FX on INT [ say int ] say ready hang");
    shell.expect("ready");
    shell.key(CTRL_C);
    shell.expect("int");
    // A repeat counts only some time after the first.
    Run::new(backend).options("-t 300ms").fixture("hang").finish().exited(124);
    shell.key(CTRL_C);
    shell.ends_with(137);
    shell.leave().said("int", 1);
}

fn in_a_new_session_ctrl_backslash_is_passed_on(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.does("ulimit -c 0", 0);
    shell.command("$TK -k 60 --new-session $FX on QUIT [ say quit exit 8 ] say ready hang");
    shell.expect("ready");
    shell.key(CTRL_BACKSLASH);
    shell.ends_with(8);
    shell.leave().said("quit", 1);
}

/// By default a group without a parent in its session ignores what Ctrl-Z sends (setpgid(2)), so the tree is stopped in
/// another way.
fn in_a_new_session_ctrl_z_stops_the_wrapper_and_fg_goes_on(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("$TK -k 60 --new-session $FX on CONT [ say cont ] on USR1 [ exit 42 ] say ready hang");
    let command = shell.expect("ready");
    let wrapper = shell.foreground_leader();
    for _ in 0..3 {
        shell.key(CTRL_Z);
        shell.ends_with(148);
        assert!(shell.has_terminal());
        shell.stops(&command);
        shell.resumes("fg", "say ready hang");
        shell.expect("cont");
    }
    pidfd_send_signal(wrapper, Signal::USR1).expect("the wrapper is there");
    shell.ends_with(42);
    shell.leave();
}

/// Members have sessions of their own, one may be continued by somebody else, and GNU's rules are no exception.
fn in_a_new_session_the_whole_tree_stops_and_goes_on(backend: Backend) {
    for wrapper in ["$TK -k 60 --new-session", "$TG -k 60 --new-session 60"] {
        let mut shell = Shell::new(backend);
        shell.command(&format!("{wrapper} $FX fork [ setsid say member hang ] on USR1 [ exit 42 ] say ready hang"));
        let tree = [shell.expect("member"), shell.expect("ready")];
        let wrapper = shell.foreground_leader();
        shell.key(CTRL_Z);
        shell.ends_with(148);
        tree.iter().for_each(|pid| shell.stops(pid));
        shell.does(&format!("kill -CONT {}", tree[1]), 0);
        shell.goes_on(&tree[1]);
        shell.resumes("fg", "say ready hang");
        tree.iter().for_each(|pid| shell.goes_on(pid));
        pidfd_send_signal(wrapper, Signal::USR1).expect("the wrapper is there");
        shell.ends_with(42);
        shell.leave();
    }
}

fn in_a_new_session_a_hang_up_ends_the_tree(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("$TK -k 60 --new-session $FX fork [ setsid say member hang ] daemon [ hang ] say ready hang");
    shell.expect("member");
    shell.expect("ready");
    shell.hang_up();
    shell.all_die();
}

fn foreground_without_a_terminal_works(backend: Backend) {
    let run = || Run::new(backend).options("--foreground -t 300ms -k 200ms");
    run().fixture("exit 4").finish().exited(4);
    run().fixture("hang").finish().exited(124).took_less_than(LONG);
    run().fixture("daemon [ ignore TERM hang ] ignore TERM hang").finish().exited(137).took_less_than(LONG);
}

/// As a job of `set -m` it leads a group that has the terminal.
fn a_group_of_its_own_in_the_foreground_is_the_commands(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("bash -mc '$TK -t 60 bash -c \"echo ready 1 >&9; read -r line </dev/tty; exit 6\"; exit $?'");
    shell.expect("ready");
    shell.command("an answer");
    shell.ends_with(6);
    assert!(shell.has_terminal());
    shell.leave();
}
