//! The completions: what stands in the scripts by hand, `completion.SHELL`, with the options filled in.

use std::fmt::Write as _;

use clap::builder::PossibleValue;
use clap::{Arg, Command};
use treekill_run::cli;
use treekill_run::signals::Sig;

use super::{Page, choices, names, value_name};

const BASH: &str = include_str!("completion.bash");
const ZSH: &str = include_str!("completion.zsh");
const FISH: &str = include_str!("completion.fish");

/// What an option's value is.
enum Value {
    /// One of these, or with commas some of them, each with what it means.
    Choice(Vec<(String, String)>, IsList),
    Signal,
    File,
    /// Nothing that could be offered.
    Free,
}

type IsList = bool;

/// The three scripts.
pub(super) fn pages() -> Vec<Page> {
    let command = cli::command();
    let page = |path, text| Page { path, text };
    vec![
        page("completions/treekill-run.bash", bash(&command)),
        page("completions/_treekill-run", zsh(&command)),
        page("completions/treekill-run.fish", fish(&command)),
    ]
}

fn bash(command: &Command) -> String {
    let mut values = String::new();
    let mut lists = vec![];
    for option in valued(command) {
        let names = names(option).join(" | ");
        let action = match value(option) {
            Value::Choice(choices, is_list) => {
                if is_list {
                    lists.push(names.clone());
                }
                format!("words='{}'", choices.into_iter().map(|(name, _)| name).collect::<Vec<_>>().join(" "))
            }
            // bash has its own list, but with SIG in front of each name.
            Value::Signal => format!("words='{}'; [[ $cur != SIG* ]] || words=\"SIG${{words// / SIG}}\"", signals()),
            Value::File => "compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- \"$cur\"); return".to_owned(),
            Value::Free => continue,
        };
        let _ = writeln!(values, "        {names}) {action} ;;");
    }
    let all = options(command).flat_map(names).collect::<Vec<_>>().join(" ");
    filled(BASH, command, &[("VALUES", &values), ("LISTS", &lists.join(" | ")), ("OPTIONS", &all)])
}

fn zsh(command: &Command) -> String {
    let mut lines = String::new();
    for option in options(command) {
        let is_valued = option.get_action().takes_values();
        let spelt = names(option);
        let excluded = match option.get_action() {
            // Whatever else there is.
            clap::ArgAction::Help | clap::ArgAction::Version => "- *".to_owned(),
            _ if option.is_exclusive_set() => "- *".to_owned(),
            clap::ArgAction::Append => String::new(),
            _ => {
                // A conflict is declared at one of the two.
                let conflicts = |option: &Arg, other: &Arg| {
                    command.get_arg_conflicts_with(option).iter().any(|its| its.get_id() == other.get_id())
                };
                let others = options(command).filter(|other| conflicts(option, other) || conflicts(other, option));
                spelt.iter().cloned().chain(others.flat_map(names)).collect::<Vec<_>>().join(" ")
            }
        };
        let before = if excluded.is_empty() { "*".to_owned() } else { format!("({excluded})") };
        let marked = |name: &String| match (is_valued, name.starts_with("--")) {
            (false, _) => name.clone(),
            (true, true) => format!("{name}="),
            (true, false) => format!("{name}+"),
        };
        let marked: Vec<String> = spelt.iter().map(marked).collect();
        let spelt = if let [name] = &marked[..] { name.clone() } else { format!("'{{{}}}'", marked.join(",")) };
        let mut line = format!("'{before}{spelt}[{}]", zsh_text(&help(option)));
        if let Some(name) = value_name(option) {
            let _ = write!(line, ":{name}:{}", zsh_action(option));
        }
        let _ = writeln!(lines, "  {line}' \\");
    }
    filled(ZSH, command, &[("OPTIONS", &lines)])
}

/// What offers the values of an option, within single quotes.
fn zsh_action(option: &Arg) -> String {
    match value(option) {
        Value::Choice(choices, false) => {
            let choices = choices.iter().map(|(name, text)| format!("{name}\\:\"{}\"", zsh_text(text)));
            format!("(({}))", choices.collect::<Vec<_>>().join(" "))
        }
        Value::Choice(choices, true) => {
            let choices = choices.iter().map(|(name, text)| format!("\"{name}[{}]\"", zsh_text(text)));
            format!("_values -s , {} {}", value_name(option).unwrap_or_default(), choices.collect::<Vec<_>>().join(" "))
        }
        Value::Signal => format!("({})", signals()),
        Value::File => "_files".to_owned(),
        Value::Free => " ".to_owned(),
    }
}

/// A description within brackets and single quotes.
fn zsh_text(text: &str) -> String {
    let text = text.replace('\'', "'\\''");
    text.chars().fold(String::new(), |text, c| text + if "[]:".contains(c) { "\\" } else { "" } + &c.to_string())
}

fn fish(command: &Command) -> String {
    let mut lines = String::new();
    for option in options(command) {
        lines.push_str("complete -c treekill-run -n 'not __treekill_run_command'");
        if let Some(letter) = option.get_short() {
            let _ = write!(lines, " -s {letter}");
        }
        if let Some(word) = option.get_long() {
            let _ = write!(lines, " -l {word}");
        }
        let _ = write!(lines, " -d '{}'", help(option).replace('\'', "\\'"));
        if option.get_action().takes_values() {
            lines.push_str(&fish_value(option));
        }
        lines.push('\n');
    }
    filled(FISH, command, &[("OPTIONS", &lines)])
}

fn fish_value(option: &Arg) -> String {
    match value(option) {
        Value::Choice(choices, is_list) => {
            let choices = choices.iter().map(|(name, text)| format!("{name}\\t'{}'", text.replace('\'', "\\'")));
            let choices = choices.collect::<Vec<_>>().join(" ");
            if is_list {
                format!(" -x -a \"(__treekill_run_list {choices})\"")
            } else {
                format!(" -x -a \"{choices}\"")
            }
        }
        Value::Signal => format!(" -x -a '{}'", signals()),
        Value::File => " -r -F".to_owned(),
        Value::Free => " -x".to_owned(),
    }
}

/// A script with its markers replaced: these, and those that all of them share, by which an option with a value is known.
fn filled(script: &str, command: &Command, fillings: &[(&str, &str)]) -> String {
    let letters = |is_valued| -> String {
        let options = options(command).filter(|option| option.get_action().takes_values() == is_valued);
        options.filter_map(Arg::get_short).collect()
    };
    let long: Vec<String> = valued(command).filter_map(Arg::get_long).map(|word| format!("--{word}")).collect();
    let shared = [("LONG", long.join("|")), ("SHORT", letters(true)), ("FLAGS", letters(false))];
    let shared = shared.iter().map(|(name, text)| (*name, text.as_str()));
    fillings.iter().copied().chain(shared).fold(script.to_owned(), |script, (name, text)| {
        // A marker that is a line brings no line's end of its own.
        script.replace(&format!("@{name}@\n"), text).replace(&format!("@{name}@"), text)
    })
}

fn options(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|option| !option.is_positional())
}

fn valued(command: &Command) -> impl Iterator<Item = &Arg> {
    options(command).filter(|option| option.get_action().takes_values())
}

fn help(option: &Arg) -> String {
    option.get_help().map(ToString::to_string).unwrap_or_default()
}

fn value(option: &Arg) -> Value {
    let meaning = |value: &PossibleValue| value.get_help().map(ToString::to_string).unwrap_or_default();
    let choices: Vec<_> = choices(option).map(|value| (value.get_name().to_owned(), meaning(&value))).collect();
    match value_name(option).as_deref() {
        _ if !choices.is_empty() => Value::Choice(choices, option.get_value_delimiter().is_some()),
        Some("SIGNAL") => Value::Signal,
        Some("FILE") => Value::File,
        _ => Value::Free,
    }
}

/// Those with a name of their own.
fn signals() -> String {
    let named = Sig::all().map(|sig| sig.to_string()).take(31);
    named.collect::<Vec<_>>().join(" ")
}
