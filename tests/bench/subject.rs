//! What is put under the wrappers. Every process of it ends by itself after a bounded time.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use nix::libc::{SIGKILL, SIGTERM};

use crate::sys;

/// Seconds after which nothing of a subject lives.
const LONGEST_LIFE: u32 = 100;

pub(crate) fn run(words: &[&str]) -> ExitCode {
    let number = |word: &str| word.parse::<usize>().expect("a number");
    match words {
        ["stamp", board] => stamp(sys::board(board)),
        ["grove", board, count] => grove(sys::board(board), number(count)),
        ["listeners", board, count, every] => listeners(sys::board(board), number(count), number(every)),
        ["family", board, count] => family(sys::board(board), number(count)),
        ["crowd", board, count] => crowd(sys::board(board), number(count), || sys::pause()),
        ["busy", board, count] => {
            // With CPU time of their own, as another user's, sched(7), autogroup.
            let _ = rustix::process::setsid();
            crowd(sys::board(board), number(count), || {
                loop {
                    std::hint::spin_loop();
                }
            })
        }
        ["storm", board, chains, forks, seconds] => {
            storm(sys::board(board), number(chains), number(forks), number(seconds))
        }
        _ => panic!("no such subject: {words:?}"),
    }
}

/// Notes the time and ends.
fn stamp(board: &[AtomicU64]) -> ! {
    board[0].store(sys::now(), SeqCst);
    sys::leave(0)
}

/// So many processes that ignore SIGTERM. Slot 0 is the count of those who are there.
fn grove(board: &[AtomicU64], count: usize) -> ! {
    sys::ignore(SIGTERM);
    for _ in 1..count {
        if sys::fork().expect("a process can be had").is_none() {
            break;
        }
    }
    sys::limit_life(LONGEST_LIFE);
    board[0].fetch_add(1, SeqCst);
    sys::pause()
}

/// So many processes, of which the first, the last and each so-and-so-many-th notes when SIGTERM came, in its slot from 1
/// on, and stays. The others ignore it: waking up a thousand takes longer than signalling them.
fn listeners(board: &[AtomicU64], count: usize, every: usize) -> ! {
    sys::block(SIGTERM);
    let mut own = 1;
    for slot in 2..=count {
        if sys::fork().expect("a process can be had").is_none() {
            own = slot;
            break;
        }
    }
    sys::limit_life(LONGEST_LIFE);
    if own != 1 && own != count && own % every != 0 {
        sys::ignore(SIGTERM);
        board[0].fetch_add(1, SeqCst);
        sys::pause()
    }
    board[0].fetch_add(1, SeqCst);
    sys::wait_for_signal(SIGTERM);
    board[own].store(sys::now(), SeqCst);
    sys::pause()
}

/// So many processes that end together at the end of stdin. Slot 0 counts the families.
fn family(board: &[AtomicU64], count: usize) -> ! {
    let mut children = 0;
    for _ in 1..count {
        match sys::fork().expect("a process can be had") {
            None => {
                sys::limit_life(LONGEST_LIFE);
                wait_for_end_of_stdin();
                sys::leave(0);
            }
            Some(_) => children += 1,
        }
    }
    sys::limit_life(LONGEST_LIFE);
    board[0].fetch_add(1, SeqCst);
    wait_for_end_of_stdin();
    for _ in 0..children {
        let _ = rustix::process::wait(rustix::process::WaitOptions::empty());
    }
    sys::leave(0)
}

/// So many processes that live so until the end of stdin. Slot 0 is the count of those who are there.
fn crowd(board: &[AtomicU64], count: usize, live: fn() -> !) -> ! {
    sys::limit_life(LONGEST_LIFE);
    let mut children = vec![];
    for _ in 0..count {
        match sys::fork() {
            Ok(None) => {
                sys::die_with_parent();
                sys::limit_life(LONGEST_LIFE);
                board[0].fetch_add(1, SeqCst);
                live()
            }
            Ok(Some(pid)) => children.push(pid),
            Err(error) => panic!("cannot fork: {error}"),
        }
    }
    wait_for_end_of_stdin();
    for pid in &children {
        // Unreaped, so the PID is still the child's.
        sys::signal(u32::try_from(*pid).expect("a PID"), SIGKILL);
    }
    while rustix::process::wait(rustix::process::WaitOptions::empty()).is_ok() {}
    sys::leave(0)
}

/// Chains of processes that ignore SIGTERM, fork their replacement and exit; bounded by the forks of each chain and by
/// time. Slot 0 counts the forks, slot 1 says that all chains have begun.
fn storm(board: &[AtomicU64], chains: usize, forks: usize, seconds: usize) -> ! {
    sys::ignore(SIGTERM);
    let end = Instant::now() + Duration::from_secs(u64::try_from(seconds).expect("few"));
    for _ in 0..chains {
        if matches!(sys::raw_fork(), Ok(None)) {
            chain(board, forks, end);
        }
    }
    sys::limit_life(LONGEST_LIFE);
    board[1].store(1, SeqCst);
    sys::pause()
}

fn chain(board: &[AtomicU64], forks: usize, end: Instant) -> ! {
    let mut left = forks;
    while left > 0 && Instant::now() < end {
        match sys::raw_fork() {
            Ok(None) => {
                board[0].fetch_add(1, SeqCst);
                left -= 1;
            }
            Ok(Some(_)) => sys::leave(0),
            // The fence is full for the moment.
            Err(_) => std::thread::yield_now(),
        }
    }
    sys::leave(0)
}

fn wait_for_end_of_stdin() {
    let mut byte = [0; 1];
    while rustix::io::read(rustix::stdio::stdin(), &mut byte).is_ok_and(|length| length > 0) {}
}
