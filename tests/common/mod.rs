//! What all tests share: it runs treekill-run on a tree and observes that tree's death.
//!
//! Every process of a run inherits one pipe, the tether, as descriptor 9. A process says what it does by a line
//! there, and its end-of-file says that the whole tree, the keeper and the front are dead: nothing here sleeps to
//! pace a test. The wrapper runs in a cgroup of the test's own, the nest, where one can be had: whatever a failing
//! test leaves is killed with it, and leaves that were not removed are seen.
#![allow(dead_code, unused_imports, unused_macros, reason = "every test binary uses its own part")]

pub(crate) mod action;
pub(crate) mod cgroups;
pub(crate) mod dice;
pub(crate) mod fence;
pub(crate) mod kin;
pub(crate) mod needs;
pub(crate) mod nest;
pub(crate) mod program;
pub(crate) mod readiness;
pub(crate) mod run;
pub(crate) mod running;
pub(crate) mod scratch;
pub(crate) mod sys;
pub(crate) mod systemd;
pub(crate) mod tether;
pub(crate) mod tracer;

use std::path::PathBuf;
use std::time::Duration;

pub(crate) use fence::Fence;
pub(crate) use nest::Nest;
pub(crate) use program::wrapper;
pub(crate) use run::Run;
pub(crate) use running::{Ended, Running};
pub(crate) use scratch::Scratch;

/// Only fails a test, never paces one: two busy cores reach it only when something hangs.
pub(crate) const BOUND: Duration = Duration::from_secs(30);

/// Whoever was killed is dead by then.
pub(crate) const A_DEATH: Duration = Duration::from_millis(300);

/// The ordinary user of the tests.
pub(crate) const USER: u32 = 1999;

/// The descriptor of the tether in every process of a run.
pub(crate) const TETHER: i32 = 9;

/// The environment variable that holds a name of the tether, for those who lost the descriptor.
pub(crate) const TETHER_PATH: &str = "TREEKILL_TEST_TETHER";

/// The descriptor of the tests' own /proc in every process of a run on the pidns backend: there a process finds the numbers
/// that it and its parent have outside, which are those that it says.
pub(crate) const PROC: i32 = 8;

/// The environment variable that holds the mark of a run.
pub(crate) const MARK: &str = "TREEKILL_TEST_MARK";

/// What holds the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    /// A cgroup v2 leaf.
    Cgroup,
    /// A leaf in a scope of systemd's.
    Systemd,
    /// A PID namespace.
    Pidns,
    /// Ancestry alone.
    Subreaper,
    /// What the program takes by itself.
    Auto,
}

impl Backend {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Backend::Cgroup => "cgroup",
            Backend::Systemd => "systemd",
            Backend::Pidns => "pidns",
            Backend::Subreaper => "subreaper",
            Backend::Auto => "auto",
        }
    }
}

/// The program that the trees of the tests are made of.
pub(crate) fn fixture() -> PathBuf {
    program::example("fixture")
}

/// A string that no other run has.
pub(crate) fn unique() -> String {
    use std::hash::{BuildHasher as _, Hasher as _};
    let random = std::hash::RandomState::new().build_hasher().finish();
    format!("{}-{random:016x}", std::process::id())
}

/// Makes tests of functions that take a backend: each runs on the cgroup and on the subreaper backend. The functions
/// are named, `both_backends! { one another }`, or written out, `both_backends! { fn name(backend) { ... } }`.
macro_rules! both_backends {
    ($($tests:tt)+) => { $crate::common::on_backends! { [cgroup subreaper] $($tests)+ } };
}
pub(crate) use both_backends;

/// The same for the pidns backend too, where nothing that a test looks at differs.
macro_rules! all_backends {
    ($($tests:tt)+) => { $crate::common::on_backends! { [cgroup pidns subreaper] $($tests)+ } };
}
pub(crate) use all_backends;

/// The same for each of these backends.
macro_rules! on_backends {
    (@each $name:ident [$($backend:ident)+]) => { $(
        #[test]
        fn $backend() {
            $crate::common::on_backends! { @needs $backend }
            super::$name($crate::common::on_backends!(@value $backend));
        }
    )+ };
    (@needs subreaper) => {};
    (@needs $backend:ident) => { $crate::common::needs::require!(stringify!($backend)); };
    (@value cgroup) => { $crate::common::Backend::Cgroup };
    (@value pidns) => { $crate::common::Backend::Pidns };
    (@value subreaper) => { $crate::common::Backend::Subreaper };
    ($backends:tt $($(#[$meta:meta])* fn $name:ident($backend:ident) $body:block)+) => {
        $($(#[$meta])* fn $name($backend: $crate::common::Backend) $body)+
        $crate::common::on_backends! { $backends $($name)+ }
    };
    ($backends:tt $($name:ident)+) => { $(
        mod $name {
            $crate::common::on_backends! { @each $name $backends }
        }
    )+ };
}
pub(crate) use on_backends;
