//! treekill-run: run a command and end everything it started.
//!
//! This is the program's inside, not an interface for others: the modules are public so that the binary, the tests and
//! the generators of manual and completions see the same code, and change as the program needs it. What can be seen
//! from outside is said by the manual, the idea and its limits by `.github/CONTRIBUTING.md`.
//!
//! # In which order to read
//!
//! A run goes from top to bottom; each step needs only what stands before it.
//!
//! 1. **What was asked for.** [`cli`] reads both command lines into plain options, with the help of [`duration`],
//!    [`signals`] and [`limits`]. [`plan`] turns options and facts about the host into a plan.
//! 2. **What may come of it.** [`outcome`] has what became of a run and the one table of exit statuses. [`supervisor`] is
//!    the state machine: it is told what happened and when, and answers what to do. All this is pure: no descriptor, no
//!    clock, no file.
//! 3. **Two processes.** [`front`] is the one that the caller knows: it makes the boundary, forks the keeper, relays
//!    signals and ends as the outcome says. [`keeper`] is the command's parent: one poll loop that turns readiness into
//!    events for the state machine, and its actions into system calls. [`wire`] has the frames between them.
//! 4. **The tree.** [`spawn`] is the birth of the command. [`tree`] lists, confirms and signals who descends from it, and
//!    ends them; [`boundary`] is the second net around them: a cgroup, a scope of systemd's, a PID namespace or nothing.
//! 5. **What is said of it.** [`report`] is the JSON object and the drawing of a tree, [`voice`] the lines on stderr,
//!    [`doctor`] what works on this machine.
//! 6. **The kernel.** [`sys`] holds the only unsafe code, one safe wrapper a system call.
//!
//! # What holds everywhere
//!
//! - A signal goes only through a pidfd that was opened first and then confirmed to belong to the tree, or to a child that
//!   was not reaped yet.
//! - Moments are times since an arbitrary start on the monotonic clock, [`sys::now`]. Times in a report name
//!   their unit.
//! - No process has a second thread but the short-lived one that speaks D-Bus, and waiting is on descriptors.

pub mod boundary;
pub mod cli;
pub mod doctor;
pub mod duration;
pub mod front;
pub mod keeper;
pub mod limits;
pub mod outcome;
pub mod plan;
#[cfg(any(test, fuzzing))]
pub mod properties;
pub mod report;
pub mod signals;
pub mod spawn;
pub mod supervisor;
pub mod sys;
pub mod tree;
pub mod voice;
pub mod wire;

pub use front::run;
