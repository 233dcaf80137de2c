//! Batches and their idempotency keys.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;

use crate::harness::{Service, read_answer, wait_for};

const BATCH: &str = "/v1/rate-limit/batch-check";

#[test]
fn batch_returns_one_result_per_item_in_order() {
    let service = Service::with_config("default_limit = 1");
    let body = r#"{"checks":[
        {"user_id":"a","endpoint":"/x"},
        {"user_id":"a","endpoint":"/x"},
        {"user_id":"b","endpoint":"/x","cost":"2"},
        {"endpoint":"/x"},
        {"user_id":"c","endpoint":"/x","later":true}
    ]}"#;
    let answer = service.post(BATCH, body);
    assert_eq!(answer.status, 200, "{}", answer.text);
    let results = &answer.json()["results"];
    assert_eq!((&results[0]["allowed"], &results[0]["remaining"]), (&json!(true), &json!(0)));
    assert_eq!((&results[1]["allowed"], &results[1]["user_id"]), (&json!(false), &json!("a")));
    assert!(results[1]["retry_after"].is_u64());
    assert_eq!(results[2]["error"]["code"], "INVALID_INPUT");
    assert_eq!(results[2]["error"]["details"]["field"], "checks[2].cost");
    assert_eq!(results[3]["error"]["details"]["field"], "checks[3].user_id");
    assert_eq!((&results[4]["allowed"], &results[4]["endpoint"]), (&json!(true), &json!("/x")));
    assert_eq!(answer.json()["replayed"], false);
}

#[test]
fn batch_of_more_than_a_thousand_is_rejected() {
    let service = Service::with_config("default_limit = 5000");
    let batch = |count: usize| {
        let checks = vec![r#"{"user_id":"a","endpoint":"/x"}"#; count].join(",");
        service.post(BATCH, &format!(r#"{{"checks":[{checks}]}}"#))
    };
    assert_eq!(batch(1_001).error(), (413, "PAYLOAD_TOO_LARGE".to_owned(), "checks".to_owned()));
    let full = batch(1_000).json();
    assert_eq!(full["results"].as_array().unwrap().len(), 1_000);
    assert_eq!(full["results"][999]["remaining"], 4_000, "the refused batch was not charged");
    assert_eq!(batch(0).json()["results"], json!([]));
}

#[test]
fn replays_are_marked_and_charge_nothing() {
    let service = Service::with_config("default_limit = 3");
    let body = r#"{"idempotency_key":"batch_123","checks":[{"user_id":"a","endpoint":"/x"}]}"#;
    let first = service.post(BATCH, body).json();
    assert_eq!((&first["replayed"], &first["results"][0]["remaining"]), (&json!(false), &json!(2)));
    for _ in 0..100 {
        let again = service.post(BATCH, body).json();
        assert_eq!((&again["replayed"], &again["results"]), (&json!(true), &first["results"]));
    }
    assert_eq!(service.check("a", "/x").json()["remaining"], 1);
    let other = r#"{"idempotency_key":"batch_123","checks":[{"user_id":"b","endpoint":"/x"}]}"#;
    let mismatch = service.post(BATCH, other);
    assert_eq!(mismatch.error(), (422, "IDEMPOTENCY_MISMATCH".to_owned(), "idempotency_key".to_owned()));
    let empty = r#"{"idempotency_key":"","checks":[]}"#;
    assert_eq!(service.post(BATCH, empty).error().2, "idempotency_key");
}

#[test]
fn idempotency_keys_are_separate_per_caller() {
    let service = Service::with_config("default_limit = 3");
    let body = r#"{"idempotency_key":"k","checks":[{"user_id":"a","endpoint":"/x"}]}"#;
    assert_eq!(service.post(BATCH, body).json()["replayed"], false);
    assert_eq!(service.admin("POST", BATCH, body).json()["replayed"], false);
}

#[test]
fn body_budget_bounds_announced_bodies() {
    let service = Service::with_config("[server]\nbody_timeout = \"1m\"");
    let announced = |bytes: usize| {
        let mut stream = service.connect();
        let head = format!("POST {BATCH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n");
        stream.write_all(format!("{head}content-length: {bytes}\r\n\r\n{{").as_bytes()).unwrap();
        stream
    };
    let mut waiting: Vec<TcpStream> = (0..60).map(|_| announced(1 << 20)).collect();
    let refused = wait_for("the body budget to be used up", || {
        let mut one_more = announced(1 << 20);
        one_more.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let answer = read_answer(&mut one_more);
        // It may be admitted before earlier requests, and must not leave its budget to the next.
        waiting.push(one_more);
        (answer.status == 503).then_some(answer)
    });
    assert_eq!(refused.json()["error"]["code"], "SERVICE_UNAVAILABLE");
    assert_eq!(refused.header("retry-after"), Some("1"));
    let checks = |count: usize| {
        let checks = vec![r#"{"user_id":"a","endpoint":"/x","cost":0}"#; count].join(",");
        format!(r#"{{"checks":[{checks}]}}{}"#, " ".repeat(count * 100))
    };
    assert_eq!(service.post(BATCH, &checks(100)).status, 200);
    assert_eq!(service.check("a", "/x").status, 200);
    drop(waiting);
    wait_for("free body budget", || (service.post(BATCH, &checks(1_000)).status == 200).then_some(()));
}
