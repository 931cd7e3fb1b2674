//! The action of this repository that installs a release, as a runner of GitHub's would run it.

use std::path::Path;

/// The shell script of its only step.
pub(crate) fn script() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(".github/actions/treekill-run/action.yml");
    let action = std::fs::read_to_string(file).expect("the checkout has it");
    let mut blocks = action.split("      run: |").skip(1);
    let block = blocks.next().expect("it has a script");
    assert!(blocks.next().is_none(), "there is another script to run");
    assert!(!block.contains("${{"), "what a workflow says must not become part of the script");
    block.lines().skip(1).map(|line| line.strip_prefix("        ").unwrap_or(line).to_owned() + "\n").collect()
}
