//! The binary: everything lives in the library, so that tests and generators see the same code.
fn main() -> std::process::ExitCode {
    treekill_run::run()
}
