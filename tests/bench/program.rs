//! The benchmarks: measures what a run costs and prints it as a table, with a gate and an aim for each row.
//!
//! `bench table [--check] [ROW...]` measures (tests/bench/run says with which programs); `bench calls PROGRAM` lists the
//! system calls of a run of `true`, and `bench instructions PROGRAM` the functions that take most of its instructions;
//! `bench layout PROGRAM` prints what tests/dist/run.ld has; `bench as NAME ...` is what is put under the wrappers.

mod call;
mod crowds;
mod elf;
mod layout;
mod machine;
mod starts;
mod stops;
mod storms;
mod subject;
mod sys;
mod table;
mod trace;
mod weight;

use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["table", "--check", rows @ ..] => table::print(rows, true),
        ["table", rows @ ..] => table::print(rows, false),
        ["instructions", program] => weight::list_instructions(program),
        ["layout", program] => layout::print(program),
        ["calls", program] => weight::list_calls(program),
        ["inside", words @ ..] => storms::inside(words),
        ["raw-kill", board, cgroup, count, before] => match stops::raw_kill(board, cgroup, count, before) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
        ["as", words @ ..] => subject::run(words),
        _ => {
            eprintln!("usage: bench table [--check] [ROW...] | bench calls|instructions|layout PROGRAM");
            ExitCode::from(2)
        }
    }
}
