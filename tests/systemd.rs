//! The scope that systemd makes for a run. Each test runs as whoever runs the tests: in a login session, where no other
//! net with a cgroup can be had, in a delegated cgroup, or as root.

mod common;

#[path = "systemd/asking.rs"]
mod asking;
#[path = "systemd/holding.rs"]
mod holding;
#[path = "terminal/pty.rs"]
#[expect(dead_code, reason = "the tests of terminals need more of it")]
mod pty;
#[path = "peers/table.rs"]
mod table;
#[path = "peers/trial.rs"]
mod trial;
#[path = "systemd/units.rs"]
mod units;

use std::time::Duration;

use common::needs::{is_root, require};
use common::{Backend, Nest, Run, cgroups};

const LONG: Duration = Duration::from_secs(20);

fn run(options: &str) -> Run {
    Run::new(Backend::Systemd).options(options)
}

fn cgroup_of(process: &str) -> String {
    cgroups::of_process(process).expect("there is a cgroup2 mount").to_string_lossy().into_owned()
}

fn is_session() -> bool {
    !is_root() && Nest::new().is_none()
}

#[test]
fn systemd_run_with_a_scope_does_what_the_table_of_peers_says() {
    require!("systemd", "systemd-run");
    trial::beside_systemd(table::Peer::Scope);
}

#[test]
fn systemd_run_with_a_service_does_what_the_table_of_peers_says() {
    require!("systemd", "systemd-run");
    trial::beside_systemd(table::Peer::Service);
}
