//! Backs off addresses that present invalid API keys or tokens.
//!
//! Each address (IPv6: each /64) may fail [`FREE_FAILURES`] times; after that every failure doubles the time during which
//! credentials from the address are refused unread. When failures come from many addresses at once, each one has only
//! [`FREE_FAILURES_UNDER_ATTACK`]. A credential that was valid from an address is still accepted while others from that address
//! fail, so an attacker behind a shared NAT cannot lock out its neighbours.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};
use tollgate::identity::{IpPrefixes, counted_ip};
use tollgate::{Span, Timestamp};

use super::alerts::{Alert, AlertQueue};

const FREE_FAILURES: u32 = 64;
const FREE_FAILURES_UNDER_ATTACK: u32 = 4;
const FIRST_BACKOFF: Span = Span::from_secs(1);
const LONGEST_BACKOFF: Span = Span::from_secs(300);
/// An address without a failure for this long starts again from zero.
const FORGET_AFTER: Span = Span::from_secs(900);
/// This many failures from all addresses within [`ATTACK_WINDOW`] count as an attack.
const ATTACK_FAILURES: u32 = 500;
const ATTACK_WINDOW: Span = Span::from_secs(60);
/// Addresses tracked at most.
const SLOTS: usize = 8_192;
const TRUSTED_MAX: usize = 16_384;

/// What an address guesses. Each has a throttle of its own: clients with invalid tokens do not lock out callers.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum GuessedCredential {
    /// The API key of a caller.
    #[default]
    ApiKey,
    /// The token of a client.
    Token,
}

/// Tracks failed authentication by address.
#[derive(Debug, Default)]
pub(crate) struct AuthThrottle {
    hasher: RandomState,
    state: Mutex<State>,
    /// Spares requests the lock until the first failure.
    has_failures: AtomicBool,
    /// Hashes of valid credentials with their addresses.
    trusted: RwLock<HashSet<u64>>,
}

/// Counters for metrics.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AuthThrottleStats {
    /// Invalid credentials that were checked.
    pub(crate) failures: u64,
    /// Requests refused without checking their credential.
    pub(crate) throttled: u64,
    /// Times that backoff began, for one address or for all.
    pub(crate) activations: u64,
}

impl AuthThrottle {
    pub(crate) fn new(credential: GuessedCredential) -> Self {
        let state = State { credential, ..State::default() };
        AuthThrottle { state: Mutex::new(state), ..AuthThrottle::default() }
    }

    /// How long credentials from this address are refused unread, if they are.
    pub(crate) fn backoff(&self, peer: IpAddr, key: &str, now: Timestamp) -> Option<Span> {
        if !self.has_failures.load(Ordering::Relaxed) {
            return None;
        }
        let peer = counted_ip(peer, IpPrefixes::DEFAULT);
        let remaining = self.state.lock().backoff_until(self.slot_of(peer), peer)?.since(now);
        if remaining == Span::ZERO || self.trusted.read().contains(&self.hasher.hash_one((peer, key))) {
            return None;
        }
        self.state.lock().stats.throttled += 1;
        Some(remaining)
    }

    /// Remembers a valid credential and its address.
    pub(crate) fn record_success(&self, peer: IpAddr, key: &str) {
        let hash = self.hasher.hash_one((counted_ip(peer, IpPrefixes::DEFAULT), key));
        if self.trusted.read().contains(&hash) {
            return;
        }
        let mut trusted = self.trusted.write();
        // Credentials in use are added again by their next request.
        if trusted.len() >= TRUSTED_MAX {
            trusted.clear();
        }
        trusted.insert(hash);
    }

    /// Counts an invalid credential.
    pub(crate) fn record_failure(&self, peer: IpAddr, key: &str, now: Timestamp) {
        let peer = counted_ip(peer, IpPrefixes::DEFAULT);
        self.trusted.write().remove(&self.hasher.hash_one((peer, key)));
        self.has_failures.store(true, Ordering::Relaxed);
        let alerts = self.state.lock().record_failure(self.slot_of(peer), peer, now);
        alerts.iter().flatten().for_each(Alert::log);
    }

    pub(crate) fn stats(&self) -> AuthThrottleStats {
        self.state.lock().stats
    }

    /// The oldest alert, and how many were left out since the one before.
    pub(super) fn take_alert(&self) -> Option<(Alert, u64)> {
        self.state.lock().alerts.pop()
    }

    fn slot_of(&self, address: IpAddr) -> usize {
        usize::try_from(self.hasher.hash_one(address) % SLOTS as u64).unwrap_or_default()
    }
}

/// Failures of all addresses. Each address has one slot by its hash, so memory is bounded and a failure costs the same
/// however many addresses an attacker has. An address in backoff keeps its slot; another one that falls into it is covered by
/// the attack window only.
#[derive(Debug, Default)]
struct State {
    credential: GuessedCredential,
    slots: Vec<Option<AddressFailures>>,
    window_began: Timestamp,
    failures_in_window: u32,
    attack_until: Timestamp,
    alerts: AlertQueue,
    stats: AuthThrottleStats,
}

#[derive(Copy, Clone, Debug)]
struct AddressFailures {
    address: IpAddr,
    count: u32,
    last: Timestamp,
    backoff_until: Timestamp,
}

impl State {
    fn backoff_until(&self, slot: usize, address: IpAddr) -> Option<Timestamp> {
        let slot = self.slots.get(slot)?.filter(|slot| slot.address == address)?;
        Some(slot.backoff_until)
    }

    /// Returns the alerts to log.
    fn record_failure(&mut self, slot: usize, address: IpAddr, now: Timestamp) -> [Option<Alert>; 2] {
        self.stats.failures += 1;
        let attack = self.count_in_window(now).then_some((None, ATTACK_FAILURES));
        let backoff = self.count_by_address(slot, address, now).map(|failures| (Some(address), failures));
        [attack, backoff].map(|begun| {
            let (address, failures) = begun?;
            self.stats.activations += 1;
            let alert = Alert { credential: self.credential, address, failures, at: now };
            self.alerts.push(alert).then_some(alert)
        })
    }

    /// Whether an attack begins with this failure.
    fn count_in_window(&mut self, now: Timestamp) -> bool {
        if now.since(self.window_began) >= ATTACK_WINDOW {
            (self.window_began, self.failures_in_window) = (now, 0);
        }
        self.failures_in_window = self.failures_in_window.saturating_add(1);
        if self.failures_in_window < ATTACK_FAILURES {
            return false;
        }
        let began = self.attack_until <= now;
        self.attack_until = now + ATTACK_WINDOW;
        began
    }

    /// The number of failures of this address, if its backoff begins with this one.
    fn count_by_address(&mut self, slot: usize, address: IpAddr, now: Timestamp) -> Option<u32> {
        let free = if now < self.attack_until { FREE_FAILURES_UNDER_ATTACK } else { FREE_FAILURES };
        self.slots.resize(SLOTS, None);
        let slot = self.slots.get_mut(slot)?;
        let mut failures = match *slot {
            Some(known) if known.address == address && now.since(known.last) < FORGET_AFTER => known,
            Some(other) if other.address != address && now < other.backoff_until => return None,
            _ => AddressFailures { address, count: 0, last: now, backoff_until: now },
        };
        failures.count = failures.count.saturating_add(1);
        failures.last = now;
        let beyond = failures.count.checked_sub(free + 1);
        if let Some(beyond) = beyond {
            let doubled = FIRST_BACKOFF.as_micros().saturating_mul(1 << beyond.min(20));
            failures.backoff_until = now + Span::from_micros(doubled).min(LONGEST_BACKOFF);
        }
        *slot = Some(failures);
        (beyond == Some(0)).then_some(failures.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_secs(1_000_000);
    const WRONG: &str = "wrong";

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn fail(throttle: &AuthThrottle, address: &str, times: u32, now: Timestamp) {
        (0..times).for_each(|_| throttle.record_failure(ip(address), WRONG, now));
    }

    #[test]
    fn first_failures_are_free() {
        let throttle = AuthThrottle::default();
        fail(&throttle, "192.0.2.1", FREE_FAILURES, START);
        assert_eq!(throttle.backoff(ip("192.0.2.1"), WRONG, START), None);
        assert_eq!(throttle.stats().activations, 0);
    }

    #[test]
    fn backoff_doubles_up_to_a_bound() {
        let throttle = AuthThrottle::default();
        fail(&throttle, "192.0.2.1", FREE_FAILURES, START);
        let mut now = START;
        for expected in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            fail(&throttle, "192.0.2.1", 1, now);
            let backoff = throttle.backoff(ip("192.0.2.1"), WRONG, now);
            assert_eq!(backoff, Some(Span::from_secs(expected)));
            now = now + Span::from_secs(expected);
            assert_eq!(throttle.backoff(ip("192.0.2.1"), WRONG, now), None, "one more key is compared");
        }
        assert_eq!(throttle.stats().activations, 1);
    }

    #[test]
    fn few_of_ten_thousand_wrong_keys_are_compared() {
        let throttle = AuthThrottle::default();
        let mut compared = 0;
        for millis in 0..10_000 {
            let now = START + Span::from_micros(millis * 1_000);
            if throttle.backoff(ip("192.0.2.1"), WRONG, now).is_none() {
                compared += 1;
                fail(&throttle, "192.0.2.1", 1, now);
            }
        }
        assert!(compared <= FREE_FAILURES + 5, "{compared}");
        assert_eq!(throttle.backoff(ip("192.0.2.2"), WRONG, START), None, "other addresses are unaffected");
        let stats = throttle.stats();
        assert_eq!(stats.failures + stats.throttled, 10_000);
    }

    #[test]
    fn ipv6_prefix_and_mapped_ipv4_are_one_address() {
        let throttle = AuthThrottle::default();
        fail(&throttle, "2001:db8::1", FREE_FAILURES + 1, START);
        assert!(throttle.backoff(ip("2001:db8::2"), WRONG, START).is_some());
        assert!(throttle.backoff(ip("2001:db8:0:1::1"), WRONG, START).is_none());
        fail(&throttle, "192.0.2.1", FREE_FAILURES + 1, START);
        assert!(throttle.backoff(ip("::ffff:192.0.2.1"), WRONG, START).is_some());
    }

    #[test]
    fn distributed_attack_lowers_free_failures() {
        let throttle = AuthThrottle::default();
        for number in 0..ATTACK_FAILURES {
            let address = format!("198.51.{}.{}", number / 256, number % 256);
            fail(&throttle, &address, 1, START);
        }
        assert_eq!(throttle.stats().activations, 1);
        fail(&throttle, "203.0.113.1", FREE_FAILURES_UNDER_ATTACK + 1, START);
        assert!(throttle.backoff(ip("203.0.113.1"), WRONG, START).is_some());
        assert!(throttle.backoff(ip("203.0.113.2"), WRONG, START).is_none(), "it has not failed");
    }

    #[test]
    fn valid_key_passes_while_its_address_is_in_backoff() {
        let (throttle, gateway) = (AuthThrottle::default(), ip("192.0.2.1"));
        throttle.record_success(gateway, "right");
        fail(&throttle, "192.0.2.1", FREE_FAILURES + 1, START);
        assert!(throttle.backoff(gateway, WRONG, START).is_some());
        assert!(throttle.backoff(gateway, "right", START).is_none());
        throttle.record_failure(gateway, "right", START);
        assert!(throttle.backoff(gateway, "right", START).is_some(), "no longer valid");
    }

    #[test]
    fn trusted_credentials_are_bounded() {
        let (throttle, gateway) = (AuthThrottle::default(), ip("192.0.2.1"));
        (0..=TRUSTED_MAX).for_each(|number| throttle.record_success(gateway, &number.to_string()));
        assert!(throttle.trusted.read().len() <= TRUSTED_MAX);
    }

    #[test]
    fn quiet_address_starts_again_from_zero() {
        let throttle = AuthThrottle::default();
        fail(&throttle, "192.0.2.1", FREE_FAILURES + 9, START);
        let later = START + FORGET_AFTER;
        fail(&throttle, "192.0.2.1", 1, later);
        assert_eq!(throttle.backoff(ip("192.0.2.1"), WRONG, later), None);
    }

    #[test]
    fn flood_of_addresses_evicts_none_in_backoff() {
        let throttle = AuthThrottle::default();
        fail(&throttle, "203.0.113.1", FREE_FAILURES + 5, START);
        let first = u32::from_be_bytes([10, 0, 0, 0]);
        for number in 0..u32::try_from(SLOTS).unwrap() * 4 {
            let address = IpAddr::from((first + number).to_be_bytes());
            throttle.record_failure(address, WRONG, START + Span::from_micros(number.into()));
        }
        assert_eq!(throttle.state.lock().slots.len(), SLOTS);
        assert!(throttle.backoff(ip("203.0.113.1"), WRONG, START).is_some());
    }
}
