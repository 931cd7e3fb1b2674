//! What GitHub reads of the project: the action that installs a release, run as a runner would, and the files for people.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use common::action::script;
use common::{Scratch, needs};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).expect("the checkout has it")
}

/// Characters that a URL has otherwise.
const PACKAGES: &str = "packages, 100% #1";

/// A runner with a directory of packages.
struct Runner {
    scratch: Scratch,
    environment: Vec<(&'static str, String)>,
}

impl Runner {
    /// One for x86-64, and packages of version 9.8.7 for both architectures.
    fn new() -> Runner {
        let scratch = Scratch::new();
        for folder in ["temp", PACKAGES] {
            fs::create_dir(scratch.join(folder)).expect("the directory is ours");
        }
        let path = |name: &str| scratch.join(name).display().to_string();
        let environment = vec![
            ("RUNNER_OS", "Linux".into()),
            ("RUNNER_ARCH", "X64".into()),
            ("RUNNER_TEMP", path("temp")),
            ("GITHUB_OUTPUT", path("output")),
            ("GITHUB_PATH", path("path")),
            ("VERSION", String::new()),
            ("REF", String::new()),
            ("FROM", path(PACKAGES)),
            ("RELEASES", "https://github.invalid/releases".into()),
        ];
        let runner = Runner { scratch, environment };
        runner.pack("9.8.7");
        runner
    }

    fn with(mut self, name: &'static str, value: impl Into<String>) -> Runner {
        self.environment.push((name, value.into()));
        self
    }

    /// Adds packages of this version, in which a script stands for the program, and their checksums.
    fn pack(&self, version: &str) {
        let make = "
            for arch in x86_64 aarch64; do
                name=treekill-run-$1-$arch-linux
                mkdir -p $name/bin
                printf '#!/bin/sh\\necho treekill-run %s\\n# %s\\n' $1 $arch >$name/bin/treekill-run
                chmod +x $name/bin/treekill-run
                tar -czf $name.tar.gz $name && rm -r $name
            done
            sha256sum *.tar.gz >SHA256SUMS";
        let _forking = common::sys::forking();
        let packages = self.scratch.join(PACKAGES);
        let status = Command::new("bash").args(["-ec", make, "bash", version]).current_dir(packages).status();
        assert!(status.expect("there is bash").success());
    }

    fn run(&self) -> Output {
        let file = self.scratch.file("step.sh", script().as_bytes(), 0o644);
        let mut bash = Command::new("bash");
        bash.args(["--noprofile", "--norc", "-eo", "pipefail"]).arg(file);
        let _forking = common::sys::forking();
        bash.envs(self.environment.iter().cloned()).current_dir(self.scratch.path()).output().expect("there is bash")
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.scratch.join(name)).unwrap_or_default()
    }

    /// Fails unless the program of this architecture is on the PATH afterwards.
    #[track_caller]
    fn installs(&self, arch: &str) {
        let output = self.run();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(self.text("output"), "version=9.8.7\n");
        let path = self.text("path");
        let program = fs::read_to_string(Path::new(path.trim_end()).join("treekill-run"));
        assert!(program.expect("it is on the PATH").contains(arch));
    }

    /// Fails unless the step does, with an error that says this, and installs nothing.
    #[track_caller]
    fn refuses(&self, why: &str) {
        let output = self.run();
        let said = String::from_utf8_lossy(&output.stdout);
        let is_said = said.lines().any(|line| line.starts_with("::error ") && line.contains(why));
        assert!(!output.status.success() && is_said, "it should say '{why}': {output:?}");
        assert_eq!(self.text("path"), "");
    }
}

#[test]
fn the_action_installs_the_newest_release_or_the_one_that_is_named() {
    needs::require!("curl");
    Runner::new().installs("x86_64");
    Runner::new().with("RUNNER_ARCH", "ARM64").installs("aarch64");
    Runner::new().with("VERSION", "9.8.7").installs("x86_64");
    Runner::new().with("VERSION", "v9.8.7").with("FROM", PACKAGES).installs("x86_64");
    Runner::new().with("VERSION", "latest").installs("x86_64");
    for (version, folder) in [("latest", "latest/download"), ("9.8.7", "download/v9.8.7")] {
        let runner = Runner::new().with("VERSION", version).with("FROM", "");
        let releases = runner.scratch.join("releases");
        let url = format!("file://{}", releases.display()).replace(' ', "%20");
        let folder = releases.join(folder);
        fs::create_dir_all(folder.parent().expect("it is below releases")).expect("the directory is ours");
        fs::rename(runner.scratch.join(PACKAGES), folder).expect("the directory is ours");
        runner.with("RELEASES", url).installs("x86_64");
    }
}

/// Who pins the action means the program.
#[test]
fn the_action_installs_the_version_that_it_is_used_by() {
    needs::require!("curl");
    let two = |name, value| {
        let runner = Runner::new().with(name, value);
        runner.pack("9.8.8");
        runner
    };
    two("REF", "v9.8.7").installs("x86_64");
    two("VERSION", "9.8.7").with("REF", "v9.8.8").installs("x86_64");
    two("REF", "v9.8.6").refuses("names no treekill-run v9.8.6 for x86_64");
    // No versions: the newest one, which is told where there are two.
    for name in ["main", "11bd71901bbe5b1630ceea73d27597364c9af683", "v9"] {
        two("REF", name).refuses("more than one version");
    }
}

#[test]
fn the_action_installs_nothing_whose_checksum_is_wrong() {
    needs::require!("curl");
    let runner = Runner::new();
    let package = runner.scratch.join(PACKAGES).join("treekill-run-9.8.7-x86_64-linux.tar.gz");
    let mut bytes = fs::read(&package).expect("it was packed");
    // After the end of the archive, so that it could be unpacked all the same.
    bytes.extend(b"\0");
    fs::write(package, bytes).expect("the directory is ours");
    runner.refuses("has not the checksum");
}

#[test]
fn the_action_says_what_it_cannot_install() {
    needs::require!("curl");
    Runner::new().with("RUNNER_OS", "macOS").refuses("for Linux only, not for macOS");
    Runner::new().with("RUNNER_ARCH", "ARM").refuses("no package for ARM");
    Runner::new().with("VERSION", "9.8").refuses("'9.8' is no version");
    Runner::new().with("VERSION", "9.8.7; id").refuses("is no version");
    Runner::new().with("VERSION", "9.8.6").refuses("names no treekill-run 9.8.6 for x86_64");
    Runner::new().with("FROM", "/nowhere").refuses("cannot get /nowhere/SHA256SUMS");
    Runner::new().with("FROM", "no/where").refuses("/no/where/SHA256SUMS");
    let runner = Runner::new();
    runner.pack("9.8.8");
    runner.refuses("more than one version");
}

/// The step that looks at the tag before a release is packed.
#[test]
fn a_release_has_the_version_and_a_date_in_the_changelog() {
    let workflow = read(".github/workflows/release.yml");
    let (_, rest) = workflow.split_once("        run: |\n          grep ").expect("it looks at the tag");
    let (step, _) = rest.split_once("\n      - ").expect("it has another step");
    let passes = |tag: &str, heading: &str| {
        let scratch = Scratch::new();
        scratch.file("Cargo.toml", b"[package]\nversion = \"1.2.3\"\n", 0o644);
        scratch.file("CHANGELOG.md", format!("# Changelog\n\n{heading}\n\n- This.\n").as_bytes(), 0o644);
        let mut shell = Command::new("sh");
        shell.args(["-ec", &format!("grep {step}")]).env("TAG", tag).current_dir(scratch.path());
        let _forking = common::sys::forking();
        shell.status().expect("there is sh").success()
    };
    assert!(passes("v1.2.3", "## [1.2.3] - 2026-12-01"));
    assert!(!passes("v1.2.4", "## [1.2.4] - 2026-12-01"));
    assert!(!passes("v1.2.3", "## [1.2.2] - 2026-12-01"));
    assert!(!passes("v1.2.3", "## [1.2.3] - unreleased"));
}

#[test]
fn workflows_action_and_forms_are_what_github_reads() {
    needs::require!("check-jsonschema");
    let kinds: [(&str, &[&str]); 5] = [
        ("vendor.github-workflows", &["workflows/ci.yml", "workflows/release.yml", "workflows/weekly.yml"]),
        ("vendor.dependabot", &["dependabot.yml"]),
        ("vendor.github-actions", &["actions/treekill-run/action.yml"]),
        ("vendor.github-issue-forms", &["ISSUE_TEMPLATE/bug.yml", "ISSUE_TEMPLATE/feature.yml"]),
        ("vendor.github-issue-config", &["ISSUE_TEMPLATE/config.yml"]),
    ];
    let mut checked = 0;
    for (schema, files) in kinds {
        let mut check = Command::new("check-jsonschema");
        check.args(["--builtin-schema", schema]).args(files).current_dir(root().join(".github"));
        let _forking = common::sys::forking();
        let output = check.output().expect("it was looked for");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        checked += files.len();
    }
    let mut there = 0;
    visit(&root().join(".github"), &mut |path| there += usize::from(path.extension().is_some_and(|end| end == "yml")));
    assert_eq!(checked, there, "a file is not looked at");
}

fn visit(folder: &Path, look: &mut dyn FnMut(&Path)) {
    for entry in fs::read_dir(folder).expect("the checkout has it").flatten() {
        let path = entry.path();
        if path.is_dir() { visit(&path, look) } else { look(&path) }
    }
}

#[test]
fn who_reports_a_bug_is_asked_for_what_it_takes_and_no_more() {
    let form = read(".github/ISSUE_TEMPLATE/bug.yml");
    for wanted in ["--doctor", " -v", "What happened", "expected"] {
        let is_label = form.lines().any(|line| line.trim_start().starts_with("label:") && line.contains(wanted));
        assert!(is_label, "the form does not ask for {wanted}");
    }
    assert_eq!(form.matches("required: true").count(), 2, "what happened, and --doctor, which says the version");
}

/// A target of the Makefile that takes long is one that no change waits for, and it runs all the same.
#[test]
fn what_takes_long_runs_each_week() {
    let workflow = read(".github/workflows/weekly.yml");
    assert!(workflow.contains("  schedule:\n    - cron: "));
    let makefile = read("Makefile");
    for target in ["test-kernels", "test-systemd", "faults", "chaos", "soak", "fuzz", "miri", "sanitize"] {
        let is_run = workflow.lines().any(|line| {
            (line.trim_start().starts_with("target: [") || line.contains("run: make "))
                && line.split([' ', '[', ']', ',']).any(|word| word == target)
        });
        assert!(is_run, "no job makes {target}");
        assert!(makefile.contains(&format!("\n{target}: ")), "the Makefile has no {target}");
    }
}

#[test]
fn a_release_waits_for_the_tests() {
    let workflow = read(".github/workflows/release.yml");
    assert!(workflow.contains("  test:\n    uses: ./.github/workflows/ci.yml\n"));
    assert!(workflow.contains("  pack:\n    name: pack and check\n    needs: test\n"));
    assert!(read(".github/workflows/ci.yml").contains("\n  workflow_call:\n"));
}

/// The step that cuts the notes of a release out of the changelog.
#[test]
fn the_notes_of_a_release_are_its_section_of_the_changelog() {
    let workflow = read(".github/workflows/release.yml");
    let (_, rest) = workflow.split_once("        run: |\n          awk ").expect("it cuts them out");
    let (step, _) = rest.split_once("\n      - ").expect("it has another step");
    let notes = |tag: &str| {
        let scratch = Scratch::new();
        let text = "# Changelog\n\n## [1.2.30] - 2027-01-02\n\n- That.\n\n## [1.2.3] - 2026-12-01\n\n### Added\n\n- This.\n\n## [1.2.2] - 2026-11-01\n\n- Old.\n";
        scratch.file("CHANGELOG.md", text.as_bytes(), 0o644);
        let mut shell = Command::new("sh");
        shell.args(["-ec", &format!("awk {step}")]).env("TAG", tag).current_dir(scratch.path());
        let _forking = common::sys::forking();
        let status = shell.status().expect("there is sh");
        status.success().then(|| fs::read_to_string(scratch.join("notes.md")).expect("it was written"))
    };
    assert_eq!(notes("v1.2.3").as_deref(), Some("\n### Added\n\n- This.\n\n"));
    assert_eq!(notes("v1.2.4"), None);
}
