use std::net::Ipv6Addr;

use tollgate::Span;
use tollgate_stores::counters::Counters;

use super::*;
use crate::app::{App, Secrets};
use crate::auth::api_keys::KeySecret;
use crate::auth::scope::Scopes;
use crate::runtime::clock::Clock;

const START: Timestamp = Timestamp::from_secs(1_700_000_000);

fn callers(section: &str) -> CallerLimiter {
    CallerLimiter::new(&settings(section), None).unwrap()
}

fn settings(section: &str) -> Settings {
    Settings::from_toml(&format!("[callers]\n{section}")).unwrap()
}

fn anonymous() -> Caller {
    Caller::anonymous()
}

fn named(name: &str, scopes: Scopes) -> Caller {
    Caller::named(name, scopes)
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// How many of these requests pass.
fn passing(callers: &CallerLimiter, caller: &Caller, peer: &str, requests: u32) -> usize {
    (0..requests).filter(|_| callers.charge(caller, ip(peer), 1, START).is_ok()).count()
}

#[test]
fn batch_is_charged_by_its_checks_all_or_nothing() {
    let callers = callers("limit = 10\nwindow = \"10s\"");
    let charge = |cost, now| callers.charge(&anonymous(), ip("192.0.2.1"), cost, now);
    let limited = |cost| matches!(charge(cost, START), Err(AuthError::CallerLimited { .. }));
    assert_eq!(charge(6, START), Ok(()));
    assert!(limited(5));
    assert_eq!(charge(4, START), Ok(()), "none of the five was counted");
    assert!(limited(0), "peek: nothing is left");
    let too_large = AuthError::BatchTooLarge { checks: 11, most: 10 };
    assert_eq!(charge(11, START), Err(too_large), "waiting would not help");
}

#[test]
fn caller_limit_retry_after_is_exact() {
    let callers = callers("limit = 10\nwindow = \"10s\"");
    let charge = |cost, now| callers.charge(&anonymous(), ip("192.0.2.1"), cost, now);
    charge(10, START).unwrap();
    assert_eq!(charge(4, START), Err(AuthError::CallerLimited { wait: Span::from_secs(4) }));
    assert!(charge(4, START + Span::from_micros(3_999_999)).is_err());
    assert!(charge(4, START + Span::from_micros(4_000_000)).is_ok());
}

#[test]
fn longest_wait_of_several_caller_limits_is_reported() {
    let callers =
        callers("limits = [{ requests = 10, window = \"1s\" }, { requests = 12, window = \"1h\" }]");
    let charge = |cost, now| callers.charge(&anonymous(), ip("192.0.2.1"), cost, now);
    charge(10, START).unwrap();
    let later = START + Span::from_secs(1);
    let limited = charge(8, later);
    assert!(
        matches!(limited, Err(AuthError::CallerLimited { wait }) if wait > Span::from_secs(60)),
        "{limited:?}"
    );
    assert!(charge(2, later).is_ok(), "the shorter limit was not charged for the eight");
    assert!(matches!(charge(11, START), Err(AuthError::BatchTooLarge { .. })));
}

#[test]
fn callers_are_counted_by_key_else_by_address() {
    let callers = callers("limit = 3\nwindow = \"1h\"");
    let check = Scopes::from(Scope::Check);
    assert_eq!(passing(&callers, &anonymous(), "192.0.2.1", 5), 3);
    assert_eq!(passing(&callers, &anonymous(), "::ffff:192.0.2.1", 5), 0, "the same address");
    assert_eq!(passing(&callers, &named("gateway", check), "192.0.2.1", 5), 3, "a key is not an address");
    assert_eq!(passing(&callers, &named("gateway", check), "192.0.2.2", 5), 0, "from any address");
    assert_eq!(passing(&callers, &named("key:abc", check), "192.0.2.1", 5), 3);
    assert_eq!(passing(&callers, &anonymous(), "2001:db8::1", 5), 3);
    assert_eq!(passing(&callers, &anonymous(), "2001:db8::2", 5), 0, "one host has a whole /64");
    assert_eq!(passing(&callers, &anonymous(), "2001:db8:0:1::1", 5), 3);
}

#[test]
fn unbound_admin_is_never_caller_limited() {
    let callers = callers("limit = 3\nwindow = \"1h\"");
    let operator = named("admin", Scopes::ADMIN);
    assert_eq!(passing(&callers, &operator, "192.0.2.1", 100), 100);
    assert!(callers.charge(&operator, ip("192.0.2.1"), 1_000, START).is_ok());
    let mut bound = named("key:a", Scopes::ADMIN);
    bound.tenant = Some("acme".into());
    assert_eq!(passing(&callers, &bound, "192.0.2.1", 100), 3);
}

#[test]
fn usage_survives_changed_caller_limits() {
    let before = callers("limit = 10\nwindow = \"1h\"");
    assert_eq!(passing(&before, &anonymous(), "192.0.2.1", 8), 8);
    let wider = CallerLimiter::new(&settings("limit = 12\nwindow = \"1h\""), Some(&before)).unwrap();
    assert_eq!(passing(&wider, &anonymous(), "192.0.2.1", 10), 4);
    let off = Settings::from_toml("default_limit = 1").unwrap();
    assert!(CallerLimiter::new(&off, Some(&wider)).is_none());
}

#[test]
fn usage_outlives_a_reload_that_lowers_the_limit() {
    let counters = Counters::Memory(MemoryCounters::default());
    let secrets = Secrets { admin_key: "admin", key_secret: KeySecret::new("secret") };
    let high = settings("limit = 1000\nwindow = \"1h\"");
    let app =
        App::new(&high, counters, Seed([1; 16]), secrets, Clock::start(), Arc::default(), Arc::default());
    let passing = |requests, now| {
        let live = app.live();
        let callers = live.callers.as_ref().unwrap();
        (0..requests).filter(|_| callers.charge(&anonymous(), ip("192.0.2.1"), 1, now).is_ok()).count()
    };
    assert_eq!(passing(10, START), 10);
    app.apply(&settings("limit = 10\nwindow = \"1h\"")).unwrap();
    assert_eq!(passing(1, START), 0);
    assert_eq!(passing(10, START + Span::from_secs(120)), 0, "one per six minutes now");
    assert_eq!(passing(10, START + Span::from_secs(360)), 1);
}

#[test]
fn flood_of_addresses_evicts_no_caller() {
    let callers = callers("limit = 3\nwindow = \"1h\"");
    let gateway = named("gateway", Scopes::from(Scope::Check));
    assert_eq!(passing(&callers, &anonymous(), "192.0.2.1", 5), 3);
    let network = u128::from(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0));
    for number in 0..200_000_u128 {
        let _ = callers.charge(&anonymous(), Ipv6Addr::from(network + (number << 64)).into(), 1, START);
    }
    let counters = &callers.usage.counters;
    assert!(counters.len() <= CALLERS_MAX.get() && counters.bytes() < 8 << 20, "{}", counters.bytes());
    assert_eq!(passing(&callers, &anonymous(), "192.0.2.1", 5), 0, "still at its limit");
    assert_eq!(passing(&callers, &gateway, "192.0.2.1", 5), 3, "a key has its own counter");
}
