//! When a process of the fixture is ready. On a machine that lets it wait for a CPU nothing is to come too early: what it
//! will react to is blocked from its birth on, and who forked it waits for it.

use nix::sys::signal::Signal;

const REQUESTS: [Signal; 6] =
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// Steps that may take long, or that show what others have done to the process.
const GOING: [&str; 12] =
    ["read", "hang", "wait", "exec", "call", "chain", "leader-exits", "orphaned", "inherit", "burn", "kill", "state"];

/// Whether this step finds the process ready.
pub(crate) fn is_ready_for(step: &[u8]) -> bool {
    GOING.iter().any(|going| going.as_bytes() == step)
}

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
            step if depth == 0 && is_ready_for(step) => break,
            _ => {}
        }
    }
    awaited
}
