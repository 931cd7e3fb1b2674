//! Programs that people run at a terminal: interpreters, pagers, editors, prompts.

use crate::common::{Backend, all_backends, both_backends, needs};
use crate::pty::{CTRL_C, CTRL_D, CTRL_Z, Shell};

all_backends! {
    a_question_on_the_terminal_can_be_answered
    an_interactive_shell_has_job_control_of_its_own
}

both_backends! {
    ctrl_c_in_an_interpreter_does_not_end_it
    a_question_in_a_script_can_be_answered
    a_password_is_not_echoed
    the_command_can_be_the_head_of_a_pipeline
    the_command_can_be_the_tail_of_a_pipeline
    an_early_end_of_the_reader_is_a_broken_pipe_as_without_us
    a_pager_reads_keys_and_gives_the_terminal_back
    a_pager_can_be_the_command
    an_editor_edits_stops_and_goes_on
    stty_reads_and_changes_the_terminal
    control_d_is_an_end_of_file
}

/// A REPL survives Ctrl-C.
fn ctrl_c_in_an_interpreter_does_not_end_it(backend: Backend) {
    needs::require!("python3");
    let mut shell = Shell::new(backend);
    shell.command("$TK -k 60 python3 -q -i -c ''");
    shell.sees(">>> ");
    for round in 0..2 {
        // Busy, where nothing but the signal can end it.
        shell.command("import os; os.write(9, b'busy 1\\n'); exec('while True: pass')");
        shell.expect("busy");
        shell.key(CTRL_C);
        shell.sees("KeyboardInterrupt");
        shell.sees(">>> ");
        shell.command(&format!("print(6 * 7 + {round})"));
        shell.sees(&format!("\n{}", 42 + round));
        shell.sees(">>> ");
    }
    shell.command("exit(3)");
    shell.ends_with(3);
    shell.leave();
}

fn a_question_on_the_terminal_can_be_answered(backend: Backend) {
    let mut shell = Shell::new(backend);
    let script = "echo ready 1 >&9; read -r line </dev/tty; echo \"got:$line\" >/dev/tty; exit 5";
    for program in ["$TK", "$TK --foreground", "$TG 60", "$TG --foreground 60"] {
        shell.command(&format!("{program} bash -c '{script}' </dev/null >/dev/null"));
        shell.expect("ready");
        shell.command("an answer");
        shell.sees("got:an answer");
        shell.ends_with(5);
    }
    shell.leave();
}

fn a_question_in_a_script_can_be_answered(backend: Backend) {
    let mut shell = Shell::new(backend);
    let script = "set -e\n$TK -t 60 bash -c 'echo ready 1 >&9; read -r line; echo \"got:$line\"'\necho rc=$? >&2\n";
    shell.scratch.file("script", script.as_bytes(), 0o755);
    shell.command("bash script");
    shell.expect("ready");
    shell.command("an answer");
    shell.sees("got:an answer");
    shell.sees("rc=0");
    shell.ends_with(0);
    shell.leave();
}

fn a_password_is_not_echoed(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("$TK bash -c 'stty -echo; echo ready 1 >&9; read -r line; stty echo; echo ${#line} letters'");
    shell.expect("ready");
    shell.command("secret");
    shell.sees("6 letters");
    shell.ends_with(0);
    assert!(!shell.screen().contains("secret"), "{}", shell.screen());
    shell.leave();
}

fn the_command_can_be_the_head_of_a_pipeline(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("$TK bash -c 'echo ready 1 >&9; exec cat' | tr a-z A-Z");
    shell.expect("ready");
    shell.command("hello");
    shell.sees("HELLO");
    shell.key(CTRL_D);
    shell.ends_with(0);
    shell.leave();
}

fn the_command_can_be_the_tail_of_a_pipeline(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("cat | $TK bash -c 'echo ready 1 >&9; tr a-z A-Z; exit 8'");
    shell.expect("ready");
    shell.command("hello");
    shell.key(CTRL_D);
    shell.sees("HELLO");
    shell.ends_with(8);
    shell.leave();
}

fn an_early_end_of_the_reader_is_a_broken_pipe_as_without_us(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("$TK yes | head -n 1; echo \"${PIPESTATUS[@]}\" = status");
    shell.sees("141 0 = status");
    shell.ends_with(0);
    shell.leave();
}

fn a_pager_reads_keys_and_gives_the_terminal_back(backend: Backend) {
    needs::require!("less");
    let mut shell = Shell::new(backend);
    shell.command("$TK seq 5000 | TERM=vt100 less");
    shell.sees("49");
    shell.keys(b"G");
    shell.sees("5000");
    shell.keys(b"q");
    shell.prompt();
    assert!(shell.has_terminal());
    shell.leave();
}

fn a_pager_can_be_the_command(backend: Backend) {
    needs::require!("less");
    let mut shell = Shell::new(backend);
    shell.command("seq 5000 | TERM=vt100 $TK less");
    shell.sees("49");
    shell.keys(b"G");
    shell.sees("5000");
    shell.key(CTRL_Z);
    // What bash shows of a pipeline whose first command has ended already.
    shell.ends_with(128);
    shell.resumes("fg", "less");
    shell.keys(b"q");
    shell.ends_with(0);
    assert!(shell.has_terminal());
    shell.leave();
}

fn an_editor_edits_stops_and_goes_on(backend: Backend) {
    needs::require!("vi");
    let mut shell = Shell::new(backend);
    shell.command("TERM=vt100 $TK vi -u NONE -i NONE -n text");
    // The line of a buffer's end.
    shell.sees("~");
    shell.keys(b"ifirst\x1b");
    shell.sees("first");
    shell.key(CTRL_Z);
    shell.ends_with(148);
    assert!(shell.has_terminal());
    // Drawn again after bash has named the job.
    shell.resumes("fg", "NONE -n text");
    shell.sees("first");
    shell.keys(b"osecond\x1b:wq\r");
    shell.ends_with(0);
    let text = std::fs::read_to_string(shell.scratch.join("text"));
    assert_eq!(text.ok().as_deref(), Some("first\nsecond\n"));
    shell.leave();
}

fn stty_reads_and_changes_the_terminal(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("$TK stty size");
    shell.sees("50 4000");
    shell.ends_with(0);
    shell.does("$TK stty intr ^P", 0);
    shell.command("$TK stty -a");
    shell.sees("intr = ^P");
    shell.ends_with(0);
    shell.leave();
}

/// Its jobs get groups of their own, and those must be able to stop.
fn an_interactive_shell_has_job_control_of_its_own(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("$TK bash --norc --noprofile -i");
    shell.ends_with(0);
    shell.command("$FX say ready hang");
    shell.expect("ready");
    shell.key(CTRL_C);
    shell.ends_with(130);
    shell.command("$FX on CONT [ say cont ] say ready hang");
    shell.expect("ready");
    shell.key(CTRL_Z);
    shell.ends_with(148);
    shell.command("fg");
    shell.expect("cont");
    shell.key(CTRL_C);
    shell.ends_with(130);
    shell.does("exit 9", 9);
    assert!(shell.has_terminal());
    shell.leave();
}

fn control_d_is_an_end_of_file(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("$TK $FX say ready read exit 3");
    shell.expect("ready");
    shell.key(CTRL_D);
    shell.ends_with(3);
    shell.leave();
}
