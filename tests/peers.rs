//! What timeout(1), tini(1), dumb-init(1), bwrap(1) and unshare(1) do where treekill-run would be taken, and that the table
//! in README.md and in the manual says so. systemd-run(1) has its place among the tests of systemd.

mod common;

#[path = "terminal/pty.rs"]
#[expect(dead_code, reason = "the tests of terminals need more of it")]
mod pty;
#[path = "peers/table.rs"]
mod table;
#[path = "peers/trial.rs"]
mod trial;

use std::path::Path;

use common::needs::{self, require};
use table::{Case, Peer, does};

#[test]
fn treekill_run_does_what_the_table_says() {
    require!("pidns", "setpriv");
    trial::all(Peer::Ours);
}

#[test]
fn timeout_does_what_the_table_says() {
    require!("pidns", "setpriv", "timeout");
    trial::all(Peer::Timeout);
}

#[test]
fn tini_does_what_the_table_says() {
    require!("pidns", "setpriv", "tini");
    trial::all(Peer::Tini);
}

#[test]
fn dumb_init_does_what_the_table_says() {
    require!("pidns", "setpriv", "dumb-init");
    trial::all(Peer::DumbInit);
}

#[test]
fn bwrap_does_what_the_table_says() {
    require!("pidns", "setpriv", "bwrap");
    trial::all(Peer::Bwrap);
}

#[test]
fn unshare_does_what_the_table_says() {
    require!("pidns", "setpriv", "unshare");
    trial::all(Peer::Unshare);
}

#[test]
fn systemd_run_does_what_the_table_says_where_no_systemd_is() {
    require!("pidns", "setpriv", "systemd-run");
    if Path::new("/run/systemd/system").exists() {
        needs::skip("no systemd", "systemd runs this machine");
        return;
    }
    trial::without_systemd(Peer::Scope);
    trial::without_systemd(Peer::Service);
}

/// The picture at the head of README.md, with a column for timeout(1) and one for us.
#[test]
fn the_picture_in_the_readme_shows_what_the_table_says() {
    let readme = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md"));
    let readme = readme.expect("the checkout has it");
    for (who, case) in [("ignores SIGTERM", Case::Group), ("setsid(2)", Case::Session), ("forked twice", Case::Daemon)]
    {
        let line = readme.lines().find(|line| line.starts_with(['├', '└']) && line.contains(who));
        let line = line.unwrap_or_else(|| panic!("the picture lacks what {who}"));
        let columns: Vec<&str> = line.split("  ").map(str::trim).filter(|column| !column.is_empty()).collect();
        let fate = |peer: Peer| if does(peer, case) { "ended" } else { "goes on" };
        assert_eq!(columns[1..], [fate(Peer::Timeout), fate(Peer::Ours)], "{line}");
    }
}
