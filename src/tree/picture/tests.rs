//! Where each process stands in a picture, what is seen of it, and what there is no time for.

use rustix::process::getpid;

use super::*;

/// A forest of processes that nothing is known of but who is whose child.
fn forest(pairs: &[(i32, i32)]) -> Vec<Process> {
    let stat =
        |parent| procfs::parse_stat(format!("1 (x) S {parent} 1 1 0 -1 0 1 2 3 4 5 6 7 8 20 0 1 0 9").as_bytes());
    let process = |&(pid, parent)| Process {
        pid: Pid::from_raw(pid).expect("a pid"),
        stat: Some(stat(parent).expect("a status line")),
        net: Net::Boundary,
    };
    pairs.iter().map(process).collect()
}

/// Pids with their depths, as a picture in which these could be looked at has them.
fn drawn(pairs: &[(i32, i32)], is_seen: impl Fn(i32) -> bool) -> Vec<(i32, usize)> {
    let family = Family::of(&forest(pairs));
    let pids = pairs.iter().map(|(pid, _)| *pid).enumerate().filter(|(_, pid)| is_seen(*pid));
    let seen = pids.map(|(index, pid)| (index, Seen::hidden(pid, Net::Boundary))).collect();
    family.in_order(seen).iter().map(|seen| (seen.pid, seen.depth)).collect()
}

#[test]
fn children_stand_behind_their_parents() {
    let pairs = [(2, 1), (3, 1), (4, 2), (5, 4), (6, 2), (7, 3)];
    assert_eq!(drawn(&pairs, |_| true), [(2, 0), (4, 1), (5, 2), (6, 1), (3, 0), (7, 1)]);
    assert_eq!(Family::of(&forest(&pairs)).top_down(), [0, 1, 2, 4, 5, 3]);
}

#[test]
fn who_lost_a_parent_since_takes_its_place() {
    assert_eq!(drawn(&[(2, 1), (3, 2), (4, 3), (5, 2)], |pid| pid != 2), [(3, 0), (4, 1), (5, 0)]);
}

/// Numbers that are reused while they are read can make two each other's parents.
#[test]
fn a_circle_ends() {
    let pairs = [(2, 3), (3, 2), (4, 4), (5, 1)];
    assert_eq!(drawn(&pairs, |_| true), [(5, 0), (2, 0), (3, 1), (4, 0)]);
    assert_eq!(Family::of(&forest(&pairs)).top_down(), [3, 0, 1, 2]);
}

#[test]
fn a_line_as_deep_as_there_are_pids_is_drawn() {
    let pairs: Vec<(i32, i32)> = (2..40_000).map(|pid| (pid, pid - 1)).collect();
    assert_eq!(drawn(&pairs, |_| true).last(), Some(&(39_999, 39_997)));
}

#[test]
fn we_are_seen_as_we_are_and_a_stranger_with_our_number_is_not() {
    let stat = procfs::stat(getpid()).expect("we live");
    let mut process = Process { pid: getpid(), stat: Some(stat), net: Net::Ancestry };
    let picture = Picture::take(&[process.clone()], Duration::ZERO);
    let [seen] = picture.processes.as_slice() else { panic!("{picture:?}") };
    let words: Vec<String> = std::env::args().collect();
    assert_eq!((seen.pid, &seen.argv), (getpid().as_raw_pid(), &words));
    assert_eq!(seen.cwd.as_deref(), std::env::current_dir().expect("it is there").to_str());
    assert!(seen.memory > Some(100 << 10) && seen.threads >= Some(1), "{seen:?}");
    process.stat.as_mut().expect("given above").start += 1;
    let picture = Picture::take(&[process], Duration::ZERO);
    assert!(picture.processes.is_empty() && picture.left_out == 0, "{picture:?}");
}

#[test]
fn what_there_is_no_time_for_is_counted() {
    let own = procfs::stat(getpid()).expect("we live");
    let list = vec![Process { pid: getpid(), stat: Some(own), net: Net::Ancestry }; 30];
    let picture = Picture::take(&list, Duration::ZERO);
    assert_eq!((picture.processes.len(), picture.left_out), (AT_LEAST, 30 - AT_LEAST));
}
