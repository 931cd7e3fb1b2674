//! The command line: one clap definition feeds parsing, `--help`, the manual and the completions.
//! Plain types come out; nothing here looks at the host.

mod gnu;
pub(crate) mod quick;
#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{ArgAction, CommandFactory, FromArgMatches, Parser, ValueEnum};

pub use gnu::{DIFFERENCES, Difference};

use crate::limits::Size;
use crate::outcome::EXIT_TABLE;
use crate::plan::{Backend, Stages};
use crate::signals::Sig;
use crate::{duration, limits, plan, signals};

/// Run COMMAND and end everything it started: timeout(1), but tree-safe.
///
/// When treekill-run returns, nothing that COMMAND started is still alive, whatever forked twice,
/// called setsid, ignored SIGTERM or was left behind with `&`.
#[derive(Clone, Debug, Parser)]
#[command(name = "treekill-run", version, args_override_self = true, max_term_width = 100)]
#[command(override_usage = "treekill-run [OPTIONS] [--] COMMAND [ARG]...")]
pub struct Options {
    /// Stop the tree after this long (30, 1.5m, 250ms, 1m30s); 0 is never
    #[arg(short, long, value_name = "DURATION", default_value = "0", hide_default_value = true, value_parser = duration::parse)]
    pub timeout: Duration,

    /// First signal of a stop: a name with or without SIG, a number, RTMIN+N
    #[arg(short, long, value_name = "SIGNAL", default_value = "TERM", value_parser = signals::parse)]
    pub signal: Sig,

    /// From the first signal to SIGKILL; 0 is never [default: 10s]
    #[arg(short, long, value_name = "DURATION", value_parser = duration::parse)]
    pub kill_after: Option<Duration>,

    /// Signals in turn, such as INT:5s,QUIT:2s,KILL; without KILL at the end it never kills
    #[arg(long, value_name = "LIST", value_parser = plan::parse_stages, conflicts_with_all = ["signal", "kill_after"])]
    pub stages: Option<Stages>,

    /// Who gets the first signal; SIGKILL is always for all
    #[arg(long, value_name = "WHO", default_value = "tree")]
    pub signal_to: SignalTo,

    /// After a timeout, end with the command's status instead of 124
    #[arg(short, long)]
    pub preserve_status: bool,

    /// What to do with processes that outlive the command
    #[arg(long, value_name = "POLICY", default_value = "kill")]
    pub leftovers: Leftovers,

    /// How long processes that outlive the command may take to finish by themselves
    #[arg(long, value_name = "DURATION", default_value = "200ms", value_parser = duration::parse)]
    pub leftover_grace: Duration,

    /// Status when the command succeeded but left processes; 0 leaves its own [default: 193]
    #[arg(long, value_name = "STATUS")]
    pub leftover_status: Option<u8>,

    /// Processes that are no leftovers, by name or a word of their command line; may be repeated
    #[arg(long, value_name = "PATTERN", action = ArgAction::Append, value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub keep: Vec<String>,

    /// Longest wait for emptiness after SIGKILL; 0 waits for ever
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration::parse)]
    pub drain_limit: Duration,

    /// Stop the tree when nothing in it has done anything for this long; 0 is never
    #[arg(long, value_name = "DURATION", default_value = "0", hide_default_value = true, value_parser = duration::parse)]
    pub idle_timeout: Duration,

    /// What holds the tree, in order of preference; the first that works is taken
    #[arg(
        short,
        long,
        value_name = "LIST",
        default_value = "auto",
        value_delimiter = ',', action = ArgAction::Set
    )]
    pub backend: Vec<Backend>,

    /// Most memory for the whole tree: 512M, 2G, or a share of the machine's, 50%
    #[arg(long, value_name = "SIZE", value_parser = limits::parse_size)]
    pub memory_max: Option<Size>,

    /// Most processes and threads in the whole tree at once
    #[arg(long, value_name = "N", value_parser = limits::parse_pids)]
    pub pids_max: Option<u64>,

    /// Most CPU time for the whole tree, in percent of one CPU
    #[arg(long, value_name = "PERCENT", value_parser = limits::parse_cpu)]
    pub cpu_max: Option<u32>,

    /// Stop the tree when the process that called treekill-run dies
    #[arg(long)]
    pub die_with_parent: bool,

    /// If treekill-run is killed with SIGKILL, let the command go on without a limit
    #[arg(long)]
    pub no_guard: bool,

    /// Forbid everything in the tree to gain privileges, as setuid programs do
    #[arg(long)]
    pub no_new_privs: bool,

    /// Leave the command in the caller's session and process group
    #[arg(short, long, conflicts_with = "new_session")]
    pub foreground: bool,

    /// Give the command a session of its own, out of reach of the caller's terminal
    #[arg(long)]
    pub new_session: bool,

    /// Write a JSON report of the run to this file
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath, conflicts_with = "report_fd")]
    pub report: Option<PathBuf>,

    /// Write a JSON report of the run to this open descriptor
    #[arg(long, value_name = "N")]
    pub report_fd: Option<u16>,

    /// Print the JSON Schema of the report and do nothing else
    #[arg(long, exclusive = true)]
    pub report_schema: bool,

    /// Say in one line at the end what the tree has used; -q does not silence that
    #[arg(long)]
    pub stats: bool,

    /// Read GNU timeout's command line; must come first, implied when called timeout
    #[arg(long)]
    pub gnu: bool,

    /// Say nothing but treekill-run's own errors
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,

    /// Say each step, and show the tree as it was when a stop began
    #[arg(short, long)]
    pub verbose: bool,

    /// Say which backends and limits work here, what would make the others work; run nothing
    #[arg(long, conflicts_with = "command")]
    pub doctor: bool,

    /// Print help; the manual says more
    #[arg(short, long, action = ArgAction::Help)]
    help: Option<bool>,

    /// Print the version
    #[arg(short = 'V', long, action = ArgAction::Version)]
    version: Option<bool>,

    /// The command and its arguments, as they are: options of treekill-run end here
    #[arg(value_name = "COMMAND", required_unless_present = "doctor", trailing_var_arg = true, value_hint = clap::ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

/// Who gets the first signal of a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SignalTo {
    /// Every process of the tree.
    Tree,
    /// The members of the tree in the command's process group.
    Group,
    /// The command alone.
    Command,
}

/// What becomes of processes that outlive the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Leftovers {
    /// End them.
    Kill,
    /// Wait for them, within the timeout.
    Wait,
    /// Leave them running.
    Leave,
}

/// The clap definition, exit table included; the generators of manual and completions read it too.
pub fn command() -> clap::Command {
    let mut table = String::from("Exit status:\n");
    for row in EXIT_TABLE {
        writeln!(table, "  {:<7}{}", row.status, row.meaning).expect("a String takes everything");
    }
    Options::command().disable_help_flag(true).disable_version_flag(true).after_help(table.trim_end().to_owned())
}

/// The same for a program called timeout, whose words are translated first.
fn gnu_command() -> clap::Command {
    command()
        .name(TIMEOUT)
        .version(concat!("(treekill-run) ", env!("CARGO_PKG_VERSION")))
        .override_usage("timeout [OPTION]... DURATION COMMAND [ARG]...")
}

/// Our name.
pub const OWN_NAME: &str = "treekill-run";

/// The name that implies GNU timeout's grammar.
const TIMEOUT: &str = "timeout";

/// What the command line asks for.
#[derive(Debug)]
pub enum Request {
    /// Run a command.
    Run(Box<Options>),
    /// Print this on stdout and end with 0.
    Print(String),
}

/// The name that messages begin with: the one we were called by, if it stands for another personality.
pub fn own_name(program: Option<&OsStr>) -> &'static str {
    if is_timeout(program) { TIMEOUT } else { OWN_NAME }
}

fn is_timeout(program: Option<&OsStr>) -> bool {
    program.and_then(|program| Path::new(program).file_name()).is_some_and(|name| name == TIMEOUT)
}

/// Reads a command line, the program's name included. `radix` is the character that the user's language writes before
/// the fraction of a number; GNU timeout takes it beside the point.
///
/// # Errors
/// One line, without the program's name and without a newline.
pub fn parse(args: &[OsString], radix: &dyn Fn() -> char) -> Result<Request, String> {
    let program = args.first().map(OsString::as_os_str);
    let words = args.get(1..).unwrap_or_default();
    let gnu_words = match words {
        _ if is_timeout(program) => Some(words),
        [first, rest @ ..] if first == "--gnu" => Some(rest),
        _ => None,
    };
    let translated = gnu_words.map(|words| gnu::translate(words, &command, radix)).transpose()?;
    let words = translated.as_deref().unwrap_or(words);
    if let Some(options) = quick::parse(words).filter(|options| options.gnu == gnu_words.is_some()) {
        return Ok(Request::Run(Box::new(options)));
    }
    let definition = if gnu_words.is_some() { gnu_command() } else { command() };
    let name = std::iter::once(OsString::from(definition.get_name()));
    let parsed = definition
        .try_get_matches_from(name.chain(words.iter().cloned()))
        .and_then(|mut matches| Options::from_arg_matches_mut(&mut matches));
    match parsed {
        Ok(options) if options.gnu && gnu_words.is_none() => Err("--gnu must come first".into()),
        Ok(options) => Ok(Request::Run(Box::new(options))),
        Err(error) if !error.use_stderr() => Ok(Request::Print(error.to_string())),
        Err(error) => Err(one_line(&error)),
    }
}

/// Clap's paragraphs in one line: what is wrong, then its tips.
fn one_line(error: &clap::Error) -> String {
    use clap::error::ErrorKind;
    if matches!(error.kind(), ErrorKind::MissingRequiredArgument) {
        return String::from("no command given: expected treekill-run [OPTIONS] [--] COMMAND [ARG]...; try --help");
    }
    let text = error.to_string();
    let paragraphs = text.split("\n\n").map(|p| p.split_whitespace().collect::<Vec<_>>().join(" "));
    let mut line = String::new();
    for paragraph in paragraphs {
        if let Some(wrong) = paragraph.strip_prefix("error: ") {
            line.push_str(wrong);
        } else if let Some(tip) = paragraph.strip_prefix("tip: ") {
            let _ = write!(line, " ({tip})");
        }
    }
    line + "; try --help"
}
