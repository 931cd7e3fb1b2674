//! What tests need of the machine. A test that lacks something says so and is counted as skipped; with
//! `TREEKILL_TEST_REQUIRE=cgroup,root,...` naming the need, the skip is a failure.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use super::{Nest, USER, cgroups, sys, systemd};

/// What bash's completions of other commands begin with.
pub(crate) const BASH_COMPLETION: &str = "/usr/share/bash-completion/bash_completion";

/// Returns from the test, as skipped, unless the machine has each of these.
macro_rules! require {
    ($($need:expr),+ $(,)?) => {
        $(if !$crate::common::needs::has($need) {
            return;
        })+
    };
}
pub(crate) use require;

/// Whether the machine has it; if not, the skip is recorded, or fails the test if it was required.
pub(crate) fn has(need: &str) -> bool {
    match look(need) {
        Ok(()) => true,
        Err(why) => {
            skip(need, &why);
            false
        }
    }
}

/// Whether the machine has it, where a test does with less.
pub(crate) fn is_there(need: &str) -> bool {
    look(need).is_ok()
}

/// Records that the current test is skipped for lack of `need`.
pub(crate) fn skip(need: &str, why: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let required = std::env::var("TREEKILL_TEST_REQUIRE").unwrap_or_default();
    assert!(
        !required.split(',').any(|word| word == need),
        "{test} needs {need}, which TREEKILL_TEST_REQUIRE names: {why}"
    );
    let line = format!("SKIP {test}: {need}: {why}\n");
    eprint!("{line}");
    if let Some(list) = std::env::var_os("TREEKILL_TEST_SKIPS") {
        let file = OpenOptions::new().append(true).create(true).open(list);
        // One write a line, so that parallel tests do not mix theirs.
        let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
    }
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn look(need: &str) -> Result<(), String> {
    match need {
        "root" if is_root() => Ok(()),
        "root" => Err("the tests run as an ordinary user".into()),
        "unprivileged" if !is_root() => Ok(()),
        "unprivileged" => Err("the tests run as root".into()),
        "cgroup" => {
            static HAS: OnceLock<Result<(), String>> = OnceLock::new();
            HAS.get_or_init(can_fill_a_cgroup).clone()
        }
        "user" => {
            static HAS: OnceLock<Result<(), String>> = OnceLock::new();
            HAS.get_or_init(can_run_as_another_user).clone()
        }
        // A cgroup subtree handed to an ordinary user.
        "delegation" => look("user").and_then(|()| look("cgroup")),
        // A cgroup v2 above our own that gives those in it memory, pids and cpu, and lets us make one there.
        "controllers" => has_controllers(),
        "systemd" => {
            static HAS: OnceLock<Result<(), String>> = OnceLock::new();
            HAS.get_or_init(systemd::is_reachable).clone()
        }
        "seccomp" => {
            static HAS: OnceLock<Result<(), String>> = OnceLock::new();
            HAS.get_or_init(|| runs(Command::new("true"), || sys::refuse_clone3(38))).clone()
        }
        "pidns" => {
            static HAS: OnceLock<Result<(), String>> = OnceLock::new();
            HAS.get_or_init(|| runs(unshare("--mount-proc", &["true"]), || Ok(()))).clone()
        }
        "mountns" => {
            static HAS: OnceLock<Result<(), String>> = OnceLock::new();
            HAS.get_or_init(|| runs(unshare("--mount", &["true"]), || Ok(()))).clone()
        }
        "bash-completion" if Path::new(BASH_COMPLETION).is_file() => Ok(()),
        "bash-completion" => Err(format!("there is no {BASH_COMPLETION}")),
        // The tests' own tracer knows the registers of one architecture.
        "tracer" if cfg!(target_arch = "x86_64") => Ok(()),
        "tracer" => Err("system calls are counted on x86-64 only".into()),
        program => runs_program(program),
    }
}

fn has_controllers() -> Result<(), String> {
    let own = cgroups::of_process("self").ok_or("there is no cgroup v2")?;
    let gives_all = |place: &&Path| {
        let given = fs::read_to_string(place.join("cgroup.subtree_control")).unwrap_or_default();
        ["cpu", "memory", "pids"].iter().all(|name| given.split_whitespace().any(|word| word == *name))
    };
    let place = own.ancestors().find(gives_all).ok_or("no cgroup v2 here gives its children memory, pids and cpu")?;
    match OpenOptions::new().write(true).open(place.join("cgroup.procs")) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("{} is not ours: {error}", place.display())),
    }
}

/// The words before a command that make it the first process of a PID namespace, which ends with unshare(1).
pub(crate) fn as_pid_1() -> Vec<&'static str> {
    let mut words = vec!["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    if !is_root() {
        words.push("--map-root-user");
    }
    words
}

/// The same with a shell as the first process, of which the command is a child.
pub(crate) fn below_pid_1() -> Vec<&'static str> {
    [as_pid_1(), vec!["bash", "-c", "\"$@\"; exit", "_"]].concat()
}

/// unshare(1) with new user and PID namespaces as far as the caller needs them.
pub(crate) fn unshare(option: &str, words: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    if !is_root() {
        command.arg("--map-root-user");
    }
    command.args([option, "--pid", "--fork", "--kill-child"]).args(words);
    command
}

fn runs_program(program: &str) -> Result<(), String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&path).any(|folder| folder.join(program).is_file()) {
        return Ok(());
    }
    Err(format!("there is no {program} here"))
}

/// Whether this succeeds with `setup` in its child.
fn runs(
    mut command: Command,
    setup: impl FnMut() -> std::io::Result<()> + Send + Sync + 'static,
) -> Result<(), String> {
    sys::before_exec(&mut command, setup);
    let _forking = sys::forking();
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

fn can_fill_a_cgroup() -> Result<(), String> {
    let nest = Nest::new().ok_or("no cgroup can be made beside the tests' own")?;
    let mut command = Command::new("true");
    nest.receive(&mut command);
    runs(command, || Ok(()))
}

fn can_run_as_another_user() -> Result<(), String> {
    look("root")?;
    let mut command = Command::new(super::wrapper());
    command.arg("--version").current_dir("/");
    runs(command, || sys::become_user(USER))?;
    let mut command = Command::new(super::fixture());
    command.args(["exit", "0"]).current_dir("/");
    runs(command, || sys::become_user(USER))
}
