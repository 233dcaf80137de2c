//! What operators see of the counters on Redis.

use tollgate_testkit::RedisServer;

use crate::service;
use crate::{admitted, check};

#[test]
fn servers_calls_and_refusals_from_memory_are_measured() {
    let redis = RedisServer::start();
    let service = service(3, &format!("url = \"{}\"\ntimeout = \"10s\"", redis.url()), "");
    assert_eq!(admitted(&service, "alice", 50), 3);
    let server = redis.address().to_string();
    let figure = |name: &str| service.metric(&format!("tollgate_store_{name}{{server=\"{server}\"}}"));
    assert_eq!(figure("connected"), Some(1.0));
    assert_eq!(figure("breaker_open"), Some(0.0));
    assert_eq!(figure("breaker_openings"), Some(0.0));
    assert_eq!(figure("dials"), Some(1.0));
    let calls = figure("calls").unwrap();
    let from_memory = service.metric("tollgate_store_refusals_from_memory").unwrap();
    assert!(calls >= 4.0 && calls + from_memory >= 50.0, "{calls} {from_memory}");
    assert!(service.metric("tollgate_store_clock_offset_seconds").is_some_and(|offset| offset.abs() < 5.0));
    assert_eq!(service.metric("tollgate_store_nodes"), Some(1.0));
}

#[test]
fn t71_an_open_link_to_another_machine_is_warned_of() {
    // Nothing listens on this address, which is for documentation only; the warning is about the settings.
    let service = service(3, "url = \"redis://192.0.2.1:6379\"", "");
    assert!(service.log().contains("plain text and without a password"), "{}", service.log());
    assert_eq!(check(&service, "alice"), (200, true));
    let here = service_here();
    assert!(!here.log().contains("plain text"), "{}", here.log());
}

fn service_here() -> crate::harness::Service {
    let redis = RedisServer::start();
    service(3, &format!("url = \"{}\"", redis.url()), "")
}
