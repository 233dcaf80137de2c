//! `rules diff|apply|export` against a running service.

use crate::cli_runner::CliRunner;
use crate::harness::{Service, wait_for};
use crate::support::Files;

const RULES: &str = "\
[[rules]]
name = \"login-guard\"
priority = 5
when = { endpoints = [\"/login\"], methods = [\"POST\"], descriptors = { plan = [\"eu\", \"us\"] } }
per = [\"login\", \"ip\"]
algorithm = \"sliding_window_log\"
limits = [{ requests = 5, window = \"15m\" }, { requests = 20, window = \"1d\" }]
response = { status = 403, message = \"Slow down, \\\"friend\\\".\" }

[[rules]]
name = \"old\"
action = \"log_only\"
per = [\"user\"]
requests_per_minute = 100
burst_size = 20
enabled = false
";
const TIERS: &str = "[[tiers]]\nname = \"pro\"\ndescription = \"paying\"\nlimit = 50\nwindow = 60\n";

fn service() -> Service {
    Service::with_config("default_limit = 1000")
}

#[test]
fn export_matches_what_was_applied() {
    let service = service();
    let cli = CliRunner::of(&service);
    let files = Files::new(&[("rules.toml", RULES), ("tiers.toml", TIERS)]);
    let (rules, tiers) = (files.path("rules.toml"), files.path("tiers.toml"));
    let apply = ["rules", "apply", &rules, &tiers];
    let dry = cli.done(&[&apply[..], &["--dry-run"]].concat());
    assert!(dry.ends_with("3 to create, 0 to update, 0 to delete, 0 unchanged\n"), "{dry}");
    assert_eq!(cli.run(&["rules", "diff", &rules, &tiers]).code, 1);
    let done = cli.done(&apply);
    assert!(
        done.contains("+ rule login-guard\n")
            && done.ends_with("3 created, 0 updated, 0 deleted, 0 unchanged\n"),
        "{done}"
    );
    assert_eq!(cli.done(&apply), "no changes, 3 unchanged\n");
    assert_eq!(cli.run(&["rules", "diff", &rules, &tiers, "--prune"]).code, 0);
    let exported = cli.done(&["rules", "export"]);
    let again = Files::new(&[("e.toml", &exported), ("e.json", &cli.done(&["rules", "export", "--json"]))]);
    for name in ["e.toml", "e.json"] {
        let ran = cli.run(&["rules", "apply", &again.path(name), "--prune"]);
        assert_eq!((ran.code, &*ran.stdout), (0, "no changes, 3 unchanged\n"), "{exported}{}", ran.stderr);
    }
}

#[test]
fn blocks_in_files_need_an_absolute_expiry() {
    let service = service();
    let cli = CliRunner::of(&service);
    let block = "[[blocks]]\nclient = \"user:a\"\nreason = \"r\"\n";
    let files = Files::new(&[
        ("until.toml", &format!("{block}until = \"2040-01-31T12:00:00Z\"\n")),
        ("for.toml", &format!("{block}for = \"1h\"\n")),
    ]);
    let ran = cli.run(&["rules", "apply", &files.path("for.toml")]);
    assert!(
        ran.code == 2 && ran.stderr.contains("for: would start over") && ran.stderr.contains("until = "),
        "{}",
        ran.stderr
    );
    let apply = ["rules", "apply", &files.path("until.toml")];
    assert!(cli.done(&apply).ends_with("1 created, 0 updated, 0 deleted, 0 unchanged\n"));
    assert_eq!(cli.done(&apply), "no changes, 1 unchanged\n");
}

#[test]
fn plan_names_kinds_as_files_do() {
    let service = service();
    let cli = CliRunner::of(&service);
    let limit = "[[limits]]\nuser_id = \"a\"\nendpoint = \"/x\"\nlimit = 5\nwindow_seconds = 60\nstrategy = \"gcra\"\n";
    let files = Files::new(&[("limits.toml", limit)]);
    let done = cli.done(&["rules", "apply", &files.path("limits.toml")]);
    assert!(done.starts_with("+ limit a /x\n    + ") && !done.contains("user_endpoint_limit"), "{done}");
}

#[test]
fn update_shows_changes_and_prune_is_explicit() {
    let service = service();
    let cli = CliRunner::of(&service);
    let files = Files::new(&[("all.toml", &format!("{RULES}{TIERS}"))]);
    cli.done(&["rules", "apply", &files.path("all.toml")]);
    let fewer = RULES
        .replace("priority = 5", "priority = 6")
        .split("[[rules]]\nname = \"old\"")
        .next()
        .unwrap()
        .to_owned();
    let files = Files::new(&[("r.toml", &fewer)]);
    let apply = ["rules", "apply", &files.path("r.toml")];
    let done = cli.done(&apply);
    assert_eq!(
        done,
        "~ rule login-guard\n    - priority = 5\n    + priority = 6\n0 created, 1 updated, 0 deleted, 0 unchanged\n"
    );
    let refused = cli.run(&[&apply[..], &["--prune"]].concat());
    assert!(
        refused.code == 2 && refused.stdout.starts_with("- rule old\n"),
        "{}{}",
        refused.stdout,
        refused.stderr
    );
    assert!(cli.done(&["rules", "get", "old"]).contains("name = \"old\""));
    let done = cli.done(&[&apply[..], &["--prune", "--yes"]].concat());
    assert!(done.ends_with("0 created, 0 updated, 1 deleted, 1 unchanged\n"), "{done}");
    assert!(
        cli.done(&["tiers", "get", "pro"]).contains("paying"),
        "kinds that are not in the files are not pruned"
    );
}

#[test]
fn apply_is_all_or_nothing() {
    let service = Service::with_config("[[rules]]\nname = \"old\"\naction = \"allow\"\n");
    let cli = CliRunner::of(&service);
    let files = Files::new(&[("r.toml", RULES)]);
    let error = cli.error(&["rules", "apply", &files.path("r.toml")]);
    assert!(error.contains("old") && error.contains("tollgate.toml"), "{error}");
    assert!(cli.error(&["rules", "get", "login-guard"]).contains("NOT_FOUND"));
}

#[test]
fn concurrent_applies_succeed_or_conflict() {
    let service = service();
    let rule = |n: u32| {
        format!(
            "[[rules]]\nname = \"r\"\npriority = {n}\naction = \"log_only\"\nper = [\"user\"]\nrequests_per_day = 9\n"
        )
    };
    let outcomes: Vec<(u32, i32, String)> = std::thread::scope(|scope| {
        let apply = |n: u32| {
            let service = &service;
            scope.spawn(move || {
                let files = Files::new(&[("r.toml", &rule(n))]);
                // A node that has not synced yet refuses before anything changes: retry.
                wait_for("an outcome", || {
                    let ran = CliRunner::of(service).run(&["rules", "apply", &files.path("r.toml")]);
                    (!ran.stderr.contains("SERVICE_UNAVAILABLE")).then_some((n, ran.code, ran.stderr))
                })
            })
        };
        let running: Vec<_> = (1..=6).map(apply).collect();
        running.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let done: Vec<u64> =
        outcomes.iter().filter(|(_, code, _)| *code == 0).map(|(n, ..)| u64::from(*n)).collect();
    assert!(!done.is_empty(), "{outcomes:?}");
    for (_, code, stderr) in &outcomes {
        assert!(*code == 0 || stderr.contains("changed after the plan was made"), "{stderr}");
    }
    let rule = CliRunner::of(&service).json(&["rules", "get", "r"]);
    assert!(done.contains(&rule["priority"].as_u64().unwrap()), "{rule} by none of {done:?}");
    let trail = CliRunner::of(&service).json(&["audit", "--kind", "rule"]);
    assert_eq!(trail["entries"].as_array().unwrap().len(), done.len(), "{trail}");
}

#[test]
fn settings_in_an_applied_file_are_named() {
    let service = service();
    let cli = CliRunner::of(&service);
    let settings = "default_limit = 5\n[[exemptions]]\ntype = \"user_id\"\nvalue = \"root\"\n\
                    [progressive_penalties]\nenabled = true\n[identity]\ndefault_tier = \"pro\"\n";
    let files = Files::new(&[
        ("all.toml", &format!("{settings}{TIERS}")),
        ("settings.toml", settings),
        ("typo.toml", &format!("{settings}{TIERS}[[exemption]]\n")),
    ]);
    let keys = "not applied: default_limit, exemptions, progressive_penalties, identity; ";
    for command in ["diff", "apply"] {
        let ran = cli.run(&["rules", command, &files.path("all.toml")]);
        assert!(
            ran.code < 2 && ran.stderr.contains(keys) && ran.stderr.contains("tollgate reload"),
            "{}",
            ran.stderr
        );
        assert!(ran.stdout.contains("tier pro"), "{}", ran.stdout);
    }
    let json = cli.json(&["rules", "apply", &files.path("all.toml")]);
    assert!(json["warnings"][0].as_str().unwrap().contains(keys), "{json}");
    assert!(cli.error(&["rules", "apply", &files.path("settings.toml")]).contains(keys));
    let typo = cli.error(&["rules", "apply", &files.path("typo.toml")]);
    assert!(typo.contains("exemption: unknown key") && !typo.contains("identity"), "{typo}");
}

#[test]
fn applying_the_file_of_the_server_explains_what_to_do() {
    let service = Service::with_config(&format!("{RULES}{TIERS}").replace("description = \"paying\"\n", ""));
    let cli = CliRunner::of(&service);
    let file = service.config_file();
    let file = file.to_str().unwrap();
    for command in ["diff", "apply"] {
        let error = cli.error(&["rules", command, file]);
        let names = "tier \"pro\"";
        assert!(error.contains("rule \"login-guard\", rule \"old\"") && error.contains(names), "{error}");
        let remedy =
            format!("edit {file} and reload it, or remove them from {file}, reload, and write them again");
        assert!(error.contains(&remedy), "{error}");
    }
}
