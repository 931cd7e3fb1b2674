//! Signal names, numbers and sets, and which signal means what to us. Pure: nothing here touches a
//! disposition or a mask; that is `sys`.

use std::fmt;

use nix::libc;

/// A signal number from 1 to 64, signal(7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sig(i32);

/// The highest signal number of Linux, `_NSIG` in signal(7).
const LAST: i32 = 64;

/// The first real-time signal of the kernel, signal(7).
const FIRST_REAL_TIME: i32 = 32;

/// What RTMIN and RTMAX mean to the programs that a signal is for: the numbers of glibc, whatever this program is built
/// with. musl keeps one more for itself, and a tree would get another signal than the one named.
const RTMIN: i32 = 34;
const RTMAX: i32 = LAST;

impl Sig {
    /// No signal: kill(2) takes it and sends nothing. Only what is to be sent can be this.
    pub const NONE: Sig = Sig(0);
    /// Hang-up.
    pub const HUP: Sig = Sig(libc::SIGHUP);
    /// Interrupt, Ctrl-C.
    pub const INT: Sig = Sig(libc::SIGINT);
    /// Quit, Ctrl-\.
    pub const QUIT: Sig = Sig(libc::SIGQUIT);
    /// The signal that no process can refuse.
    pub const KILL: Sig = Sig(libc::SIGKILL);
    /// A write to a pipe without a reader.
    pub const PIPE: Sig = Sig(libc::SIGPIPE);
    /// The polite request to end.
    pub const TERM: Sig = Sig(libc::SIGTERM);
    /// A child ended, stopped or went on.
    pub const CHLD: Sig = Sig(libc::SIGCHLD);
    /// A timer ran out.
    pub const ALRM: Sig = Sig(libc::SIGALRM);
    /// Go on after a stop.
    pub const CONT: Sig = Sig(libc::SIGCONT);
    /// The stop that no process can refuse.
    pub const STOP: Sig = Sig(libc::SIGSTOP);
    /// Ctrl-Z.
    pub const TSTP: Sig = Sig(libc::SIGTSTP);
    /// A background process read the terminal.
    pub const TTIN: Sig = Sig(libc::SIGTTIN);
    /// A background process wrote to the terminal.
    pub const TTOU: Sig = Sig(libc::SIGTTOU);
    /// The terminal's size changed.
    pub const WINCH: Sig = Sig(libc::SIGWINCH);

    /// The signal of this number; `None` outside 1 to 64.
    pub fn new(number: i32) -> Option<Sig> {
        (1..=LAST).contains(&number).then_some(Sig(number))
    }

    /// The number, 1 to 64.
    pub fn number(self) -> i32 {
        self.0
    }

    /// How a line names it.
    pub fn in_words(self) -> String {
        if self == Sig::NONE { "signal 0, which only checks,".into() } else { format!("SIG{self}") }
    }

    /// Every signal of Linux.
    pub fn all() -> impl Iterator<Item = Sig> {
        (1..=LAST).map(Sig)
    }

    /// Whether it asks a program to end, so that relaying it begins a stop of the tree.
    pub fn is_request_to_end(self) -> bool {
        matches!(self, Sig::TERM | Sig::INT | Sig::HUP | Sig::QUIT)
    }

    /// Whether it ends a process that does nothing about it, signal(7).
    pub fn is_fatal(self) -> bool {
        let harmless = [libc::SIGCHLD, libc::SIGCONT, libc::SIGURG, libc::SIGWINCH, libc::SIGSTOP];
        self != Sig::NONE && !self.is_job_stop() && !harmless.contains(&self.0)
    }

    /// Whether it is one of the real-time signals, those that a C library keeps for itself among them.
    pub fn is_real_time(self) -> bool {
        self.0 >= FIRST_REAL_TIME
    }

    /// Whether it is one that job control stops a process with and that can be caught.
    pub fn is_job_stop(self) -> bool {
        matches!(self, Sig::TSTP | Sig::TTIN | Sig::TTOU)
    }

    /// Whether the terminal driver sends it to a whole process group, termios(3) and tty_ioctl(4).
    pub fn is_from_terminals(self) -> bool {
        self.is_job_stop() || matches!(self, Sig::INT | Sig::QUIT | Sig::HUP | Sig::CONT | Sig::WINCH)
    }
}

impl fmt::Display for Sig {
    /// The name without SIG: `TERM`, `RTMIN+3`, or the number of one that has no name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = signal_hook::low_level::signal_name(self.0) {
            return f.write_str(name.trim_start_matches("SIG"));
        }
        match self.0 {
            libc::SIGSTKFLT => f.write_str("STKFLT"),
            libc::SIGPWR => f.write_str("PWR"),
            RTMIN => f.write_str("RTMIN"),
            RTMAX => f.write_str("RTMAX"),
            n if n > RTMIN && n < RTMAX => write!(f, "RTMIN+{}", n - RTMIN),
            n => write!(f, "{n}"),
        }
    }
}

/// What a shell adds to the number of the signal that a command died of.
const STATUS_OF_A_DEATH: i32 = 128;

/// Threads use these inside the C library, nptl(7).
const RESERVED: [i32; 2] = [32, 33];

/// Other spellings that kill(1) and GNU timeout take.
const ALIASES: [(&str, i32); 4] = [("EXIT", 0), ("IOT", libc::SIGABRT), ("CLD", libc::SIGCHLD), ("POLL", libc::SIGIO)];

/// Reads a signal as people write it: `TERM`, `sigterm`, `15`, `RTMIN+2`, `RTMAX-1`, or a shell's
/// status of a death by it, which is 128 more (`143`). `0` is none.
///
/// # Errors
/// A sentence that names the value and what was expected.
pub fn parse(text: &str) -> Result<Sig, String> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let number = if is_number(name) && name != upper {
        // GNU timeout takes `SIG9`, but no status of a shell there.
        name.parse().ok().filter(|n| (0..=LAST).contains(n) && !RESERVED.contains(n))
    } else if is_number(&upper) {
        let plain = |n: i32| if n > STATUS_OF_A_DEATH { n - STATUS_OF_A_DEATH } else { n };
        upper.parse().ok().map(plain).filter(|n| !RESERVED.contains(n))
    } else if let Some(offset) = name.strip_prefix("RTMIN") {
        real_time_offset(offset, '+').map(|n| RTMIN + n)
    } else if let Some(offset) = name.strip_prefix("RTMAX") {
        real_time_offset(offset, '-').map(|n| RTMAX - n)
    } else {
        let alias = ALIASES.iter().find(|(alias, _)| *alias == name);
        let named = || Sig::all().find(|sig| !name.is_empty() && sig.to_string() == name);
        alias.map(|(_, number)| *number).or_else(|| named().map(Sig::number))
    };
    let sig = number.and_then(|number| if number == 0 { Some(Sig::NONE) } else { Sig::new(number) });
    sig.ok_or_else(|| {
        let (first, last) = (STATUS_OF_A_DEATH + 1, STATUS_OF_A_DEATH + LAST);
        format!("unknown signal '{text}': expected a name such as TERM or SIGINT, a number up to {LAST}, {first} to {last} as a shell shows a death by signal, or RTMIN+N")
    })
}

/// The N of `RTMIN+N` or `RTMAX-N`; nothing means 0, and what leaves the real-time range is no signal.
fn real_time_offset(text: &str, sign: char) -> Option<i32> {
    if text.is_empty() {
        return Some(0);
    }
    let n: i32 = text.strip_prefix(sign)?.parse().ok()?;
    (0..=RTMAX - RTMIN).contains(&n).then_some(n)
}

/// A set of signals in the kernel's own layout: bit n-1 stands for signal n.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SigSet(pub u64);

impl SigSet {
    /// All 64 signals.
    pub const ALL: SigSet = SigSet(u64::MAX);

    /// Adds one signal.
    pub fn insert(&mut self, sig: Sig) {
        self.0 |= 1 << (sig.0 - 1);
    }

    /// Whether the signal is in the set.
    pub fn contains(self, sig: Sig) -> bool {
        sig != Sig::NONE && self.0 & (1 << (sig.0 - 1)) != 0
    }

    /// This set without the signals of the other.
    #[must_use]
    pub fn without(self, other: SigSet) -> SigSet {
        SigSet(self.0 & !other.0)
    }
}

impl FromIterator<Sig> for SigSet {
    fn from_iter<I: IntoIterator<Item = Sig>>(sigs: I) -> SigSet {
        let mut set = SigSet::default();
        sigs.into_iter().for_each(|sig| set.insert(sig));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_signal_is_understood() {
        for text in ["SIG15", "TERM", "term", "SIGTERM", "sigTerm", "15", "015", "143"] {
            assert_eq!(parse(text), Ok(Sig::TERM), "{text}");
        }
        assert_eq!(parse("IOT"), Ok(Sig(libc::SIGABRT)));
        assert_eq!(parse("rtmin+2").map(Sig::number), Ok(36));
        assert_eq!(parse("SIGRTMAX-1").map(Sig::number), Ok(63));
        assert_eq!(parse("RTMIN").map(Sig::number), Ok(34));
    }

    #[test]
    fn what_is_no_signal_is_refused_by_name() {
        for text in [
            "",
            "SIG",
            "NOSUCH",
            "65",
            "127",
            "-1",
            "1.5",
            "RTMIN+99",
            "RTMIN-1",
            "RTMAX+1",
            "TERM ",
            "SIGSIGTERM",
            "99999999999",
            "128",
            "160",
            "193",
            "255",
            "256",
            "271",
            "300",
        ] {
            let refusal = parse(text).expect_err(text);
            assert!(refusal.contains(&format!("'{text}'")), "{refusal}");
            assert!(refusal.contains("129 to 192"), "{refusal}");
        }
    }

    #[test]
    fn the_status_of_a_death_is_a_signal() {
        assert_eq!((parse("129"), parse("192")), (Ok(Sig::HUP), Ok(Sig(LAST))));
    }

    #[test]
    fn every_signal_can_be_written_and_read_again() {
        for sig in Sig::all().filter(|sig| !RESERVED.contains(&sig.number())) {
            assert_eq!(parse(&sig.to_string()), Ok(sig));
        }
    }
}
