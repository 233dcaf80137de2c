//! Numbers for single users and resets outlive a restart and are in force on every node.

use tollgate_stores::sql::{AccountLimits, AuditFilter, ItemEdit, ItemWrite, Precondition};
use tollgate_testkit::{Fault, FaultProxy, PostgresServer};

use crate::database::{Store, alone, config, node, node_again, now_micros, on_its_database, quota, stop};
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
fn numbers_for_a_user_outlive_a_restart_and_a_kill() {
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
fn numbers_and_resets_are_in_force_on_nodes_that_count_by_themselves() {
    let postgres = PostgresServer::start();
    let url = postgres.create_database();
    let nodes = [(); 2].map(|()| node(&url, ""));
    for _ in 0..5 {
        nodes[1].check("bob", "/x");
    }
    set(&nodes[0], 6);
    wait_for("the numbers", || (limit_of(&nodes[1]) == Some(6)).then_some(()));
    // Five were used here before; what was asked since has used up the rest.
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
fn a_reset_is_made_up_for_by_a_node_that_was_not_there() {
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
fn a_reset_of_a_checks_own_numbers_is_followed_by_other_nodes() {
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
fn a_reset_is_made_up_for_by_a_node_that_could_not_hear_of_it() {
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
    // It ends, and saves its counters, without having heard of the reset.
    let folder = stop(away);
    proxy.set(Fault::None);
    let back = node_again(folder);
    assert_eq!(back.check("bob", "/x").status, 200, "{}", back.log());
}

#[test]
fn a_reset_among_more_changes_than_are_followed_one_by_one_is_heard_of() {
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
fn a_reset_is_made_up_for_by_a_node_that_had_no_database_when_it_first_started() {
    let postgres = PostgresServer::start();
    let url = postgres.create_database();
    let proxy = FaultProxy::in_front_of(([127, 0, 0, 1], postgres.port()).into());
    let through_proxy =
        url.replace(&format!(":{}/", postgres.port()), &format!(":{}/", proxy.address().port()));
    let limit = "default_limit = 2\ndefault_window = \"1h\"\n";
    let start = |url: &str| Service::with_config(&format!("{limit}{}", config(url, "")));
    let here = on_its_database(start(&url));
    proxy.set(Fault::Drop);
    let away = start(&through_proxy);
    wait_for("the limit to be used up", || (away.check("bob", "/x").status == 429).then_some(()));
    reset(&here);
    proxy.set(Fault::None);
    wait_for("the reset", || (away.check("bob", "/x").status == 200).then_some(()));
}
