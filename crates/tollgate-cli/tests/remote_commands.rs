//! Requests, responses and connection errors of the client, against a mock server.

mod support;

use std::net::TcpListener;

use support::mock_server::{MockServer, respond};
use support::{CommandOutput, finished, run, tollgate};

const REFUSED: &str = r#"{"allowed":false,"limit":2,"remaining":0,"reset_at":1,"strategy":"token_bucket","retry_after":30,"rule":"free-tier"}"#;
const ADMITTED: &str =
    r#"{"allowed":true,"limit":2,"remaining":1,"reset_at":1,"strategy":"token_bucket","rule":"free-tier"}"#;
const CHECK: [&str; 5] = ["check", "--user", "alice", "--endpoint", "/a"];

/// Runs a command against one mock response; returns its output and the request it sent.
fn run_against(status: &str, body: &str, args: &[&str]) -> (CommandOutput, String) {
    let (ran, sent) = support::mock_server::run_against(&[respond(status, body)], args);
    (ran, sent[0].text().to_owned())
}

fn envelope(code: &str, details: &str) -> String {
    format!(
        r#"{{"error":{{"code":"{code}","message":"it is wrong","details":{details},"request_id":"req_1"}}}}"#
    )
}

#[test]
fn admitted_request_exits_with_0() {
    let (ran, sent) = run_against("200 OK", ADMITTED, &CHECK);
    assert_eq!((ran.code, &*ran.stderr), (0, ""));
    assert_eq!(ran.stdout, "admitted by free-tier: 1 of 2 left, token_bucket\n");
    assert!(sent.starts_with("POST /v1/rate-limit/check HTTP/1.1\r\n"), "{sent}");
    assert!(sent.ends_with("\r\n\r\n{\"endpoint\":\"/a\",\"user_id\":\"alice\"}"), "{sent}");
}

#[test]
fn refused_or_blocked_request_exits_with_1() {
    let (ran, _) = run_against("429 Too Many Requests", REFUSED, &CHECK);
    assert_eq!((ran.code, &*ran.stderr), (1, ""));
    assert_eq!(ran.stdout, "refused by free-tier: 0 of 2 left, retry in 30s, token_bucket\n");
    let blocked =
        r#"{"allowed":false,"decision":"blocked","rule":"bad","reason":"abuse","blocked_until":null}"#;
    let (ran, _) = run_against("403 Forbidden", blocked, &CHECK);
    assert_eq!((ran.code, &*ran.stdout), (1, "blocked by bad: abuse\n"));
}

#[test]
fn json_is_printed_unchanged() {
    for (status, body, code) in [("200 OK", ADMITTED, 0), ("429 Too Many Requests", REFUSED, 1)] {
        let (ran, _) = run_against(status, body, &[&CHECK[..], &["--json"]].concat());
        assert_eq!((ran.code, ran.stdout), (code, format!("{body}\n")));
    }
    let envelope = envelope("INVALID_INPUT", "{}");
    let (ran, _) = run_against("400 Bad Request", &envelope, &[&CHECK[..], &["--json"]].concat());
    assert_eq!((ran.code, ran.stdout), (2, format!("{envelope}\n")));
}

#[test]
fn api_error_shows_code_field_and_reason() {
    let whole = envelope("INVALID_INPUT", r#"{"field":"endpoint","reason":"must not be empty"}"#);
    let (ran, _) = run_against("400 Bad Request", &whole, &CHECK);
    assert_eq!((ran.code, &*ran.stdout), (2, ""));
    assert_eq!(ran.stderr, "error: it is wrong (INVALID_INPUT, endpoint: must not be empty)\n");
    for command in [&["status"][..], &["reset"], &["explain"]] {
        let (ran, _) = run_against(
            "401 Unauthorized",
            &envelope("UNAUTHORIZED", "null"),
            &[command, &CHECK[1..]].concat(),
        );
        let (shown, hint) = ran.stderr.split_once('\n').unwrap();
        assert_eq!((ran.code, shown), (2, "error: it is wrong (UNAUTHORIZED)"));
        assert!(hint.starts_with("hint: set TOLLGATE_KEY"), "{hint}");
    }
    let (ran, _) = run_against("503 Service Unavailable", &envelope("SERVICE_UNAVAILABLE", "{}"), &CHECK);
    assert_eq!(ran.code, 2, "an outage is not a refusal");
}

#[test]
fn response_without_decision_is_an_error() {
    let (ran, _) = run_against("200 OK", "{}", &CHECK);
    assert_eq!((ran.code, &*ran.stdout), (2, ""));
    let (ran, _) = run_against("502 Bad Gateway", "<html>", &CHECK);
    assert_eq!(ran.code, 2);
    assert!(
        ran.stderr.contains("returned status 502 Bad Gateway without JSON: is it a tollgate server?"),
        "{}",
        ran.stderr
    );
}

#[test]
fn query_values_are_escaped() {
    let body = r#"{"user_id":"a/b","endpoint":"/x","limit":1000,"remaining":750,"reset_at":1,"strategy":"gcra","usage_percentage":25.0}"#;
    let (ran, sent) = run_against("200 OK", body, &["status", "--user", "a/b c", "--endpoint", "/x?y=é"]);
    let line = "GET /v1/rate-limit/status?endpoint=%2Fx%3Fy%3D%C3%A9&user_id=a%2Fb%20c HTTP/1.1\r\n";
    assert!(sent.starts_with(line), "{sent}");
    assert_eq!(ran.stdout, "a/b c on /x?y=é: 750 of 1000 left, 25.0 % used, gcra\n");
    assert_eq!(ran.code, 0);
}

#[test]
fn caller_limit_error_shows_retry_time() {
    let limited = envelope("CALLER_LIMITED", r#"{"retry_after_us":89000001}"#);
    let (ran, _) = run_against("429 Too Many Requests", &limited, &CHECK);
    assert_eq!(ran.code, 2);
    assert!(ran.stderr.contains("it is wrong (CALLER_LIMITED, retry in 1m 30s)"), "{}", ran.stderr);
}

#[test]
fn status_shows_blocks_cooldowns_and_bursts() {
    let shown =
        |body: &str| run_against("200 OK", body, &["status", "--user", "a", "--endpoint", "/x"]).0.stdout;
    let unused =
        r#"{"allowed":true,"limit":1000,"remaining":20,"capacity":20,"reset_at":1,"usage_percentage":0.0}"#;
    assert_eq!(shown(unused), "a on /x: 20 of 20 available now, 1000, 0.0 % used\n");
    let blocked = r#"{"allowed":false,"limit":null,"remaining":null,"decision":"blocked","reason":"abuse","blocked_until":1}"#;
    assert_eq!(shown(blocked), "a on /x: blocked, abuse, ends now\n");
    let permanent = r#"{"allowed":false,"limit":null,"decision":"blocked","reason":"","blocked_until":null}"#;
    assert_eq!(shown(permanent), "a on /x: blocked\n");
    let cooling = r#"{"allowed":false,"limit":3,"remaining":0,"capacity":3,"reset_at":1,"usage_percentage":100.0,
        "reason":"cooldown","cooldown_until":1,"strategy":"gcra"}"#;
    assert_eq!(shown(cooling), "a on /x: in cooldown, ends now\n");
}

#[test]
fn reset_sends_the_key_and_reports_the_counters() {
    let response = respond("200 OK", r#"{"user_id":"alice","endpoint":"/a","counters":2}"#);
    let server = MockServer::new(&[response]);
    let mut command = tollgate();
    command.args(["reset", "--user", "alice", "--endpoint", "/a", "--url", &server.url]);
    let ran = finished(command.env("TOLLGATE_KEY", "hunter2\n").output().unwrap());
    assert_eq!((ran.code, &*ran.stdout), (0, "reset alice on /a: 2 counters\n"));
    let sent = server.sent()[0].text().to_owned();
    assert!(sent.contains("\r\nauthorization: Bearer hunter2\r\n"), "{sent}");
    assert!(sent.starts_with("POST /v1/rate-limit/reset HTTP/1.1\r\n"), "{sent}");
}

#[test]
fn explain_shows_every_rule() {
    let body = r#"{"allowed":false,"rule":"free","retry_after":30,"rules":[
        {"name":"free","matched":true,"reason":"matches: its limits apply","action":"reject","priority":500,"layer":"user",
         "limits":[{"limit":2,"remaining":0,"retry_after":30,"reset_at":1,"window_seconds":60,"strategy":"gcra"}]},
        {"name":"pro","matched":false,"reason":"the tier does not match","action":"reject","priority":600,"layer":"user","limits":[]}]}"#;
    let (ran, sent) = run_against("200 OK", body, &[&["explain"], &CHECK[1..]].concat());
    assert!(sent.starts_with("POST /v1/rate-limit/explain HTTP/1.1\r\n"), "{sent}");
    let expected = "\
refused by free: retry in 30s

MATCHED  PRIORITY  RULE  ACTION  LAYER  LIMIT      REMAINING  RESET  RETRY  WHY
yes      500       free  reject  user   2/1m gcra  0          now    30s    matches: its limits apply
no       600       pro   reject  user                                       the tier does not match
";
    assert_eq!((ran.code, &*ran.stdout), (0, expected));
}

#[test]
fn refused_connection_suggests_starting_the_server() {
    let url = format!("http://127.0.0.1:{}", tollgate_testkit::free_port());
    let ran = run(&[&CHECK[..], &["--url", &url]].concat());
    let expected = format!(
        "error: cannot connect to {url}: connection refused; is tollgate running? start it with `tollgate serve`\n"
    );
    assert_eq!((ran.code, ran.stderr), (2, expected));
    let ran = run(&[&CHECK[..], &["--url", &url, "--json"]].concat());
    assert_eq!(ran.json()["error"]["code"], "SERVICE_UNAVAILABLE");
}

#[test]
fn closed_connection_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || drop(listener.accept().unwrap()));
    let ran = run(&[&CHECK[..], &["--url", &url]].concat());
    server.join().unwrap();
    let expected = format!(
        "error: {url}: the server closed the connection without a response: use https:// if the port expects it\n"
    );
    assert_eq!((ran.code, ran.stderr), (2, expected));
}

#[test]
fn invalid_url_is_explained() {
    for (url, reason) in [
        ("ftp://a", "must look like http://127.0.0.1:8080 or https://limits.example"),
        ("http://me:hunter2@a", "pass the key with --key or TOLLGATE_KEY"),
        ("127.0.0.1:8080", "must look like http://127.0.0.1:8080"),
    ] {
        let ran = run(&[&CHECK[..], &["--url", url]].concat());
        assert_eq!(ran.code, 2);
        assert!(ran.stderr.contains(reason), "{}", ran.stderr);
        assert!(!ran.stderr.contains("hunter2"), "{}", ran.stderr);
    }
}

#[test]
fn secrets_appear_in_no_help_and_no_error() {
    let (ran, sent) = run_against(
        "401 Unauthorized",
        &envelope("UNAUTHORIZED", "{}"),
        &[&CHECK[..], &["--key=hunter2"]].concat(),
    );
    assert!(sent.contains("Bearer hunter2"));
    let runs = [
        ran,
        run(&[&CHECK[..], &["--key=hunter2", "--url=http://127.0.0.1:1"]].concat()),
        run(&[&CHECK[..], &["--key=hunter2\u{7}", "--url=http://127.0.0.1:1"]].concat()),
        run(&[&CHECK[..], &["--key=hunter2", "--key=hunter2"]].concat()),
        run(&[&CHECK[..], &["--api-key=hunter2", "--cost=many"]].concat()),
        run(&[&CHECK[..], &["--api-key=hunter2", "--url=http://127.0.0.1:1"]].concat()),
        support::finished(
            tollgate().args(["check", "--help"]).env("TOLLGATE_KEY", "hunter2").output().unwrap(),
        ),
        support::finished(tollgate().arg("check").env("TOLLGATE_KEY", "hunter2").output().unwrap()),
    ];
    for ran in runs {
        assert!(
            !ran.stdout.contains("hunter2") && !ran.stderr.contains("hunter2"),
            "{}{}",
            ran.stdout,
            ran.stderr
        );
    }
}

#[test]
fn other_names_of_flags_are_accepted_with_a_hint() {
    let args = ["check", "--user-id", "alice", "--endpoint", "/a", "--strategy=gcra"];
    let (ran, sent) = run_against("200 OK", ADMITTED, &args);
    assert_eq!(ran.stderr, "hint: --user-id is read as --user\nhint: --strategy is read as --algorithm\n");
    assert!(sent.contains("\"user_id\":\"alice\"") && sent.contains("\"strategy\":\"gcra\""), "{sent}");
    assert!(!run(&["check", "--help"]).stdout.contains("--strategy"));
}
