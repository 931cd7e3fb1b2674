//! As the systems of CI run the lines of their jobs.

use std::os::unix::fs::symlink;
use std::process::Command;

use rustix::process::Signal;
use rustix::process::pidfd_send_signal;
use serde_json::Value;

use crate::common::{Ended, action, fixture, needs, sys, wrapper};
use crate::{LEAVES, Place, ends, recipe};

/// Reads YAML with python3's `yaml`, the reader that most machines have.
const READ: &str = "import json, sys, yaml; json.dump(yaml.safe_load(sys.argv[1]), sys.stdout, skipkeys=True)";

/// `None` where nothing reads YAML, and then the test is skipped.
fn yaml(text: &str) -> Option<Value> {
    // The first may be one of the user's own, without what the system's has.
    for python in ["python3", "/usr/bin/python3"] {
        let output = {
            let _forking = sys::forking();
            Command::new(python).args(["-c", READ, text]).output()
        };
        let Ok(output) = output else { continue };
        let complaint = String::from_utf8_lossy(&output.stderr);
        if output.status.success() {
            return Some(serde_json::from_slice(&output.stdout).expect("python3 writes JSON"));
        }
        assert!(complaint.contains("No module named"), "the recipe is no YAML: {complaint}");
    }
    needs::skip("yaml", "python3 cannot read YAML here");
    None
}

fn lines(list: &Value) -> String {
    list.as_array().expect("a list").iter().map(|line| line.as_str().expect("a line").to_owned() + "\n").collect()
}

/// A step's file, run by this shell.
fn step(place: &Place, shell: &[&str], text: &str) -> Ended {
    place.file("step.sh", text);
    ends(place.run(shell.iter().chain(&["step.sh"])).spawn())
}

/// What `jobs.*.steps.*.shell` of GitHub's workflow syntax says of steps without a shell, and of `shell: bash`.
const GITHUBS: [&[&str]; 2] = [&["bash", "-e"], &["bash", "--noprofile", "--norc", "-eo", "pipefail"]];

/// Installs by the action from a release's package, and then finds the program on the path that the action has made.
#[test]
fn on_github_the_program_is_installed_and_a_test_that_leaves_something_fails() {
    needs::require!("make", "tar");
    let Some(workflow) = yaml(&recipe("github", "yaml")) else { return };
    let steps = workflow["jobs"]["test"]["steps"].as_array().expect("a list");
    let is_ours = |step: &&Value| step["uses"].as_str().is_some_and(|uses| uses.starts_with(ACTION));
    let action = steps.iter().find(is_ours).expect("the workflow uses the action");
    let version = action["with"]["version"].as_str().expect("a version");
    assert_eq!(action["uses"], format!("{ACTION}@v{version}"), "the same version twice");
    let runs: Vec<&str> = steps.iter().filter_map(|step| step["run"].as_str()).collect();
    assert_eq!(runs.len(), 1, "{workflow:#}");
    let leaves = format!("{LEAVES} exit 0");
    for (shell, steps, status) in
        [(GITHUBS[0], "exit 0", 0), (GITHUBS[1], "exit 4", 2), (GITHUBS[0], &leaves, 193), (GITHUBS[1], &leaves, 193)]
    {
        let place = Place::new(steps);
        let path = format!("PATH={}:/usr/local/bin:/usr/bin:/bin", installed(&place, version));
        place.file("step.sh", runs[0]);
        ends(place.run([&["env", &path], shell, &["step.sh"]].concat()).spawn()).exited(status);
        let report = std::fs::read(place.scratch.join("treekill-run.json")).expect("there is a report");
        let report: Value = serde_json::from_slice(&report).expect("JSON");
        assert_eq!(report["exit_status"], status, "{report:#}");
        assert_eq!(report["leftovers"].as_array().map(Vec::len), Some(if status == 193 { 2 } else { 0 }));
    }
    let kept = steps.iter().any(|step| step["with"]["path"] == "treekill-run.json");
    assert!(kept, "the report is kept: {workflow:#}");
}

const ACTION: &str = "OWNER/treekill-run/.github/actions/treekill-run";

/// Runs the script of the action, with a package of this version that has the program under test; gives what it adds to
/// the path.
fn installed(place: &Place, version: &str) -> String {
    let root = place.scratch.path();
    let name = format!("treekill-run-{version}-x86_64-linux");
    let folder = root.join(&name).join("bin");
    std::fs::create_dir_all(&folder).expect("the folder is ours");
    symlink(wrapper(), folder.join("treekill-run")).expect("the folder is ours");
    let pack = format!("tar -czf {name}.tar.gz {name} && sha256sum {name}.tar.gz >SHA256SUMS");
    ends(place.run(["sh", "-c", &pack]).spawn()).exited(0);
    place.file("action.sh", &action::script());
    let run = place.run(GITHUBS[1].iter().chain(&["action.sh"])).env("RUNNER_OS", "Linux").env("RUNNER_ARCH", "X64");
    let run = run.env("RUNNER_TEMP", root).env("FROM", root).env("VERSION", version).env("RELEASES", "");
    let files = [("GITHUB_OUTPUT", root.join("output")), ("GITHUB_PATH", root.join("path"))];
    let run = files.into_iter().fold(run, |run, (name, file)| run.env(name, file));
    ends(run.spawn()).exited(0);
    let added = std::fs::read_to_string(root.join("path")).expect("the action adds to the path");
    added.trim().to_owned()
}

/// GitLab's runner gives all lines to one shell, after `set -eo pipefail`.
#[test]
fn on_gitlab_what_a_line_leaves_is_gone_before_the_next() {
    needs::require!("make");
    let Some(pipeline) = yaml(&recipe("gitlab", "yaml")) else { return };
    let script = "set -eo pipefail\n".to_owned() + &lines(&pipeline["test"]["script"]);
    step(&Place::new("exit 0"), &["bash"], &script).exited(0);
    let place = Place::new(&format!("{LEAVES} exit 0"));
    step(&place, &["bash"], &script).exited(193).complained_of("left 2 processes");
    // The second line minds its status less.
    place.file("Makefile", "test:\n");
    step(&place, &["bash"], &script).exited(0).complained_of("left 2 processes");
}

/// Jenkins runs a step with `sh -xe`.
#[test]
fn on_jenkins_a_server_that_is_to_be_kept_lives_on_and_nothing_else() {
    needs::require!("make");
    let pipeline = recipe("jenkins", "groovy");
    for (open, close) in [('{', '}'), ('(', ')')] {
        assert_eq!(pipeline.matches(open).count(), pipeline.matches(close).count(), "{pipeline}");
    }
    let line = pipeline.split("sh '").nth(1).and_then(|rest| rest.split('\'').next()).expect("a sh step");
    step(&Place::new("exit 0"), &["sh", "-xe"], line).exited(0);
    step(&Place::new(&format!("{LEAVES} exit 0")), &["sh", "-xe"], line).exited(193);
    let place = Place::new("");
    symlink(fixture(), place.scratch.join("sccache")).expect("the folder is ours");
    for (others, status) in [("", 0), ("\t@\"$$FX\" daemon [ say daemon hang ] exit 0\n", 193)] {
        let rules = format!("test:\n\t@./sccache daemon [ say sccache hang ] exit 0\n{others}");
        place.file("Makefile", &rules);
        place.file("step.sh", line);
        let mut running = place.run(["sh", "-xe", "step.sh"]).spawn();
        let server = running.expect_process("sccache");
        running.wait().exited(status);
        // It was kept, and is all that was.
        pidfd_send_signal(&server, Signal::KILL).expect("it is alive");
        running.all_die();
        running.leaves_no_trace();
    }
}
