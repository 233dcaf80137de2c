//! Help and tables fit 80 columns.

use std::fmt::Write;

use crate::cli_runner::CliRunner;
use crate::harness::Service;
use crate::support::{Files, finished, tollgate};

const COLUMNS: usize = 80;

fn help(command: &[String]) -> String {
    let ran = finished(
        tollgate().args(command).arg("--help").env("COLUMNS", COLUMNS.to_string()).output().unwrap(),
    );
    assert_eq!(ran.code, 0, "{command:?}");
    ran.stdout
}

fn assert_fits(what: &str, text: &str) {
    for line in text.lines() {
        assert!(line.chars().count() <= COLUMNS, "{what} has {} columns: {line}", line.chars().count());
    }
}

/// The commands that a help text lists.
fn commands(help: &str) -> Vec<String> {
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = listed.take_while(|line| !line.is_empty());
    // Continuation lines are indented further.
    let names = listed.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .filter(|name| name != "help")
        .collect()
}

#[test]
fn help_of_every_command_fits_80_columns() {
    let mut left: Vec<Vec<String>> = vec![Vec::new()];
    let mut seen = 0;
    while let Some(command) = left.pop() {
        let text = help(&command);
        assert_fits(&format!("--help of {command:?}"), &text);
        left.extend(commands(&text).into_iter().map(|name| [&command[..], &[name]].concat()));
        seen += 1;
    }
    assert!(seen > 50, "{seen}");
}

#[test]
fn tables_fit_80_columns() {
    let mut config = String::from("default_limit = 100\n");
    for (name, when) in [
        ("login-guard-of-the-whole-service", "endpoints = [\"/api/v1/login\", \"/api/v1/session/*\"]"),
        ("free", "tiers = [\"free\"]"),
    ] {
        let _ = write!(
            config,
            "[[rules]]\nname = \"{name}\"\nper = [\"user\", \"ip\"]\nwhen = {{ {when}, methods = [\"GET\", \"POST\"] }}\n\
             limits = [{{ requests = 1000, window = \"1h\", burst = 20 }}, {{ requests = 5000, window = \"1d\" }}]\n"
        );
    }
    let service = Service::with_config(&config);
    let cli = CliRunner::of(&service);
    let files = Files::new(&[(
        "r.toml",
        "[[rules]]\nname = \"db\"\naction = \"block\"\nwhen = { ips = [\"192.0.2.0/24\"] }\n",
    )]);
    for args in [
        &["rules", "put", &files.path("r.toml")][..],
        &[
            "tiers",
            "put",
            "pro",
            "--limit",
            "5",
            "--window",
            "1m",
            "--description",
            "customers that pay for more requests than others",
        ],
        &[
            "quotas",
            "set",
            "a-user-with-a-long-name@example.com",
            "--requests-per-hour",
            "1000",
            "--requests-per-day",
            "20000",
        ],
        &[
            "users",
            "block",
            "ip:192.0.2.0/24",
            "--reason",
            "password guessing from the whole network, see the ticket",
            "--for",
            "90d",
        ],
        &[
            "keys",
            "create",
            "the checkout service",
            "--scope",
            "check,read,config,reset,override",
            "--user",
            "alice",
            "--expires",
            "90d",
        ],
        &[
            "limits",
            "set",
            "a-user-with-a-long-name@example.com",
            "/api/v1/search/products",
            "--limit",
            "5",
            "--window",
            "1m",
        ],
        &["check", "--user", "alice", "--endpoint", "/api/v1/login", "--ip", "192.0.2.200", "--tier", "free"],
    ] {
        let ran = cli.run(args);
        assert!(ran.code < 2, "{args:?}: {}", ran.stderr);
    }
    for args in [
        &["rules", "list"][..],
        &["rules", "list", service.config_file().to_str().unwrap()],
        &["rules", "history", "db"],
        &["tiers", "list"],
        &["quotas", "list"],
        &["users", "blocked"],
        &["keys", "list"],
        &["limits", "list"],
        &["penalties", "list"],
        &["audit"],
        &[
            "explain",
            "--user",
            "alice",
            "--tier",
            "free",
            "--ip",
            "10.0.0.1",
            "--endpoint",
            "/api/v1/login",
            "--method",
            "GET",
            "--all",
        ],
    ] {
        let ran = cli.run_in_columns(args, COLUMNS);
        assert_eq!(ran.code, 0, "{args:?}: {}", ran.stderr);
        assert_fits(&args.join(" "), &ran.stdout);
    }
}

#[test]
fn tables_in_a_pipe_are_not_limited() {
    let service = Service::with_config("default_limit = 100");
    let cli = CliRunner::of(&service);
    let reason = "a reason ".repeat(30);
    cli.done(&["users", "block", "alice", "--reason", reason.trim()]);
    assert!(cli.done(&["users", "blocked"]).contains(reason.trim()));
}
