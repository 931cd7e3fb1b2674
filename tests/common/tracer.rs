//! A small tracer, ptrace(2): it holds one process of a run at a system call of the test's choice, and can make that fail.
//!
//! A tracer is a thread, and the wrapper's tracer is the thread that started it. One process is traced at a time:
//! each is let go of as soon as the one that is wanted is born.

use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;

/// Makes the calling process traced by its parent from its next exec on.
pub(crate) fn be_traced() -> std::io::Result<()> {
    ptrace::traceme()?;
    Ok(())
}

/// A process that stands still.
#[derive(Debug)]
pub(crate) struct Traced {
    /// The front and its line of children down to this process.
    lineage: Vec<Pid>,
    /// It stands before a system call.
    is_in_call: bool,
}

/// A system call that is about to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) number: i64,
    pub(crate) first_argument: u64,
}

/// What a traced process came to.
#[derive(Debug, PartialEq, Eq)]
enum Stop {
    SystemCall,
    Exec,
    Birth(Pid),
    Ended,
}

impl Traced {
    /// Follows the wrapper, which was started with `be_traced`, from its `execs`th exec on, and stops a process below it at
    /// its birth; `None` if the run ended without one. From generation to generation so many births are let pass first.
    pub(crate) fn follow(front: u32, execs: usize, generations: &[usize]) -> Option<Traced> {
        let front = Pid::from_raw(front.cast_signed());
        let mut traced = Traced { lineage: vec![front], is_in_call: false };
        // The stop that the first exec makes, before there are options.
        wait_for_stop(front)?;
        traced.set(Options::PTRACE_O_TRACEEXEC);
        for _ in 1..execs {
            while traced.go_on(ptrace::cont)? != Stop::Exec {}
        }
        let births = Options::PTRACE_O_TRACEFORK | Options::PTRACE_O_TRACEVFORK | Options::PTRACE_O_TRACECLONE;
        for &others in generations {
            traced.set(births);
            let mut others = others;
            let child = loop {
                match traced.go_on(ptrace::cont)? {
                    Stop::Birth(other) if others > 0 => {
                        others -= 1;
                        wait_for_stop(other)?;
                        let _ = ptrace::detach(other, None);
                    }
                    Stop::Birth(child) => break child,
                    Stop::Ended => return None,
                    Stop::SystemCall | Stop::Exec => {}
                }
            };
            // A child begins with a stop of its own. It is traced because its parent is, so that comes first.
            wait_for_stop(child)?;
            let _ = ptrace::detach(traced.pid(), None);
            traced.lineage.push(child);
        }
        traced.set(Options::PTRACE_O_TRACEEXEC);
        Some(traced)
    }

    /// The PIDs of the front and its line of children down to this process.
    pub(crate) fn lineage(&self) -> Vec<u32> {
        self.lineage.iter().map(|pid| pid.as_raw().cast_unsigned()).collect()
    }

    pub(crate) fn pid(&self) -> Pid {
        *self.lineage.last().expect("a lineage begins with the front")
    }

    /// Lets it run to its `stops`th beginning or end of a system call. The count that was reached is smaller if it
    /// called exec or ended before.
    pub(crate) fn advance(&mut self, stops: usize) -> usize {
        for count in 0..stops {
            if self.go_on(ptrace::syscall) != Some(Stop::SystemCall) {
                return count;
            }
        }
        stops
    }

    /// Lets it run to the beginning of its next system call; `None` if it called exec or ended before.
    pub(crate) fn next_call(&mut self) -> Option<Call> {
        loop {
            if self.go_on(ptrace::syscall)? != Stop::SystemCall {
                return None;
            }
            let call = registers::call_at_entry(self.pid()).filter(|_| !self.is_in_call);
            self.is_in_call = call.is_some();
            if call.is_some() {
                return call;
            }
        }
    }

    /// The call that it stands before comes back with this errno, whether it is made all the same or not at all.
    pub(crate) fn fail_call(&mut self, errno: i32, is_made: bool) {
        if !is_made {
            registers::skip_call(self.pid());
        }
        // One that was killed meanwhile gets no answer.
        if self.go_on(ptrace::syscall) == Some(Stop::SystemCall) {
            registers::answer(self.pid(), errno);
        }
        self.is_in_call = false;
    }

    /// Ends the tracing, whether it was killed or not.
    pub(crate) fn let_go(self) {
        // One that was killed cannot be let go of; its parent learns of the death when its tracer has reaped it. Our own
        // child is left to the harness.
        if ptrace::detach(self.pid(), None).is_err() && self.lineage.len() > 1 {
            let _ = waitpid(self.pid(), Some(WaitPidFlag::__WALL));
        }
    }

    fn set(&self, options: Options) {
        // A tracer that dies takes its process with it.
        let always = Options::PTRACE_O_EXITKILL | Options::PTRACE_O_TRACESYSGOOD;
        // Fails only if the process was killed, which the next stop tells.
        let _ = ptrace::setoptions(self.pid(), options | always);
    }

    /// Lets it run to its next stop, delivering what is sent to it.
    fn go_on(&mut self, resume: fn(Pid, Option<Signal>) -> nix::Result<()>) -> Option<Stop> {
        let mut signal = None;
        loop {
            resume(self.pid(), signal).ok()?;
            match wait_for_stop(self.pid()) {
                None => return Some(Stop::Ended),
                Some(WaitStatus::Stopped(_, got)) => signal = Some(got),
                Some(WaitStatus::PtraceSyscall(_)) => return Some(Stop::SystemCall),
                Some(WaitStatus::PtraceEvent(_, _, libc::PTRACE_EVENT_EXEC)) => return Some(Stop::Exec),
                Some(WaitStatus::PtraceEvent(pid, _, _)) => {
                    let child = libc::pid_t::try_from(ptrace::getevent(pid).ok()?).ok()?;
                    return Some(Stop::Birth(Pid::from_raw(child)));
                }
                Some(other) => panic!("a traced process cannot be {other:?}"),
            }
        }
    }
}

/// Waits for the next stop; `None` if the process ends instead. It is not reaped: the front is the harness's to reap.
fn wait_for_stop(pid: Pid) -> Option<WaitStatus> {
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WSTOPPED | WaitPidFlag::WNOWAIT | WaitPidFlag::__WALL;
    match waitid(Id::Pid(pid), look).ok()? {
        WaitStatus::Exited(..) | WaitStatus::Signaled(..) => None,
        // Unless it was killed since.
        _ => waitpid(pid, Some(WaitPidFlag::__WALL))
            .ok()
            .filter(|status| !matches!(status, WaitStatus::Exited(..) | WaitStatus::Signaled(..))),
    }
}

/// System calls as the registers show them, of one architecture only.
#[cfg(target_arch = "x86_64")]
mod registers {
    use super::{Call, Pid, libc, ptrace};

    /// What stands in place of a result before the call is made.
    const NOT_MADE: u64 = u64::MAX - libc::ENOSYS as u64 + 1;

    pub(super) fn call_at_entry(pid: Pid) -> Option<Call> {
        let registers = ptrace::getregs(pid).ok()?;
        let number = registers.orig_rax.cast_signed();
        (registers.rax == NOT_MADE).then_some(Call { number, first_argument: registers.rdi })
    }

    /// There is no call of this number.
    pub(super) fn skip_call(pid: Pid) {
        change(pid, |registers| registers.orig_rax = u64::MAX);
    }

    pub(super) fn answer(pid: Pid, errno: i32) {
        change(pid, |registers| registers.rax = i64::from(-errno).cast_unsigned());
    }

    fn change(pid: Pid, change: impl FnOnce(&mut libc::user_regs_struct)) {
        // Fails only if it was killed.
        if let Ok(mut registers) = ptrace::getregs(pid) {
            change(&mut registers);
            let _ = ptrace::setregs(pid, registers);
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod registers {
    use super::{Call, Pid};

    pub(super) fn call_at_entry(_: Pid) -> Option<Call> {
        None
    }

    pub(super) fn skip_call(_: Pid) {}

    pub(super) fn answer(_: Pid, _: i32) {}
}
