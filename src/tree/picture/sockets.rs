//! Listening sockets: which of the sockets that a process has open wait for others to connect. Read from the tables of
//! its network namespace, proc_pid_net(5); the sockets themselves are not touched.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use crate::sys;

/// The listening sockets of each network namespace that was asked for.
#[derive(Default)]
pub(super) struct Listening {
    namespaces: BTreeMap<String, BTreeMap<u64, String>>,
}

impl Listening {
    /// The addresses of those of these sockets that listen. After this moment no table is read but the first.
    pub(super) fn of(&mut self, pid: i32, inodes: &[u64], until: Duration) -> Vec<String> {
        let Ok(namespace) = fs::read_link(format!("/proc/{pid}/ns/net")) else { return vec![] };
        let namespace = namespace.to_string_lossy().into_owned();
        if !self.namespaces.contains_key(&namespace) {
            if sys::now() >= until && !self.namespaces.is_empty() {
                return vec![];
            }
            self.namespaces.insert(namespace.clone(), read(pid, until.max(sys::now() + LEAST)));
        }
        let table = &self.namespaces[&namespace];
        let mut addresses: Vec<String> = inodes.iter().filter_map(|inode| table.get(inode).cloned()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }
}

/// What the first table gets in any case: on a slow machine a small one takes longer than all that is left.
const LEAST: Duration = Duration::from_millis(3);

/// The listening sockets of a process's network namespace, by inode, as many as can be read until this moment.
fn read(pid: i32, until: Duration) -> BTreeMap<u64, String> {
    let mut table = BTreeMap::new();
    for (name, parse) in [("tcp", tcp as Parser), ("tcp6", tcp), ("unix", unix)] {
        let Ok(file) = File::open(format!("/proc/{pid}/net/{name}")) else { continue };
        for line in BufReader::new(file).split(b'\n').skip(1).map_while(Result::ok) {
            // A machine may have a million of them.
            if sys::now() >= until {
                return table;
            }
            match parse(&String::from_utf8_lossy(&line)) {
                Line::Listens(inode, address) => drop(table.insert(inode, address)),
                Line::Other => {}
                Line::Last => break,
            }
        }
    }
    table
}

type Parser = fn(&str) -> Line;

/// A line of a table.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::tree) enum Line {
    Listens(u64, String),
    /// It does not listen.
    Other,
    /// It does not listen, and no line behind it does.
    Last,
}

/// The kernel lists those that listen first, and there may be a million others.
pub(in crate::tree) fn tcp(line: &str) -> Line {
    const LISTEN: &str = "0A";
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let (Some(address), Some(state), Some(inode)) = (fields.get(1), fields.get(3), fields.get(9)) else {
        return Line::Other;
    };
    if *state != LISTEN {
        return Line::Last;
    }
    match (parse_address(address), inode.parse()) {
        (Some(address), Ok(inode)) => Line::Listens(inode, format!("tcp {address}")),
        _ => Line::Other,
    }
}

/// `0100007F:1F90`: the address as words of the host's byte order, and the port.
fn parse_address(text: &str) -> Option<String> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |index: usize| u32::from_str_radix(address.get(index * 8..index * 8 + 8)?, 16).ok();
    match address.len() {
        8 => Some(format!("{}:{port}", Ipv4Addr::from(word(0)?.to_ne_bytes()))),
        32 => {
            let mut bytes = [0; 16];
            for (index, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(index)?.to_ne_bytes());
            }
            Some(format!("[{}]:{port}", Ipv6Addr::from(bytes)))
        }
        _ => None,
    }
}

/// `Num RefCount Protocol Flags Type St Inode Path`; an abstract name begins with `@`, and one may have none.
pub(in crate::tree) fn unix(line: &str) -> Line {
    /// The kernel's `__SO_ACCEPTCON`.
    const LISTENS: u32 = 1 << 16;
    let mut fields = line.splitn(8, ' ').filter(|field| !field.is_empty());
    let flags = fields.by_ref().nth(3).and_then(|flags| u32::from_str_radix(flags, 16).ok());
    if flags.is_none_or(|flags| flags & LISTENS == 0) {
        return Line::Other;
    }
    // The inode is padded with blanks.
    let rest = line.splitn(7, ' ').nth(6).unwrap_or_default().trim_start();
    let (inode, path) = rest.split_once(' ').unwrap_or((rest, ""));
    let Ok(inode) = inode.parse() else { return Line::Other };
    let mut address = String::from("unix");
    let _ = write!(address, " {}", if path.is_empty() { "(unnamed)" } else { path });
    Line::Listens(inode, address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_endian = "little")]
    #[test]
    fn tcp_addresses_are_read_as_people_write_them() {
        let line = |address, state| {
            format!("   0: {address} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  0  0 4711 1 0 100 0")
        };
        let listens = |address: &str| Line::Listens(4711, format!("tcp {address}"));
        assert_eq!(tcp(&line("0100007F:1F90", "0A")), listens("127.0.0.1:8080"));
        assert_eq!(tcp(&line("00000000000000000000000001000000:0050", "0A")), listens("[::1]:80"));
        assert_eq!(tcp(&line("0100007F:1F90", "01")), Line::Last);
    }

    #[test]
    fn unix_sockets_that_listen_are_told_from_the_others() {
        let line = |flags, rest| format!("0000000000000000: 00000002 00000000 {flags} 0001 01 {rest}");
        let listens = |address: &str| Line::Listens(4711, address.into());
        assert_eq!(unix(&line("00010000", " 4711 /run/a b.sock")), listens("unix /run/a b.sock"));
        assert_eq!(unix(&line("00010000", "4711 @hidden")), listens("unix @hidden"));
        assert_eq!(unix(&line("00010000", "4711")), listens("unix (unnamed)"));
        assert_eq!(unix(&line("00000000", "4711 /run/x")), Line::Other);
    }

    #[test]
    fn nonsense_is_no_socket() {
        for text in ["", "x", "0: zz 0 0A", "a b c d e f g h i j k", "  ", "0: 0100007F:1F90 0 0A 0 0 0 0 0 x"] {
            assert!(!matches!(tcp(text), Line::Listens(..)), "{text}");
            assert!(!matches!(unix(text), Line::Listens(..)), "{text}");
        }
    }
}
