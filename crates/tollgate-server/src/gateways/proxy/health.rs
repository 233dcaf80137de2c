//! Active health checks of upstreams.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http::header::{HOST, HeaderValue, USER_AGENT};
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::Proxy;
use super::body::RequestBody;
use super::routes::RouteTable;
use super::upstream::{CheckResult, Upstream};
use crate::config::settings::HealthCheckSettings;

/// How often it is looked whether routes changed or a check is due.
const TURN: Duration = Duration::from_millis(100);
/// Checks at the same time.
const CHECKS_MAX: usize = 64;

/// Checks the upstreams of all routes with `health` until the task is aborted. A reload takes effect at the next turn.
pub(crate) async fn run(proxy: Arc<Proxy>) {
    let mut schedule = Schedule::default();
    let mut running = JoinSet::new();
    loop {
        for (upstream, health) in schedule.due(&proxy.routes(), Instant::now()) {
            while running.len() >= CHECKS_MAX {
                running.join_next().await;
            }
            running.spawn(check(upstream, health));
        }
        while running.try_join_next().is_some() {}
        tokio::time::sleep(TURN).await;
    }
}

/// When each upstream was checked.
#[derive(Default)]
struct Schedule(Vec<(Arc<Upstream>, Instant)>);

impl Schedule {
    /// The upstreams to check now. Upstreams of several routes are checked as the first of them says.
    fn due(&mut self, table: &RouteTable, now: Instant) -> Vec<(Arc<Upstream>, HealthCheckSettings)> {
        let (mut due, mut next): (Vec<_>, Vec<(Arc<Upstream>, Instant)>) = (Vec::new(), Vec::new());
        for route in &table.routes {
            let Some(health) = &route.health else { continue };
            for upstream in &route.group.upstreams {
                let is_same = |(other, _): &&(Arc<Upstream>, Instant)| Arc::ptr_eq(other, upstream);
                if next.iter().any(|entry| is_same(&entry)) {
                    continue;
                }
                let last = self.0.iter().find(is_same).map(|(_, at)| *at);
                let is_due = last.is_none_or(|at| now >= at + health.interval);
                if is_due {
                    due.push((Arc::clone(upstream), health.clone()));
                }
                next.push((Arc::clone(upstream), last.filter(|_| !is_due).unwrap_or(now)));
            }
        }
        self.0 = next;
        due
    }
}

async fn check(upstream: Arc<Upstream>, health: HealthCheckSettings) {
    let error = probe(&upstream, &health).await.err();
    let reason = error.clone();
    let result = CheckResult { error: error.map(Into::into) };
    if upstream.record_check(result, Instant::now()) {
        if let Some(error) = reason {
            warn!(upstream = %upstream.url, %error, "upstream is out of rotation: its health check fails");
        } else {
            info!(upstream = %upstream.url, "upstream is healthy again");
        }
    }
}

async fn probe(upstream: &Upstream, health: &HealthCheckSettings) -> Result<(), String> {
    let request = request(upstream, &health.path).map_err(|error| error.to_string())?;
    let sent =
        tokio::time::timeout(health.timeout, upstream.client.send(&mut Some(request), Instant::now())).await;
    let response = sent.map_err(|_| format!("no response in {:?}", health.timeout))?;
    let status = response.map_err(|error| error.to_string())?.status();
    if status.as_u16() < 400 { Ok(()) } else { Err(format!("status {}", status.as_u16())) }
}

fn request(upstream: &Upstream, path: &str) -> Result<Request<RequestBody>, http::Error> {
    let mut request = Request::get(path).header(USER_AGENT, "tollgate-health-check");
    if !upstream.url.protocol.is_http2() {
        request = request.header(HOST, HeaderValue::from_str(upstream.url.authority.as_str())?);
    }
    request.body(RequestBody::Whole(Bytes::new()))
}
