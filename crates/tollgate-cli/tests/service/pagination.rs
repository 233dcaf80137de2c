//! Lists: pages, filters and hostile parameters.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde_json::{Value, json};
use tempfile::TempDir;
use tollgate_testkit::{MariaDbServer, PostgresServer};

use crate::harness::{Service, wait_for};

/// Names that are special to some database, shell or parser.
const NAMES: [&str; 12] = [
    "alice",
    "' OR '1'='1",
    "\"; DROP TABLE user_quotas; --",
    "a%b",
    "a_b",
    "a\\b",
    "$1",
    "?",
    "caf\u{e9}",
    "\u{1f600}",
    "../../etc/passwd",
    "a/b c&d=e#f",
];

/// Values sent instead of a cursor, a number or a name.
const HOSTILE: [&str; 16] = [
    "' OR 1=1 --",
    "1; DROP TABLE user_quotas",
    "1 UNION SELECT hash FROM api_keys",
    "-1",
    "0",
    "1e3",
    "99999999999999999999",
    "%00",
    "\u{0}",
    "{{7*7}}",
    "AAAA",
    "YWxpY2U",
    "YWxpY2U=",
    "////",
    "*",
    "\u{202e}",
];

const LISTS: [(&str, &[&str]); 7] = [
    ("rules", &["prefix", "action", "enabled", "source"]),
    ("tiers", &["prefix"]),
    ("quotas", &["prefix", "tenant", "tier", "blocked", "last_request_after", "last_request_before"]),
    ("keys", &["prefix", "user_id", "tenant", "tier", "active", "expires_before"]),
    ("blocks", &["prefix", "tenant", "kind", "active"]),
    ("audit", &["kind", "by", "subject", "tenant", "newest", "since", "until"]),
    ("limits", &["user_id"]),
];

fn escaped(text: &str) -> String {
    text.bytes().fold(String::new(), |mut escaped, byte| {
        let _ = write!(escaped, "%{byte:02X}");
        escaped
    })
}

fn filled(service: &Service) {
    for name in NAMES {
        let at = |kind: &str| format!("/v1/admin/{kind}/{}", escaped(name));
        let tier = json!({"limit": 5, "window": 60}).to_string();
        let rule = json!({"per": ["user"], "limits": [{"requests": 5, "window": 60}]}).to_string();
        let made = [
            service.admin("PUT", &at("tiers"), &tier),
            service.admin("PUT", &at("rules"), &rule),
            service.admin("PUT", &at("quotas"), &json!({"tier": name}).to_string()),
            service.admin("PUT", &format!("/v1/admin/blocks/user:{}", escaped(name)), "{}"),
            service.admin("POST", "/v1/admin/keys", &json!({"name": name, "user_id": name}).to_string()),
        ];
        for answer in made {
            assert_eq!(answer.status, 201, "{name}: {}", answer.text);
        }
    }
}

/// All items of a list, page by page; every page but the last must be full.
fn walked(service: &Service, kind: &str, limit: usize, query: &str) -> Vec<Value> {
    let (mut all, mut after) = (Vec::new(), String::new());
    loop {
        let page = service.admin("GET", &format!("/v1/admin/{kind}?limit={limit}{query}{after}"), "");
        assert_eq!(page.status, 200, "{}", page.text);
        let page = page.json();
        let items = page[kind].as_array().unwrap();
        all.extend(items.iter().cloned());
        match page["next"].as_str() {
            None => return all,
            Some(next) => {
                assert_eq!(items.len(), limit);
                after = format!("&after={next}");
            }
        }
        assert!(all.len() < 1_000, "the list does not end");
    }
}

fn lists_hold(service: &Service) {
    filled(service);
    let name = |kind: &str, item: &Value| {
        let field = match kind {
            "quotas" | "keys" => "user_id",
            "blocks" => "client",
            _ => "name",
        };
        item[field].as_str().unwrap().trim_start_matches("user:").to_owned()
    };
    for kind in ["rules", "tiers", "quotas", "keys", "blocks"] {
        let query = if kind == "rules" { "&source=database" } else { "" };
        for limit in [1, 5, 100] {
            let all = walked(service, kind, limit, query);
            let names: BTreeSet<String> = all.iter().map(|item| name(kind, item)).collect();
            assert_eq!((all.len(), names.len()), (NAMES.len(), NAMES.len()), "{kind} by {limit}");
        }
        if kind == "keys" {
            continue;
        }
        for wanted in NAMES {
            let query = format!("{query}&prefix={}", escaped(wanted));
            let found = walked(service, kind, 100, &query);
            let names: Vec<String> = found.iter().map(|item| name(kind, item)).collect();
            assert_eq!(names, [wanted], "{kind}: a prefix is no pattern");
        }
    }
    for wanted in NAMES {
        let found = walked(service, "quotas", 100, &format!("&tier={}", escaped(wanted)));
        assert_eq!(found.len(), 1, "{wanted}");
        let found = walked(service, "keys", 100, &format!("&user_id={}", escaped(wanted)));
        assert_eq!(found.len(), 1, "{wanted}");
    }
    hostile_queries_are_answered(service);
    for kind in ["rules", "tiers", "quotas", "keys", "blocks"] {
        let query = if kind == "rules" { "&source=database" } else { "" };
        assert_eq!(walked(service, kind, 100, query).len(), NAMES.len(), "{kind} is as it was");
    }
}

/// Whatever the query contains, the response is a page or an error that names the field.
fn hostile_queries_are_answered(service: &Service) {
    for (kind, fields) in LISTS {
        for field in fields.iter().chain(&["limit", "after"]) {
            for value in HOSTILE {
                let path = format!("/v1/admin/{kind}?{field}={}", escaped(value));
                let answer = service.admin("GET", &path, "");
                match answer.status {
                    200 => assert!(answer.json().is_object()),
                    400 => assert_eq!(answer.error().2, *field, "{path}: {}", answer.text),
                    other => panic!("{path}: {other} {}", answer.text),
                }
            }
        }
    }
    for path in
        ["rules?limit=1&limit=2", "rules?colour=1", "rules?after=%FF", "keys?hash=1", "export?kinds=keys"]
    {
        assert_eq!(service.admin("GET", &format!("/v1/admin/{path}"), "").status, 400, "{path}");
    }
}

/// Runs all checks with this database.
fn service_on(url: &str) -> Service {
    let service = Service::start(TempDir::new().unwrap(), None, &[("TOLLGATE_DATABASE__URL", url)]);
    wait_for("the database", || (service.admin("GET", "/v1/admin/tiers", "").status == 200).then_some(()));
    service
}

#[test]
fn hostile_list_parameters_are_handled_on_sqlite() {
    lists_hold(&Service::unconfigured());
}

#[test]
fn hostile_list_parameters_are_handled_on_postgresql() {
    let server = PostgresServer::start();
    lists_hold(&service_on(&server.create_database()));
}

#[test]
fn hostile_list_parameters_are_handled_on_mariadb() {
    let server = MariaDbServer::start();
    lists_hold(&service_on(&server.create_database()));
}

#[test]
fn page_has_at_most_a_thousand_items() {
    let service = Service::unconfigured();
    let quotas: Vec<Value> = (0..1_001).map(|n| json!({"user_id": format!("user{n:04}")})).collect();
    let made = service.admin("POST", "/v1/admin/import", &json!({"quotas": quotas}).to_string());
    assert_eq!((made.status, &made.json()["created"]), (200, &json!(1_001)));
    let first = service.admin("GET", "/v1/admin/quotas?limit=1000", "").json();
    assert_eq!(first["quotas"].as_array().unwrap().len(), 1_000);
    let next = first["next"].as_str().unwrap();
    let second = service.admin("GET", &format!("/v1/admin/quotas?limit=1000&after={next}"), "").json();
    assert_eq!((second["quotas"].as_array().unwrap().len(), &second["next"]), (1, &json!(null)));
    assert_eq!(service.admin("GET", "/v1/admin/quotas?limit=1001", "").error().2, "limit");
    assert_eq!(service.admin("GET", "/v1/admin/quotas", "").json()["quotas"].as_array().unwrap().len(), 100);
}
