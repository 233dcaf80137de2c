//! Help, completions and manual pages of the admin commands.

use crate::support::{Files, run};

const COMMANDS: &[&[&str]] = &[
    &["rules", "list"],
    &["rules", "get"],
    &["rules", "put"],
    &["rules", "delete"],
    &["rules", "diff"],
    &["rules", "apply"],
    &["rules", "export"],
    &["tiers"],
    &["tiers", "list"],
    &["tiers", "get"],
    &["tiers", "put"],
    &["tiers", "delete"],
    &["quotas"],
    &["quotas", "list"],
    &["quotas", "get"],
    &["quotas", "set"],
    &["quotas", "delete"],
    &["users"],
    &["users", "block"],
    &["users", "unblock"],
    &["users", "blocked"],
    &["keys"],
    &["keys", "create"],
    &["keys", "list"],
    &["keys", "show"],
    &["keys", "rotate"],
    &["keys", "revoke"],
    &["keys", "delete"],
    &["rules", "enable"],
    &["rules", "disable"],
    &["rules", "history"],
    &["rules", "rollback"],
    &["limits"],
    &["limits", "set"],
    &["limits", "list"],
    &["limits", "delete"],
    &["penalties"],
    &["penalties", "list"],
    &["penalties", "pardon"],
    &["reload"],
    &["audit"],
    &["audit", "show"],
    &["migrate"],
];

#[test]
fn help_of_every_command_has_examples() {
    for command in COMMANDS {
        let ran = run(&[command, &["--help"][..]].concat());
        assert_eq!(ran.code, 0, "{command:?}");
        let example = [&["tollgate"], *command].concat().join(" ");
        assert!(ran.stdout.contains("Examples:\n"), "{command:?}: {}", ran.stdout);
        assert!(ran.stdout.matches(&example).count() > 2, "{command:?} has too few examples: {}", ran.stdout);
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let files = Files::new(&[]);
    assert_eq!(run(&["man", "--out", &files.path("man1")]).code, 0);
    for command in COMMANDS {
        let page = files.file("man1").join(format!("tollgate-{}.1", command.join("-")));
        assert!(std::fs::read_to_string(&page).unwrap().contains("Examples"), "{page:?}");
    }
    let whole = run(&["man"]).stdout;
    for command in ["tiers", "quotas", "users", "keys", "audit", "migrate"] {
        assert!(whole.contains(&format!("tollgate\\-{command}")), "{command}");
    }
}

#[test]
fn completions_know_every_command_and_flag() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&["completions", shell]).stdout;
        for word in
            ["quotas", "unblock", "rotate", "prune", "overlap", "audit", "migrate", "dry-run", "ca-file"]
        {
            assert!(script.contains(word), "{word} is missing in {shell}");
        }
    }
}
