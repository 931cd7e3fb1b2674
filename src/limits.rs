//! Limits on the whole tree, and sizes as systemd.resource-control(5) writes them. Pure.

/// What the options allow the tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// `--memory-max`, in bytes.
    pub memory: Option<u64>,
    /// `--pids-max`: processes and threads.
    pub pids: Option<u64>,
    /// `--cpu-max`: percent of one CPU.
    pub cpu: Option<u32>,
}

/// An amount of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// In bytes.
    Bytes(u64),
    /// In percent of the machine's memory.
    Percent(u32),
}

/// A controller of cgroups(7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    /// Memory.
    Memory,
    /// Processes and threads.
    Pids,
    /// CPU time.
    Cpu,
}

impl Controller {
    /// Its name in `cgroup.controllers`.
    pub fn name(self) -> &'static str {
        match self {
            Controller::Memory => "memory",
            Controller::Pids => "pids",
            Controller::Cpu => "cpu",
        }
    }
}

impl Limits {
    /// Whether there is none.
    pub fn is_none(&self) -> bool {
        *self == Limits::default()
    }

    /// The controllers that these limits need.
    pub fn controllers(&self) -> Vec<Controller> {
        [
            (self.memory.is_some(), Controller::Memory),
            (self.pids.is_some(), Controller::Pids),
            (self.cpu.is_some(), Controller::Cpu),
        ]
        .into_iter()
        .filter_map(|(is_needed, controller)| is_needed.then_some(controller))
        .collect()
    }
}

impl Size {
    /// In bytes, on a machine with this much memory.
    pub fn bytes(self, memory: &dyn Fn() -> u64) -> u64 {
        match self {
            Size::Bytes(bytes) => bytes,
            Size::Percent(percent) => {
                u64::try_from(u128::from(memory()) * u128::from(percent) / 100).unwrap_or(u64::MAX)
            }
        }
    }
}

/// The units of sizes, each 1024 times the one before.
const UNITS: &str = "BKMGTPE";

/// Reads `2G`, `512M`, `1.5G`, a number of bytes, or `50%` of the machine's memory.
///
/// # Errors
/// A sentence that names the value and what was expected.
pub fn parse_size(text: &str) -> Result<Size, String> {
    let size = match text.strip_suffix('%') {
        Some(number) if is_digits(number) => {
            number.parse().ok().filter(|percent| (1..=100).contains(percent)).map(Size::Percent)
        }
        Some(_) => None,
        None => parse_bytes(text).filter(|bytes| *bytes > 0).map(Size::Bytes),
    };
    size.ok_or_else(|| format!("invalid size '{text}': expected {}", expected_size(text)))
}

/// What would be right in place of a size that is none.
fn expected_size(text: &str) -> String {
    let share = text.strip_suffix('%').is_some_and(|number| !number.is_empty() && is_digits(number));
    // `512m`, `512MB` and `512MiB` are meant to be `512M`.
    let upper = text.to_ascii_uppercase();
    let plain = upper.strip_suffix("IB").or_else(|| upper.strip_suffix('B')).unwrap_or(&upper);
    let is_some = |text: &&str| parse_bytes(text).is_some_and(|bytes| bytes > 0);
    match [upper.as_str(), plain].into_iter().find(is_some) {
        _ if share => "a share of the machine's memory from 1% to 100%".into(),
        _ if parse_bytes(text) == Some(0) => "at least 1 byte".into(),
        Some(meant) => format!("a unit of one upper-case letter, as in {meant}"),
        None => {
            "bytes with an optional unit, such as 512M or 1.5G, or a share of the machine's memory, such as 50%".into()
        }
    }
}

/// Rust's numbers may begin with a plus, which a size may not.
fn is_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

fn parse_bytes(text: &str) -> Option<u64> {
    let (number, power) = match text.char_indices().last()? {
        (at, unit) if unit.is_ascii_alphabetic() => (&text[..at], UNITS.find(unit)?),
        _ => (text, 0),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || !is_digits(whole) || !is_digits(fraction) || number.ends_with('.') {
        return None;
    }
    let unit = 1_u64 << (10 * power);
    // Digits beyond the eighteenth are worth less than a byte of any unit.
    let fraction = &fraction[..fraction.len().min(18)];
    let scale = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let part = u128::from(unit) * fraction.parse::<u128>().unwrap_or(0) / scale;
    whole.parse::<u64>().ok()?.checked_mul(unit)?.checked_add(u64::try_from(part).ok()?)
}

/// `512M` for what is a whole number of a unit.
pub fn in_units(bytes: u64) -> String {
    let power = (bytes.trailing_zeros() / 10).min(6);
    let unit = &UNITS[power as usize..=power as usize];
    format!("{}{}", bytes >> (10 * power), if power == 0 { " bytes" } else { unit })
}

/// Reads a number of processes.
///
/// # Errors
/// A sentence that names the value and what was expected.
pub fn parse_pids(text: &str) -> Result<u64, String> {
    text.parse().ok().filter(|pids| is_digits(text) && *pids > 0).ok_or_else(|| {
        format!("invalid number of processes '{text}': expected how many processes and threads may live at once, at least 1, such as 100")
    })
}

/// Reads `50%`, `200%` or the same without the sign.
///
/// # Errors
/// A sentence that names the value and what was expected.
pub fn parse_cpu(text: &str) -> Result<u32, String> {
    let number = text.strip_suffix('%').unwrap_or(text);
    number
        .parse()
        .ok()
        .filter(|percent| is_digits(number) && *percent > 0)
        .ok_or_else(|| format!("invalid share '{text}': expected percent of one CPU, at least 1%, such as 50% or 200%"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_systemds() {
        for (text, size) in [
            ("1", Size::Bytes(1)),
            ("512M", Size::Bytes(512 << 20)),
            ("2G", Size::Bytes(2 << 30)),
            ("1.5K", Size::Bytes(1536)),
            ("0.5E", Size::Bytes(1 << 59)),
            ("100B", Size::Bytes(100)),
            ("50%", Size::Percent(50)),
        ] {
            assert_eq!(parse_size(text), Ok(size), "{text}");
        }
    }

    #[test]
    fn a_bad_value_is_refused_by_name() {
        for text in [
            "", "0", "0M", "G", "-1", "+1", "1.", ".5", "1g", "1 G", "1GB", "x", "0%", "101%", "1.5%", "+5%", "%",
            "99E", "16E", "ä",
        ] {
            let refusal = parse_size(text).expect_err(text);
            assert!(refusal.contains(&format!("'{text}'")), "{refusal}");
        }
        for text in ["", "0", "-1", "+1", "many", "1.5", "1%"] {
            assert!(parse_pids(text).expect_err(text).contains(&format!("'{text}'")));
        }
        for text in ["", "0", "-1", "+5%", "%", "1.5%", "5%%"] {
            assert!(parse_cpu(text).expect_err(text).contains(&format!("'{text}'")));
        }
    }

    #[test]
    fn a_refusal_says_the_bound_or_the_unit() {
        for (text, said) in [
            ("0", "at least 1 byte"),
            ("0%", "from 1% to 100%"),
            ("200%", "from 1% to 100%"),
            ("512m", "one upper-case letter, as in 512M"),
            ("512MB", "one upper-case letter, as in 512M"),
            ("1.5gib", "one upper-case letter, as in 1.5G"),
            ("x", "such as 512M"),
            ("MB", "such as 512M"),
        ] {
            let refusal = parse_size(text).expect_err(text);
            assert!(refusal.contains(said), "{refusal}");
        }
        assert!(parse_pids("0").expect_err("refused").contains("at least 1"));
        assert!(parse_cpu("0").expect_err("refused").contains("at least 1%"));
    }

    #[test]
    fn a_share_is_of_the_machines_memory() {
        assert_eq!(Size::Percent(50).bytes(&|| 1000), 500);
        assert_eq!(Size::Percent(100).bytes(&|| u64::MAX), u64::MAX);
        assert_eq!(Size::Bytes(7).bytes(&|| 1000), 7);
        assert_eq!((parse_cpu("150"), parse_cpu("150%")), (Ok(150), Ok(150)));
    }

    #[test]
    fn a_size_is_said_as_it_is_typed() {
        for text in ["512M", "2G", "3K", "7E"] {
            let Ok(Size::Bytes(bytes)) = parse_size(text) else { panic!("{text}") };
            assert_eq!(in_units(bytes), text);
        }
        assert_eq!(in_units(1000), "1000 bytes");
    }
}
