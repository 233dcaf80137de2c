//! Clients and upstreams that disconnect at every stage of a request: what is counted, and that nothing stays behind.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use crate::harness::{Service, wait_for};
use crate::upstream::{Reaction, Upstream, connect, get, ok, proxy_of};

/// Answers `/good` only; what it does with other requests is the test's.
fn upstream(react: impl Fn() -> Reaction + Send + Sync + 'static) -> Upstream {
    Upstream::reacting(move |request| match request.target() {
        "/good" => Reaction::Reply(ok("good")),
        _ => react(),
    })
}

/// Nothing is in flight or connected, but connections kept for further requests; the next request is served.
fn assert_nothing_stays(service: &Service, upstream: &Upstream) {
    let url = format!("{{upstream=\"http://{}\"}}", upstream.address);
    let metric = |name: &str| service.metric(name).unwrap();
    wait_for("no request in flight", || {
        let listed = service.admin("GET", "/v1/admin/upstreams", "").json();
        (listed["upstreams"][0]["in_flight"] == 0).then_some(())
    });
    wait_for("no client", || (metric("tollgate_proxy_connections") == 0.0).then_some(()));
    assert_eq!(get(proxy_of(service), "/good").text, "good");
    wait_for("at most one kept connection", || {
        (metric(&format!("tollgate_upstream_connections{url}")) <= 1.0).then_some(())
    });
}

/// Replies of an upstream that closes the connection behind them.
const CUT_HEADS: [&str; 3] = ["", "HTTP/1.1", "HTTP/1.1 200 OK\r\ncontent-le"];
const CUT_BODIES: [&str; 3] = [
    "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n",
    "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello",
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
];

/// What a client gets until its connection ends.
fn read_to_end(proxy: SocketAddr) -> String {
    let mut stream = connect(proxy);
    let request = b"POST /cut HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    stream.write_all(request).unwrap();
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Sends a request to an upstream that cuts its reply off; returns what the client gets and the failures counted.
fn cut_off(reply: &'static str) -> (String, Option<f64>) {
    let upstream = upstream(move || Reaction::ReplyAndClose(reply.into()));
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", ""));
    let received = read_to_end(proxy_of(&service));
    let failures = service.metric("tollgate_proxy_upstream_failures_total{route=\"/*\"}");
    assert_eq!(upstream.count(), 1, "{reply:?}: a POST is not sent again");
    assert_nothing_stays(&service, &upstream);
    (received, failures)
}

#[test]
fn upstream_that_disconnects_before_its_response_is_502() {
    for reply in CUT_HEADS {
        let (received, failures) = cut_off(reply);
        assert!(received.starts_with("HTTP/1.1 502"), "{reply:?}: {received}");
        assert_eq!(failures, Some(1.0), "{reply:?}");
    }
}

#[test]
fn response_that_is_cut_off_is_not_taken_for_complete() {
    for reply in CUT_BODIES {
        let (received, _) = cut_off(reply);
        let body = received.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        assert!(!body.ends_with("0\r\n\r\n") && body.len() <= 10, "{reply:?}: {received}");
        assert!(received.is_empty() || received.starts_with("HTTP/1.1 200"), "{reply:?}: {received}");
    }
}

#[test]
fn upstream_may_disconnect_during_the_request_body() {
    let listener = tollgate_testkit::listen();
    let address = listener.local_addr().unwrap();
    let closing = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 1024]);
        let _ = stream.shutdown(Shutdown::Both);
    });
    let config = crate::upstream::proxied_to(&[&format!("http://{address}")], "", "");
    let service = Service::with_config(&config);
    let mut stream = connect(proxy_of(&service));
    stream.write_all(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\nbegin").unwrap();
    let answer = crate::harness::read_answer(&mut stream);
    assert_eq!((answer.status, answer.error().1.as_str()), (502, "UPSTREAM_FAILED"));
    closing.join().unwrap();
    drop(stream);
    wait_for("no client", || (service.metric("tollgate_proxy_connections") == Some(0.0)).then_some(()));
    let open = format!("tollgate_upstream_connections{{upstream=\"http://{address}\"}}");
    wait_for("no connection", || (service.metric(&open) == Some(0.0)).then_some(()));
}

/// What a client sends before it disconnects.
const CUT_REQUESTS: [&str; 6] = [
    "",
    "POST /cut HT",
    "POST /cut HTTP/1.1\r\nhost: a\r\ncontent-",
    "POST /cut HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n",
    "POST /cut HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nhello",
    "POST /cut HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
];

#[test]
fn client_may_disconnect_at_every_stage_of_its_request() {
    let upstream = upstream(|| Reaction::Reply(ok("")));
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", ""));
    for request in CUT_REQUESTS {
        let mut stream = connect(proxy_of(&service));
        stream.write_all(request.as_bytes()).unwrap();
        // The head may already be at the upstream.
        std::thread::sleep(Duration::from_millis(50));
        drop(stream);
        assert_nothing_stays(&service, &upstream);
    }
    let cut = upstream.requests().iter().filter(|request| request.target() == "/cut").count();
    assert_eq!(cut, 0, "the upstream never had a whole request");
}

#[test]
fn client_may_disconnect_before_and_during_the_response() {
    let large = ok(&"x".repeat(32 << 20));
    let upstream = upstream(move || Reaction::Late(Duration::from_millis(300), large.clone()));
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", ""));
    for bytes in [0, 1, 100_000] {
        let mut stream = connect(proxy_of(&service));
        stream.write_all(b"GET /cut HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
        stream.read_exact(&mut vec![0; bytes]).unwrap();
        drop(stream);
        assert_nothing_stays(&service, &upstream);
    }
    let served = service.metric("tollgate_proxy_responses_total{route=\"/*\",class=\"2xx\"}");
    assert_eq!(served, Some(6.0), "each request is counted once");
}

#[test]
fn delayed_request_of_a_gone_client_gives_its_place_back() {
    let upstream = upstream(|| Reaction::Reply(ok("")));
    let rule = "[[rules]]\nname = \"slow\"\nper = [\"ip\"]\nalgorithm = \"leaky_bucket\"\naction = \"throttle\"\n\
                max_delay = \"1m\"\nlimits = [{ requests = 2, window = \"1s\" }]\n";
    let config = Upstream::proxied(&[&upstream], "", rule).replace("[proxy]", "[proxy]\ndelayed_max = 1");
    let service = Service::with_config(&config);
    let proxy = proxy_of(&service);
    for _ in 0..3 {
        let mut stream = connect(proxy);
        stream.write_all(b"GET /cut HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
        drop(stream);
    }
    wait_for("a free place", || (get(proxy, "/good").status == 200).then_some(()));
    wait_for("no client", || (service.metric("tollgate_proxy_connections") == Some(0.0)).then_some(()));
    assert_eq!(get(proxy, "/good").status, 200, "it waits in the place of the others");
}
