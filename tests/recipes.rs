//! The recipes of README.md, each run as those would run it for whom it is. A recipe is the block below its mark,
//! `<!-- recipe: NAME -->`.

mod common;

#[path = "recipes/agents.rs"]
mod agents;
#[path = "recipes/ci.rs"]
mod ci;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;

use common::{Ended, Run, Running, Scratch, fixture, needs, wrapper};

/// Leaves a process of a session of its own and a daemon behind, both of which hold what it holds.
const LEAVES: &str = "fork [ setsid say session hang ] daemon [ say daemon hang ]";

/// Every block that has a mark, with its language.
fn recipes() -> BTreeMap<String, (String, String)> {
    let readme = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md"));
    let readme = readme.expect("the checkout has it");
    let mut recipes = BTreeMap::new();
    for part in readme.split("\n<!-- recipe: ").skip(1) {
        let (name, rest) = part.split_once(" -->\n\n```").unwrap_or_else(|| panic!("no block below a mark: {part}"));
        let (language, rest) = rest.split_once('\n').expect("the block has a first line");
        let (text, _) = rest.split_once("\n```").expect("the block ends");
        recipes.insert(name.to_owned(), (language.to_owned(), format!("{text}\n")));
    }
    recipes
}

/// The text of a block, which is of this language.
fn recipe(name: &str, language: &str) -> String {
    let (its, text) = recipes().remove(name).unwrap_or_else(|| panic!("README.md has no recipe {name}"));
    assert_eq!(its, language, "the language of recipe {name}");
    text
}

#[test]
fn every_recipe_is_run_here() {
    let names: Vec<String> = recipes().into_keys().collect();
    let run_here = ["agent", "github", "gitlab", "jenkins", "make", "make-shell", "mcp", "pipeline", "server", "shell"];
    assert_eq!(names, run_here);
}

/// A folder to work in, with what the recipes take for granted there.
struct Place {
    scratch: Scratch,
}

impl Place {
    /// `./job` takes these steps of the fixture's, and so does `make test`.
    fn new(steps: &str) -> Place {
        let scratch = Scratch::new();
        scratch.file("job", format!("#!/bin/sh\nexec \"$FX\" {steps}\n").as_bytes(), 0o755);
        scratch.file("Makefile", b"test:\n\t@./job\n", 0o644);
        Place { scratch }
    }

    fn file(&self, name: &str, text: &str) {
        self.scratch.file(name, text.as_bytes(), 0o755);
    }

    /// A program that is started there, with treekill-run on its path.
    fn run<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Run {
        self.finds_programs(Run::control([] as [&str; 0]).command(words))
    }

    fn finds_programs(&self, run: Run) -> Run {
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        let program = wrapper();
        let folders = program.parent().into_iter().map(Path::to_owned).chain(std::env::split_paths(&inherited));
        let run = run.directory(self.scratch.path()).env("FX", fixture()).env("LC_ALL", "C");
        let run = ["MAKEFLAGS", "MAKELEVEL", "MFLAGS"].into_iter().fold(run, |run, name| run.env(name, ""));
        run.env("PATH", std::env::join_paths(folders).expect("PATH came from one"))
    }
}

/// Waits for its end, at which nothing of it may be alive.
fn ends(mut running: Running) -> Ended {
    let ended = running.wait();
    if !running.is_all_dead() {
        running.fail("something outlived it");
    }
    running.leaves_no_trace();
    ended
}

/// Nobody but the two that were left holds the pipe, and tee waits for its end.
#[test]
fn a_pipeline_ends_with_the_side_that_is_wrapped_and_tells_what_was_left() {
    needs::require!("jq");
    let place = Place::new(&format!("print out {LEAVES} exit 0"));
    let ended = ends(place.run(["bash", "-c", &recipe("pipeline", "bash")]).spawn());
    let shown = String::from_utf8_lossy(&ended.stdout);
    assert!(shown.starts_with("outstatus 193\n"), "{ended}");
    let left: Vec<&str> = shown.lines().filter(|line| line.starts_with("left: ")).collect();
    assert_eq!(left.len(), 2, "{ended}");
    assert!(
        left.iter().all(|line| line.contains("/fixture print out ") && line.ends_with(", ended by SIGTERM")),
        "{ended}"
    );
    assert_eq!(std::fs::read_to_string(place.scratch.join("job.log")).ok().as_deref(), Some("out"));
}

#[test]
fn a_pipeline_has_the_status_of_the_side_that_is_wrapped() {
    needs::require!("jq");
    let place = Place::new("print out exit 3");
    ends(place.run(["bash", "-c", &recipe("pipeline", "bash")]).spawn()).exited(0).printed("outstatus 3\n");
}

#[test]
fn a_server_ends_with_the_script_however_that_ends() {
    for is_killed in [false, true] {
        let place = Place::new("");
        place.file("server", "#!/bin/sh\nexec \"$FX\" daemon [ say daemon hang ] say server hang\n");
        place.file("client", "#!/bin/sh\nexec \"$FX\" say client read exit 4\n");
        let mut running = place.run(["bash", "-c", &recipe("server", "bash")]).gated().spawn();
        for word in ["server", "daemon", "client"] {
            running.expect(word);
        }
        if is_killed {
            running.signal(rustix::process::Signal::KILL);
            running.wait();
        }
        running.open_gate();
        if !is_killed {
            running.wait().exited(4);
        }
        running.all_die();
        running.leaves_no_trace();
    }
}

/// Two rules that can only end together, so that a make without a share of the jobs would hang.
const TOGETHER: &str =
    "all: a b\na:; @mkfifo fifo; read -r word <fifo; echo $$word\nb:; @until [ -p fifo ]; do :; done; echo met >fifo\n";

fn place_with_make(name: &str, steps: &str) -> Place {
    let place = Place::new(steps);
    place.file("Makefile", &recipe(name, "make"));
    std::fs::create_dir(place.scratch.join("sub")).expect("the folder is ours");
    place.file("sub/Makefile", TOGETHER);
    place
}

fn a_makefile_works_and_fails_for_what_a_job_leaves(name: &str) {
    needs::require!("make");
    let place = place_with_make(name, "exit 0");
    let ended = ends(place.run(["make", "-j3"]).spawn());
    ended.exited(0);
    assert!(!ended.stderr.contains("jobserver"), "{ended}");
    assert!(String::from_utf8_lossy(&ended.stdout).contains("met\n"), "{ended}");
    let place = place_with_make(name, &format!("{LEAVES} exit 0"));
    ends(place.run(["make"]).env("MAKEFLAGS", "j3").spawn()).exited(2).complained_of("Error 193");
}

#[test]
fn in_a_makefile_timeout_is_replaced_and_a_recursive_make_keeps_its_jobs() {
    a_makefile_works_and_fails_for_what_a_job_leaves("make");
}

#[test]
fn as_the_shell_of_a_makefile_each_line_is_held() {
    a_makefile_works_and_fails_for_what_a_job_leaves("make-shell");
}
