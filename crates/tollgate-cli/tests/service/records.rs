//! Queries on the records: pages, streams, tenants, outages.

use serde_json::{Value, json};
use tollgate_stores::sql::records::DecisionKind;

use crate::harness::{Answer, Service};
use crate::record_rows::{RecordRows, now_micros};

/// In November 2023: no request of a test is recorded then.
const PAST: u64 = 1_700_000_000_000_000;
const UNTIL: &str = "until=2023-12-01T00:00:00Z";
const PATHS: [&str; 7] = [
    "/v1/admin/decisions",
    "/v1/admin/windows",
    "/v1/admin/rollups",
    "/v1/admin/usage/user:bob",
    "/v1/admin/records/top",
    "/v1/admin/records/trend",
    "/v1/admin/records/violations",
];

/// So long that the maintenance keeps rows of the past.
const RETENTION: &str =
    "[records]\nlog_retention = \"3650d\"\nwindow_retention = \"3650d\"\nrollup_retention = \"3650d\"";

fn with_decisions(count: u64) -> Service {
    let service = Service::with_config(RETENTION);
    let mut rows = RecordRows::default();
    for number in 0..count {
        let decision = DecisionKind::ALL[usize::try_from(number % 4).unwrap()];
        rows.add(&format!("u{number}"), None, PAST + number / 3, decision);
    }
    rows.store(&service.data_dir());
    service
}

fn get(service: &Service, path: &str) -> Value {
    let answer = service.admin("GET", path, "");
    assert_eq!(answer.status, 200, "{path}: {}", answer.text);
    answer.json()
}

/// All rows of a list, page by page.
fn all_pages(service: &Service, list: &str, query: &str) -> Vec<Value> {
    let (mut rows, mut after) = (Vec::new(), String::new());
    loop {
        let mut page = get(service, &format!("/v1/admin/{list}?{UNTIL}&{query}{after}"));
        let Value::Array(items) = page[list].take() else { panic!("{page}") };
        rows.extend(items);
        match page["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return rows,
        }
    }
}

#[test]
fn pages_of_records_are_complete() {
    let service = with_decisions(25);
    for (list, name) in [("decisions", "identifier"), ("windows", "identifier"), ("rollups", "route")] {
        let mut names = Vec::new();
        for query in ["limit=4", "limit=4&newest=true", "limit=1000"] {
            let rows = all_pages(&service, list, query);
            names = rows.iter().map(|row| row[name].as_str().unwrap().to_owned()).collect();
            names.sort();
            names.dedup();
            assert_eq!((rows.len(), names.len()), (25, 25), "{list} {query}");
        }
        assert!(names[0].ends_with("u0"), "{names:?}");
    }
    let newest = all_pages(&service, "decisions", "newest=true&limit=3");
    assert_eq!(
        (&newest[0]["identifier"], &newest[24]["identifier"]),
        (&json!("user:u24"), &json!("user:u0"))
    );
    let refused = all_pages(&service, "decisions", "decision=throttled&identifier=user:u5");
    assert_eq!((refused.len(), &refused[0]["status"]), (1, &json!(429)));
}

fn accept(service: &Service, path: &str, media_type: &str) -> Answer {
    let bearer = format!("Bearer {}", service.admin_key());
    service.send("GET", path, &[("authorization", &bearer), ("accept", media_type)], "")
}

#[test]
fn csv_and_ndjson_contain_all_rows() {
    let service = with_decisions(2_500);
    let mut formula = RecordRows::default();
    formula.add("=cmd|' /C calc'!A0, \"x\"", None, PAST, DecisionKind::Blocked);
    formula.decisions[0].identifier = "=cmd|' /C calc'!A0, \"x\"".to_owned();
    formula.store(&service.data_dir());
    let csv = accept(&service, &format!("/v1/admin/decisions?{UNTIL}"), "text/csv");
    assert_eq!(csv.status, 200);
    assert!(csv.header("content-type").unwrap().starts_with("text/csv"), "{:?}", csv.headers);
    let lines: Vec<&str> = csv.text.split("\r\n").collect();
    assert_eq!(lines.len(), 2_503, "header, rows, and nothing behind the last line end");
    assert!(lines[0].starts_with("id,at,decision,identifier,"), "{}", lines[0]);
    assert!(csv.text.contains(",\"'=cmd|' /C calc'!A0, \"\"x\"\"\","), "a formula is neutralized");
    let ndjson = accept(&service, &format!("/v1/admin/windows?{UNTIL}"), "application/x-ndjson");
    let rows: Vec<Value> = ndjson.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 2_501);
    let limited = service.admin("GET", &format!("/v1/admin/rollups?{UNTIL}&format=csv&limit=7"), "");
    assert_eq!(limited.text.lines().count(), 8);
    let none = service.admin("GET", "/v1/admin/decisions?until=1990-01-01T00:00:00Z&format=ndjson", "");
    assert_eq!((none.status, &*none.text), (200, ""));
}

#[test]
fn usage_counts_clients_without_quota() {
    let service = Service::unconfigured();
    let (mut rows, now) = (RecordRows::default(), now_micros());
    for decision in [DecisionKind::Allowed, DecisionKind::Allowed, DecisionKind::Throttled] {
        rows.add("alice", None, now, decision);
    }
    rows.add("alice", Some("acme"), now, DecisionKind::Allowed);
    rows.add("alice", None, now - 40 * 86_400_000_000, DecisionKind::Allowed);
    rows.store(&service.data_dir());
    let usage = get(&service, "/v1/admin/usage/user:alice");
    let counts = json!({"requests": 3, "allowed": 2, "refused": 1});
    for part in ["today", "month", "total"] {
        assert_eq!(usage[part], counts, "{part}: {usage}");
    }
    assert_eq!(
        (&usage["identifier"], &usage["tenant"], &usage["per"]),
        (&json!("user:alice"), &json!(null), &json!("day"))
    );
    assert_eq!(usage["routes"], json!([{"route": "/of/alice", "requests": 3, "allowed": 2, "refused": 1}]));
    assert_eq!(usage["periods"].as_array().unwrap().len(), 1);
    let of_tenant = get(&service, "/v1/admin/usage/user:alice?tenant=acme&since=1h&per=minute");
    assert_eq!((&of_tenant["total"]["requests"], &of_tenant["tenant"]), (&json!(1), &json!("acme")));
    let unknown = get(&service, "/v1/admin/usage/user:nobody");
    assert_eq!((&unknown["total"]["requests"], &unknown["last_request_at"]), (&json!(0), &json!(null)));
}

#[test]
fn rankings_and_trend_add_up() {
    let service = Service::unconfigured();
    let (mut rows, now) = (RecordRows::default(), now_micros() - 120_000_000);
    for (user, decision, count) in [
        ("alice", DecisionKind::Allowed, 5),
        ("bob", DecisionKind::Throttled, 3),
        ("bob", DecisionKind::Allowed, 1),
    ] {
        (0..count).for_each(|_| rows.add(user, None, now, decision));
    }
    rows.store(&service.data_dir());
    let names = |path: &str| {
        let body = get(&service, path);
        let entries = body["entries"].as_array().unwrap().iter();
        entries.map(|entry| entry["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names("/v1/admin/records/top"), ["user:alice", "user:bob"]);
    assert_eq!(names("/v1/admin/records/top?by=refused"), ["user:bob"]);
    assert_eq!(names("/v1/admin/records/top?of=routes&by=refused&since=1h"), ["/of/bob"]);
    assert_eq!(names("/v1/admin/records/top?of=rules&limit=1"), ["rule-of-alice"]);
    for query in ["", "?since=1h", "?since=20d", "?per=minute"] {
        let trend = get(&service, &format!("/v1/admin/records/trend{query}"));
        let points = trend["points"].as_array().unwrap();
        let sum = |field: &str| points.iter().map(|point| point[field].as_u64().unwrap()).sum::<u64>();
        assert_eq!((sum("requests"), sum("allowed"), sum("throttled")), (9, 6, 3), "{query}: {trend}");
        assert!((40..=50).contains(&points[0]["latency_p99_us"].as_u64().unwrap()), "{trend}");
    }
    let violations = get(&service, "/v1/admin/records/violations")["violations"].clone();
    assert_eq!(violations.as_array().unwrap().len(), 1);
    let bob = &violations[0];
    assert_eq!(
        (&bob["identifier"], &bob["refused"], &bob["limit"]),
        (&json!("user:bob"), &json!(3), &json!(100))
    );
}

#[test]
fn bound_caller_sees_records_of_its_tenant() {
    let service = Service::unconfigured();
    let (mut rows, now) = (RecordRows::default(), now_micros());
    for (user, tenant) in [("mine", Some("acme")), ("canary", Some("beta")), ("canary", None)] {
        rows.add(user, tenant, now, DecisionKind::Throttled);
    }
    rows.store(&service.data_dir());
    let body = json!({"name": "a", "tenant": "acme", "scopes": ["read"]}).to_string();
    let key = service.admin("POST", "/v1/admin/keys", &body).json()["key"].as_str().unwrap().to_owned();
    for path in PATHS {
        for query in
            ["", "?tenant=acme", "?since=1h", "?format=csv", "?format=ndjson", "?of=routes", "?of=rules"]
        {
            let path = path.replace("bob", "mine") + query;
            let answer = service.with_key(&key, "GET", &path, "");
            assert!(answer.status == 200 || answer.status == 400, "{path}: {}", answer.text);
            assert!(!answer.text.contains("canary"), "{path}: {}", answer.text);
        }
        let other = service.with_key(&key, "GET", &format!("{path}?tenant=beta"), "");
        assert_eq!(other.status, 403, "{path}: {}", other.text);
    }
    let own = service.with_key(&key, "GET", "/v1/admin/decisions", "").json();
    assert_eq!(own["decisions"][0]["identifier"], "user:mine");
    let usage = service.with_key(&key, "GET", "/v1/admin/usage/user:canary", "").json();
    assert_eq!(usage["total"]["requests"], 0);
}

#[test]
fn disabled_records_are_reported() {
    let service = Service::with_config("[records]\nenabled = false");
    for path in PATHS.into_iter().chain(["/v1/admin/top"]) {
        let answer = service.admin("GET", path, "");
        assert_eq!(answer.error().0, 409, "{path}: {}", answer.text);
        assert!(answer.text.contains("records.enabled"), "{path}: {}", answer.text);
    }
}

#[test]
fn unreachable_records_database_is_reported() {
    let service = Service::with_config("[records]\nurl = \"postgres://u:secret@127.0.0.1:1/gate\"");
    assert_eq!(service.check("alice", "/a").status, 200, "checks go on");
    for path in PATHS {
        let answer = service.admin("GET", path, "");
        assert_eq!(answer.status, 503, "{path}: {}", answer.text);
        assert!(answer.text.contains("records database is unreachable"), "{path}: {}", answer.text);
        assert!(!answer.text.contains("secret") && !service.log().contains("secret"), "{path}");
    }
}

#[test]
fn hostile_parameters_are_rejected_or_inert() {
    let service = with_decisions(3);
    let hostile =
        ["'%20OR%201=1%20--", "-1", "99999999999999999999", "%00", "W10", "WzEsMiwzLDRd", "%E2%80%AE", ""];
    for path in PATHS {
        let described =
            ["limit", "after", "since", "until", "per", "identifier", "route", "rule", "format", "of"];
        for (name, value) in described.iter().flat_map(|name| hostile.map(|value| (name, value))) {
            let answer = service.admin("GET", &format!("{path}?{name}={value}"), "");
            assert!(answer.status == 200 || answer.status == 400, "{path}?{name}={value}: {}", answer.text);
        }
    }
    assert_eq!(all_pages(&service, "decisions", "limit=10").len(), 3);
}
