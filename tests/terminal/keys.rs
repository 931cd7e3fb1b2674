//! Ctrl-C and Ctrl-\, and a new size: what the terminal sends reaches the command, once.

use rustix::process::{Signal, pidfd_send_signal};

use crate::common::running::open_process;
use crate::common::{Backend, Run, all_backends, both_backends, kin, needs};
use crate::pty::{CTRL_BACKSLASH, CTRL_C, CTRL_Z, Shell};

all_backends! {
    ctrl_c_ends_the_command_as_it_would_without_us
    ctrl_c_reaches_the_command_exactly_once
    ctrl_c_reaches_the_command_once_when_the_front_is_late
    ctrl_c_reaches_a_command_behind_a_deputy_once
    ctrl_c_ends_a_pipeline
}

both_backends! {
    ctrl_c_while_the_command_starts_ends_it
    a_front_that_cannot_tell_its_keeper_to_go_on_ends
    ctrl_z_while_the_command_starts_stops_it
    ctrl_c_is_no_stop_when_the_command_goes_on
    ctrl_c_twice_does_not_kill
    ctrl_c_ends_a_loop_at_the_prompt
    ctrl_c_ends_a_script_whose_command_died_of_it
    ctrl_c_lets_a_script_go_on_whose_command_handled_it
    ctrl_c_leaves_no_member_in_another_session
    ctrl_c_of_a_command_and_a_limit_after_it_work_together
    ctrl_c_of_make_ends_everything
    ctrl_z_gives_the_prompt_back_while_leftovers_are_waited_for
    ctrl_backslash_ends_the_command_as_it_would_without_us
    a_new_size_of_the_terminal_is_told_once
    under_gnu_ctrl_c_is_the_commands_too
}

/// Ends the foreground command, which takes USR1 for that. The keeper looks at what the terminal sent before it, since
/// lower signals are read first.
fn ask_to_end(shell: &Shell) {
    pidfd_send_signal(shell.foreground_leader(), Signal::USR1).expect("the wrapper is there");
}

fn ctrl_c_ends_the_command_as_it_would_without_us(backend: Backend) {
    let mut shell = Shell::new(backend);
    for line in ["$FX say ready hang", "$TK -k 60 $FX say ready hang"] {
        shell.command(line);
        shell.expect("ready");
        shell.key(CTRL_C);
        shell.ends_with(130);
        assert!(shell.has_terminal());
    }
    shell.leave();
}

/// The front reads it when the command runs already, which was not there when the terminal sent it: strace(1) makes the
/// birth of keeper and command take long, and the front look late.
const SLOWLY: &str = "strace -DDD -f -qq -o /dev/null -e inject=clone,clone3:delay_exit=300000:when=1 \
                      -e inject=prctl:delay_enter=150000:when=1 -e inject=ppoll:delay_exit=700000:when=1";

/// Starts the command, and gives the pid of its keeper once that is born.
fn start_slowly(shell: &mut Shell, command: &str) {
    shell.command(&format!("{SLOWLY} $TK -k 60 {command}"));
    shell.awaits_keeper();
}

fn ctrl_c_while_the_command_starts_ends_it(backend: Backend) {
    needs::require!("strace");
    let mut shell = Shell::new(backend);
    start_slowly(&mut shell, "$FX hang");
    shell.key(CTRL_C);
    shell.ends_with(130);
    shell.leave();
}

/// Front and keeper both have it, and each takes it to be one that the command has missed. That has its handler when the
/// keeper is the first to tell. Ended before that, it would have had the key once as well, and show nothing; so it does
/// where the keeper of an ordinary user has other files to write first than the gate's.
#[test]
fn ctrl_c_before_the_front_has_looked_reaches_the_command_once() {
    needs::require!("root", "pidns", "strace");
    let mut shell = Shell::new(Backend::Pidns);
    let late = "strace -DDD -f -qq -o /dev/null -e inject=rt_sigpending:delay_enter=1500000 \
                -e inject=recvfrom:delay_enter=600000 -e inject=write:delay_exit=1500000:when=1";
    shell.command(&format!("{late} $TK -k 60 $FX on INT [ say int ] on USR1 [ exit 42 ] say ready hang"));
    shell.awaits_keeper();
    shell.key(CTRL_C);
    shell.expect("ready");
    shell.expect("int");
    ask_to_end(&shell);
    shell.ends_with(42);
    shell.leave().said("int", 1);
}

#[test]
fn a_request_to_the_keeper_while_the_command_starts_ends_it() {
    needs::require!("strace");
    let mut shell = Shell::new(Backend::Subreaper);
    start_slowly(&mut shell, "$FX hang");
    let keeper = *kin::children(shell.foreground().as_raw_pid().unsigned_abs()).first().expect("it is born");
    let keeper = open_process(keeper).expect("it waits for the front");
    pidfd_send_signal(keeper, Signal::TERM).expect("it waits for the front");
    shell.ends_with(143);
    shell.leave();
}

fn a_front_that_cannot_tell_its_keeper_to_go_on_ends(backend: Backend) {
    needs::require!("strace");
    let mut shell = Shell::new(backend);
    let refusing = "strace -DDD -f -qq -o /dev/null -e inject=write:error=ENOMEM:when=1";
    shell.command(&format!("{refusing} $TK -k 60 $FX say started exit 0"));
    shell.ends_with(125);
    shell.leave().said("started", 0);
}

fn ctrl_z_while_the_command_starts_stops_it(backend: Backend) {
    needs::require!("strace");
    let mut shell = Shell::new(backend);
    start_slowly(&mut shell, "$FX on USR1 [ exit 42 ] say ready hang");
    shell.key(CTRL_Z);
    shell.ends_with(148);
    shell.resumes("fg", "hang");
    shell.expect("ready");
    ask_to_end(&shell);
    shell.ends_with(42);
    shell.leave();
}

/// The terminal's signal goes to the whole group, the front included, and the front must not pass it on again.
fn ctrl_c_reaches_the_command_exactly_once(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command(
        "$TK -k 60 $FX on INT [ say int ] on USR1 [ exit 42 ] fork [ on INT [ say childs-int ] hang ] say ready hang",
    );
    shell.expect("ready");
    shell.key(CTRL_C);
    shell.expect("int");
    ask_to_end(&shell);
    shell.ends_with(42);
    let ended = shell.leave();
    ended.said("int", 1);
    assert!(ended.count("childs-int") <= 1, "{ended}");
}

/// A front that has children of its own when it is born does not know when its keeper was.
fn ctrl_c_reaches_a_command_behind_a_deputy_once(backend: Backend) {
    let mut shell = Shell::new(backend);
    let command = "$TK -k 60 $FX on USR2 [ say looked ] on INT [ say int ] on USR1 [ exit 42 ] say ready hang";
    shell.command(&format!("sh -c 'sleep 1 & exec {command}'"));
    shell.expect("ready");
    // What comes before the front has looked counts as missed.
    pidfd_send_signal(shell.foreground_leader(), Signal::USR2).expect("the wrapper is there");
    shell.expect("looked");
    shell.key(CTRL_C);
    shell.expect("int");
    ask_to_end(&shell);
    shell.ends_with(42);
    shell.leave().said("int", 1);
}

/// A front that looks late at what came before the command, or that hears late of one that runs in its namespace: what it
/// reads then has reached the command all the same.
fn ctrl_c_reaches_the_command_once_when_the_front_is_late(backend: Backend) {
    needs::require!("strace");
    // It looks at the frame that says so before it takes it.
    let calls: &[&str] = if backend == Backend::Pidns { &["rt_sigpending", "recvfrom"] } else { &["rt_sigpending"] };
    for call in calls {
        let mut shell = Shell::new(backend);
        let late = format!("strace -DDD -f -qq -o /dev/null -e inject={call}:delay_enter=700000");
        shell.command(&format!("{late} $TK -k 60 $FX on INT [ say int ] on USR1 [ exit 42 ] say ready hang"));
        shell.expect("ready");
        shell.key(CTRL_C);
        shell.expect("int");
        ask_to_end(&shell);
        shell.ends_with(42);
        shell.leave().said("int", 1);
    }
}

/// The command decides what Ctrl-C means: no grace runs against it.
fn ctrl_c_is_no_stop_when_the_command_goes_on(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("$TK -k 100ms $FX on INT [ say int ] on USR1 [ exit 42 ] say ready hang");
    shell.expect("ready");
    shell.key(CTRL_C);
    shell.expect("int");
    // Another wrapper's limit is a clock that tells when that grace would have been over.
    Run::new(backend).options("-t 400ms").fixture("hang").finish().exited(124);
    ask_to_end(&shell);
    shell.ends_with(42);
    shell.leave();
}

fn ctrl_c_twice_does_not_kill(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("$TK -k 60 $FX on INT [ say int ] on USR1 [ exit 42 ] say ready hang");
    shell.expect("ready");
    for _ in 0..3 {
        shell.key(CTRL_C);
        shell.expect("int");
    }
    ask_to_end(&shell);
    shell.ends_with(42);
    shell.leave();
}

fn ctrl_c_ends_a_loop_at_the_prompt(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("for i in 1 2 3; do $TK -k 60 $FX say ready hang; done; $FX say after");
    shell.expect("ready");
    shell.key(CTRL_C);
    shell.ends_with(130);
    shell.leave().said("ready", 1).said("after", 0);
}

/// A shell that waits ends of INT when the command died of INT, and goes on when it did not: both have to be seen through us.
fn ctrl_c_ends_a_script_whose_command_died_of_it(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("bash -c 'while :; do $TK -k 60 $FX say ready hang; done; $FX say after'");
    shell.expect("ready");
    shell.key(CTRL_C);
    shell.ends_with(130);
    shell.leave().said("ready", 1).said("after", 0);
}

fn ctrl_c_lets_a_script_go_on_whose_command_handled_it(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("bash -c '$TK -k 60 $FX on INT [ say int exit 5 ] say ready hang; $FX say after exit 6'");
    shell.expect("ready");
    shell.key(CTRL_C);
    shell.expect("after");
    shell.ends_with(6);
    shell.leave().said("int", 1);
}

fn ctrl_c_ends_a_pipeline(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("$TK -k 60 $FX say first hang | $TK -k 60 $FX say second hang | cat");
    shell.expect("first");
    shell.expect("second");
    shell.key(CTRL_C);
    shell.ends_with(130);
    assert!(shell.has_terminal());
    shell.leave();
}

fn ctrl_c_leaves_no_member_in_another_session(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("$TK -k 60 $FX fork [ setsid say member hang ] daemon [ say daemon hang ] say ready hang");
    for word in ["member", "daemon", "ready"] {
        shell.expect(word);
    }
    shell.key(CTRL_C);
    shell.ends_with(130);
    shell.leave();
}

fn ctrl_c_of_a_command_and_a_limit_after_it_work_together(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("$TK -t 2 -k 60 $FX on INT [ say int ] on TERM [ say term exit 1 ] say ready hang");
    shell.expect("ready");
    shell.key(CTRL_C);
    shell.expect("int");
    shell.ends_with(124);
    shell.leave().said("int", 1).said("term", 1);
}

/// Jobs of make share the terminal, and make waits for them after Ctrl-C.
fn ctrl_c_of_make_ends_everything(backend: Backend) {
    needs::require!("make");
    let mut shell = Shell::new(backend);
    let rules = "all: a b\na b:; $(TK) -k 60 $(FX) fork [ setsid hang ] say $@ hang\n";
    shell.scratch.file("Makefile", rules.as_bytes(), 0o644);
    shell.command("make -sj2");
    shell.expect("a");
    shell.expect("b");
    shell.key(CTRL_C);
    let shown = shell.prompt();
    assert!(shown == 130 || shown == 2, "{shown}");
    shell.leave();
}

fn ctrl_backslash_ends_the_command_as_it_would_without_us(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.does("ulimit -c 0", 0);
    for line in ["$FX say ready hang", "$TK -k 60 $FX say ready hang"] {
        shell.command(line);
        shell.expect("ready");
        shell.key(CTRL_BACKSLASH);
        shell.ends_with(131);
    }
    shell.leave();
}

fn a_new_size_of_the_terminal_is_told_once(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("$TK $FX on WINCH [ say winch ] on USR1 [ exit 42 ] say ready hang");
    shell.expect("ready");
    shell.resize(3000);
    shell.expect("winch");
    ask_to_end(&shell);
    shell.ends_with(42);
    shell.leave().said("winch", 1);
}

fn under_gnu_ctrl_c_is_the_commands_too(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("$TG -k 60 60 $FX on INT [ say int exit 3 ] say ready hang");
    shell.expect("ready");
    shell.key(CTRL_C);
    shell.ends_with(3);
    shell.command("$TG -k 60 60 $FX say ready hang");
    shell.expect("ready");
    shell.key(CTRL_C);
    shell.ends_with(130);
    shell.leave().said("int", 1);
}

/// The command is gone, and the job is what it left.
fn ctrl_z_gives_the_prompt_back_while_leftovers_are_waited_for(backend: Backend) {
    let mut shell = Shell::new(backend);
    // One that the terminal's own signal ended in time would be no leftover.
    shell.command("$TK -t 60 -k 0.1 --leftovers wait $FX fork [ ignore INT say member hang ] say ready exit 0");
    let member = shell.expect("member");
    let command = shell.expect("ready");
    shell.awaits("the command is still there", || {
        let pid = member.parse().expect("a PID");
        kin::state_and_parent(pid).is_some_and(|(_, parent)| parent.to_string() != command)
    });
    shell.key(CTRL_Z);
    shell.ends_with(148);
    shell.stops(&member);
    shell.resumes("fg", "say ready exit 0");
    shell.goes_on(&member);
    shell.key(CTRL_C);
    shell.ends_with(193);
    shell.leave();
}
