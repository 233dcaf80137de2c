//! Login names and unverified API keys, which anyone can send, are limited together with the address (threats 66 and 67).

use tollgate::counters::conformance::block_on;
use tollgate::decision::{Answer, Refusal};
use tollgate::{ApiKey, Decision, Endpoint, Id, Limiter, MemoryCounters, Request, Span};

use super::{NOW, id, limiter, look};

const THREE: &str = "default_limit = 3\ndefault_window = \"1h\"\n";

fn attempt<'a>(login: &'a str, address: &str) -> Request<'a> {
    let ip = address.parse().ok();
    Request { login: id(login), ip, ..Request::new(Endpoint::parse("/login").unwrap()) }
}

fn with_key<'a>(key: &'a str, address: &str) -> Request<'a> {
    let api_key = ApiKey::parse(key).ok();
    Request { api_key, unverified_key: true, login: None, ..attempt("", address) }
}

fn admits(limiter: &Limiter<MemoryCounters>, request: &Request<'_>) -> bool {
    limiter.check_now(request, NOW).admits()
}

fn remaining(decision: &Decision) -> Vec<(u32, bool)> {
    decision.reports.iter().map(|report| (report.remaining(), report.by_address)).collect()
}

#[test]
fn login_and_address_are_limited_together() {
    let limiter = limiter(THREE);
    for name in ["ann", "bob", "cid"] {
        assert!(admits(&limiter, &attempt(name, "192.0.2.1")), "{name}");
    }
    assert!(!admits(&limiter, &attempt("dan", "192.0.2.1")), "many names from one address");
    assert!(admits(&limiter, &attempt("dan", "192.0.2.2")), "the refusal has charged nothing");
    for last in 3..=4 {
        assert!(admits(&limiter, &attempt("dan", &format!("192.0.2.{last}"))));
    }
    assert!(!admits(&limiter, &attempt("dan", "192.0.2.5")), "one name from many addresses");
    let other_pages = Request { login: None, ..attempt("", "192.0.2.1") };
    assert!(!admits(&limiter, &other_pages), "the counter of the address is that of its other requests");
}

#[test]
fn explanation_shows_login_and_address() {
    let limiter = limiter(THREE);
    assert!(admits(&limiter, &attempt("ann", "192.0.2.1")));
    assert!(admits(&limiter, &attempt("bob", "192.0.2.1")));
    let seen = look(&limiter, &attempt("ann", "192.0.2.1"));
    assert_eq!(remaining(&seen), [(2, false), (1, true)]);
    assert_eq!(seen.binding().unwrap().remaining(), 1, "the lower one binds");
    let explained = block_on(limiter.snapshot().explain(&attempt("ann", "192.0.2.1"), NOW));
    assert_eq!(explained.rules(&attempt("ann", "192.0.2.1"))[0].reports.len(), 2);
}

#[test]
fn unverified_keys_cannot_outrun_their_address() {
    let limiter = limiter(THREE);
    let keys: Vec<String> = (0..10).map(|number| format!("guess-{number}")).collect();
    assert_eq!(keys.iter().filter(|key| admits(&limiter, &with_key(key, "192.0.2.1"))).count(), 3);
    let vouched = |key| Request { unverified_key: false, ..with_key(key, "192.0.2.1") };
    assert!(keys.iter().all(|key| admits(&limiter, &vouched(key))), "a caller vouches for these");
}

#[test]
fn verified_clients_are_not_counted_by_address() {
    let limiter = limiter(THREE);
    for number in 0..10 {
        let user = format!("user-{number}");
        assert!(admits(&limiter, &Request { user: id(&user), ..attempt("same", "192.0.2.1") }));
    }
}

#[test]
fn unverified_key_stays_in_the_anonymous_tier() {
    let tiers = "[[tiers]]\nname = \"anonymous\"\nlimit = 1\nwindow = \"1h\"\n\
                 [[tiers]]\nname = \"free\"\nlimit = 9\nwindow = \"1h\"\n";
    let rules = tollgate::RuleSet::from_toml(tiers).unwrap();
    let settings =
        tollgate::rules::RuleSettings { default_tier: Some("free".into()), ..rules.settings().clone() };
    let limiter = Limiter::new(rules.with_settings(settings), MemoryCounters::default());
    let limit = |request: &Request<'_>| look(&limiter, request).binding().unwrap().requests;
    assert_eq!(limit(&with_key("guess", "192.0.2.1")), 1);
    assert_eq!(limit(&Request { unverified_key: false, ..with_key("guess", "192.0.2.1") }), 9);
}

#[test]
fn attacker_puts_its_address_in_cooldown_not_the_account() {
    let limiter = limiter(&format!(
        "{THREE}[progressive_penalties]\nenabled = true\nviolation_threshold = 1\nbase_cooldown = \"2h\"\n\
         max_cooldown = \"2h\""
    ));
    for _ in 0..9 {
        limiter.check_now(&attempt("victim", "192.0.2.1"), NOW);
    }
    let later = NOW + Span::from_secs(3_600);
    let answer = |address: &str| limiter.check_now(&attempt("victim", address), later).answer;
    assert!(matches!(answer("192.0.2.1"), Answer::Refuse { reason: Refusal::Cooldown, .. }));
    assert!(matches!(answer("192.0.2.2"), Answer::Admit { .. }), "the account itself");
}

#[test]
fn reset_clears_login_and_address() {
    let limiter = limiter(THREE);
    let request = attempt("ann", "192.0.2.1");
    while admits(&limiter, &request) {}
    block_on(limiter.snapshot().reset(&request)).unwrap();
    assert_eq!(remaining(&look(&limiter, &request)), [(3, false), (3, true)]);
}

#[test]
fn tenants_qualify_the_address_too() {
    let limiter = limiter(THREE);
    let of = |tenant: &'static str| Request { tenant: Id::parse(tenant).ok(), ..attempt("ann", "192.0.2.1") };
    while admits(&limiter, &of("acme")) {}
    assert!(admits(&limiter, &of("globex")));
}
