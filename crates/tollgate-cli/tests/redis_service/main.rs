//! The service on real Redis servers: several nodes, and failures.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[path = "../service/harness.rs"]
#[allow(dead_code, reason = "each test binary uses a part of it")]
mod harness;

mod fleet;
mod inspection;
mod metrics;
mod outages;
mod problems;
mod propagation;
mod refusals;
mod tenants;
mod top;
mod topologies;

use crate::harness::{Service, wait_for};

/// A service with these counters, a per-user limit that hardly refills, and more settings.
fn service(limit: u32, counters: &str, rule: &str) -> Service {
    Service::with_config(&config(limit, counters, rule))
}

/// The same, once connected to Redis. On a busy machine it may start without it.
fn sharing(limit: u32, counters: &str, rule: &str) -> Service {
    let service = service(limit, counters, rule);
    wait_until_it_is(&service, "ready");
    service
}

/// Waits until `/readyz` reports it.
fn wait_until_it_is(service: &Service, status: &str) {
    wait_for(status, || (service.get("/readyz").json()["status"] == status).then_some(()));
}

fn config(limit: u32, counters: &str, rule: &str) -> String {
    format!(
        "[counters]\nstore = \"redis\"\n{counters}\n[[rules]]\nname = \"by-user\"\nper = [\"user\"]\n\
         limits = [{{ requests = {limit}, window = \"30d\" }}]\n{rule}\n"
    )
}

/// The status of a check, and whether it was degraded.
fn check(service: &Service, user: &str) -> (u16, bool) {
    let answer = service.check(user, "/x");
    (answer.status, answer.status != 0 && answer.json()["degraded"] == true)
}

/// How many of these checks in a row are admitted.
fn admitted(service: &Service, user: &str, checks: usize) -> usize {
    (0..checks).filter(|_| check(service, user).0 == 200).count()
}
