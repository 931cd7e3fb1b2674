//! What must hold of everything that is read from outside, whatever its bytes are. Each property says more than that
//! nothing panics: it holds a parser against an independent reading, or goes there and back. Short random tests run here;
//! the fuzzer of tests/fuzz runs the same functions for as long as it is told.

mod numbers;
mod words;

use crate::{boundary, tree};

/// Something that holds of any bytes.
pub struct Property {
    /// What it is about, one word.
    pub name: &'static str,
    /// Panics if it does not hold of these.
    pub check: fn(&[u8]),
    /// What such input is made of, to come near to what is valid.
    pub words: &'static [&'static str],
}

/// All of them.
pub const ALL: &[Property] = &[
    Property {
        name: "durations",
        check: numbers::durations,
        words: &[
            "1", "0", "90", ".", "-", "+", " ", "e", "E-3", "0x", "f", "p-9", "p9999", "s", "m", "h", "d", "ms", "us",
            "inf", "nan", "\t",
        ],
    },
    Property {
        name: "signals",
        check: words::signals,
        words: &[
            "SIG", "sig", "TERM", "Kill", "RTMIN", "RTMAX", "+", "-", "1", "9", "15", "143", "STKFLT", "IOT", "CLD",
            "EXIT",
        ],
    },
    Property {
        name: "stages",
        check: words::stages,
        words: &["TERM", "INT", "KILL", "9", "0", ":", ",", "5s", "1m30s", "250ms", "inf", "KILL:1", ":5s,"],
    },
    Property {
        name: "options",
        check: words::options,
        words: &[
            "\n",
            "\n",
            "\n",
            "-",
            "--",
            "-t",
            "-k5",
            "-s",
            "-b",
            "-p",
            "-q",
            "-v",
            "-f",
            "--timeout",
            "--kill-after",
            "--signal=KILL",
            "--backend",
            "--leftovers",
            "--signal-to=",
            "--gnu",
            "--verbose",
            "--foreground",
            "--preserve-status",
            "--keep",
            "--stages",
            "--report",
            "--fore",
            "=",
            "5",
            "cgroup,subreaper",
            "wait",
            "group",
            "TERM",
            "true",
            "1m30s",
        ],
    },
    Property {
        name: "sizes",
        check: numbers::sizes,
        words: &["1", "0", "5", "999", ".", "B", "K", "M", "G", "T", "P", "E", "%", "-", "+"],
    },
    Property {
        name: "frames",
        check: words::frames,
        words: &["a", "b", "c", "e", "g", "p", "r", "s", "t", "\0", "\0\0\0", "\t"],
    },
    Property {
        name: "names",
        check: words::names,
        words: &[
            "\0", "\x1b[31m", "\n", "\r", "\u{9b}", "\u{202e}", "(", ")", " ", "'", "\"", "\\", "sh", "漢字",
            "\u{301}", "/",
        ],
    },
    Property {
        name: "stat",
        check: tree::properties::stat,
        words: &[" (", ") ", "(", ")", " R ", " S ", "1 ", "-1 ", "4294967296 ", "18446744073709551615 ", "\n"],
    },
    Property {
        name: "proc",
        check: tree::properties::files,
        words: &[
            "\n",
            " ",
            "\0",
            "1",
            "4194304",
            "-1",
            "0x3",
            "0xffffffff",
            "running",
            "TracerPid:\t",
            "0::/",
            "hidepid=",
            "invisible",
            "/proc",
            " - proc proc rw",
            "rchar: ",
            "99999999999",
        ],
    },
    Property {
        name: "sockets",
        check: tree::properties::sockets,
        words: &[
            "0: ",
            "0100007F",
            ":1F90",
            " 0A ",
            " 01 ",
            "00000000",
            " 4711",
            "00010000 ",
            "0001 01 ",
            "/run/a b",
            "@x",
            "é",
        ],
    },
    Property {
        name: "cgroup",
        check: boundary::properties::files,
        words: &[
            "populated 1\n",
            "populated 0\n",
            "frozen ",
            "oom ",
            "oom_kill ",
            "max ",
            "user_usec ",
            "system_usec ",
            "8:0 ",
            "rbytes=",
            "wbytes=",
            "\n",
            " ",
            "0::/",
            "18446744073709551615",
            "7",
            "throttled_usec ",
        ],
    },
    Property {
        name: "mounts",
        check: boundary::properties::mounts,
        words: &[
            "31 23 0:28 ",
            "/ ",
            "/sys/fs/cgroup ",
            "rw - ",
            "cgroup2 ",
            "\\040",
            "\\134",
            "\\",
            "\n",
            " - ",
            "/proc",
            "é",
        ],
    },
];

/// Values out of random bytes, for input that is as the kernel writes it.
pub(crate) struct Draw<'a>(pub(crate) &'a [u8]);

impl<'a> Draw<'a> {
    pub(crate) fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or_default()
    }

    /// As many bytes as there are, at most these.
    pub(crate) fn bytes(&mut self, most: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Small ones and the largest are likely.
    pub(crate) fn number(&mut self) -> u64 {
        match self.byte() {
            small @ 0..128 => small.into(),
            255 => u64::MAX,
            length => self.bytes(usize::from(length % 8)).iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte)),
        }
    }

    /// A number that a process can have.
    pub(crate) fn pid(&mut self) -> i32 {
        i32::try_from(self.number() % (1 << 22)).expect("22 bits").max(1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};

    use super::*;

    /// Words of the property and other bytes, in any order.
    fn near_misses(words: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
        let word = prop::sample::select(words).prop_map(|word| word.as_bytes().to_vec());
        let piece = prop_oneof![6 => word, 1 => prop::collection::vec(any::<u8>(), 1..9)];
        prop::collection::vec(piece, 0..9).prop_map(|pieces| pieces.concat())
    }

    #[test]
    fn every_property_holds_of_words_and_of_noise() {
        for property in ALL {
            // Building clap's definition takes its time.
            let cases = if property.name == "options" { 300 } else { 2000 };
            let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
            let check = |bytes: Vec<u8>| {
                (property.check)(&bytes);
                Ok(())
            };
            let outcome = runner.run(&near_misses(property.words), check);
            outcome.unwrap_or_else(|error| panic!("{}: {error}", property.name));
        }
    }
}
