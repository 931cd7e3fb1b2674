//! Job control without a terminal: a front that follows its command into a stop and out of it, and the clock meanwhile.

mod common;

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use common::kin::{self, state_and_parent};
use common::running::{is_dead, open_process, state_of};
use common::{BOUND, Backend, Ended, Run, Running, all_backends, both_backends, needs, sys};
use rustix::process::{Signal, pidfd_send_signal};

const LONG: Duration = Duration::from_secs(20);

/// A pause that must not count.
const PAUSE: Duration = Duration::from_millis(1500);

all_backends! {
    a_front_that_followed_its_command_goes_on_with_it
    a_front_that_is_stopped_ends_when_its_keeper_is_killed
    a_front_that_is_stopped_ends_when_its_command_is_killed
    a_front_with_children_follows_its_command_too
    in_a_session_of_its_own_a_stop_stops_the_whole_tree
    in_a_session_of_its_own_a_stop_is_passed_on_and_the_clock_runs
    a_job_that_is_stopped_when_its_shell_dies_is_hung_up
    a_job_that_has_outlived_its_shell_is_stopped_by_no_terminal
    a_stopped_job_that_ignores_hang_ups_goes_on_when_its_shell_dies
}

both_backends! {
    neighbours_of_a_stopped_job_are_hung_up_when_its_shell_dies
    keepers_of_nested_runs_leave_the_session_of_a_dead_shell
    a_front_follows_its_command_again_and_again
    a_front_with_children_ends_when_its_keeper_is_killed
    a_command_runs_only_when_its_keeper_is_in_another_group
    stops_that_a_front_without_cpu_never_saw_are_none
    a_front_without_cpu_ends_as_a_command_that_was_killed_while_stopped
    a_front_whose_caller_ignores_the_stop_follows_all_the_same
    waiting_for_leftovers_does_not_count_the_pause
    a_first_request_in_a_stop_by_the_clock_leaves_its_grace_and_a_second_does_not
}

/// A process of the run: its number for /proc, and what surely means it.
struct Actor {
    pid: String,
    pidfd: OwnedFd,
}

impl Actor {
    fn said(running: &mut Running, word: &str) -> Actor {
        let pid = running.expect(word);
        Actor::of(running, pid)
    }

    fn of(running: &mut Running, pid: String) -> Actor {
        match pid.parse().ok().and_then(open_process) {
            Some(pidfd) => Actor { pid, pidfd },
            None => running.fail(&format!("{pid} is not there")),
        }
    }

    fn gets(&self, signal: Signal) {
        pidfd_send_signal(&self.pidfd, signal).expect("a living process can be signalled");
    }

    fn is_stopped(&self) -> bool {
        state_of(&self.pid) == Some('T')
    }

    /// As proc_pid_status(5) has it.
    fn ignores(&self, signal: Signal) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).expect("it is there");
        let digits = status.lines().find_map(|line| line.strip_prefix("SigIgn:\t")).expect("the line is there");
        u64::from_str_radix(digits, 16).expect("a set") & (1 << (signal.as_raw() - 1)) != 0
    }
}

/// A run as an interactive shell starts it: its caller leads the session, and the job has a group of its own there.
struct Job {
    running: Running,
    front: Actor,
    command: Actor,
}

impl Job {
    /// The command has to say `ready`.
    fn start(run: Run) -> Job {
        Job::behind(run, "", Running::open_gate)
    }

    /// These steps come before the wrapper in its own process, and `meanwhile` before its command is waited for.
    fn behind(run: Run, steps: &str, meanwhile: impl FnOnce(&mut Running)) -> Job {
        let fixture = common::fixture();
        let before = format!("call [ {} setpgid say front {steps} exec", fixture.display());
        let mut running = run.called_by(&before, "]").spawn();
        let front = Actor::said(&mut running, "front");
        let command = Actor::said(&mut running, "ready");
        meanwhile(&mut running);
        Job { running, front, command }
    }

    fn awaits(&mut self, what: &str, is_so: impl Fn(&Job) -> bool) {
        let start = Instant::now();
        while !is_so(self) {
            if start.elapsed() > BOUND {
                self.running.fail(&format!("waited in vain: {what}"));
            }
            std::thread::yield_now();
        }
    }

    /// The command alone is stopped, and the front follows.
    fn stop(&mut self) {
        self.command.gets(Signal::TSTP);
        self.awaits("the command stops", |job| job.command.is_stopped());
        self.awaits("the front follows", |job| job.front.is_stopped());
    }

    /// The command alone is continued, and the front follows.
    fn go_on(&mut self) {
        self.command.gets(Signal::CONT);
        self.awaits("the command goes on", |job| !job.command.is_stopped());
        self.awaits("the front goes on", |job| !job.front.is_stopped());
    }

    fn keeper(&mut self) -> Actor {
        let command = self.command.pid.parse().expect("a PID");
        let (_, keeper) = state_and_parent(command).expect("the command is there");
        Actor::of(&mut self.running, keeper.to_string())
    }

    /// The shell's view of the status.
    #[track_caller]
    fn returns(&mut self, status: i32) -> Ended {
        let ended = self.running.wait();
        ended.exited(0).took_less_than(LONG);
        assert_eq!(ended.value("returned"), status.to_string(), "wrong status\n{ended}");
        ended
    }
}

const COMMAND: &str = "on USR1 [ exit 42 ] on WINCH [ say winch ] say ready hang";

fn a_front_that_followed_its_command_goes_on_with_it(backend: Backend) {
    let mut job = Job::start(Run::new(backend).options("-f -t 25").fixture(COMMAND));
    job.stop();
    job.go_on();
    job.command.gets(Signal::USR1);
    job.returns(42);
}

fn a_front_follows_its_command_again_and_again(backend: Backend) {
    let mut job = Job::start(Run::new(backend).options("-f -t 60").fixture(COMMAND));
    for _ in 0..500 {
        job.stop();
        job.go_on();
    }
    job.command.gets(Signal::USR1);
    job.returns(42);
}

/// Nobody continues the front.
fn a_front_that_is_stopped_ends_when_its_keeper_is_killed(backend: Backend) {
    let steps = format!("fork [ setsid ignore TERM hang ] {COMMAND}");
    let mut job = Job::start(Run::new(backend).options("-f -t 25").fixture(&steps));
    job.stop();
    job.keeper().gets(Signal::KILL);
    job.returns(125).complained_of("was killed");
}

/// Nobody continues the front.
fn a_front_that_is_stopped_ends_when_its_command_is_killed(backend: Backend) {
    let mut job = Job::start(Run::new(backend).options("-f -t 25").fixture(COMMAND));
    job.stop();
    job.command.gets(Signal::KILL);
    job.returns(137);
}

/// A front that is born with a child: another process stands between it and its keeper.
fn with_a_child(backend: Backend, options: &str) -> Job {
    let run = Run::new(backend).options(options).gated().fixture(COMMAND);
    Job::behind(run, "fork [ say stranger read exit 0 ]", |running| {
        let stranger = running.expect_process("stranger");
        running.open_gate();
        assert!(is_dead(&stranger, BOUND), "the front's own child does not end");
    })
}

fn a_front_with_children_follows_its_command_too(backend: Backend) {
    let mut job = with_a_child(backend, "-f -t 25");
    job.stop();
    job.go_on();
    job.stop();
    job.command.gets(Signal::KILL);
    job.returns(137);
}

fn a_front_with_children_ends_when_its_keeper_is_killed(backend: Backend) {
    let mut job = with_a_child(backend, "-f -t 25");
    job.stop();
    job.keeper().gets(Signal::KILL);
    job.returns(125);
}

/// Here only the keeper keeps the group of front and command from being orphaned.
/// Nobody could continue it. Without us the kernel would hang up such a group.
fn a_job_that_is_stopped_when_its_shell_dies_is_hung_up(backend: Backend) {
    let steps = "on HUP [ say hung-up exit 3 ] say ready hang";
    let mut job = Job::start(Run::new(backend).options("-f -t 25 -k 60").fixture(steps));
    job.stop();
    job.running.signal(Signal::KILL);
    job.running.expect("hung-up");
    job.running.wait_for_death();
    job.running.all_die();
}

/// As nohup(1) has it.
fn a_stopped_job_that_ignores_hang_ups_goes_on_when_its_shell_dies(backend: Backend) {
    let steps = "on CONT [ say cont ] on USR1 [ exit 42 ] say ready hang";
    let run = Run::new(backend).options("-f -t 25 -k 60").fixture(steps);
    let mut job = Job::behind(run, "ignore HUP", Running::open_gate);
    job.stop();
    job.running.signal(Signal::KILL);
    job.running.expect("cont");
    assert!(!is_dead(&job.front.pidfd, PAUSE), "nothing asks for its end");
    job.command.gets(Signal::USR1);
    job.running.wait_for_death();
    job.running.all_die();
}

/// The rest of a pipeline, or the script around it.
fn neighbours_of_a_stopped_job_are_hung_up_when_its_shell_dies(backend: Backend) {
    let run = Run::new(backend).options("-f -t 25 -k 60").fixture(COMMAND);
    let mut job = Job::behind(run, "fork [ say neighbour hang ]", Running::open_gate);
    let neighbour = Actor::said(&mut job.running, "neighbour");
    job.stop();
    neighbour.gets(Signal::TSTP);
    job.awaits("the neighbour stops", |_| neighbour.is_stopped());
    job.running.signal(Signal::KILL);
    assert!(is_dead(&neighbour.pidfd, BOUND), "it stays stopped");
    job.running.wait_for_death();
    job.running.all_die();
}

/// To a run inside, the keeper of the one around it is no shell that could continue its job.
fn keepers_of_nested_runs_leave_the_session_of_a_dead_shell(backend: Backend) {
    let (wrapper, fixture) = (common::wrapper(), common::fixture());
    let (wrapper, fixture) = (wrapper.display(), fixture.display());
    let outer = format!("exec {wrapper} --backend {} -f -t 60 -- {fixture}", backend.name());
    let run = Run::new(backend).options("-f -t 25 -k 60").fixture(COMMAND);
    let mut job = Job::behind(run, &outer, Running::open_gate);
    let keeper = job.keeper();
    job.running.signal(Signal::KILL);
    job.awaits("the inner keeper leaves the session", |_| leads_session(&keeper));
    job.command.gets(Signal::USR1);
    job.running.wait_for_death();
    job.running.all_die();
}

fn leads_session(actor: &Actor) -> bool {
    let pid = actor.pid.parse().expect("a PID");
    kin::group_and_session(pid) == Some((pid, pid))
}

/// The shell of a job in the background may end before it: then it can't be stopped any more, and goes on.
fn a_job_that_has_outlived_its_shell_is_stopped_by_no_terminal(backend: Backend) {
    let mut job = Job::start(Run::new(backend).options("-f -t 25 -k 60").fixture(COMMAND));
    let keeper = job.keeper();
    assert!(!leads_session(&keeper), "from another session it would orphan the groups that the command makes");
    job.running.signal(Signal::KILL);
    job.awaits("the keeper leaves the session", |_| leads_session(&keeper));
    job.command.gets(Signal::TSTP);
    job.command.gets(Signal::USR1);
    job.running.wait_for_death();
    job.running.all_die();
}

/// In the caller's group it would get what the terminal sends the command. strace(1) makes the keeper slow to leave.
fn a_command_runs_only_when_its_keeper_is_in_another_group(backend: Backend) {
    needs::require!("strace");
    let slowly = ["strace", "-DDD", "-f", "-qq", "-o", "/dev/null", "-e", "inject=clone,clone3:delay_exit=400000"];
    let steps = "parent keeper read exit 42";
    // The tracer holds the tether as well, and ends a little later.
    let run = Run::new(backend).prefixed(slowly).options("-f -t 25").may_leave();
    let mut running = run.gated().fixture(steps).spawn();
    let keeper = running.expect("keeper").parse().expect("a PID");
    let group = kin::group_and_session(keeper).map(|(group, _)| group);
    running.open_gate();
    running.wait().exited(42);
    assert_eq!(group, Some(keeper));
}

/// How often a process has gone to sleep by itself, proc_pid_status(5).
fn naps(pid: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| Some(line.strip_prefix("voluntary_ctxt_switches:")?.trim().to_owned()))
}

/// A job whose front is held while its command is stopped and continued hundreds of times, and its keeper sees that.
fn with_a_held_front(backend: Backend) -> Job {
    let mut job = Job::start(Run::new(backend).options("-f -t 60").fixture(COMMAND));
    job.front.gets(Signal::STOP);
    job.awaits("the front is held", |job| job.front.is_stopped());
    let keeper = job.keeper();
    for _ in 0..400 {
        for (signal, stops) in [(Signal::TSTP, true), (Signal::CONT, false)] {
            let before = naps(&keeper.pid);
            job.command.gets(signal);
            job.awaits("the command follows", |job| job.command.is_stopped() == stops);
            job.awaits("the keeper looks", |_| naps(&keeper.pid) != before);
        }
    }
    job
}

fn stops_that_a_front_without_cpu_never_saw_are_none(backend: Backend) {
    let mut job = with_a_held_front(backend);
    job.front.gets(Signal::CONT);
    // The front has passed that on by the time this arrives: it can't undo the next stop.
    job.front.gets(Signal::WINCH);
    job.running.expect("winch");
    job.stop();
    job.go_on();
    job.command.gets(Signal::USR1);
    job.returns(42);
}

fn a_front_without_cpu_ends_as_a_command_that_was_killed_while_stopped(backend: Backend) {
    let mut job = with_a_held_front(backend);
    job.command.gets(Signal::TSTP);
    job.awaits("the command stops", |job| job.command.is_stopped());
    job.command.gets(Signal::KILL);
    assert!(is_dead(&job.command.pidfd, BOUND), "SIGKILL does not end the command");
    job.front.gets(Signal::CONT);
    job.returns(137);
}

fn a_front_whose_caller_ignores_the_stop_follows_all_the_same(backend: Backend) {
    let run = Run::new(backend).options("-f -t 25").setup(|| sys::ignore(Signal::TSTP.as_raw()));
    let mut job = Job::start(run.fixture(&format!("default TSTP {COMMAND}")));
    for _ in 0..2 {
        job.stop();
        job.go_on();
    }
    job.awaits("it ignores the stop as before", |job| job.front.ignores(Signal::TSTP));
    // So it is not passed on.
    job.front.gets(Signal::TSTP);
    job.command.gets(Signal::USR1);
    job.returns(42);
}

/// Yelp/dumb-init#25: the kernel stops no process of an orphaned group by a signal of job control, and the command went on
/// below a wrapper that stood still. A command that ignores the signal goes on as without us.
fn in_a_session_of_its_own_a_stop_stops_the_whole_tree(backend: Backend) {
    let run = |steps: &str| Job::start(Run::new(backend).options("--new-session -k 20").fixture(steps));
    for signal in [Signal::TSTP, Signal::TTIN] {
        let mut job = run("fork [ say member hang ] on USR1 [ exit 42 ] say ready hang");
        let member = Actor::said(&mut job.running, "member");
        job.front.gets(signal);
        job.awaits("all stand still", |job| [&job.front, &job.command, &member].into_iter().all(Actor::is_stopped));
        job.front.gets(Signal::CONT);
        job.awaits("all go on", |job| ![&job.front, &job.command, &member].into_iter().any(Actor::is_stopped));
        job.command.gets(Signal::USR1);
        job.returns(42);
    }
    let mut job = run("ignore TSTP on USR1 [ exit 42 ] say ready hang");
    job.front.gets(Signal::TSTP);
    job.awaits("the front stops", |job| job.front.is_stopped());
    job.command.gets(Signal::USR1);
    job.front.gets(Signal::CONT);
    job.returns(42);
}

/// What a process sends is the command's to decide on; the front stops as whoever sent it expects.
fn in_a_session_of_its_own_a_stop_is_passed_on_and_the_clock_runs(backend: Backend) {
    let steps = "on TSTP [ say tstp ] on CONT [ say cont ] say ready hang";
    let mut job = Job::start(Run::new(backend).options("--new-session -t 2 -k 20").fixture(steps));
    job.front.gets(Signal::TSTP);
    job.running.expect("tstp");
    job.awaits("the front stops", |job| job.front.is_stopped());
    job.front.gets(Signal::CONT);
    job.running.expect("cont");
    job.awaits("the front goes on", |job| !job.front.is_stopped());
    // This time nobody continues it.
    job.front.gets(Signal::TSTP);
    job.running.expect("tstp");
    job.awaits("the front stops", |job| job.front.is_stopped() || is_dead(&job.front.pidfd, Duration::ZERO));
    job.returns(124).took_at_least(Duration::from_secs(2));
}

fn waiting_for_leftovers_does_not_count_the_pause(backend: Backend) {
    let run = Run::new(backend).options("-f -t 2 --leftovers wait");
    let mut job = Job::start(run.fixture("daemon [ say member hang ] say ready hang"));
    let member = Actor::said(&mut job.running, "member");
    job.stop();
    assert!(!is_dead(&member.pidfd, PAUSE), "nothing ends a leftover that is waited for");
    job.command.gets(Signal::KILL);
    job.returns(124).took_at_least(PAUSE + Duration::from_secs(2));
}

/// exit(3): "If the exit of the process causes a process group to become orphaned, and if any member of the newly orphaned
/// process group is stopped, then a SIGHUP signal followed by a SIGCONT signal will be sent". The member is our front.
fn a_first_request_in_a_stop_by_the_clock_leaves_its_grace_and_a_second_does_not(backend: Backend) {
    let steps = "on TERM [ say term ] say ready hang";
    let mut running = Run::new(backend).options("-t 300ms -k 60").fixture(steps).spawn();
    let command = running.expect_process("ready");
    running.expect("term");
    running.signal(Signal::TERM);
    assert!(!is_dead(&command, Duration::from_millis(600)), "the grace was cut by the first request");
    running.signal(Signal::TERM);
    running.wait().exited(137).took_less_than(LONG);
}
