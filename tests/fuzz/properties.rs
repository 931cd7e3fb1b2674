//! Fuzzes the property that TREEKILL_FUZZ_PROPERTY names. With TREEKILL_FUZZ_WORDS it only writes what the input of each
//! is made of into that folder, a dictionary of libFuzzer's for each property, and so tells which there are.
#![no_main]

use std::sync::OnceLock;
use std::{env, fs, process};

use libfuzzer_sys::fuzz_target;
use treekill_run::properties::{ALL, Property};

static PROPERTY: OnceLock<&Property> = OnceLock::new();

fn choose() {
    if let Some(folder) = env::var_os("TREEKILL_FUZZ_WORDS") {
        for property in ALL {
            let escape = |word: &&str| word.bytes().map(|byte| format!("\\x{byte:02x}")).collect::<String>();
            let lines: String = property.words.iter().map(escape).map(|word| format!("\"{word}\"\n")).collect();
            fs::write(folder.to_string_lossy().into_owned() + "/" + property.name, lines).expect("the folder is there");
        }
        process::exit(0);
    }
    let name = env::var("TREEKILL_FUZZ_PROPERTY").expect("TREEKILL_FUZZ_PROPERTY names one");
    let found = ALL.iter().find(|property| property.name == name).expect("it is one of them");
    PROPERTY.set(found).ok().expect("it is chosen once");
}

fuzz_target!(init: choose(), |bytes: &[u8]| (PROPERTY.get().expect("it was chosen").check)(bytes));
