//! How long a client and an upstream may take.

use std::io::Write;
use std::time::Duration;

use crate::harness::{Service, read_answer, wait_for};
use crate::upstream::{Reaction, Upstream, connect, ok, proxied_to, proxy_of, send};

const ROUTE: &str = "response_timeout = \"400ms\"";

#[test]
fn time_of_the_upload_is_not_that_of_the_response() {
    let upstream = Upstream::reacting(|request| Reaction::Reply(ok(&request.body.len().to_string())));
    let service = Service::with_config(&Upstream::proxied(&[&upstream], ROUTE, ""));
    let heads = ["content-length: 6\r\n\r\n", "transfer-encoding: chunked\r\n\r\n"];
    let parts = [["a"; 6].as_slice(), &["1\r\na\r\n"; 6]];
    for ((head, parts), end) in heads.into_iter().zip(parts).zip(["", "0\r\n\r\n"]) {
        let mut stream = connect(proxy_of(&service));
        stream.write_all(format!("POST / HTTP/1.1\r\nhost: a\r\n{head}").as_bytes()).unwrap();
        for part in parts {
            std::thread::sleep(Duration::from_millis(200));
            stream.write_all(part.as_bytes()).unwrap();
        }
        stream.write_all(end.as_bytes()).unwrap();
        let answer = read_answer(&mut stream);
        assert_eq!((answer.status, answer.text.as_str()), (200, "6"), "{head}: {answer:?}");
    }
}

#[test]
fn response_that_is_late_after_the_body_is_504() {
    let upstream = Upstream::reacting(|_| Reaction::Late(Duration::from_secs(5), ok("late")));
    let service = Service::with_config(&Upstream::proxied(&[&upstream], ROUTE, ""));
    let answer = send(proxy_of(&service), b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\nx");
    assert_eq!((answer.status, answer.error().1.as_str()), (504, "UPSTREAM_TIMEOUT"));
}

#[test]
fn upstream_that_does_not_read_the_body_is_504() {
    // The kernel accepts connections to it, and nobody reads.
    let listener = tollgate_testkit::listen();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let route = format!("{ROUTE}\nidle_timeout = \"400ms\"");
    let service = Service::with_config(&proxied_to(&[&url], &route, ""));
    let mut stream = connect(proxy_of(&service));
    let mut writing = stream.try_clone().unwrap();
    let client = std::thread::spawn(move || {
        let _ = write!(writing, "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", 64 << 20);
        let block = vec![1; 1 << 20];
        // Ends when the proxy closes the connection.
        (0..64).all(|_| writing.write_all(&block).is_ok())
    });
    let answer = read_answer(&mut stream);
    assert_eq!((answer.status, answer.error().1.as_str()), (504, "UPSTREAM_TIMEOUT"));
    drop(stream);
    assert!(!client.join().unwrap(), "the rest of the body was not read");
    let open = format!("tollgate_upstream_connections{{upstream=\"{url}\"}}");
    wait_for("the connection to be closed", || (service.metric(&open) == Some(0.0)).then_some(()));
}
