//! Command lines of timeout, generated: options in every spelling, good and bad durations and signals, and commands that
//! end in every way. Times in a line are counted in units, so that a line that differs can be tried again more slowly.

use std::time::Duration;

use crate::common::dice::Dice;

/// One command line without the program's name. `@N@` in a word stands for N tenths of a unit of time.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    words: Vec<String>,
}

impl Line {
    /// The words, with times of this unit.
    pub(crate) fn words(&self, unit: Duration) -> Vec<String> {
        let word = |word: &String| {
            let mut text = String::new();
            for (index, part) in word.split('@').enumerate() {
                match part.parse::<f64>() {
                    Ok(tenths) if index % 2 == 1 => text += &format!("{:.3}", tenths / 10.0 * unit.as_secs_f64()),
                    _ => text += part,
                }
            }
            text
        };
        self.words.iter().map(word).collect()
    }
}

/// Every one in so many lines waits for something.
const ONE_TIMED_IN: usize = 20;

/// The next line.
pub(crate) fn line(dice: &mut Dice) -> Line {
    let words = if dice.is_one_in(ONE_TIMED_IN) { timed(dice) } else { instant(dice) };
    Line { words }
}

/// Short enough that a command might or might not be faster: only in places where no clock runs.
const SHORT: &[&str] = &[".1s", "0.05", "0x1p-4", "1e-1", "0.0000001", "1e-10000", "0.002m", "1e-320"];

const LONG: &[&str] = &[
    "0",
    "5",
    "5.",
    "1e1",
    "inf",
    "infinity",
    "INF",
    "+5",
    " 5",
    "0x10",
    "1e400",
    "0x1d",
    "0s",
    "1d",
    "1h",
    "1m",
    "-0",
    "99999999999999999999",
    "infd",
    "0x1p0d",
    "1e2d",
    "\t5",
    "5\u{b}",
    "\r7",
    "0.0",
    "1e+2",
    "9E0",
    "0X1P3",
    "00005",
    "5s",
];

const BAD: &[&str] = &[
    "", "nan", "-1", "1 ", "1D", "1ss", "1x", "1ms", "1m30s", "0x", "1e", ".", "1_0", "5,0", "-", "+-1", "NaN", "0b1",
    "5\n", "s", "1e5x", "0x1p", "5us", "1M", "--", "é", "5\u{a0}", "١", "1.5.5", "++5", "d", "nan(1)", "0x1g", "1sd",
];

const SIGNALS: &[&str] = &[
    "TERM", "term", "SIGTERM", "sigterm", "15", "0", "EXIT", "KILL", "9", "137", "143", "271", "SEGV", "INT", "HUP",
    "CHLD", "CONT", "STOP", "TSTP", "USR1", "RTMIN", "RTMIN+1", "RTMAX", "RTMAX-2", "rtmin+3", "64", "34", "128",
    "IOT", "CLD", "POLL", "IO", "PWR", "STKFLT", "SIGRTMIN", "015", "RTMIN+0", "RTMAX-0", "SYS", "BUS", "256", "255",
];

const NO_SIGNALS: &[&str] = &[
    "RTMIN-1",
    "RTMAX+1",
    "RTMIN+99",
    "65",
    "127",
    "-1",
    "",
    "SIG",
    "NOSUCH",
    "SIGSIGTERM",
    "1.5",
    "999",
    "300",
    "UNUSED",
    "LOST",
    "EMT",
    "INFO",
    "0x9",
    "+9",
    " 9",
    "TERM ",
    "32",
    "33",
    "SIG9",
    "SIG15",
    "9 ",
    "1e1",
    "RTMIN+",
    "RTMAX-",
];

fn duration(dice: &mut Dice) -> String {
    let list = [SHORT, LONG, LONG, BAD][dice.index(4)];
    dice.pick(list).to_owned()
}

fn signal(dice: &mut Dice) -> String {
    let list = [SIGNALS, SIGNALS, NO_SIGNALS][dice.index(3)];
    dice.pick(list).to_owned()
}

fn words(list: &[&str]) -> Vec<String> {
    list.iter().map(|word| (*word).to_owned()).collect()
}

/// An option, good or bad. The short forms `-f` and `-p` are newer than the timeout of many machines.
fn option(dice: &mut Dice) -> Vec<String> {
    let (d, s) = (duration(dice), signal(dice));
    match dice.index(48) {
        0 => vec!["-k".into(), d],
        1 => vec![format!("-k{d}")],
        2 => vec![format!("--kill-after={d}")],
        3 => vec!["--kill-after".into(), d],
        4 => vec![format!("--kill={d}")],
        5 => vec!["--k".into(), d],
        6 => vec!["-s".into(), s],
        7 => vec![format!("-s{s}")],
        8 => vec![format!("--signal={s}")],
        9 => vec!["--signal".into(), s],
        10 => vec![format!("--sig={s}")],
        11 => vec![format!("--s={s}")],
        12 => vec![format!("-vk{d}")],
        13 => vec!["-vs".into(), s],
        14 => vec![format!("-vvs{s}")],
        15 => vec!["-k".into(), d, format!("-s{s}")],
        16 => vec![format!("--s={s}"), format!("--k={d}")],
        other => words(FLAGS[(other - 17) % FLAGS.len()]),
    }
}

const FLAGS: &[&[&str]] = &[
    &["-v"],
    &["--preserve-status"],
    &["--p"],
    &["--foreground"],
    &["--f"],
    &["--verbose"],
    &["--verb"],
    &["--v"],
    &["--ver"],
    &["--vers"],
    &["--version"],
    &["--help"],
    &["--h"],
    &["--pre=1"],
    &["--foreground=x"],
    &["-x"],
    &["--bogus"],
    &["-vx"],
    &["--"],
    &["-"],
    &["-5"],
    &["-k"],
    &["-s"],
    &["-vv"],
    &["-vs"],
    &["--signal"],
    &["--help=1"],
    &["--=5"],
    &["---"],
    &["-vk"],
    &["--kill-after="],
];

/// Commands that end at once.
const INSTANT: &[&[&str]] = &[
    &["true"],
    &["false"],
    &["true"],
    &["sh", "-c", "exit 7"],
    &["no-such-command"],
    &["/tmp"],
    &["/no/such/command"],
    &["/etc/passwd"],
    &["sleep", "0"],
    &["sh", "-c", "kill -USR1 $$"],
    &["sh", "-c", "kill -KILL $$"],
    &["--"],
    &["-x"],
    &["sh", "-c", "kill -HUP $$"],
    &["sh", "-c", "kill -34 $$"],
    &["sh", "-c", "exit 255"],
    &["sh", "-c", "exit 124"],
    &[""],
    &["sh", "-c", "exit 125"],
    &["echo", "-k", "5"],
    &["echo", "--", "--help"],
    &["printf", ""],
    &["-k", "5", "true"],
];

fn instant(dice: &mut Dice) -> Vec<String> {
    let mut line = vec![];
    for _ in 0..[0, 0, 1, 1, 1, 2, 3][dice.index(7)] {
        line.extend(option(dice));
    }
    if !dice.is_one_in(20) {
        let list = if dice.is_one_in(3) { BAD } else { LONG };
        line.push(dice.pick(list).to_owned());
    }
    if !dice.is_one_in(20) {
        line.extend(words(INSTANT[dice.index(INSTANT.len())]));
    }
    line
}

/// A limit that passes, a command that signals timeout, or both in an order that no load of the machine turns round.
fn timed(dice: &mut Dice) -> Vec<String> {
    let mut line = vec![];
    if dice.is_one_in(4) {
        line.extend(words(&["--preserve-status"]));
    }
    if dice.is_one_in(4) {
        line.extend(words(&["--foreground"]));
    }
    if dice.is_one_in(4) {
        line.extend(words(&["-v"]));
    }
    match dice.index(6) {
        // The limit passes and the command obeys, or does not know the signal.
        0 => {
            // GNU timeout hangs with these: it stops itself, or does not hear of the command's end any more.
            let hangs = ["CHLD", "CLD", "STOP"];
            let signal = Some(dice.pick(SIGNALS)).filter(|signal| !hangs.contains(signal)).unwrap_or("TERM");
            line.extend([format!("-s{signal}"), "@10@".into()]);
            line.extend(words(&["sleep", "@25@"]));
        }
        1 => {
            line.extend(words(&[&format!("-k{}", dice.pick(LONG)), "@10@"]));
            line.extend(words(&["sh", "-c", "trap 'exit 9' TERM; sleep @40@ & wait; exit 3"]));
        }
        // It has to be killed.
        2 => {
            line.extend(words(&["-k", "@10@", "@10@"]));
            line.extend(words(&["sh", "-c", "trap '' TERM; exec sleep @60@"]));
        }
        3 => line.extend(words(&["-s", "KILL", "@10@", "sleep", "@60@"])),
        // The command ends before the limit.
        4 => line.extend(words(&["@60@", "sh", "-c", &format!("sleep @10@; exit {}", dice.pick(&["0", "3", "124"]))])),
        // A signal to timeout itself, which the command hears of before it would end.
        _ => {
            let signal = dice.pick(&["TERM", "INT", "HUP", "QUIT", "ALRM"]);
            let trap = dice.pick(&["", "trap 'exit 4' TERM INT HUP QUIT; "]);
            let limit = dice.pick(&["@90@", "0", "inf"]);
            line.extend(words(&[limit, "sh", "-c", &format!("{trap}kill -{signal} $PPID; sleep @30@ & wait; exit 3")]));
        }
    }
    line
}
