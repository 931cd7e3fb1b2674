//! Properties of what is read from /proc, for random tests and the fuzzer.

use std::io::{self, Read};
use std::net::Ipv4Addr;

use rustix::process::Pid;

use super::picture::sockets::{self, Line};
use super::{calls, procfs};
use crate::properties::Draw;

/// A status line is read as it was written, whatever the name in it is.
pub(crate) fn stat(bytes: &[u8]) {
    let _ = procfs::parse_stat(bytes);
    let mut draw = Draw(bytes);
    let (pid, parent, group) = (draw.pid(), draw.pid() - 1, draw.pid());
    let state = char::from(b"RSDZTtXI"[usize::from(draw.byte() % 8)]);
    let numbers: Vec<u64> = (0..25).map(|_| draw.number()).collect();
    let threads = u32::try_from(numbers[10] % 10_000).expect("small");
    let comm = draw.bytes(15);
    let mut line = format!("{pid} (").into_bytes();
    line.extend_from_slice(comm);
    line.extend(format!(") {state} {parent} {group} 6 0 -1 4194304").bytes());
    for (index, number) in numbers.iter().enumerate() {
        line.extend(if index == 10 { format!(" {threads}") } else { format!(" {number}") }.bytes());
    }
    line.push(b'\n');
    let read = procfs::parse_stat(&line).expect("it is as the kernel writes it");
    assert_eq!(read.comm, String::from_utf8_lossy(comm));
    assert_eq!((read.state, read.parent, read.group), (state, Pid::from_raw(parent), group));
    // Fields 11, 13, 14, 15, 22, 24, 32, 33 and 34; the first of these numbers is field 10.
    assert_eq!(read.child_faults, numbers[1].saturating_add(numbers[3]));
    assert_eq!(read.cpu, numbers[4].saturating_add(numbers[5]));
    assert_eq!((read.threads, read.start, read.resident), (threads, numbers[12], numbers[14]));
    assert_eq!((read.blocked.0, read.ignored.0, read.caught.0), (numbers[22], numbers[23], numbers[24]));
}

/// Reads a piece as long as the next of these bytes says.
struct Pieces<'a>(&'a [u8], &'a [u8]);

impl Read for Pieces<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = self.1.first().map_or(into.len(), |byte| usize::from(*byte % 7) + 1);
        self.1 = self.1.get(1..).unwrap_or_default();
        self.0.read(&mut into[..most])
    }
}

/// The smaller files: what is no pid is none, and what the kernel writes is read as such.
pub(crate) fn files(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut seen = vec![];
    procfs::read_numbers(Pieces(bytes, bytes), &mut |pid| seen.push(pid.as_raw_pid())).expect("readable");
    let written =
        bytes.split(|byte| !byte.is_ascii_digit()).filter_map(|number| std::str::from_utf8(number).ok()?.parse().ok());
    let written: Vec<i32> = written.filter(|pid| *pid > 0).collect();
    assert_eq!(seen, written, "{text:?}");

    let words = procfs::split_arguments(bytes);
    let joined = if words.is_empty() { String::new() } else { words.join("\0") };
    let whole = String::from_utf8_lossy(bytes.strip_suffix(b"\0").unwrap_or(bytes));
    assert_eq!(joined, if whole.ends_with("\0\0") { whole.trim_end_matches('\0') } else { &whole });

    let is_known = calls::parse(&text).is_some();
    assert!(calls::maps_memory(&text) || is_known, "what is not understood is to be afraid of: {text:?}");
    let mut draw = Draw(bytes);
    let (number, argument) = (draw.number() % 500, draw.number());
    let call = calls::parse(&format!("{number} {argument:#x} 0x1 0x2 0x3 0x4 0x5 0x7ffd12345678 0x7f0012345678\n"));
    let call = call.expect("it is as the kernel writes it");
    let lower = i32::try_from(argument & 0xffff_ffff).ok();
    assert!(call.descriptor.is_none() || call.descriptor == lower, "{call:?}");

    let tracer = draw.pid() - 1;
    let status = format!("Name:\t{}\nTracerPid:\t{tracer}\nUid:\t0\n", text.replace('\n', "\\n"));
    assert_eq!(procfs::tracer_in(&status), Pid::from_raw(tracer));
    let _ = (procfs::tracer_in(&text), procfs::io_in(&text), procfs::hides_processes(&text));
    let hiding = ["", ",hidepid=0", ",hidepid=off", ",hidepid=1", ",hidepid=invisible", ",gid=5,hidepid=2"];
    let mut mounts = String::new();
    let mut last = 0;
    for _ in 0..draw.byte() % 4 + 1 {
        last = usize::from(draw.byte()) % hiding.len();
        mounts += &format!(
            "22 1 0:20 / /proc rw,nosuid shared:12 - proc proc rw{}\n23 1 0:21 / /tmp rw - tmpfs x rw\n",
            hiding[last]
        );
    }
    assert_eq!(procfs::hides_processes(&mounts), last >= 3, "{mounts}");
}

/// Tables of sockets: one that listens is read as it was written, and nonsense is no socket.
pub(crate) fn sockets(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for line in [sockets::tcp(&text), sockets::unix(&text)] {
        assert!(!matches!(line, Line::Listens(_, address) if address.contains('\n') && !text.contains('\n')));
    }
    let mut draw = Draw(bytes);
    let address = [draw.byte(), draw.byte(), draw.byte(), draw.byte()];
    let port = u16::from_be_bytes([draw.byte(), draw.byte()]);
    let inode = draw.number();
    let word = u32::from_ne_bytes(address);
    let line = format!(
        "   0: {word:08X}:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0  0 {inode} 1 0"
    );
    let listens = Line::Listens(inode, format!("tcp {}:{port}", Ipv4Addr::from(address)));
    assert_eq!(sockets::tcp(&line), listens);
    let path = String::from_utf8_lossy(draw.bytes(108)).replace(['\n', '\0'], "@");
    let line = format!("0000000000000000: 00000002 00000000 00010000 0001 01 {inode:5} {path}");
    let name = if path.is_empty() { "(unnamed)" } else { &path };
    assert_eq!(sockets::unix(&line), Line::Listens(inode, format!("unix {name}")));
}
