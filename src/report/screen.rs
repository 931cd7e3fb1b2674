//! What stderr can show.

use std::env;

use rustix::stdio::stderr;
use rustix::termios::{isatty, tcgetwinsize};

use super::Canvas;

/// How wide lines are where nobody says: what reads them is a log, and long command lines are in the report.
const WIDTH: usize = 100;

/// A wider screen is a mistake.
const WIDEST: usize = 10_000;

/// A canvas of so many lines on stderr. COLUMNS says how wide, then the terminal; NO_COLOR and TERM=dumb keep a terminal
/// from colours.
pub fn canvas(lines: usize, command: Option<i32>) -> Canvas {
    let is_terminal = isatty(stderr());
    let asked =
        env::var("COLUMNS").ok().and_then(|text| text.parse().ok()).filter(|width| (1..=WIDEST).contains(width));
    let terminals = || tcgetwinsize(stderr()).ok().map(|size| usize::from(size.ws_col)).filter(|width| *width > 0);
    let is_set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    Canvas {
        width: asked.or_else(terminals).unwrap_or(WIDTH),
        has_colour: is_terminal && !is_dumb && !is_set("NO_COLOR"),
        lines,
        command,
    }
}
