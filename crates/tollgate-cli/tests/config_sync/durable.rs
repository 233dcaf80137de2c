//! Per-user limits and resets: durable, and applied on every node.

use tollgate_stores::sql::{AccountLimits, AuditFilter, ItemEdit, ItemWrite, Precondition};
use tollgate_testkit::{Fault, FaultProxy, PostgresServer};

use crate::database::{
    Store, alone, config, node, node_again, node_again_without_database, now_micros, on_its_database, quota,
    stop,
};
use crate::harness::{Service, wait_for};

fn set(node: &Service, limit: u32) {
    let body = format!(
        r#"{{"user_id":"bob","endpoint":"/x","limit":{limit},"window_seconds":3600,"strategy":"token_bucket"}}"#
    );
    let set = node.admin("PUT", "/v1/rate-limit/config", &body);
    assert_eq!(set.status, 200, "{}", set.text);
}

fn limit_of(node: &Service) -> Option<u64> {
    node.check("bob", "/x").json()["limit"].as_u64()
}

fn reset(node: &Service) {
    let reset = node.admin("POST", "/v1/rate-limit/reset", r#"{"user_id":"bob","endpoint":"/x"}"#);
    assert_eq!(reset.status, 200, "{}", reset.text);
}

#[test]
fn user_limit_survives_restart_and_kill() {
    let (service, store) = alone("");
    set(&service, 70);
    let config = "/v1/rate-limit/config?user_id=bob&endpoint=/x";
    assert_eq!(service.admin("GET", config, "").json()["limit"], 70);
    service.signal("-KILL");
    let (_, folder) = service.ended();
    let service = node_again(folder);
    assert_eq!(limit_of(&service), Some(70));
    let entries = store.ask(async |database| database.audit(&AuditFilter::default(), 0, 10).await.unwrap());
    assert_eq!(entries.len(), 1);
    assert_eq!((&*entries[0].by, &*entries[0].kind), ("admin", "user_endpoint_limit"));
    assert_eq!(service.admin("DELETE", config, "").status, 204);
    let service = node_again(stop(service));
    assert_eq!(limit_of(&service), Some(100));
}

#[test]
fn user_limits_and_resets_reach_nodes_with_memory_counters() {
    let postgres = PostgresServer::start();
    let url = postgres.create_database();
    let nodes = [(); 2].map(|()| node(&url, ""));
    for _ in 0..5 {
        nodes[1].check("bob", "/x");
    }
    set(&nodes[0], 6);
    wait_for("the numbers", || (limit_of(&nodes[1]) == Some(6)).then_some(()));
    // Five were used here before; the checks since have used the rest.
    wait_for("the new numbers to be used up", || (nodes[1].check("bob", "/x").status == 429).then_some(()));
    reset(&nodes[0]);
    wait_for("the reset", || (nodes[1].check("bob", "/x").status == 200).then_some(()));
    let store = Store::open(&url);
    let entries = store.ask(async |database| database.audit(&AuditFilter::default(), 0, 10).await.unwrap());
    let last = entries.last().unwrap();
    assert_eq!((&*last.action, &*last.kind, &*last.by), ("reset", "counters", "admin"));
    assert!(last.subject.contains("user:bob"), "{}", last.subject);
}

#[test]
fn node_applies_a_reset_made_while_it_was_stopped() {
    let postgres = PostgresServer::start();
    let url = postgres.create_database();
    let nodes = [(); 2].map(|()| node(&url, ""));
    set(&nodes[0], 2);
    let [here, away] = nodes;
    wait_for("the numbers to be used up", || (away.check("bob", "/x").status == 429).then_some(()));
    let folder = stop(away);
    reset(&here);
    let back = node_again(folder);
    assert_eq!(back.check("bob", "/x").status, 200);
    assert_eq!(back.check("bob", "/x").status, 200);
    assert_eq!(back.check("bob", "/x").status, 429);
    // A restart does not reset again.
    let back = node_again(stop(back));
    assert_eq!(back.check("bob", "/x").status, 429);
}

#[test]
fn reset_of_an_override_reaches_other_nodes() {
    let postgres = PostgresServer::start();
    let url = postgres.create_database();
    let nodes = [(); 2].map(|()| node(&url, ""));
    let own =
        r#"{"user_id":"bob","endpoint":"/x","limit":1,"window_seconds":2592000,"strategy":"fixed_window"}"#;
    let check = |node: &Service| node.post("/v1/rate-limit/check", own).status;
    assert_eq!((check(&nodes[1]), check(&nodes[1])), (200, 429));
    let reset = nodes[0].admin("POST", "/v1/rate-limit/reset", own);
    assert_eq!(reset.status, 200, "{}", reset.text);
    wait_for("the reset", || (check(&nodes[1]) == 200).then_some(()));
}

#[test]
fn node_applies_a_reset_made_during_a_database_outage() {
    let postgres = PostgresServer::start();
    let url = postgres.create_database();
    let proxy = FaultProxy::in_front_of(([127, 0, 0, 1], postgres.port()).into());
    let through_proxy =
        url.replace(&format!(":{}/", postgres.port()), &format!(":{}/", proxy.address().port()));
    let (here, away) = (node(&url, ""), node(&through_proxy, ""));
    set(&here, 2);
    wait_for("the numbers", || (limit_of(&away) == Some(2)).then_some(()));
    wait_for("the numbers to be used up", || (away.check("bob", "/x").status == 429).then_some(()));
    proxy.set(Fault::Drop);
    reset(&here);
    // It stops and saves its counters without knowing of the reset.
    let folder = stop(away);
    proxy.set(Fault::None);
    let back = node_again(folder);
    assert_eq!(back.check("bob", "/x").status, 200, "{}", back.log());
}

#[test]
fn reset_among_many_changes_is_applied() {
    let postgres = PostgresServer::start();
    let url = postgres.create_database();
    let proxy = FaultProxy::in_front_of(([127, 0, 0, 1], postgres.port()).into());
    let through_proxy =
        url.replace(&format!(":{}/", postgres.port()), &format!(":{}/", proxy.address().port()));
    let (here, away) = (node(&url, ""), node(&through_proxy, ""));
    set(&here, 2);
    wait_for("the numbers", || (limit_of(&away) == Some(2)).then_some(()));
    wait_for("the numbers to be used up", || (away.check("bob", "/x").status == 429).then_some(()));
    proxy.set(Fault::Drop);
    reset(&here);
    let limits = AccountLimits { requests_per_hour: Some(5), ..AccountLimits::default() };
    let put = |number: u32| ItemEdit {
        write: ItemWrite::Put(quota(&format!("user-{number}"), limits)),
        precondition: Precondition::None,
    };
    let edits: Vec<ItemEdit> = (0..=10_000).map(put).collect();
    let store = Store::open(&url);
    store.ask(async |database| database.change("test", now_micros(), &edits).await.unwrap());
    proxy.set(Fault::None);
    wait_for("everything to be read again", || {
        away.log().contains("reloaded the whole configuration").then_some(())
    });
    wait_for("the reset", || (away.check("bob", "/x").status == 200).then_some(()));
}

#[test]
fn node_started_from_its_snapshot_applies_resets_later() {
    let postgres = PostgresServer::start();
    let url = postgres.create_database();
    let proxy = FaultProxy::in_front_of(([127, 0, 0, 1], postgres.port()).into());
    let through_proxy =
        url.replace(&format!(":{}/", postgres.port()), &format!(":{}/", proxy.address().port()));
    let limit = "default_limit = 2\ndefault_window = \"1h\"\n";
    let start = |url: &str| Service::with_config(&format!("{limit}{}", config(url, "")));
    let here = on_its_database(start(&url));
    let folder = stop(on_its_database(start(&through_proxy)));
    proxy.set(Fault::Drop);
    let away = node_again_without_database(folder);
    wait_for("the limit to be used up", || (away.check("bob", "/x").status == 429).then_some(()));
    reset(&here);
    proxy.set(Fault::None);
    wait_for("the reset", || (away.check("bob", "/x").status == 200).then_some(()));
}
