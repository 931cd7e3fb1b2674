//! Properties of what is read from cgroups and about them, for random tests and the fuzzer.

use std::collections::BTreeMap;

use super::{counters, directory, limited, locate};
use crate::properties::Draw;

/// Keys and their values: the first line of a key counts, and no key is taken for another that begins like it.
pub(crate) fn files(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let _ =
        (counters::cpu(&text), counters::io(&text), directory::event_in(&text, "populated"), locate::v2_path(&text));
    assert!(directory::pids_in(&text).iter().all(|pid| pid.as_raw_pid() > 0));

    const KEYS: [&str; 8] =
        ["populated", "frozen", "oom", "oom_kill", "max", "user_usec", "system_usec", "throttled_usec"];
    let mut draw = Draw(bytes);
    let mut lines: BTreeMap<&str, u64> = BTreeMap::new();
    let mut file = String::new();
    for _ in 0..draw.byte() % 9 {
        let (key, value) = (KEYS[usize::from(draw.byte() % 8)], draw.number());
        if !lines.contains_key(key) {
            lines.insert(key, value);
            file += &format!("{key} {value}\n");
        }
    }
    for key in KEYS {
        assert_eq!(limited::count_in(&file, &format!("{key} ")), lines.get(key).copied(), "{key} in {file:?}");
    }
    assert_eq!(directory::event_in(&file, "populated"), lines.get("populated").map(|value| *value == 1), "{file:?}");
    let cpu = lines.get("user_usec").copied().zip(lines.get("system_usec").copied());
    assert_eq!(counters::cpu(&file), cpu, "{file:?}");

    let devices: Vec<(u64, u64)> = (0..draw.byte() % 4).map(|_| (draw.number(), draw.number())).collect();
    let line = |(index, (read, written)): (usize, &(u64, u64))| {
        format!("8:{index} rbytes={read} wbytes={written} rios=1 wios=2 dbytes=9 dios=0\n")
    };
    let file: String = devices.iter().enumerate().map(line).collect();
    let sum = devices
        .iter()
        .fold((0, 0), |sum: (u64, u64), device| (sum.0.saturating_add(device.0), sum.1.saturating_add(device.1)));
    assert_eq!(counters::io(&file), sum, "{file:?}");
}

/// Where a cgroup is mounted: what the kernel escapes is read as it was.
pub(crate) fn mounts(bytes: &[u8]) {
    let _ = locate::find_in(bytes, "/a");
    let text = String::from_utf8_lossy(bytes);
    let escaped: String = text
        .chars()
        .map(|c| if matches!(c, ' ' | '\t' | '\n' | '\\') { format!("\\{:03o}", u32::from(c)) } else { c.to_string() })
        .collect();
    assert_eq!(locate::unescape(escaped.as_bytes()), text);
    // The root is there on every machine, whatever stands beside it.
    let name = escaped.split('/').next().unwrap_or_default();
    let file =
        format!("1 0 0:1 / /{name} rw - tmpfs tmpfs rw\n41 31 0:38 / / rw shared:9 master:1 - cgroup2 cgroup2 rw\n");
    assert_eq!(locate::find_in(file.as_bytes(), "/").as_deref(), Some("/"), "{file:?}");
    let path = text.split('\n').next().unwrap_or_default();
    assert_eq!(locate::v2_path(&format!("4:memory:/x\n0::/{path}\n")), Some(&*format!("/{path}")));
}
