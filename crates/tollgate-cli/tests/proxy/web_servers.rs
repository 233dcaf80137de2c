//! nginx and Python's server as upstreams; their access logs show what reached them.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tollgate_testkit::WebServer;

use crate::enforcement::limit;
use crate::harness::{Service, wait_for};
use crate::upstream::{get, proxied_to, proxy_of, send};

/// Sends 1,000 requests of a client with a limit of 100; returns how many were admitted.
fn flood(proxy: SocketAddr, target: &(dyn Fn(usize) -> String + Sync)) -> usize {
    let admitted = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for client in 0..4 {
            let admitted = &admitted;
            scope.spawn(move || {
                for number in 0..250 {
                    let answer = get(proxy, &target(client * 250 + number));
                    assert!(matches!(answer.status, 200 | 429), "{answer:?}");
                    admitted.fetch_add(usize::from(answer.status == 200), Ordering::Relaxed);
                }
            });
        }
    });
    admitted.into_inner()
}

#[test]
fn nginx_upstream_gets_exactly_the_limit() {
    let nginx = WebServer::nginx();
    let url = format!("http://{}", nginx.address());
    let service = Service::with_config(&proxied_to(&[&url], "", &limit(100)));
    assert_eq!(flood(proxy_of(&service), &|number| format!("/items/{number}")), 100);
    wait_for("the access log", || (nginx.requests().len() >= 100).then_some(()));
    let requests = nginx.requests();
    let distinct: HashSet<&String> = requests.iter().collect();
    assert_eq!((requests.len(), distinct.len()), (100, 100), "each request once");
    assert!(requests.iter().all(|line| line.starts_with("GET /items/")), "{requests:?}");
}

#[test]
fn python_upstream_gets_exactly_the_limit() {
    let python = WebServer::python();
    let url = format!("http://{}", python.address());
    let service = Service::with_config(&proxied_to(&[&url], "", &limit(100)));
    assert_eq!(flood(proxy_of(&service), &|number| format!("/?number={number}")), 100);
    wait_for("the access log", || (python.requests().len() >= 100).then_some(()));
    let requests = python.requests();
    let distinct: HashSet<&String> = requests.iter().collect();
    assert_eq!((requests.len(), distinct.len()), (100, 100), "each request once");
}

/// Sends requests until it is stopped; returns the targets that were answered with 200.
fn load(proxy: SocketAddr, is_done: &AtomicBool, failed: &AtomicUsize) -> Vec<String> {
    static CLIENTS: AtomicUsize = AtomicUsize::new(0);
    let client = CLIENTS.fetch_add(1, Ordering::Relaxed);
    let mut answered = Vec::new();
    for number in 0.. {
        if is_done.load(Ordering::Relaxed) {
            break;
        }
        let method = if number % 2 == 0 { "GET" } else { "POST" };
        let line = format!("{method} /{client}/{number} HTTP/1.1");
        match send(proxy, format!("{line}\r\nhost: a\r\ncontent-length: 0\r\n\r\n").as_bytes()).status {
            200 => answered.push(line),
            502 if method == "POST" => drop(failed.fetch_add(1, Ordering::Relaxed)),
            status => panic!("{line}: {status}"),
        }
    }
    answered
}

#[test]
fn restarting_nginx_loses_and_repeats_nothing() {
    let servers = [WebServer::nginx(), WebServer::nginx()];
    let urls = servers.each_ref().map(|server| format!("http://{}", server.address()));
    let config = proxied_to(&urls.each_ref().map(String::as_str), "", "enabled = false");
    let service = Service::with_config(&config);
    let (proxy, is_done, failed) = (proxy_of(&service), AtomicBool::new(false), AtomicUsize::new(0));
    let answered = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| answered.lock().unwrap().extend(load(proxy, &is_done, &failed))))
            .collect();
        for round in 0..6 {
            std::thread::sleep(Duration::from_millis(150));
            servers[round % 2].restart();
        }
        is_done.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().unwrap();
        }
    });
    let answered = answered.into_inner().unwrap();
    let logged = || -> Vec<String> { servers.iter().flat_map(WebServer::requests).collect() };
    wait_for("the access logs", || (logged().len() >= answered.len()).then_some(()));
    let logged = logged();
    let distinct: HashSet<&String> = logged.iter().collect();
    println!("{} answered, {} failed", answered.len(), failed.load(Ordering::Relaxed));
    assert_eq!(logged.len(), distinct.len(), "no request twice");
    assert!(answered.iter().all(|line| distinct.contains(line)), "every response is of an upstream");
    let metric = service.metric("tollgate_proxy_upstream_failures_total{route=\"/*\"}");
    let counted = u32::try_from(failed.into_inner()).unwrap();
    assert_eq!(metric, Some(f64::from(counted)), "every 502 is counted");
}
