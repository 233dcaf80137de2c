//! nginx with the configuration of docs/gateways.md.

use std::fs;

use crate::harness::wait_for;
use crate::setup::{Setup, settings};

#[test]
fn nginx_forwards_exactly_the_limit() {
    let setup = Setup::nginx(&settings(100, ""));
    assert_eq!(setup.flood(1_000, [200, 429]), [100, 900]);
    assert_eq!(setup.served(), 100);
    assert!(setup.http2_status("/api/items").starts_with("2 429"), "{}", setup.http2_status("/api/items"));
}

#[test]
fn nginx_client_sees_status_headers_and_body() {
    let setup = Setup::nginx(&settings(1, ""));
    let admitted = setup.get("/api/items", &[]);
    assert_eq!((admitted.status, &*admitted.text), (200, "hello"));
    let limits: Vec<_> = admitted.headers.iter().filter(|(name, _)| name == "x-ratelimit-limit").collect();
    assert_eq!(limits, [&("x-ratelimit-limit".to_owned(), "1".to_owned())], "not that of the application");
    assert_eq!(admitted.header("x-ratelimit-remaining"), Some("0"));
    let refused = setup.get("/api/items", &[]);
    assert_eq!((refused.status, refused.header("content-type")), (429, Some("application/json")));
    assert!(refused.header("retry-after").unwrap().parse::<u32>().unwrap() > 0);
    assert_eq!(refused.header("x-ratelimit-remaining"), Some("0"));
    assert_eq!((&refused.json()["allowed"], &refused.json()["rule"]), (&false.into(), &"default".into()));
    assert_eq!(setup.get("/a%zz", &[]).status, 400, "nginx refuses it itself");
    assert_eq!(setup.get("/a%5Cb", &[]).json()["error"]["details"]["field"], "x-original-uri");
}

#[test]
fn nginx_counts_every_spelling_of_a_path_once() {
    let rule = "[[rules]]\nname = \"items\"\nwhen = { endpoints = [\"/api/items\"] }\nper = [\"ip\", \"endpoint\"]\n\
                limits = [{ requests = 5, window = \"1d\" }]";
    Setup::nginx(&settings(1_000, rule)).spellings_share_one_counter(5);
}

#[test]
fn nginx_keeps_forged_headers_from_tollgate() {
    Setup::nginx(&settings(7, "")).forged_headers_change_nothing(7);
}

#[test]
fn nginx_passes_on_blocks_and_invalid_keys() {
    let setup = Setup::nginx(&settings(10, ""));
    let key = format!("tg_{}_{}", "a".repeat(16), "b".repeat(43));
    let refused = setup.get("/api/items", &[("x-api-key", &key)]);
    assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("ApiKey")));
    assert_eq!(refused.json()["reason"], "api_key_unknown");
    setup.service.admin("POST", "/v1/admin/blocks", r#"{"client":"ip:127.0.0.1","reason":"abuse"}"#);
    let blocked = setup.get("/api/items", &[]);
    assert_eq!((blocked.status, &blocked.json()["reason"]), (403, &"abuse".into()));
    assert_eq!(setup.served(), 0);
}

#[test]
fn nginx_is_closed_while_tollgate_is_down() {
    let setup = Setup::nginx(&settings(10, ""));
    assert_eq!(setup.get("/api/items", &[]).status, 200);
    setup.service.signal("-KILL");
    wait_for("nginx to notice", || (setup.get("/api/items", &[]).status == 500).then_some(()));
    let before = setup.served();
    assert_eq!(setup.get("/api/items", &[]).status, 500);
    assert_eq!(setup.served(), before);
}

#[test]
fn nginx_can_stay_open_while_tollgate_is_down() {
    let setup = Setup::nginx_with(&settings(1, ""), |site| {
        let open = "error_page 502 504 = @tollgate_down;\n        internal;";
        let site = site.replacen("internal;", open, 1);
        let down = "location @tollgate_down { return 204; }\n    location @tollgate_refused {";
        site.replace("location @tollgate_refused {", down)
    });
    assert_eq!([(); 2].map(|()| setup.get("/api/items", &[]).status), [200, 429]);
    setup.service.signal("-KILL");
    wait_for("nginx to notice", || (setup.get("/api/items", &[]).status == 200).then_some(()));
}

#[test]
fn reload_under_load_keeps_the_count() {
    let setup = Setup::nginx(&settings(100, ""));
    let flooded = std::thread::scope(|scope| {
        let flood = scope.spawn(|| setup.flood(400, [200, 429]));
        for number in 0..5 {
            let changed = settings(100, &format!("default_tier = \"tier-{number}\"\n"));
            fs::write(setup.service.config_file(), changed).unwrap();
            setup.service.signal("-HUP");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        flood.join().unwrap()
    });
    assert_eq!(flooded, [100, 300]);
    assert_eq!(setup.served(), 100);
}
