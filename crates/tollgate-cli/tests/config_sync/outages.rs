//! Database outages: decisions are unaffected, and a node starts from its snapshot.

use tempfile::TempDir;
use tollgate_stores::sql::{AccountLimits, Item};
use tollgate_testkit::PostgresServer;

use crate::database::{
    Store, block, check_with, config, key, node, node_again, node_again_without_database, rule, stop,
    wait_for_version,
};
use crate::harness::{Service, wait_for};

#[test]
fn killed_database_changes_no_decision() {
    let postgres = PostgresServer::start();
    let url = postgres.create_database();
    let service = node(&url, "");
    let store = Store::open(&url);
    let mut key = key("keptinmemoryaaa2");
    key.item.limits = AccountLimits { requests_per_hour: Some(50), ..AccountLimits::default() };
    store.put(Item::Key(key.item.clone()));
    store.put(block("mallory"));
    let version = store.put(rule("by-user", 90));
    wait_for_version(&service, version);
    let decide = || {
        let limits = check_with(&service, &key.text).json()["limit"].clone();
        (limits, service.check("mallory", "/x").status, service.check("bob", "/x").json()["limit"].clone())
    };
    let before = decide();
    assert_eq!(before, (50.into(), 403, 90.into()));
    postgres.kill9();
    for _ in 0..20 {
        assert_eq!(decide(), before);
    }
    wait_for("the outage to be reported", || {
        (service.get("/readyz").json()["status"] == "degraded").then_some(())
    });
    assert_eq!(service.get("/readyz").status, 200, "it serves");
    assert_eq!(service.metric("tollgate_config_database_up"), Some(0.0));
    assert_eq!(decide(), before);
    let numbers = r#"{"user_id":"a","endpoint":"/x","limit":1,"window_seconds":1,"strategy":"gcra"}"#;
    let refused = service.admin("PUT", "/v1/rate-limit/config", numbers);
    assert_eq!(
        (refused.status, refused.error().1),
        (503, "SERVICE_UNAVAILABLE".to_owned()),
        "{}",
        refused.text
    );
    let lines = service
        .log()
        .lines()
        .filter(|line| line.contains("the database is unreachable: the last configuration"))
        .count();
    assert_eq!(lines, 1, "{}", service.log());

    postgres.restart();
    wait_for("the database to be found again", || {
        (service.get("/readyz").json()["status"] == "ready").then_some(())
    });
    drop(store);
    let version = Store::open(&url).put(rule("by-user", 7));
    wait_for_version(&service, version);
    assert_eq!(decide(), (50.into(), 403, 7.into()));
}

#[test]
fn start_without_the_database_uses_the_snapshot() {
    let postgres = PostgresServer::start();
    let url = postgres.create_database();
    let service = node(&url, "");
    let store = Store::open(&url);
    let mut key = key("fromsnapshotaaa2");
    key.item.limits = AccountLimits { requests_per_hour: Some(50), ..AccountLimits::default() };
    store.put(Item::Key(key.item.clone()));
    let version = store.put(rule("by-user", 12));
    wait_for_version(&service, version);
    let folder = stop(service);
    postgres.kill9();

    let service = node_again_without_database(folder);
    assert_eq!(check_with(&service, &key.text).json()["limit"], 50);
    assert_eq!(service.check("bob", "/x").json()["limit"], 12);
    let ready = service.get("/readyz");
    assert_eq!((ready.status, &ready.json()["status"]), (200, &"degraded".into()));
    assert!(ready.text.contains("last valid configuration on disk"), "{}", ready.text);
    assert_eq!(service.metric("tollgate_config_from_snapshot"), Some(1.0));
    assert!(service.log().contains("the last valid configuration on disk is in force"));
    assert!(service.banner.contains("serving on"));

    postgres.restart();
    wait_for("the database to be found again", || {
        (service.get("/readyz").json()["status"] == "ready").then_some(())
    });
    assert_eq!(service.metric("tollgate_config_from_snapshot"), Some(0.0));
}

#[test]
fn node_without_its_first_configuration_answers_503() {
    let port = tollgate_testkit::free_port();
    let url = format!("postgres://u:p@127.0.0.1:{port}/gate");
    let service = Service::with_config(&format!("default_limit = 5\n{}", config(&url, "")));
    let check = r#"{"user_id":"bob","endpoint":"/x"}"#;
    let batch = format!(r#"{{"checks":[{check}]}}"#);
    let keyed = format!(r#"{{"idempotency_key":"k","checks":[{check}]}}"#);
    let refused = [
        service.post("/v1/rate-limit/check", check),
        check_with(&service, &key("cannotbeknownaa2").text),
        service.post("/v1/rate-limit/batch-check", &batch),
        service.post("/v1/rate-limit/batch-check", &keyed),
        service.post("/v1/rate-limit/explain", check),
        service.get("/v1/rate-limit/status/bob/x"),
        service.admin("POST", "/v1/rate-limit/reset", check),
        service.admin("GET", "/v1/admin/counters?user=bob", ""),
    ];
    for answer in refused {
        assert_eq!(
            (answer.status, answer.error().1),
            (503, "SERVICE_UNAVAILABLE".to_owned()),
            "{}",
            answer.text
        );
        assert_eq!(answer.header("retry-after"), Some("1"), "{}", answer.text);
        assert!(answer.text.contains("has never read its configuration"), "{}", answer.text);
    }
    let ready = service.get("/readyz");
    assert_eq!((ready.status, &ready.json()["status"]), (503, &"starting".into()));
    let reason = ready.json()["database_error"].to_string();
    assert!(reason.contains(&format!("127.0.0.1:{port}")) && reason.contains("refused"), "{reason}");
    assert!(reason.contains("checks answer 503"), "{reason}");
    assert!(!ready.text.contains("u:p@"), "{}", ready.text);
    assert_eq!(service.get("/healthz").status, 200);
    assert!(
        service.log().contains("checks answer 503 until the database was read once"),
        "{}",
        service.log()
    );
}

#[test]
fn node_without_its_first_configuration_decides_under_open() {
    let url = format!("postgres://u:p@127.0.0.1:{}/gate", tollgate_testkit::free_port());
    let service = Service::with_config(&format!(
        "on_store_failure = \"open\"\ndefault_limit = 2\n{}",
        config(&url, "")
    ));
    let answer = service.check("bob", "/x");
    assert_eq!((answer.status, &answer.json()["degraded"]), (200, &true.into()), "{}", answer.text);
    assert_eq!(service.check("bob", "/x").status, 200);
    assert_eq!(service.check("bob", "/x").status, 429, "the rules of the file apply");
    let ready = service.get("/readyz");
    assert_eq!((ready.status, &ready.json()["status"]), (503, &"starting".into()));
}

#[test]
fn node_decides_once_its_database_was_read() {
    let postgres = PostgresServer::start();
    let url = postgres.create_database();
    postgres.kill9();
    let service = Service::with_config(&config(&url, ""));
    assert_eq!(service.check("bob", "/x").status, 503);
    postgres.restart();
    wait_for("the database to be read", || (service.get("/readyz").status == 200).then_some(()));
    assert_eq!(service.check("bob", "/x").status, 200);
}

#[test]
fn lists_are_served_from_memory_while_the_database_is_down() {
    let postgres = PostgresServer::start();
    let url = postgres.create_database();
    let service = node(
        &url,
        "[[rules]]\nname = \"of-file\"\nper = [\"ip\"]\nlimits = [{ requests = 9, window = \"1h\" }]\n",
    );
    let tier = r#"{"name":"gold","limit":10,"window":60}"#;
    assert_eq!(service.admin("POST", "/v1/admin/tiers", tier).status, 201);
    assert_eq!(service.admin("POST", "/v1/admin/blocks", r#"{"client":"user:mallory"}"#).status, 201);
    assert_eq!(service.admin("POST", "/v1/admin/blocks", r#"{"client":"ip:192.0.2.0/24"}"#).status, 201);
    let store = Store::open(&url);
    store.put(rule("a-rule", 5));
    wait_for_version(&service, store.put(rule("by-user", 90)));
    let list = |path: &str| service.admin("GET", path, "").json();
    let names = |list: &serde_json::Value, kind: &str, id: &str| -> Vec<String> {
        list[kind].as_array().unwrap().iter().map(|item| item[id].as_str().unwrap().to_owned()).collect()
    };
    let lists = [
        ("/v1/admin/rules?limit=2", "rules", "name"),
        ("/v1/admin/rules?prefix=by-&action=reject", "rules", "name"),
        ("/v1/admin/tiers", "tiers", "name"),
        ("/v1/admin/blocks?active=true", "blocks", "client"),
        ("/v1/admin/blocks?kind=user", "blocks", "client"),
    ];
    let before = lists.map(|(path, kind, id)| {
        let list = list(path);
        assert!(list.get("stale").is_none(), "{list}");
        (names(&list, kind, id), list["next"].clone())
    });
    assert_eq!(before.each_ref().map(|(names, _)| names.len()), [2, 1, 1, 2, 1]);
    postgres.kill9();
    for ((path, kind, id), before) in lists.iter().zip(&before) {
        let stale = list(path);
        assert_eq!(stale["stale"], true, "{path}: {stale}");
        assert_eq!((names(&stale, kind, id), stale["next"].clone()), *before, "{path}");
    }
    wait_for("host and cause to be reported", || {
        let reason = service.get("/readyz").json()["database_error"].to_string();
        (reason.contains("at 127.0.0.1:") && reason.contains("refused")).then_some(())
    });
    let log = service.log();
    let line = log.lines().find(|line| line.contains("the database is unreachable: the last configuration"));
    assert!(line.is_some_and(|line| line.contains("at 127.0.0.1:") && line.contains("refused")), "{log}");
    assert_eq!(service.admin("GET", "/v1/admin/keys", "").status, 503, "keys are not kept for lists");

    postgres.restart();
    wait_for("lists of the database", || list("/v1/admin/rules").get("stale").is_none().then_some(()));
}

#[test]
fn foreign_or_damaged_snapshot_is_not_used() {
    let (service, store) = crate::database::alone("");
    let version = store.put(rule("by-user", 12));
    wait_for_version(&service, version);
    let folder = stop(service);
    drop(store);
    let snapshot = folder.path().join("data/config.snap");
    let bytes = std::fs::read(&snapshot).unwrap();
    let elsewhere = config("postgres://u:p@127.0.0.1:1/gate", "");
    std::fs::write(folder.path().join("tollgate.toml"), elsewhere).unwrap();
    let service = node_again_without_database(folder);
    assert_eq!(service.check("bob", "/x").status, 503);
    assert!(service.log().contains("belongs to another database"), "{}", service.log());
    let folder = stop(service);
    std::fs::write(&snapshot, &bytes[..bytes.len() / 2]).unwrap();
    let service = node_again_without_database(folder);
    assert_eq!(service.check("bob", "/x").status, 503);
    assert!(service.log().contains("cannot read a snapshot"), "{}", service.log());
}

#[test]
fn full_data_directory_is_reported_and_serving_continues() {
    // A directory at the path of the database: SQLite cannot open it, not even as root.
    let folder = TempDir::new().unwrap();
    std::fs::create_dir_all(folder.path().join("data/tollgate.db")).unwrap();
    let service = Service::start(folder, None, &[]);
    assert_eq!(service.check("bob", "/x").status, 200);
    let ready = service.get("/readyz");
    assert_eq!((ready.status, &ready.json()["status"]), (200, &"degraded".into()));
    assert!(ready.text.contains("tollgate.db"), "{}", ready.text);
    stop(service);
}

#[test]
fn recreated_database_is_reported() {
    let (service, store) = crate::database::alone("");
    let version = store.put(rule("by-user", 12));
    wait_for_version(&service, version);
    let folder = stop(service);
    drop(store);
    for name in ["gate.db", "gate.db-wal", "gate.db-shm"] {
        let _ = std::fs::remove_file(folder.path().join(name));
    }
    let service = node_again(folder);
    assert_eq!(service.check("bob", "/x").json()["limit"], 100);
    assert!(
        service.log().contains("the database is at an earlier version than this node was"),
        "{}",
        service.log()
    );
}
