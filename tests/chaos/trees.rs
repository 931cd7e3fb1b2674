//! A random tree under a wrapper: how it is started, disturbed and judged.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Signal, pidfd_send_signal};

use crate::common::{BOUND, Backend, Ended, Nest, Run, Running, kin, sys, wrapper};
use crate::dice::Dice;
use crate::growing::Condition;
use crate::plan::Plan;
use crate::scenario::{Scenario, Status};

/// What runs the trees.
#[derive(Clone, Debug)]
pub(crate) enum Wrapper {
    Ours(Backend),
    /// A program that does not hold them: a control.
    Control(Vec<String>),
}

impl Wrapper {
    fn run(&self, scenario: &Scenario) -> Run {
        match self {
            Wrapper::Ours(backend) => Run::new(*backend).options(&scenario.options()),
            Wrapper::Control(words) => Run::control(words),
        }
    }

    /// Whether it holds those who joined another PID namespace, which ancestry alone cannot: they are escaped then, not
    /// overlooked.
    fn holds_those_elsewhere(&self) -> bool {
        matches!(self, Wrapper::Ours(Backend::Cgroup | Backend::Systemd | Backend::Pidns))
    }
}

/// A process that has nothing to do with any tree.
pub(crate) struct Bystander(Child);

impl Bystander {
    pub(crate) fn new() -> Bystander {
        let _forking = sys::forking();
        // It ends with its stdin, and so with this test.
        Bystander(Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("cat is everywhere"))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Asks it: a SIGKILL that was sent counts before it is carried out, and so does a stop.
    pub(crate) fn answers(&mut self) -> bool {
        let (Some(stdin), Some(stdout)) = (&mut self.0.stdin, &mut self.0.stdout) else { return false };
        let bound = BOUND.try_into().expect("it is short");
        stdin.write_all(b"?").is_ok()
            && rustix::event::poll(&mut [PollFd::new(stdout, PollFlags::IN)], Some(&bound)) == Ok(1)
            && stdout.read_exact(&mut [0]).is_ok()
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A PID namespace that exists before the tree that escapes into it; its end is the end of all in it.
struct Elsewhere(Child);

impl Elsewhere {
    fn new() -> Elsewhere {
        let mut child = {
            let _forking = sys::forking();
            Command::new("unshare")
                .args(["--pid", "--fork", "--kill-child", "sh", "-c", "echo ready && exec cat"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("root makes PID namespaces")
        };
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it was asked for");
        BufReader::new(stdout).read_line(&mut line).expect("its first process says that it is there");
        assert_eq!(line, "ready\n");
        Elsewhere(child)
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/pid_for_children", self.0.id())
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What was found of a tree when its wrapper had returned.
#[derive(Default)]
pub(crate) struct Finding {
    pub(crate) processes: usize,
    /// Who was alive.
    pub(crate) survivors: Vec<String>,
    /// Leaves that were not removed.
    pub(crate) leaves: Vec<PathBuf>,
    /// What else was wrong.
    pub(crate) complaint: Option<String>,
}

/// A tree under way.
pub(crate) struct Tree {
    wrapper: Wrapper,
    condition: Condition,
    plan: Plan,
    scenario: Scenario,
    pub(crate) running: Running,
    started: Instant,
    /// A cgroup outside every boundary.
    away: Option<Nest>,
    elsewhere: Option<Elsewhere>,
    /// Which of the wrapper's processes was killed.
    struck: Option<Victim>,
}

/// A process of the wrapper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Front,
    Keeper,
}

impl Tree {
    /// Starts the tree of a seed; `shape` is what the condition does to its run.
    pub(crate) fn plant(
        wrapper: &Wrapper,
        condition: Condition,
        seed: u64,
        has_elsewhere: bool,
        shape: impl FnOnce(Run) -> Run,
    ) -> Tree {
        let plan = Plan::of_seed(seed);
        let scenario = Scenario::of_seed(seed, &plan);
        let elsewhere = (plan.escapes() && has_elsewhere).then(Elsewhere::new);
        let away = Nest::new();
        let mut steps = format!("tree grow --seed {seed}");
        if let Some(away) = &away {
            steps += &format!(" --away {}", away.path().display());
        }
        if let Some(elsewhere) = &elsewhere {
            steps += &format!(" --elsewhere {}", elsewhere.path());
        }
        if condition == Condition::Memory {
            // If the kernel took front and keeper for the biggest, both would be killed at once, which nobody survives.
            steps += " --expendable";
        }
        let started = Instant::now();
        let running = shape(wrapper.run(&scenario).fixture(&steps).may_leave()).spawn();
        let wrapper = wrapper.clone();
        Tree { wrapper, condition, plan, scenario, running, started, away, elsewhere, struck: None }
    }

    /// Sends what the scenario has for it at its moments, which are what is tried here: nowhere else is slept.
    pub(crate) fn disturb(&self) {
        // A control is to come to what it does wrong.
        if matches!(self.wrapper, Wrapper::Control(_)) {
            return;
        }
        for (at, signal) in &self.scenario.signals {
            sleep_until(self.started + Duration::from_micros(*at));
            self.running.signal(*signal);
        }
    }

    /// Kills front or keeper at a moment of the seed's. Who has ended by then is let be.
    pub(crate) fn strike(&mut self, seed: u64) {
        let mut dice = Dice::new(seed.rotate_left(32));
        let victim = dice.pick(&[Victim::Front, Victim::Keeper]);
        // Half of them in the first milliseconds, where a run sets itself up.
        let longest = dice.pick(&[4_000, 60_000]);
        sleep_until(self.started + Duration::from_micros(dice.below(longest)));
        let keeper = match victim {
            Victim::Front => None,
            Victim::Keeper => match kin::last_child(self.running.pid()) {
                Some((_, keeper)) => Some(keeper),
                // Not born, or gone.
                None => return,
            },
        };
        let _ = pidfd_send_signal(keeper.as_ref().unwrap_or(self.running.pidfd()), Signal::KILL);
        self.struck = Some(victim);
    }

    /// Waits for the wrapper and judges what it left.
    pub(crate) fn harvest(mut self) -> Finding {
        let ended = self.running.wait();
        let status = Status::from(ended.status);
        if self.front_died_first(status) || self.probe_died_first(status) {
            // The keeper ends the tree now, and nobody waits for it but us.
            drop(self.elsewhere.take());
            self.running.all_die();
            if let Some(nest) = self.running.nest() {
                nest.is_deserted();
                // What the front knew alone is the next run's to remove.
                next_run(nest);
            }
        }
        let mut finding = Finding { processes: ended.count("born"), ..Finding::default() };
        if self.elsewhere.is_none() || self.wrapper.holds_those_elsewhere() {
            let nests = [self.running.nest(), self.away.as_ref()];
            finding.survivors =
                nests.into_iter().flatten().flat_map(Nest::members).map(|pid| pid.to_string()).collect();
            if finding.survivors.is_empty() && !self.running.is_all_dead() {
                finding.survivors.push("somebody holds the tether".into());
            }
        }
        drop(self.elsewhere.take());
        if finding.survivors.is_empty() {
            self.running.all_die();
        }
        finding.leaves = kin::leaves(self.running.nest());
        finding.complaint = self.complaint(status, &ended);
        finding
    }

    fn front_died_first(&self, status: Status) -> bool {
        let may_be_killed = self.struck == Some(Victim::Front) || self.condition == Condition::Memory;
        may_be_killed && status == Status::Death(Signal::KILL.as_raw())
    }

    /// The first child of the front may be a probe of namespaces. One that is killed can't wait for its own child, which ends
    /// without having done anything.
    fn probe_died_first(&self, status: Status) -> bool {
        self.struck == Some(Victim::Keeper) && status == Status::Code(195)
    }

    /// What is wrong with the end of the run, if something is.
    fn complaint(&self, status: Status, ended: &Ended) -> Option<String> {
        if matches!(self.wrapper, Wrapper::Control(_)) {
            return None;
        }
        let (plan, scenario) = (&self.plan, &self.scenario);
        let was_set_up = ended.lines.iter().any(|line| line == "born 0");
        let is_known = match (self.condition, status) {
            (Condition::Calm, status) => scenario.allowed(plan, was_set_up).contains(&status),
            (_, Status::Code(194)) => false,
            // Nothing has started, and it says so.
            (Condition::Pids, Status::Code(125 | 195)) => ended.count("born") == 0 && !ended.stderr.is_empty(),
            (Condition::Killed, Status::Code(125 | 195)) => self.struck == Some(Victim::Keeper),
            (Condition::Memory, Status::Code(125 | 195)) => !ended.stderr.is_empty(),
            (_, Status::Code(125 | 195)) => false,
            _ => true,
        };
        let bound = scenario.bound();
        // In a crowd others are waited for first.
        if is_known && (ended.took < bound || self.condition == Condition::Crowd) {
            return None;
        }
        let struck = self.struck;
        Some(format!("{status:?} within {bound:?}, killed: {struck:?}\n{scenario:?}\n{plan:#?}\n{ended}"))
    }
}

fn sleep_until(moment: Instant) {
    std::thread::sleep(moment.saturating_duration_since(Instant::now()));
}

/// Another run in the same cgroup, which clears away what dead owners left there. It is short of memory where they were.
fn next_run(nest: &Nest) {
    let mut command = Command::new(wrapper());
    command.args(["--backend", "cgroup,subreaper", "true"]).stdin(Stdio::null());
    nest.receive(&mut command);
    let _forking = sys::forking();
    let deadline = Instant::now() + BOUND;
    loop {
        match Status::from(command.status().expect("the wrapper can be started")) {
            Status::Code(0) => return,
            Status::Death(9) if Instant::now() < deadline => {}
            status => panic!("the next run: {status:?}"),
        }
    }
}

/// Takes a tree whose wrapper has returned out of these.
pub(crate) fn next_ended(trees: &mut Vec<Tree>) -> Tree {
    let mut fds: Vec<PollFd<'_>> = trees.iter().map(|tree| PollFd::new(tree.running.pidfd(), PollFlags::IN)).collect();
    let bound = BOUND.try_into().expect("it is short");
    let _ = rustix::event::poll(&mut fds, Some(&bound));
    // If none has, the wait for the first fails with all that is known of it.
    let ended = fds.iter().position(|fd| !fd.revents().is_empty()).unwrap_or(0);
    trees.swap_remove(ended)
}
