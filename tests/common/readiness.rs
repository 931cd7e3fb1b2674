//! Which signals a process of the fixture will react to: they are blocked from its birth on, so that none is too early on
//! a machine that lets it wait for a CPU.

use nix::sys::signal::Signal;

const REQUESTS: [Signal; 6] =
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// What ends these preparations: from then on a signal is meant to find the process as it is.
const GETS_GOING: [&[u8]; 8] = [b"read", b"hang", b"wait", b"exec", b"orphaned", b"burn", b"kill", b"state"];

/// The requests to end that the outermost of these steps handle or ignore.
pub(crate) fn awaited<'a>(steps: impl IntoIterator<Item = &'a [u8]>) -> Vec<Signal> {
    let mut awaited = vec![];
    let mut depth = 0;
    let mut steps = steps.into_iter();
    while let Some(step) = steps.next() {
        match step {
            b"[" => depth += 1,
            b"]" => depth -= 1,
            b"on" | b"ignore" if depth == 0 => {
                let name = steps.next().map(String::from_utf8_lossy).unwrap_or_default();
                awaited.extend(REQUESTS.iter().filter(|signal| signal.as_str().strip_prefix("SIG") == Some(&name)));
            }
            step if depth == 0 && GETS_GOING.contains(&step) => break,
            _ => {}
        }
    }
    awaited
}
