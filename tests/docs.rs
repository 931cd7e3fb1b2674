//! The documentation says what the program does: generated files equal what is generated now, the README's examples
//! give the output that stands below them, and its targets exist.

mod common;
#[path = "generate/render.rs"]
mod render;

use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use common::needs;
use treekill_run::cli;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).expect("the checkout has it")
}

fn is_as_generated(kind: &str) {
    for page in render::pages(kind, root()).expect("the templates are sound") {
        assert!(
            read(page.path) == page.text,
            "{} is not what the command line's definition gives now; run `make docs`",
            page.path
        );
    }
}

#[test]
fn the_manual_is_as_generated() {
    is_as_generated("man");
}

#[test]
fn the_completions_are_as_generated() {
    is_as_generated("completions");
}

#[test]
fn the_readme_has_the_options_and_exit_statuses_of_the_program() {
    is_as_generated("readme");
}

#[test]
fn the_changelog_has_this_version() {
    let heading = format!("\n## [{}] - ", env!("CARGO_PKG_VERSION"));
    assert!(read("CHANGELOG.md").contains(&heading), "CHANGELOG.md has no{heading}");
}

#[test]
fn every_option_is_in_the_manual_and_in_each_completion() {
    let manual = read("man/treekill-run.1").replace("\\-", "-");
    let scripts = ["treekill-run.bash", "_treekill-run", "treekill-run.fish"];
    for option in cli::command().get_arguments().filter_map(clap::Arg::get_long) {
        assert!(manual.contains(&format!("--{option}")), "the manual lacks --{option}");
        for script in scripts {
            let text = read(&format!("completions/{script}"));
            assert!(text.contains(option), "{script} lacks --{option}");
        }
    }
}

/// Up to the examples, where other programs come in.
#[test]
fn the_manual_names_no_option_that_there_is_not() {
    let manual = read("man/treekill-run.1").replace("\\-", "-");
    let (text, _) = manual.split_once("\n.SH EXAMPLES\n").expect("the manual has the section");
    let command = cli::command();
    let mut known: Vec<&str> = command.get_arguments().filter_map(clap::Arg::get_long).collect();
    known.extend(["scope", "user", "reuid"]); // of systemd-run, systemctl and setpriv
    for rest in text.split("--").skip(1) {
        let name = rest.split(|c: char| !c.is_ascii_lowercase() && c != '-').next().unwrap_or_default();
        assert!(name.is_empty() || known.contains(&name), "the manual names --{name}");
    }
}

/// The locale's own are read by the C library, and the model's by a unit test alone.
#[test]
fn the_manual_names_every_variable_that_is_read_and_no_other() {
    let mut read_by_us = std::collections::BTreeSet::new();
    visit(&root().join("src"), &mut |text| {
        for (at, call) in text.match_indices("env::var").chain(text.match_indices("is_set(")) {
            let rest = text[at + call.len()..].trim_start_matches("_os").trim_start_matches('(');
            let name = rest.strip_prefix('"').and_then(|rest| rest.split('"').next());
            if let Some(name) = name.filter(|name| !name.starts_with("TREEKILL_MODEL")) {
                read_by_us.insert(name.to_owned());
            }
        }
    });
    let manual = read("man/treekill-run.1");
    let (_, section) = manual.split_once("\n.SH ENVIRONMENT\n").expect("the manual has the section");
    let section = section.split("\n.SH ").next().unwrap_or_default();
    let tags = section.lines().zip(section.lines().skip(1)).filter(|(line, _)| *line == ".TP");
    let names = tags.flat_map(|(_, tag)| tag.split([' ', ',']).skip(1).map(str::to_owned).collect::<Vec<_>>());
    let named: std::collections::BTreeSet<String> =
        names.filter(|name| !name.is_empty() && !name.starts_with("LC_") && name != "LANG").collect();
    assert_eq!(named, read_by_us, "named in the manual (left) and read in the source (right)");
}

fn visit(folder: &Path, look: &mut dyn FnMut(&str)) {
    for entry in fs::read_dir(folder).expect("the checkout has it").flatten() {
        let path = entry.path();
        if path.is_dir() {
            visit(&path, look);
        } else {
            look(&fs::read_to_string(&path).unwrap_or_default());
        }
    }
}

/// Each claim of the threat model names its tests, which exist.
#[test]
fn every_test_that_the_threat_model_names_exists() {
    let guide = read(".github/CONTRIBUTING.md");
    let (_, section) = guide.split_once("\n## Threat model\n").expect("the guide has the section");
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut sources = String::new();
    for folder in ["tests", "src"] {
        visit(&root().join(folder), &mut |text| sources.push_str(text));
    }
    let words = section.split('`').skip(1).step_by(2);
    // FILE::NAME is a test of tests/FILE.rs or of what is below tests/FILE.
    let tests: Vec<(&str, &str)> = words.filter_map(|word| word.split_once("::")).collect();
    assert!(tests.len() > 40, "{tests:?}");
    for (file, name) in tests {
        assert!(root().join(format!("tests/{file}.rs")).is_file(), "there is no tests/{file}.rs");
        assert!(sources.contains(&format!("fn {name}(")), "there is no test {file}::{name}");
    }
    for claim in section.split("\n- ").skip(1) {
        assert!(claim.contains("::"), "this claim has no test: {claim}");
    }
}

#[test]
fn the_help_ends_with_the_exit_table() {
    let output = program().arg("--help").output().expect("the program starts");
    let help = String::from_utf8_lossy(&output.stdout);
    let (_, table) = help.split_once("Exit status:\n").expect("the help has the table");
    let shown: Vec<&str> = table.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let rows: Vec<&str> = treekill_run::outcome::EXIT_TABLE.iter().map(|row| row.status).collect();
    assert_eq!(shown, rows);
}

#[test]
fn the_manual_names_every_field_of_the_report() {
    let session = Session::new();
    let file = session.directory.join("run.json");
    let status = program().arg("--report").arg(&file).arg("true").status().expect("the program starts");
    assert!(status.success(), "{status}");
    let text = fs::read_to_string(&file).expect("there is a report");
    let report: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&text).expect("it is an object");
    let manual = read("man/treekill-run.1");
    let (_, section) = manual.split_once("\n.SH REPORT\n").expect("the manual has the section");
    let schema = program().arg("--report-schema").output().expect("the program starts");
    let schema: serde_json::Value = serde_json::from_slice(&schema.stdout).expect("JSON");
    let mut fields: Vec<&String> = report.keys().collect();
    for part in ["process", "seen", "step", "limits", "tree", "usage"] {
        fields.extend(schema["$defs"][part]["properties"].as_object().expect("an object").keys());
    }
    for field in fields {
        let is_named = section.lines().any(|line| line.starts_with(".B") && line.contains(field.as_str()));
        assert!(is_named, "the manual lacks {field}");
    }
}

/// An interactive shell gives up the rest of a line whose command died of SIGINT.
#[test]
fn no_example_of_the_readme_goes_on_in_a_line_after_an_interrupt() {
    for block in blocks(&read("README.md"), "console") {
        for step in steps(&block) {
            let (_, rest) = step.command.split_once("kill -INT $$'").unwrap_or_default();
            assert!(rest.is_empty(), "this is not reached: {rest}");
        }
    }
}

#[test]
fn every_example_of_the_readme_gives_the_output_that_stands_below_it() {
    // Its examples look for their processes on the whole machine, where another run of this test may be at work: the
    // numbers 432N become a run's own, as long as they are.
    let own = format!("sleep {}", 100 + std::process::id() % 900);
    let examples = blocks(&read("README.md").replace("sleep 432", &own), "console");
    assert!(!examples.is_empty(), "README.md has no console block");
    // They mostly wait.
    std::thread::scope(|scope| {
        for block in &examples {
            scope.spawn(|| gives_the_output_below(&steps(block)));
        }
    });
}

fn gives_the_output_below(steps: &[Step]) {
    let shown = Session::new().run(steps);
    for (step, output) in steps.iter().zip(shown) {
        let is_match = if step.command.contains("--doctor") { has_same_outline } else { is_match };
        assert!(
            is_match(&step.output, &output),
            "$ {}\nREADME.md says:\n{}\nbut it was:\n{output}",
            step.command,
            step.output
        );
    }
}

/// Links to elsewhere would need a network.
#[test]
fn every_link_within_the_project_leads_somewhere() {
    let mut seen = 0;
    for page in ["README.md", "CHANGELOG.md", ".github/CONTRIBUTING.md", ".github/SECURITY.md"] {
        let text = read(page);
        let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for link in links.filter(|link| !link.contains("://")) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let folder = Path::new(page).parent().unwrap_or(Path::new(""));
            let target = if path.is_empty() { Path::new(page).to_owned() } else { folder.join(path) };
            assert!(root().join(&target).exists(), "{page} leads to {link}, which is not there");
            let is_there = || read(&target.display().to_string()).lines().any(|line| anchor_of(line) == anchor);
            assert!(anchor.is_empty() || is_there(), "{page} leads to {link}, which has no such heading");
            seen += 1;
        }
    }
    assert!(seen > 5, "only {seen} links were found");
}

/// What GitHub makes of a heading.
fn anchor_of(line: &str) -> String {
    let heading = line.strip_prefix('#').map_or("", |rest| rest.trim_start_matches('#').trim());
    let kept = heading.to_lowercase();
    kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn every_target_that_the_readme_names_exists() {
    let readme = read("README.md");
    let lines: Vec<String> = blocks(&readme, "sh").iter().flat_map(|block| block.lines()).map(str::to_owned).collect();
    assert!(!lines.is_empty(), "README.md has no sh block");
    let inline = readme.split('`').filter(|text| text.starts_with("make ") && !text.contains('\n')).map(str::to_owned);
    for line in lines.into_iter().chain(inline) {
        let words: Vec<&str> = line.split_whitespace().filter(|word| *word != "sudo").collect();
        assert_eq!(words[0], "make", "README.md's sh blocks are for make, which tests/run-tests runs: {line}");
        let output = Command::new("make")
            .arg("--dry-run")
            .args(&words[1..])
            .current_dir(root())
            .output()
            .expect("the tests are started by make");
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// A message of any level, style too, is a failure.
#[test]
fn the_manual_is_clean_for_mandoc() {
    needs::require!("mandoc");
    has_no_complaint(Command::new("mandoc").args(["-Tlint", "-Wall", "man/treekill-run.1"]));
}

#[test]
fn the_manual_is_clean_for_groff() {
    needs::require!("groff");
    has_no_complaint(Command::new("groff").args(["-man", "-ww", "-z", "-Tutf8", "man/treekill-run.1"]));
}

fn has_no_complaint(command: &mut Command) {
    let output = command.current_dir(root()).output().expect("it was looked for");
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success() && said.is_empty(), "{command:?}: {}", String::from_utf8_lossy(&said));
}

fn program() -> Command {
    Command::new(common::wrapper())
}

/// The fenced blocks of this language.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let mut blocks = vec![];
    let mut rest = text;
    while let Some((_, after)) = rest.split_once(&format!("\n```{language}\n")) {
        let (block, tail) = after.split_once("\n```").expect("the block ends");
        blocks.push(format!("{block}\n"));
        rest = tail;
    }
    blocks
}

/// A command of a console block and the lines that stand below it.
struct Step {
    command: String,
    output: String,
}

fn steps(block: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = vec![];
    for line in block.lines() {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (Some(command), _) => steps.push(Step { command: command.to_owned(), output: String::new() }),
            (None, Some(step)) => writeln!(step.output, "{line}").expect("a String takes everything"),
            (None, None) => panic!("a console block starts with a command, not with {line}"),
        }
    }
    steps
}

/// Whether the texts are alike, but for numbers in parentheses, which are pids, for ages, for the net that is to be had,
/// and for the blanks that all of them bring.
fn is_match(expected: &str, shown: &str) -> bool {
    let alike = |text: &str| {
        let text = without_pids(text).replace("held by ancestry", "held by boundary");
        let words = |line: &str| line.split_whitespace().map(without_age).collect::<Vec<_>>().join(" ");
        text.lines().map(words).collect::<Vec<_>>()
    };
    alike(expected) == alike(shown)
}

/// Whether two diagnoses are of the same things: what is found differs from machine to machine.
fn has_same_outline(expected: &str, shown: &str) -> bool {
    let outline = |text: &str| {
        let is_title = |line: &&str| !line.starts_with("   ") && !line.is_empty();
        let first = |line: &str| line.split_whitespace().next().map(str::to_owned);
        text.lines().filter(is_title).filter_map(first).collect::<Vec<_>>()
    };
    outline(expected) == outline(shown)
}

/// `1.0s` is as good as `1.1s`; `1s` is a limit.
fn without_age(word: &str) -> &str {
    let is_age = word.strip_suffix('s').is_some_and(|number| number.contains('.') && number.parse::<f64>().is_ok());
    if is_age { "AGE" } else { word }
}

fn without_pids(text: &str) -> String {
    let mut pieces = text.split('(');
    let mut result = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        result.push('(');
        result.push_str(piece.trim_start_matches(|c: char| c.is_ascii_digit()));
    }
    result
}

/// A directory with what the README's examples use.
struct Session {
    directory: PathBuf,
}

/// Printed between the commands of a session, with the status kept for `$?`.
const SEPARATOR: &str = "@@ next @@";

impl Session {
    fn new() -> Session {
        let random = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
        let directory = env::temp_dir().join(format!("treekill-readme-{random:016x}"));
        fs::create_dir(&directory).expect("the temporary directory can be written");
        let session = Session { directory };
        session.file("Makefile", "test:\n\t@echo 1 test passed\n", 0o644);
        session.file("job", "#!/bin/sh\n", 0o755);
        session
    }

    fn file(&self, name: &str, text: &str, mode: u32) {
        let path = self.directory.join(name);
        fs::write(&path, text).expect("the directory is ours");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("the file is ours");
    }

    /// Runs the commands in one shell and gives what each printed.
    fn run(&self, steps: &[Step]) -> Vec<String> {
        let mut script = String::from("exec 2>&1\n");
        for step in steps {
            let again = format!("status=$?; echo '{SEPARATOR}'; (exit $status)");
            writeln!(script, "{}\n{again}", step.command).expect("a String takes everything");
        }
        self.shell(&script);
        let text = fs::read_to_string(self.directory.join("shown")).expect("the shell's output is text");
        let shown: Vec<String> = text.split(&format!("{SEPARATOR}\n")).map(str::to_owned).collect();
        assert_eq!(shown.len(), steps.len() + 1, "the shell ended early: {text}");
        shown
    }

    /// The output goes to a file: a process that an example leaves alive must not hold the test up.
    fn shell(&self, script: &str) {
        let binary = common::wrapper();
        let inherited = env::var_os("PATH").unwrap_or_default();
        let folders = binary.parent().into_iter().map(Path::to_owned).chain(env::split_paths(&inherited));
        Command::new("timeout")
            .args(["60", "bash", "-c", script])
            .current_dir(&self.directory)
            .env("PATH", env::join_paths(folders).expect("PATH came from one"))
            .env_remove("MAKEFLAGS")
            .env_remove("MAKELEVEL")
            .stdin(Stdio::null())
            .stdout(File::create(self.directory.join("shown")).expect("the directory is ours"))
            .status()
            .expect("there are timeout and bash");
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}
