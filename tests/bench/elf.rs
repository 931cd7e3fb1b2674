//! As much of elf(5) as a symbol's address takes, for the 64-bit files of this machine.

fn number(image: &[u8], at: u64, length: usize) -> Option<u64> {
    let at = usize::try_from(at).ok()?;
    let mut bytes = [0; 8];
    bytes[..length].copy_from_slice(image.get(at..at + length)?);
    Some(u64::from_le_bytes(bytes))
}

pub(crate) fn entry(image: &[u8]) -> Option<u64> {
    image.starts_with(b"\x7fELF").then(|| number(image, 24, 8))?
}

/// The value of a symbol in the full table, which `strip` removes.
pub(crate) fn symbol(image: &[u8], name: &str) -> Option<u64> {
    symbols(image)?.into_iter().find(|(_, known)| known == name).map(|(value, _)| value)
}

/// All defined symbols, by their values.
pub(crate) fn symbols(image: &[u8]) -> Option<Vec<(u64, String)>> {
    const SYMTAB: u64 = 2;
    let (sections, size, count) = (number(image, 40, 8)?, number(image, 58, 2)?, number(image, 60, 2)?);
    let section = |index: u64| sections + index * size;
    let table = (0..count).map(section).find(|at| number(image, at + 4, 4) == Some(SYMTAB))?;
    let names = section(number(image, table + 40, 4)?);
    let (names, first) = (number(image, names + 24, 8)?, number(image, table + 24, 8)?);
    let mut found = vec![];
    for at in (0..number(image, table + 32, 8)? / 24).map(|index| first + index * 24) {
        let value = number(image, at + 8, 8)?;
        let name = image.get(usize::try_from(names + number(image, at, 4)?).ok()?..)?;
        let end = name.iter().position(|byte| *byte == 0)?;
        if value != 0 && end > 0 {
            found.push((value, String::from_utf8_lossy(&name[..end]).into_owned()));
        }
    }
    found.sort_unstable();
    Some(found)
}
