//! The whole service on a real Redis: the binary, several of it, and servers that have a bad day.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[path = "../service/harness.rs"]
#[allow(dead_code, reason = "each test binary uses a part of it")]
mod harness;

mod figures;
mod fleet;
mod outages;
mod propagation;
mod refusals;
mod topologies;
mod troubles;
mod watching;

use crate::harness::{Service, wait_for};

/// A service on these counters, with a limit by user that hardly refills, and more keys of `[counters]` or the rule.
fn service(limit: u32, counters: &str, rule: &str) -> Service {
    Service::with_config(&config(limit, counters, rule))
}

/// A service that has found its counters. It serves without them when a busy machine kept it from that for a second.
fn sharing(limit: u32, counters: &str, rule: &str) -> Service {
    let service = service(limit, counters, rule);
    wait_until_it_is(&service, "ready");
    service
}

/// Until `/readyz` says so.
fn wait_until_it_is(service: &Service, status: &str) {
    wait_for(status, || (service.get("/readyz").json()["status"] == status).then_some(()));
}

fn config(limit: u32, counters: &str, rule: &str) -> String {
    format!(
        "[counters]\nstore = \"redis\"\n{counters}\n[[rules]]\nname = \"by-user\"\nper = [\"user\"]\n\
         limits = [{{ requests = {limit}, window = \"30d\" }}]\n{rule}\n"
    )
}

/// The status of a check, and whether it was decided without the shared counters.
fn check(service: &Service, user: &str) -> (u16, bool) {
    let answer = service.check(user, "/x");
    (answer.status, answer.status != 0 && answer.json()["degraded"] == true)
}

/// How many of so many checks in a row are admitted.
fn admitted(service: &Service, user: &str, checks: usize) -> usize {
    (0..checks).filter(|_| check(service, user).0 == 200).count()
}
