//! The documentation says what the program does: generated files equal what is generated now, the README's examples
//! give the output that stands below them, and its targets exist.

mod common;
#[path = "docs/examples.rs"]
mod examples;
#[path = "docs/guides.rs"]
mod guides;
#[path = "docs/manual.rs"]
mod manual;
#[path = "generate/render.rs"]
mod render;

use std::fs;
use std::path::Path;
use std::process::Command;

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
fn the_readme_has_the_tables_of_the_program() {
    is_as_generated("readme");
}

/// As an entry of its own, or as a word that is offered: another option may begin with the same letters.
#[test]
fn every_option_is_in_the_manual_and_in_each_completion() {
    let manual = read("man/treekill-run.1").replace("\\-", "-");
    let (_, options) = manual.split_once("\n.SH OPTIONS\n").expect("the manual has the section");
    let options = options.split("\n.SH ").next().unwrap_or_default();
    let bash = read("completions/treekill-run.bash");
    let offered = bash.lines().find(|line| line.contains("compgen -W '-")).expect("bash is offered the options");
    let [zsh, fish] = ["_treekill-run", "treekill-run.fish"].map(|script| read(&format!("completions/{script}")));
    for name in cli::command().get_arguments().filter_map(clap::Arg::get_long) {
        let option = format!("--{name}");
        let is_entry =
            |(above, line): (&str, &str)| above == ".TP" && line.split(['"', ' ']).any(|word| word == option);
        assert!(options.lines().zip(options.lines().skip(1)).any(is_entry), "the manual has no entry for {option}");
        assert!(offered.split(['\'', ' ']).any(|word| word == option), "bash is not offered {option}");
        let is_described = ["[", "=[", "}'[", "=}'["].iter().any(|end| zsh.contains(&format!("{option}{end}")));
        assert!(is_described, "zsh is not offered {option}");
        assert!(fish.lines().any(|line| line.contains(&format!(" -l {name} -d "))), "fish is not offered {option}");
    }
}

#[test]
fn in_zsh_each_option_excludes_those_that_exclude_it() {
    let zsh = read("completions/_treekill-run");
    // `'(EXCLUDED)NAME...` or `'(EXCLUDED)'{NAME,NAME}'...`.
    let options: Vec<(Vec<&str>, Vec<&str>)> = zsh
        .lines()
        .filter_map(|line| line.strip_prefix("  '(")?.split_once(')'))
        .map(|(excluded, rest)| {
            let spelt = rest.split('[').next().unwrap_or_default();
            let names = spelt.split(['\'', '{', '}', ',']).map(|name| name.trim_end_matches(['+', '=']));
            (excluded.split(' ').collect(), names.filter(|name| !name.is_empty()).collect())
        })
        .collect();
    assert!(options.len() > 20, "{options:?}");
    for (excluded, names) in &options {
        let mutual = |name: &&str| {
            let other = options.iter().find(|(_, names)| names.contains(name));
            other.is_none_or(|(excluded, _)| excluded.contains(&names[0]) || excluded.contains(&"*"))
        };
        assert!(excluded.iter().all(mutual), "{names:?} is offered after what excludes it: {excluded:?}");
    }
    let after_new_session = options.iter().find(|(_, names)| names.contains(&"--new-session")).expect("it is there");
    assert!(after_new_session.0.contains(&"-f"), "{after_new_session:?}");
}

#[test]
fn the_changelog_has_this_version() {
    let heading = format!("\n## [{}] - ", env!("CARGO_PKG_VERSION"));
    assert!(read("CHANGELOG.md").contains(&heading), "CHANGELOG.md has no{heading}");
}

/// Every file below a folder, with its text.
fn visit(folder: &Path, look: &mut dyn FnMut(&Path, &str)) {
    for entry in fs::read_dir(folder).expect("the checkout has it").flatten() {
        let path = entry.path();
        if path.is_dir() {
            visit(&path, look);
        } else {
            look(&path, &fs::read_to_string(&path).unwrap_or_default());
        }
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

/// A status that hides the next one, when both could be, stands before it. Those that cannot be together stand as one item.
#[test]
fn readme_and_manual_give_the_statuses_in_the_order_of_the_program() {
    use treekill_run::outcome::{Cause, End, Failure, LEFTOVERS, Outcome, exit_for};
    use treekill_run::signals::Sig;
    let policy = treekill_run::outcome::ExitPolicy { preserve_status: false, leftover_status: LEFTOVERS };
    let mut outcome = Outcome {
        cause: Cause::TimedOut,
        failure: Some(Failure::Exec(2)),
        end: Some(End::Signaled(Sig::KILL)),
        needed_kill: true,
        left_over: true,
        survived: true,
        limit_hit: true,
    };
    // Each takes away what the status before it came from.
    let steps: [fn(&mut Outcome); 8] = [
        |outcome| outcome.failure = Some(Failure::Internal),
        |outcome| outcome.survived = false,
        |outcome| outcome.failure = None,
        |outcome| outcome.limit_hit = false,
        |outcome| outcome.needed_kill = false,
        |outcome| outcome.cause = Cause::Ended,
        |outcome| outcome.end = Some(End::Exited(0)),
        |outcome| outcome.left_over = false,
    ];
    let mut order = vec![exit_for(&outcome, &policy).status()];
    for step in steps {
        step(&mut outcome);
        order.push(exit_for(&outcome, &policy).status());
    }
    for (page, begin) in
        [("README.md", "the first of these counts:"), ("man/treekill-run.1", "the first of this list does:")]
    {
        let text = read(page);
        let (_, list) = text.split_once(begin).expect("the page has the list");
        let list = list.split('.').next().unwrap_or_default().replace('\n', " ");
        let items: Vec<&str> = list.split(';').map(str::trim).collect();
        assert_eq!(items.len(), order.len(), "{page}: {list}");
        for (item, status) in items.iter().zip(&order) {
            let is_own = *item == "the command's own failure or signal" && *status == 128 + 9;
            assert!(
                is_own || item.split([' ', ',']).any(|word| word == status.to_string()),
                "{page}: {item} is {status}"
            );
        }
    }
}

/// Links to elsewhere would need a network.
#[test]
fn every_link_within_the_project_leads_somewhere() {
    let mut seen = 0;
    for page in ["README.md", "CHANGELOG.md", ".github/CONTRIBUTING.md", ".github/SECURITY.md", ".github/THREATS.md"] {
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
