//! Flags, help, completions, manual pages and pipes.

mod common;

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use common::{Files, run, tollgate};

const COMMANDS: [&[&str]; 14] = [
    &["serve"],
    &["config"],
    &["config", "show"],
    &["check"],
    &["status"],
    &["reset"],
    &["explain"],
    &["inspect"],
    &["rules"],
    &["rules", "lint"],
    &["rules", "list"],
    &["rules", "test"],
    &["completions"],
    &["man"],
];

#[test]
fn the_help_of_every_command_has_examples() {
    for command in COMMANDS.iter().chain([&&[][..]]) {
        let ran = run(&[command, &["--help"][..]].concat());
        assert_eq!(ran.code, 0);
        assert!(ran.stdout.contains("Examples:\n"), "{command:?}: {}", ran.stdout);
        let example = [&["tollgate"], *command].concat().join(" ");
        assert!(
            ran.stdout.matches(&example).count() > 1,
            "{command:?} shows no use of itself: {}",
            ran.stdout
        );
    }
}

#[test]
fn arguments_that_make_no_sense_exit_with_2() {
    for args in [
        &[][..],
        &["fly"],
        &["check", "--user", "alice"],
        &["check", "--endpoint", "/a"],
        &["check", "--user", "a", "--endpoint", "/a", "--ip", "localhost"],
        &["check", "--user", "a", "--endpoint", "/a", "--descriptor", "novalue"],
        &["status", "--user", "", "--endpoint", "/a"],
        &["inspect"],
        &["inspect", "tenant:"],
        &["rules"],
        &["rules", "lint"],
        &["completions", "csh"],
    ] {
        assert_eq!(run(args).code, 2, "{args:?}");
    }
}

#[test]
fn completions_name_the_commands_of_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = run(&["completions", shell]);
        assert_eq!(ran.code, 0);
        assert!(ran.stdout.contains("explain") && ran.stdout.contains("tollgate"), "{shell}");
    }
}

#[test]
fn the_manual_names_every_command() {
    let ran = run(&["man"]);
    assert_eq!(ran.code, 0);
    for command in COMMANDS.iter().filter(|command| command.len() == 1) {
        assert!(ran.stdout.contains(&format!("tollgate\\-{}", command[0])), "{command:?}");
    }
}

#[test]
fn every_command_has_a_manual_page_of_its_own() {
    let files = Files::new(&[]);
    assert_eq!(run(&["man", "--out", &files.path("man1")]).code, 0);
    for command in COMMANDS {
        let page = files.file("man1").join(format!("tollgate-{}.1", command.join("-")));
        let text = std::fs::read_to_string(&page).unwrap();
        assert!(text.contains("Examples"), "{page:?}");
    }
}

#[test]
fn a_reader_that_has_read_enough_is_no_error() {
    let rule = |n: u32| {
        format!(
            "[[rules]]\nname = \"r{n}\"\nlayer = \"one\"\nper = [\"user\"]\nlimits = [{{ requests = 1, window = 1 }}]\n"
        )
    };
    // Longer than a pipe holds, so that the reader is gone while we still write.
    let text: String = (0..5_000).map(rule).collect();
    let files = Files::new(&[("rules.toml", &text)]);
    for command in [vec!["rules", "list"], vec!["rules", "list", "--json"]] {
        let mut running = tollgate()
            .args(command)
            .arg(files.file("rules.toml"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = String::new();
        BufReader::new(running.stdout.take().unwrap()).read_line(&mut first).unwrap();
        let ended = running.wait_with_output().unwrap();
        assert!(!first.is_empty());
        assert_eq!((ended.status.code(), &*ended.stderr), (Some(0), &b""[..]));
    }
}

#[test]
fn colours_are_for_terminals_unless_asked_for() {
    let files = Files::new(&[("rules.toml", "default_limit = 5\n")]);
    let list = |color: &str| run(&["rules", "list", &files.path("rules.toml"), "--color", color]).stdout;
    assert!(!list("auto").contains('\x1b'));
    assert!(!list("never").contains('\x1b'));
    assert!(list("always").contains("\x1b[1mRULE\x1b[0m"));
}
