//! The grammar: options in every spelling, durations, signals, `--`, help and version, the user's language.

use std::time::Duration;

use crate::common::{self, Backend, Scratch, both_backends, needs};
use crate::named::{Timeout, ends, finish};

const LONG: Duration = Duration::from_secs(20);

both_backends! {
    every_spelling_of_an_option_is_taken
    every_bad_option_is_refused
    options_end_at_the_first_operand
    the_last_of_an_option_wins
    every_duration_is_taken
    every_short_duration_fires
    every_bad_duration_is_refused
    every_signal_is_taken
    every_bad_signal_is_refused
    signals_are_sent_as_they_were_asked_for
    help_and_version_are_printed
    posixly_correct_changes_nothing
    the_radix_of_the_language_is_taken
}

fn every_spelling_of_an_option_is_taken(backend: Backend) {
    let lines = "5|-k 5 5|-k5 5|-s KILL 5|-sKILL 5|-v 5|-p 5|-f 5|-pk5 5|-fpvk5 5|-vsINT 5|-fp 5|-vv 5|--foreground 5
        --kill-after=5 5|--kill-after 5 5|--preserve-status 5|--signal=INT 5|--signal INT 5|--verbose 5|--kill=5 5
        --k 5 5|--k=5 5|--sig KILL 5|--s=KILL 5|--fore 5|--f 5|--p 5|--pres 5|--verb 5|-- 5|-k1 -k5 5|-k 0 5|-k inf 5
        -s KILL -s TERM 5|-fk5 -sINT -- 5|--signal=15 --kill-after=0 5";
    for timeout in Timeout::both(backend) {
        for line in lines.split(['|', '\n']) {
            timeout.seven(&line.split_whitespace().collect::<Vec<_>>()).exited(7);
        }
    }
}

fn every_bad_option_is_refused(backend: Backend) {
    for timeout in Timeout::both(backend) {
        for words in [
            &[][..],
            &["5"],
            &["-k"],
            &["-k5"],
            &["-k5", "5"],
            &["-s"],
            &["--signal"],
            &["--"],
            &["--", "5"],
            &["-x", "5", "true"],
            &["-vx", "5", "true"],
            &["-5", "true"],
            &["-", "true"],
            &["--bogus", "5", "true"],
            &["--v", "5", "true"],
            &["--ver", "5", "true"],
            &["--foreground=x", "5", "true"],
            &["--pre=1", "5", "true"],
            &["--verbose=", "5", "true"],
            &["--left", "kill", "5", "true"],
            &["--", "-1", "true"],
            &["-k", "x", "5", "true"],
            &["-s", "NOSUCH", "5", "true"],
        ] {
            let ended = finish(timeout.run(words));
            ended.exited(125).printed("");
            assert!(ended.stderr.starts_with(&format!("{}: ", timeout.name)), "{words:?}\n{ended}");
        }
    }
}

fn options_end_at_the_first_operand(backend: Backend) {
    for timeout in Timeout::both(backend) {
        finish(timeout.run(&["--", "5", "printf", "%s,", "-k", "--", "--help"])).exited(0).printed("-k,--,--help,");
        finish(timeout.run(&["5", "printf", "%s,", "-s", "9"])).exited(0).printed("-s,9,");
        // A program of that name.
        finish(timeout.run(&["5", "--", "true"])).exited(127);
        finish(timeout.run(&["--", "-1", "true"])).exited(125).complained_of("-1");
    }
}

fn the_last_of_an_option_wins(backend: Backend) {
    for timeout in Timeout::both(backend) {
        finish(timeout.fixture("-s KILL -s TERM .3", "hang")).exited(124);
        finish(timeout.fixture("-s TERM -sKILL .3", "hang")).exited(137);
        finish(timeout.fixture("-k 60 --kill=.2 .3", "ignore TERM hang")).exited(137).took_less_than(LONG);
    }
}

fn every_duration_is_taken(backend: Backend) {
    for timeout in Timeout::both(backend) {
        for duration in [
            "5",
            "1.5m",
            "2h",
            "1d",
            "0x10",
            "inf",
            "infinity",
            "INF",
            "Infinity",
            "+5",
            " 5",
            "\t5",
            "\n5",
            "5.",
            "1e1",
            "0x1d",
            "0x1p0d",
            "0",
            "0s",
            "0.0d",
            "-0",
            "99999999999999999999",
            "1e400",
            "1e400d",
            "0x1p3",
            "1e2d",
            "5E0",
        ] {
            timeout.seven(&["--", duration]).exited(7);
            timeout.seven(&["-k", duration, "5"]).exited(7);
        }
    }
}

/// A value that is not zero is never off, however small.
fn every_short_duration_fires(backend: Backend) {
    let timeout = Timeout::link(backend);
    for duration in [".1s", "1e-1", "0x1p-3", "0x.8p-2", "0.05", "0.002m", "1e-10000", "0.0000001", "1e-320"] {
        finish(timeout.fixture(duration, "hang")).exited(124).took_less_than(LONG);
    }
}

fn every_bad_duration_is_refused(backend: Backend) {
    for timeout in Timeout::both(backend) {
        for duration in [
            "", "nan", "NaN", "-1", "-1e-9", "5 ", "1 s", "1D", "1M", "1ss", "1dd", "5x", "1ms", "5us", "1m30s", "0b1",
            "1_0", ".", "0x", "1e", "+-1", "++1", "--5", "5,0", "s", "x",
        ] {
            for words in [&["--", duration][..], &["-k", duration, "5"]] {
                let ended = timeout.seven(words);
                ended.exited(125).complained_of(duration).printed("");
            }
        }
    }
}

fn every_signal_is_taken(backend: Backend) {
    for timeout in Timeout::both(backend) {
        for signal in [
            "TERM", "term", "SIGTERM", "sigTerm", "15", "015", "0", "EXIT", "9", "137", "143", "RTMIN", "RTMIN+1",
            "RTMAX-2", "rtmin+3", "SIGRTMAX", "64", "34", "IOT", "CLD", "POLL", "PWR", "STKFLT", "CHLD", "CONT",
            "STOP", "TSTP",
        ] {
            timeout.seven(&["-s", signal, "5"]).exited(7);
        }
    }
}

fn every_bad_signal_is_refused(backend: Backend) {
    for timeout in Timeout::both(backend) {
        for signal in [
            "",
            "SIG",
            "NOSUCH",
            "65",
            "127",
            "-1",
            "1.5",
            "0x9",
            "+9",
            " 9",
            "TERM ",
            "RTMIN-1",
            "RTMAX+1",
            "RTMIN+99",
            "SIGSIGTERM",
        ] {
            timeout.seven(&["-s", signal, "5"]).exited(125).complained_of(signal).printed("");
        }
    }
}

fn signals_are_sent_as_they_were_asked_for(backend: Backend) {
    let timeout = Timeout::link(backend);
    for (signal, plain) in
        [("HUP", 129), ("sigusr2", 140), ("RTMIN+1", 163), ("RTMAX-2", 190), ("64", 192), ("130", 130)]
    {
        finish(timeout.fixture(&format!("-p -s {signal} .3"), "hang")).exited(plain);
    }
    // A probe sends nothing.
    let mut running = timeout.fixture("-v -s 0 .2", "on TERM [ say term ] say ready read exit 3").gated().spawn();
    running.expect("ready");
    finish(timeout.fixture(".5", "hang")).exited(124);
    running.open_gate();
    ends(running).exited(124).said("term", 0).complained_of("sending signal");
    // What stops the command goes along with what continues it.
    finish(timeout.fixture("-k .3 -s STOP .2", "hang")).exited(137).took_less_than(LONG);
}

fn help_and_version_are_printed(backend: Backend) {
    for timeout in Timeout::both(backend) {
        for words in [&["--help"][..], &["--h"], &["-k5", "--help", "--bogus"]] {
            let ended = finish(timeout.run(words));
            ended.exited(0);
            let text = String::from_utf8_lossy(&ended.stdout);
            assert!(text.contains("DURATION COMMAND"), "{ended}");
            assert!(ended.stderr.is_empty(), "{ended}");
        }
        for words in [&["--version"][..], &["--vers", "--bogus"]] {
            let ended = finish(timeout.run(words));
            ended.exited(0).printed(format!("timeout (treekill-run) {}\n", env!("CARGO_PKG_VERSION")));
            assert!(ended.stderr.is_empty(), "{ended}");
        }
        let full = std::fs::File::options().write(true).open("/dev/full").expect("Linux has one");
        finish(timeout.run(&["--help"]).stdout(full)).exited(125).complained_of(timeout.name);
    }
}

/// The scan stops at the first operand anyway.
fn posixly_correct_changes_nothing(backend: Backend) {
    for timeout in Timeout::both(backend) {
        let run = |words: &[&str]| finish(timeout.run(words).env("POSIXLY_CORRECT", "1"));
        run(&["5", "printf", "%s,", "-k", "5"]).exited(0).printed("-k,5,");
        run(&["-k", "5", "-s", "INT", "--", "5", "sh", "-c", "exit 7"]).exited(7);
        run(&["--kill=5", "5", "true"]).exited(0);
        run(&["5"]).exited(125).complained_of("missing operand");
        finish(timeout.fixture(".2", "hang").env("POSIXLY_CORRECT", "1")).exited(124);
    }
}

fn the_radix_of_the_language_is_taken(backend: Backend) {
    needs::require!("localedef");
    let scratch = Scratch::new();
    let place = scratch.join("de_DE.UTF-8").display().to_string();
    let made = common::Run::control(["localedef", "-i", "de_DE", "-f", "UTF-8", &place]).finish();
    if !scratch.join("de_DE.UTF-8/LC_NUMERIC").exists() {
        needs::skip("localedef", &format!("it made no German locale: {}", made.stderr.trim()));
        return;
    }
    for timeout in Timeout::both(backend) {
        let run = |words: &str, steps: &str| {
            let run = timeout.fixture(words, steps).env("LOCPATH", scratch.path()).env("LC_ALL", "de_DE.UTF-8");
            finish(run)
        };
        run("0,3", "hang").exited(124).took_at_least(Duration::from_millis(300)).took_less_than(LONG);
        run("0.3", "hang").exited(124).took_at_least(Duration::from_millis(300)).took_less_than(LONG);
        run("-k 0,2 0,2s", "ignore TERM hang").exited(137);
        run("0,5m", "exit 7").exited(7);
        run("1,5,5", "exit 7").exited(125);
        finish(timeout.fixture("0,3", "hang").env("LC_ALL", "C")).exited(125);
    }
}
