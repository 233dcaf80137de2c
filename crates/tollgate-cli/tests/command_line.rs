//! Flags, help, completions, manual pages and pipes.

mod support;

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use support::{Files, run, tollgate};

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
fn help_of_every_command_has_examples() {
    for command in COMMANDS.iter().chain([&&[][..]]) {
        let ran = run(&[command, &["--help"][..]].concat());
        assert_eq!(ran.code, 0);
        assert!(ran.stdout.contains("Examples:\n"), "{command:?}: {}", ran.stdout);
        let example = [&["tollgate"], *command].concat().join(" ");
        assert!(ran.stdout.matches(&example).count() > 1, "{command:?} has no example: {}", ran.stdout);
    }
}

#[test]
fn invalid_arguments_exit_with_2() {
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
fn completions_exist_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = run(&["completions", shell]);
        assert_eq!(ran.code, 0);
        assert!(ran.stdout.contains("explain") && ran.stdout.contains("tollgate"), "{shell}");
    }
}

#[test]
fn manual_lists_every_command() {
    let ran = run(&["man"]);
    assert_eq!(ran.code, 0);
    for command in COMMANDS.iter().filter(|command| command.len() == 1) {
        assert!(ran.stdout.contains(&format!("tollgate\\-{}", command[0])), "{command:?}");
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let files = Files::new(&[]);
    assert_eq!(run(&["man", "--out", &files.path("man1")]).code, 0);
    for command in COMMANDS {
        let page = files.file("man1").join(format!("tollgate-{}.1", command.join("-")));
        let text = std::fs::read_to_string(&page).unwrap();
        assert!(text.contains("Examples"), "{page:?}");
    }
}

#[test]
fn closed_pipe_is_not_an_error() {
    let rule = |n: u32| {
        format!(
            "[[rules]]\nname = \"r{n}\"\nlayer = \"one\"\nper = [\"user\"]\nlimits = [{{ requests = 1, window = 1 }}]\n"
        )
    };
    // Larger than a pipe buffer, so that the pipe closes during a write.
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
fn colors_need_a_terminal_or_a_flag() {
    let files = Files::new(&[("rules.toml", "default_limit = 5\n")]);
    let list = |color: &str| run(&["rules", "list", &files.path("rules.toml"), "--color", color]).stdout;
    assert!(!list("auto").contains('\x1b'));
    assert!(!list("never").contains('\x1b'));
    assert!(list("always").contains("\x1b[1mRULE\x1b[0m"));
}

#[test]
fn invalid_listen_address_is_explained() {
    for command in [&["serve"][..], &["config", "show"]] {
        let ran = run(&[command, &["--listen", "localhost:8080"]].concat());
        assert_eq!(ran.code, 2);
        assert!(ran.stderr.contains("an IP address and a port, such as 127.0.0.1:8080"), "{}", ran.stderr);
    }
}

#[test]
fn unwritable_directory_is_reported() {
    let ran = run(&["man", "--out", "/proc/x"]);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.starts_with("error: cannot write /proc/x: "), "{}", ran.stderr);
}

#[test]
fn config_show_prints_json_with_flags_applied() {
    let file = format!(
        "default_limit = 7\n[server]\nlisten = \"127.0.0.1:1\"\n[[auth.callers]]\nname = \"a\"\n\
         key_sha256 = \"{}\"\nscopes = [\"read\"]\n",
        "ab".repeat(32)
    );
    let files = Files::new(&[("tollgate.toml", &file)]);
    let show = ["config", "show", "--config", &files.path("tollgate.toml")];
    let flags = ["--listen", "127.0.0.1:3", "--data-dir", "/somewhere", "--json"];
    let json = run(&[&show[..], &flags].concat()).json();
    assert_eq!(
        (&json["server"]["listen"], &json["server"]["data_dir"]),
        (&"127.0.0.1:3".into(), &"/somewhere".into())
    );
    assert_eq!(json["server"]["connections_max"], 10_000);
    assert_eq!(json["auth"]["callers"][0]["key_sha256"], "***");
    assert_eq!(json["rules"][0]["limits"][0]["requests"], 7);
    let text = run(&[&show[..], &flags[..2]].concat()).stdout;
    assert!(text.contains("listen = \"127.0.0.1:3\""), "{text}");
}
