//! The processes that tests put under treekill-run.
fn main() {}
