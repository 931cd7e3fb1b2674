//! The programs that the tests run.

use std::path::PathBuf;

/// The program under test: the one that cargo has built with the tests, or another build of it that
/// `TREEKILL_TEST_PROGRAM` names, by an absolute path.
pub(crate) fn wrapper() -> PathBuf {
    std::env::var_os("TREEKILL_TEST_PROGRAM").map_or_else(built, PathBuf::from)
}

/// A test program of the project's own, which cargo builds beside its other programs.
pub(crate) fn example(name: &str) -> PathBuf {
    built().with_file_name("examples").join(name)
}

fn built() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_treekill-run"))
}
