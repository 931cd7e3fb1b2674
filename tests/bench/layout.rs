//! Which functions a normal run enters, as a linker script that puts them side by side (tests/dist/run.ld).

use std::collections::BTreeMap;
use std::fs;
use std::process::ExitCode;

use crate::elf;
use crate::machine::{TRUE, line};
use crate::trace::{self, Who};

/// What musl writes in assembly has no sections of its own; the names are those of its object files.
const ASSEMBLED: [&str; 6] = ["__set_thread_area", "clone", "crt1", "memcpy", "memmove", "memset"];

const HEAD: &str = "\
/* The functions that a normal run enters, in one place of the program: those of the front, those of both, and those of the
   keeper. The place is right behind the headers, which the C library reads. Each 64 KiB that a process enters cost it a
   page fault. What stands where is all that this file decides: a function that is missing stands with the others.

   `make layout` writes it, from a run. The asterisks are for what differs from compiler to compiler. */
SECTIONS
{
  .text.run :
  {
";

const TAIL: &str = "  }

  /* Constants have no names to choose by: all but the big tables, of libraries mostly, come next. */
  .rodata.run :
  {
    *(.rodata.cst* .rodata._RN*_12treekill_run* .rodata..Lswitch.table._RN*_12treekill_run* .rodata.*_mask .rodata.main)
    *(.rodata.str* .rodata.*.str1.1 .rodata..L*)
  }
}
INSERT BEFORE .text;

/* What a normal run writes, in few pages: the heap behind all else. */
SECTIONS
{
  .bss.run :
  {
    *(.bss._RNvN*_12treekill_run* .bss._RNv*8ENV_LOCK)
    *(.bss.__environ .bss.__progname* .bss.main_tls COMMON)
    *crtbegin*.o(.bss .bss.*)
    *(.bss._RNvCs*_12treekill_run4HEAP)
  }
}
INSERT BEFORE .bss;
";

/// Prints the script for a program that has its symbols.
pub(crate) fn print(program: &str) -> ExitCode {
    match patterns(program) {
        Ok(patterns) => {
            let sections = |whose: Whose| {
                let own = patterns.iter().filter(move |(_, entered)| **entered == whose);
                // What the compiler takes for unlikely is in `.text.unlikely.NAME`.
                own.map(|(pattern, _)| format!("    *(.text*.{pattern})\n")).collect::<String>()
            };
            let files: String = ASSEMBLED.iter().map(|name| format!("    *{name}.*o(.text)\n")).collect();
            let [front, both, keeper] = [Whose::Front, Whose::Both, Whose::Keeper].map(sections);
            print!("{HEAD}{front}{both}{files}{keeper}{TAIL}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("bench: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Which of the two processes enters a function; what becomes the command shares the keeper's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Front,
    Both,
    Keeper,
}

fn patterns(program: &str) -> Result<BTreeMap<String, Whose>, String> {
    let image = fs::read(program).map_err(|error| format!("{program}: {error}"))?;
    let symbols = elf::symbols(&image).ok_or_else(|| format!("{program} has no symbols"))?;
    let mut patterns = BTreeMap::new();
    for options in [&["-b", "cgroup", "-t", "60"][..], &[]] {
        for (who, at) in trace::instructions(&line(program, options, &[TRUE]))?.into_keys() {
            let Some(last) = symbols.partition_point(|(value, _)| *value <= at).checked_sub(1) else { continue };
            // A section has the name of one of the symbols that stand at its start.
            let start = symbols[last].0;
            let aliases = symbols[..=last].iter().rev().take_while(|(value, _)| *value == start);
            let whose = if who == Who::Front { Whose::Front } else { Whose::Keeper };
            for (_, name) in aliases {
                let known = patterns.entry(pattern(name)).or_insert(whose);
                if *known != whose {
                    *known = Whose::Both;
                }
            }
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
