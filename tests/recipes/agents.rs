//! As an agent's harness runs a tool, and as a client runs an MCP server.

use rustix::process::Signal;
use serde_json::Value;

use crate::common::{Run, Running, needs};
use crate::{LEAVES, Place, ends, recipe};

/// The words that a harness makes of the configuration, with these instead of the limit.
fn tool(limit: &str, script: &str) -> Vec<String> {
    let config: Value = serde_json::from_str(&recipe("agent", "json")).expect("the recipe is JSON");
    let tool = &config["tools"]["shell"];
    let words = std::iter::once(&tool["command"]).chain(tool["args"].as_array().expect("a list"));
    let words = words.map(|word| word.as_str().expect("a word").replace("10m", limit));
    words.chain([script.to_owned()]).collect()
}

fn stand_in(place: &Place, limit: &str, script: &str) -> Vec<String> {
    place.file("shell", &recipe("shell", "bash").replace("10m", limit));
    ["./shell", "-c", script].map(str::to_owned).into()
}

#[test]
fn what_a_tool_call_leaves_is_ended_and_named_and_its_status_stays() {
    let place = Place::new("");
    for (status, shown) in [(0, ", now ended: "), (5, "")] {
        let script = format!("\"$FX\" {LEAVES} exit 0; echo done; exit {status}");
        for words in [tool("10m", &script), stand_in(&place, "10m", &script)] {
            let ended = ends(place.run(words).spawn());
            ended.exited(status).printed("done\n").complained_of(shown).complained_of("fixture ");
        }
    }
}

#[test]
fn a_tool_call_that_takes_too_long_is_ended_with_all_it_started() {
    let place = Place::new("");
    let script = format!("\"$FX\" {LEAVES} hang");
    for words in [tool("300ms", &script), stand_in(&place, "300ms", &script)] {
        ends(place.run(words).spawn()).exited(124);
    }
}

#[test]
fn a_tool_call_ends_with_its_harness() {
    let place = Place::new("");
    let script = format!("\"$FX\" {LEAVES} say call hang");
    for words in [tool("10m", &script), stand_in(&place, "10m", &script)] {
        let harness = Run::control([] as [&str; 0]).called_by("fork [ exec", "] say harness hang").command(words);
        let mut running = place.finds_programs(harness).spawn();
        for word in ["session", "daemon", "call", "harness"] {
            running.expect(word);
        }
        running.signal(Signal::KILL);
        running.wait();
        running.all_die();
        running.leaves_no_trace();
    }
}

/// A client of the recipe's server, whose grace is this, and that many seconds the client's patience.
fn client(grace: &str, patience: &str) -> (Place, Run) {
    let place = Place::new("");
    place.file("config.json", &recipe("mcp", "json").replace("\"1s\"", &format!("\"{grace}\"")));
    place.file("server.py", include_str!("server.py"));
    place.file("client.py", include_str!("client.py"));
    let run = place.run(["python3", "client.py", "config.json", patience]).gated();
    (place, run)
}

fn greeted(running: &mut Running) {
    for word in ["server", "daemon", "listed"] {
        running.expect(word);
    }
}

#[test]
fn an_mcp_server_dies_with_its_client() {
    needs::require!("python3");
    // With the first, the end of stdin ends a server that would do so by itself; the other has to be told.
    for server in ["", "STUBBORN"] {
        let (_place, run) = client("300ms", "30");
        let run = if server.is_empty() { run } else { run.env(server, "1") };
        let mut running = run.spawn();
        greeted(&mut running);
        running.signal(Signal::KILL);
        running.wait();
        running.all_die();
        running.leaves_no_trace();
    }
}

#[test]
fn an_mcp_server_that_its_client_closes_succeeds_and_leaves_nothing() {
    needs::require!("python3");
    let (_place, run) = client("300ms", "30");
    let mut running = run.spawn();
    greeted(&mut running);
    running.open_gate();
    let ended = ends(running);
    assert_eq!(ended.value("closed"), "0", "{ended}");
}

/// Neither the end of stdin nor SIGTERM does; after its grace treekill-run ends it, or the client's SIGKILL, which hits
/// treekill-run, comes first.
#[test]
fn an_mcp_server_that_its_client_cannot_close_leaves_nothing() {
    needs::require!("python3");
    for (grace, patience, status) in [("300ms", "30", "137"), ("60s", "0.3", "-9")] {
        let (_place, run) = client(grace, patience);
        let mut running = run.env("STUBBORN", "1").spawn();
        greeted(&mut running);
        running.open_gate();
        let ended = running.wait();
        assert_eq!(ended.value("closed"), status, "{ended}");
        running.all_die();
        running.leaves_no_trace();
    }
}
