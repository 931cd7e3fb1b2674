//! What is drawn of small trees, and what holds of every drawing.

use proptest::prelude::*;

use super::*;
use crate::tree::Net;

fn canvas(width: usize, lines: usize) -> Canvas {
    Canvas { width, has_colour: false, lines, command: Some(1) }
}

fn process(depth: usize, pid: i32, words: &[&str]) -> Seen {
    Seen {
        depth,
        argv: words.iter().map(|&word| word.into()).collect(),
        comm: words.first().copied().unwrap_or("x").into(),
        state: "sleeping",
        age_ms: Some(1234),
        ..Seen::hidden(pid, Net::Boundary)
    }
}

fn picture(processes: Vec<Seen>) -> Picture {
    Picture { processes, left_out: 0 }
}

#[test]
fn a_tree_is_drawn_aligned() {
    let mut server = process(1, 4, &["/usr/bin/python3", "-m", "http.server"]);
    server.listens = vec!["tcp 0.0.0.0:8000".into(), "unix /run/x.sock".into()];
    server.system_call = Some("poll");
    let shell = Seen { system_call: Some("wait4"), ..process(0, 1, &["sh", "-c", "a b"]) };
    let reader = Seen {
        system_call: Some("read"),
        waits_on: Some("pipe:[7]".into()),
        age_ms: Some(65_000),
        ..process(2, 3, &["cat"])
    };
    let daemon = Seen {
        state: "running",
        cpu_ms: Some(1500),
        memory: Some(200 << 20),
        holds: vec!["stdout", "stderr"],
        ..process(0, 5, &["d"])
    };
    let drawn = draw(&picture(vec![shell, process(1, 2, &["make"]), reader, server, daemon]), &canvas(100, 10));
    let expected = "  sh -c 'a b' (1)                sleeping 1.2s  waits for a child
  ├─ make (2)                    sleeping 1.2s
  │  └─ cat (3)                  sleeping  65s  reads a pipe
  └─ python3 -m http.server (4)  sleeping 1.2s  listens on :8000 and /run/x.sock
  d (5)                          running  1.2s  holds stdout and stderr, 1.5s CPU, 200M";
    assert_eq!(drawn.join("\n"), expected);
}

#[test]
fn what_there_is_no_room_for_is_counted() {
    let processes: Vec<Seen> = (1..=30).map(|pid| process(0, pid, &["x"])).collect();
    let drawn = draw(&Picture { processes: processes.clone(), left_out: 70 }, &canvas(100, 10));
    assert_eq!(drawn.len(), 10);
    assert_eq!(drawn[9], "  and 91 more");
    assert_eq!(draw(&picture(processes[..10].to_vec()), &canvas(100, 10)).len(), 10);
    assert_eq!(draw(&Picture { processes: vec![], left_out: 3 }, &canvas(100, 10)), ["  3 more"]);
}

#[test]
fn colours_change_nothing_but_colours() {
    let tree = picture(vec![process(0, 1, &["sh", "-c", "x"]), Seen { state: "zombie", ..process(1, 2, &["a"]) }]);
    let plain = draw(&tree, &canvas(80, 10));
    let coloured = draw(&tree, &Canvas { has_colour: true, ..canvas(80, 10) });
    assert_ne!(plain, coloured);
    assert_eq!(coloured.iter().map(|line| without_colours(line)).collect::<Vec<_>>(), plain);
}

#[test]
fn one_process_is_a_part_of_a_sentence() {
    let reader = Seen {
        system_call: Some("read"),
        waits_on: Some("/dev/pts/3".into()),
        terminal: Some("/dev/pts/3".into()),
        ..process(0, 1, &["cat", "a\nb"])
    };
    assert_eq!(in_one_line(&reader), "cat 'a\\nb' (1) sleeping 1.2s, reads /dev/pts/3");
    let editor = Seen { system_call: Some("pselect6"), waits_on: None, ..reader.clone() };
    assert_eq!(in_one_line(&editor), "cat 'a\\nb' (1) sleeping 1.2s, waits for events, stdin is /dev/pts/3");
    assert_eq!(in_one_line(&Seen::hidden(7, Net::Boundary)), "? (7) unknown");
}

fn without_colours(line: &str) -> String {
    let mut pieces = line.split('\x1b');
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |text, piece| text + piece.split_once('m').map_or(piece, |(_, rest)| rest))
}

prop_compose! {
    /// Any names, and depths such as a prefix of a real forest has.
    fn any_seen()(
        deeper in any::<bool>(), up in 0_usize..40, pid in 1..i32::MAX,
        argv in prop::collection::vec(".{0,40}", 0..4), comm in ".{0,15}", state in 0_usize..4,
        age_ms in prop::option::of(any::<u64>()), cpu_ms in prop::option::of(any::<u64>()),
        memory in prop::option::of(any::<u64>()), waits_on in prop::option::of(".{0,30}"),
        listens in prop::collection::vec(".{0,30}", 0..3), call in 0_usize..4,
    ) -> (bool, usize, Seen) {
        let system_call = [None, Some("wait4"), Some("read"), Some("connect")][call];
        let state = ["running", "sleeping", "zombie", "uninterruptible"][state];
        let hidden = Seen::hidden(pid, Net::Ancestry);
        (deeper, up, Seen { argv, comm, state, age_ms, cpu_ms, memory, waits_on, listens, system_call, ..hidden })
    }
}

proptest! {
    #[test]
    fn no_drawing_is_wider_or_longer_than_the_canvas_or_has_a_control_character(
        any in prop::collection::vec(any_seen(), 0..40), left_out in 0_usize..9, width in 0_usize..150,
        lines in 1_usize..20, has_colour in any::<bool>(),
    ) {
        let mut depth = 0_usize;
        let mut processes = vec![];
        for (deeper, up, seen) in any {
            depth = if processes.is_empty() { 0 } else if deeper { depth + 1 } else { depth.saturating_sub(up) };
            processes.push(Seen { depth, ..seen });
        }
        let count = processes.len() + left_out;
        let drawn = draw(&Picture { processes, left_out }, &Canvas { has_colour, ..canvas(width, lines) });
        prop_assert!(drawn.len() <= lines && drawn.is_empty() == (count == 0));
        for line in drawn {
            let line = without_colours(&line);
            prop_assert!(columns(&line) <= width, "{line:?}");
            prop_assert!(!line.chars().any(char::is_control), "{line:?}");
        }
    }
}
