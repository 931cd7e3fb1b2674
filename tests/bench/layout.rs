//! Which functions a normal run enters, as a linker script that puts them side by side (tests/dist/run.ld).

use std::collections::BTreeSet;
use std::fs;
use std::process::ExitCode;

use crate::elf;
use crate::machine::{TRUE, line};
use crate::trace;

/// What musl writes in assembly has no sections of its own; the names are those of its object files.
const ASSEMBLED: [&str; 4] = ["clone", "memcpy", "memmove", "memset"];

const HEAD: &str = "\
/* The functions that a normal run enters, in one place of the program: each 64 KiB of it that a process enters cost a
   page fault, and front and keeper are two. Which they are is all that this file decides: one that is missing stands
   with the others.

   `make layout` writes it, from a run. The asterisks are for what differs from compiler to compiler. */
SECTIONS
{
  .text.run :
  {
";

const TAIL: &str = "  }
}
INSERT AFTER .text;
";

/// Prints the script for a program that has its symbols.
pub(crate) fn print(program: &str) -> ExitCode {
    match patterns(program) {
        Ok(patterns) => {
            let sections = patterns.iter().map(|pattern| format!("    *(.text.{pattern})\n"));
            let files = ASSEMBLED.iter().map(|name| format!("    *{name}.*o(.text)\n"));
            print!("{HEAD}{}{TAIL}", sections.chain(files).collect::<String>());
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("bench: {why}");
            ExitCode::FAILURE
        }
    }
}

fn patterns(program: &str) -> Result<BTreeSet<String>, String> {
    let image = fs::read(program).map_err(|error| format!("{program}: {error}"))?;
    let symbols = elf::symbols(&image).ok_or_else(|| format!("{program} has no symbols"))?;
    let mut patterns = BTreeSet::new();
    for options in [&["-b", "cgroup", "-t", "60"][..], &[]] {
        for (_, at) in trace::instructions(&line(program, options, &[TRUE]))?.into_keys() {
            let Some(last) = symbols.partition_point(|(value, _)| *value <= at).checked_sub(1) else { continue };
            // A section has the name of one of the symbols that stand at its start.
            let start = symbols[last].0;
            let aliases = symbols[..=last].iter().rev().take_while(|(value, _)| *value == start);
            patterns.extend(aliases.map(|(_, name)| pattern(name)));
        }
    }
    Ok(patterns)
}

/// A symbol's name without what the compiler's version decides: numbers of clones, and in Rust's names (v0) the hashes of
/// crates, `Cs..._`, and references back, `B..._`.
fn pattern(name: &str) -> String {
    let (name, clone) = match name.rsplit_once('.') {
        Some((name, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => (name, "*"),
        _ => (name, ""),
    };
    if !name.starts_with("_R") {
        return format!("{name}{clone}");
    }
    let mut pattern = String::new();
    let mut rest = name;
    while let Some(at) = rest.find(['B', 'C']) {
        let (before, after) = rest.split_at(at);
        pattern.push_str(before);
        let mark = if after.starts_with('B') { "B" } else { "Cs" };
        let word = after.strip_prefix(mark).map(|after| after.trim_start_matches(|c: char| c.is_ascii_alphanumeric()));
        match word.and_then(|word| word.strip_prefix('_')) {
            Some(after) => {
                pattern.push_str(mark);
                pattern.push_str("*_");
                rest = after;
            }
            None => {
                pattern.push_str(&after[..1]);
                rest = &after[1..];
            }
        }
    }
    format!("{pattern}{rest}{clone}")
}
