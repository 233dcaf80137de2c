//! Requests in flight when the node stops.

use std::time::Duration;

use crate::harness::{Service, wait_for};
use crate::upstream::{Reaction, Upstream, get, ok, proxy_of};

#[test]
fn sigterm_completes_proxied_requests() {
    let upstream = Upstream::reacting(|_| Reaction::Late(Duration::from_secs(1), ok("late")));
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", ""));
    let proxy = proxy_of(&service);
    let clients: Vec<_> = (0..5).map(|_| std::thread::spawn(move || get(proxy, "/slow"))).collect();
    wait_for("five requests in flight", || {
        let text = service.get("/metrics").text;
        let line = text.lines().find(|line| line.starts_with("tollgate_upstream_requests_total{"));
        line.filter(|line| line.ends_with(" 5")).map(drop)
    });
    service.signal("-TERM");
    for client in clients {
        let answer = client.join().unwrap();
        assert_eq!((answer.status, answer.text.as_str()), (200, "late"), "{answer:?}");
    }
    let (status, _folder) = service.ended();
    assert!(status.success(), "{status}");
    assert_eq!(upstream.count(), 5);
}
