//! Charges that are taken back once the status of the response is known.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tollgate_testkit::RedisServer;

use crate::harness::{Service, wait_for};
use crate::upstream::{Reaction, Upstream, get, ok, proxied_to, proxy_of};

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

#[test]
fn nodes_on_one_redis_count_only_failures() {
    let (redis, upstream) = (RedisServer::start(), with_status_of_path());
    let counters =
        format!("[counters]\nstore = \"redis\"\nurl = \"redis://{}\"\ntimeout = \"5s\"\n", redis.address());
    let config = Upstream::proxied(&[&upstream], "", &(rule("count = \"on_failure\"") + &counters));
    let nodes = [Service::with_config(&config), Service::with_config(&config)];
    for node in &nodes {
        wait_for("ready", || (node.get("/readyz").json()["status"] == "ready").then_some(()));
    }
    let proxies = nodes.each_ref().map(proxy_of);
    for number in 0..10 {
        assert_eq!(get(proxies[number % 2], "/204").status, 204, "a success is not counted");
    }
    assert_eq!(proxies.map(|proxy| get(proxy, "/401").status), [401, 401]);
    assert_eq!(proxies.map(|proxy| get(proxy, "/204").status), [429, 429], "both nodes count both failures");
    assert_eq!(upstream.count(), 12);
    let refunds = "tollgate_refunds_total{rule=\"counted\",outcome=\"refunded\"}";
    assert_eq!(nodes.each_ref().map(|node| node.metric(refunds)), [Some(5.0), Some(5.0)]);
}

/// Whatever happens to the upstream, what stays charged are the responses that the rule counts.
#[test]
fn restarted_upstream_leaves_only_its_answers_counted() {
    let listener = tollgate_testkit::listen();
    let address = listener.local_addr().unwrap();
    let config = proxied_to(
        &[&format!("http://{address}")],
        "",
        &rule("refund_statuses = [\"5xx\"]").replace("requests = 2,", "requests = 1000,"),
    );
    let service = Service::with_config(&config);
    let proxy = proxy_of(&service);
    let done = &AtomicBool::new(false);
    let answers = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(move || {
                    let mut answers = [0, 0];
                    while !done.load(Ordering::Relaxed) {
                        let status = get(proxy, "/x").status;
                        answers[usize::from(status >= 500)] += 1;
                        assert!(status == 200 || status >= 500, "{status}");
                        std::thread::sleep(Duration::from_millis(10));
                    }
                    answers
                })
            })
            .collect();
        let mut listener = Some(listener);
        for _ in 0..4 {
            let listener = listener
                .take()
                .unwrap_or_else(|| wait_for("the port", || std::net::TcpListener::bind(address).ok()));
            let upstream = Upstream::on(listener, |_| Reaction::Reply(ok("hello")));
            std::thread::sleep(Duration::from_millis(200));
            drop(upstream);
            std::thread::sleep(Duration::from_millis(100));
        }
        done.store(true, Ordering::Relaxed);
        let answers = callers.into_iter().map(|caller| caller.join().unwrap());
        answers.fold([0, 0], |sum, [counted, failed]| [sum[0] + counted, sum[1] + failed])
    });
    assert!(answers[0] > 20 && answers[1] > 5, "{answers:?}");
    // Refunds follow the response.
    let refunded = "tollgate_refunds_total{rule=\"counted\",outcome=\"refunded\"}";
    wait_for("all refunds", || (service.metric(refunded) == Some(f64::from(answers[1]))).then_some(()));
    let _upstream = Upstream::on(wait_for("the port", || std::net::TcpListener::bind(address).ok()), |_| {
        Reaction::Reply(ok("hello"))
    });
    let left = wait_for("the upstream", || {
        let answer = get(proxy, "/x");
        (answer.status == 200).then(|| answer.header("x-ratelimit-remaining").map(str::to_owned))
    });
    assert_eq!(left, Some((1_000 - answers[0] - 1).to_string()), "{answers:?}");
}
