//! The commands `tollgate gateway` and `tollgate upstreams`.

use std::process::Command;

use tempfile::TempDir;

use crate::harness::Service;
use crate::upstream::{Upstream, proxy_of};

fn tollgate(args: &[&str]) -> std::process::Output {
    let home = TempDir::new().unwrap();
    Command::new(env!("CARGO_BIN_EXE_tollgate")).args(args).env("HOME", home.path()).output().unwrap()
}

#[test]
fn gateway_without_upstreams_says_what_is_missing() {
    let output = tollgate(&["gateway"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr.contains("--upstream"), "{stderr}");
}

#[test]
fn invalid_upstream_is_explained() {
    let output = tollgate(&["gateway", "--upstream", "127.0.0.1:3000"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("is not a URL such as \"http://127.0.0.1:3000\""), "{stderr}");
}

#[test]
fn upstreams_lists_state_and_figures() {
    let upstream = Upstream::start();
    let service = Service::with_config(&Upstream::proxied(&[&upstream], "", ""));
    assert_eq!(crate::upstream::get(proxy_of(&service), "/").status, 200);
    let (url, key) = (format!("http://{}", service.address), service.admin_key());
    let output = tollgate(&["upstreams", "--url", &url, "--key", &key]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("up") && text.contains(&upstream.address.to_string()), "{text}");
}

#[test]
fn node_without_a_proxy_says_so() {
    let service = Service::unconfigured();
    let answer = service.admin("GET", "/v1/admin/upstreams", "");
    assert_eq!(answer.error().0, 404);
    assert!(answer.text.contains("[proxy]"), "{}", answer.text);
}
