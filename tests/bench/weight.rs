//! What does not depend on the machine's speed: system calls, instructions, memory, sizes.

use std::collections::BTreeMap;
use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use nix::libc;
use nix::sys::resource::{UsageWho, getrusage};

use crate::elf;
use crate::machine::{Machine, TRUE, line, spawn, time};
use crate::storms::children;
use crate::sys;
use crate::table::{Row, Value};
use crate::trace::{self, Call, Who};

/// The four kinds of call that a normal run has none of.
const FAULTS: [&str; 4] =
    ["writes to cgroup.procs", "waits for cgroup.events", "sleeps", "reads of other processes' /proc"];

fn run_of_true(program: &str) -> Vec<String> {
    line(program, &["-b", "cgroup", "-t", "60"], &[TRUE])
}

/// The same build with its symbols, which tell where `main` is.
fn with_symbols(machine: &Machine) -> Result<String, String> {
    let path = format!("{}.symbols", machine.musl.as_ref().map_err(String::clone)?);
    if fs::exists(&path).unwrap_or(false) { Ok(path) } else { Err(format!("there is no {path}")) }
}

#[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
fn count(number: u64) -> Value {
    Value::Count(number as f64)
}

fn counted(calls: &[Call], who: Who) -> u64 {
    calls.iter().filter(|call| call.who == who).count() as u64
}

pub(crate) fn system_calls(machine: &Machine, rows: &mut Vec<Row>) {
    const WHAT: &str = "system calls of front and keeper for `true`, from main on";
    let calls = match with_symbols(machine).and_then(|program| trace::calls(&run_of_true(&program))) {
        Ok(calls) => calls,
        Err(why) => {
            rows.push(Row::not_measured(WHAT, why));
            return;
        }
    };
    let (front, keeper) = (counted(&calls, Who::Front), counted(&calls, Who::Keeper));
    rows.push(Row::value(WHAT, count(front + keeper)).gate(70.0, 40.0));
    rows.push(Row::value("  of these the keeper's", count(keeper)));
    rows.push(Row::value("  besides, of the command's process before its exec", count(counted(&calls, Who::Birth))));
    for fault in FAULTS {
        let found = calls.iter().filter(|call| call.fault == Some(fault)).count() as u64;
        rows.push(Row::value(fault, count(found)).gate(0.0, 0.0));
    }
}

/// Prints each call, and counts as the last lines: for developers, and for the test of the ceiling.
pub(crate) fn list_calls(program: &str) -> ExitCode {
    let calls = match trace::calls(&run_of_true(program)) {
        Ok(calls) => calls,
        Err(why) => {
            eprintln!("bench: {why}");
            return ExitCode::FAILURE;
        }
    };
    for call in &calls {
        let who = format!("{:?}", call.who).to_lowercase();
        println!("{}", format!("{who:<6} {:<18} {}", name(call.number), call.about).trim_end());
    }
    let ours = counted(&calls, Who::Front) + counted(&calls, Who::Keeper);
    println!("{ours} system calls of front and keeper");
    for fault in FAULTS {
        println!("{} {fault}", calls.iter().filter(|call| call.fault == Some(fault)).count());
    }
    ExitCode::SUCCESS
}

pub(crate) fn instructions(machine: &Machine, rows: &mut Vec<Row>) {
    let builds = [("musl", &machine.musl), ("static glibc", &machine.glibc), ("dynamic", &machine.dynamic)];
    for (name, build) in builds {
        let what = format!("user instructions of front and keeper, {name}");
        let steps = match build.clone().and_then(|program| trace::instructions(&run_of_true(&program))) {
            Ok(steps) => steps,
            Err(why) => {
                rows.push(Row::not_measured(what, why));
                continue;
            }
        };
        let of = |who: Who| steps.iter().filter(|((other, _), _)| *other == who).map(|(_, count)| count).sum::<u64>();
        let row = Row::value(what, count(of(Who::Front) + of(Who::Keeper)));
        if name == "musl" {
            rows.push(row.gate(300e3, 120e3));
            rows.push(Row::value("  of these the keeper's", count(of(Who::Keeper))));
        } else {
            rows.push(row);
        }
    }
}

/// Prints the functions that take most instructions, of a program that has its symbols.
pub(crate) fn list_instructions(program: &str) -> ExitCode {
    const SHOWN: usize = 50;
    let list = || -> Result<(), String> {
        let image = fs::read(program).map_err(|error| format!("{program}: {error}"))?;
        let symbols = elf::symbols(&image).ok_or_else(|| format!("{program} has no symbols"))?;
        let mut functions = BTreeMap::<(Who, &str), u64>::new();
        for ((who, at), count) in trace::instructions(&run_of_true(program))? {
            let place = symbols.partition_point(|(value, _)| *value <= at).checked_sub(1);
            let name = place.map_or("?", |place| &symbols[place].1);
            *functions.entry((who, name)).or_default() += count;
        }
        let mut functions: Vec<_> = functions.into_iter().collect();
        functions.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        for ((who, name), count) in functions.iter().take(SHOWN) {
            println!("{count:>8} {:<6} {name}", format!("{who:?}").to_lowercase());
        }
        Ok(())
    };
    match list() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("bench: {why}");
            ExitCode::FAILURE
        }
    }
}

/// How often front and keeper touch a page that they have not or no longer.
pub(crate) fn page_faults(machine: &Machine, rows: &mut Vec<Row>) {
    for (name, build) in [("musl", &machine.musl), ("static glibc", &machine.glibc), ("dynamic", &machine.dynamic)] {
        let what = format!("page faults of front and keeper, {name}");
        let faults = || Ok::<_, String>(faults_of(&run_of_true(&build.clone()?))? - faults_of(&[TRUE.to_owned()])?);
        rows.push(match faults() {
            Ok(faults) => Row::value(what, Value::Count(faults)),
            Err(why) => Row::not_measured(what, why),
        });
    }
}

/// The least of some runs: how a program lies on its pages differs from run to run.
#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn faults_of(line: &[String]) -> Result<f64, String> {
    const RUNS: usize = 20;
    let children = || {
        getrusage(UsageWho::RUSAGE_CHILDREN).map(|usage| usage.minor_page_faults()).map_err(|errno| errno.to_string())
    };
    let mut least = f64::INFINITY;
    for _ in 0..RUNS {
        let before = children()?;
        time(line)?;
        let after = children()?;
        least = least.min((after - before) as f64);
    }
    Ok(least)
}

/// What no other process shares, while the command runs.
pub(crate) fn memory(machine: &Machine, rows: &mut Vec<Row>) {
    const WHAT: &str = "private memory of front and keeper";
    let measure = || -> Result<Row, String> {
        let ours = machine.ours_on("cgroup")?;
        let mut child = spawn(&line(&ours, &["-b", "cgroup", "-t", "60"], &["/bin/sleep", "60"]))?;
        let front = child.id();
        let found = settled(front).and_then(|keeper| Ok(private(front)? + private(keeper)?));
        sys::signal(front, libc::SIGTERM);
        let _ = child.wait();
        Ok(Row::value(WHAT, Value::Bytes(found?)).gate(0.8e6, 0.2e6))
    };
    rows.push(measure().unwrap_or_else(|why| Row::not_measured(WHAT, why)));
}

/// The keeper, once the command runs and both wait for it.
fn settled(front: u32) -> Result<u32, String> {
    let comm = |pid: u32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let end = sys::now() + 10_000_000_000;
    while sys::now() < end {
        std::thread::sleep(Duration::from_millis(20));
        let keeper = children(front).first().copied();
        let command = keeper.and_then(|keeper| children(keeper).first().copied());
        if let (Some(keeper), Some(command)) = (keeper, command)
            && comm(command).trim() == "sleep"
        {
            std::thread::sleep(Duration::from_millis(50));
            return Ok(keeper);
        }
    }
    Err("the command did not come up".into())
}

/// Bytes of a process's private pages.
#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn private(pid: u32) -> Result<f64, String> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    let number = |line: &str| line.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok());
    let sum: u64 = text.lines().filter(|line| line.starts_with("Private_")).filter_map(number).sum();
    Ok((sum * 1024) as f64)
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
pub(crate) fn sizes(machine: &Machine, rows: &mut Vec<Row>) {
    for (what, build) in [("static binary, musl", &machine.musl), ("static binary, glibc", &machine.glibc)] {
        let size = build.clone().and_then(|path| fs::metadata(path).map_err(|error| error.to_string()));
        rows.push(match size {
            Ok(file) => Row::value(what, Value::Bytes(file.len() as f64)).gate(3e6, 2e6),
            Err(why) => Row::not_measured(what, why),
        });
    }
}

/// The names of the calls that come up; others are shown by their number.
fn name(number: i64) -> String {
    const NAMES: &[(libc::c_long, &str)] = &[
        (libc::SYS_read, "read"),
        (libc::SYS_write, "write"),
        (libc::SYS_close, "close"),
        (libc::SYS_fstat, "fstat"),
        (libc::SYS_mmap, "mmap"),
        (libc::SYS_mprotect, "mprotect"),
        (libc::SYS_munmap, "munmap"),
        (libc::SYS_brk, "brk"),
        (libc::SYS_rt_sigaction, "rt_sigaction"),
        (libc::SYS_rt_sigprocmask, "rt_sigprocmask"),
        (libc::SYS_rt_sigpending, "rt_sigpending"),
        (libc::SYS_sigaltstack, "sigaltstack"),
        (libc::SYS_fcntl, "fcntl"),
        (libc::SYS_ioctl, "ioctl"),
        (libc::SYS_getpid, "getpid"),
        (libc::SYS_getppid, "getppid"),
        (libc::SYS_getpgid, "getpgid"),
        (libc::SYS_setpgid, "setpgid"),
        (libc::SYS_setsid, "setsid"),
        (libc::SYS_getsid, "getsid"),
        (libc::SYS_geteuid, "geteuid"),
        (libc::SYS_gettid, "gettid"),
        (libc::SYS_prctl, "prctl"),
        (libc::SYS_clone, "clone"),
        (libc::SYS_clone3, "clone3"),
        (libc::SYS_execve, "execve"),
        (libc::SYS_exit, "exit"),
        (libc::SYS_exit_group, "exit_group"),
        (libc::SYS_wait4, "wait4"),
        (libc::SYS_waitid, "waitid"),
        (libc::SYS_kill, "kill"),
        (libc::SYS_pidfd_open, "pidfd_open"),
        (libc::SYS_pidfd_send_signal, "pidfd_send_signal"),
        (libc::SYS_openat, "openat"),
        (libc::SYS_newfstatat, "newfstatat"),
        (libc::SYS_statx, "statx"),
        (libc::SYS_statfs, "statfs"),
        (libc::SYS_fstatfs, "fstatfs"),
        (libc::SYS_faccessat, "faccessat"),
        (libc::SYS_faccessat2, "faccessat2"),
        (libc::SYS_mkdirat, "mkdirat"),
        (libc::SYS_unlinkat, "unlinkat"),
        (libc::SYS_getdents64, "getdents64"),
        (libc::SYS_lseek, "lseek"),
        (libc::SYS_pread64, "pread64"),
        (libc::SYS_flock, "flock"),
        (libc::SYS_ppoll, "ppoll"),
        (libc::SYS_pipe2, "pipe2"),
        (libc::SYS_socketpair, "socketpair"),
        (libc::SYS_sendto, "sendto"),
        (libc::SYS_recvfrom, "recvfrom"),
        (libc::SYS_sendmsg, "sendmsg"),
        (libc::SYS_recvmsg, "recvmsg"),
        (libc::SYS_signalfd4, "signalfd4"),
        (libc::SYS_getrandom, "getrandom"),
        (libc::SYS_getrlimit, "getrlimit"),
        (libc::SYS_prlimit64, "prlimit64"),
        (libc::SYS_set_tid_address, "set_tid_address"),
        (libc::SYS_dup, "dup"),
        (libc::SYS_dup3, "dup3"),
        (libc::SYS_close_range, "close_range"),
        (libc::SYS_getrusage, "getrusage"),
        (libc::SYS_setpriority, "setpriority"),
        (libc::SYS_getcpu, "getcpu"),
        (libc::SYS_sched_getaffinity, "sched_getaffinity"),
        (libc::SYS_sched_setaffinity, "sched_setaffinity"),
        (libc::SYS_umask, "umask"),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_open, "open"),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_stat, "stat"),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_poll, "poll"),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_getpgrp, "getpgrp"),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_fork, "fork"),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_access, "access"),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_readlink, "readlink"),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_mkdir, "mkdir"),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_rmdir, "rmdir"),
    ];
    NAMES.iter().find(|(known, _)| *known == number).map_or_else(|| number.to_string(), |(_, name)| (*name).to_owned())
}
