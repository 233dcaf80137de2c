//! Backoff after invalid API keys, and its audit trail.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tollgate_stores::sql::Item;
use tollgate_testkit::PostgresServer;

use crate::database::{alone, key, node, wait_for_version};
use crate::harness::{Answer, Service, read_answer, wait_for};

const TRAIL: &str = "/v1/admin/audit?kind=key_attempts";

/// Sends one request from another loopback address.
fn from(source: &str, service: &Service, key: &str) -> u16 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let answer = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(source.parse().unwrap(), 0)).unwrap();
        let mut stream = socket.connect(service.address).await.unwrap();
        let request = format!(
            "GET /v1/admin/penalties HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer {key}\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer).await;
        answer
    });
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

fn try_wrong_key(stream: &mut TcpStream, number: u32) -> Answer {
    let wrong = format!("tg_rightadminkeyaa2_{number:043}");
    let request = format!(
        "GET /v1/admin/penalties HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {wrong}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    read_answer(stream)
}

#[test]
fn ten_thousand_wrong_keys_lock_out_only_their_address() {
    let (service, store) = alone("");
    let mut right = key("rightadminkeyaa2");
    right.item.scopes = vec!["admin".to_owned()];
    let mut newcomer = key("neverseenkeyaaa2");
    newcomer.item.scopes = vec!["admin".to_owned()];
    store.put(Item::Key(right.item.clone()));
    let version = store.put(Item::Key(newcomer.item.clone()));
    wait_for_version(&service, version);
    let ask = |key: &str| service.with_key(key, "GET", "/v1/admin/penalties", "").status;
    assert_eq!(ask(&right.text), 200);

    let started = Instant::now();
    let mut stream = service.connect();
    let mut statuses = [0; 600];
    for number in 0..10_000 {
        statuses[usize::from(try_wrong_key(&mut stream, number).status)] += 1;
    }
    println!("ten thousand wrong keys took {:?}", started.elapsed());
    let others =
        statuses.iter().enumerate().filter(|(status, count)| **count > 0 && ![401, 429].contains(status));
    assert_eq!(others.collect::<Vec<_>>(), [], "(status, how often)");
    // Each failure after a backoff doubles it. Continue until the backoff outlasts the rest of this test.
    let last = wait_for("a backoff that outlasts this test", || {
        let answer = try_wrong_key(&mut stream, 10_000);
        let wait = answer.header("retry-after")?.parse::<u64>().unwrap();
        (wait >= 5).then_some(answer)
    });
    assert_eq!((last.status, last.error().1), (429, "TOO_MANY_ATTEMPTS".to_owned()));
    let compared = service.metric("tollgate_auth_failures_total").unwrap();
    assert!(compared <= 100.0, "{compared} were compared");
    assert!(service.metric("tollgate_auth_throttle_activations_total").unwrap() >= 1.0, "backoff is counted");
    let lines = service.log().lines().filter(|line| line.contains("repeated invalid API keys")).count();
    assert!((1..=2).contains(&lines), "{lines} lines in the log");

    assert_eq!(ask(&newcomer.text), 429, "the same address is in backoff");
    assert_eq!(ask(&right.text), 200, "a key that was valid from there still passes");
    assert_eq!(from("127.0.0.2", &service, &newcomer.text), 200, "other addresses are not affected");
    assert_eq!(from("127.0.0.2", &service, "wrong"), 401);
    assert_eq!(service.check("a", "/x").status, 200, "checks without a key are not affected");
}

/// Subjects and counts of the alerts in the audit trail.
fn alerts(service: &Service) -> Vec<(String, u64)> {
    let answer = service.admin("GET", TRAIL, "").json();
    let entries = answer["entries"].as_array().unwrap();
    let alerts = entries.iter().map(|entry| {
        assert_eq!((&entry["by"], &entry["action"]), (&"tollgate".into(), &"alert".into()), "{entry}");
        (entry["subject"].as_str().unwrap().to_owned(), entry["after"]["invalid_keys"].as_u64().unwrap())
    });
    alerts.collect()
}

#[test]
fn audit_trail_has_one_alert_per_attacking_address() {
    let (service, _store) = alone("");
    assert_eq!(alerts(&service), [], "the admin key is now trusted from this address");
    for source in ["127.0.0.2", "127.0.0.3"] {
        for _ in 0..100 {
            from(source, &service, "wrong");
        }
        let expected = (source.to_owned(), 65);
        wait_for("the alert in the audit trail", || {
            (alerts(&service).last() == Some(&expected)).then_some(())
        });
    }
    let written = alerts(&service);
    assert_eq!(written.len(), 2, "{written:?}");
    let trail = service.admin("GET", "/v1/admin/audit", "").text;
    assert!(!trail.contains("wrong\""), "the trail contains a tried key: {trail}");
}

#[test]
fn alert_during_a_database_outage_is_written_afterwards() {
    let postgres = PostgresServer::start();
    let service = node(&postgres.create_database(), "");
    assert_eq!(alerts(&service), []);
    postgres.kill9();
    for _ in 0..80 {
        assert!([401, 429].contains(&from("127.0.0.2", &service, "wrong")));
    }
    assert_eq!(service.check("a", "/x").status, 200);
    postgres.restart();
    wait_for("the alert in the audit trail", || {
        let answer = service.admin("GET", TRAIL, "");
        (answer.status == 200 && answer.json()["entries"][0]["subject"] == "127.0.0.2").then_some(())
    });
    assert_eq!(alerts(&service), [("127.0.0.2".to_owned(), 65)]);
}
