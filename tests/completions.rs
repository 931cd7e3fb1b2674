//! What bash, zsh and fish offer when Tab is pressed behind `treekill-run`, as `make install` leaves the completions.
//! bash and zsh are typed to on a terminal; fish has a command that says what it would offer.

mod common;

#[path = "terminal/pty.rs"]
#[expect(dead_code, reason = "the tests of the terminal need more of it")]
mod pty;

use std::process::Command;

use common::{Backend, Run, Scratch, needs};
use pty::Shell;

/// What is typed behind `treekill-run `, words that must be offered then or stand in the line, and words that must not.
type Case = (&'static str, &'static [&'static str], &'static [&'static str]);

/// The command `frobnicate` has the argument `checkout` and the option `--preview`.
const CASES: [Case; 30] = [
    ("--ba", &["--backend"], &[]),
    ("--pre", &["--preserve-status"], &["--preview"]),
    ("-t 5 --ba", &["--backend"], &[]),
    ("--timeout=5 --ba", &["--backend"], &[]),
    ("--backend ", &["auto", "cgroup", "systemd", "pidns", "subreaper"], &["present.json"]),
    ("--backend pi", &["pidns"], &["systemd"]),
    ("--backend=pi", &["--backend=pidns"], &[]),
    ("-b cgroup,sub", &["cgroup,subreaper"], &[]),
    ("--backend=cgroup,sub", &["--backend=cgroup,subreaper"], &[]),
    ("--leftovers ", &["kill", "wait", "leave"], &["present.json"]),
    ("--signal-to=gr", &["--signal-to=group"], &[]),
    ("--signal ", &["HUP", "TERM", "USR1"], &["present.json"]),
    ("-s WI", &["WINCH"], &[]),
    ("--report pres", &["present.json"], &["presume"]),
    ("--report=pres", &["--report=present.json"], &[]),
    ("-t pres", &[], &["presume", "present.json"]),
    ("frob", &["frobnicate"], &[]),
    ("-t 5 frob", &["frobnicate"], &[]),
    ("--leftovers wait frob", &["frobnicate"], &[]),
    ("-- frob", &["frobnicate"], &[]),
    ("-t 5 pres", &["presume"], &[]),
    ("frobnicate check", &["checkout"], &[]),
    ("-t 5 frobnicate check", &["checkout"], &[]),
    ("--kill-after=5 -vt5 -- frobnicate check", &["checkout"], &[]),
    ("-vt 5 frobnicate check", &["checkout"], &[]),
    ("--gnu -k 5 10 frobnicate check", &["checkout"], &[]),
    ("--gnu 5 frob", &["frobnicate"], &[]),
    ("--gnu pres", &[], &["presume"]),
    ("-t 5 frobnicate --pre", &["--preview"], &["--preserve-status"]),
    ("-- frobnicate --ba", &[], &["--backend"]),
];

/// The same for a bash that has only what the project brings.
fn of_commands_own_arguments(case: &Case) -> bool {
    case.1.iter().any(|word| ["checkout", "--preview"].contains(word))
}

/// A home with the completions installed below it, some files, and a folder of programs.
fn home() -> Scratch {
    let home = Scratch::new();
    for folder in ["bin", "work", "run"] {
        std::fs::create_dir(home.join(folder)).expect("the directory is ours");
    }
    for program in ["bin/treekill-run", "bin/frobnicate", "bin/presume"] {
        home.file(program, b"#!/bin/sh\n", 0o755);
    }
    home.file("work/present.json", b"", 0o644);
    let mut make = Command::new("make");
    // Nothing of it runs the program.
    let variables =
        [format!("BIN={}", home.join("bin/presume").display()), format!("PREFIX={}", home.path().display())];
    make.args(["-s", "-C", env!("CARGO_MANIFEST_DIR"), "install"]).args(variables);
    let _forking = common::sys::forking();
    let output = make.env_remove("MAKEFLAGS").env_remove("MAKELEVEL").output().expect("the tests are started by make");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    home.file("share/bash-completion/completions/frobnicate", b"complete -W 'checkout --preview' frobnicate\n", 0o644);
    let zsh = b"#compdef frobnicate\n_arguments --preview '*:verb:(checkout)'\n";
    home.file("share/zsh/site-functions/_frobnicate", zsh, 0o644);
    let fish = b"complete -c frobnicate -f -a checkout\ncomplete -c frobnicate -l preview\n";
    home.file("share/fish/vendor_completions.d/frobnicate.fish", fish, 0o644);
    home
}

/// Fails unless all that should is in what was offered, and nothing that should not.
fn check(shell: &str, (typed, expected, refused): &Case, offered: &str) {
    // zsh adds the sign that a value, or another one, may follow.
    let words =
        offered.split(|c: char| c.is_whitespace() || "<>".contains(c)).map(|word| word.trim_end_matches(['=', ',']));
    let words: Vec<&str> = words.collect();
    let shows = |word: &str| words.contains(&word);
    let missing: Vec<&&str> = expected.iter().filter(|word| !shows(word)).collect();
    let surplus: Vec<&&str> = refused.iter().filter(|word| shows(word)).collect();
    assert!(
        missing.is_empty() && surplus.is_empty(),
        "{shell}: `treekill-run {typed}<Tab>` should offer {missing:?}, should not {surplus:?}; it shows:\n{offered}"
    );
}

/// Runs a shell on a terminal, where Ctrl-G shows `<LINE>`, the line as it stands, and empties it.
fn press_tab(words: &[&str], setup: &str, skips: impl Fn(&Case) -> bool) {
    let home = home();
    let setup = format!(
        "export HOME={0} XDG_DATA_HOME={0}/share PATH={0}/bin:$PATH; cd {0}/work\n{setup}\necho all set\n",
        home.path().display()
    );
    let script = home.file("setup", setup.as_bytes(), 0o644);
    let mut shell = Shell::on_terminal(Run::control(words), Backend::Auto);
    shell.command(&format!(". {}", script.display()));
    shell.sees("all set");
    for case in CASES.iter().filter(|case| !skips(case)) {
        shell.keys(format!("treekill-run {}\t\x07", case.0).as_bytes());
        let listed = shell.sees("\n<");
        let line = shell.sees(">");
        check(words[0], case, &format!("{listed}\n{line}"));
    }
    shell.command("exit 0");
    shell.wait();
}

const BASH: &str = r#"
bind 'set show-all-if-ambiguous on'
bind 'set completion-query-items 0'
bind 'set page-completions off'
bind 'set bell-style none'
show() { printf '\n<%s>\n' "$READLINE_LINE"; READLINE_LINE=; }
bind -x '"\C-g": show'
"#;

const ZSH: &str = r#"
unsetopt prompt_sp list_ambiguous beep always_last_prompt
LISTMAX=10000
fpath=($XDG_DATA_HOME/zsh/site-functions $fpath)
autoload -Uz compinit
compinit -u -D
show() { print -r -- $'\n'"<$BUFFER>"; BUFFER=; zle reset-prompt }
zle -N show
bindkey '^G' show
"#;

#[test]
fn bash_with_its_completions_offers_our_options_and_what_is_the_commands() {
    needs::require!("bash-completion", "make");
    let setup = format!("{BASH}\n. {}\n", needs::BASH_COMPLETION);
    press_tab(&["bash", "--norc", "--noprofile", "-i"], &setup, |_| false);
}

#[test]
fn bash_alone_offers_our_options_and_commands() {
    needs::require!("make");
    let setup = format!("{BASH}\n. $XDG_DATA_HOME/bash-completion/completions/treekill-run\n");
    press_tab(&["bash", "--norc", "--noprofile", "-i"], &setup, of_commands_own_arguments);
}

#[test]
fn zsh_offers_our_options_and_what_is_the_commands() {
    needs::require!("zsh", "make");
    press_tab(&["zsh", "-f", "-i"], ZSH, |_| false);
}

#[test]
fn fish_offers_our_options_and_what_is_the_commands() {
    needs::require!("fish", "make");
    let home = home();
    let path = std::env::var("PATH").unwrap_or_default();
    let script = "for line in $argv; complete -C \"treekill-run $line\"; echo '<>'; end";
    let ended = Run::control(["fish", "--command", script, "--"])
        .command(CASES.map(|case| case.0))
        .env("HOME", home.path())
        .env("PATH", format!("{}:{path}", home.join("bin").display()))
        .env("XDG_DATA_HOME", home.join("share"))
        .env("XDG_CONFIG_HOME", home.join("config"))
        .env("XDG_RUNTIME_DIR", home.join("run"))
        .directory(home.join("work"))
        .finish();
    assert!(ended.stderr.is_empty(), "{ended}");
    let stdout = String::from_utf8_lossy(&ended.stdout);
    let offered: Vec<&str> = stdout.split("<>\n").collect();
    assert_eq!(offered.len(), CASES.len() + 1, "{ended}");
    for (case, offered) in CASES.iter().zip(offered) {
        check("fish", case, offered);
    }
}
