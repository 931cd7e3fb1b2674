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

use clap::builder::{OsStringValueParser, PathBufValueParser, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
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
    #[arg(short, long, value_name = "DURATION", default_value = "0", hide_default_value = true, value_parser = text(duration::parse), allow_hyphen_values = true)]
    pub timeout: Duration,

    /// First signal of a stop: a name with or without SIG, a number, 128+N as shells show it, RTMIN+N
    #[arg(short, long, value_name = "SIGNAL", default_value = "TERM", value_parser = text(signals::parse), allow_hyphen_values = true)]
    pub signal: Sig,

    /// From the first signal to SIGKILL; 0 is never [default: 10s]
    #[arg(short, long, value_name = "DURATION", value_parser = text(duration::parse), allow_hyphen_values = true)]
    pub kill_after: Option<Duration>,

    /// Signals in turn, such as INT:5s,QUIT:2s,KILL; without KILL at the end it never kills
    #[arg(long, value_name = "LIST", value_parser = text(plan::parse_stages), allow_hyphen_values = true, conflicts_with_all = ["signal", "kill_after"])]
    pub stages: Option<Stages>,

    /// Who gets the first signal; SIGKILL is always for all
    #[arg(long, value_name = "WHO", default_value = "tree", allow_hyphen_values = true)]
    pub signal_to: SignalTo,

    /// After a timeout, end with the command's status instead of 124 or 197
    #[arg(short, long)]
    pub preserve_status: bool,

    /// What to do with processes that outlive the command
    #[arg(long, value_name = "POLICY", default_value = "kill", allow_hyphen_values = true)]
    pub leftovers: Leftovers,

    /// How long processes that outlive the command may take to finish by themselves
    #[arg(long, value_name = "DURATION", default_value = "200ms", value_parser = text(duration::parse), allow_hyphen_values = true)]
    pub leftover_grace: Duration,

    /// Status when the command succeeded but left processes; 0 leaves its own [default: 193]
    #[arg(long, value_name = "STATUS", value_parser = text(parse_status), allow_hyphen_values = true)]
    pub leftover_status: Option<u8>,

    /// Processes that are no leftovers: the name of their program, a word of their command line or what follows its last
    /// dot; may be repeated
    #[arg(long, value_name = "NAME", action = ArgAction::Append, value_parser = text(parse_name))]
    pub keep: Vec<String>,

    /// Longest wait for emptiness after SIGKILL; 0 waits for ever
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = text(duration::parse), allow_hyphen_values = true)]
    pub drain_limit: Duration,

    /// Stop the tree when nothing in it has done anything for this long; 0 is never
    #[arg(long, value_name = "DURATION", default_value = "0", hide_default_value = true, value_parser = text(duration::parse), allow_hyphen_values = true)]
    pub idle_timeout: Duration,

    /// What holds the tree, in order of preference; the first that works is taken
    #[arg(
        short,
        long,
        value_name = "LIST",
        default_value = "auto",
        value_delimiter = ',',
        action = ArgAction::Set,
        allow_hyphen_values = true
    )]
    pub backend: Vec<Backend>,

    /// Most memory for the whole tree: 512M, 2G, or a share of the machine's, 50%
    #[arg(long, value_name = "SIZE", value_parser = text(limits::parse_size), allow_hyphen_values = true)]
    pub memory_max: Option<Size>,

    /// Most processes and threads in the whole tree at once
    #[arg(long, value_name = "N", value_parser = text(limits::parse_pids), allow_hyphen_values = true)]
    pub pids_max: Option<u64>,

    /// Most CPU time for the whole tree, in percent of one CPU
    #[arg(long, value_name = "PERCENT", value_parser = text(limits::parse_cpu), allow_hyphen_values = true)]
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
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath, value_parser = PathBufValueParser::new().try_map(parse_target), conflicts_with = "report_fd")]
    pub report: Option<PathBuf>,

    /// Write a JSON report of the run to this open descriptor
    #[arg(long, value_name = "N", value_parser = text(parse_descriptor), allow_hyphen_values = true)]
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
    let rows = EXIT_TABLE.iter().map(|row| (row.status, row.meaning));
    Options::command().disable_help_flag(true).disable_version_flag(true).after_help(exit_table(rows))
}

fn exit_table(rows: impl Iterator<Item = (&'static str, &'static str)>) -> String {
    let mut table = String::from("Exit status:");
    for (status, meaning) in rows {
        write!(table, "\n  {status:<7}{meaning}").expect("a String takes everything");
    }
    table
}

/// The same for a program called timeout, whose words are translated first.
fn gnu_command() -> clap::Command {
    command().name(TIMEOUT).version(concat!("(treekill-run) ", env!("CARGO_PKG_VERSION")))
}

/// Our name.
pub const OWN_NAME: &str = "treekill-run";

/// The name that implies GNU timeout's grammar.
pub const TIMEOUT: &str = "timeout";

/// What the command line asks for.
#[derive(Debug)]
pub enum Request {
    /// Run a command.
    Run(Box<Options>),
    /// Print this on stdout and end with 0.
    Print(String),
}

/// Whether the program is called by the name that implies GNU timeout's grammar.
pub fn is_timeout(program: Option<&OsStr>) -> bool {
    program.and_then(|program| Path::new(program).file_name()).is_some_and(|name| name == TIMEOUT)
}

/// Reads a command line, the program's name included. `radix` is the character that the user's language writes before
/// the fraction of a number; GNU timeout takes it beside the point.
///
/// # Errors
/// One line, without the program's name and without a newline.
// Not inlined, so that its stack is free again.
#[inline(never)]
pub fn parse(args: &[OsString], radix: &dyn Fn() -> char) -> Result<Request, String> {
    let program = args.first().map(OsString::as_os_str);
    let words = args.get(1..).unwrap_or_default();
    let gnu_words = match words {
        _ if is_timeout(program) => Some(words),
        [first, rest @ ..] if first == "--gnu" => Some(rest),
        _ => None,
    };
    let translated = gnu_words.map(|words| gnu::translate(words, &command, radix)).transpose();
    let translated = translated.map_err(|line| line + TRY_HELP)?;
    let words = translated.as_deref().unwrap_or(words);
    if let Some(options) = quick::parse(words).filter(|options| options.gnu == gnu_words.is_some()) {
        return Ok(Request::Run(Box::new(options)));
    }
    parse_with_clap(words, gnu_words.is_some())
}

/// Reads a command line in our own grammar, or what GNU timeout's was translated to.
// Not inlined, so that its stack is free again.
#[inline(never)]
fn parse_with_clap(words: &[OsString], is_gnu: bool) -> Result<Request, String> {
    let definition = if is_gnu { gnu_command() } else { command() };
    let name = std::iter::once(OsString::from(definition.get_name()));
    let parsed = definition
        .try_get_matches_from(name.chain(words.iter().cloned()))
        .and_then(|mut matches| Options::from_arg_matches_mut(&mut matches));
    match parsed {
        Ok(options) if options.gnu && !is_gnu => Err("--gnu must come first".into()),
        Ok(options) => Ok(Request::Run(Box::new(options))),
        Err(error) if error.kind() == ErrorKind::DisplayHelp && is_gnu => {
            Ok(Request::Print(gnu::help(command()).render_long_help().to_string()))
        }
        Err(error) if !error.use_stderr() => Ok(Request::Print(error.to_string())),
        Err(error) => Err(one_line(&error)),
    }
}

/// Reads a value's text. Bytes that are none become a character that no grammar here knows, so that its refusal names
/// option and value.
fn text<T: Clone + Send + Sync + 'static>(parse: fn(&str) -> Result<T, String>) -> impl TypedValueParser<Value = T> {
    OsStringValueParser::new().try_map(move |value| parse(&value.to_string_lossy()))
}

fn parse_status(text: &str) -> Result<u8, String> {
    text.parse().map_err(|_| format!("invalid status '{text}': expected a number from 0 to 255"))
}

fn parse_name(text: &str) -> Result<String, String> {
    let is_name = !text.is_empty() && !text.contains(char::REPLACEMENT_CHARACTER);
    let refuse =
        || format!("invalid name '{text}': expected that of a program or a word of its command line, in UTF-8");
    is_name.then(|| text.to_owned()).ok_or_else(refuse)
}

/// Other programs take this name for a stream.
fn parse_target(path: PathBuf) -> Result<PathBuf, String> {
    let refusal = "invalid file '-': expected --report-fd 1 for standard output, or ./- for a file of that name";
    if path == Path::new("-") { Err(refusal.into()) } else { Ok(path) }
}

fn parse_descriptor(text: &str) -> Result<u16, String> {
    let most = u16::MAX;
    text.parse().map_err(|_| format!("invalid descriptor '{text}': expected a number from 0 to {most}, such as 3"))
}

/// Clap's paragraphs in one line: what is wrong, then its tips but the one that takes a word for a value: here what is
/// behind the options is a command.
fn one_line(error: &clap::Error) -> String {
    let told = match error.kind() {
        ErrorKind::MissingRequiredArgument => {
            Some("no command given: expected treekill-run [OPTIONS] [--] COMMAND [ARG]...".to_owned())
        }
        ErrorKind::ValueValidation => refused_value(error),
        // Of what must stand alone clap names no other.
        ErrorKind::ArgumentConflict if error.get(ContextKind::PriorArg) == Some(&ContextValue::None) => {
            Some("--report-schema takes no other option and no command".to_owned())
        }
        _ => None,
    };
    let line = told.unwrap_or_else(|| {
        let text = error.to_string();
        let (wrong, rest) = text.split_once("\n\n").unwrap_or((&text, ""));
        let wrong = wrong.trim_start_matches("error: ").split_whitespace().collect::<Vec<_>>().join(" ");
        let tips = rest.lines().filter_map(|line| line.trim_start().strip_prefix("tip: "));
        tips.filter(|tip| !tip.starts_with("to pass ")).fold(wrong, |line, tip| format!("{line} ({tip})"))
    });
    line + TRY_HELP
}

/// What ends a line about a command line.
const TRY_HELP: &str = "; try --help";

/// The parsers' own words name the value as well; once is enough.
fn refused_value(error: &clap::Error) -> Option<String> {
    let context = |kind| error.get(kind).map(ToString::to_string);
    let (option, value) = (context(ContextKind::InvalidArg)?, context(ContextKind::InvalidValue)?);
    let why = std::error::Error::source(error)?.to_string();
    let (_, expected) = why.split_once(&format!("'{value}': ")).unwrap_or(("", &why));
    Some(format!("invalid value '{value}' for '{option}': {expected}"))
}
