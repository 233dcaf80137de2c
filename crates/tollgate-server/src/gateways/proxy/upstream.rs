//! Upstream servers: which one takes a request, and which ones are out of rotation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::HeaderValue;
use parking_lot::Mutex;

use super::client::{ConnectionCounts, UpstreamClient};
use crate::config::settings::{Balance, UpstreamUrl};

/// Failures in a row that take an upstream out of rotation.
const FAILURES_MAX: u32 = 3;
/// How long it stays out, unless a health check finds it healthy before.
const EJECTED_FOR: Duration = Duration::from_secs(10);

/// One server.
pub(crate) struct Upstream {
    pub(crate) url: UpstreamUrl,
    /// The authority of the URL.
    pub(super) host: Option<HeaderValue>,
    pub(super) client: UpstreamClient,
    pub(crate) stats: UpstreamStats,
    health: Mutex<Health>,
    /// The same as `health`, for the request path.
    is_ejected: AtomicBool,
}

/// Figures of one server.
#[derive(Default)]
pub(crate) struct UpstreamStats {
    pub(crate) in_flight: AtomicUsize,
    pub(crate) requests: AtomicU64,
    /// Connects that failed.
    pub(crate) connect_errors: AtomicU64,
    /// Connections that closed, or sent no valid response in time.
    pub(crate) response_errors: AtomicU64,
    /// Requests sent again on another connection.
    pub(crate) retries: AtomicU64,
}

#[derive(Default)]
struct Health {
    failures: u32,
    /// Failed health checks in a row. Apart from the above, because requests may succeed meanwhile.
    failed_checks: u32,
    ejected_until: Option<Instant>,
    /// The result of the last active check.
    last_check: Option<CheckResult>,
}

/// The result of an active health check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CheckResult {
    pub(crate) error: Option<Box<str>>,
}

/// The state of an upstream, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UpstreamState {
    /// Whether it gets requests.
    pub(crate) is_healthy: bool,
    /// Failures in a row.
    pub(crate) failures: u32,
    /// The result of the last active check, if there are such checks.
    pub(crate) last_check: Option<CheckResult>,
}

impl Upstream {
    pub(super) fn new(url: UpstreamUrl, client: UpstreamClient) -> Self {
        Upstream {
            host: HeaderValue::from_str(url.authority.as_str()).ok(),
            url,
            client,
            stats: UpstreamStats::default(),
            health: Mutex::default(),
            is_ejected: AtomicBool::new(false),
        }
    }

    /// Whether it takes requests. An upstream whose time out of rotation has passed gets one more chance.
    fn is_available(&self, now: Instant) -> bool {
        if !self.is_ejected.load(Ordering::Relaxed) {
            return true;
        }
        let mut health = self.health.lock();
        // An active check decides about the return; without one, time does.
        let fails_checks = health.last_check.as_ref().is_some_and(|check| check.error.is_some());
        let is_over = health.ejected_until.is_some_and(|until| until <= now) && !fails_checks;
        if is_over {
            // One failure is enough to take it out again.
            health.failures = FAILURES_MAX - 1;
            health.ejected_until = None;
            self.is_ejected.store(false, Ordering::Relaxed);
        }
        is_over
    }

    /// Records that the server responded.
    pub(super) fn record_success(&self) {
        if self.is_ejected.load(Ordering::Relaxed) {
            return;
        }
        if let Some(mut health) = self.health.try_lock() {
            health.failures = 0;
        }
    }

    /// Records that the server could not be reached, or closed the connection. Returns whether it is out of rotation since now.
    pub(super) fn record_failure(&self, now: Instant) -> bool {
        let mut health = self.health.lock();
        health.failures = health.failures.saturating_add(1);
        if health.failures < FAILURES_MAX || health.ejected_until.is_some() {
            return false;
        }
        health.ejected_until = Some(now + EJECTED_FOR);
        self.is_ejected.store(true, Ordering::Relaxed);
        true
    }

    /// Records the result of an active check. Returns whether the state changed.
    pub(super) fn record_check(&self, result: CheckResult, now: Instant) -> bool {
        let mut health = self.health.lock();
        let was_ejected = health.ejected_until.is_some();
        if result.error.is_none() {
            (health.failures, health.failed_checks, health.ejected_until) = (0, 0, None);
        } else {
            health.failed_checks = health.failed_checks.saturating_add(1);
            if health.failed_checks >= FAILURES_MAX || was_ejected {
                health.ejected_until = Some(now + EJECTED_FOR);
            }
        }
        health.last_check = Some(result);
        let is_ejected = health.ejected_until.is_some();
        self.is_ejected.store(is_ejected, Ordering::Relaxed);
        is_ejected != was_ejected
    }

    pub(crate) fn connections(&self) -> &ConnectionCounts {
        self.client.connections()
    }

    pub(crate) fn state(&self) -> UpstreamState {
        let health = self.health.lock();
        UpstreamState {
            is_healthy: health.ejected_until.is_none(),
            failures: health.failures,
            last_check: health.last_check.clone(),
        }
    }
}

/// The servers of a route.
pub(crate) struct UpstreamGroup {
    pub(crate) upstreams: Vec<Arc<Upstream>>,
    balance: Balance,
    next: AtomicU32,
}

impl UpstreamGroup {
    pub(super) fn new(upstreams: Vec<Arc<Upstream>>, balance: Balance) -> Self {
        UpstreamGroup { upstreams, balance, next: AtomicU32::new(0) }
    }

    /// The server for a request, not `except` if there is another one. If none is healthy, all of them are tried: a wrong health
    /// check must not stop the service.
    pub(super) fn pick(&self, except: Option<&Arc<Upstream>>, now: Instant) -> Option<&Arc<Upstream>> {
        if let [only] = self.upstreams.as_slice() {
            return Some(only);
        }
        let start = self.next.fetch_add(1, Ordering::Relaxed) as usize;
        let in_turn =
            || (0..self.upstreams.len()).map(|step| &self.upstreams[(start + step) % self.upstreams.len()]);
        let is_other = |upstream: &&Arc<Upstream>| except.is_none_or(|except| !Arc::ptr_eq(except, upstream));
        let available = || in_turn().filter(is_other).filter(|upstream| upstream.is_available(now));
        let chosen = match self.balance {
            Balance::RoundRobin => available().next(),
            Balance::LeastConnections => {
                available().min_by_key(|upstream| upstream.stats.in_flight.load(Ordering::Relaxed))
            }
        };
        chosen.or_else(|| in_turn().find(is_other))
    }
}

/// One request in flight; ends on drop.
pub(super) struct InFlight(Arc<Upstream>);

impl InFlight {
    pub(super) fn begin(upstream: &Arc<Upstream>) -> Self {
        upstream.stats.in_flight.fetch_add(1, Ordering::Relaxed);
        upstream.stats.requests.fetch_add(1, Ordering::Relaxed);
        InFlight(Arc::clone(upstream))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.stats.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::client::ClientSettings;
    use super::*;
    use crate::config::settings::UpstreamTimeouts;

    fn group(balance: Balance, count: u16) -> UpstreamGroup {
        let settings = ClientSettings::new(UpstreamTimeouts::default()).unwrap();
        let upstream = |port: u16| {
            let url = UpstreamUrl::parse(&format!("http://127.0.0.1:{port}")).unwrap();
            let client = UpstreamClient::new(&url, &settings);
            Arc::new(Upstream::new(url, client))
        };
        UpstreamGroup::new((1..=count).map(upstream).collect(), balance)
    }

    fn port(upstream: Option<&Arc<Upstream>>) -> u16 {
        upstream.unwrap().url.authority.port_u16().unwrap()
    }

    #[test]
    fn round_robin_takes_turns() {
        let (group, now) = (group(Balance::RoundRobin, 3), Instant::now());
        let picked: Vec<u16> = (0..6).map(|_| port(group.pick(None, now))).collect();
        assert_eq!(picked, [1, 2, 3, 1, 2, 3]);
    }

    #[test]
    fn least_connections_picks_the_idle_one() {
        let (group, now) = (group(Balance::LeastConnections, 2), Instant::now());
        let _busy = InFlight::begin(&group.upstreams[0]);
        assert!((0..4).all(|_| port(group.pick(None, now)) == 2));
    }

    #[test]
    fn failures_in_a_row_take_an_upstream_out_of_rotation() {
        let (group, now) = (group(Balance::RoundRobin, 2), Instant::now());
        let first = &group.upstreams[0];
        first.record_failure(now);
        first.record_failure(now);
        first.record_success();
        assert!(!first.record_failure(now), "a response in between starts again");
        first.record_failure(now);
        assert!(first.record_failure(now));
        assert!((0..4).all(|_| port(group.pick(None, now)) == 2));
        let later = now + EJECTED_FOR;
        let picked: Vec<u16> = (0..2).map(|_| port(group.pick(None, later))).collect();
        assert!(picked.contains(&1), "one more chance");
        assert!(first.record_failure(later), "which it did not use");
    }

    #[test]
    fn all_are_tried_when_none_is_healthy() {
        let (group, now) = (group(Balance::RoundRobin, 2), Instant::now());
        for upstream in &group.upstreams {
            (0..FAILURES_MAX).for_each(|_| {
                upstream.record_failure(now);
            });
        }
        assert!(group.pick(None, now).is_some());
        assert_eq!(port(group.pick(Some(&group.upstreams[0]), now)), 2);
    }

    #[test]
    fn health_check_takes_out_and_brings_back() {
        let (group, now) = (group(Balance::RoundRobin, 2), Instant::now());
        let first = &group.upstreams[0];
        let failed = || CheckResult { error: Some("status 500".into()) };
        assert!(!first.record_check(failed(), now) && !first.record_check(failed(), now));
        assert!(first.record_check(failed(), now));
        assert!(
            (0..4).all(|_| port(group.pick(None, now + EJECTED_FOR)) == 2),
            "a failing check keeps it out"
        );
        assert!(first.record_check(CheckResult { error: None }, now));
        assert!(first.state().is_healthy);
    }
}
