//! The table: rows, gates and verdicts.

use std::process::ExitCode;

use crate::machine::Machine;
use crate::{crowds, starts, stops, storms, weight};

/// The rows that are measured together, by the name that a developer gives to measure only them.
type Measure = fn(&Machine, &mut Vec<Row>);
const GROUPS: &[(&str, Measure)] = &[
    ("true", starts::run_true),
    ("spaced", starts::run_true_spaced),
    ("busy", starts::run_true_beside_others),
    ("sequence", starts::run_in_sequence),
    ("parallel", starts::run_in_parallel),
    ("calls", weight::system_calls),
    ("instructions", weight::instructions),
    ("faults", weight::page_faults),
    ("memory", weight::memory),
    ("size", weight::sizes),
    ("exit", stops::exit),
    ("stop", stops::stop),
    ("grace", stops::grace),
    ("signal", stops::first_signal),
    ("storm", storms::storms),
    ("burst", crowds::burst),
    ("crowd", crowds::strangers),
];

/// What is measured, and in which unit it is shown.
#[derive(Clone, Copy)]
pub(crate) enum Value {
    /// Nanoseconds.
    Time(f64),
    Bytes(f64),
    Count(f64),
}

impl Value {
    fn number(self) -> f64 {
        match self {
            Value::Time(value) | Value::Bytes(value) | Value::Count(value) => value,
        }
    }

    /// Another number of the same unit.
    fn like(self, number: f64) -> Value {
        match self {
            Value::Time(_) => Value::Time(number),
            Value::Bytes(_) => Value::Bytes(number),
            Value::Count(_) => Value::Count(number),
        }
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = match *self {
            Value::Time(ns) if ns >= 1e10 => format!("{:.1} s", ns / 1e9),
            Value::Time(ns) if ns >= 1e7 => format!("{:.1} ms", ns / 1e6),
            Value::Time(ns) => format!("{:.0} us", ns / 1e3),
            Value::Bytes(bytes) => format!("{:.2} MB", bytes / 1e6),
            Value::Count(count) => format!("{count:.0}"),
        };
        f.pad(&text)
    }
}

/// What a row says.
enum Found {
    Measured { value: Value, other: Option<(String, Value)>, ratio: Option<f64> },
    NotMeasured(String),
}

pub(crate) struct Row {
    what: String,
    found: Found,
    /// The highest ratio, or the highest value where there is no ratio; and the one that is aimed at.
    bounds: Option<(f64, f64)>,
}

impl Row {
    /// A value by itself.
    pub(crate) fn value(what: impl Into<String>, value: Value) -> Row {
        Row { what: what.into(), found: Found::Measured { value, other: None, ratio: None }, bounds: None }
    }

    /// A value and what it is compared with.
    pub(crate) fn ratio(what: impl Into<String>, ours: Value, other: (&str, Value), ratio: f64) -> Row {
        let other = Some((other.0.to_owned(), other.1));
        Row { what: what.into(), found: Found::Measured { value: ours, other, ratio: Some(ratio) }, bounds: None }
    }

    pub(crate) fn not_measured(what: impl Into<String>, why: impl Into<String>) -> Row {
        Row { what: what.into(), found: Found::NotMeasured(why.into()), bounds: None }
    }

    pub(crate) fn gate(mut self, gate: f64, aim: f64) -> Row {
        self.bounds = Some((gate, aim));
        self
    }

    fn decisive(&self) -> Option<f64> {
        match &self.found {
            Found::Measured { ratio: Some(ratio), .. } => Some(*ratio),
            Found::Measured { value, .. } => Some(value.number()),
            Found::NotMeasured(_) => None,
        }
    }

    fn has_failed(&self) -> bool {
        self.decisive().zip(self.bounds).is_some_and(|(found, (gate, _))| found > gate)
    }

    fn verdict(&self) -> &'static str {
        match self.decisive().zip(self.bounds) {
            None => "",
            Some((found, (gate, _))) if found > gate => "FAILED",
            Some((found, (_, aim))) if found > aim => "gate met",
            Some(_) => "aim met",
        }
    }

    fn show(&self) {
        let (value, other, ratio) = match &self.found {
            Found::NotMeasured(why) => {
                println!("{:<WIDTH$} not measured: {why}", self.what);
                return;
            }
            Found::Measured { value, other, ratio } => (value, other, ratio),
        };
        let other = other.as_ref().map(|(name, value)| format!("{name} {value}")).unwrap_or_default();
        let bound = |bound: f64| match ratio {
            Some(_) => format!("{bound:.2}"),
            None => value.like(bound).to_string(),
        };
        let (gate, aim) = self.bounds.map(|(gate, aim)| (bound(gate), bound(aim))).unwrap_or_default();
        let ratio = ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default();
        let verdict = self.verdict();
        let line = format!("{:<WIDTH$} {value:>9}  {other:<26} {ratio:>6} {gate:>9} {aim:>9}  {verdict}", self.what);
        println!("{}", line.trim_end());
    }
}

const WIDTH: usize = 57;

/// Measures these groups, or all, and prints each row when it is known. With `check` the status says whether each gate
/// that could be measured is met.
pub(crate) fn print(names: &[&str], check: bool) -> ExitCode {
    if let Some(name) = names.iter().find(|name| !GROUPS.iter().any(|(known, _)| known == *name)) {
        let known: Vec<&str> = GROUPS.iter().map(|(name, _)| *name).collect();
        eprintln!("bench: no rows are called '{name}'; there are {}", known.join(", "));
        return ExitCode::from(2);
    }
    let machine = Machine::look();
    println!("{}", machine.describe());
    println!(
        "{:<WIDTH$} {:>9}  {:<26} {:>6} {:>9} {:>9}  verdict",
        "what", "value", "compared with", "ratio", "gate", "aim"
    );
    let (mut failed, mut missing) = (vec![], 0);
    for (name, measure) in GROUPS {
        if !names.is_empty() && !names.contains(name) {
            continue;
        }
        let mut rows = vec![];
        measure(&machine, &mut rows);
        for row in rows {
            row.show();
            missing += usize::from(row.decisive().is_none());
            if row.has_failed() {
                failed.push(row.what);
            }
        }
    }
    println!("{} gates failed, {missing} rows not measured", failed.len());
    for what in &failed {
        println!("FAILED: {what}");
    }
    if check && !failed.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The middle one.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

/// The median of the rounds' own ratios: what slows a whole round is in both of its numbers.
pub(crate) fn median_ratio(ours: &[f64], theirs: &[f64]) -> f64 {
    median(&ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect::<Vec<_>>())
}

/// A row of times that were measured in pairs.
pub(crate) fn paired(what: impl Into<String>, ours: &[f64], name: &str, theirs: &[f64]) -> Row {
    let ratio = median_ratio(ours, theirs);
    Row::ratio(what, Value::Time(median(ours)), (name, Value::Time(median(theirs))), ratio)
}
