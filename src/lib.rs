//! treekill-run: run a command and end everything it started.
//!
//! The binary is `main.rs`; the modules are public so that tests and generators see the same code.

pub mod cli;
pub mod duration;
pub mod outcome;
pub mod plan;
pub mod signals;

/// The whole program.
pub fn run() -> std::process::ExitCode {
    match cli::parse(std::env::args_os()) {
        Ok(cli::Request::Print(text)) => {
            print!("{text}");
            std::process::ExitCode::SUCCESS
        }
        other => {
            eprintln!("treekill-run: {other:?}");
            std::process::ExitCode::from(outcome::FAILED)
        }
    }
}
