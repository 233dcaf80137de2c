//! Routes that change while requests are in flight.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::harness::{Service, wait_for};
use crate::upstream::{Reaction, Upstream, get, ok, proxy_of};

#[test]
fn reload_changes_upstreams_without_failed_requests() {
    let first = Upstream::reacting(|_| Reaction::Reply(ok("first")));
    let second = Upstream::reacting(|_| Reaction::Reply(ok("second")));
    let service = Service::with_config(&Upstream::proxied(&[&first], "", "enabled = false"));
    let (proxy, is_done) = (proxy_of(&service), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    assert_eq!(get(proxy, "/").status, 200);
                }
            });
        }
        for round in 0..4 {
            let (upstream, expected) = if round % 2 == 0 { (&second, "second") } else { (&first, "first") };
            fs::write(service.config_file(), Upstream::proxied(&[upstream], "", "enabled = false")).unwrap();
            let reloaded = service.admin("POST", "/v1/admin/reload", "");
            assert_eq!(reloaded.status, 200, "{reloaded:?}");
            wait_for(expected, || (get(proxy, "/").text == expected).then_some(()));
        }
        is_done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn invalid_routes_keep_the_old_ones() {
    let upstream = Upstream::start();
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", ""));
    fs::write(service.config_file(), "[proxy]\n[[proxy.routes]]\nupstreams = [\"ftp://a\"]\n").unwrap();
    let reloaded = service.admin("POST", "/v1/admin/reload", "");
    assert_ne!(reloaded.status, 200);
    assert!(reloaded.text.contains("upstreams"), "{}", reloaded.text);
    assert_eq!(get(proxy_of(&service), "/").status, 200);
}
