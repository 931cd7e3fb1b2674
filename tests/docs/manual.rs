//! The manual has what the program has, and nothing else.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use treekill_run::cli;

use crate::common::{Scratch, needs};
use crate::{program, read, root, visit};

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
    let mut read_by_us = BTreeSet::new();
    visit(&root().join("src"), &mut |_, text| {
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
    let named: BTreeSet<String> =
        names.filter(|name| !name.is_empty() && !name.starts_with("LC_") && name != "LANG").collect();
    assert_eq!(named, read_by_us, "named in the manual (left) and read in the source (right)");
}

#[test]
fn the_manual_names_every_field_of_the_report() {
    let scratch = Scratch::new();
    let file = scratch.join("run.json");
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
        let is_named =
            |line: &str| line.starts_with(".B") && line.split([' ', ',', '~', '\\']).any(|word| word == field);
        assert!(section.lines().any(is_named), "the manual lacks {field}");
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
