//! The systemd manager of the user who runs the tests.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::needs::is_root;
use super::{BOUND, Running, sys};

/// The folder of the bus that the manager is on, and the bus's name there.
pub(crate) fn bus() -> (PathBuf, &'static str) {
    if is_root() {
        return ("/run/dbus".into(), "system_bus_socket");
    }
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let usual = || format!("/run/user/{}", rustix::process::geteuid().as_raw()).into();
    (runtime.unwrap_or_else(usual), "bus")
}

/// Whether there is such a manager.
pub(crate) fn is_reachable() -> Result<(), String> {
    if !Path::new("/run/systemd/system").is_dir() {
        return Err("systemd does not run this machine".into());
    }
    let (folder, name) = bus();
    let path = folder.join(name);
    UnixStream::connect(&path).map(drop).map_err(|error| format!("{}: {error}", path.display()))
}

/// What systemctl(1) says.
pub(crate) fn systemctl(words: &[&str]) -> String {
    let mut command = Command::new("systemctl");
    if !is_root() {
        command.arg("--user");
    }
    command.args(["--no-pager", "--full"]).args(words).stdin(Stdio::null()).stdout(Stdio::piped());
    let started = {
        // Between its fork and its exec it holds the tethers of other tests' runs.
        let _alone = sys::forking();
        command.stderr(Stdio::null()).spawn()
    };
    let output = started.and_then(Child::wait_with_output).expect("systemctl can be run");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The scope of a process in a leaf that was made in it.
pub(crate) fn unit_of(leaf: &str) -> String {
    let scope = Path::new(leaf).parent().and_then(Path::file_name).expect("a leaf is in a scope");
    scope.to_string_lossy().into_owned()
}

/// The scope of a run whose command says its cgroup.
pub(crate) fn unit(running: &mut Running) -> String {
    unit_of(&running.expect("cgroup"))
}

/// A property of a unit.
pub(crate) fn property(unit: &str, name: &str) -> String {
    systemctl(&["show", "--value", "--property", name, unit]).trim().to_owned()
}

/// Waits until systemd knows nothing of a unit; it learns of the last process's end from the kernel, a little later.
pub(crate) fn is_forgotten(unit: &str) -> bool {
    let deadline = Instant::now() + BOUND;
    while property(unit, "LoadState") != "not-found" {
        if Instant::now() > deadline {
            return false;
        }
    }
    true
}
