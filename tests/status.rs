//! Exit statuses, commands that cannot be run, and the command's words as they were given.

mod common;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use common::{Backend, Run, Scratch, all_backends, fixture, needs};
use rustix::process::{Resource, Rlimit, Signal, setrlimit};

all_backends! {
    a_status_passes_through
    a_death_by_signal_is_died_again
    the_wrapper_dumps_no_core_of_its_own
    a_command_that_cannot_be_run_is_126_or_127
    a_failed_start_names_the_command
    a_failed_start_names_what_was_not_found
    a_script_without_an_interpreter_line_is_run_by_the_shell
    the_search_goes_on_behind_a_file_that_cannot_be_run
    an_empty_part_of_the_path_is_the_working_directory
    without_a_path_the_default_one_is_searched
    a_megabyte_and_a_half_of_arguments_arrives
    a_megabyte_and_a_half_of_arguments_for_the_shell_arrives
    arguments_environment_and_directory_are_bytes
}

/// uutils/coreutils#1742, anomalyco/opencode#17978.
fn a_status_passes_through(backend: Backend) {
    for code in [0, 1, 2, 77, 100, 124, 125, 127, 128, 137, 193, 200, 255] {
        Run::new(backend).fixture(&format!("exit {code}")).finish().exited(code);
    }
}

/// Yelp/dumb-init#59: a death by signal was reported as 0.
fn a_death_by_signal_is_died_again(backend: Backend) {
    for signal in [
        Signal::TERM,
        Signal::KILL,
        Signal::SEGV,
        Signal::INT,
        Signal::USR1,
        Signal::PIPE,
        Signal::HUP,
        Signal::QUIT,
        Signal::ABORT,
        Signal::ALARM,
        Signal::SYS,
        Signal::XCPU,
    ] {
        let script = format!("ulimit -c 0; kill -{} $$; sleep 25", signal.as_raw());
        // Not bash, which ignores QUIT.
        let ended = Run::new(backend).command(["sh", "-c", &script]).finish();
        ended.died_of(signal).took_less_than(Duration::from_secs(20));
    }
}

/// The core belongs to the command; a second one, of the wrapper, would hide it.
fn the_wrapper_dumps_no_core_of_its_own(backend: Backend) {
    use std::os::unix::process::ExitStatusExt as _;
    let scratch = Scratch::new();
    let ended = Run::new(backend)
        .directory(scratch.path())
        .setup(|| {
            let no_limit = Rlimit { current: Some(1 << 20), maximum: Some(1 << 20) };
            // An administrator's hard limit may be lower, and then there is no core at all.
            let _ = setrlimit(Resource::Core, no_limit);
            Ok(())
        })
        .bash("kill -SEGV $$")
        .finish();
    ended.died_of(Signal::SEGV);
    assert!(!ended.status.core_dumped(), "{ended}");
}

/// busybox-w32#105, util-linux/util-linux#311: a failure to start could not be told from a failure of the command.
fn a_command_that_cannot_be_run_is_126_or_127(backend: Backend) {
    let scratch = Scratch::new();
    let plain = scratch.file("plain", b"echo hi", 0o644);
    let interpreter = scratch.file("interpreter", b"#!/no/such/interpreter\n", 0o755);
    let elf = scratch.file("elf", b"\x7fELFgarbage", 0o755);
    let missing = scratch.join("missing");
    let through = plain.join("x");
    let looping = scratch.join("loop");
    std::os::unix::fs::symlink(&looping, &looping).expect("the directory is ours");
    let long = "n".repeat(300);
    for (what, command, codes) in [
        ("an unknown name", OsStr::new("no-such-command-of-treekill"), &[127][..]),
        ("a name of bytes that are no UTF-8", OsStr::from_bytes(b"no-such-\xff\xfe"), &[127]),
        ("a missing file", missing.as_os_str(), &[127]),
        ("an empty name", OsStr::new(""), &[127]),
        ("a directory", scratch.path().as_os_str(), &[126]),
        ("no execute bit", plain.as_os_str(), &[126]),
        ("a path through a file", through.as_os_str(), &[126, 127]),
        ("a missing interpreter", interpreter.as_os_str(), &[126, 127]),
        ("a symbolic link to itself", looping.as_os_str(), &[126]),
        ("a name that is too long", OsStr::new(&long), &[126, 127]),
    ] {
        eprintln!("{what}");
        let ended = Run::new(backend).options("-t 25").command([command, OsStr::new("x")]).finish();
        ended.exited_with_one_of(codes).printed("").took_less_than(Duration::from_secs(20));
        ended.complained_of("treekill-run: cannot ");
        assert_eq!(ended.stderr.lines().count(), 1, "{ended}");
    }
    // execvp(3) hands to the shell what the kernel does not know, and the shell has a status of its own for that.
    Run::new(backend).command([elf]).finish().exited_with_one_of(&[126, 127]);
}

fn a_failed_start_names_the_command(backend: Backend) {
    Run::new(backend)
        .command(["no-such-command-of-treekill"])
        .finish()
        .exited(127)
        .complained_of("no-such-command-of-treekill");
}

fn a_failed_start_names_what_was_not_found(backend: Backend) {
    let scratch = Scratch::new();
    let script = scratch.file("script", b"#!/no/such/interpreter -x\n", 0o755);
    let link = scratch.join("link");
    std::os::unix::fs::symlink("nowhere", &link).expect("the directory is ours");
    let missing = scratch.join("missing");
    for (command, why) in [
        (OsStr::new("no-such-command-of-treekill"), "': not found in PATH"),
        (OsStr::new("script"), "': its interpreter '/no/such/interpreter' does not exist"),
        (script.as_os_str(), "': its interpreter '/no/such/interpreter' does not exist"),
        (link.as_os_str(), "': it is a link to 'nowhere', which does not exist"),
        (missing.as_os_str(), "': No such file or directory"),
    ] {
        Run::new(backend).env("PATH", scratch.path()).command([command]).finish().exited(127).complained_of(why);
    }
}

/// execvp(3): "the shell /bin/sh is invoked with the path of the file as its first argument".
fn a_script_without_an_interpreter_line_is_run_by_the_shell(backend: Backend) {
    let scratch = Scratch::new();
    let script = scratch.file("script", b"printf '%s,' \"$0\" \"$@\"\nexit 7\n", 0o755);
    let expected = format!("{},a,,b c,", script.display());
    let ended =
        Run::new(backend).command([script.as_os_str(), OsStr::new("a"), OsStr::new(""), OsStr::new("b c")]).finish();
    ended.exited(7).printed(&expected);
    // By way of PATH, too.
    let ended = Run::new(backend).env("PATH", scratch.path()).command(["script", "a", "", "b c"]).finish();
    ended.exited(7).printed(&expected);
}

/// execvp(3): "EACCES ... the search continues", and it is EACCES if nothing better is found.
fn the_search_goes_on_behind_a_file_that_cannot_be_run(backend: Backend) {
    let (first, second) = (Scratch::new(), Scratch::new());
    first.file("tool", b"#!/bin/sh\nexit 1\n", 0o644);
    let path = format!("/no/such/folder:{}:{}", first.path().display(), second.path().display());
    Run::new(backend).env("PATH", &path).command(["tool"]).finish().exited(126);
    second.file("tool", b"#!/bin/sh\nexit 9\n", 0o755);
    Run::new(backend).env("PATH", &path).command(["tool"]).finish().exited(9);
}

fn an_empty_part_of_the_path_is_the_working_directory(backend: Backend) {
    let scratch = Scratch::new();
    scratch.file("tool", b"#!/bin/sh\nexit 9\n", 0o755);
    for path in ["", ":/bin", "/bin:", "/bin::/usr/bin"] {
        let run = Run::new(backend).env("PATH", path).directory(scratch.path());
        run.command(["tool"]).finish().exited(9);
    }
}

/// execvp(3) has a default path where PATH is not set.
fn without_a_path_the_default_one_is_searched(backend: Backend) {
    Run::new(backend).prefixed(["env", "-u", "PATH"]).command(["sh", "-c", "exit 9"]).finish().exited(9);
}

/// xargs packs its lines this full.
fn a_megabyte_and_a_half_of_arguments_arrives(backend: Backend) {
    let argument = "x".repeat(100_000);
    let mut words = vec!["bash", "-c", "IFS=; all=\"$*\"; echo $#:${#all}", "bash"];
    words.extend([argument.as_str(); 15]);
    Run::new(backend).command(words).finish().exited(0).printed("15:1500000\n");
}

fn a_megabyte_and_a_half_of_arguments_for_the_shell_arrives(backend: Backend) {
    let scratch = Scratch::new();
    let script = scratch.file("script", b"echo $#\n", 0o755);
    let argument = "x".repeat(100_000);
    let mut words = vec![script.as_os_str()];
    words.extend([OsStr::new(&argument); 15]);
    Run::new(backend).command(words).finish().exited(0).printed("15\n");
}

/// nolabs-ai/nono#1504, uutils/findutils#767, util-linux/util-linux#833.
fn arguments_environment_and_directory_are_bytes(backend: Backend) {
    let scratch = Scratch::new();
    let directory = scratch.join(OsStr::from_bytes(b"dir-\xff"));
    std::fs::create_dir(&directory).expect("the directory is ours");
    let long = vec![b'x'; 100_000];
    let arguments = [
        &b"--timeout=1"[..],
        b"-k",
        b"--",
        b"-t",
        b"",
        b"two\nlines",
        b"sp ace",
        b"*",
        b"$HOME",
        b"\xff\xfe\x80",
        b"--report",
        &long,
        b"--",
    ];
    let script = "printf '%s\\0' \"$@\" \"$ODD\" \"$(pwd -P)\"";
    let words = [&b"bash"[..], b"-c", script.as_bytes(), b"bash"].into_iter().chain(arguments);
    let ended = Run::new(backend)
        .directory(&directory)
        .env("ODD", OsStr::from_bytes(b"v\xfe\xff"))
        .command(words.map(OsStr::from_bytes))
        .finish();
    let mut expected = arguments.map(<[u8]>::to_vec).to_vec();
    expected.push(b"v\xfe\xff".to_vec());
    expected.push(directory.as_os_str().as_bytes().to_vec());
    expected.push(Vec::new());
    ended.exited(0).printed(expected.join(&0));
}

#[test]
fn options_end_at_the_first_word_of_the_command() {
    let ended = Run::new(Backend::Auto).prefixed([common::wrapper().as_os_str(), OsStr::new("echo"), OsStr::new("-t")]);
    // The wrapper's words, options and all, are echo's arguments.
    let ended = ended.command(["x"]).finish();
    ended.exited(0);
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    assert!(said.starts_with("-t ") && said.ends_with("--backend auto -- x\n"), "{ended}");
}

#[test]
fn help_and_version_go_to_stdout() {
    for (option, text) in
        [("--help", "--timeout"), ("-h", "Exit status"), ("--version", "treekill-run "), ("-V", "treekill-run ")]
    {
        let ended = Run::new(Backend::Auto).options(option).command(["false"]).finish();
        ended.exited(0);
        assert!(String::from_utf8_lossy(&ended.stdout).contains(text), "{ended}");
        assert!(ended.stderr.is_empty(), "{ended}");
    }
}

#[test]
fn help_to_a_reader_that_has_gone_is_no_crash() {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe can be had");
    drop(read);
    let ended = Run::new(Backend::Auto).options("--help").stdout(write).finish();
    assert!(!ended.stderr.contains("panicked"), "{ended}");
}

#[test]
fn the_command_is_found_where_it_is_not_readable() {
    // An execute bit is all that exec needs.
    common::needs::require!("user");
    let scratch = Scratch::new();
    let program = scratch.join("tool");
    std::fs::copy(fixture(), &program).expect("the directory is ours");
    std::os::unix::fs::chown(&program, Some(0), Some(0)).expect("root may");
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o711)).expect("it is ours");
    let run = Run::new(Backend::Auto).by_user(common::USER).directory("/");
    run.command([program.as_os_str(), OsStr::new("exit"), OsStr::new("9")]).finish().exited(9);
}

/// The command is reaped while a part of the tree still lives and forks: whoever gets its PID then is not the command.
#[test]
fn an_heir_of_the_commands_pid_does_not_change_the_status() {
    needs::require!("pidns");
    for _ in 0..5 {
        let run = Run::new(Backend::Subreaper).prefixed(needs::below_pid_1());
        let ended = run.options("-t 500ms -s KILL").fixture("tree heirs 100").finish();
        ended.exited(137).said("heirs", 1);
    }
}
