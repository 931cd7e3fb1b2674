//! Job control: Ctrl-Z, fg and bg, and the clock of a stopped job.

use std::fs;
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::time::Instant;

use rustix::process::{Signal, pidfd_send_signal};

use crate::common::running::{is_dead, open_process, state_of};
use crate::common::{BOUND, Backend, Run, all_backends, both_backends, kin, needs};
use crate::pty::{CTRL_C, CTRL_Z, Shell};

/// What bash shows of a job that SIGTSTP stopped. A job that is ended while it is stopped is disowned, since bash may take
/// it for a stopped one for ever.
const STOPPED: i32 = 128 + 20;

all_backends! {
    ctrl_z_gives_the_prompt_back_and_fg_goes_on
    ctrl_z_and_bg_go_on_in_the_background
    ctrl_z_stops_a_pipeline
    a_stopped_job_whose_wrapper_is_killed_leaves_nothing
}

both_backends! {
    ctrl_z_and_fg_many_times
    ctrl_z_right_after_fg_is_not_lost
    a_stop_of_the_own_group_that_is_heard_after_fg_stops_nothing
    ctrl_c_while_the_keeper_leaves_a_dead_shells_session_is_the_commands
    ctrl_z_stops_a_script_around_the_command
    ctrl_z_reaches_a_command_that_handles_it
    the_clock_stands_still_while_the_job_is_stopped
    under_gnu_the_clock_runs_while_the_job_is_stopped
    a_command_stopped_by_sigstop_does_not_stop_the_clock
    a_command_that_is_continued_alone_takes_its_job_along
    a_stopped_job_can_be_ended
    two_jobs_take_turns
}

fn ctrl_z_gives_the_prompt_back_and_fg_goes_on(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("$TK $FX on CONT [ say cont ] on USR1 [ exit 42 ] say ready hang");
    let command = shell.expect("ready");
    let wrapper = shell.foreground_leader();
    shell.key(CTRL_Z);
    shell.ends_with(STOPPED);
    assert!(shell.has_terminal());
    assert_eq!(state_of(&command), Some('T'));
    shell.command("jobs");
    shell.sees("Stopped");
    shell.ends_with(0);
    shell.command("fg");
    shell.expect("cont");
    pidfd_send_signal(&wrapper, Signal::USR1).expect("the wrapper is there");
    shell.ends_with(42);
    assert!(shell.has_terminal());
    shell.leave();
}

fn ctrl_z_and_bg_go_on_in_the_background(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("$TK $FX on CONT [ say cont ] on USR1 [ exit 42 ] say ready hang");
    shell.expect("ready");
    shell.key(CTRL_Z);
    shell.ends_with(STOPPED);
    shell.does("bg", 0);
    shell.expect("cont");
    assert!(shell.has_terminal());
    shell.command("jobs");
    shell.sees("Running");
    shell.ends_with(0);
    shell.does("kill -USR1 %1; wait %1", 42);
    shell.leave();
}

fn ctrl_z_and_fg_many_times(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command(&format!("$TK -t 60 $FX {RESUMABLE} on TERM [ exit 3 ] say ready hang"));
    shell.expect("ready");
    let wrapper = shell.foreground_leader();
    for round in 0..10 {
        shell.key(CTRL_Z);
        shell.ends_with(STOPPED);
        shell.command("fg");
        resumes(&mut shell, &wrapper, "cont");
        assert!(!shell.has_terminal(), "round {round}");
    }
    shell.key(CTRL_Z);
    shell.ends_with(STOPPED);
    shell.does("kill %1; disown -a", 0);
    assert!(is_dead(wrapper, BOUND), "the job stays stopped");
    shell.leave();
}

/// The shell continues the whole job, and what the wrapper still passes on of that must not undo the next stop.
fn ctrl_z_right_after_fg_is_not_lost(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("$TK -t 60 $FX say ready hang");
    let command = shell.expect("ready");
    let wrapper = shell.foreground().as_raw_pid().to_string();
    for _ in 0..20 {
        shell.key(CTRL_Z);
        shell.ends_with(STOPPED);
        assert!(shell.has_terminal());
        shell.stops(&command);
        shell.resumes("fg", "say ready hang\r\n");
        shell.goes_on(&command);
        shell.goes_on(&wrapper);
    }
    shell.key(CTRL_C);
    shell.ends_with(130);
    shell.leave();
}

/// An editor suspends its whole group by kill(2), which is no signal of the terminal's. strace(1) makes the front tell of
/// that when it has been told of the stop already, and the keeper hear it after fg.
fn a_stop_of_the_own_group_that_is_heard_after_fg_stops_nothing(backend: Backend) {
    needs::require!("strace");
    let mut shell = Shell::new(backend);
    let script = r#"trap "exit 42" USR1; read -r; echo ready $$ >&9; read -r; kill -TSTP 0; echo on $$ >&9; read -r"#;
    shell.command(&format!("$TK -k 60 bash -c '{script}'"));
    shell.awaits_keeper();
    shell.command("");
    shell.expect("ready");
    let front = shell.foreground().as_raw_pid().unsigned_abs();
    let keeper = *kin::children(front).first().expect("the front has a keeper");
    // The front hears of the signal late, and the keeper of everything after the stop.
    let tracers =
        [slow_down(front, "ppoll:delay_exit=500000:when=1"), slow_down(keeper, "ppoll:delay_enter=3000000:when=2")];
    shell.command("");
    shell.ends_with(STOPPED);
    shell.command("fg");
    shell.expect("on");
    // The keeper hears this last: what stopped the command before would show as its end.
    pidfd_send_signal(shell.foreground_leader(), Signal::USR1).expect("the wrapper is there");
    shell.ends_with(42);
    for mut tracer in tracers {
        tracer.wait().expect("it is our child");
    }
    shell.leave();
}

/// The keeper leaves the session by way of the caller's group, to which the terminal sends.
fn ctrl_c_while_the_keeper_leaves_a_dead_shells_session_is_the_commands(backend: Backend) {
    needs::require!("strace");
    let job = "$TK -k 1 $FX on INT [ say int ] on USR1 [ exit 42 ] say ready hang";
    let script = format!("bash -mc '{job}; :'; exec $FX on TERM [ exit 0 ] say caller hang");
    let mut shell = Shell::on_terminal(Run::control(["bash", "-c", &script]), backend);
    shell.expect("ready");
    let front = shell.foreground().as_raw_pid().unsigned_abs();
    let keeper = *kin::children(front).first().expect("the front has a keeper");
    let mut tracer = slow_down(keeper, "setsid:delay_enter=700000");
    let (_, inner_shell) = kin::state_and_parent(front).expect("it runs");
    let inner_shell = open_process(inner_shell).expect("it waits for its job");
    pidfd_send_signal(inner_shell, Signal::KILL).expect("it waits for its job");
    shell.expect("caller");
    let awaits = |what: &str, there: &dyn Fn((u32, u32)) -> bool| {
        let deadline = Instant::now() + BOUND;
        while !kin::group_and_session(keeper).is_some_and(there) {
            assert!(Instant::now() < deadline, "the keeper does not {what}");
            std::thread::yield_now();
        }
    };
    awaits("go back into the job's group", &|(group, _)| group == front);
    shell.key(CTRL_C);
    shell.expect("int");
    awaits("leave the session", &|(_, session)| session == keeper);
    let wrapper = shell.foreground_leader();
    pidfd_send_signal(&wrapper, Signal::USR1).expect("the wrapper is there");
    assert!(is_dead(&wrapper, BOUND), "the command does not end");
    tracer.wait().expect("it is our child");
    shell.signal(Signal::TERM);
    shell.wait().said("int", 1);
}

/// Has strace(1) delay a system call of this process.
fn slow_down(pid: u32, delay: &str) -> Child {
    let tracer = Command::new("strace")
        .args(["-qq", "-o", "/dev/null", "-e", &format!("inject={delay}"), "-p", &pid.to_string()])
        .spawn()
        .expect("strace can be started");
    let is_traced =
        || fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|text| !text.contains("TracerPid:\t0\n"));
    while !is_traced() {
        std::thread::yield_now();
    }
    tracer
}

const RESUMABLE: &str = "on CONT [ say cont ] on WINCH [ say winch ]";

/// Waits until a job with the handlers above goes on. The wrapper, continued like everybody else in the group, has then
/// looked at what it passes on of that: WINCH comes behind it.
fn resumes(shell: &mut Shell, wrapper: &OwnedFd, word: &str) {
    shell.expect(word);
    pidfd_send_signal(wrapper, Signal::WINCH).expect("the wrapper is there");
    shell.expect("winch");
}

fn ctrl_z_stops_a_script_around_the_command(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("bash -c '$TK $FX say ready read say gone-on; $FX say after exit 7'");
    let command = shell.expect("ready");
    shell.key(CTRL_Z);
    shell.ends_with(STOPPED);
    shell.stops(&command);
    shell.resumes("fg", "say gone-on");
    // It has read what was typed, or it would not have gone on.
    shell.command("a line");
    shell.expect("gone-on");
    shell.expect("after");
    shell.ends_with(7);
    shell.leave();
}

fn ctrl_z_stops_a_pipeline(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("$FX say head read print line | $TK $FX say ready read exit 4");
    let head = shell.expect("head");
    let command = shell.expect("ready");
    shell.key(CTRL_Z);
    shell.ends_with(STOPPED);
    shell.stops(&head);
    shell.stops(&command);
    shell.resumes("fg", "exit 4");
    shell.command("a line");
    shell.ends_with(4);
    shell.leave();
}

/// Editors tidy the screen up first, then stop their whole group as the terminal would have.
fn ctrl_z_reaches_a_command_that_handles_it(backend: Backend) {
    needs::require!("python3");
    let mut shell = Shell::new(backend);
    shell.scratch.file("editor.py", EDITOR.as_bytes(), 0o644);
    shell.command("$TK -t 60 python3 editor.py");
    let command = shell.expect("ready");
    let wrapper = shell.foreground_leader();
    for _ in 0..3 {
        // A signal just before it waits for a line would be looked at with that line only.
        shell.goes_on(&command);
        shell.key(CTRL_Z);
        shell.ends_with(STOPPED);
        shell.resumes("fg", "editor.py");
        resumes(&mut shell, &wrapper, "resumed");
    }
    shell.command("quit");
    shell.ends_with(7);
    shell.leave().said("tidied", 3);
}

const EDITOR: &str = r#"
import os, signal, sys
def stop(*_):
    os.write(9, b"tidied 1\n")
    signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    os.kill(0, signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, stop)
    os.write(9, b"resumed 1\n")
signal.signal(signal.SIGTSTP, stop)
signal.signal(signal.SIGWINCH, lambda *_: os.write(9, b"winch 1\n"))
os.write(9, b"ready %d\n" % os.getpid())
sys.stdin.readline()
os._exit(7)
"#;

/// The limit passes while the job is stopped; a second wrapper with a longer one tells when.
fn the_clock_stands_still_while_the_job_is_stopped(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("$TK -t 2 $FX on TERM [ say term exit 1 ] say ready hang");
    shell.expect("ready");
    shell.key(CTRL_Z);
    shell.ends_with(STOPPED);
    shell.does("$TK -t 2500ms $FX say clock hang", 124);
    shell.command("jobs");
    shell.sees("Stopped");
    shell.ends_with(0);
    shell.command("$FX say resumed; fg");
    shell.expect("resumed");
    shell.expect("term");
    shell.ends_with(124);
    let ended = shell.leave();
    let at = |word: &str| ended.lines.iter().position(|line| line.starts_with(word));
    assert!(at("term") > at("resumed"), "{ended}");
}

fn under_gnu_the_clock_runs_while_the_job_is_stopped(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("$TG 2 $FX on TERM [ say term exit 1 ] say ready hang");
    shell.expect("ready");
    let wrapper = shell.foreground_leader();
    shell.key(CTRL_Z);
    shell.ends_with(STOPPED);
    shell.expect("term");
    assert!(is_dead(wrapper, BOUND));
    shell.notices("", "Exit 124");
    shell.leave();
}

/// Only what the terminal stops stops the clock: a tree that stops itself can't escape its limit.
fn a_command_stopped_by_sigstop_does_not_stop_the_clock(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.does("$TK -t 500ms $FX on TERM [ say term exit 1 ] kill self STOP hang", 124);
    shell.leave().said("term", 1);
}

/// By a signal to the command that the shell knows nothing of: a job that stayed stopped could never be waited for.
fn a_command_that_is_continued_alone_takes_its_job_along(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("$TK -k 60 $FX on CONT [ say cont ] on USR1 [ exit 5 ] say ready hang");
    let command = shell.expect_process("ready");
    let wrapper = shell.foreground_leader();
    shell.key(CTRL_Z);
    shell.ends_with(STOPPED);
    pidfd_send_signal(&command, Signal::CONT).expect("it is stopped");
    shell.expect("cont");
    pidfd_send_signal(&command, Signal::USR1).expect("it goes on");
    assert!(is_dead(wrapper, BOUND), "the wrapper stays stopped though its command has ended");
    shell.notices("", "Exit 5");
    shell.leave();
}

fn a_stopped_job_can_be_ended(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("$TK -k 60 $FX daemon [ say daemon hang ] say ready hang");
    shell.expect("daemon");
    shell.expect("ready");
    let wrapper = shell.foreground_leader();
    shell.key(CTRL_Z);
    shell.ends_with(STOPPED);
    shell.does("kill %1; disown -a", 0);
    assert!(is_dead(wrapper, BOUND), "the job stays stopped");
    shell.leave();
}

fn a_stopped_job_whose_wrapper_is_killed_leaves_nothing(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("$TK -k 60 $FX fork [ setsid say member hang ] say ready hang");
    let member = shell.expect_process("member");
    let command = shell.expect_process("ready");
    let wrapper = shell.foreground_leader();
    shell.key(CTRL_Z);
    shell.ends_with(STOPPED);
    pidfd_send_signal(wrapper, Signal::KILL).expect("it is stopped");
    assert!(is_dead(member, BOUND) && is_dead(command, BOUND), "the tree lives on");
    shell.notices("", "Killed");
    shell.leave();
}

fn two_jobs_take_turns(backend: Backend) {
    let mut shell = Shell::new(backend);
    let mut wrappers = vec![];
    for word in ["one", "two"] {
        shell.command(&format!("$TK -t 60 $FX {RESUMABLE} on USR1 [ exit 42 ] say {word} hang"));
        shell.expect(word);
        wrappers.push(shell.foreground_leader());
        shell.key(CTRL_Z);
        shell.ends_with(STOPPED);
    }
    for (job, wrapper) in [("%1", 0), ("%2", 1), ("%1", 0)] {
        shell.command(&format!("fg {job}"));
        resumes(&mut shell, &wrappers[wrapper], "cont");
        shell.key(CTRL_Z);
        shell.ends_with(STOPPED);
        assert!(shell.has_terminal());
    }
    shell.notices("bg %1; kill -USR1 %1", "Exit 42");
    shell.notices("bg %2; kill -USR1 %2", "Exit 42");
    shell.leave();
}
