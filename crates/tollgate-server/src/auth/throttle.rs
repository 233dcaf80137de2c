//! What slows down who tries keys that are none.
//!
//! Failures are counted by address (IPv6: by /64) and for all addresses together. An address has some failures free, for
//! people mistype and services are deployed with an old key. Each further one makes it wait, twice as long as the one before;
//! while it waits its keys are not even looked at. When failures come from everywhere, the free ones become few for all.
//! An address that has not failed is never held up, and a key that was right from an address still is looked at when others
//! from there fail: nobody can lock out the others, though they share a gateway or a NAT.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use tollgate::identity::counted_ip;
use tollgate::rules::IPV6_PREFIX_DEFAULT;
use tollgate::{Span, Timestamp};
use tracing::warn;

use super::alerts::Alarms;

/// Failures of an address that cost nothing.
const FREE: u32 = 64;
/// The same while failures come from everywhere.
const FREE_IN_ALARM: u32 = 4;
/// The wait after the first failure beyond the free ones.
const WAIT_FIRST: Span = Span::from_secs(1);
/// No wait is longer.
const WAIT_MAX: Span = Span::from_secs(300);
/// Without a failure for so long an address is forgotten.
const FORGET_AFTER: Span = Span::from_secs(900);
/// So many failures within [`ALARM_WINDOW`], wherever they come from, are an attack.
const ALARM_FAILURES: u32 = 500;
const ALARM_WINDOW: Span = Span::from_secs(60);
/// Addresses kept at most.
const ADDRESSES_MAX: usize = 8_192;
/// Right keys remembered at most.
const TRUSTED_MAX: usize = 16_384;

/// Who failed, and who has to wait.
#[derive(Debug, Default)]
pub(crate) struct AuthThrottle {
    state: Mutex<State>,
    /// Addresses in `state`. As long as there are none, nobody takes the lock.
    addresses: AtomicUsize,
    trusted: TrustedCredentials,
    pub(crate) alarms: Alarms,
    failures: AtomicU64,
    throttled: AtomicU64,
    activations: AtomicU64,
}

/// Keys that were right, each with the address it came from; as hashes that nobody outside can foresee.
#[derive(Debug, Default)]
struct TrustedCredentials {
    hasher: RandomState,
    known: RwLock<HashSet<u64>>,
}

impl TrustedCredentials {
    fn hash(&self, peer: IpAddr, key: &str) -> u64 {
        self.hasher.hash_one((peer, key))
    }

    fn has(&self, peer: IpAddr, key: &str) -> bool {
        self.known.read().contains(&self.hash(peer, key))
    }

    fn add(&self, peer: IpAddr, key: &str) {
        let hash = self.hash(peer, key);
        if self.known.read().contains(&hash) {
            return;
        }
        let mut known = self.known.write();
        // Whoever still comes is back with the next request.
        if known.len() >= TRUSTED_MAX {
            known.clear();
        }
        known.insert(hash);
    }

    fn remove(&self, peer: IpAddr, key: &str) {
        self.known.write().remove(&self.hash(peer, key));
    }
}

#[derive(Debug, Default)]
struct State {
    by_address: HashMap<IpAddr, Failures>,
    /// All of them by what they have left to wait, so that room is made without looking at each: whoever has many addresses
    /// would have that done for every one of them, under the lock.
    by_wait: BTreeSet<(Timestamp, IpAddr)>,
    window_began: Timestamp,
    in_window: u32,
    alarm_until: Timestamp,
}

#[derive(Copy, Clone, Debug)]
struct Failures {
    count: u32,
    last: Timestamp,
    wait_until: Timestamp,
}

impl Failures {
    /// Where it stands among those that may have to make room: who waits by the end of that, who does not by the last failure.
    fn rank(&self) -> Timestamp {
        self.wait_until.max(self.last)
    }
}

/// How often keys were tried in vain.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BrakeFigures {
    /// Keys that were looked at and are none.
    pub(crate) failures: u64,
    /// Requests turned away without a look at their key.
    pub(crate) throttled: u64,
    /// How often an address, or all together, began to be held up.
    pub(crate) activations: u64,
}

impl AuthThrottle {
    /// How long this address has to wait before this key is looked at; nothing if it need not.
    pub(crate) fn wait(&self, peer: IpAddr, key: &str, now: Timestamp) -> Option<Span> {
        if self.addresses.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let peer = counted_ip(peer, IPV6_PREFIX_DEFAULT);
        let until = self.state.lock().by_address.get(&peer).map(|failures| failures.wait_until)?;
        let wait = until.since(now);
        if wait == Span::ZERO || self.trusted.has(peer, key) {
            return None;
        }
        self.throttled.fetch_add(1, Ordering::Relaxed);
        Some(wait)
    }

    /// Remembers a key that was right.
    pub(crate) fn note_success(&self, peer: IpAddr, key: &str) {
        self.trusted.add(counted_ip(peer, IPV6_PREFIX_DEFAULT), key);
    }

    /// Counts a key that is none.
    pub(crate) fn note_failure(&self, peer: IpAddr, key: &str, now: Timestamp) {
        let peer = counted_ip(peer, IPV6_PREFIX_DEFAULT);
        self.trusted.remove(peer, key);
        self.failures.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state.lock();
        let alarmed = state.note_in_window(now);
        let began = state.note_by_address(peer, now);
        self.addresses.store(state.by_address.len(), Ordering::Relaxed);
        drop(state);
        if alarmed {
            self.activations.fetch_add(1, Ordering::Relaxed);
            self.alarms.raise(None, ALARM_FAILURES, now);
            warn!(
                failures = ALARM_FAILURES,
                "keys are being tried from many addresses: each may try only a few"
            );
        }
        if let Some(failures) = began {
            self.activations.fetch_add(1, Ordering::Relaxed);
            self.alarms.raise(Some(peer), failures, now);
            warn!(address = %peer, "keys are being tried: this address has to wait longer after each wrong one");
        }
    }

    pub(crate) fn figures(&self) -> BrakeFigures {
        let read = |figure: &AtomicU64| figure.load(Ordering::Relaxed);
        BrakeFigures {
            failures: read(&self.failures),
            throttled: read(&self.throttled),
            activations: read(&self.activations),
        }
    }
}

impl State {
    /// Whether an alarm begins with this failure.
    fn note_in_window(&mut self, now: Timestamp) -> bool {
        if now.since(self.window_began) >= ALARM_WINDOW {
            (self.window_began, self.in_window) = (now, 0);
        }
        self.in_window = self.in_window.saturating_add(1);
        if self.in_window < ALARM_FAILURES {
            return false;
        }
        let began = self.alarm_until <= now;
        self.alarm_until = now + ALARM_WINDOW;
        began
    }

    /// How often the address failed, if it begins to be held up with this failure.
    fn note_by_address(&mut self, peer: IpAddr, now: Timestamp) -> Option<u32> {
        let free = if now < self.alarm_until { FREE_IN_ALARM } else { FREE };
        let known = self.by_address.get(&peer).copied();
        match known {
            Some(known) => drop(self.by_wait.remove(&(known.rank(), peer))),
            None if self.by_address.len() >= ADDRESSES_MAX => self.make_room(),
            None => {}
        }
        let fresh = Failures { count: 0, last: now, wait_until: now };
        let mut failures = known.filter(|known| now.since(known.last) < FORGET_AFTER).unwrap_or(fresh);
        failures.count = failures.count.saturating_add(1);
        failures.last = now;
        let beyond = failures.count.checked_sub(free + 1);
        if let Some(beyond) = beyond {
            let doubled = WAIT_FIRST.as_micros().saturating_mul(1 << beyond.min(20));
            failures.wait_until = now + Span::from_micros(doubled).min(WAIT_MAX);
        }
        self.by_address.insert(peer, failures);
        self.by_wait.insert((failures.rank(), peer));
        (beyond == Some(0)).then_some(failures.count)
    }

    /// Drops who was quiet for longest; if all have to wait, whoever has the least time left.
    fn make_room(&mut self) {
        if let Some((_, address)) = self.by_wait.pop_first() {
            self.by_address.remove(&address);
        }
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
        (0..times).for_each(|_| throttle.note_failure(ip(address), WRONG, now));
    }

    #[test]
    fn a_few_mistakes_cost_nothing() {
        let throttle = AuthThrottle::default();
        fail(&throttle, "192.0.2.1", FREE, START);
        assert_eq!(throttle.wait(ip("192.0.2.1"), WRONG, START), None);
        assert_eq!(throttle.figures().activations, 0);
    }

    #[test]
    fn t30_each_further_failure_doubles_the_wait_up_to_a_bound() {
        let throttle = AuthThrottle::default();
        fail(&throttle, "192.0.2.1", FREE, START);
        let mut now = START;
        for expected in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            fail(&throttle, "192.0.2.1", 1, now);
            let wait = throttle.wait(ip("192.0.2.1"), WRONG, now);
            assert_eq!(wait, Some(Span::from_secs(expected)));
            now = now + Span::from_secs(expected);
            assert_eq!(throttle.wait(ip("192.0.2.1"), WRONG, now), None, "then one more is looked at");
        }
        assert_eq!(throttle.figures().activations, 1, "one line in the log, not one for each");
    }

    #[test]
    fn t30_ten_thousand_wrong_keys_of_one_address_are_hardly_looked_at() {
        let throttle = AuthThrottle::default();
        let mut looked_at = 0;
        for millis in 0..10_000 {
            let now = START + Span::from_micros(millis * 1_000);
            if throttle.wait(ip("192.0.2.1"), WRONG, now).is_none() {
                looked_at += 1;
                fail(&throttle, "192.0.2.1", 1, now);
            }
        }
        assert!(looked_at <= FREE + 5, "{looked_at}");
        assert_eq!(throttle.wait(ip("192.0.2.2"), WRONG, START), None, "others are not held up");
        let figures = throttle.figures();
        assert_eq!(figures.failures + figures.throttled, 10_000);
    }

    #[test]
    fn t30_addresses_of_one_64_and_an_address_in_other_clothes_are_one() {
        let throttle = AuthThrottle::default();
        fail(&throttle, "2001:db8::1", FREE + 1, START);
        assert!(throttle.wait(ip("2001:db8::2"), WRONG, START).is_some());
        assert!(throttle.wait(ip("2001:db8:0:1::1"), WRONG, START).is_none());
        fail(&throttle, "192.0.2.1", FREE + 1, START);
        assert!(throttle.wait(ip("::ffff:192.0.2.1"), WRONG, START).is_some());
    }

    #[test]
    fn t30_failures_from_everywhere_leave_each_address_few_and_hold_up_no_other() {
        let throttle = AuthThrottle::default();
        for number in 0..ALARM_FAILURES {
            let address = format!("198.51.{}.{}", number / 256, number % 256);
            fail(&throttle, &address, 1, START);
        }
        assert_eq!(throttle.figures().activations, 1, "the alarm is raised once");
        fail(&throttle, "203.0.113.1", FREE_IN_ALARM + 1, START);
        assert!(throttle.wait(ip("203.0.113.1"), WRONG, START).is_some());
        assert!(throttle.wait(ip("203.0.113.2"), WRONG, START).is_none(), "who has not failed is looked at");
    }

    #[test]
    fn t30_a_right_key_is_looked_at_though_others_from_its_address_fail() {
        let (throttle, gateway) = (AuthThrottle::default(), ip("192.0.2.1"));
        throttle.note_success(gateway, "right");
        fail(&throttle, "192.0.2.1", FREE + 1, START);
        assert!(throttle.wait(gateway, WRONG, START).is_some());
        assert!(throttle.wait(gateway, "right", START).is_none());
        throttle.note_failure(gateway, "right", START);
        assert!(throttle.wait(gateway, "right", START).is_some(), "it was right once, and is no more");
    }

    #[test]
    fn right_keys_are_remembered_within_bounds() {
        let (throttle, gateway) = (AuthThrottle::default(), ip("192.0.2.1"));
        (0..=TRUSTED_MAX).for_each(|number| throttle.note_success(gateway, &number.to_string()));
        assert!(throttle.trusted.known.read().len() <= TRUSTED_MAX);
    }

    #[test]
    fn an_address_that_has_been_quiet_starts_afresh() {
        let throttle = AuthThrottle::default();
        fail(&throttle, "192.0.2.1", FREE + 9, START);
        let later = START + FORGET_AFTER;
        fail(&throttle, "192.0.2.1", 1, later);
        assert_eq!(throttle.wait(ip("192.0.2.1"), WRONG, later), None);
    }

    #[test]
    fn addresses_are_bounded_and_those_that_wait_are_kept() {
        let throttle = AuthThrottle::default();
        fail(&throttle, "203.0.113.1", FREE + 5, START);
        let first = u32::from_be_bytes([10, 0, 0, 0]);
        for number in 0..u32::try_from(ADDRESSES_MAX).unwrap() {
            let address = IpAddr::from((first + number).to_be_bytes());
            throttle.note_failure(address, WRONG, START + Span::from_micros(number.into()));
        }
        assert!(throttle.state.lock().by_address.len() <= ADDRESSES_MAX);
        assert!(throttle.wait(ip("203.0.113.1"), WRONG, START).is_some());
    }
    /// How long failures of so many addresses take that have not failed before.
    fn time(throttle: &AuthThrottle, first: u32, count: u32, now: Timestamp) -> std::time::Duration {
        let started = std::time::Instant::now();
        for number in first..first + count {
            throttle.note_failure(IpAddr::from(number.to_be_bytes()), WRONG, now);
        }
        started.elapsed()
    }

    #[test]
    fn t30_a_new_address_costs_as_much_when_no_place_is_left_as_before() {
        let (throttle, places) = (AuthThrottle::default(), u32::try_from(ADDRESSES_MAX).unwrap());
        let first = u32::from_be_bytes([10, 0, 0, 0]);
        let filling = time(&throttle, first, places, START);
        // The best of some, for others use this machine too. Looking at every address takes hundreds of times as long.
        let rounds = (1..=4).map(|round| time(&throttle, first + round * places, places, START));
        let full = rounds.min().unwrap();
        assert!(full < filling * 20, "{filling:?} while there is room, {full:?} without");
        let state = throttle.state.lock();
        assert_eq!((state.by_address.len(), state.by_wait.len()), (ADDRESSES_MAX, ADDRESSES_MAX));
    }

    #[test]
    fn who_failed_longest_ago_makes_room_first_and_who_waits_makes_it_last() {
        let throttle = AuthThrottle::default();
        let second = |number: u64| START + Span::from_secs(number);
        fail(&throttle, "203.0.113.1", FREE + 5, START);
        fail(&throttle, "203.0.113.2", 1, second(1));
        fail(&throttle, "203.0.113.3", 1, second(2));
        fail(&throttle, "203.0.113.2", 1, second(3));
        let places = u32::try_from(ADDRESSES_MAX).unwrap();
        time(&throttle, u32::from_be_bytes([10, 0, 0, 0]), places - 2, second(4));
        let state = throttle.state.lock();
        let kept = |address: &str| state.by_address.contains_key(&ip(address));
        assert!(kept("203.0.113.1") && kept("203.0.113.2") && !kept("203.0.113.3"));
        let ranks = state.by_address.iter().map(|(address, failures)| (failures.rank(), *address));
        assert_eq!(ranks.collect::<BTreeSet<_>>(), state.by_wait, "both know the same");
    }
}
