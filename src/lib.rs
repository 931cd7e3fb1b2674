//! treekill-run: run a command and end everything it started.
//!
//! The binary is `main.rs`; the modules are public so that tests and generators see the same code.

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
