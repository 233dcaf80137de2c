//! Rules, tiers, quotas and blocks of a running service.

use serde_json::{Value, json};

use crate::harness::{Answer, Service};

/// Changes that make a valid rule invalid.
type Mistake<'a> = &'a dyn Fn(&mut Value);

const RULES: &str = "/v1/admin/rules";

fn rule(name: &str, requests: u32) -> Value {
    json!({"name": name, "per": ["user"], "limits": [{"requests": requests, "window": "1h"}]})
}

fn send(service: &Service, method: &str, path: &str, body: &Value) -> Answer {
    service.admin(method, path, &body.to_string())
}

fn ask_if(service: &Service, method: &str, path: &str, condition: (&str, &str), body: &Value) -> Answer {
    let bearer = format!("Bearer {}", service.admin_key());
    let headers = [("content-type", "application/json"), ("authorization", &bearer), condition];
    let body = if body.is_null() { String::new() } else { body.to_string() };
    service.send(method, path, &headers, &body)
}

/// Status, code, field and message of an error.
fn error_parts(answer: &Answer) -> (u16, String, String, String) {
    let (status, code, field) = answer.error();
    (status, code, field, answer.json()["error"]["message"].as_str().unwrap().to_owned())
}

#[test]
fn rule_is_in_force_after_each_write() {
    let service = Service::unconfigured();
    let made = send(&service, "POST", RULES, &rule("users", 2));
    assert_eq!(made.status, 201, "{}", made.text);
    assert_eq!(made.header("location"), Some("/v1/admin/rules/users"));
    let mut shown = made.json();
    assert!(shown.as_object_mut().unwrap().remove("warnings").is_some(), "it ends the built-in default");
    let version = shown["version"].as_u64().unwrap();
    assert_eq!(made.header("etag"), Some(&*format!("\"{version}\"")));
    assert_eq!((&shown["source"], &shown["created_by"]), (&json!("database"), &json!("admin")));
    assert_eq!(shown["definition"], rule("users", 2));
    assert_eq!(
        shown["limits"][0],
        json!({"requests":2,"window":"1h","burst":null,"algorithm":"token_bucket"})
    );
    let statuses = [(); 3].map(|()| service.check("a", "/x").status);
    assert_eq!(statuses, [200, 200, 429]);

    let path = "/v1/admin/rules/users";
    let read = service.admin("GET", path, "");
    assert_eq!((read.status, read.json()), (200, shown.clone()));
    let known = ask_if(&service, "GET", path, ("if-none-match", &format!("\"{version}\"")), &Value::Null);
    assert_eq!((known.status, &*known.text), (304, ""));

    let replaced = send(&service, "PUT", path, &rule("users", 3));
    assert_eq!((replaced.status, &replaced.json()["limits"][0]["requests"]), (200, &json!(3)));
    assert!(replaced.json()["version"].as_u64().unwrap() > version);
    assert_eq!(replaced.json()["created_at"], shown["created_at"]);
    assert_eq!(service.check("b", "/x").json()["limit"], 3);
    let again = send(&service, "PUT", path, &rule("users", 3));
    assert_eq!(
        (again.status, again.json()),
        (200, replaced.json()),
        "an identical write must change nothing"
    );

    assert_eq!(service.admin("DELETE", path, "").status, 204);
    assert_eq!(service.admin("DELETE", path, "").error().0, 404);
    assert_eq!(service.admin("GET", path, "").error().1, "NOT_FOUND");
    assert_eq!(service.check("c", "/x").json()["limit"], 100);
}

#[test]
fn second_write_of_one_version_is_refused() {
    let service = Service::unconfigured();
    let path = "/v1/admin/rules/r";
    let first = ask_if(&service, "PUT", path, ("if-none-match", "*"), &rule("r", 1));
    assert_eq!(first.status, 201, "{}", first.text);
    let tag = first.header("etag").unwrap().to_owned();
    assert_eq!(ask_if(&service, "PUT", path, ("if-none-match", "*"), &rule("r", 2)).error().0, 412);
    let second = ask_if(&service, "PUT", path, ("if-match", &tag), &rule("r", 2));
    assert_eq!(second.status, 200, "{}", second.text);
    let late = ask_if(&service, "PUT", path, ("if-match", &tag), &rule("r", 3));
    assert_eq!(error_parts(&late).1, "PRECONDITION_FAILED");
    assert!(error_parts(&late).3.contains("version"), "{}", late.text);
    assert_eq!(ask_if(&service, "DELETE", path, ("if-match", &tag), &Value::Null).error().0, 412);
    assert_eq!(service.admin("GET", path, "").json()["limits"][0]["requests"], 2);
    assert_eq!(ask_if(&service, "PUT", path, ("if-match", "17"), &rule("r", 3)).error().2, "if-match");
    assert_eq!(ask_if(&service, "PUT", path, ("if-none-match", "\"1\""), &rule("r", 3)).error().0, 400);
    assert_eq!(ask_if(&service, "DELETE", path, ("if-match", "*"), &Value::Null).status, 204);
    assert_eq!(ask_if(&service, "DELETE", path, ("if-match", "*"), &Value::Null).error().0, 412);
    assert_eq!(ask_if(&service, "PUT", path, ("if-match", "*"), &rule("r", 3)).error().0, 412);
}

#[test]
fn invalid_rule_names_every_error_and_changes_nothing() {
    let service = Service::unconfigured();
    let wrong = |change: Mistake<'_>| {
        let mut body = rule("r", 1);
        change(&mut body);
        let answer = send(&service, "POST", RULES, &body);
        let (status, code, field, message) = error_parts(&answer);
        assert_eq!((status, &*code), (400, "INVALID_INPUT"), "{body}: {message}");
        (field, message)
    };
    let cases: [(Mistake<'_>, &str); 10] = [
        (&|body| body["colour"] = json!(1), "colour"),
        (&|body| body["limits"][0]["window"] = json!("1x"), "limits[0].window"),
        (&|body| body["limits"][0]["requests"] = json!(-1), "limits[0].requests"),
        (&|body| body["limits"][0]["requests"] = json!(1.5), "limits[0].requests"),
        (&|body| body["limits"] = json!({}), "limits"),
        (&|body| body["per"] = json!(["planet"]), "per[0]"),
        (&|body| body["when"] = json!({"endpoints": []}), "when.endpoints"),
        (&|body| body["name"] = json!(7), "name"),
        (&|body| body["name"] = json!("tier:x"), "name"),
        (&|body| body["version"] = json!(1), "version"),
    ];
    for (change, expected) in cases {
        assert_eq!(wrong(change).0, expected);
    }
    let (_, both) = wrong(&|body| {
        body["per"] = json!(["planet"]);
        body["colour"] = json!(1);
    });
    assert!(both.contains("per[0]") && both.contains("colour"), "{both}");
    let missing = send(&service, "POST", RULES, &json!({}));
    assert_eq!(missing.error().0, 400);
    let other = send(&service, "PUT", "/v1/admin/rules/a", &rule("b", 1));
    assert_eq!(other.error(), (400, "INVALID_INPUT".to_owned(), "name".to_owned()));
    let twice = service.admin("POST", RULES, r#"{"name":"a","limits":[{"requests":1,"requests":2}]}"#);
    assert_eq!(twice.error().0, 400);
    assert_eq!(
        service
            .send("POST", RULES, &[("authorization", &format!("Bearer {}", service.admin_key()))], "{}")
            .status,
        415
    );
    let large = json!({"name": "x".repeat(70_000)});
    assert_eq!(send(&service, "POST", RULES, &large).error().0, 413);
    assert_eq!(service.admin("GET", "/v1/admin/rules?source=database", "").json()["rules"], json!([]));
    assert_eq!(service.admin("GET", "/v1/admin/audit", "").json()["entries"], json!([]));
}

#[test]
fn rules_of_the_settings_file_are_read_only() {
    let service = Service::with_config(
        "[[rules]]\nname = \"site\"\npriority = 5\nper = [\"ip\"]\nlimits = [{ requests = 9, window = \"1m\" }]\n\
         [[tiers]]\nname = \"gold\"\nlimit = 7\nwindow = 60\n",
    );
    let site = service.admin("GET", "/v1/admin/rules/site", "").json();
    assert_eq!((&site["source"], &site["version"]), (&json!("file"), &json!(null)));
    assert_eq!(
        site["definition"],
        json!({"name": "site", "priority": 5, "per": ["ip"], "limits": [{"requests": 9, "window": "1m"}]})
    );
    let gold = service.admin("GET", "/v1/admin/tiers/gold", "").json();
    assert_eq!((&gold["source"], &gold["limits"][0]["requests"]), (&json!("file"), &json!(7)));
    assert_eq!(service.admin("GET", "/v1/admin/tiers", "").json()["tiers"][0]["name"], "gold");
    let tier = json!({"name": "gold", "limit": 1, "window": 60});
    for (method, path, body) in [
        ("POST", RULES, &rule("site", 1)),
        ("PUT", "/v1/admin/rules/site", &rule("site", 1)),
        ("DELETE", "/v1/admin/rules/site", &Value::Null),
        ("POST", "/v1/admin/tiers", &tier),
        ("PUT", "/v1/admin/tiers/gold", &tier),
        ("DELETE", "/v1/admin/tiers/gold", &Value::Null),
    ] {
        let (status, code, _, message) = error_parts(&send(&service, method, path, body));
        assert_eq!((status, &*code), (409, "CONFLICT"), "{method} {path}");
        assert!(message.contains("tollgate.toml"), "{message}");
    }
    let too_many: Vec<Value> = (1..=8).map(|n| json!({"requests": n, "window": format!("{n}h")})).collect();
    for n in 0..8 {
        let body =
            json!({"name": format!("r{n}"), "layer": format!("l{n}"), "per": ["user"], "limits": too_many});
        let answer = send(&service, "POST", RULES, &body);
        if answer.status != 201 {
            assert_eq!(answer.error().0, 400);
            assert!(error_parts(&answer).3.contains("limits"), "{}", answer.text);
            return;
        }
    }
    panic!("a rule set has at most so many limits");
}

#[test]
fn rule_named_default_replaces_the_built_in_one() {
    let service = Service::unconfigured();
    let made = send(&service, "PUT", "/v1/admin/rules/default", &rule("default", 5));
    assert_eq!(made.status, 201, "{}", made.text);
    assert_eq!(service.check("a", "/x").json()["limit"], 5);
}

#[test]
fn tier_quota_and_block_take_effect() {
    let service = Service::unconfigured();
    let tier = send(
        &service,
        "PUT",
        "/v1/admin/tiers/gold",
        &json!({"description": "pays", "limit": 7, "window": "1h"}),
    );
    assert_eq!((tier.status, &tier.json()["description"]), (201, &json!("pays")), "{}", tier.text);
    let quota = send(&service, "PUT", "/v1/admin/quotas/alice", &json!({"tier": "gold"}));
    assert_eq!((quota.status, &quota.json()["tier"]), (201, &json!("gold")), "{}", quota.text);
    assert_eq!(service.check("alice", "/x").json()["limit"], 7);
    let own = send(&service, "PUT", "/v1/admin/quotas/alice", &json!({"requests_per_hour": 3, "burst": 2}));
    assert_eq!((own.status, &own.json()["requests_per_hour"]), (200, &json!(3)), "{}", own.text);
    assert_eq!(service.check("alice", "/x").json()["limit"], 3);
    assert_eq!(send(&service, "POST", "/v1/admin/quotas", &json!({"user_id": "alice"})).error().0, 409);
    assert_eq!(send(&service, "PUT", "/v1/admin/quotas/alice", &json!({"burst": 2})).error().2, "burst");
    assert_eq!(
        send(&service, "PUT", "/v1/admin/quotas/alice", &json!({"requests_per_second": 2})).error().2,
        "requests_per_second"
    );
    assert_eq!(
        send(&service, "PUT", "/v1/admin/quotas/alice", &json!({"blocked": true})).error().2,
        "blocked"
    );

    let block = send(
        &service,
        "POST",
        "/v1/admin/blocks",
        &json!({"client": "user:alice", "reason": "abuse", "for": "1h"}),
    );
    assert_eq!(
        (block.status, block.header("location")),
        (201, Some("/v1/admin/blocks/user:alice")),
        "{}",
        block.text
    );
    assert_eq!(block.json()["active"], true);
    let refused = service.check("alice", "/x");
    assert_eq!((refused.status, &refused.json()["decision"]), (403, &json!("blocked")), "{}", refused.text);
    let shown = service.admin("GET", "/v1/admin/quotas/alice", "").json();
    assert_eq!((&shown["blocked"], &shown["block_reason"]), (&json!(true), &json!("abuse")));
    assert_eq!(shown["blocked_until"], block.json()["until"]);
    let shown = service.admin("GET", "/v1/admin/counters?user=alice", "").json();
    assert_eq!((&shown["blocked"], &shown["block_reason"]), (&json!(true), &json!("abuse")));
    assert!(shown["blocked_until"].is_u64(), "{shown}");
    assert_eq!(service.admin("DELETE", "/v1/admin/blocks/user:alice", "").status, 204);
    assert_eq!(service.check("alice", "/x").status, 200);
    assert_eq!(service.admin("DELETE", "/v1/admin/quotas/alice", "").status, 204);
    assert_eq!(service.admin("DELETE", "/v1/admin/tiers/gold", "").status, 204);
    for path in ["/v1/admin/quotas/alice", "/v1/admin/tiers/gold", "/v1/admin/blocks/user:alice"] {
        assert_eq!(service.admin("GET", path, "").error().1, "NOT_FOUND", "{path}");
        assert_eq!(service.admin("DELETE", path, "").error().1, "NOT_FOUND", "{path}");
    }
}

#[test]
fn quotas_are_listed_by_block_and_last_request() {
    let service = Service::unconfigured();
    assert_eq!(send(&service, "PUT", "/v1/admin/quotas/alice", &json!({})).status, 201);
    assert_eq!(send(&service, "PUT", "/v1/admin/blocks/user:alice", &json!({"for": "1h"})).status, 201);
    let shown = service.admin("GET", "/v1/admin/quotas/alice", "").json();
    assert_eq!(send(&service, "PUT", "/v1/admin/quotas/bob", &json!({})).status, 201);
    let listed = |query: &str| {
        let page = service.admin("GET", &format!("/v1/admin/quotas?{query}"), "").json();
        let users = page["quotas"].as_array().unwrap_or_else(|| panic!("{page}")).iter();
        users.map(|quota| quota["user_id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!((listed("blocked=true"), listed("blocked=false")), (vec!["alice".into()], vec!["bob".into()]));
    assert_eq!(listed("last_request_before=1h").last().unwrap(), "bob", "never sent a request");
    assert!(!listed("last_request_after=1h").contains(&"bob".to_owned()));
    for wrong in ["blocked=yes", "last_request_after=yesterday", "last_request_before="] {
        let field = wrong.split('=').next().unwrap();
        let error = service.admin("GET", &format!("/v1/admin/quotas?{wrong}"), "").error();
        assert_eq!((error.0, &*error.2), (400, field));
    }
    let reset = shown["quota_reset_at"].as_str().unwrap();
    let (reset, now) = (reset.parse::<jiff::Timestamp>().unwrap(), jiff::Timestamp::now());
    assert!(
        reset.as_second() % 86_400 == 0 && reset > now && reset.as_second() - now.as_second() <= 86_400,
        "{reset}"
    );
}

#[test]
fn blocked_network_is_normalized() {
    let service = Service::unconfigured();
    let put = send(&service, "PUT", "/v1/admin/blocks/ip:192.0.2.7/24", &json!({"reason": "scan"}));
    assert_eq!((put.status, &put.json()["client"]), (201, &json!("ip:192.0.2.0/24")), "{}", put.text);
    let check = service.post("/v1/rate-limit/check", r#"{"ip":"192.0.2.200","endpoint":"/x"}"#);
    assert_eq!(check.status, 403);
    assert_eq!(service.admin("GET", "/v1/admin/blocks/ip:192.0.2.0%2F24", "").status, 200);
    assert_eq!(
        send(&service, "POST", "/v1/admin/blocks", &json!({"client": "ip:192.0.2.9/24"})).error().0,
        409
    );
    let wrong = [
        json!({"client": "planet:earth"}),
        json!({"client": "api_key:not-one-of-ours"}),
        json!({"client": "ip:10.0.0.0/40"}),
        json!({}),
        json!({"client": "user:a", "until": "2001-01-01T00:00:00Z"}),
        json!({"client": "user:a", "until": "tomorrow"}),
        json!({"client": "user:a", "for": "0s"}),
        json!({"client": "user:a", "for": "1h", "until": "2040-01-01T00:00:00Z"}),
    ];
    for body in wrong {
        assert_eq!(send(&service, "POST", "/v1/admin/blocks", &body).error().0, 400, "{body}");
    }
    assert_eq!(service.admin("GET", "/v1/admin/blocks/planet:earth", "").error().2, "client");
    assert_eq!(
        send(&service, "PUT", "/v1/admin/blocks/user:a", &json!({"client": "user:b"})).error().2,
        "client"
    );
}

#[test]
fn dry_run_reports_changes_and_effect_only() {
    let service = Service::with_config("default_limit = 10\ndefault_window = 3600");
    for _ in 0..6 {
        assert_eq!(service.check("alice", "/search").status, 200);
    }
    service.check("bob", "/search");
    let path = "/v1/admin/rules?dry_run=true";
    let tried = send(&service, "POST", path, &rule("users", 2));
    assert_eq!(tried.status, 200, "{}", tried.text);
    let body = tried.json();
    assert_eq!(body["dry_run"], true);
    assert_eq!(
        body["changes"],
        json!([{"kind": "rule", "id": "users", "action": "create", "before": null, "after": rule("users", 2)}])
    );
    let effect = &body["effect"];
    assert_eq!((&effect["requests"], &effect["clients"]), (&json!(7), &json!(2)), "{effect}");
    assert_eq!((&effect["newly_refused"], &effect["newly_admitted"]), (&json!(4), &json!(0)), "{effect}");
    assert_eq!(
        effect["examples"][0],
        json!({"client": "user:alice", "endpoint": "/search", "before": "admitted", "after": "refused", "rule": "users", "requests": 4})
    );
    let block =
        send(&service, "PUT", "/v1/admin/blocks/user:bob?dry_run=true", &json!({"reason": "x"})).json();
    assert_eq!(
        (&block["effect"]["newly_refused"], &block["effect"]["examples"][0]["after"]),
        (&json!(1), &json!("blocked"))
    );
    let quota =
        send(&service, "PUT", "/v1/admin/quotas/alice?dry_run=true", &json!({"requests_per_hour": 5})).json();
    assert_eq!(quota["effect"]["newly_refused"], 1, "{quota}");
    let key = send(&service, "POST", "/v1/admin/keys?dry_run=true", &json!({"name": "k"})).json();
    assert_eq!((&key["effect"], &key["changes"][0]["action"]), (&json!(null), &json!("create")));
    assert_eq!(service.admin("DELETE", "/v1/admin/rules/none?dry_run=true", "").error().0, 404);
    assert_eq!(service.admin("DELETE", "/v1/admin/rules/none?dry_run=1", "").error().2, "dry_run");
    assert_eq!(service.admin("DELETE", "/v1/admin/rules/none?dryrun=true", "").error().2, "dryrun");
    assert_eq!(service.admin("GET", "/v1/admin/audit", "").json()["entries"], json!([]));
    assert_eq!(service.check("alice", "/search").json()["limit"], 10);
}

#[test]
fn every_write_has_one_audit_entry() {
    let service = Service::with_config("default_limit = 10");
    send(&service, "POST", RULES, &rule("r", 1));
    send(&service, "PUT", "/v1/admin/rules/r", &rule("r", 2));
    send(&service, "PUT", "/v1/admin/rules/r", &rule("r", 2));
    service.admin("DELETE", "/v1/admin/rules/r", "");
    assert_eq!(service.admin("POST", "/v1/admin/reload", "").status, 200);
    let reset = service.admin("POST", "/v1/rate-limit/reset", r#"{"user_id":"a","endpoint":"/x"}"#);
    assert_eq!(reset.status, 200, "{}", reset.text);
    let trail = service.admin("GET", "/v1/admin/audit", "").json();
    let entries = trail["entries"].as_array().unwrap();
    let acts: Vec<(&str, &str)> = entries
        .iter()
        .map(|each| (each["action"].as_str().unwrap(), each["kind"].as_str().unwrap()))
        .collect();
    let expected = [
        ("create", "rule"),
        ("update", "rule"),
        ("delete", "rule"),
        ("reload", "settings"),
        ("reset", "counters"),
    ];
    assert_eq!(acts, expected, "{trail}");
    assert!(entries.iter().all(|each| each["by"] == "admin" && each["at"].as_str().unwrap().ends_with('Z')));
    assert_eq!((&entries[0]["before"], entries[2]["after"].is_null()), (&json!(null), true));
    assert_eq!(entries[1]["after"], entries[2]["before"]);
    assert_ne!(entries[1]["before"], entries[1]["after"]);
    assert_eq!(service.admin("GET", "/v1/admin/actions", "").json(), trail);

    let some = |query: &str| {
        let page = service.admin("GET", &format!("/v1/admin/audit?{query}"), "").json();
        let ids = page["entries"].as_array().unwrap().iter().map(|each| each["id"].as_u64().unwrap());
        (ids.collect::<Vec<u64>>(), page["next"].clone())
    };
    let ids = some("").0;
    assert_eq!(some("limit=2"), (ids[..2].to_vec(), json!(ids[1].to_string())));
    assert_eq!(some(&format!("limit=2&after={}", ids[3])), (ids[4..].to_vec(), json!(null)));
    let newest: Vec<u64> = ids.iter().rev().copied().collect();
    assert_eq!(some("newest=true").0, newest);
    assert_eq!(some(&format!("newest=true&limit=2&after={}", ids[3])).0, [ids[2], ids[1]]);
    assert_eq!(some("kind=rule&subject=r").0, ids[..3]);
    assert!(some("by=nobody").0.is_empty());
    for (query, field) in
        [("after=x", "after"), ("limit=0", "limit"), ("newest=1", "newest"), ("colour=1", "colour")]
    {
        assert_eq!(service.admin("GET", &format!("/v1/admin/audit?{query}"), "").error().2, field);
    }
}

#[test]
fn dry_run_of_any_write_changes_nothing() {
    let service = Service::with_config("default_limit = 10");
    let user_limit =
        json!({"user_id": "a", "endpoint": "/x", "limit": 2, "window_seconds": 60, "strategy": "gcra"});
    let place = "/v1/rate-limit/config";
    let tried = send(&service, "PUT", &format!("{place}?dry_run=true"), &user_limit);
    assert_eq!(
        (tried.status, &tried.json()["changes"][0]["action"]),
        (200, &json!("create")),
        "{}",
        tried.text
    );
    assert_eq!(service.check("a", "/x").json()["limit"], 10);
    assert_eq!(send(&service, "PUT", place, &user_limit).status, 200);
    let path = format!("{place}?user_id=a&endpoint=/x&dry_run=true");
    let tried = service.admin("DELETE", &path, "");
    assert_eq!(
        (tried.status, &tried.json()["changes"][0]["action"]),
        (200, &json!("delete")),
        "{}",
        tried.text
    );
    assert_eq!(service.check("a", "/x").json()["limit"], 2);
    assert_eq!(service.admin("GET", &path, "").error().2, "dry_run");
    let reset = json!({"user_id": "a", "endpoint": "/x"});
    for (method, path, body) in [
        ("POST", "/v1/rate-limit/reset", &reset),
        ("POST", "/v1/admin/reload", &Value::Null),
        ("DELETE", "/v1/admin/penalties/user:a", &Value::Null),
    ] {
        let answer = send(&service, method, &format!("{path}?dry_run=true"), body);
        assert_eq!((answer.error().0, &*answer.error().2), (400, "dry_run"), "{path}");
    }
    let trail = service.admin("GET", "/v1/admin/audit", "").json();
    assert_eq!(trail["entries"].as_array().unwrap().len(), 1, "{trail}");
}

#[test]
fn pardon_has_an_audit_entry() {
    let service = Service::with_config(
        "default_limit = 1\ndefault_window = \"1h\"\n[progressive_penalties]\nenabled = true\nviolation_threshold = 1\nbase_cooldown = \"1h\"",
    );
    for _ in 0..3 {
        service.check("a", "/x");
    }
    assert_eq!(service.admin("DELETE", "/v1/admin/penalties/user:a", "").status, 204);
    let trail = service.admin("GET", "/v1/admin/audit?kind=penalty", "").json();
    assert_eq!(
        (&trail["entries"][0]["action"], &trail["entries"][0]["subject"]),
        (&json!("pardon"), &json!("user:a"))
    );
}

#[test]
fn writes_fail_while_the_database_is_unreachable() {
    let folder = tempfile::TempDir::new().unwrap();
    let url = "postgres://nobody@127.0.0.1:1/none";
    let service = Service::start(folder, None, &[("TOLLGATE_DATABASE__URL", url)]);
    let quota = json!({"user_id": "a"});
    let block = json!({"client": "user:a"});
    let tier = json!({"name": "a", "limit": 1, "window": 60});
    let mut asked =
        vec![("POST", RULES.to_owned(), rule("r", 1)), ("PUT", format!("{RULES}/r"), rule("r", 1))];
    for (kind, one, body) in [
        ("tiers", "a", &tier),
        ("quotas", "a", &quota),
        ("blocks", "user:a", &block),
        ("keys", "a", &json!({"name": "k"})),
    ] {
        let (list, one) = (format!("/v1/admin/{kind}"), format!("/v1/admin/{kind}/{one}"));
        asked.extend([("POST", list.clone(), body.clone()), ("PUT", one.clone(), body.clone())]);
        asked.extend([
            ("GET", list, Value::Null),
            ("GET", one.clone(), Value::Null),
            ("DELETE", one, Value::Null),
        ]);
    }
    for path in
        ["/v1/admin/rules", "/v1/admin/rules/r", "/v1/admin/audit", "/v1/admin/actions", "/v1/admin/export"]
    {
        asked.push(("GET", path.to_owned(), Value::Null));
    }
    for path in ["/v1/admin/keys/a/rotate", "/v1/admin/keys/a/revoke", "/v1/admin/import"] {
        asked.push(("POST", path.to_owned(), json!({})));
    }
    for (method, path, body) in asked {
        let answer = if body.is_null() {
            service.admin(method, &path, "")
        } else {
            send(&service, method, &path, &body)
        };
        assert_eq!(answer.error().1, "SERVICE_UNAVAILABLE", "{method} {path}: {}", answer.text);
        assert!(answer.header("retry-after").is_some());
    }
    let built_in = service.admin("GET", "/v1/admin/rules?source=built-in", "");
    assert_eq!((built_in.status, &built_in.json()["rules"][0]["name"]), (200, &json!("default")));
    assert_eq!(service.admin("GET", "/v1/admin/rules?source=file", "").json()["rules"], json!([]));
    assert_eq!(service.admin("GET", "/v1/admin/rules/default", "").status, 200);
    assert_eq!(service.check("a", "/x").status, 503);
}

/// A request may be charged sixteen limits: each of these rules fits alone, and four fit together.
#[test]
fn concurrent_rule_writes_stay_consistent() {
    let service = Service::unconfigured();
    let put = |number: u32| {
        let window = |minutes: u32| json!({ "requests": 100, "window": format!("{minutes}m") });
        let limits: Vec<Value> = (1..=4).map(window).collect();
        let rule = json!({ "layer": format!("layer-{number}"), "per": ["user"], "limits": limits });
        send(&service, "PUT", &format!("{RULES}/rule-{number}"), &rule)
    };
    let answers: Vec<Answer> = std::thread::scope(|scope| {
        let put = &put;
        let writers: Vec<_> = (0..12).map(|number| scope.spawn(move || put(number))).collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    let count = |status: u16| answers.iter().filter(|answer| answer.status == status).count();
    let others: Vec<&str> = answers.iter().map(|answer| &*answer.text).collect();
    assert_eq!((count(201), count(400) + count(503)), (4, 8), "{others:?}");
    let ready = service.get("/readyz").json();
    assert_eq!((&ready["status"], &ready["database_error"]), (&json!("ready"), &Value::Null), "{ready}");
}

#[test]
fn counters_need_one_client_and_name_bad_parameters() {
    let service = Service::unconfigured();
    let wrong = |query: &str| {
        let answer = service.admin("GET", &format!("/v1/admin/counters{query}"), "");
        let (status, code, field) = answer.error();
        assert_eq!((status, &*code), (400, "INVALID_INPUT"), "{query}");
        (field, answer.json()["error"]["message"].as_str().unwrap().to_owned())
    };
    let long = "a".repeat(257);
    for query in ["", "?endpoint=/x", "?user=", &format!("?user={long}")] {
        let (field, message) = wrong(query);
        assert!(field == "user" && !message.contains("user_id"), "{query}: {message}");
    }
    assert_eq!(wrong("?user_id=a").0, "user_id");
    assert_eq!(wrong("?ip=x").0, "ip");
    let (field, message) = wrong("?user=a&ip=192.0.2.1");
    assert!(field == "ip" && message.contains("cannot be combined with"), "{message}");
    for query in ["?user=a", "?ip=192.0.2.1", "?tenant=t", "?login=l", "?api_key=k", "?tenant=t&login=l"] {
        assert_eq!(service.admin("GET", &format!("/v1/admin/counters{query}"), "").status, 200, "{query}");
    }
}

#[test]
fn rule_cost_is_charged_from_the_database() {
    let service = Service::unconfigured();
    let tokens = json!({
        "per": ["user"], "limits": [{ "requests": 100, "window": "1d" }], "cost": "descriptor:tokens",
    });
    let path = format!("{RULES}/tokens");
    assert_eq!(send(&service, "PUT", &path, &tokens).status, 201);
    assert_eq!(service.admin("GET", &path, "").json()["definition"]["cost"], "descriptor:tokens");
    let check = r#"{"user_id":"a","endpoint":"/","descriptors":{"tokens":"40"}}"#;
    let answers = [(); 3].map(|()| service.post("/v1/rate-limit/check", check));
    assert_eq!(answers.each_ref().map(|answer| answer.status), [200, 200, 429]);
    assert_eq!(answers[1].json()["remaining"], 20);
    let wrong = json!({ "per": ["user"], "requests_per_hour": 1, "cost": "tokens" });
    let refused = send(&service, "PUT", &path, &wrong);
    assert_eq!((refused.error().0, &*refused.error().2), (400, "cost"), "{}", refused.text);
}
