//! `rules lint` and `rules list` on valid and invalid files.

mod support;

use std::io::Write;
use std::process::Stdio;

use support::{Files, finished, run, tollgate};

const GOOD: &str = r#"
default_limit = 100
[server]
listen = "127.0.0.1:8080"
[counters]
store = "memory"

[[rules]]
name = "bad-net"
priority = 1
action = "block"
when = { ips = ["203.0.113.0/24"] }

[[rules]]
name = "free-tier"
priority = 500
when = { tiers = ["free"], endpoints = ["/api/v1/*"], methods = ["GET"], descriptors = { plan = "eu" } }
per = ["user"]
limits = [{ requests = 1000, window = "1h", burst = 20 }]
"#;

#[test]
fn valid_file_is_summarized() {
    let files = Files::new(&[("tollgate.toml", GOOD)]);
    let path = files.path("tollgate.toml");
    let ran = run(&["rules", "lint", &path]);
    assert_eq!((ran.code, &*ran.stderr), (0, ""));
    assert_eq!(ran.stdout, format!("{path}: no errors, 0 warnings; 3 rules, 2 limits in 2 layers\n"));
    let json = run(&["rules", "lint", &path, "--json"]).json();
    assert_eq!(
        (&json["ok"], &json["rules"], &json["warnings"]),
        (&true.into(), &3.into(), &serde_json::json!([]))
    );
}

#[test]
fn clients_without_a_limit_warn() {
    let text = GOOD.replace("default_limit = 100", "");
    let files = Files::new(&[("tollgate.toml", &*text)]);
    let path = files.path("tollgate.toml");
    let ran = run(&["rules", "lint", &path]);
    let warning = "warning: clients that no rule matches are not limited: add a rule without conditions, or default_limit";
    assert!(ran.stdout.contains(&format!("{path}: {warning}\n")), "{}", ran.stdout);
    assert!(ran.stdout.contains("no errors, 2 warnings;"), "{}", ran.stdout);
    let json = run(&["rules", "lint", &path, "--json"]).json();
    let of_no_rule = |warnings: &serde_json::Value| -> usize {
        warnings.as_array().unwrap().iter().filter(|warning| warning["rule"].is_null()).count()
    };
    assert_eq!(of_no_rule(&json["warnings"]), 1);
}

const FOR_APPLY: &str = r#"
[[rules]]
name = "daily"
per = ["user"]
limits = [{ requests = 1000, window = "1d" }]
[[tiers]]
name = "gold"
description = "paying customers"
limit = 10
window = 60
[[quotas]]
user_id = "a"
tier = "gold"
[[blocks]]
client = "ip:192.0.2.0/24"
until = "2040-01-31T12:00:00Z"
[[limits]]
user_id = "a"
endpoint = "/x"
limit = 5
window_seconds = 60
strategy = "gcra"
"#;

#[test]
fn import_file_is_linted_as_apply_reads_it() {
    let described = FOR_APPLY.split("[[quotas]]").next().unwrap();
    let json = r#"{"version": 7, "next": null, "rules": [{"name": "a", "action": "block", "version": 3, "source": "database"}]}"#;
    let files = Files::new(&[("all.toml", FOR_APPLY), ("tiers.toml", described), ("e.json", json)]);
    let path = files.path("all.toml");
    let ran = run(&["rules", "lint", &path]);
    let shown = "no errors, 0 warnings; 2 rules, 2 limits in 2 layers, for `rules apply`";
    assert_eq!((ran.code, ran.stdout), (0, format!("{path}: {shown}\n")), "{}", ran.stderr);
    for (name, rules) in [("all.toml", 2), ("tiers.toml", 2), ("e.json", 1)] {
        let shown = run(&["rules", "lint", &files.path(name), "--json"]).json();
        assert_eq!((&shown["for"], &shown["rules"]), (&"apply".into(), &rules.into()), "{name}: {shown}");
        assert_eq!(run(&["rules", "list", &files.path(name)]).code, 0, "{name}");
    }
}

#[test]
fn import_file_errors_have_lines() {
    let wrong = FOR_APPLY
        .replace("\"gcra\"", "\"best\"")
        .replace("until = \"2040-01-31T12:00:00Z\"", "for = \"1h\"")
        .replace("tier = \"gold\"", "teir = \"gold\"");
    let twice = format!("{wrong}[[quotas]]\nuser_id = \"a\"\n[sever]\n[server]\n");
    let files = Files::new(&[("all.toml", &twice)]);
    let path = files.path("all.toml");
    let ran = run(&["rules", "lint", &path]);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    for (line, shown) in [
        (13, "quotas[0].teir: unknown key (did you mean tier?)"),
        (16, "blocks[0].for: would start over with each import"),
        (22, "limits[0].strategy: "),
        (24, "quotas[1].user_id: \"a\" is given twice"),
        (25, "sever: unknown key"),
    ] {
        let shown = format!("{path}:{line}: {shown}");
        assert!(lines.iter().any(|line| line.starts_with(&shown)), "{shown}: {}", ran.stdout);
    }
    assert_eq!((ran.code, lines.len()), (2, 6), "{}", ran.stdout);
}

#[test]
fn file_can_be_read_from_stdin() {
    let mut running =
        tollgate().args(["rules", "lint", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    running.stdin.take().unwrap().write_all(b"default_limit = -1").unwrap();
    let ran = finished(running.wait_with_output().unwrap());
    assert_eq!(
        (ran.code, ran.stdout.lines().next().unwrap()),
        (2, "-:1: default_limit: must be between 0 and 4294967295")
    );
}

/// Each file of `bad_rules` starts with the expected output of lint as comments.
#[test]
fn every_error_has_line_and_key() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bad_rules");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let path = path.to_str().unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        let expected: Vec<String> = text
            .lines()
            .map_while(|line| line.strip_prefix("#: "))
            .map(|line| format!("{path}:{line}"))
            .collect();
        let ran = run(&["rules", "lint", path]);
        let lines: Vec<&str> = ran.stdout.lines().collect();
        assert_eq!(lines[..lines.len() - 1], expected, "{path}");
        assert_eq!(ran.code, 2, "{path}");
        assert_eq!(run(&["rules", "list", path]).code, 2, "{path}");
        let json = run(&["rules", "lint", path, "--json"]).json();
        assert_eq!(json["problems"].as_array().unwrap().len(), expected.len(), "{path}");
        seen += 1;
    }
    assert!(seen >= 5);
}

#[test]
fn settings_file_is_linted_as_serve_reads_it() {
    let wrong =
        "[server]\nlisten = \"nope\"\n[counters]\nstroe = \"redis\"\n[prxy]\n[identity]\nipv6_prefix = 1\n";
    let files = Files::new(&[("tollgate.toml", wrong)]);
    let path = files.path("tollgate.toml");
    let ran = run(&["rules", "lint", &path]);
    let expected = format!(
        "{path}:2: server.listen: \"nope\" is not an IP address and port such as \"127.0.0.1:8080\"\n\
         {path}:4: counters.stroe: unknown key (did you mean store?)\n\
         {path}:5: prxy: unknown key (did you mean proxy?)\n\
         {path}:7: identity.ipv6_prefix: must be between 48 and 128\n\
         {path}: 4 errors\n"
    );
    assert_eq!((ran.code, ran.stdout), (2, expected));
    let served = run(&["serve", "--config", &path]);
    for reason in ["server.listen: ", "counters.stroe: ", "prxy: ", "identity.ipv6_prefix: "] {
        assert!(served.stderr.contains(reason), "{}", served.stderr);
    }
}

#[test]
fn oversized_file_is_rejected() {
    let files = Files::new(&[("rules.toml", "")]);
    let path = files.path("rules.toml");
    std::fs::write(&path, "# nothing\n".repeat(1_700_000)).unwrap();
    for command in ["lint", "list"] {
        let ran = run(&["rules", command, &path]);
        assert_eq!((ran.code, &*ran.stdout), (2, ""), "{command}");
        assert_eq!(
            ran.stderr,
            format!("error: cannot read {path}: larger than 16777216 bytes\n"),
            "{command}"
        );
    }
}

#[test]
fn list_ignores_missing_files_of_the_service() {
    let file = "[auth]\nkey_secret_file = \"/nowhere/keys.secret\"\n[callers]\n";
    let files = Files::new(&[("tollgate.toml", file)]);
    let path = files.path("tollgate.toml");
    assert_eq!(run(&["rules", "list", &path]).code, 0);
    let lint = run(&["rules", "lint", &path]);
    assert_eq!(lint.code, 2);
    assert!(
        lint.stdout.starts_with(&format!("{path}:2: auth.key_secret_file: cannot read")),
        "{}",
        lint.stdout
    );
}

#[test]
fn rule_that_refuses_everything_is_a_warning() {
    let lockout = "
[[rules]]
name = \"nothing\"
per = [\"global\"]
limits = [{ requests = 0, window = \"1m\" }]

[[rules]]
name = \"closed\"
priority = 500
action = \"block\"
when = { endpoints = [\"/*\"] }
";
    let files = Files::new(&[("rules.toml", lockout)]);
    let path = files.path("rules.toml");
    let ran = run(&["rules", "lint", &path]);
    let shown: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(ran.code, 0);
    let why = "refuses every request:";
    assert_eq!(
        shown[..2],
        [
            format!("{path}:2: warning: rule \"nothing\" {why} it has no conditions, and its limit is 0"),
            format!("{path}:7: warning: rule \"closed\" {why} it has no conditions, and its action is block"),
        ]
    );
}

#[test]
fn rule_that_never_applies_is_a_warning() {
    let twice = "
[[rules]]
name = \"everyone\"
priority = 1
per = [\"user\"]
limits = [{ requests = 1, window = 1 }]

[[rules]]
name = \"free\"
priority = 2
per = [\"user\"]
when = { tiers = [\"free\"] }
limits = [{ requests = 1, window = 1 }]
";
    let files = Files::new(&[("rules.toml", twice)]);
    let path = files.path("rules.toml");
    let ran = run(&["rules", "lint", &path]);
    assert_eq!(ran.code, 0);
    let warning = "warning: rule \"free\" never applies: \"everyone\" matches the same requests first in the layer \"user\"";
    assert_eq!(ran.stdout.lines().next().unwrap(), format!("{path}:8: {warning}"));
    let json = run(&["rules", "lint", &path, "--json"]).json();
    assert_eq!((&json["warnings"][0]["line"], &json["warnings"][0]["rule"]), (&8.into(), &"free".into()));
}

#[test]
fn missing_file_exits_with_2() {
    let ran = run(&["rules", "lint", "/nowhere/rules.toml"]);
    assert_eq!((ran.code, &*ran.stdout), (2, ""));
    assert!(ran.stderr.starts_with("error: /nowhere/rules.toml: "), "{}", ran.stderr);
}

#[test]
fn rules_are_listed_in_order_of_evaluation() {
    let files = Files::new(&[("tollgate.toml", &*GOOD.replace("default_limit = 100", ""))]);
    let path = files.path("tollgate.toml");
    let expected = "\
PRIORITY  RULE       ACTION  PER   LAYER  WHEN                                                           LIMITS  SOURCE  VERSION
1         bad-net    block   -     -      ips=203.0.113.0/24                                             -  file
500       free-tier  reject  user  user   descriptors.plan=eu endpoints=/api/v1/* methods=GET tiers=free  \
1000/1h burst 20 token_bucket  file
";
    let shown = run(&["rules", "list", &path]);
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!((shown.code, words(&shown.stdout)), (0, words(expected)));
    let json = run(&["rules", "list", &path, "--json"]).json();
    assert_eq!(json["rules"][1]["limits"][0]["window"], "1h");
    assert_eq!(json["rules"][1]["when"]["tiers"][0], "free");
}

#[test]
fn flat_rules_are_noted_and_shared_layers_warn() {
    let text = "default_limit = 100\n[[rules]]\nrule_name = \"free_tier_limit\"\npriority = 700\nuser_tier = \"free\"\n\
                requests_per_hour = 1000\nburst_size = 20\naction = \"throttle\"\n\
                [[rules]]\nrule_name = \"api_v1_limit\"\npriority = 600\nendpoint_pattern = \"/api/v1/*\"\n\
                algorithm = \"sliding_window\"\nrequests_per_second = 100\n";
    let files = Files::new(&[("tollgate.toml", text)]);
    let ran = run(&["rules", "lint", &files.path("tollgate.toml")]);
    assert_eq!(ran.code, 0, "{}", ran.stdout);
    for part in [
        "rule \"free_tier_limit\" never applies to requests that \"api_v1_limit\" matches as well",
        "rule \"free_tier_limit\" has action \"throttle\" without max_delay, which is read as \"reject\"",
        "rules with lower numbers are evaluated first",
        "no errors, 3 warnings",
    ] {
        assert!(ran.stdout.contains(part), "{part}: {}", ran.stdout);
    }
}

#[test]
fn several_files_are_read_as_one() {
    let rule = |name: &str, more: &str| {
        format!(
            "[[rules]]\nname = \"{name}\"\nper = [\"user\"]\n{more}limits = [{{ requests = 1, window = \"1m\" }}]\n"
        )
    };
    let files = Files::new(&[
        ("a.toml", &*rule("a", "priority = 1\n")),
        ("b.toml", &*rule("b", "priority = 2\n")),
        ("again.toml", &*rule("a", "")),
        ("typo.toml", "[[rulez]]\n"),
        ("one.toml", "default_limit = 1\n"),
        ("two.toml", "default_limit = 2\n"),
    ]);
    let (a, b) = (files.path("a.toml"), files.path("b.toml"));
    let ran = run(&["rules", "lint", &a, &b]);
    // `b` is shadowed by a rule of the other file.
    assert!(
        ran.code == 0 && ran.stdout.contains(&format!("{b}:1: warning: rule \"b\" never applies")),
        "{}",
        ran.stdout
    );
    let json = run(&["rules", "lint", &a, &b, "--json"]).json();
    assert_eq!((&json["files"], &json["rules"]), (&serde_json::json!([a, b]), &2.into()));
    assert_eq!((&json["warnings"][0]["file"], &json["warnings"][0]["line"]), (&(*b).into(), &1.into()));
    let ran = run(&["rules", "lint", &a, &files.path("again.toml")]);
    assert!(
        ran.code == 2 && ran.stderr.contains(&format!("rule \"a\" is already defined in {a}:1")),
        "{}",
        ran.stderr
    );
    let ran = run(&["rules", "lint", &files.path("typo.toml"), &a, &files.path("one.toml"), "--json"]);
    assert_eq!((ran.code, &ran.json()["problems"][0]["key"]), (2, &"rulez".into()));
    let ran = run(&["rules", "lint", &files.path("one.toml"), &files.path("two.toml")]);
    assert!(ran.code == 2 && ran.stdout.contains("default_limit: is already set in "), "{}", ran.stdout);
    let listed = run(&["rules", "list", &b, &a, "--json"]).json();
    assert_eq!((&listed["rules"][0]["name"], &listed["rules"][1]["name"]), (&"a".into(), &"b".into()));
}
