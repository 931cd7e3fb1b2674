//! The examples for authors of agent harnesses, tests/harness: each language's gives the model the same text.

mod common;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use common::running::is_dead;
use common::{Ended, Run, Running, Scratch, needs, program, wrapper};
use rustix::process::Signal;

/// From the first signal to SIGKILL, in all of them.
const GRACE: Duration = Duration::from_secs(3);

/// What is kept of the output at most, in bytes, with what the text says besides.
const MOST: usize = 2 * 16 * 1024 + 100;

/// Ties a command to the test: by the time that a harness has returned, all of its tree is dead.
const TIE: &str = r#"exec 9>"$TREEKILL_TEST_TETHER"; "#;

/// The words that start each harness whose language this machine has.
fn harnesses() -> Vec<Vec<OsString>> {
    let source = |path: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/harness").join(path).into_os_string();
    let mut all = vec![vec![program::example("harness").into_os_string()]];
    for (language, path) in [("python3", "python/harness.py"), ("node", "node/harness.mjs")] {
        if needs::is_there(language) {
            all.push(vec![language.into(), source(path)]);
        }
    }
    all.extend(built_with_go().ok().map(|program| vec![program.into_os_string()]));
    all
}

#[test]
fn the_harness_in_python_is_among_them() {
    needs::require!("python3");
}

#[test]
fn the_harness_in_node_is_among_them() {
    needs::require!("node");
}

#[test]
fn the_harness_in_go_is_among_them() {
    if let Err(why) = built_with_go() {
        needs::skip("go", &why);
    }
}

/// The harness in Go, which `tests/run-tests` has built, or is built here.
fn built_with_go() -> Result<PathBuf, String> {
    static BUILT: std::sync::OnceLock<Result<PathBuf, String>> = std::sync::OnceLock::new();
    let build = || {
        let program = program::example("harness-go");
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/harness/go");
        let changed = |path: &Path| std::fs::metadata(path).and_then(|data| data.modified()).ok();
        if changed(&program) > changed(&folder.join("harness.go")) {
            return Ok(program);
        }
        let _forking = common::sys::forking();
        let output = Command::new(folder.join("build")).arg(&program).output().map_err(|error| error.to_string())?;
        if output.status.success() {
            Ok(program)
        } else {
            Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
        }
    };
    BUILT.get_or_init(build).clone()
}

/// Starts the command with each harness at once; its treekill-run is the first of these folders that has one.
fn start_with(folders: &[PathBuf], timeout: &str, command: &str) -> Vec<Running> {
    harnesses().into_iter().map(|words| start_one(words, folders, [timeout, command])).collect()
}

fn start_one<const N: usize>(words: Vec<OsString>, folders: &[PathBuf], arguments: [&str; N]) -> Running {
    let path = std::env::join_paths(folders).expect("PATH came from one");
    // What the tests themselves inherited is not theirs to hand on.
    let close_others = || {
        (3..256).filter(|fd| *fd != common::TETHER).for_each(common::sys::close);
        Ok(())
    };
    Run::control(words).command(arguments).env("PATH", &path).setup(close_others).naming_the_tether().spawn()
}

fn folders() -> Vec<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect()
}

/// The folders with the treekill-run of this build in front.
fn own_folders() -> Vec<PathBuf> {
    let own = wrapper().parent().map(Path::to_owned);
    own.into_iter().chain(folders()).collect()
}

fn start(timeout: &str, command: &str) -> Vec<Running> {
    start_with(&own_folders(), timeout, &format!("{TIE}{command}"))
}

/// Waits for the end of a harness: by then nothing that it started is alive, and nothing is left.
fn text_of(running: &mut Running) -> (String, Ended) {
    let ended = running.wait();
    if !running.is_all_dead() {
        running.fail("the harness returned before its tree was dead");
    }
    running.leaves_no_trace();
    ended.exited(0);
    (String::from_utf8_lossy(&ended.stdout).into_owned(), ended)
}

/// The same text comes from each.
#[track_caller]
fn all_say(mut started: Vec<Running>, expected: &str) {
    for running in &mut started {
        let (text, ended) = text_of(running);
        assert_eq!(text, expected, "{ended}");
    }
}

#[test]
fn the_text_has_status_and_output_in_the_order_of_printing() {
    let command = r"for i in {1..100}; do echo $i; echo problem $i >&2; done; printf 'caf\303\251 \377'; exit 3";
    let lines: String = (1..=100).map(|number| format!("{number}\nproblem {number}\n")).collect();
    all_say(start("20", command), &format!("exit status 3\noutput:\n{lines}café \u{fffd}\n"));
    all_say(start("20", "kill -SEGV $$"), "died of SIGSEGV\nno output\n");
}

#[test]
fn the_command_gets_no_descriptor_but_the_standard_ones() {
    // 3 is what the shell reads the folder by, and 9 the test's own.
    let expected =
        "exit status 0\noutput:\n/proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2 /proc/self/fd/3 /proc/self/fd/9\n";
    all_say(start("20", "echo /proc/self/fd/*"), expected);
}

/// A pipe holds 64 KiB, and the report has the command's words.
#[test]
fn a_report_that_is_more_than_a_pipe_holds_is_read() {
    all_say(start("20", &format!(": {}; exit 4", "long ".repeat(20_000))), "exit status 4\nno output\n");
}

/// It holds the pipe of the output, for which a harness with another wrapper waits until its own limit.
#[test]
fn a_daemon_that_was_left_running_is_ended_and_named() {
    let expected = "exit status 0\noutput:\nstarted\nleft running, now ended:\n  sleep 4321\n";
    let until_it_is_one = "until grep -qx sleep /proc/$!/comm; do :; done";
    all_say(start("20", &format!("setsid sleep 4321 & {until_it_is_one}; echo started")), expected);
}

#[test]
fn a_command_that_ignores_sigterm_is_timed_out_and_the_text_says_what_ran() {
    let command = "trap '' TERM; echo before; sleep 4321; echo after";
    for mut running in start("1s", command) {
        let (text, ended) = text_of(&mut running);
        let expected = format!(
            "timed out after 1s\noutput:\nbefore\nrunning when it was stopped:\n  bash -c {TIE}{command}\n    \
             sleep 4321\n"
        );
        assert_eq!(text, expected, "{ended}");
        ended.took_at_least(GRACE + Duration::from_secs(1));
    }
}

#[test]
fn a_cancelled_call_gives_what_was_printed_until_then() {
    let mut started = start("60", "echo before; echo ready $$ >&9; exec sleep 4321");
    for running in &mut started {
        running.expect("ready");
        running.signal(Signal::INT);
    }
    for running in &mut started {
        let (text, ended) = text_of(running);
        assert!(text.starts_with("cancelled\noutput:\nbefore\nrunning when it was stopped:\n  "), "{ended}");
    }
}

#[test]
fn a_second_signal_ends_the_call_at_once() {
    let mut started = start("60", "trap '' TERM; echo ready $$ >&9; sleep 4321; sleep 4322");
    let ready = |running: &mut Running| {
        running.expect("ready");
        running.signal(Signal::INT);
        Instant::now()
    };
    let firsts: Vec<Instant> = started.iter_mut().map(ready).collect();
    for (running, first) in started.iter_mut().zip(firsts) {
        // One that comes within 200 ms counts as the first.
        let early = Duration::from_millis(250).saturating_sub(first.elapsed());
        assert!(!is_dead(running.pidfd(), early), "one signal was enough");
        running.signal(Signal::INT);
        let (text, ended) = text_of(running);
        assert!(first.elapsed() < GRACE, "the second signal changed nothing\n{ended}");
        assert!(text.starts_with("cancelled\nno output\nrunning when it was stopped:\n"), "{ended}");
    }
}

/// What SIGKILL does not end, in the kernel's hands say, may hold the output open. Nothing that a test can make does, so
/// this treekill-run only says so. What is printed is read late on a busy machine.
#[test]
fn a_survivor_that_holds_the_output_does_not_hold_up_the_text() {
    let script = r#"#!/bin/bash
        while [ $# -gt 0 ]; do
          case $1 in
            --report) exec 7>"$2" ;;
            --report-fd) eval "exec 7>&$2 $2>&-" ;;
          esac
          shift
        done
        { sleep 0.2; echo said; sleep 60; } 7>&- &
        echo '{"outcome": "stopped", "command_status": null, "tree_at_stop": {"processes": []}, "leftovers": [],
               "survivors": [{"comm": "stuck", "argv": []}]}' >&7"#;
    let scratch = Scratch::new();
    scratch.file("treekill-run", script.as_bytes(), 0o755);
    let own = std::iter::once(scratch.path().to_owned());
    for mut running in start_with(&own.chain(folders()).collect::<Vec<_>>(), "20", "true") {
        let ended = running.wait();
        ended.exited(0).printed("cancelled\noutput:\nsaid\ncould not be ended:\n  stuck\n");
    }
}

/// Two megabytes of lines of ten bytes, whose characters of two, three and four bytes stand on every boundary.
#[test]
fn a_large_output_is_cut_between_characters_and_does_not_block_the_command() {
    let text = all_alike(start("60", "yes 'ä€😀' | head -n 200000; echo the end"));
    let lines: Vec<&str> = text.lines().collect();
    assert!(text.len() < MOST && !text.contains('\u{fffd}'), "{} bytes\n{text}", text.len());
    assert_eq!(lines[..3], ["exit status 0", "output:", "ä€😀"], "{text}");
    assert_eq!(lines[lines.len() - 2..], ["ä€😀", "the end"], "{text}");
    // How much that is depends on nothing but what is shown.
    let line = lines.iter().find_map(|line| line.strip_prefix('[')?.strip_suffix(" bytes left out]"));
    let left_out: usize = line.and_then(|number| number.parse().ok()).expect("it says how much");
    let shown = text.len() - format!("exit status 0\noutput:\n\n[{left_out} bytes left out]\n").len();
    assert_eq!(shown + left_out, 200_000 * 10 + "the end\n".len(), "{text}");
}

/// Not even a character begins there.
#[test]
fn a_large_output_that_is_no_text_is_left_out() {
    let text = all_alike(start("60", r"printf '\200%.0s' {1..100000}"));
    assert_eq!(text, "exit status 0\noutput:\n\n[100000 bytes left out]\n");
}

/// The text that comes from each.
#[track_caller]
fn all_alike(mut started: Vec<Running>) -> String {
    let mut texts: Vec<String> = started.iter_mut().map(|running| text_of(running).0).collect();
    let last = texts.pop().expect("there is a harness");
    assert!(texts.iter().all(|text| *text == last), "the harnesses disagree: {texts:?}\n{last:?}");
    last
}

#[test]
fn a_harness_that_is_killed_takes_the_tree_with_it() {
    let mut started = start("60", "setsid sleep 4321 & echo ready $$ >&9; exec sleep 4322");
    for running in &mut started {
        running.expect("ready");
        running.signal(Signal::KILL);
    }
    for running in &mut started {
        running.wait_for_death().died_of(Signal::KILL);
        running.all_die();
    }
}

/// There is no report then.
#[test]
fn a_treekill_run_that_fails_is_said() {
    for mut running in start("nonsense", "true") {
        let (text, ended) = text_of(&mut running);
        assert!(text.starts_with("not run: treekill-run ended with") && text.contains("125"), "{ended}");
        assert!(text.contains("invalid value 'nonsense'"), "{ended}");
    }
    let scratch = Scratch::new();
    scratch.file("treekill-run", b"#!/bin/sh\nkill -TERM $$\n", 0o755);
    let own = std::iter::once(scratch.path().to_owned());
    for mut running in start_with(&own.chain(folders()).collect::<Vec<_>>(), "20", "true") {
        let (text, ended) = text_of(&mut running);
        assert!(text.starts_with("not run: treekill-run ended with"), "{ended}");
    }
    let without = folders().into_iter().filter(|folder| !folder.join("treekill-run").exists());
    for mut running in start_with(&without.collect::<Vec<_>>(), "20", "true") {
        let (text, ended) = text_of(&mut running);
        assert!(text.starts_with("not started: ") && text.lines().count() == 1, "{ended}");
    }
}

/// A program that has the harness as a module, where its language is there, calls it with what no argument can be.
fn call_from(language: &str, option: &str, code: &str) -> Ended {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/harness").display().to_string();
    let words = [language, option, code].map(OsString::from).to_vec();
    let ended = start_one(words, &own_folders(), [&*folder]).wait();
    ended.exited(0);
    ended
}

#[test]
fn a_command_that_no_process_can_have_is_said_in_python() {
    needs::require!("python3");
    let code = r#"
import asyncio, os, sys
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1] + "/python")
import harness
async def main():
    before = os.listdir("/proc/self/fd")
    for command in ["echo \0", "echo \ud800", ": " * 100000]:
        print(await harness.call("5", command))
    assert os.listdir("/proc/self/fd") == before, "a descriptor is left"
asyncio.run(main())"#;
    all_lines_say(&call_from("python3", "-c", code), "not started: ", 3);
}

#[test]
fn a_command_that_no_process_can_have_is_said_in_node() {
    needs::require!("node");
    let code = r#"
        import(process.argv[1] + "/node/harness.mjs").then(async ({ call }) => {
            for (const command of ["echo \0", ": ".repeat(100000)]) console.log(await call("5", command).text);
        })"#;
    all_lines_say(&call_from("node", "-e", code), "not started: ", 2);
}

#[track_caller]
fn all_lines_say(ended: &Ended, beginning: &str, count: usize) {
    let text = String::from_utf8_lossy(&ended.stdout);
    assert!(text.lines().count() == count && text.lines().all(|line| line.starts_with(beginning)), "{ended}");
}

/// Nobody can tell at which moment, so it is at each turn of the loop.
#[test]
fn a_call_that_is_cancelled_while_it_starts_is_no_call_that_was_not_started() {
    needs::require!("python3");
    let code = r#"
import asyncio, sys
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1] + "/python")
import harness
async def main():
    for turns in range(1, 6):
        task = asyncio.create_task(harness.call("20", "exec sleep 4321"))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        line = (await task).splitlines()[0]
        # It may get the signal before it can act on it.
        print("fine" if line in ("cancelled", "not run: treekill-run ended with -15") else line)
asyncio.run(main())"#;
    all_lines_say(&call_from("python3", "-c", code), "fine", 5);
}

#[test]
fn the_harness_in_node_runs_through_a_link() {
    needs::require!("node");
    let scratch = Scratch::new();
    let link = scratch.join("harness.mjs");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/harness/node/harness.mjs");
    std::os::unix::fs::symlink(source, &link).expect("the directory is ours");
    let ended = start_one(vec!["node".into(), link.into_os_string()], &own_folders(), ["20", "echo said"]).wait();
    ended.exited(0).printed("exit status 0\noutput:\nsaid\n");
}

#[test]
fn a_long_name_is_cut_between_characters() {
    let until_it_is_one = "until grep -qx sleep /proc/$!/comm; do :; done";
    let name = format!("x{}", "\u{1f600}".repeat(120));
    let command = format!("exec -a {name} sleep 4321 & {until_it_is_one}");
    let cut: String = name.chars().take(100).collect();
    all_say(start("20", &command), &format!("exit status 0\nno output\nleft running, now ended:\n  {cut}\n"));
}
