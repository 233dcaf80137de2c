//! Caddy with the configuration of docs/gateways.md.

use crate::harness::wait_for;
use crate::setup::{Setup, settings};

#[test]
fn caddy_forwards_exactly_the_limit() {
    let setup = Setup::caddy(&settings(100, ""));
    assert_eq!(setup.flood(1_000, [200, 429]), [100, 900]);
    assert_eq!(setup.served(), 100);
    assert_eq!(setup.http2_status("/api/items"), "2 429");
}

#[test]
fn caddy_client_sees_the_answer_of_tollgate() {
    let setup = Setup::caddy(&settings(1, ""));
    assert_eq!(setup.get("/api/items", &[]).text, "hello");
    let refused = setup.get("/api/items", &[]);
    assert_eq!((refused.status, refused.header("x-ratelimit-limit")), (429, Some("1")));
    assert!(refused.header("retry-after").unwrap().parse::<u32>().unwrap() > 0);
    assert_eq!(refused.json()["allowed"], false);
}

#[test]
fn caddy_counts_every_spelling_of_a_path_once() {
    let rule = "[[rules]]\nname = \"items\"\nwhen = { endpoints = [\"/api/items\"] }\nper = [\"ip\", \"endpoint\"]\n\
                limits = [{ requests = 5, window = \"1d\" }]";
    Setup::caddy(&settings(1_000, rule)).spellings_share_one_counter(5);
}

#[test]
fn caddy_keeps_forged_headers_from_tollgate() {
    Setup::caddy(&settings(7, "")).forged_headers_change_nothing(7);
}

#[test]
fn caddy_is_closed_while_tollgate_is_down() {
    let setup = Setup::caddy(&settings(10, ""));
    assert_eq!(setup.get("/api/items", &[]).status, 200);
    setup.service.signal("-KILL");
    wait_for("Caddy to notice", || (setup.get("/api/items", &[]).status == 502).then_some(()));
    let before = setup.served();
    assert_eq!(setup.get("/api/items", &[]).status, 502);
    assert_eq!(setup.served(), before);
}
