//! The database of records is down, slow or killed. Decisions do not notice, and nothing is lost.

use std::time::Duration;

use serde_json::json;
use tollgate_testkit::{MariaDbServer, PostgresServer};

use crate::accounting::{assert_all_stored, config};
use crate::harness::{Service, wait_for};
use crate::load::{Load, checks};
use crate::stored;

fn backlog(service: &Service) -> f64 {
    service.metric("tollgate_record_backlog_rows{spool=\"log\"}").unwrap_or_default()
}

#[test]
fn database_that_is_down_gets_everything_later() {
    let server = PostgresServer::start();
    let url = server.create_database();
    let service = Service::with_config(&config(&url));
    let mut answered = checks(&service, "before", 100);
    wait_for("the first rows", || (backlog(&service) < 0.5).then_some(()));
    server.kill9();
    answered.merge(checks(&service, "down", 2_000));
    wait_for("the outage to be noticed", || {
        (service.metric("tollgate_record_database_up") == Some(0.0)).then_some(())
    });
    assert!(backlog(&service) > 1_000.0);
    let ready = service.get("/readyz");
    assert_eq!(ready.status, 200, "records do not decide whether a node is ready");
    let cause = ready.json()["records_error"].as_str().unwrap().to_owned();
    assert!(cause.starts_with("records wait in the spool: "), "{cause}");
    let records = service.admin("GET", "/v1/admin/top", "").json()["stores"]["records"].clone();
    assert_eq!((&records["state"], &records["error"]), (&json!("waiting"), &json!(cause)));
    assert!(records["backlog_rows"].as_u64().unwrap() > 1_000, "{records}");
    server.restart();
    wait_for("the backlog to be stored", || (backlog(&service) < 0.5).then_some(()));
    answered.merge(checks(&service, "after", 100));
    service.signal("-TERM");
    assert!(service.ended().0.success());
    assert_all_stored(&url, &answered);
}

#[test]
fn database_killed_again_and_again_stores_everything_once() {
    let server = MariaDbServer::start();
    let url = server.create_database();
    let service = Service::with_config(&config(&url));
    let load = Load::start(&service, "a");
    for round in 0..4_u64 {
        std::thread::sleep(Duration::from_millis(700 + 130 * round));
        server.kill9();
        std::thread::sleep(Duration::from_millis(300));
        server.restart();
    }
    let answered = load.stop();
    wait_for("the backlog to be stored", || (backlog(&service) < 0.5).then_some(()));
    service.signal("-TERM");
    assert!(service.ended().0.success());
    assert_all_stored(&url, &answered);
}

#[test]
fn node_that_starts_without_its_database_records_anyway() {
    let server = PostgresServer::start();
    let url = server.create_database();
    server.kill9();
    let service = Service::with_config(&config(&url));
    let answered = checks(&service, "a", 500);
    service.signal("-TERM");
    let (status, folder) = service.ended();
    assert!(status.success());
    server.restart();
    let file = folder.path().join("tollgate.toml");
    let next = Service::start(folder, Some(&file), &[]);
    wait_for("the backlog to be stored", || {
        (next.metric("tollgate_record_rows_stored_total{spool=\"log\"}") == Some(500.0)).then_some(())
    });
    next.signal("-TERM");
    assert!(next.ended().0.success());
    assert_all_stored(&url, &answered);
}

#[test]
fn full_spool_drops_and_counts() {
    let server = PostgresServer::start();
    let url = server.create_database();
    server.kill9();
    let config = format!("{}\nspool_bytes_max = 20000000", config(&url));
    let service = Service::with_config(&config);
    let dropped = |service: &Service| {
        service.metric("tollgate_record_rows_dropped_total{spool=\"log\",reason=\"spool_full\"}").unwrap()
    };
    // Long paths fill the spool soon.
    let padding = "x".repeat(1_900);
    let mut sent = 0_u32;
    while dropped(&service) < 1.0 {
        let check = json!({"user_id": format!("user-{sent}"), "endpoint": format!("/{padding}")});
        let body = json!({"checks": vec![check; 100]}).to_string();
        assert_eq!(service.post("/v1/rate-limit/batch-check", &body).status, 200);
        sent += 100;
        assert!(sent < 200_000, "the spool is not bounded");
    }
    server.restart();
    wait_for("the backlog to be stored", || (backlog(&service) < 0.5).then_some(()));
    let dropped = dropped(&service);
    let in_memory = service.metric("tollgate_records_dropped_in_memory_total{what=\"log_rows\"}").unwrap();
    service.signal("-TERM");
    assert!(service.ended().0.success());
    let stored = stored::number(&url, "SELECT COUNT(*) FROM rate_limit_audit_logs");
    assert_eq!(stored as f64 + dropped + in_memory, f64::from(sent), "produced = stored + dropped");
    let truncated = stored::number(&url, "SELECT COUNT(*) FROM rate_limit_audit_logs WHERE truncated");
    assert_eq!(truncated, stored, "long paths are truncated and marked");
}
