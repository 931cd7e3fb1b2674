//! Options turned into a plan: what the state machine obeys and what the processes set up. Pure.

mod longest;

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;

use crate::cli::{Leftovers, Options, SignalTo};
use crate::duration;
use crate::limits::Limits;
use crate::outcome::{ExitPolicy, LEFTOVERS};
use crate::signals::{self, Sig};
pub use longest::Longest;

/// What can hold a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// The first of cgroup, systemd and subreaper that works.
    Auto,
    /// A cgroup v2 leaf of our own.
    Cgroup,
    /// A transient systemd scope around the keeper, and a leaf in it.
    Systemd,
    /// A PID namespace of the command's own; never taken by auto.
    Pidns,
    /// Ancestry alone.
    Subreaper,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backend::Auto => "auto",
            Backend::Cgroup => "cgroup",
            Backend::Systemd => "systemd",
            Backend::Pidns => "pidns",
            Backend::Subreaper => "subreaper",
        })
    }
}

/// One step of a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// What is sent.
    pub signal: Sig,
    /// How long until the next stage; `None` waits for ever, and is what every last stage has.
    pub wait: Option<Duration>,
}

/// The signals of a stop in their order; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stages(Vec<Stage>);

impl Stages {
    /// The stages of `--signal` and `--kill-after`, where a zero grace means that SIGKILL never comes.
    pub fn new(signal: Sig, kill_after: Duration) -> Stages {
        let wait = off_if_zero(kill_after);
        let mut stages = vec![Stage { signal, wait }];
        if wait.is_some() {
            stages.push(Stage { signal: Sig::KILL, wait: None });
        }
        Stages(stages)
    }

    /// The stage at this place.
    pub fn get(&self, index: usize) -> Option<Stage> {
        self.0.get(index).copied()
    }

    /// From the first signal to SIGKILL; `None` if that never comes.
    fn total(&self) -> Option<Duration> {
        let waits = self.0.iter().filter(|stage| stage.signal != Sig::KILL || stage.wait.is_some());
        waits.map(|stage| stage.wait).try_fold(Duration::ZERO, |sum, wait| sum.checked_add(wait?))
    }

    /// The stages after a relayed signal took the place of the first one's.
    #[must_use]
    pub fn starting_with(&self, signal: Sig) -> Stages {
        let mut stages = self.clone();
        stages.0[0].signal = signal;
        stages
    }
}

/// The grace that `--kill-after` has by default, and that a relayed signal gets before a list of nothing but KILL.
const DEFAULT_GRACE: Duration = Duration::from_secs(10);

/// Reads `--stages`: `SIGNAL:DURATION,...,SIGNAL`.
///
/// # Errors
/// A sentence that names the list and what was expected.
pub fn parse_stages(text: &str) -> Result<Stages, String> {
    let refuse = |why: String| Err(format!("invalid stage list '{text}': {why} (as in INT:5s,QUIT:2s,KILL)"));
    let words: Vec<&str> = text.split(',').collect();
    let mut stages = Vec::with_capacity(words.len());
    for (index, word) in words.iter().enumerate() {
        let (name, wait) = word.split_once(':').map_or((*word, None), |(name, wait)| (name, Some(wait)));
        let signal = match signals::parse(name) {
            Ok(signal) => signal,
            Err(why) => return refuse(why),
        };
        let is_last = index + 1 == words.len();
        let wait = match wait.map(duration::parse).transpose() {
            Ok(wait) => wait,
            Err(why) => return refuse(why),
        };
        match (is_last, wait) {
            (true, Some(_)) => {
                return refuse(format!("the last stage, '{word}', must have no duration: write {name}"));
            }
            (false, None) => {
                return refuse(format!("'{word}' needs a duration, since another stage follows"));
            }
            (false, Some(_)) if signal == Sig::KILL => {
                return refuse("nothing can follow KILL".into());
            }
            _ => stages.push(Stage { signal, wait }),
        }
    }
    if stages[0].signal == Sig::KILL {
        return Ok(Stages::new(Sig::KILL, DEFAULT_GRACE));
    }
    Ok(Stages(stages))
}

/// Whose rules hold where ours and GNU timeout's differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Personality {
    /// treekill-run's own.
    Own,
    /// GNU timeout's: every fatal signal is passed on and begins a stop, none is a second one, SIGALRM is the end of the
    /// time, and no job control stops the clock.
    Gnu,
}

impl Personality {
    /// Whether relaying this signal begins a stop.
    pub fn begins_stop(self, sig: Sig) -> bool {
        match self {
            Personality::Own => sig.is_request_to_end(),
            Personality::Gnu => sig.is_fatal(),
        }
    }
}

/// What the state machine obeys.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Whose rules hold.
    pub personality: Personality,
    /// When the clock ends the run; `None` is never.
    pub timeout: Option<Duration>,
    /// How long the whole tree may do nothing; `None` is for ever.
    pub idle_timeout: Option<Duration>,
    /// The signals of a stop.
    pub stages: Stages,
    /// The signals that end what outlived the command.
    pub leftover_stages: Stages,
    /// Who gets the first of them.
    pub signal_to: SignalTo,
    /// What becomes of processes that outlive the command.
    pub leftovers: Leftovers,
    /// Some of them are kept running.
    pub keeps: bool,
    /// How long they may take to finish by themselves.
    pub leftover_grace: Duration,
    /// The death of the front ends the tree; off under `--no-guard`.
    pub guard: bool,
    /// The command shares session and process group with the caller.
    pub is_in_terminal: bool,
    /// What bears on the exit status.
    pub exit: ExitPolicy,
}

/// How much is said on stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    /// Errors of our own only.
    Quiet,
    /// One line when something was out of the ordinary; after a timeout also the tree as it was, in ten lines at most.
    Normal,
    /// Each step, and the tree as it was when a stop began.
    Verbose,
}

impl Verbosity {
    /// What these options ask for.
    pub fn new(options: &Options) -> Verbosity {
        match (options.quiet, options.verbose) {
            (true, _) => Verbosity::Quiet,
            // GNU timeout's -v tells of its signals only.
            (_, true) if !options.gnu => Verbosity::Verbose,
            _ => Verbosity::Normal,
        }
    }
}

/// Whether the command shares the caller's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Session {
    /// The caller's session and process group: prompts, editors and job control work.
    Callers,
    /// A session of the command's own.
    Own,
}

/// Everything about a run that was settled before its first process.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What the state machine obeys.
    pub policy: Policy,
    /// Where the command lives.
    pub session: Session,
    /// Longest wait for emptiness after SIGKILL; `None` is for ever.
    pub drain_limit: Option<Duration>,
    /// Who is kept running when the command has ended.
    pub keep: Vec<String>,
    /// What the tree may use.
    pub limits: Limits,
    /// How long a run and a stop may take at most, for whoever is to end the tree when none of us is left.
    pub longest: Longest,
    /// The tree may not gain privileges.
    pub no_new_privs: bool,
    /// How much is said.
    pub verbosity: Verbosity,
    /// Each signal of a stop is said as GNU timeout says it.
    pub announces_signals: bool,
    /// What the tree has used is said.
    pub has_stats: bool,
}

impl Plan {
    /// The plan for these options, on a host with or without a controlling terminal, and with this much memory in bytes.
    pub fn new(options: &Options, has_terminal: bool, memory: &dyn Fn() -> u64) -> Plan {
        let session = match (options.foreground, options.new_session) {
            (true, _) => Session::Callers,
            (_, true) => Session::Own,
            _ if has_terminal => Session::Callers,
            _ => Session::Own,
        };
        let personality = if options.gnu { Personality::Gnu } else { Personality::Own };
        let (default_grace, default_status) = match personality {
            Personality::Own => (DEFAULT_GRACE, LEFTOVERS),
            Personality::Gnu => (Duration::ZERO, 0),
        };
        let exit = ExitPolicy {
            preserve_status: options.preserve_status,
            leftover_status: options.leftover_status.unwrap_or(default_status),
        };
        let kill_after = options.kill_after.unwrap_or(default_grace);
        let stages = options.stages.clone().unwrap_or_else(|| Stages::new(options.signal, kill_after));
        let leftover_stages = match personality {
            Personality::Own => stages.clone(),
            // There a command may run on for ever after its signal, but what outlives it may not.
            Personality::Gnu => Stages::new(Sig::TERM, off_if_zero(kill_after).unwrap_or(DEFAULT_GRACE)),
        };
        let policy = Policy {
            personality,
            timeout: off_if_zero(options.timeout),
            idle_timeout: off_if_zero(options.idle_timeout),
            stages,
            leftover_stages,
            signal_to: options.signal_to,
            leftovers: options.leftovers,
            keeps: !options.keep.is_empty() && options.leftovers != Leftovers::Leave,
            leftover_grace: options.leftover_grace,
            guard: !options.no_guard,
            is_in_terminal: session == Session::Callers,
            exit,
        };
        let announces_signals = options.gnu && options.verbose;
        let verbosity = Verbosity::new(options);
        let drain_limit = off_if_zero(options.drain_limit);
        let memory = options.memory_max.map(|size| size.bytes(memory));
        let limits = Limits { memory, pids: options.pids_max, cpu: options.cpu_max };
        let longest = Longest::new(&policy, drain_limit, has_terminal || session == Session::Callers);
        Plan {
            policy,
            session,
            drain_limit,
            keep: options.keep.clone(),
            limits,
            longest,
            no_new_privs: options.no_new_privs,
            verbosity,
            announces_signals,
            has_stats: options.stats,
        }
    }
}

fn off_if_zero(duration: Duration) -> Option<Duration> {
    (!duration.is_zero()).then_some(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(name: &str, wait: Option<u64>) -> Stage {
        Stage { signal: signals::parse(name).expect("a signal"), wait: wait.map(Duration::from_secs) }
    }

    #[test]
    fn a_stage_list_is_read_in_order() {
        let stages = parse_stages("INT:5s,quit:2s,KILL").expect("a list");
        assert_eq!(stages.0, [stage("INT", Some(5)), stage("QUIT", Some(2)), stage("KILL", None)]);
        assert_eq!(parse_stages("TERM").expect("a list").0, [stage("TERM", None)]);
    }

    #[test]
    fn a_list_of_nothing_but_kill_gives_a_relayed_signal_its_grace() {
        let stages = parse_stages("KILL").expect("a list");
        assert_eq!(stages.starting_with(Sig::TERM).0, [stage("TERM", Some(10)), stage("KILL", None)]);
    }

    #[test]
    fn a_bad_stage_list_is_refused_by_name() {
        for text in [
            "",
            ",",
            "TERM,",
            "TERM,KILL",
            "TERM:x,KILL",
            "KILL:5s,TERM",
            "TERM:5s",
            "NOSUCH:5s,KILL",
            "TERM:5s,KILL:1s",
            "TERM:5s:6s,KILL",
        ] {
            let refusal = parse_stages(text).expect_err(text);
            assert!(refusal.contains(&format!("'{text}'")), "{refusal}");
        }
    }

    #[test]
    fn a_refusal_of_a_stage_list_says_what_to_write() {
        for (text, said) in [
            ("INT:5s,KILL:3s", "the last stage, 'KILL:3s', must have no duration: write KILL ("),
            ("INT:x,KILL", "; 0 is off ("),
            ("INT,KILL", "'INT' needs a duration"),
        ] {
            let refusal = parse_stages(text).expect_err(text);
            assert!(refusal.contains(said) && refusal.ends_with("(as in INT:5s,QUIT:2s,KILL)"), "{refusal}");
        }
    }

    #[test]
    fn a_run_has_a_longest_time_only_if_each_part_of_it_has() {
        let longest = |line: &str| {
            let words = std::iter::once("treekill-run").chain(line.split(' ')).chain(["true"]);
            let words: Vec<_> = words.map(std::ffi::OsString::from).collect();
            let Ok(crate::cli::Request::Run(options)) = crate::cli::parse(&words, &|| '.') else {
                panic!("cannot parse {line}")
            };
            Plan::new(&options, false, &|| 0).longest.run.map(|longest| longest.as_millis())
        };
        assert_eq!(longest("-t 60 -q"), Some(60_000 + 200 + 10_000 + 10_000 + 5_000));
        assert_eq!(longest("-t 1 --stages INT:2s,QUIT:3s,KILL --drain-limit 4 --leftover-grace 0"), Some(15_000));
        assert_eq!(longest("--gnu -k 2 60"), Some(60_000 + 200 + 2_000 + 2_000 + 10_000 + 5_000));
        for line in ["-q", "-t 1 -k 0", "-t 1 --stages INT:1s,TERM", "-t 1 --drain-limit 0", "--gnu 60", "-f -t 1"] {
            assert_eq!(longest(line), None, "{line}");
        }
        for line in ["-t 1 --no-guard", "-t 1 --leftovers leave", "-t 1e300"] {
            assert_eq!(longest(line), None, "{line}");
        }
    }

    #[test]
    fn a_kill_after_of_zero_never_kills() {
        assert_eq!(Stages::new(Sig::TERM, Duration::ZERO).0, [stage("TERM", None)]);
    }
}
