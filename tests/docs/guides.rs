//! CONTRIBUTING.md and THREATS.md: the tests that they name exist, and the modules import as they say.

use std::path::Path;

use crate::{read, root, visit};

/// Each claim of the threat model names its tests, which exist: FILE::NAME is in tests/FILE.rs or below tests/FILE.
#[test]
fn every_test_that_the_threat_model_names_exists() {
    let model = read(".github/THREATS.md");
    let words = model.split('`').skip(1).step_by(2);
    let tests: Vec<(&str, &str)> = words.filter_map(|word| word.split_once("::")).collect();
    assert!(tests.len() > 40, "{tests:?}");
    for (file, name) in tests {
        let mut sources = read(&format!("tests/{file}.rs"));
        let folder = root().join("tests").join(file);
        if folder.is_dir() {
            visit(&folder, &mut |_, text| sources.push_str(text));
        }
        assert!(sources.contains(&format!("fn {name}(")), "there is no test {file}::{name}");
    }
    for claim in model.split("\n- ").skip(1) {
        assert!(claim.contains("::"), "this claim has no test: {claim}");
    }
}

/// The modules that import each other.
const PAIRS: [[&str; 2]; 2] = [["cli", "plan"], ["boundary", "tree"]];

#[test]
fn imports_lead_downwards_in_the_list_of_the_guide() {
    let guide = read(".github/CONTRIBUTING.md");
    let (_, list) = guide.split_once("from any line to any below it").expect("the guide has the list");
    let layers: Vec<&str> =
        list.lines().filter_map(|line| line.strip_prefix("    ")).take_while(|line| !line.is_empty()).collect();
    let layer_of = |module: &str| {
        let is_on = |layer: &&str| layer.split([' ', ',']).any(|word| word == module);
        layers.iter().position(is_on).unwrap_or_else(|| panic!("{module} is on no layer of {layers:?}"))
    };
    let mut seen = 0;
    visit(&root().join("src"), &mut |file, text| {
        let Some(module) = module_of(file) else { return };
        for imported in imports(text) {
            let is_pair = PAIRS.iter().any(|pair| pair.contains(&module.as_str()) && pair.contains(&imported));
            let is_below = imported == module || layer_of(&module) < layer_of(imported);
            assert!(is_pair || is_below, "{} imports {imported}", file.display());
            seen += 1;
        }
    });
    assert!(seen > 100, "only {seen} imports were found");
}

/// The module of the crate that a file belongs to, unless it is there for tests: those import what they like.
fn module_of(file: &Path) -> Option<String> {
    let inner = file.strip_prefix(root().join("src")).expect("it is below").with_extension("");
    let parts: Vec<&str> = inner.iter().filter_map(|part| part.to_str()).collect();
    let is_for_tests = parts.iter().any(|part| ["tests", "properties"].contains(part));
    (!is_for_tests).then(|| parts[0].to_owned())
}

/// The modules that stand behind `crate::`, alone or in braces.
fn imports(text: &str) -> Vec<&str> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let paths = code.split("crate::").skip(1).flat_map(|rest| match rest.strip_prefix('{') {
        Some(list) => list.split('}').next().unwrap_or_default().split(',').collect(),
        None => vec![rest],
    });
    let is_of_name = |c: char| c.is_ascii_lowercase() || c == '_';
    let names = paths.map(|path| path.trim().split(|c| !is_of_name(c)).next().unwrap_or_default());
    names.filter(|name| !name.is_empty()).collect()
}
