//! Charges that are taken back once the status of the response is known.

use crate::harness::Service;
use crate::upstream::{Reaction, Upstream, get, proxy_of};

/// Answers with the status that the path asks for.
fn with_status_of_path() -> Upstream {
    Upstream::reacting(|request| {
        let status = request.target().trim_start_matches('/');
        Reaction::Reply(format!("HTTP/1.1 {status} Status\r\ncontent-length: 0\r\n\r\n").into_bytes())
    })
}

fn rule(counted: &str) -> String {
    format!(
        "[[rules]]\nname = \"counted\"\nper = [\"ip\"]\nalgorithm = \"fixed_window\"\n{counted}\n\
         limits = [{{ requests = 2, window = \"1d\" }}]\n"
    )
}

#[test]
fn only_failures_are_counted() {
    let upstream = with_status_of_path();
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", &rule("count = \"on_failure\"")));
    let proxy = proxy_of(&service);
    for _ in 0..5 {
        assert_eq!(get(proxy, "/204").status, 204, "a success is not counted");
    }
    assert_eq!((get(proxy, "/401").status, get(proxy, "/401").status), (401, 401));
    assert_eq!((get(proxy, "/401").status, get(proxy, "/204").status), (429, 429));
    assert_eq!(upstream.count(), 7);
    let refunds = "tollgate_refunds_total{rule=\"counted\",outcome=\"refunded\"}";
    assert_eq!(service.metric(refunds), Some(5.0));
}

#[test]
fn failed_upstreams_are_refunded_if_the_rule_refunds_them() {
    let upstream = with_status_of_path();
    let config = Upstream::proxied(&[&upstream], "", &rule("refund_statuses = [\"5xx\"]"));
    let service = Service::with_config(&config);
    let proxy = proxy_of(&service);
    for _ in 0..3 {
        assert_eq!(get(proxy, "/503").status, 503);
    }
    assert_eq!(get(proxy, "/200").status, 200);
    drop(upstream);
    for _ in 0..3 {
        assert_eq!(get(proxy, "/200").status, 502, "no response of an upstream");
    }
}
