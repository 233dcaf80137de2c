//! Clients that speak HTTP/2.

use std::process::Command;

use crate::enforcement::limit;
use crate::harness::Service;
use crate::upstream::{Reaction, Upstream, ok, proxy_of};

/// What curl prints, and the version and status of the response.
fn curl(args: &[&str]) -> (String, String) {
    let format = "\n%{http_version} %{response_code}";
    let output = Command::new("curl")
        .args(["--silent", "--show-error", "--max-time", "20", "--noproxy", "*", "--write-out", format])
        .args(args)
        .output()
        .expect("curl is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let (body, facts) = text.rsplit_once('\n').unwrap();
    (body.to_owned(), facts.to_owned())
}

#[test]
fn http2_client_is_served_by_an_http1_upstream() {
    let upstream = Upstream::reacting(|request| Reaction::Reply(ok(&String::from_utf8_lossy(&request.body))));
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", &limit(1)));
    let url = format!("http://{}/a/../items?q=1", proxy_of(&service));
    let ask =
        ["--http2-prior-knowledge", "--path-as-is", "--header", "cookie: a=1", "--header", "cookie: b=2"];
    let (body, facts) = curl(&[&ask[..], &["--data", "hello", &url]].concat());
    assert_eq!((body.as_str(), facts.as_str()), ("hello", "2 200"));
    let request = &upstream.requests()[0];
    assert_eq!(request.request_line(), "POST /items?q=1 HTTP/1.1");
    assert_eq!(request.headers("host"), [proxy_of(&service).to_string()]);
    let (body, facts) = curl(&[&ask[..], &[&url]].concat());
    assert_eq!(facts, "2 429");
    assert!(body.contains("RATE_LIMITED"), "{body}");
    assert_eq!(upstream.count(), 1);
}
