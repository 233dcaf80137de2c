//! Import and export of the whole configuration, as JSON and TOML.

use serde_json::{Value, json};

use crate::harness::{Answer, Service};

const IMPORT: &str = "/v1/admin/import";

fn import(service: &Service, query: &str, body: &Value) -> Answer {
    service.admin("POST", &format!("{IMPORT}?{query}"), &body.to_string())
}

fn import_toml(service: &Service, query: &str, body: &str) -> Answer {
    let bearer = format!("Bearer {}", service.admin_key());
    let headers = [("content-type", "application/toml"), ("authorization", &*bearer)];
    service.send("POST", &format!("{IMPORT}?{query}"), &headers, body)
}

fn import_if(service: &Service, tag: &str, body: &Value) -> Answer {
    let bearer = format!("Bearer {}", service.admin_key());
    let headers = [("content-type", "application/json"), ("authorization", &*bearer), ("if-match", tag)];
    service.send("POST", IMPORT, &headers, &body.to_string())
}

fn everything() -> Value {
    json!({
        "rules": [
            {"name": "burst guard", "priority": 5, "per": ["ip"], "algorithm": "gcra",
             "when": {"endpoints": ["/api/*"], "methods": ["GET"], "descriptors": {"plan": ["a", "b"]}},
             "limits": [{"requests": 10, "window": "1s", "burst": 20}, {"requests": 100, "window": "1m"}],
             "on_store_failure": "closed", "leases": false,
             "response": {"status": 503, "message": "slow down", "retry_after_floor": "5s"}},
            {"name": "monthly", "per": ["tenant"], "algorithm": "fixed_window",
             "limits": [{"requests": 9000, "window": "month", "anchor": 15, "time_zone": "Europe/Berlin"}]},
            {"name": "no bots", "action": "block", "when": {"ips": ["198.51.100.0/24"]}},
            {"name": "short", "per": ["user"], "requests_per_minute": 60, "burst_size": 5, "enabled": false},
        ],
        "tiers": [
            {"name": "free", "description": "for everyone", "limit": 10, "window": 60},
            {"name": "gold", "limits": [{"requests": 5, "window": "1s"}, {"requests": 50, "window": "1h"}]},
        ],
        "quotas": [{"user_id": "alice", "tier": "gold", "requests_per_day": 5, "burst": 2}, {"user_id": "bob"}],
        "blocks": [
            {"client": "ip:192.0.2.0/24", "reason": "scan"},
            {"client": "user:eve", "until": "2001-02-03T04:05:06.789012Z"},
        ],
        "limits": [
            {"user_id": "alice", "endpoint": "/search", "limit": 3, "window_seconds": 60, "strategy": "gcra", "burst_capacity": 4},
        ],
    })
}

fn counts(answer: &Answer) -> [u64; 4] {
    let body = answer.json();
    ["created", "updated", "deleted", "unchanged"].map(|field| body[field].as_u64().unwrap())
}

#[test]
fn export_imports_without_changes_in_both_formats() {
    let service = Service::unconfigured();
    let first = import(&service, "", &everything());
    assert_eq!((first.status, counts(&first)), (200, [11, 0, 0, 0]), "{}", first.text);
    assert_eq!(service.check("alice", "/search").json()["limit"], 3);
    let exported = service.admin("GET", "/v1/admin/export", "");
    let version = exported.json()["version"].as_u64().unwrap();
    assert_eq!(exported.header("etag"), Some(&*format!("\"{version}\"")));
    let mut body = exported.json();
    for key in ["version", "next"] {
        body.as_object_mut().unwrap().remove(key);
    }
    assert_eq!(body, everything());
    let toml = service.admin("GET", "/v1/admin/export?format=toml", "");
    assert_eq!(toml.header("content-type"), Some("application/toml"));
    for again in
        [import(&service, "prune=true", &exported.json()), import_toml(&service, "prune=true", &toml.text)]
    {
        assert_eq!((again.status, counts(&again)), (200, [0, 0, 0, 11]), "{}", again.text);
        assert_eq!((&again.json()["version"], &again.json()["changes"]), (&json!(version), &json!([])));
    }
    let elsewhere = Service::unconfigured();
    assert_eq!(counts(&import_toml(&elsewhere, "", &toml.text)), [11, 0, 0, 0]);
    assert_eq!(elsewhere.admin("GET", "/v1/admin/export?format=toml", "").text, toml.text);
}

#[test]
fn prune_is_limited_to_imported_kinds() {
    let service = Service::unconfigured();
    import(&service, "", &everything());
    let none = json!({"rules": []});
    let tried = import(&service, "prune=true&dry_run=true", &none);
    assert_eq!((counts(&tried), &tried.json()["dry_run"]), ([0, 0, 4, 0], &json!(true)), "{}", tried.text);
    assert!(tried.json()["effect"].is_object());
    assert_eq!(counts(&import(&service, "", &none)), [0, 0, 0, 0]);
    let done = import(&service, "prune=true", &none);
    assert_eq!((counts(&done), done.json()["changes"].as_array().unwrap().len()), ([0, 0, 4, 0], 4));
    let left = service.admin("GET", "/v1/admin/export", "").json();
    assert_eq!((&left["rules"], left["tiers"].as_array().unwrap().len()), (&json!([]), 2));
    let only = import(&service, "kinds=rules", &everything());
    assert_eq!(counts(&only), [4, 0, 0, 0], "{}", only.text);
    let named = import(&service, "kinds=quotas&prune=true", &json!({}));
    assert_eq!(counts(&named), [0, 0, 2, 0], "{}", named.text);
    let exported = service.admin("GET", "/v1/admin/export?kinds=rules,tiers", "").json();
    assert!(exported["quotas"].is_null() && exported["tiers"].is_array());
}

#[test]
fn import_is_all_or_nothing() {
    let service = Service::with_config(
        "[[rules]]\nname = \"site\"\nper = [\"ip\"]\nlimits = [{ requests = 9, window = \"1m\" }]",
    );
    let wrong = [
        (
            json!({"rules": [{"name": "a", "per": ["user"], "limits": [{"requests": 1, "window": "1x"}]}]}),
            "rules[0].limits[0].window",
        ),
        (json!({"quotas": [{"user_id": "a"}, {"user_id": "a"}]}), "quotas[1].user_id"),
        (json!({"quotas": [{"user_id": "a"}, {"user_id": "b", "colour": 1}]}), "quotas[1].colour"),
        (json!({"blocks": [{"client": "x"}]}), "blocks[0].client"),
        (json!({"blocks": [{"client": "user:a", "for": "1h"}]}), "blocks[0].for"),
        (
            json!({"blocks": [{"client": "user:a", "for": "1h", "until": "2040-01-01T00:00:00Z"}]}),
            "blocks[0].for",
        ),
        (
            json!({"limits": [{"user_id": "a", "endpoint": "/*", "limit": 1, "window_seconds": 1, "strategy": "gcra"}]}),
            "limits[0].endpoint",
        ),
        (json!({"keys": []}), "keys"),
        (json!({"colours": []}), "colours"),
        (json!({"rules": 7}), "rules"),
    ];
    for (body, field) in wrong {
        let answer = import(&service, "", &body);
        assert_eq!((answer.status, answer.error().2), (400, field.to_owned()), "{}", answer.text);
    }
    let clash = json!({"quotas": [{"user_id": "a"}], "rules": [{"name": "site", "action": "block"}]});
    let answer = import(&service, "", &clash);
    assert_eq!(answer.error().0, 409);
    assert!(answer.text.contains("tollgate.toml") && answer.text.contains("site"), "{}", answer.text);
    let lines =
        import_toml(&service, "", "[[quotas]]\nuser_id = \"a\"\n\n[[quotas]]\nuser_id = 7\ncolour = 1\n");
    let message = lines.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("line 5: quotas[1].user_id") && message.contains("line 6"), "{message}");
    assert_eq!(import_toml(&service, "", "[[quotas").error().0, 400);
    let bearer = format!("Bearer {}", service.admin_key());
    assert_eq!(service.send("POST", IMPORT, &[("authorization", &bearer)], "{}").status, 415);
    for (query, field) in
        [("prune=1", "prune"), ("kinds=planets", "kinds"), ("kinds=keys", "kinds"), ("x=1", "x")]
    {
        assert_eq!(import(&service, query, &json!({})).error().2, field);
    }
    let page = json!({"quotas": [], "next": "abc"});
    assert_eq!(import(&service, "prune=true", &page).error().2, "next");
    assert_eq!(
        service.admin("GET", "/v1/admin/audit", "").json()["entries"],
        json!([]),
        "nothing was changed"
    );
}

#[test]
fn import_for_another_version_is_refused() {
    let service = Service::unconfigured();
    let planned = import(&service, "dry_run=true", &everything());
    let tag = planned.header("etag").unwrap().to_owned();
    service.admin("PUT", "/v1/admin/quotas/zoe", "{}");
    assert_eq!(import_if(&service, &tag, &everything()).error().1, "PRECONDITION_FAILED");
    let now = import(&service, "dry_run=true", &everything()).header("etag").unwrap().to_owned();
    let done = import_if(&service, &now, &everything());
    assert_eq!((done.status, counts(&done)), (200, [11, 0, 0, 0]), "{}", done.text);
    let entries = service.admin("GET", "/v1/admin/audit?limit=1000", "").json();
    let of_import: Vec<&Value> = entries["entries"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|each| each["version"] == done.json()["version"])
        .collect();
    assert_eq!(of_import.len(), 11, "expected one entry per item");
}

#[test]
fn large_export_needs_pages() {
    let service = Service::unconfigured();
    for part in 0..3 {
        let users = (0..4_000).map(|n| json!({"user_id": format!("user{part}-{n:04}")}));
        let made = import(&service, "", &json!({"quotas": users.collect::<Vec<Value>>()}));
        assert_eq!(made.status, 200, "{}", made.text);
    }
    let whole = service.admin("GET", "/v1/admin/export", "");
    assert_eq!(whole.error().1, "CONFLICT");
    assert!(whole.text.contains("limit"), "{}", whole.text);
    import(&service, "", &json!({"tiers": everything()["tiers"], "blocks": everything()["blocks"]}));
    let (mut users, mut others, mut after, mut pages) = (0, 0, String::new(), 0);
    loop {
        let page = service.admin("GET", &format!("/v1/admin/export?limit=5000{after}"), "").json();
        users += page["quotas"].as_array().unwrap().len();
        others += page["tiers"].as_array().unwrap().len() + page["blocks"].as_array().unwrap().len();
        pages += 1;
        let Some(next) = page["next"].as_str() else { break };
        after = format!("&after={next}");
    }
    assert_eq!((users, others, pages), (12_000, 4, 3));
    let too_many: Vec<Value> = (0..10_001).map(|n| json!({"user_id": n.to_string()})).collect();
    assert_eq!(import(&service, "", &json!({"quotas": too_many})).error().1, "PAYLOAD_TOO_LARGE");
    for (query, field) in
        [("limit=0", "limit"), ("limit=10001", "limit"), ("after=x", "after"), ("format=xml", "format")]
    {
        assert_eq!(service.admin("GET", &format!("/v1/admin/export?{query}"), "").error().2, field);
    }
}
