//! Files under version control and the real service.

use crate::common::Files;
use crate::harness::{Service, wait_for};
use crate::operator::Operator;

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
fn what_is_exported_is_what_was_applied() {
    let service = service();
    let operator = Operator::of(&service);
    let files = Files::new(&[("rules.toml", RULES), ("tiers.toml", TIERS)]);
    let (rules, tiers) = (files.path("rules.toml"), files.path("tiers.toml"));
    let apply = ["rules", "apply", &rules, &tiers];
    let dry = operator.done(&[&apply[..], &["--dry-run"]].concat());
    assert!(dry.ends_with("3 would be created, 0 updated, 0 deleted, 0 unchanged\n"), "{dry}");
    assert_eq!(operator.run(&["rules", "diff", &rules, &tiers]).code, 1);
    let done = operator.done(&apply);
    assert!(
        done.contains("+ rule login-guard\n")
            && done.ends_with("3 created, 0 updated, 0 deleted, 0 unchanged\n"),
        "{done}"
    );
    assert_eq!(operator.done(&apply), "no changes, 3 unchanged\n");
    assert_eq!(operator.run(&["rules", "diff", &rules, &tiers, "--prune"]).code, 0);
    let exported = operator.done(&["rules", "export"]);
    let again =
        Files::new(&[("e.toml", &exported), ("e.json", &operator.done(&["rules", "export", "--json"]))]);
    for name in ["e.toml", "e.json"] {
        let ran = operator.run(&["rules", "apply", &again.path(name), "--prune"]);
        assert_eq!((ran.code, &*ran.stdout), (0, "no changes, 3 unchanged\n"), "{exported}{}", ran.stderr);
    }
}

#[test]
fn a_block_of_a_file_ends_at_an_instant_and_applied_again_it_is_the_same() {
    let service = service();
    let operator = Operator::of(&service);
    let block = "[[blocks]]\nclient = \"user:a\"\nreason = \"r\"\n";
    let files = Files::new(&[
        ("until.toml", &format!("{block}until = \"2040-01-31T12:00:00Z\"\n")),
        ("for.toml", &format!("{block}for = \"1h\"\n")),
    ]);
    let ran = operator.run(&["rules", "apply", &files.path("for.toml")]);
    assert!(
        ran.code == 2 && ran.stderr.contains("for: would start over") && ran.stderr.contains("until = "),
        "{}",
        ran.stderr
    );
    let apply = ["rules", "apply", &files.path("until.toml")];
    assert!(operator.done(&apply).ends_with("1 created, 0 updated, 0 deleted, 0 unchanged\n"));
    assert_eq!(operator.done(&apply), "no changes, 1 unchanged\n");
}

#[test]
fn a_plan_has_the_words_of_the_files() {
    let service = service();
    let operator = Operator::of(&service);
    let limit = "[[limits]]\nuser_id = \"a\"\nendpoint = \"/x\"\nlimit = 5\nwindow_seconds = 60\nstrategy = \"gcra\"\n";
    let files = Files::new(&[("limits.toml", limit)]);
    let done = operator.done(&["rules", "apply", &files.path("limits.toml")]);
    assert!(done.starts_with("+ limit a /x\n    + ") && !done.contains("user_endpoint_limit"), "{done}");
}

#[test]
fn an_update_names_what_changes_and_pruning_is_explicit() {
    let service = service();
    let operator = Operator::of(&service);
    let files = Files::new(&[("all.toml", &format!("{RULES}{TIERS}"))]);
    operator.done(&["rules", "apply", &files.path("all.toml")]);
    let fewer = RULES
        .replace("priority = 5", "priority = 6")
        .split("[[rules]]\nname = \"old\"")
        .next()
        .unwrap()
        .to_owned();
    let files = Files::new(&[("r.toml", &fewer)]);
    let apply = ["rules", "apply", &files.path("r.toml")];
    let done = operator.done(&apply);
    assert_eq!(
        done,
        "~ rule login-guard\n    - priority = 5\n    + priority = 6\n0 created, 1 updated, 0 deleted, 0 unchanged\n"
    );
    let refused = operator.run(&[&apply[..], &["--prune"]].concat());
    assert!(
        refused.code == 2 && refused.stdout.starts_with("- rule old\n"),
        "{}{}",
        refused.stdout,
        refused.stderr
    );
    assert!(operator.done(&["rules", "get", "old"]).contains("name = \"old\""));
    let done = operator.done(&[&apply[..], &["--prune", "--yes"]].concat());
    assert!(done.ends_with("0 created, 0 updated, 1 deleted, 1 unchanged\n"), "{done}");
    assert!(
        operator.done(&["tiers", "get", "pro"]).contains("paying"),
        "a kind that the files do not hold stays"
    );
}

#[test]
fn all_of_a_file_is_applied_or_nothing() {
    let service = Service::with_config("[[rules]]\nname = \"old\"\naction = \"allow\"\n");
    let operator = Operator::of(&service);
    let files = Files::new(&[("r.toml", RULES)]);
    let error = operator.error(&["rules", "apply", &files.path("r.toml")]);
    assert!(error.contains("old") && error.contains("tollgate.toml"), "{error}");
    assert!(operator.error(&["rules", "get", "login-guard"]).contains("NOT_FOUND"));
}

#[test]
fn of_those_who_apply_at_once_each_is_told_what_became_of_it() {
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
                // A node that has not followed yet says so before anything is changed: it is asked again.
                wait_for("an outcome", || {
                    let ran = Operator::of(service).run(&["rules", "apply", &files.path("r.toml")]);
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
        assert!(
            *code == 0 || stderr.contains("changed by somebody else since the plan was made"),
            "{stderr}"
        );
    }
    let rule = Operator::of(&service).json(&["rules", "get", "r"]);
    assert!(done.contains(&rule["priority"].as_u64().unwrap()), "{rule} by none of {done:?}");
    let trail = Operator::of(&service).json(&["audit", "--kind", "rule"]);
    assert_eq!(trail["entries"].as_array().unwrap().len(), done.len(), "{trail}");
}
