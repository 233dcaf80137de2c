//! Metrics and inspection of counters on Redis.

use std::time::Duration;

use tollgate_testkit::{Fault, FaultProxy, RedisServer};

use crate::{admitted, check, service, sharing};

#[test]
fn store_metrics_count_calls_and_cached_refusals() {
    let redis = RedisServer::start();
    let service = sharing(3, &format!("url = \"{}\"\ntimeout = \"10s\"", redis.url()), "");
    assert_eq!(admitted(&service, "alice", 50), 3);
    let server = redis.address().to_string();
    let figure = |name: &str| service.metric(&format!("tollgate_store_{name}{{server=\"{server}\"}}"));
    assert_eq!(figure("connected"), Some(1.0));
    assert_eq!(figure("breaker_open"), Some(0.0));
    assert_eq!(figure("breaker_openings_total"), Some(0.0));
    assert_eq!(figure("dials_total"), Some(1.0));
    let calls = figure("calls_total").unwrap();
    let from_memory = service.metric("tollgate_store_cached_refusals_total").unwrap();
    assert!(calls >= 4.0 && calls + from_memory >= 50.0, "{calls} {from_memory}");
    assert!(service.metric("tollgate_store_clock_offset_seconds").is_some_and(|offset| offset.abs() < 5.0));
    assert_eq!(service.metric("tollgate_store_nodes"), Some(1.0));
}

#[test]
fn plaintext_remote_redis_warns() {
    // A documentation address: nothing listens there; the warning is about the settings.
    let service = service(3, "url = \"redis://192.0.2.1:6379\"", "");
    assert!(service.log().contains("neither TLS nor a password"), "{}", service.log());
    assert_eq!(check(&service, "alice"), (200, true));
    let here = service_here();
    assert!(!here.log().contains("neither TLS"), "{}", here.log());
}

fn service_here() -> crate::harness::Service {
    let redis = RedisServer::start();
    service(3, &format!("url = \"{}\"", redis.url()), "")
}

#[test]
fn inspect_reads_redis_or_the_fallback_in_an_outage() {
    let redis = RedisServer::start();
    let counters = format!("url = \"{}\"\ntimeout = \"10s\"", redis.url());
    let penalties = "[progressive_penalties]\nenabled = true\nviolation_threshold = 1";
    let nodes = [sharing(3, &counters, penalties), sharing(3, &counters, penalties)];
    assert_eq!(admitted(&nodes[0], "alice", 2), 2);
    let look = || nodes[1].admin("GET", "/v1/admin/counters?user=alice", "").json();
    let output = look();
    assert_eq!((&output["store"], &output["degraded"]), (&"redis".into(), &false.into()));
    assert_eq!((&output["counters"][0]["used"], &output["counters"][0]["remaining"]), (&2.into(), &1.into()));
    assert!(output["cooldown_until"].is_null(), "{output}");
    assert_eq!(admitted(&nodes[0], "alice", 2), 1);
    let output = look();
    assert!(output["cooldown_until"].is_u64() && output["counters"][0]["retry_after"].is_u64(), "{output}");
    redis.kill9();
    let output = look();
    assert_eq!((&output["degraded"], &output["counters"][0]["used"]), (&true.into(), &0.into()));
}

/// The wait is as of the decision on Redis: added to the time of the request it would be too early.
#[test]
fn next_allowed_at_is_counted_from_the_reply() {
    let redis = RedisServer::start();
    let proxy = FaultProxy::in_front_of(redis.address());
    let counters = format!("url = \"redis://{}\"\ntimeout = \"10s\"\nleases = false", proxy.address());
    let service = sharing(1, &counters, "algorithm = \"fixed_window\"");
    assert_eq!(admitted(&service, "alice", 1), 1);
    proxy.set(Fault::Latency(Duration::from_millis(500)));
    let explained = service.post("/v1/rate-limit/explain", r#"{"user_id":"alice","endpoint":"/x"}"#).json();
    let next = explained["next_allowed_at_us"].as_u64().unwrap();
    let window = 30 * 86_400_000_000;
    let after_the_boundary = next % window;
    assert!((400_000..window / 2).contains(&after_the_boundary), "{explained}");
}
