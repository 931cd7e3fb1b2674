//! What happens where a net cannot be had: the next one, or 195 before anything is started.

mod common;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use common::needs::{is_root, require};
use common::running::is_dead;
use common::{Backend, Nest, Run, Scratch, USER, all_backends, both_backends, sys, wrapper};
use rustix::process::Signal;

const LONG: Duration = Duration::from_secs(20);

/// A shell, in a mount namespace of its own, that changes mounts and then becomes the wrapper.
fn with_mounts(script: &str) -> Vec<String> {
    let mut words: Vec<String> = ["unshare", "--mount"].map(String::from).to_vec();
    if !is_root() {
        words.push("--map-root-user".into());
    }
    let script = format!("{script} || exit 71; exec \"$@\"");
    words.extend(["sh".into(), "-c".into(), script, "sh".into()]);
    words
}

/// One of our own descriptors would take the number, and be taken for stderr.
#[test]
fn a_closed_stderr_is_filled_where_there_is_no_dev_null() {
    require!("mountns");
    let closing = with_mounts("mount -t tmpfs none /dev; exec 2>&-; true");
    let run = Run::new(Backend::Subreaper).options("-v").prefixed(closing);
    // A program of Rust's would not start there.
    run.command(["sh", "-c", "readlink /proc/$PPID/fd/2; exit 7"]).finish().exited(7).printed("/\n");
}

/// util-linux's unshare --pid without --fork: ancestry is not to be read in /proc then.
#[test]
fn without_a_fork_into_a_pid_namespace_ancestry_is_195() {
    require!("mountns");
    let mut words = vec!["unshare", "--pid"];
    if !is_root() {
        words.push("--map-root-user");
    }
    let ended = Run::new(Backend::Subreaper).prefixed(words).fixture("say started").finish();
    ended.exited(195).said("started", 0).complained_of("unshare --fork").took_less_than(LONG);
}

/// Ways to be without a usable cgroup tree.
fn unusable_cgroups() -> Vec<Vec<String>> {
    let mount = common::cgroups::mount_point().expect("the tests need one");
    let mount = mount.display();
    let mut ways = vec![
        // As in most containers.
        with_mounts(&format!("mount --bind {mount} {mount} && mount -o remount,ro,bind {mount}")),
        // Another file system in its place; the table of mounts still names the one below.
        with_mounts(&format!("mount -t tmpfs none {mount}")),
    ];
    if is_root() {
        ways.push(with_mounts(&format!("umount -l {mount}")));
    }
    ways
}

/// systemd/systemd#34849, 89luca89/distrobox#366: an obscure failure, or a silent loss of protection.
#[test]
fn a_backend_that_cannot_be_had_is_195_and_starts_nothing() {
    require!("cgroup", "mountns");
    for mounts in unusable_cgroups() {
        let run = Run::new(Backend::Cgroup).options("-t 25").prefixed(mounts);
        let ended = run.fixture("say started").finish();
        if ended.status.code() == Some(71) {
            common::needs::skip("mountns", "mounts cannot be changed here");
            return;
        }
        ended.exited(195).said("started", 0).complained_of("treekill-run: ").took_less_than(LONG);
        assert_eq!(ended.stderr.lines().count(), 1, "{ended}");
    }
}

/// opencontainers/runc#1759, ioi/isolate#111: the tool refused to work in a container.
#[test]
fn where_no_leaf_can_be_made_auto_takes_the_other_net() {
    require!("cgroup", "mountns");
    for mounts in unusable_cgroups() {
        let run = |options: &str| Run::new(Backend::Auto).options(options).prefixed(mounts.clone());
        let ended = run("-k 1").report().fixture("daemon [ hang ] exit 0").finish();
        if ended.status.code() == Some(71) {
            common::needs::skip("mountns", "mounts cannot be changed here");
            return;
        }
        ended.exited(193);
        // What could not be had is not hidden.
        let report = ended.report();
        assert!(report["backend"].to_string().contains("subreaper"), "{report:#}");
        assert!(report["backend"].to_string().contains("cgroup"), "{report:#}");
        run("-t 500ms -k 1").fixture("daemon [ hang ] fork [ setsid hang ] hang").finish().exited(124);
    }
}

/// A /proc that shows other PIDs than ours names strangers; it is never believed.
#[test]
fn with_a_foreign_proc_ancestry_alone_is_195() {
    require!("pidns");
    let mut words = vec!["unshare", "--pid", "--fork", "--kill-child"];
    if !is_root() {
        words.push("--map-root-user");
    }
    let run = |backend| Run::new(backend).options("-k 1").prefixed(words.clone());
    let ended = run(Backend::Subreaper).fixture("say started").finish();
    ended.exited(195).said("started", 0).complained_of("/proc");
    if common::needs::has("cgroup") {
        let ended = run(Backend::Cgroup).options("-v").report().fixture("exit 9").finish();
        ended.exited(9).complained_of("weaker");
        assert!(ended.report()["backend"]["degraded"].is_string(), "{ended}");
        run(Backend::Cgroup).fixture("daemon [ hang ] exit 0").finish().exited(193);
        run(Backend::Cgroup).options("-t 500ms").fixture("fork [ setsid ignore TERM hang ] hang").finish().exited(124);
        run(Backend::Cgroup).fixture("fork [ leader-exits [ hang ] ] exit 0").finish().exited(193);
    }
}

/// With hidepid an ordinary user does not see what became another user's: that could not be ended, or even missed.
#[test]
fn with_hidden_processes_ancestry_alone_is_195() {
    require!("delegation", "mountns", "setpriv");
    let hide = "mount -t proc -o hidepid=2 proc /proc";
    let user = USER.to_string();
    let run = |backend| {
        let mut words = with_mounts(hide);
        let become_user = ["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups"];
        words.extend(become_user.map(String::from));
        let nest = Nest::new().expect("a cgroup can be made");
        nest.delegate(USER);
        Run::new(backend).options("-k 1").within(nest).prefixed(words).directory("/")
    };
    let ended = run(Backend::Subreaper).fixture("say started").finish();
    if ended.status.code() == Some(71) {
        common::needs::skip("mountns", "mounts cannot be changed here");
        return;
    }
    ended.exited(195).said("started", 0).complained_of("hidepid");
    run(Backend::Cgroup).fixture("daemon [ hang ] exit 0").finish().exited(193);
}

/// A leaf below a threaded cgroup could not hold processes (cgroups(7)).
#[test]
fn in_a_threaded_cgroup_there_is_no_leaf() {
    require!("cgroup");
    let run = |backend| {
        let caller = "cgroup make part cgroup thread part cgroup enter part exec";
        Run::new(backend).options("-k 1").makes_cgroups().called_by(caller, "")
    };
    let ended = run(Backend::Cgroup).fixture("say started").finish();
    ended.exited(195).said("started", 0).said("refused", 0).complained_of("treekill-run: ");
    run(Backend::Auto).fixture("daemon [ hang ] exit 0").finish().exited(193);
}

/// coder/envbox#173: in a cgroup namespace of its own, the path `/` is not the host's root, which a mount from outside shows.
/// A leaf there would have left the cgroup of the caller, with its limits.
#[test]
fn with_a_mount_from_outside_of_the_cgroup_namespace_there_is_no_leaf() {
    require!("cgroup", "root");
    let run = |backend| Run::new(backend).options("-k 1").prefixed(["unshare", "--cgroup"]);
    run(Backend::Cgroup).fixture("say started").finish().exited(195).said("started", 0).complained_of("cgroup");
    run(Backend::Auto).fixture("daemon [ hang ] exit 0").finish().exited(193);
    // One from inside shows ours.
    let scratch = Scratch::new();
    let inside = with_mounts(&format!("mount -t cgroup2 none {}", scratch.path().display()));
    let words = ["unshare", "--cgroup"].map(String::from).into_iter().chain(inside);
    Run::new(Backend::Cgroup).prefixed(words).fixture("daemon [ hang ] exit 0").finish().exited(193);
}

/// Container runtimes answer ENOSYS, older ones EPERM.
#[test]
fn where_clone3_is_refused_the_leaf_is_entered_otherwise() {
    require!("cgroup", "seccomp");
    for errno in [nix::libc::ENOSYS, nix::libc::EPERM] {
        let run = |options: &str| Run::new(Backend::Cgroup).options(options).setup(move || sys::refuse_clone3(errno));
        run("-k 1").fixture("exit 9").finish().exited(9);
        run("-k 1").fixture("kill self KILL hang").finish().died_of(Signal::KILL);
        run("-k 1").command(["no-such-command-of-treekill"]).finish().exited(127);
        run("-k 1").fixture("daemon [ hang ] exit 0").finish().exited(193);
        run("-t 500ms -k 1").fixture("fork [ setsid hang ] hang").finish().exited(124);
        let mut running = run("-k 60").gated().fixture("cgroup say read exit 0").spawn();
        let cgroup = PathBuf::from(running.expect("cgroup"));
        let parent = running.nest().map(|nest| nest.path().to_owned());
        running.open_gate();
        running.wait().exited(0);
        assert_eq!(cgroup.parent(), parent.as_deref(), "not in a leaf");
    }
}

#[test]
fn where_clone3_is_refused_ancestry_works_too() {
    require!("seccomp");
    for errno in [nix::libc::ENOSYS, nix::libc::EPERM] {
        let run = Run::new(Backend::Subreaper).options("-k 1").setup(move || sys::refuse_clone3(errno));
        run.fixture("daemon [ hang ] exit 0").finish().exited(193);
    }
}

/// openai/codex#33793: the sandbox of an agent lets its commands make pairs of sockets, and send nothing over them by the
/// calls for sockets, lest they reach the network.
fn where_nothing_is_sent_by_sockets_a_run_is_as_always(backend: Backend) {
    require!("seccomp");
    let run = |options: &str| {
        let calls = [
            nix::libc::SYS_sendto,
            nix::libc::SYS_sendmsg,
            nix::libc::SYS_recvmsg,
            nix::libc::SYS_connect,
            nix::libc::SYS_getsockopt,
            nix::libc::SYS_setsockopt,
            nix::libc::SYS_getpeername,
            nix::libc::SYS_getsockname,
            nix::libc::SYS_shutdown,
            nix::libc::SYS_ptrace,
        ];
        let refuse = move || calls.iter().try_for_each(|&call| sys::refuse(call, nix::libc::EPERM));
        Run::new(backend).options(options).setup(refuse)
    };
    run("-k 1").fixture("exit 9").finish().exited(9);
    run("-k 1").fixture("daemon [ hang ] exit 0").finish().exited(193);
    run("-t 200ms -k 1").fixture("fork [ setsid hang ] hang").finish().exited(124);
    let mut running = run("-k 60").fixture("on TERM [ say asked exit 5 ] say ready hang").spawn();
    running.expect("ready");
    running.signal(Signal::TERM);
    running.wait().exited(5).said("asked", 1);
}
all_backends! { where_nothing_is_sent_by_sockets_a_run_is_as_always }

#[test]
fn where_setpgid_is_refused_the_command_leads_its_session() {
    require!("seccomp");
    let gnu = |command: &[&str]| {
        let words: [OsString; 4] = [wrapper().into(), "--gnu".into(), "--backend=subreaper".into(), "60".into()];
        let run = Run::control(words).command(command);
        run.setup(|| sys::refuse(nix::libc::SYS_setpgid, nix::libc::EPERM)).finish()
    };
    gnu(&["sh", "-c", "exit 9"]).exited(9);
    gnu(&["sh", "-c", "trap 'exit 5' TERM; kill 0; sleep 5"]).exited(5);
}

/// What only makes an end quicker is not done where a filter may kill for it. It would be the keeper that dies, after it has
/// told how the run ended: a deputy, which the caller's child makes, would then end who was left running.
fn where_a_filter_kills_for_a_call_that_is_not_needed_it_is_not_made(backend: Backend) {
    require!("seccomp");
    let run = Run::new(backend).options("--leftovers leave --leftover-grace 0").may_leave();
    let run = run.called_by("fork [ hang ] exec", "").setup(|| sys::kill_for(nix::libc::SYS_sched_setaffinity));
    let mut running = run.gated().fixture("daemon [ say daemon hang ] read exit 7").spawn();
    let daemon = running.expect_process("daemon");
    running.open_gate();
    let ended = running.wait();
    ended.exited(7).took_less_than(LONG);
    assert!(!is_dead(&daemon, Duration::ZERO), "it was to be left\n{ended}");
}
both_backends! { where_a_filter_kills_for_a_call_that_is_not_needed_it_is_not_made }

/// The first that works is taken, and the report says which.
#[test]
fn the_list_of_backends_is_a_preference() {
    require!("cgroup");
    for (list, name) in [("subreaper,cgroup", "subreaper"), ("cgroup,subreaper", "cgroup"), ("auto", "cgroup")] {
        let ended = Run::new(Backend::Auto).options(&format!("--backend {list}")).report().fixture("exit 0").finish();
        let backend = ended.exited(0).report()["backend"].clone();
        let taken = backend.as_str().map(str::to_owned).or_else(|| backend["name"].as_str().map(str::to_owned));
        assert!(taken.is_some_and(|taken| taken.starts_with(name)), "{backend}");
    }
}

#[test]
fn without_delegation_a_user_gets_195_or_the_other_net() {
    require!("delegation");
    let run = |backend| Run::new(backend).options("-k 1").setup(|| sys::become_user(USER)).directory("/");
    let ended = run(Backend::Cgroup).fixture("say started").finish();
    ended.exited(195).said("started", 0).complained_of("treekill-run: ");
    run(Backend::Auto).fixture("daemon [ hang ] exit 0").finish().exited(193);
    run(Backend::Auto).options("--backend cgroup,subreaper").fixture("exit 9").finish().exited(9);
}
