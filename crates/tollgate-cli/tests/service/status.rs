//! Requests that charge nothing (status, explain, checks of cost 0), and resets of overrides.

use std::time::{Duration, Instant, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::harness::{Service, description};

/// The remaining requests and the reset time.
fn remaining_and_reset(body: &Value) -> (u64, u64) {
    (body["remaining"].as_u64().unwrap(), body["reset_at"].as_u64().unwrap())
}

#[test]
fn status_explain_and_cost_zero_check_agree() {
    for strategy in [
        "token_bucket",
        "gcra",
        "leaky_bucket",
        "fixed_window",
        "sliding_window_counter",
        "sliding_window_log",
    ] {
        let service = Service::with_config(&format!(
            "[[rules]]\nname = \"r\"\nper = [\"user\"]\nalgorithm = \"{strategy}\"\n\
             limits = [{{ requests = 5, window = \"30d\" }}]"
        ));
        for used in 0..3 {
            let started = Instant::now();
            let look =
                service.post("/v1/rate-limit/check", r#"{"user_id":"a","endpoint":"/x","cost":0}"#).json();
            let (left, reset_at) = remaining_and_reset(&look);
            assert_eq!(left, 5 - used, "{strategy}");
            let explained =
                service.post("/v1/rate-limit/explain", r#"{"user_id":"a","endpoint":"/x"}"#).json();
            let status = service.get("/v1/rate-limit/status?user_id=a&endpoint=/x").json();
            for body in [&explained, &explained["rules"][0]["limits"][0], &status] {
                let (also_left, also_reset_at) = remaining_and_reset(body);
                assert_eq!(also_left, left, "{strategy}, {used} used: {body}");
                // The requests follow each other; a full counter reports the current time.
                let apart = started.elapsed().as_secs() + 2;
                assert!(
                    also_reset_at.abs_diff(reset_at) <= apart,
                    "{strategy}, {used} used: {look} and {body}"
                );
            }
            assert_eq!(service.check("a", "/x").status, 200);
        }
    }
}

#[test]
fn explain_shows_counters_during_cooldown() {
    let service = Service::with_config(
        r#"
        [progressive_penalties]
        enabled = true
        violation_threshold = 1
        base_cooldown = "1m"
        [[rules]]
        name = "slow"
        per = ["user"]
        algorithm = "sliding_window_log"
        layer = "slow"
        limits = [{ requests = 2, window = "10s" }]
        [[rules]]
        name = "wide"
        per = ["user"]
        layer = "wide"
        limits = [{ requests = 9, window = "1h" }]
    "#,
    );
    let refused = (0..3).filter(|_| service.check("a", "/x").status == 429).count();
    assert_eq!(refused, 1);
    let body = service.post("/v1/rate-limit/explain", r#"{"user_id":"a","endpoint":"/x"}"#).json();
    assert_eq!((&body["allowed"], &body["reason"]), (&json!(false), &json!("cooldown")), "{body}");
    let until = body["cooldown_until"].as_u64().unwrap();
    assert_eq!(until, body["reset_at"].as_u64().unwrap(), "reset_at in the response");
    let [slow, wide] = [0, 1].map(|rule| &body["rules"][rule]);
    let (slow_limit, wide_limit) = (&slow["limits"][0], &wide["limits"][0]);
    assert!(slow_limit["reset_at"].as_u64().unwrap() < until - 40, "{body}");
    assert_eq!((&slow_limit["remaining"], &wide_limit["remaining"]), (&json!(0), &json!(7)), "{body}");
    assert!(wide["reason"].as_str().unwrap().contains("in cooldown"), "{body}");
    let free = service.post("/v1/rate-limit/explain", r#"{"user_id":"b","endpoint":"/x"}"#).json();
    assert_eq!(free.get("cooldown_until"), None);
}

#[test]
fn status_shows_reason_and_end_of_a_refusal() {
    let service = Service::with_config(
        r#"
        [progressive_penalties]
        enabled = true
        violation_threshold = 1
        base_cooldown = "1m"
        [[rules]]
        name = "slow"
        per = ["user"]
        limits = [{ requests = 2, window = "10s" }]
        response = { retry_after_floor = "10m" }
    "#,
    );
    let status = |user: &str| service.get(&format!("/v1/rate-limit/status/{user}/x")).json();
    let free = status("b");
    assert_eq!(free["allowed"], true);
    for absent in ["reason", "decision", "blocked_until", "cooldown_until"] {
        assert_eq!(free.get(absent), None, "{free}");
    }
    (0..3).for_each(|_| drop(service.check("a", "/x")));
    let cooling = status("a");
    assert_eq!((&cooling["allowed"], &cooling["reason"]), (&json!(false), &json!("cooldown")), "{cooling}");
    assert_eq!(cooling["cooldown_until"], cooling["reset_at"], "{cooling}");
    let explained = service.post("/v1/rate-limit/explain", r#"{"user_id":"a","endpoint":"/x"}"#).json();
    assert_eq!(cooling["cooldown_until"], explained["cooldown_until"]);

    for (user, until) in [("c", json!(null)), ("d", json!(4_102_444_800_u64))] {
        let ends = if until.is_null() { "" } else { r#","until":"2100-01-01T00:00:00Z""# };
        let block = format!(r#"{{"client":"user:{user}","reason":"abuse"{ends}}}"#);
        assert_eq!(service.admin("POST", "/v1/admin/blocks", &block).status, 201);
        let blocked = status(user);
        assert_eq!((&blocked["allowed"], &blocked["decision"]), (&json!(false), &json!("blocked")));
        assert_eq!((&blocked["reason"], blocked.get("blocked_until")), (&json!("abuse"), Some(&until)));
    }
}

#[test]
fn status_shows_the_end_of_the_cooldown() {
    let service = Service::with_config(
        r#"
        [progressive_penalties]
        enabled = true
        violation_threshold = 1
        base_cooldown = "10m"
        [[rules]]
        name = "monthly"
        per = ["user"]
        limits = [{ requests = 3, window = "30d" }]
    "#,
    );
    (0..4).for_each(|_| drop(service.check("a", "/x")));
    let explained = service.post("/v1/rate-limit/explain", r#"{"user_id":"a","endpoint":"/x"}"#).json();
    let until = explained["cooldown_until"].as_u64().unwrap();
    for (cost, reason) in [(1, "cooldown"), (9, "cost_exceeds_limit")] {
        let body = service.get(&format!("/v1/rate-limit/status?user_id=a&endpoint=/x&cost={cost}")).json();
        assert_eq!(body["reason"], reason, "{body}");
        // The requests follow each other, and times are in whole seconds.
        assert!(body["cooldown_until"].as_u64().unwrap().abs_diff(until) <= 1, "{until} and {body}");
        assert!(body["reset_at"].as_u64().unwrap() > until + 86_400, "{body}");
    }
}

#[test]
fn status_usage_is_relative_to_the_burst() {
    let service = Service::with_config(
        r#"
        [[rules]]
        name = "hourly"
        per = ["user"]
        when = { endpoints = ["/small"] }
        limits = [{ requests = 1000, window = "30d", burst = 20 }]
        [[rules]]
        name = "large"
        per = ["user"]
        when = { endpoints = ["/large"] }
        limits = [{ requests = 10, window = "30d", burst = 40 }]
    "#,
    );
    let used = |endpoint: &str| {
        let body = service.get(&format!("/v1/rate-limit/status/a/{endpoint}")).json();
        (body["usage_percentage"].as_f64().unwrap(), body["capacity"].as_u64().unwrap())
    };
    assert_eq!((used("small"), used("large")), ((0.0, 20), (0.0, 40)));
    for endpoint in ["/small", "/large"] {
        let check = format!(r#"{{"user_id":"a","endpoint":"{endpoint}","cost":10}}"#);
        assert_eq!(service.post("/v1/rate-limit/check", &check).status, 200);
    }
    assert_eq!((used("small"), used("large")), ((50.0, 20), (25.0, 40)));
}

#[test]
fn status_accepts_descriptors_and_rejects_unknown() {
    let service = Service::with_config(
        "[[rules]]\nname = \"by-device\"\nper = [\"user\", \"descriptor:device id\"]\n\
         limits = [{ requests = 3, window = \"1h\" }]",
    );
    let check = r#"{"user_id":"a","endpoint":"/x","descriptors":{"device id":"k&1"}}"#;
    assert_eq!(service.post("/v1/rate-limit/check", check).status, 200);
    let status = |query: &str| service.get(&format!("/v1/rate-limit/status?endpoint=/x&{query}"));
    let one = status("user_id=a&descriptor.device%20id=k%261");
    assert_eq!((one.status, &one.json()["remaining"]), (200, &json!(2)), "{}", one.text);
    assert_eq!(status("user_id=a&descriptor.device+id=other").json()["remaining"], 3);
    assert_eq!(service.get("/v1/rate-limit/status/a/x?descriptor.device%20id=k%261").json()["remaining"], 2);
    assert_eq!(status("user_id=a").json()["limit"], Value::Null);
    assert_eq!(status("user_id=a&descriptor.device%20id=k%261&cost=3").json()["allowed"], false);
    let many = (0..33).map(|n| format!("descriptor.d{n}=x")).collect::<Vec<_>>().join("&");
    for (query, field) in [
        ("user_id=a&descriptors=x", "descriptors"),
        ("user_id=a&descriptor.a=1&descriptor.a=2", "descriptors"),
        ("user_id=a&descriptor.=1", "descriptors"),
        ("user_id=a&cost=-1", "cost"),
        ("user_id=a&user_id=b", "user_id"),
        (&*format!("user_id=a&{many}"), "descriptors"),
    ] {
        let answer = status(query);
        assert_eq!((answer.status, answer.error().2), (400, field.to_owned()), "{query}: {}", answer.text);
    }
    let nowhere = service.get("/v1/rate-limit/status?user_id=a");
    assert_eq!(nowhere.json()["error"]["message"], "endpoint: is missing");
}

const OVERRIDE: &str = r#"{"user_id":"a","endpoint":"/x","limit":1,"window_seconds":3600}"#;

#[test]
fn strategy_works_alike_in_status_and_check() {
    let service = Service::with_config("default_limit = 100\ndefault_window = \"30d\"");
    let own = r#"{"user_id":"a","endpoint":"/x","strategy":"fixed_window"}"#;
    assert_eq!(service.post("/v1/rate-limit/check", own).json()["remaining"], 99);
    let status =
        |more: &str| service.get(&format!("/v1/rate-limit/status?user_id=a&endpoint=/x{more}")).json();
    assert_eq!((&status("")["remaining"], &status("")["strategy"]), (&json!(100), &json!("token_bucket")));
    let fixed = status("&strategy=fixed_window");
    assert_eq!((&fixed["remaining"], &fixed["strategy"]), (&json!(99), &json!("fixed_window")));
    service.post("/v1/rate-limit/check", OVERRIDE);
    assert_eq!(status("&limit=1&window_seconds=3600")["allowed"], false);
    assert_eq!(
        service.get("/v1/rate-limit/status?user_id=a&endpoint=/x&strategy=best").error().2,
        "strategy"
    );
}

#[test]
fn reset_with_override_clears_its_counter() {
    let service = Service::unconfigured();
    let check = |body: &str| service.post("/v1/rate-limit/check", body).status;
    let reset = |body: &str| service.admin("POST", "/v1/rate-limit/reset", body).json();
    assert_eq!((check(OVERRIDE), check(OVERRIDE)), (200, 429));
    assert_eq!(reset(r#"{"user_id":"a","endpoint":"/x"}"#)["counters"], 0, "the window is missing");
    assert_eq!(check(OVERRIDE), 429);
    assert_eq!(reset(r#"{"user_id":"b","endpoint":"/x","window_seconds":3600}"#)["counters"], 0, "another's");
    assert_eq!(reset(r#"{"user_id":"a","endpoint":"/x","window_seconds":3600}"#)["counters"], 1);
    assert_eq!((check(OVERRIDE), check(OVERRIDE)), (200, 429));
    assert_eq!(service.check("a", "/x").status, 200);
    assert_eq!(reset(OVERRIDE)["counters"], 2, "the override's counter and the rule's");
    assert_eq!(check(OVERRIDE), 200);
    let wrong = service.admin(
        "POST",
        "/v1/rate-limit/reset",
        r#"{"user_id":"a","endpoint":"/x","window_seconds":0}"#,
    );
    assert_eq!((wrong.status, wrong.error().2.as_str()), (400, "window_seconds"));
}

/// Usage just before midnight does not count for the next day.
fn wait_until_the_day_is_not_ending() {
    while UNIX_EPOCH.elapsed().unwrap().as_secs() % 86_400 > 86_400 - 60 {
        std::thread::sleep(Duration::from_secs(1));
    }
}

#[test]
fn reset_tier_selects_the_completing_rule() {
    let service = Service::with_config(
        "default_limit = 5\ndefault_window = 60\n[[tiers]]\nname = \"gold\"\nlimit = 9\nwindow = 3600",
    );
    let own = r#"{"user_id":"a","endpoint":"/x","tier":"gold","limit":1}"#;
    let check = || service.post("/v1/rate-limit/check", own).status;
    let reset = |body: &str| service.admin("POST", "/v1/rate-limit/reset", body).json();
    assert_eq!((check(), check()), (200, 429));
    assert_eq!(
        reset(r#"{"user_id":"a","endpoint":"/x","limit":1}"#)["counters"],
        0,
        "the window is a minute"
    );
    assert_eq!(check(), 429);
    assert_eq!(reset(own)["counters"], 1);
    assert_eq!(check(), 200);
    let place = ["--user", "a", "--endpoint", "/x", "--tier", "gold", "--limit", "1"];
    let output = crate::cli::run(&service, &[&["reset"], &place[..]].concat());
    assert_eq!(String::from_utf8_lossy(&output.stdout), "reset a on /x: 1 counter\n");
}

#[test]
fn reset_accepts_described_fields_and_rejects_cost() {
    let service = Service::unconfigured();
    let mut fields =
        description()["components"]["schemas"]["CheckBody"]["properties"].as_object().unwrap().clone();
    fields.remove("cost");
    let mut body = json!({"user_id": "a", "endpoint": "/x"});
    for (field, value) in [
        ("method", json!("GET")),
        ("api_key", json!("k")),
        ("ip", json!("192.0.2.1")),
        ("tenant", json!("t")),
        ("tier", json!("gold")),
        ("login", json!("l")),
        ("descriptors", json!({"region": "eu"})),
        ("strategy", json!("gcra")),
        ("limit", json!(5)),
        ("window_seconds", json!(60)),
    ] {
        body[field] = value;
    }
    let written: Vec<&String> = body.as_object().unwrap().keys().collect();
    assert!(fields.keys().all(|field| written.contains(&field)) && fields.len() == written.len());
    assert_eq!(service.admin("POST", "/v1/rate-limit/reset", &body.to_string()).status, 200);
    body["cost"] = json!(1);
    let refused = service.admin("POST", "/v1/rate-limit/reset", &body.to_string());
    assert_eq!((refused.status, refused.error().2.as_str()), (400, "cost"));
}

#[test]
fn override_of_a_calendar_rule_keeps_its_window() {
    wait_until_the_day_is_not_ending();
    let service = Service::with_config(
        "[[rules]]\nname = \"daily\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\nlimits = [{ requests = 9, window = \"day\" }]",
    );
    let own = r#"{"user_id":"a","endpoint":"/x","limit":2}"#;
    let checked = service.post("/v1/rate-limit/check", own).json();
    assert_eq!(checked["reset_at"].as_u64().unwrap() % 86_400, 0, "{checked}");
    for body in [own, r#"{"user_id":"a","endpoint":"/x"}"#] {
        let explained = service.post("/v1/rate-limit/explain", body).json();
        let limit = &explained["rules"][0]["limits"][0];
        assert_eq!((&limit["window"], &limit["window_seconds"]), (&json!("day in UTC"), &Value::Null));
    }
    let reset = service.admin("POST", "/v1/rate-limit/reset", own).json();
    assert_eq!(reset["counters"], 1);
}

#[test]
fn override_is_completed_during_cooldown_and_block() {
    let service = Service::with_config(
        r#"
        [progressive_penalties]
        enabled = true
        violation_threshold = 1
        [[rules]]
        name = "r"
        per = ["user"]
        algorithm = "fixed_window"
        limits = [{ requests = 50, window = "20d" }, { requests = 5, window = "30d" }]
    "#,
    );
    let own = |user: &str| format!(r#"{{"user_id":"{user}","endpoint":"/x","limit":7}}"#);
    for user in ["cooling", "blocked"] {
        (0..2).for_each(|_| assert_eq!(service.post("/v1/rate-limit/check", &own(user)).status, 200));
    }
    let refused = (0..6).filter(|_| service.check("cooling", "/x").status == 429).count();
    assert_eq!(refused, 1);
    let block = r#"{"client":"user:blocked","reason":"abuse"}"#;
    assert_eq!(service.admin("POST", "/v1/admin/blocks", block).status, 201);

    let counter = |user: &str| {
        let body = service.post("/v1/rate-limit/explain", &own(user)).json();
        let limit = &body["rules"][0]["limits"][0];
        (limit["window_seconds"].as_u64().unwrap(), limit["remaining"].as_u64().unwrap())
    };
    let days = |days: u64| days * 86_400;
    assert_eq!(counter("cooling"), (days(20), 5));
    let reset = |user: &str| service.admin("POST", "/v1/rate-limit/reset", &own(user)).json();
    assert_eq!(reset("cooling")["counters"], 3, "the override's counter and both of the rule");
    assert_eq!(counter("cooling"), (days(20), 7));

    assert_eq!(reset("blocked")["counters"], 1);
    assert_eq!(service.admin("DELETE", "/v1/admin/blocks/user:blocked", "").status, 204);
    assert_eq!(counter("blocked"), (days(20), 7));
}

#[test]
fn reset_clears_user_limit_and_override() {
    let service = Service::unconfigured();
    let set =
        r#"{"user_id":"a","endpoint":"/x","limit":5,"window_seconds":2592000,"strategy":"fixed_window"}"#;
    assert_eq!(service.admin("PUT", "/v1/rate-limit/config", set).status, 200);
    assert_eq!(service.check("a", "/x").status, 200);
    assert_eq!(service.post("/v1/rate-limit/check", OVERRIDE).status, 200);
    let reset = service.admin("POST", "/v1/rate-limit/reset", OVERRIDE).json();
    assert_eq!(reset["counters"], 2, "{reset}");
}

#[test]
fn remaining_is_reported_with_its_capacity() {
    let service = Service::with_config(
        "[[rules]]\nname = \"r\"\nper = [\"user\"]\nlimits = [{ requests = 60, window = \"30d\", burst = 20 }]\n\
         [[rules]]\nname = \"m\"\nper = [\"ip\"]\nalgorithm = \"fixed_window\"\n\
         limits = [{ requests = 10000, window = \"month\", time_zone = \"Europe/Berlin\" }]",
    );
    let unused = service.get("/v1/rate-limit/status?user_id=a&endpoint=/x").json();
    assert_eq!((&unused["remaining"], &unused["capacity"]), (&json!(20), &json!(20)));
    assert_eq!((&unused["limit"], &unused["window"]), (&json!(60), &json!("30d")));
    let checked = service.check("a", "/x").json();
    assert_eq!((&checked["remaining"], &checked["capacity"]), (&json!(19), &json!(20)));

    let shown = |arguments: &[&str]| {
        let output = crate::cli::run(&service, arguments);
        String::from_utf8(output.stdout).unwrap()
    };
    let status = shown(&["status", "--user", "b", "--endpoint", "/x"]);
    assert!(status.contains("20 of 20 available now, 60 per 30d, 0.0 % used"), "{status}");
    let explained = shown(&["explain", "--user", "b", "--ip", "192.0.2.1", "--endpoint", "/x"]);
    assert!(explained.contains("60/30d burst 20 token_bucket"), "{explained}");
    assert!(explained.contains("10000/month in Europe/Berlin fixed_window"), "{explained}");
}
