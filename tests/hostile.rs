//! What a command can do that means harm, and what it can't: the claims of the threat model in .github/THREATS.md that
//! no other file tests.

mod common;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use common::running::{is_dead, open_process};
use common::{BOUND, Backend, Nest, Run, Scratch, USER, all_backends, both_backends, fixture, kin, needs, sys};
use rustix::process::{Signal, pidfd_send_signal};

const LONG: Duration = Duration::from_secs(20);

all_backends! {
    a_subreaper_among_the_commands_hides_nobody
    what_a_process_outside_starts_for_the_command_is_no_part_of_the_tree
    a_flood_of_leftovers_is_ended_and_the_report_is_whole
}

// In a PID namespace there is nobody to put anywhere or to hold.
both_backends! {
    a_keeper_that_is_traced_goes_on_when_it_is_let_go
    a_command_of_another_user_can_do_nothing_to_us
}

/// PR_SET_CHILD_SUBREAPER(2const): the orphans of its tree are its own then, until it ends.
fn a_subreaper_among_the_commands_hides_nobody(backend: Backend) {
    let tree = "setsid subreaper daemon [ ignore TERM say member hang ]";
    let is_no_escape = |steps: &str, status: Option<i32>| {
        let mut running = Run::new(backend).options("-k 200ms").fixture(steps).spawn();
        let member = running.expect_process_or_gone("member");
        if status.is_none() {
            running.signal(Signal::TERM);
        }
        let ended = running.wait();
        assert!(member.is_none_or(|member| is_dead(&member, Duration::ZERO)), "the member is alive\n{ended}");
        status.map_or_else(|| ended.died_of(Signal::TERM), |status| ended.exited(status)).took_less_than(LONG);
    };
    is_no_escape(&format!("fork [ {tree} ignore TERM hang ] hang"), None);
    // It ends first, and leaves what it has adopted to us.
    is_no_escape(&format!("fork [ {tree} exit 0 ] wait exit 0"), Some(193));
}

/// As a container runtime, cron(8) or systemd does: it is the parent of what it is asked for, in a cgroup of its own.
fn what_a_process_outside_starts_for_the_command_is_no_part_of_the_tree(backend: Backend) {
    let scratch = Scratch::new();
    let pipe = scratch.join("service");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).expect("a FIFO");
    let serve = format!("read -r _ <{}; exec {} say served hang", pipe.display(), fixture().display());
    let mut service = Run::control(["sh", "-c", &serve]).spawn();
    let ask = format!("echo now >{}", pipe.display());
    Run::new(backend).bash(&ask).finish().exited(0);
    let served = service.expect_process("served");
    assert!(!is_dead(&served, Duration::ZERO), "it is a stranger");
}

/// Each is named once, however many there are.
fn a_flood_of_leftovers_is_ended_and_the_report_is_whole(backend: Backend) {
    const MANY: usize = 300;
    // The arguments of each are all these words.
    let steps = format!("{} exit 0", "fork [ setsid ignore TERM hang ] ".repeat(MANY));
    let run = Run::new(backend).options("-k 300ms --leftover-grace 0").report();
    let ended = run.fixture(&steps).finish();
    let report = ended.exited(193).took_less_than(LONG).report();
    assert!(report["leftovers"].as_array().is_some_and(|list| list.len() == MANY), "{}", report["leftovers"]);
    // One line, whoever it is about.
    assert!(ended.stderr.lines().count() == 1 && ended.stderr.len() < 1000, "{}", ended.stderr);
}

/// ptrace(2): a tracer of the same user holds the keeper, and with it the clock, for as long as the tracer lives.
fn a_keeper_that_is_traced_goes_on_when_it_is_let_go(backend: Backend) {
    let steps = "daemon [ ignore TERM hang ] ignore TERM say ready hang";
    let mut running = Run::new(backend).options("-t 300ms -k 100ms").fixture(steps).spawn();
    running.expect("ready");
    let (keeper, _) = kin::last_child(running.pid()).expect("there is a keeper");
    let tracer = sys::Tracer::seize(keeper.cast_signed()).expect("the test may trace its descendants");
    tracer.interrupt().expect("it is traced");
    let pidfd = running.pidfd().try_clone().expect("a descriptor can be duplicated");
    assert!(!is_dead(&pidfd, Duration::from_millis(800)), "nobody held the keeper: this shows nothing");
    drop(tracer);
    running.wait().exited(137).took_less_than(LONG);
}

/// A command whose user is not ours: it can neither signal, nor trace, nor move, nor follow us.
fn a_command_of_another_user_can_do_nothing_to_us(backend: Backend) {
    needs::require!("user", "setpriv");
    let user = USER.to_string();
    let mount = common::cgroups::mount_point();
    let cgroup = mount.map_or_else(|| "/dev/full".into(), |mount| mount.display().to_string());
    let script = format!(
        "keeper=$PPID; front=$(ps -o ppid= -p $PPID); own={cgroup}$(sed -n s/^0:://p /proc/self/cgroup)
        for pid in $keeper $front; do
          for signal in STOP KILL; do kill -$signal $pid 2>/dev/null && echo signalled >&9; done
          [ -e /proc/$pid/fd/0 ] && echo seen >&9
          echo $pid >$own/cgroup.procs && echo caught >&9
        done 2>/dev/null
        echo $$ >$own/../cgroup.procs && echo gone >&9
        mkdir $own/x && echo nested >&9
        exec {} daemon [ ignore TERM say daemon hang ] exit 0",
        fixture().display()
    );
    let words = ["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups", "bash", "-c", &script];
    let ended = Run::new(backend).options("-k 300ms").directory("/").command(words).finish();
    ended.exited(193).took_less_than(LONG).said("daemon", 1);
    for word in ["signalled", "seen", "caught", "gone", "nested"] {
        ended.said(word, 0);
    }
}

/// cgroups(7): whoever may write to the leaf may also put our own processes there, to be killed with the tree.
#[test]
fn who_puts_front_or_keeper_into_the_leaf_ends_the_run_and_keeps_nothing() {
    needs::require!("cgroup");
    for (victims, at_the_limit) in
        [("keeper", false), ("front", false), ("keeper front", false), ("keeper front", true)]
    {
        let steps = "cgroup say daemon [ ignore TERM say member hang ] ignore TERM say ready read exit 0";
        let options = if at_the_limit { "-t 500ms -k 100ms" } else { "-t 5m -k 100ms" };
        let mut running = Run::new(Backend::Cgroup).options(options).gated().fixture(steps).may_leave().spawn();
        let procs = PathBuf::from(running.expect("cgroup")).join("cgroup.procs");
        let member = running.expect_process("member");
        running.expect("ready");
        let (keeper, _) = kin::last_child(running.pid()).expect("there is a keeper");
        for victim in victims.split(' ') {
            let pid = if victim == "front" { running.pid() } else { keeper };
            fs::write(&procs, pid.to_string()).expect("both are ours");
        }
        if !at_the_limit {
            running.open_gate();
        }
        let ended = running.wait();
        running.all_die();
        assert!(is_dead(&member, BOUND), "{victims}: the member is alive\n{ended}");
        assert!(!ended.status.success(), "{victims}: {ended}");
        // If both had to die, their leaf is the next run's.
        let nest = running.take_nest().expect("a nest");
        Run::new(Backend::Cgroup).within(nest).fixture("exit 0").finish().exited(0);
    }
}

/// Whoever could be put into the leaf could be killed as well: that takes the rights over both cgroups.
#[test]
fn an_ordinary_user_puts_no_strangers_into_the_leaf() {
    needs::require!("delegation");
    let nest = Nest::new().expect("cgroups can be made");
    let mut stranger = Run::control(Vec::<String>::new()).fixture("say stranger hang").spawn();
    let pid = stranger.expect("stranger");
    let script = format!(
        "own={}$(sed -n s/^0:://p /proc/self/cgroup); echo {pid} >$own/cgroup.procs && echo caught >&9; exit 0",
        common::cgroups::mount_point().expect("there is one").display()
    );
    let run = Run::new(Backend::Cgroup).by_user(USER).directory("/").within(nest);
    run.bash(&script).finish().exited(0).said("caught", 0);
    assert!(stranger.is_running());
}

/// There front and keeper have no number, and so cannot be killed at once from inside.
#[test]
fn in_a_pid_namespace_the_command_reaches_nobody_outside() {
    needs::require!("pidns");
    let mut running = Run::new(Backend::Pidns).options("-k 300ms").gated().fixture("say ready exec cat").spawn();
    running.expect("ready");
    let (keeper, _) = kin::last_child(running.pid()).expect("there is a keeper");
    let front = running.pid();
    drop(running);

    // The numbers of another run are as good: none of them is in there.
    let mut outside = Run::new(Backend::Subreaper).gated().fixture("say ready read exit 7").spawn();
    outside.expect("ready");
    let (other_keeper, _) = kin::last_child(outside.pid()).expect("there is a keeper");
    let pids = format!("{keeper} {front} {other_keeper} {}", outside.pid());
    let script = format!(
        "for pid in {pids}; do kill -KILL $pid && echo reached >&9; [ -e /proc/$pid ] && echo seen >&9; done
        kill -KILL 1; kill -STOP 1; kill -KILL -1; exit 3"
    );
    let ended = Run::new(Backend::Pidns).options("-t 5m").bash(&script).finish();
    // Its last word kills all that it can reach, but never itself.
    ended.exited(3).said("reached", 0).said("seen", 0);
    assert!(outside.is_running());
    outside.open_gate();
    outside.wait().exited(7);
}

/// The plain escape: a process of the same user may kill any two of that user's.
#[test]
fn a_command_that_kills_front_and_keeper_goes_on_until_the_next_run() {
    needs::require!("cgroup");
    let script = format!(
        "keeper=$PPID; read -r _ _ _ front _ </proc/$keeper/stat
        echo \"keeper $keeper\" >&9
        ({} setsid ignore TERM say daemon hang &)
        setsid bash -c \"kill -STOP $front; kill -KILL $keeper; kill -KILL $front\" & wait",
        fixture().display()
    );
    let mut running = Run::new(Backend::Cgroup).options("-t 5m").bash(&script).may_leave().spawn();
    let keeper = running.expect_process_or_gone("keeper");
    let daemon = running.expect_process("daemon");
    running.wait().died_of(Signal::KILL);
    // It is killed first, and may end last: until then the leaf has an owner.
    assert!(keeper.is_none_or(|keeper| is_dead(keeper, BOUND)), "the keeper goes on");
    assert!(!is_dead(&daemon, Duration::ZERO), "it did not escape: the manual says too little of us");
    let nest = running.take_nest().expect("a nest");
    let mut next = Run::new(Backend::Cgroup).within(nest).may_leave().fixture("exit 0").spawn();
    next.wait().exited(0);
    assert!(is_dead(&daemon, BOUND), "the next run did not end it");
}

/// SIGKILL of the one needs the other awake.
#[test]
fn a_command_that_stops_the_front_and_kills_the_keeper_goes_on_until_the_front_does() {
    for backend in [Backend::Cgroup, Backend::Subreaper] {
        if backend == Backend::Cgroup && !needs::has("cgroup") {
            continue;
        }
        let fixture = fixture();
        let script = format!(
            "keeper=$PPID; read -r _ _ _ front _ </proc/$keeper/stat
            ({0} setsid ignore TERM say daemon hang &)
            setsid bash -c \"kill -STOP $front; kill -KILL $keeper; {0} say killed\" & wait",
            fixture.display()
        );
        let mut running = Run::new(backend).options("-t 5m").bash(&script).spawn();
        let daemon = running.expect_process("daemon");
        running.expect("killed");
        assert!(!is_dead(&daemon, Duration::ZERO), "it did not get out: the manual says too little of us");
        running.signal(Signal::CONT);
        running.wait().exited(125);
        assert!(is_dead(&daemon, Duration::ZERO));
    }
}

/// The other: out of the leaf by its cgroup, and out of our ancestry by a PID namespace that was there before.
#[test]
fn who_leaves_both_nets_is_out_of_reach_but_in_a_pid_namespace() {
    needs::require!("cgroup", "root", "pidns", "nsenter");
    for backend in [Backend::Cgroup, Backend::Subreaper, Backend::Pidns] {
        let away = Nest::new().expect("cgroups can be made");
        let mut elsewhere = Run::control(["unshare", "--pid", "--fork", "--kill-child", "cat"]).gated().spawn();
        let there = format!("/proc/{}/ns/pid_for_children", elsewhere.pid());
        let script = format!(
            "echo $$ >{}/cgroup.procs
            nsenter --pid={there} sh -c '{} setsid say member hang & exit 0'; exit 0",
            away.path().display(),
            fixture().display()
        );
        // The namespace is there as soon as its first process is.
        while kin::children(elsewhere.pid()).is_empty() {
            std::thread::yield_now();
        }
        let mut running = Run::new(backend).options("-k 1 --leftover-grace 0").bash(&script).may_leave().spawn();
        if backend == Backend::Pidns {
            running.wait();
            running.all_die();
        } else {
            running.expect("member");
            let ended = running.wait();
            assert!(!running.is_all_dead(), "it did not escape: the manual says too little of us\n{ended}");
        }
        elsewhere.open_gate();
        elsewhere.wait();
    }
}

/// pid_namespaces(7): who loses its parent there is the child of that namespace's init. All are confirmed before the first
/// is signalled.
#[test]
fn who_joined_another_pid_namespace_gets_the_first_signal_that_its_parent_dies_of() {
    needs::require!("cgroup", "root", "pidns", "nsenter");
    for backend in [Backend::Cgroup, Backend::Subreaper] {
        let mut elsewhere = Run::control(["unshare", "--pid", "--fork", "--kill-child", "cat"]).gated().spawn();
        while kin::children(elsewhere.pid()).is_empty() {
            std::thread::yield_now();
        }
        // The others give the parent time to die before its last child's turn comes.
        let steps = format!(
            "exec nsenter --pid=/proc/{}/ns/pid_for_children {} {} fork [ on TERM [ say term exit 0 ] say member hang ]
            hang",
            elsewhere.pid(),
            fixture().display(),
            "fork [ hang ] ".repeat(50)
        );
        let mut running = Run::new(backend).options("-k 1").fixture(&steps).may_leave().spawn();
        running.expect("member");
        running.signal(Signal::TERM);
        running.expect("term");
        running.wait();
        running.all_die();
        elsewhere.open_gate();
        elsewhere.wait();
    }
}

/// Without a cgroup whoever has become root can't be signalled by an ordinary user: the run says so.
#[test]
fn a_root_member_outlives_the_subreaper_of_a_user_and_is_named() {
    needs::require!("user", "setpriv");
    let scratch = Scratch::new();
    let Some(become_root) = set_user_id_helper(&scratch) else { return };
    let script = format!(
        "{} --reuid=0 bash -c 'echo member $$ >&9; for i in {{1..80}}; do sleep .1; done' & read -r _; exit 0",
        become_root.display()
    );
    let run = Run::new(Backend::Subreaper).options("-k 100ms --drain-limit 300ms").by_user(USER).directory("/");
    let mut running = run.bash(&script).gated().may_leave().spawn();
    let pid = running.expect("member");
    let member = open_process(pid.parse().expect("a PID")).expect("it is there");
    running.open_gate();
    let ended = running.wait();
    let _ = pidfd_send_signal(&member, Signal::KILL);
    // It was left, too, and that it was ended is not said then.
    ended.exited(194).complained_of("cannot end ").complained_of(&pid).complained_of(" running: ");
    assert!(!ended.stderr.contains("now ended"), "{ended}");
    running.all_die();
}

/// Whom nobody can end from here keeps its children from becoming ours: they are looked for below it.
#[test]
fn the_children_of_a_root_member_that_outlives_the_subreaper_do_not() {
    needs::require!("user", "setpriv");
    let scratch = Scratch::new();
    let Some(become_root) = set_user_id_helper(&scratch) else { return };
    let script = format!(
        "{} --reuid=0 bash -c 'setpriv --reuid={USER} bash -c \"trap : TERM; echo child \\$\\$ >&9; while :; do sleep 1; done\" & \
         echo member $$ >&9; wait; for i in {{1..80}}; do sleep .1; done' & read -r _; exit 0",
        become_root.display()
    );
    let run = Run::new(Backend::Subreaper).options("-k 100ms --drain-limit 1s").by_user(USER).directory("/");
    let mut running = run.bash(&script).gated().may_leave().spawn();
    let child = running.expect_process("child");
    let member = running.expect_process("member");
    running.open_gate();
    let ended = running.wait();
    let is_ended = is_dead(&child, Duration::ZERO);
    let _ = pidfd_send_signal(&member, Signal::KILL);
    ended.exited(194);
    assert!(is_ended, "{ended}");
    running.all_die();
}

/// A copy of setpriv(1) with the set-user-ID bit, behind a directory that only the ordinary user's group can pass.
fn set_user_id_helper(scratch: &Scratch) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = |bits| fs::Permissions::from_mode(bits);
    let gate = scratch.join("gate");
    let helper = gate.join("become-root");
    fs::create_dir(&gate).expect("the directory is ours");
    fs::set_permissions(&gate, mode(0o700)).expect("it is ours");
    fs::copy("/usr/bin/setpriv", &helper).expect("setpriv is there");
    std::os::unix::fs::chown(&gate, Some(0), Some(USER)).expect("root may");
    fs::set_permissions(&helper, mode(0o4755)).expect("it is ours");
    fs::set_permissions(&gate, mode(0o710)).expect("it is ours");
    let words = [helper.as_os_str(), "--reuid=0".as_ref(), "id".as_ref(), "-u".as_ref()];
    let ended = Run::control(words).setup(|| sys::become_user(USER)).directory("/").finish();
    if ended.stdout == b"0\n" {
        return Some(helper);
    }
    needs::skip("setuid", "the temporary directory is mounted without set-user-ID");
    None
}
