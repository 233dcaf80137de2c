//! `rules test`: rules tested against sample requests.

mod support;

use support::{CommandOutput, Files, run};

const RULES: &str = r#"
[server]
listen = "127.0.0.1:8080"

[[rules]]
name = "bad-net"
priority = 1
action = "block"
when = { ips = ["203.0.113.0/24"] }

[[rules]]
name = "slow-lane"
priority = 10
action = "throttle"
max_delay = "10s"
when = { endpoints = ["/slow"] }
per = ["user"]
limits = [{ requests = 1, window = "1s" }]

[[rules]]
name = "monthly"
priority = 20
when = { endpoints = ["/reports"] }
per = ["tenant"]
algorithm = "fixed_window"
limits = [{ requests = 1, window = "month" }]

[[rules]]
name = "free-tier"
when = { tiers = ["free"] }
per = ["user"]
limits = [{ requests = 2, window = "1m" }]
"#;

fn test(tests: &str, more: &[&str]) -> (CommandOutput, String) {
    let files = Files::new(&[("rules.toml", RULES), ("tests.toml", tests)]);
    let path = files.path("tests.toml");
    (run(&[&["rules", "test", &files.path("rules.toml"), &path], more].concat()), path)
}

const PASSING: &str = r#"
[[tests]]
name = "free users get two a minute"
request = { user = "alice", tier = "free", endpoint = "/api/v1/users", method = "GET" }
[[tests.steps]]
repeat = 2
expect = { allowed = true, rule = "free-tier", limit = 2, remaining = 0 }
[[tests.steps]]
expect = { allowed = false, decision = "refused", reason = "over_limit", rule = "free-tier", retry_after = 30 }
[[tests.steps]]
request = { user = "bob" }
expect = { allowed = true, remaining = 1 }
[[tests.steps]]
after = "30s"
expect = { allowed = true, remaining = 0 }
[[tests.steps]]
request = { cost = 3 }
expect = { reason = "cost_exceeds_limit", retry_after = "never" }
[[tests.steps]]
after = "1h"
repeat = 10
every = "30s"
expect = { allowed = true }

[[tests]]
name = "counters are fresh in every test"
request = { user = "alice", tier = "free", endpoint = "/" }
expect = { remaining = 1 }

[[tests]]
name = "one network is blocked"
request = { ip = "203.0.113.9", endpoint = "/" }
expect = { decision = "blocked", rule = "bad-net", allowed = false }

[[tests]]
name = "the slow lane holds requests"
request = { user = "alice", endpoint = "/slow" }
repeat = 3
expect = { allowed = true, delay = "2s" }

[[tests]]
name = "a month ends when it ends"
start = "2026-02-28T23:59:59Z"
request = { tenant = "acme", endpoint = "/reports" }
[[tests.steps]]
expect = { allowed = true }
[[tests.steps]]
expect = { allowed = false, retry_after = 1 }
[[tests.steps]]
after = "1s"
expect = { allowed = true }

[[tests]]
name = "what no rule matches passes"
request = { user = "alice", endpoint = "/", descriptors = { plan = "eu" } }
expect = { allowed = true }
"#;

#[test]
fn passing_tests_exit_with_0() {
    let (ran, _) = test(PASSING, &[]);
    assert_eq!((ran.code, &*ran.stderr), (0, ""), "{}", ran.stdout);
    assert!(ran.stdout.starts_with("ok    free users get two a minute (16 requests)\n"), "{}", ran.stdout);
    assert!(ran.stdout.ends_with("passed: 6 tests, 6 passed, 0 failed\n"), "{}", ran.stdout);
    let (ran, _) = test(PASSING, &["--json"]);
    assert_eq!((ran.code, &ran.json()["passed"], &ran.json()["failed"]), (0, &6.into(), &0.into()));
}

const FAILING: &str = r#"[[tests]]
name = "three are too many"
request = { user = "alice", tier = "free", endpoint = "/" }

[[tests.steps]]
repeat = 3
expect = { allowed = true }

[[tests.steps]]
expect = { allowed = true, rule = "paid", retry_after = 1 }

[[tests]]
name = "two are not"
request = { user = "alice", tier = "free", endpoint = "/" }
repeat = 2
expect = { allowed = true }
"#;

#[test]
fn mismatches_show_step_and_line_and_exit_with_1() {
    let (ran, path) = test(FAILING, &[]);
    let expected = format!(
        "FAIL  three are too many (4 requests)
      {path}:5: step 1, request 3 of 3: expected allowed = true, got false
      {path}:9: step 2: expected allowed = true, got false
      {path}:9: step 2: expected rule = \"paid\", got \"free-tier\"
      {path}:9: step 2: expected retry_after = 1, got 30
ok    two are not (2 requests)
failed: 2 tests, 1 passed, 1 failed
"
    );
    assert_eq!((ran.code, ran.stdout), (1, expected));
}

#[test]
fn mismatches_are_reported_as_json() {
    let (ran, _) = test(FAILING, &["--json"]);
    assert_eq!(ran.code, 1);
    let test = &ran.json()["tests"][0];
    assert_eq!(
        (&test["name"], &test["line"], &test["passed"]),
        (&"three are too many".into(), &1.into(), &false.into())
    );
    let expected = serde_json::json!(
        {"step": 2, "line": 9, "request": null, "key": "retry_after", "expected": "1", "actual": "30"});
    assert_eq!(test["mismatches"][3], expected);
}

#[test]
fn test_file_errors_are_reported_all_at_once() {
    let mistaken = r#"[[tests]]
name = 3
request = { usr = "a", endpoint = "/a/%zz", ip = "here", descriptors = { plan = 1 } }
[[tests.steps]]
repeat = 0
[[tests.steps]]
after = "soon"
expect = {}
[[tests.steps]]
expect = { allowed = "yes", retry_after = "1s", decision = "maybe" }
[[tests]]
name = "b"
start = "yesterday"
expect = { allowed = true }
[[tests]]
name = "c"
request = { user = "a" }
expect = { allowed = true }
"#;
    let (ran, path) = test(mistaken, &[]);
    let expected = [
        "2: tests[0].name: must be a string, not an integer",
        "3: tests[0].request.endpoint: the endpoint has a malformed percent-escape at byte 3",
        "3: tests[0].request.ip: \"here\" is not an address",
        "3: tests[0].request.descriptors.plan: must be a string, not an integer",
        "3: tests[0].request.usr: unknown key (did you mean user?)",
        "4: tests[0].steps[0].expect: is required, for example { allowed = true }",
        "5: tests[0].steps[0].repeat: must be between 1 and 1000000",
        "7: tests[0].steps[1].after: \"soon\" is not a duration such as \"90s\", \"5m\", \"1h30m\" or \"7d\"",
        "8: tests[0].steps[1].expect.allowed: is required, or another expectation",
        "10: tests[0].steps[2].expect.allowed: must be true or false, not a string",
        "10: tests[0].steps[2].expect.decision: \"maybe\" is not one of admitted, refused, blocked",
        "10: tests[0].steps[2].expect.retry_after: must be a number of seconds or \"never\"",
        "13: tests[1].start: must be a time as a string, such as \"2026-03-29T00:30:00Z\"",
        "17: tests[2].request: requires an endpoint",
    ];
    let mut lines: Vec<String> = ran.stderr.lines().skip(1).map(str::to_owned).collect();
    let mut expected: Vec<String> = expected.iter().map(|line| format!("{path}:{line}")).collect();
    lines.sort();
    expected.sort();
    assert_eq!(lines, expected);
    assert_eq!((ran.code, &*ran.stdout), (2, ""));
    let (ran, _) = test(mistaken, &["--json"]);
    assert_eq!(ran.json()["error"]["problems"].as_array().unwrap().len(), expected.len());
}

#[test]
fn file_without_tests_is_an_error() {
    for tests in ["", "tests = []\n"] {
        let (ran, _) = test(tests, &[]);
        assert_eq!(ran.code, 2);
        assert!(ran.stderr.contains("tests: is empty: start a test with [[tests]]"), "{}", ran.stderr);
    }
    let (ran, _) = test("[[tests]]\nname = \"a\"\nrequest = { endpoint = \"/\" }\nsteps = []\n", &[]);
    assert_eq!(ran.code, 2, "{}", ran.stdout);
}

#[test]
fn rule_errors_are_reported_before_tests_run() {
    let files = Files::new(&[("rules.toml", "default_limit = -1\n"), ("tests.toml", PASSING)]);
    let ran = run(&["rules", "test", &files.path("rules.toml"), &files.path("tests.toml")]);
    assert_eq!((ran.code, &*ran.stdout), (2, ""));
    assert!(ran.stderr.contains("rules.toml:1: default_limit: must be between"), "{}", ran.stderr);
}

#[test]
fn help_example_passes() {
    let help = run(&["rules", "test", "--help"]).stdout;
    let example = help.split("A test file:\n").nth(1).unwrap().split("\nA test has").next().unwrap();
    let (ran, _) = test(example, &[]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
}

#[test]
fn addresses_are_grouped_as_in_the_service() {
    let rules = "[[rules]]\nname = \"a\"\nper = [\"ip\"]\nlimits = [{ requests = 1, window = \"1m\" }]\n";
    let tests = r#"
[[tests]]
name = "two addresses of one /64"
request = { ip = "2001:db8::1", endpoint = "/" }
[[tests.steps]]
expect = { allowed = true }
[[tests.steps]]
request = { ip = "2001:db8::2" }
expect = { allowed = false }
"#;
    let by_host = format!("[identity]\nipv6_prefix = 128\n{rules}");
    let files = Files::new(&[("by_block.toml", rules), ("by_host.toml", &by_host), ("tests.toml", tests)]);
    assert_eq!(run(&["rules", "test", &files.path("by_block.toml"), &files.path("tests.toml")]).code, 0);
    assert_eq!(run(&["rules", "test", &files.path("by_host.toml"), &files.path("tests.toml")]).code, 1);
}

#[test]
fn identifiers_are_normalized_as_in_the_service() {
    let rules =
        "[[rules]]\nname = \"a\"\nper = [\"user\", \"endpoint\", \"method\"]\nrequests_per_hour = 1\n";
    let tests = r#"
[[tests]]
name = "one user, one path"
request = { user = "Alice", endpoint = "/Search", method = "GET" }
[[tests.steps]]
expect = { allowed = true }
[[tests.steps]]
request = { user = "ALICE", endpoint = "/search" }
expect = { allowed = false }
[[tests.steps]]
request = { method = "HEAD" }
expect = { allowed = true }
"#;
    let normalizing = format!(
        "[identity]\nnormalize.user_id = \"casefold\"\nignore_path_case = true\nhead = \"separate\"\n{rules}"
    );
    let wrong = normalizing.replace("casefold", "lower");
    let files = Files::new(&[
        ("exact.toml", rules),
        ("normalizing.toml", &normalizing),
        ("wrong.toml", &wrong),
        ("tests.toml", tests),
    ]);
    let test = |rules: &str| run(&["rules", "test", &files.path(rules), &files.path("tests.toml")]);
    assert_eq!((test("exact.toml").code, test("normalizing.toml").code), (1, 0));
    let refused = test("wrong.toml");
    let shown =
        format!("{}:2: identity.normalize.user_id: \"lower\" is not one of", files.path("wrong.toml"));
    assert!(refused.code == 2 && refused.stderr.contains(&shown), "{}", refused.stderr);
    let linted = run(&["rules", "lint", &files.path("wrong.toml")]);
    assert!(
        linted.code != 0 && format!("{}{}", linted.stdout, linted.stderr).contains(&shown),
        "{}",
        linted.stderr
    );
}

#[test]
fn rules_of_several_files_are_tested_together() {
    let rule = |name: &str, requests: u32| {
        format!(
            "[[rules]]\nname = \"{name}\"\nper = [\"{name}\"]\nlimits = [{{ requests = {requests}, window = \"1m\" }}]\n"
        )
    };
    let tests = "[[tests]]\nname = \"the stricter one decides\"\nrequest = { user = \"a\", ip = \"192.0.2.1\", endpoint = \"/\" }\n\
                 [[tests.steps]]\nrepeat = 2\nexpect = { allowed = true }\n\
                 [[tests.steps]]\nexpect = { allowed = false, rule = \"ip\" }\n";
    let files =
        Files::new(&[("a.toml", &*rule("user", 5)), ("b.toml", &*rule("ip", 2)), ("tests.toml", tests)]);
    let ran =
        run(&["rules", "test", &files.path("a.toml"), &files.path("b.toml"), &files.path("tests.toml")]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
}
