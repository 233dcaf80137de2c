//! Slow, broken and restarting upstreams.

use std::collections::HashSet;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::harness::{Service, wait_for};
use crate::upstream::{Reaction, Recorded, Upstream, get, ok, proxy_of, send};

#[test]
fn slow_upstream_is_504() {
    let upstream = Upstream::reacting(|_| Reaction::Late(Duration::from_secs(5), ok("late")));
    let route = "response_timeout = \"200ms\"";
    let service = Service::with_config(&Upstream::proxied(&[&upstream], route, ""));
    let answer = get(proxy_of(&service), "/");
    assert_eq!((answer.status, answer.error().1.as_str()), (504, "UPSTREAM_TIMEOUT"));
}

#[test]
fn invalid_responses_are_502() {
    for reply in ["", "garbage\r\n\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n"]
    {
        let upstream = Upstream::reacting(move |_| Reaction::ReplyAndClose(reply.into()));
        let service = Service::with_config(&Upstream::proxied(&[&upstream], "", ""));
        let answer = get(proxy_of(&service), "/");
        assert_eq!(answer.status, 502, "{reply:?}: {answer:?}");
        let sent = if reply.is_empty() { 2 } else { 1 };
        assert_eq!(upstream.count(), sent, "a connection that closes without a byte is tried again");
    }
}

#[test]
fn unreachable_upstream_is_skipped() {
    let (gone, upstream) = (tollgate_testkit::free_port(), Upstream::start());
    let config = Upstream::proxied(&[&upstream], "", "")
        .replace("upstreams = [", &format!("upstreams = [\"http://127.0.0.1:{gone}\", "));
    let service = Service::with_config(&config);
    let proxy = proxy_of(&service);
    for number in 0..20 {
        let request = format!("POST /{number} HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n");
        assert_eq!(
            send(proxy, request.as_bytes()).status,
            200,
            "a request that was not sent is sent elsewhere"
        );
    }
    assert_eq!(upstream.count(), 20);
    let listed = service.admin("GET", "/v1/admin/upstreams", "").json();
    let down =
        listed["upstreams"].as_array().unwrap().iter().find(|one| one["healthy"] == false).unwrap().clone();
    assert_eq!(down["url"], format!("http://127.0.0.1:{gone}"), "{listed}");
}

#[test]
fn closed_connection_is_retried_for_idempotent_methods_only() {
    // Closes the connection at the first request for a target that asks for it.
    let seen = Mutex::new(HashSet::new());
    let upstream = Upstream::reacting(move |request| {
        let is_again = !seen.lock().unwrap().insert(request.target().to_owned());
        let closes = request.target().starts_with("/close") && !is_again;
        if closes { Reaction::ReplyAndClose(Vec::new()) } else { Reaction::Reply(ok("")) }
    });
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", ""));
    let proxy = proxy_of(&service);
    assert_eq!(get(proxy, "/warm-1").status, 200);
    assert_eq!(get(proxy, "/close-get").status, 200, "sent again");
    assert_eq!(get(proxy, "/warm-2").status, 200);
    let post = send(proxy, b"POST /close-post HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\nx");
    assert_eq!(post.status, 502, "may have been processed: {post:?}");
    let sent = upstream.requests().iter().filter(|one| one.target() == "/close-post").count();
    assert_eq!(sent, 1);
}

/// Notes the requests of all upstreams in one list, before they are answered.
fn noting(all: &Arc<Mutex<Vec<Recorded>>>) -> impl Fn(&Recorded) -> Reaction + Send + Sync + use<> {
    let all = Arc::clone(all);
    move |request| {
        all.lock().unwrap().push(request.clone());
        Reaction::Reply(ok(""))
    }
}

#[test]
fn restarting_upstreams_lose_and_repeat_nothing() {
    let listener = tollgate_testkit::listen();
    let (address, all) = (listener.local_addr().unwrap(), Arc::default());
    let stable = Upstream::reacting(noting(&all));
    let mut restarting = Some(Upstream::on(listener, noting(&all)));
    let config = Upstream::proxied(&[&stable], "", "enabled = false")
        .replace("upstreams = [", &format!("upstreams = [\"http://{address}\", "));
    let service = Service::with_config(&config);
    let (proxy, failed, is_done) = (proxy_of(&service), AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let failed = &failed;
        let send_all = move |client: usize| {
            for number in 0..250 {
                let method = if number % 2 == 0 { "GET" } else { "POST" };
                let request =
                    format!("{method} /{client}/{number} HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n");
                match send(proxy, request.as_bytes()).status {
                    200 => {}
                    502 if method == "POST" => drop(failed.fetch_add(1, Ordering::Relaxed)),
                    status => panic!("{method} {client}/{number}: {status}"),
                }
            }
        };
        let clients: Vec<_> = (0..4).map(|client| scope.spawn(move || send_all(client))).collect();
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(30));
                drop(restarting.take());
                std::thread::sleep(Duration::from_millis(10));
                restarting =
                    TcpListener::bind(address).ok().map(|listener| Upstream::on(listener, noting(&all)));
            }
        });
        let finished: Vec<_> = clients.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        // Before a client's failure is reported, or the restarts would go on for ever.
        is_done.store(true, Ordering::Relaxed);
        for client in finished {
            client.unwrap();
        }
    });
    let all = all.lock().unwrap();
    let posts: Vec<&str> =
        all.iter().filter(|one| one.request_line().starts_with("POST")).map(Recorded::target).collect();
    let distinct: HashSet<&str> = posts.iter().copied().collect();
    assert_eq!(posts.len(), distinct.len(), "no POST was sent twice");
    let answered = 500 - failed.load(Ordering::Relaxed);
    assert!(distinct.len() >= answered, "{} sent, {answered} answered", distinct.len());
}

#[test]
fn health_check_takes_an_upstream_out_and_back() {
    static IS_WELL: AtomicBool = AtomicBool::new(true);
    let sick = Upstream::reacting(|request| match request.target() {
        "/healthz" if !IS_WELL.load(Ordering::Relaxed) => {
            Reaction::Reply(b"HTTP/1.1 503 Unwell\r\ncontent-length: 0\r\n\r\n".to_vec())
        }
        _ => Reaction::Reply(ok("sick")),
    });
    let well = Upstream::reacting(|_| Reaction::Reply(ok("well")));
    let route = "health = { path = \"/healthz\", interval = \"50ms\" }";
    let service = Service::with_config(&Upstream::proxied(&[&sick, &well], route, "enabled = false"));
    let proxy = proxy_of(&service);
    let answers = || -> HashSet<String> { (0..6).map(|_| get(proxy, "/").text).collect() };
    wait_for("both", || (answers().len() == 2).then_some(()));
    IS_WELL.store(false, Ordering::Relaxed);
    wait_for("one", || (answers().len() == 1).then_some(()));
    assert_eq!(get(proxy, "/").text, "well");
    IS_WELL.store(true, Ordering::Relaxed);
    wait_for("both again", || (answers().len() == 2).then_some(()));
    assert!(service.log().contains("upstream is healthy again"), "{}", service.log());
}
