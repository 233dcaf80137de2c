//! Key sets of token issuers in a running service.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;

use tollgate_testkit::free_port;

use crate::harness::{Service, wait_for};

/// The public key of RFC 7517, A.1.
const KEYS: &str = r#"{"keys":[{"kty":"EC","crv":"P-256","kid":"1",
    "x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4","y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"}]}"#;

fn issuer(keys: &str) -> String {
    format!("[[identity.jwt]]\nissuer = \"idp\"\naudience = \"api\"\nalgorithm = \"ES256\"\n{keys}\n")
}

/// Serves the key set until the test ends.
fn serve_keys(port: u16) {
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().map(Result::unwrap) {
            let mut request = [0; 1_024];
            let _ = stream.read(&mut request);
            let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{KEYS}", KEYS.len());
        }
    });
}

#[test]
fn readiness_is_degraded_until_keys_are_fetched() {
    let port = free_port();
    let service = Service::with_config(&issuer(&format!("jwks_url = \"http://127.0.0.1:{port}/keys\"")));
    let problem = wait_for("a failed fetch", || {
        let ready = service.get("/readyz");
        assert_eq!((ready.status, &ready.json()["status"]), (200, &"degraded".into()));
        let problem = ready.json()["identity_error"].as_str().unwrap().to_owned();
        problem.contains("cannot connect to 127.0.0.1").then_some(problem)
    });
    assert!(problem.starts_with("the keys of the token issuer \"idp\" were never fetched: "), "{problem}");
    serve_keys(port);
    wait_for("the keys", || (service.get("/readyz").json()["status"] == "ready").then_some(()));
    let fetches = service.metric("tollgate_jwks_fetches_total").unwrap();
    assert_eq!(service.metric("tollgate_jwks_fetch_failures_total"), Some(fetches - 1.0));
    assert_eq!(service.metric("tollgate_tokens_refused_total{reason=\"expired\"}"), Some(0.0));
}

#[test]
fn reload_with_an_unreadable_key_changes_nothing() {
    let service = Service::with_config("default_limit = 7");
    let file = service.folder.path().join("tollgate.toml");
    fs::write(&file, format!("default_limit = 9\n{}", issuer("public_key_file = \"/nowhere/key.pem\"")))
        .unwrap();
    let problem =
        wait_for("the error", || service.get("/readyz").json()["config_error"].as_str().map(str::to_owned));
    assert!(problem.contains("identity.jwt[0].public_key_file: cannot read /nowhere/key.pem"), "{problem}");
    assert_eq!(service.check("alice", "/x").header("x-ratelimit-limit"), Some("7"));
}
