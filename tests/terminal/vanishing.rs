//! The terminal is hung up: what would have ended without us ends, all of it, and nothing stays.

use rustix::process::{Signal, pidfd_send_signal};

use crate::common::running::is_dead;
use crate::common::{BOUND, Backend, Run, all_backends, both_backends};
use crate::pty::{CTRL_Z, Shell};

all_backends! {
    a_hang_up_ends_the_foreground_job_and_its_whole_tree
}

both_backends! {
    a_hang_up_reaches_a_command_that_handles_it
    a_hang_up_ends_a_background_job
    a_hang_up_ends_a_stopped_job
    a_hang_up_ends_a_stubborn_tree_after_its_grace
    a_hang_up_that_the_caller_ignores_changes_nothing
    the_death_of_the_shell_ends_the_job
    a_hang_up_reaches_the_command_of_a_wrapper_that_leads_the_session
    a_terminal_that_vanished_does_not_hinder_the_limit
    under_gnu_a_hang_up_ends_the_whole_tree
}

const TREE: &str = "fork [ setsid say member hang ] daemon [ say daemon hang ] fork [ say child hang ] say ready hang";

fn says_all(shell: &mut Shell) {
    for word in ["member", "daemon", "child", "ready"] {
        shell.expect(word);
    }
}

fn a_hang_up_ends_the_foreground_job_and_its_whole_tree(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command(&format!("$TK -k 60 $FX {TREE}"));
    says_all(&mut shell);
    shell.hang_up();
    shell.all_die();
}

fn a_hang_up_reaches_a_command_that_handles_it(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("$TK -k 60 $FX on HUP [ say hup exit 0 ] fork [ setsid on HUP [ say members-hup exit 0 ] say member hang ] say ready hang");
    shell.expect("member");
    shell.expect("ready");
    shell.hang_up();
    shell.expect("hup");
    shell.expect("members-hup");
    shell.all_die();
}

fn a_hang_up_ends_a_background_job(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.does(&format!("$TK -k 60 $FX {TREE} &"), 0);
    says_all(&mut shell);
    shell.hang_up();
    shell.all_die();
}

fn a_hang_up_ends_a_stopped_job(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command(&format!("$TK -k 60 $FX {TREE}"));
    says_all(&mut shell);
    shell.key(CTRL_Z);
    shell.ends_with(148);
    shell.hang_up();
    shell.all_die();
}

fn a_hang_up_ends_a_stubborn_tree_after_its_grace(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("$TK -k 300ms $FX ignore HUP fork [ setsid ignore HUP say member hang ] say ready hang");
    shell.expect("member");
    shell.expect("ready");
    shell.hang_up();
    shell.all_die();
}

/// nohup(1).
fn a_hang_up_that_the_caller_ignores_changes_nothing(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("(trap '' HUP; exec $TK -k 60 $FX parent keeper on USR1 [ say usr1 exit 0 ] say ready hang)");
    let keeper = shell.expect_process("keeper");
    shell.expect("ready");
    shell.hang_up();
    // The shell is gone, and with it the session's terminal.
    shell.wait();
    pidfd_send_signal(keeper, Signal::USR1).expect("the keeper is there");
    shell.expect("usr1");
    shell.all_die();
}

/// The kernel then hangs the foreground up (`setsid(2)`, `tty_ioctl(4)`).
fn the_death_of_the_shell_ends_the_job(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command(&format!("$TK -k 60 $FX {TREE}"));
    says_all(&mut shell);
    shell.signal(Signal::KILL);
    shell.all_die();
}

/// `xterm -e`, `ssh -t`: the kernel tells nobody but the leader of the session when the terminal goes.
fn a_hang_up_reaches_the_command_of_a_wrapper_that_leads_the_session(backend: Backend) {
    let run = Run::new(backend).options("-k 60").may_leave();
    let steps =
        "on HUP [ say hup exit 0 ] fork [ setsid on HUP [ say members-hup exit 0 ] say member hang ] say ready hang";
    let mut shell = Shell::on_terminal(run.fixture(steps), backend);
    shell.expect("member");
    shell.expect("ready");
    shell.hang_up();
    shell.expect("hup");
    shell.expect("members-hup");
    shell.all_die();
}

fn a_terminal_that_vanished_does_not_hinder_the_limit(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("(trap '' HUP; exec $TK -t 1 -k 200ms $FX ignore TERM say ready hang)");
    let command = shell.expect_process("ready");
    shell.hang_up();
    shell.wait();
    assert!(is_dead(command, BOUND));
    shell.all_die();
}

fn under_gnu_a_hang_up_ends_the_whole_tree(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command(&format!("$TG 60 $FX {TREE}"));
    says_all(&mut shell);
    shell.hang_up();
    shell.all_die();
}
