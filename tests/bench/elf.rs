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
    const SYMTAB: u64 = 2;
    let (sections, size, count) = (number(image, 40, 8)?, number(image, 58, 2)?, number(image, 60, 2)?);
    let section = |index: u64| sections + index * size;
    let table = (0..count).map(section).find(|at| number(image, at + 4, 4) == Some(SYMTAB))?;
    let names = section(number(image, table + 40, 4)?);
    let (names, symbols) = (number(image, names + 24, 8)?, number(image, table + 24, 8)?);
    let symbols = (0..number(image, table + 32, 8)? / 24).map(|index| symbols + index * 24);
    let is_it = |symbol: &u64| {
        let at = number(image, *symbol, 4).and_then(|offset| usize::try_from(names + offset).ok());
        at.and_then(|at| image.get(at..))
            .is_some_and(|rest| rest.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&0)))
    };
    symbols
        .into_iter()
        .find(|symbol| is_it(symbol) && number(image, symbol + 8, 8) != Some(0))
        .and_then(|symbol| number(image, symbol + 8, 8))
}
