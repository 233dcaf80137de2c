//! Completion of requests by the accounts of key and user.

use tollgate::accounts::{AccountLimits, Key};
use tollgate::counters::conformance::block_on;
use tollgate::identity::{InTenant, Scratch};
use tollgate::rules::RuleSettings;
use tollgate::{ApiKey, Client, Limiter, MemoryCounters, Request, RuleSet};

use crate::{NOW, admitted, at, by_key, by_user, edit, id, known, limiter, look, new_key, per_hour};

const BY_TIER: &str = r#"
    default_limit = 100
    [[tiers]]
    name = "free"
    limit = 1
    window = "1h"
    [[tiers]]
    name = "pro"
    limit = 2
    window = "1h"
    [[tiers]]
    name = "vip"
    limit = 3
    window = "1h"
"#;

#[test]
fn tier_comes_from_request_then_key_then_user() {
    let limiter = limiter(BY_TIER);
    edit(&limiter, |editor| {
        editor.put_user("alice", Some("free"), AccountLimits::default()).unwrap();
        let key = Key { user: Some("alice"), tier: Some("pro"), ..new_key("k1") };
        editor.put_key(&key).unwrap();
        editor.put_key(&Key { user: Some("alice"), ..new_key("k2") }).unwrap();
    });
    let rule = |request: &Request<'_>| look(&limiter, request).rule_name().map(str::to_owned);
    assert_eq!(rule(&by_user("alice")).as_deref(), Some("tier:free"));
    assert_eq!(rule(&by_key("api_key:k2")).as_deref(), Some("tier:free"), "the user's, through the key");
    assert_eq!(rule(&by_key("api_key:k1")).as_deref(), Some("tier:pro"));
    let said = Request { tier: id("vip"), ..by_key("api_key:k1") };
    assert_eq!(rule(&said).as_deref(), Some("tier:vip"));
    assert_eq!(rule(&by_user("bob")).as_deref(), Some("default"));
}

#[test]
fn key_supplies_missing_user_and_tenant() {
    let limiter = limiter("");
    edit(&limiter, |editor| {
        let key = Key { user: Some("alice"), tenant: Some("acme"), ..new_key("k1") };
        editor.put_key(&key).unwrap();
    });
    let rules = limiter.rules();
    let request = by_key("api_key:k1");
    let mut scratch = Scratch::default();
    let resolved = rules.resolve(&request, &mut scratch);
    assert_eq!((resolved.user, resolved.tenant, resolved.tier), (id("alice"), id("acme"), None));
    assert_eq!((resolved.request.user, resolved.request.tenant), (id("alice"), id("acme")));
    assert_eq!(resolved.request.client(), Some(Client::User(id("alice").unwrap())));
    let said = Request { user: id("bob"), tenant: id("other"), ..by_key("api_key:k1") };
    let mut scratch = Scratch::default();
    let resolved = rules.resolve(&said, &mut scratch);
    assert_eq!((resolved.user, resolved.tenant), (None, None), "nothing was added");
    assert_eq!((resolved.request.user, resolved.request.tenant), (id("bob"), id("other")));
}

#[test]
fn user_shares_a_counter_with_its_key() {
    let limiter = limiter("default_limit = 5\ndefault_window = 60");
    edit(&limiter, |editor| {
        editor.put_key(&Key { user: Some("alice"), ..new_key("k1") }).unwrap();
    });
    assert!(limiter.check_now(&by_key("api_key:k1"), NOW).admits());
    assert_eq!(admitted(&limiter, &by_user("alice")), 4);
}

#[test]
fn opaque_key_is_not_the_key_with_that_id() {
    for rules in [
        "default_limit = 5\ndefault_window = 60",
        "[[rules]]\nname = \"a\"\nper = [\"api_key\"]\nlimits = [{ requests = 5, window = \"1m\" }]",
    ] {
        let limiter = limiter(rules);
        edit(&limiter, |editor| editor.put_key(&new_key("k1")).unwrap());
        let opaque = Request { api_key: ApiKey::parse("k1").ok(), ..at("/") };
        assert_eq!(admitted(&limiter, &opaque), 5);
        assert_eq!(admitted(&limiter, &by_key("api_key:k1")), 5, "its counter is its own");
        let snapshot = limiter.rules();
        let key = ApiKey::known(snapshot.accounts().key("k1").unwrap());
        assert_eq!(Some(key), known("api_key:k1"));
        assert_ne!(Some(key), ApiKey::parse("k1").ok());
    }
}

#[test]
fn opaque_key_gets_no_account() {
    let limiter = limiter("");
    edit(&limiter, |editor| {
        let key = Key { user: Some("alice"), limits: per_hour(1_000), ..new_key("k1") };
        editor.put_key(&key).unwrap();
    });
    let opaque = Request { api_key: ApiKey::parse("k1").ok(), ..at("/") };
    let rules = limiter.rules();
    assert_eq!(rules.resolve(&opaque, &mut Scratch::default()).request.user, None);
    assert_eq!(look(&limiter, &opaque).binding().unwrap().requests, 100);
}

#[test]
fn known_key_prints_its_id() {
    let client = Client::parse("api_key:k1").unwrap();
    assert_eq!(client.to_string(), "api_key:k1");
    let opaque = Client::ApiKey(ApiKey::parse("k1").unwrap());
    assert!(opaque.to_string().starts_with("api_key:#"));
    assert_eq!(Client::parse(&opaque.to_string()), None, "a hash names nobody");
    assert_eq!(Client::parse("api_key:"), None);
}

#[test]
fn verifiers_are_not_printed() {
    let limiter = limiter("");
    edit(&limiter, |editor| {
        editor.put_key(&Key::new("k1", [0xab; 32])).unwrap();
        assert!(!format!("{editor:?} {:?}", Key::new("k1", [0xab; 32])).contains("171"));
    });
    let rules = limiter.rules();
    let key = rules.accounts().key("k1").unwrap();
    let shown = format!("{key:?} {:?} {:?}", rules.accounts(), ApiKey::known(key));
    assert!(!shown.contains("171") && !shown.contains("ab, "), "{shown}");
}

#[test]
fn explanation_shows_resolved_values() {
    let limiter = limiter(BY_TIER);
    edit(&limiter, |editor| {
        let key = Key { user: Some("alice"), tenant: Some("acme"), ..new_key("k1") };
        editor.put_key(&key).unwrap();
        let alice = InTenant::new(Some("acme"), "alice");
        editor.put_user(alice, Some("pro"), per_hour(7)).unwrap();
    });
    let request = by_key("api_key:k1");
    let explanation = block_on(limiter.snapshot().explain(&request, NOW));
    let mut scratch = Scratch::default();
    let resolved = explanation.resolved(&request, &mut scratch);
    assert_eq!((resolved.user, resolved.tenant, resolved.tier), (id("alice"), id("acme"), id("pro")));
    assert_eq!(explanation.override_source(&request), Some("@quota"));
    let reasons: Vec<(String, bool)> =
        explanation.rules(&request).iter().map(|rule| (rule.rule.name.to_string(), rule.matched)).collect();
    let expected = [("tier:free", false), ("tier:pro", true), ("tier:vip", false), ("default", true)];
    assert_eq!(reasons, expected.map(|(name, matched)| (name.to_owned(), matched)));
}

#[test]
fn replacing_rules_keeps_accounts() {
    let limiter = limiter("");
    edit(&limiter, |editor| editor.put_user("alice", None, per_hour(3)).unwrap());
    limiter.replace_rules(tollgate::RuleSet::from_toml("default_limit = 1\ndefault_window = 60").unwrap());
    limiter.update_overrides(Clone::clone);
    limiter.set_seed(tollgate::Seed([9; 16]));
    assert_eq!(limiter.rules().accounts().users(), 1);
    assert_eq!(admitted(&limiter, &by_user("alice")), 3);
}

#[test]
fn rules_overrides_and_accounts_change_atomically() {
    let limiter = limiter("");
    let accounts = crate::edited(&tollgate::Accounts::default(), |editor| {
        editor.put_user("alice", None, per_hour(3)).unwrap();
    });
    let (accounts, seed) = (std::sync::Arc::new(accounts), limiter.seed());
    let rules = tollgate::RuleSet::from_toml("default_limit = 1\ndefault_window = 60").unwrap();
    limiter.update_rules(|current| {
        rules.with_overrides(std::sync::Arc::clone(current.overrides())).with_accounts(accounts.clone())
    });
    assert!(limiter.seed() == seed, "what was counted is found again");
    assert_eq!(admitted(&limiter, &by_user("alice")), 3);
    assert_eq!(admitted(&limiter, &by_user("bob")), 1);
}

#[test]
fn requests_without_a_tier_get_the_default_or_anonymous() {
    let text = format!("{BY_TIER}[[tiers]]\nname = \"anonymous\"\nlimit = 9\nwindow = \"1h\"");
    let rules = RuleSet::from_toml(&text).unwrap();
    let settings = RuleSettings { default_tier: Some("pro".into()), ..RuleSettings::default() };
    let rule_in = |rules: &RuleSet, request: &Request<'_>| {
        let limiter = Limiter::new(rules.clone(), MemoryCounters::default());
        edit(&limiter, |editor| editor.put_user("alice", Some("free"), AccountLimits::default()).unwrap());
        look(&limiter, request).rule_name().map(str::to_owned)
    };
    let anonymous = Request { ip: "192.0.2.1".parse().ok(), ..at("/") };
    let with_default = rules.clone().with_settings(settings);
    for (request, without, with) in [
        (by_user("alice"), "tier:free", "tier:free"),
        (by_user("bob"), "default", "tier:pro"),
        (by_key("api_key:k1"), "default", "tier:pro"),
        (Request { tier: id("vip"), ..by_user("bob") }, "tier:vip", "tier:vip"),
        (anonymous.clone(), "tier:anonymous", "tier:anonymous"),
        (Request { tier: id("vip"), ..anonymous }, "tier:vip", "tier:vip"),
    ] {
        assert_eq!(rule_in(&rules, &request).as_deref(), Some(without), "{request:?}");
        assert_eq!(rule_in(&with_default, &request).as_deref(), Some(with), "{request:?}");
    }
}
