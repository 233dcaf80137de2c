//! Limits of callers, and fairness between batches and single checks.

use std::fs;
use std::io::Write;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tempfile::TempDir;

use crate::harness::{Answer, Service, read_answer, wait_for};

const BATCH: &str = "/v1/rate-limit/batch-check";
/// Ten per hour: nothing is restored while a test runs.
const TEN_PER_HOUR: &str =
    "default_limit = 1000\ndefault_window = \"1h\"\n[callers]\nlimit = 10\nwindow = \"1h\"\n";
/// The keys are `checker-key` and `reader-key`.
const KEYS: &str = r#"
[[auth.callers]]
name = "checker"
key_sha256 = "df939c9023364b1468dd2ecb77f1ee54d0e36c867b310e251a5c4fc15735e421"
scopes = ["check"]
[[auth.callers]]
name = "reader"
key_sha256 = "ec4408df15da46b328f6f3246fa723d0aa6cb0f0a0dd9c4626080ab1b02aa3b2"
scopes = ["read"]
"#;
const CHECK: &str = r#"{"user_id":"a","endpoint":"/x"}"#;

fn batch_of(count: usize) -> String {
    format!(r#"{{"checks":[{}]}}"#, vec![CHECK; count].join(","))
}

/// The remaining requests of the client, read by a caller without a limit.
fn left_for_the_client(service: &Service) -> u64 {
    let status = service.admin("GET", "/v1/rate-limit/status?user_id=a&endpoint=/x", "");
    status.json()["remaining"].as_u64().unwrap()
}

/// Asserts a response that cannot be mistaken for the refusal of a client.
#[track_caller]
fn assert_caller_limited(answer: &Answer) {
    assert_eq!((answer.status, &*answer.error().1), (429, "CALLER_LIMITED"), "{}", answer.text);
    assert!(answer.json().get("allowed").is_none() && answer.json().get("decision").is_none());
    let is_client_header = |name: &str| name.contains("ratelimit");
    assert!(!answer.headers.iter().any(|(name, _)| is_client_header(name)), "{:?}", answer.headers);
    let exact = answer.json()["error"]["details"]["retry_after_us"].as_u64().unwrap();
    let rounded: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!(exact > 0 && rounded == exact.div_ceil(1_000_000), "{exact} {rounded}");
}

/// How many checks pass before one is refused.
fn passing(mut check: impl FnMut() -> Answer) -> usize {
    (0..100).take_while(|_| check().status == 200).count()
}

#[test]
fn batch_is_charged_per_item_or_refused_whole() {
    let service = Service::with_config(TEN_PER_HOUR);
    assert_eq!(service.post(BATCH, &batch_of(6)).status, 200);
    assert_caller_limited(&service.post(BATCH, &batch_of(5)));
    assert_eq!(left_for_the_client(&service), 994, "the client must not be charged");
    assert_eq!(service.post(BATCH, &batch_of(4)).status, 200, "the caller must not be charged");
    let refused = service.check("a", "/x");
    assert_caller_limited(&refused);
    assert_caller_limited(&service.post(BATCH, &batch_of(1)));
    assert_eq!(left_for_the_client(&service), 990);
    assert_eq!(service.metric("tollgate_callers_refused_total"), Some(3.0));
}

#[test]
fn batch_above_the_limit_gets_no_retry_after() {
    let service = Service::with_config(TEN_PER_HOUR);
    for _ in 0..3 {
        let answer = service.post(BATCH, &batch_of(11));
        assert_eq!(answer.error(), (413, "PAYLOAD_TOO_LARGE".to_owned(), "checks".to_owned()));
        let reason = answer.json()["error"]["details"]["reason"].clone();
        assert_eq!(reason, "must have at most 10 checks (limit of the caller, [callers]), not 11");
        assert_eq!(answer.header("retry-after"), None);
    }
    assert_eq!(left_for_the_client(&service), 1_000);
    let larger = TEN_PER_HOUR.replace("[callers]\n", "[callers]\nburst = 1000\n");
    let service = Service::with_config(&larger);
    assert_eq!(service.post(BATCH, &batch_of(1_000)).status, 200, "the burst bounds a batch");
}

#[test]
fn every_request_counts_except_probes() {
    let service = Service::with_config(TEN_PER_HOUR);
    for path in ["/healthz", "/readyz", "/metrics", "/openapi.json", "/docs", "/"] {
        (0..20).for_each(|_| drop(service.get(path)));
        (0..20).for_each(|_| assert_eq!(service.post(path, "").status, 405));
    }
    let looked = service.get("/v1/rate-limit/status?user_id=a&endpoint=/x");
    assert_eq!((looked.status, looked.json()["remaining"].as_u64()), (200, Some(1_000)));
    assert_eq!(service.post("/v1/rate-limit/explain", CHECK).status, 200);
    assert_eq!(service.post("/v1/rate-limit/check", "{").status, 400);
    assert_eq!(service.post(BATCH, "{").status, 400);
    assert_eq!(service.post(BATCH, &batch_of(1_001)).status, 413);
    assert_eq!(service.post(BATCH, r#"{"checks":[]}"#).status, 200);
    assert_eq!(passing(|| service.check("a", "/x")), 4, "six were used");
    for path in ["/healthz", "/readyz", "/metrics", "/openapi.json"] {
        assert_eq!(service.get(path).status, 200, "{path}");
    }
    assert_caller_limited(&service.get("/v1/rate-limit/status?user_id=a&endpoint=/x"));
    assert_caller_limited(&service.post("/v1/rate-limit/explain", CHECK));
}

#[test]
fn unrouted_requests_count_for_their_address() {
    let service = Service::with_config(&[TEN_PER_HOUR, KEYS].concat());
    assert_eq!(service.get("/nowhere").status, 404);
    assert_eq!(service.get("/v1/rate-limit/check").status, 405);
    assert_eq!(service.with_key("checker-key", "GET", "/v1/nowhere", "").status, 404);
    assert_eq!(passing(|| service.check("a", "/x")), 7, "three were used");
    assert_caller_limited(&service.get("/nowhere"));
    assert_caller_limited(&service.get("/v1/rate-limit/check"));
    assert_eq!(service.get("/healthz").status, 200);
    assert_eq!(service.post("/healthz", "").status, 405);
    let checker = || service.with_key("checker-key", "POST", "/v1/rate-limit/check", CHECK);
    assert_eq!(passing(checker), 10, "each key has its own limit");
}

#[test]
fn callers_are_separate_and_admins_unlimited() {
    let service = Service::with_config(&[TEN_PER_HOUR, KEYS].concat());
    assert_eq!(passing(|| service.check("a", "/x")), 10);
    let checker = || service.with_key("checker-key", "POST", "/v1/rate-limit/check", CHECK);
    assert_eq!(passing(checker), 10, "each key has its own limit");
    assert_caller_limited(&checker());
    let rules = || service.with_key("reader-key", "GET", "/v1/admin/rules", "");
    assert_eq!(passing(rules), 10, "reads must count too");
    assert_caller_limited(&rules());
    assert_eq!(passing(|| service.admin("POST", "/v1/rate-limit/check", CHECK)), 100);
    assert_eq!(service.admin("POST", BATCH, &batch_of(1_000)).status, 200);
    assert_eq!(service.with_key("wrong", "GET", "/v1/admin/rules", "").status, 401, "requests of no caller");
}

#[test]
fn each_api_key_has_its_own_caller_limit() {
    let service = Service::with_config(TEN_PER_HOUR);
    let make =
        |body: &str| service.admin("POST", "/v1/admin/keys", body).json()["key"].as_str().unwrap().to_owned();
    let operator = make(r#"{"name":"operator","scopes":["admin"]}"#);
    let gateway = make(r#"{"name":"gateway","scopes":["check"]}"#);
    let bound = make(r#"{"name":"bound","scopes":["admin"],"tenant":"acme"}"#);
    let checks = |key: &str| passing(|| service.with_key(key, "POST", "/v1/rate-limit/check", CHECK));
    assert_eq!((checks(&operator), checks(&gateway), checks(&bound)), (100, 10, 10));
}

#[test]
fn replay_counts_once_and_limited_batch_can_retry() {
    let service = Service::with_config(TEN_PER_HOUR);
    let keyed = |key: &str, count: usize| {
        service.post(BATCH, &batch_of(count).replacen('{', &format!(r#"{{"idempotency_key":"{key}","#), 1))
    };
    assert_eq!(keyed("a", 5).json()["replayed"], false);
    assert_caller_limited(&keyed("b", 6));
    assert_eq!(keyed("b", 5).json()["error"], json!(null), "a limited batch must not use up its key");
    assert_caller_limited(&keyed("a", 5));

    let service = Service::with_config(TEN_PER_HOUR);
    let keyed =
        |count: usize| service.post(BATCH, &batch_of(count).replacen('{', r#"{"idempotency_key":"k","#, 1));
    assert_eq!(keyed(5).json()["replayed"], false);
    assert_eq!(keyed(5).json()["replayed"], true);
    assert_eq!(keyed(4).status, 422, "another body");
    assert_eq!(passing(|| service.check("a", "/x")), 3, "five, and one for each other request");
}

#[test]
fn reload_changes_the_limit_and_keeps_usage() {
    let service = Service::with_config("default_limit = 1000");
    let reload = |config: &str| {
        fs::write(service.config_file(), config).unwrap();
        let answer = service.admin("POST", "/v1/admin/reload", "");
        assert_eq!((answer.status, &answer.json()["needs_restart"]), (200, &json!([])), "{}", answer.text);
    };
    assert_eq!(passing(|| service.check("a", "/x")), 100, "off by default");
    reload(TEN_PER_HOUR);
    assert_eq!(passing(|| service.check("a", "/x")), 10);
    reload(&TEN_PER_HOUR.replace("limit = 10\n", "limit = 15\n"));
    assert_eq!(passing(|| service.check("a", "/x")), 5);
    fs::write(service.config_file(), TEN_PER_HOUR.replace("limit = 10\n", "limit = -1\n")).unwrap();
    assert_eq!(service.admin("POST", "/v1/admin/reload", "").status, 400);
    assert_caller_limited(&service.check("a", "/x"));
    reload("default_limit = 1000");
    assert_eq!(passing(|| service.check("a", "/x")), 100);
}

#[test]
fn caller_limit_can_be_set_by_environment() {
    let folder = TempDir::new().unwrap();
    let environment = [("TOLLGATE_CALLERS__LIMIT", "3"), ("TOLLGATE_CALLERS__WINDOW", "1h")];
    let show =
        Command::new(env!("CARGO_BIN_EXE_tollgate")).args(["config", "show"]).envs(environment).output();
    let shown = String::from_utf8(show.unwrap().stdout).unwrap();
    let section = "[callers]\nalgorithm = \"token_bucket\"\nlimits = [{ requests = 3, window = \"1h\" }]\n";
    assert!(shown.contains(section), "{shown}");
    let service = Service::start(folder, None, &environment);
    assert_eq!(passing(|| service.check("a", "/x")), 3);
}

#[test]
fn cli_fails_if_the_caller_is_limited() {
    let service = Service::with_config(&[TEN_PER_HOUR, KEYS].concat());
    (0..20).for_each(|_| drop(service.with_key("checker-key", "POST", "/v1/rate-limit/check", CHECK)));
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["check", "--user", "a", "--endpoint", "/x"]);
    command.env("TOLLGATE_URL", format!("http://{}", service.address)).env("TOLLGATE_KEY", "checker-key");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "an error, not a refusal: {text}");
    assert!(text.contains("the caller exceeded its own limit"), "{text}");
}

/// Repeats a request on one connection until stopped or until enough responses arrived.
fn repeat(service: &Service, path: &str, body: &str, count: usize, stop: &AtomicBool) -> Vec<Duration> {
    let mut stream = service.connect();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut waits = Vec::new();
    while waits.len() < count && !stop.load(Ordering::Relaxed) {
        let started = Instant::now();
        stream.write_all(request.as_bytes()).unwrap();
        let answer = read_answer(&mut stream);
        assert_eq!(answer.status, 200, "{}", answer.text);
        waits.push(started.elapsed());
    }
    waits.sort_unstable();
    waits
}

/// Keeps many more batches in flight than are decided at once, on one thread.
#[test]
fn single_checks_interleave_with_batches() {
    const SENDERS: usize = 40;
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("tollgate.toml");
    fs::write(&file, "default_limit = 1000000000").unwrap();
    let service = Service::start(folder, Some(&file), &[("TOKIO_WORKER_THREADS", "1")]);
    let (stop, never) = (AtomicBool::new(false), AtomicBool::new(false));
    let check = "/v1/rate-limit/check";
    let alone = repeat(&service, check, CHECK, 200, &never);
    let (batch, batches) = (batch_of(1_000), AtomicUsize::new(0));
    let beside = std::thread::scope(|scope| {
        for _ in 0..SENDERS {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    batches.fetch_add(repeat(&service, BATCH, &batch, 1, &never).len(), Ordering::Relaxed);
                }
            });
        }
        wait_for("a response to a batch", || (batches.load(Ordering::Relaxed) > 0).then_some(()));
        let beside = repeat(&service, check, CHECK, 200, &never);
        stop.store(true, Ordering::Relaxed);
        beside
    });
    assert_eq!((alone.len(), beside.len()), (200, 200), "every request must get a response");
    // Latency depends on the machine and is only printed. The number of batches completed per check does not:
    // about 25 if batches do not yield, and one in four checks if they do.
    let batches = batches.load(Ordering::Relaxed);
    assert!(batches < beside.len() * 10, "{batches} batches went by");
    println!("checks alone: median {:?}, p99 {:?}", alone[100], alone[198]);
    println!("beside {batches} batches of 1,000: median {:?}, p99 {:?}", beside[100], beside[198]);
}
