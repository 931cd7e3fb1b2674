//! Background jobs, and who reads the terminal from there or sets it: that stops a job, and no limit waits for its return.

use rustix::process::{Signal, pidfd_send_signal};

use crate::common::running::{is_dead, open_process};
use crate::common::{BOUND, Backend, all_backends, both_backends};
use crate::pty::{CTRL_C, CTRL_Z, Shell};

all_backends! {
    a_background_command_that_reads_the_terminal_stops_its_job
    a_job_that_waits_for_the_terminal_ends_at_its_limit
    without_job_control_a_command_that_touches_the_terminal_ends_at_its_limit
}

both_backends! {
    a_background_job_runs_and_is_waited_for
    a_background_job_writes_to_the_terminal
    ctrl_c_at_the_prompt_does_not_touch_a_background_job
    a_background_job_ends_at_its_limit_and_leaves_the_terminal_alone
    a_background_command_that_sets_the_terminal_stops_its_job
    a_storm_of_stops_ends_with_the_job
    a_background_command_that_ignores_the_stop_goes_on
    under_gnu_a_job_that_reads_from_the_background_ends_at_its_limit
    a_job_that_ctrl_z_stopped_has_its_clock_back_once_it_reads_from_the_background
    without_job_control_a_stubborn_command_that_reads_the_terminal_is_killed
    without_job_control_a_command_that_waits_for_the_terminal_is_idle
    in_a_new_session_a_pipeline_that_reads_the_terminal_ends_at_its_limit
}

fn a_background_job_runs_and_is_waited_for(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.does("$TK -t 60 $FX on USR1 [ exit 42 ] say ready hang &", 0);
    shell.expect("ready");
    assert!(shell.has_terminal());
    shell.command("jobs");
    shell.sees("Running");
    shell.ends_with(0);
    shell.does("kill -USR1 %1; wait %1", 42);
    shell.does("$TK $FX exit 9 & wait $!", 9);
    shell.leave();
}

fn a_background_job_writes_to_the_terminal(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("$TK bash -c 'echo some$((40 + 2))words' & wait $!");
    shell.sees("some42words");
    shell.ends_with(0);
    // Where writing stops a job, it is stopped as it would be without us.
    shell.does("stty tostop", 0);
    shell.notices("$TK bash -c 'echo other$((40 + 2))words' &", "Stopped");
    shell.command("fg");
    shell.sees("other42words");
    shell.ends_with(0);
    shell.leave();
}

fn ctrl_c_at_the_prompt_does_not_touch_a_background_job(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.does("$TK $FX on INT [ say int ] on USR1 [ exit 42 ] say ready hang &", 0);
    shell.expect("ready");
    shell.key(CTRL_C);
    shell.ends_with(130);
    shell.does("kill -USR1 %1; wait %1", 42);
    shell.leave().said("int", 0);
}

fn a_background_job_ends_at_its_limit_and_leaves_the_terminal_alone(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.does("$TK -t 300ms -k 200ms $FX ignore TERM say ready hang & echo wrapper $! >&9", 0);
    let job = shell.expect("wrapper").parse().ok().and_then(open_process);
    shell.command("bash -c 'stty -echo; $FX say other read; stty echo'");
    shell.expect("other");
    let other = shell.foreground();
    assert!(job.is_none_or(|job| is_dead(job, BOUND)));
    assert_eq!(shell.foreground(), other, "the terminal was stolen");
    assert!(!shell.echoes(), "the modes of another job were changed");
    shell.notices("", "Exit 137");
    shell.leave();
}

/// The stop is the command's; the job has to look stopped to the shell, too.
fn a_background_command_that_reads_the_terminal_stops_its_job(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.notices("$TK -t 60 $FX on TERM [ say term ] say ready read exit 5 &", "Stopped");
    assert!(shell.has_terminal());
    shell.resumes("fg", "exit 5");
    shell.command("a line");
    shell.ends_with(5);
    shell.leave().said("term", 0);
}

/// Nobody can tell whether somebody will ever bring it to the foreground.
fn a_job_that_waits_for_the_terminal_ends_at_its_limit(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.notices("$TK -t 2 $FX say ready read exit 5 & echo wrapper $! >&9", "Stopped");
    let job = shell.expect("wrapper").parse().ok().and_then(open_process);
    assert!(job.is_none_or(|job| is_dead(job, BOUND)), "the job stays stopped");
    shell.notices("", "Exit 124");
    assert!(shell.has_terminal());
    shell.leave();
}

fn a_background_command_that_sets_the_terminal_stops_its_job(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.notices("$TK stty erase @ &", "Stopped");
    assert!(shell.has_terminal());
    shell.does("fg", 0);
    shell.leave();
}

/// Whenever it is continued in the background it reads again and is stopped again.
fn a_storm_of_stops_ends_with_the_job(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.notices("$TK -t 60 -k 60 $FX fork [ read ] fork [ read ] read exit 5 & echo wrapper $! >&9", "Stopped");
    let wrapper = shell.expect_process("wrapper");
    for _ in 0..10 {
        shell.notices("kill -CONT %1", "Stopped");
        assert!(shell.has_terminal());
    }
    shell.notices("for i in {1..300}; do kill -CONT %1; done", "Stopped");
    assert!(shell.has_terminal());
    shell.does("kill %1; disown -a", 0);
    assert!(is_dead(wrapper, BOUND), "the job stays stopped");
    shell.leave();
}

/// It gets an error instead, read(2): as without us.
fn a_background_command_that_ignores_the_stop_goes_on(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.does("$TK -t 60 $FX ignore TTIN read say gone-on exit 6 & wait $!", 6);
    shell.leave().said("gone-on", 1);
}

/// Nothing stops the clock there; who is stopped for ever is ended all the same.
fn under_gnu_a_job_that_reads_from_the_background_ends_at_its_limit(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.does("$TG -k .3 1 $FX ignore TERM say ready read exit 5 & echo wrapper $! >&9", 0);
    let job = shell.expect("wrapper").parse().ok().and_then(open_process);
    assert!(job.is_none_or(|job| is_dead(job, BOUND)));
    shell.notices("", "Exit 137");
    shell.leave();
}

/// The stop by the terminal is later than that by Ctrl-Z, if the two are told as one.
fn a_job_that_ctrl_z_stopped_has_its_clock_back_once_it_reads_from_the_background(backend: Backend) {
    let mut shell = Shell::new(backend);
    shell.command("$TK -t 2 $FX say ready read exit 5");
    let command = shell.expect("ready");
    let wrapper = shell.foreground_leader();
    shell.key(CTRL_Z);
    shell.ends_with(128 + 20);
    shell.stops(&command);
    shell.does("bg", 0);
    assert!(is_dead(wrapper, BOUND), "the job stays stopped");
    shell.notices("", "Exit 124");
    shell.leave();
}

/// A test runner that puts its children into groups of their own, and waits for their ends alone.
fn without_job_control(backend: Backend, program: &str, command: &str, returned: &str) {
    let mut shell = Shell::new(backend);
    shell.command(&format!("$FX call [ $FX setpgid exec {program} {command} ] exit 0"));
    assert_eq!(shell.expect("returned"), returned, "{program} {command}");
    shell.ends_with(0);
    shell.leave();
}

fn without_job_control_a_command_that_touches_the_terminal_ends_at_its_limit(backend: Backend) {
    for program in ["$TK -t 300ms", "$TG .3"] {
        without_job_control(backend, program, "$FX read exit 5", "124");
        without_job_control(backend, program, "stty -echo", "124");
    }
    without_job_control(backend, "$TK -t 300ms", "bash -c 'read -rs answer </dev/tty; exit 5'", "124");
    without_job_control(backend, "$TK -t 300ms", "bash -c 'trap \"exit 5\" TERM; read -r answer'", "124");
}

fn without_job_control_a_stubborn_command_that_reads_the_terminal_is_killed(backend: Backend) {
    without_job_control(backend, "$TK -t 300ms -k 200ms", "$FX ignore TERM read exit 5", "137");
    without_job_control(backend, "$TK --stages INT:200ms,KILL -t 300ms", "$FX ignore INT read exit 5", "137");
}

/// It waits for an answer that will never come.
fn without_job_control_a_command_that_waits_for_the_terminal_is_idle(backend: Backend) {
    without_job_control(backend, "$TK --idle-timeout 400ms", "$FX read exit 5", "197");
}

/// There the front follows the others of its group into the stop, and the tree the front.
fn in_a_new_session_a_pipeline_that_reads_the_terminal_ends_at_its_limit(backend: Backend) {
    let mut shell = Shell::new(backend);
    let neighbour = "fork [ on USR1 [ read ] say neighbour hang ]";
    shell.command(&format!(
        "$FX call [ $FX setpgid {neighbour} exec $TK -t 1 --new-session $FX say ready hang ] exit 0"
    ));
    let neighbour = shell.expect_process("neighbour");
    shell.expect("ready");
    pidfd_send_signal(&neighbour, Signal::USR1).expect("it is there");
    assert_eq!(shell.expect("returned"), "124");
    pidfd_send_signal(&neighbour, Signal::KILL).expect("it is there");
    shell.ends_with(0);
    shell.leave();
}
