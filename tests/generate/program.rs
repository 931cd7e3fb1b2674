//! Writes what is generated from the command line's definition: the manual, the completions and
//! the marked blocks of README.md. `cargo run --example generate [-- man|completions|readme]...`;
//! without an argument it writes all three.

mod render;

use std::path::Path;
use std::{env, fs};

use anyhow::{Context, bail};

const KINDS: [&str; 3] = ["man", "completions", "readme"];

fn main() -> anyhow::Result<()> {
    let wanted: Vec<String> = env::args().skip(1).collect();
    if let Some(unknown) = wanted.iter().find(|kind| !KINDS.contains(&kind.as_str())) {
        bail!("unknown kind '{unknown}': expected man, completions or readme");
    }
    let is_wanted = |kind: &str| wanted.is_empty() || wanted.iter().any(|word| word == kind);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for kind in KINDS.into_iter().filter(|kind| is_wanted(kind)) {
        for page in render::pages(kind, root)? {
            let path = root.join(page.path);
            fs::write(&path, page.text).with_context(|| format!("cannot write {}", path.display()))?;
            println!("{}", page.path);
        }
    }
    Ok(())
}
