//! A tool call of an agent harness: `harness TIMEOUT COMMAND` runs the COMMAND of a model through treekill-run and prints
//! the text that the model is given. SIGINT cancels the call, a second one ends it at once.

use std::io::{self, PipeReader, PipeWriter, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;
use std::{env, process, thread};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::Value;

const OPTIONS: [&str; 7] =
    ["--quiet", "--new-session", "--die-with-parent", "--kill-after", "3s", "--drain-limit", "2s"];
/// Bytes that are kept of the beginning of the output, and as many of its end.
const KEPT: usize = 16 * 1024;
/// How long is waited for output that survivors hold open.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Processes that are named at most.
const LISTED: usize = 20;

/// A command under way.
struct Call {
    child: Child,
    timeout: String,
    output: PipeReader,
    report: PipeReader,
    report_end: PipeWriter,
}

impl Call {
    fn start(timeout: &str, command: &str) -> io::Result<Call> {
        let (output, output_end) = io::pipe()?;
        let (report, report_end) = io::pipe()?;
        // Safe Rust hands on no descriptors but 0 to 2. So treekill-run opens this one by its name here.
        let name = format!("/proc/{}/fd/{}", process::id(), report_end.as_raw_fd());
        // The Command, and with it our copies of `output_end`, is gone at the end of this statement: with one of them
        // open the output would not end.
        let child = Command::new("treekill-run")
            .args(OPTIONS)
            .args(["--timeout", timeout, "--report", &name, "--", "bash", "-c", command])
            .stdin(Stdio::null())
            .stdout(output_end.try_clone()?)
            .stderr(output_end)
            .spawn()?;
        Ok(Call { child, timeout: timeout.to_owned(), output, report, report_end })
    }

    /// What signals the call from another thread; unlike a PID it can't come to mean another process.
    fn pidfd(&self) -> io::Result<OwnedFd> {
        Ok(pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty())?)
    }

    /// Waits for the end and returns the text for the model. Nothing of the tree is alive then, so the output ends too:
    /// no read needs a time limit.
    fn text(mut self) -> io::Result<String> {
        let output = Arc::new(Mutex::new(Output::default()));
        let (pipe, shared) = (self.output, Arc::clone(&output));
        let (end, at_its_end) = mpsc::channel::<()>();
        thread::spawn(move || {
            read(pipe, &shared);
            drop(end);
        });
        // Read meanwhile: it may be more than the pipe holds.
        let report = thread::spawn(move || io::read_to_string(self.report).unwrap_or_default());
        let status = self.child.wait()?;
        drop(self.report_end);
        // There is none if treekill-run could not do its work, or was killed.
        let report: Value = serde_json::from_str(&report.join().unwrap_or_default()).unwrap_or_default();
        // Only survivors could hold the output open.
        let _ = match listed(&report["survivors"]) {
            [] => at_its_end.recv().is_ok(),
            _ => at_its_end.recv_timeout(LAST_WORDS).is_ok(),
        };
        let printed = output.lock().unwrap_or_else(PoisonError::into_inner).text();
        Ok(describe(&report, status, &self.timeout, &printed))
    }
}

/// Reads to the end, however much it is: a command whose pipe is full does not go on.
fn read(mut pipe: PipeReader, output: &Mutex<Output>) {
    let mut bytes = [0; 64 * 1024];
    while let Ok(length @ 1..) = pipe.read(&mut bytes) {
        output.lock().unwrap_or_else(PoisonError::into_inner).add(&bytes[..length]);
    }
}

/// The text for the model.
fn describe(report: &Value, status: ExitStatus, timeout: &str, printed: &str) -> String {
    let own = &report["command_status"];
    let (is_stopped, how) = match (report["outcome"].as_str(), own["exited"].as_i64(), own["signaled"].as_str()) {
        (Some("timed_out"), ..) => (true, format!("timed out after {timeout}")),
        (Some("stopped"), ..) => (true, "cancelled".into()),
        (_, Some(number), _) => (false, format!("exit status {number}")),
        (_, _, Some(name)) => (false, format!("died of SIG{name}")),
        _ => (false, format!("not run: treekill-run ended with {status}")),
    };
    let printed = printed.strip_suffix('\n').unwrap_or(printed);
    let output = if printed.is_empty() { "no output".into() } else { format!("output:\n{printed}") };
    let mut lines = vec![how, output];
    if is_stopped {
        lines.extend(list("running when it was stopped", listed(&report["tree_at_stop"]["processes"])));
    }
    lines.extend(list("left running, now ended", listed(&report["leftovers"])));
    lines.extend(list("could not be ended", listed(&report["survivors"])));
    lines.join("\n")
}

fn listed(processes: &Value) -> &[Value] {
    processes.as_array().map_or(&[], Vec::as_slice)
}

/// A line for each process, below the one that started it.
fn list(title: &str, processes: &[Value]) -> Vec<String> {
    let mut lines = vec![format!("{title}:")];
    for process in processes.iter().take(LISTED) {
        let argv: Vec<&str> = listed(&process["argv"]).iter().filter_map(Value::as_str).collect();
        let name = if argv.is_empty() { process["comm"].as_str().unwrap_or_default().into() } else { argv.join(" ") };
        let words: String = name.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(100).collect();
        let depth = process["depth"].as_u64().unwrap_or(0);
        lines.push(format!("{}{words}", "  ".repeat(1 + usize::try_from(depth).unwrap_or(0))));
    }
    if processes.len() > LISTED {
        lines.push(format!("  and {} more", processes.len() - LISTED));
    }
    if processes.is_empty() { vec![] } else { lines }
}

/// The beginning and the end of what was printed.
#[derive(Default)]
struct Output {
    head: Vec<u8>,
    tail: Vec<u8>,
    length: usize,
}

impl Output {
    fn add(&mut self, bytes: &[u8]) {
        let (first, rest) = bytes.split_at(bytes.len().min(KEPT - self.head.len()));
        self.head.extend(first);
        self.tail.extend(rest);
        self.tail.drain(..self.tail.len().saturating_sub(KEPT));
        self.length += bytes.len();
    }

    /// What is read ends in the middle of a character at times: only the whole is decoded.
    fn text(&self) -> String {
        if self.length == self.head.len() + self.tail.len() {
            return String::from_utf8_lossy(&[&*self.head, &*self.tail].concat()).into_owned();
        }
        // Without the last character here, of which there may be only half, and the half of one there.
        let is_first = |byte: &u8| byte & 0xc0 != 0x80;
        let head = &self.head[..self.head.iter().rposition(is_first).unwrap_or(0)];
        let tail = &self.tail[self.tail.iter().position(is_first).unwrap_or(self.tail.len())..];
        let left_out = self.length - head.len() - tail.len();
        let (head, tail) = (String::from_utf8_lossy(head), String::from_utf8_lossy(tail));
        format!("{head}\n[{left_out} bytes left out]\n{tail}")
    }
}

fn main() -> io::Result<()> {
    let [timeout, command] = env::args().skip(1).collect::<Vec<_>>().try_into().expect("harness TIMEOUT COMMAND");
    // Registered before the start, so that a signal is a byte here from now on and none is lost.
    let (mut interrupts, end) = UnixStream::pair()?;
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGINT, end)?;
    let call = match Call::start(&timeout, &command) {
        Ok(call) => call,
        Err(error) => {
            println!("not started: {error}");
            return Ok(());
        }
    };
    let running = call.pidfd()?;
    thread::spawn(move || {
        while interrupts.read_exact(&mut [0]).is_ok() {
            // The first asks the tree to end, the second kills it.
            let _ = pidfd_send_signal(&running, Signal::TERM);
        }
    });
    println!("{}", call.text()?);
    Ok(())
}
