//! Blocks are checked before all rules.

use tollgate::accounts::{BlockKind, BlockTarget, Key};
use tollgate::counters::conformance::block_on;
use tollgate::decision::Answer;
use tollgate::identity::{InTenant, Scratch};
use tollgate::{ApiKey, Limiter, MemoryCounters, Request, Span, Timestamp};

use crate::{NOW, admitted, at, by_key, by_user, edit, id, limiter, look, new_key, per_hour};

fn net(text: &str) -> BlockTarget<'static> {
    let parsed = text.parse().or_else(|_| text.parse().map(|ip: std::net::IpAddr| ip.into()));
    BlockTarget::Ip(parsed.unwrap())
}

fn blocked(limiter: &Limiter<MemoryCounters>, request: &Request<'_>) -> Option<BlockKind> {
    let decision = look(limiter, request);
    assert_eq!(decision.answer == Answer::Block, decision.block().is_some());
    decision.block().map(|block| block.kind)
}

fn from_ip(ip: &str) -> Request<'static> {
    Request { ip: Some(ip.parse().unwrap()), ..at("/") }
}

#[test]
fn each_kind_of_block_matches_only_its_kind() {
    let name = "alice";
    let requests = [
        (BlockTarget::User(name), by_user(name)),
        (BlockTarget::ApiKey(name), by_key("api_key:alice")),
        (BlockTarget::Tenant(name), Request { tenant: id(name), ..at("/") }),
        (BlockTarget::Login(name), Request { login: id(name), ..at("/") }),
        (net("192.0.2.1"), from_ip("192.0.2.1")),
    ];
    for (who, _) in &requests {
        let limiter = limiter("");
        edit(&limiter, |editor| editor.put_block(*who, "abuse", None));
        for (other, request) in &requests {
            assert_eq!(blocked(&limiter, request), (who == other).then(|| who.kind()), "{who:?} {other:?}");
        }
        edit(&limiter, |editor| editor.remove_block(*who));
        assert!(limiter.rules().accounts().is_empty());
        assert!(requests.iter().all(|(_, request)| blocked(&limiter, request).is_none()));
    }
}

#[test]
fn opaque_key_is_not_blocked_by_an_id() {
    let limiter = limiter("");
    edit(&limiter, |editor| editor.put_block(BlockTarget::ApiKey("k1"), "", None));
    assert_eq!(blocked(&limiter, &Request { api_key: ApiKey::parse("k1").ok(), ..at("/") }), None);
}

#[test]
fn user_and_tenant_blocks_apply_to_their_keys() {
    let limiter = limiter("");
    edit(&limiter, |editor| {
        let key = Key { user: Some("alice"), tenant: Some("acme"), ..new_key("k1") };
        editor.put_key(&key).unwrap();
        editor.put_block(BlockTarget::Tenant("acme"), "unpaid", None);
    });
    assert_eq!(blocked(&limiter, &by_key("api_key:k1")), Some(BlockKind::Tenant));
    let alice = InTenant::new(Some("acme"), BlockTarget::User("alice"));
    edit(&limiter, |editor| editor.put_block(alice, "abuse", None));
    assert_eq!(blocked(&limiter, &by_key("api_key:k1")), Some(BlockKind::User));
}

#[test]
fn networks_match_their_addresses() {
    let limiter = limiter("");
    edit(&limiter, |editor| {
        for text in
            ["198.51.100.0/24", "203.0.113.7", "2001:db8:7::/48", "2001:db8::1", "::ffff:10.0.0.0/104"]
        {
            editor.put_block(net(text), text, None);
        }
    });
    for (ip, reason) in [
        ("198.51.100.0", Some("198.51.100.0/24")),
        ("198.51.100.255", Some("198.51.100.0/24")),
        ("198.51.101.0", None),
        ("::ffff:198.51.100.9", Some("198.51.100.0/24")),
        ("203.0.113.7", Some("203.0.113.7")),
        ("203.0.113.8", None),
        ("2001:db8:7::", Some("2001:db8:7::/48")),
        ("2001:db8:7:ffff:ffff:ffff:ffff:ffff", Some("2001:db8:7::/48")),
        ("2001:db8:8::", None),
        ("2001:db8::1", Some("2001:db8::1")),
        ("2001:db8::2", None),
        ("10.1.2.3", Some("::ffff:10.0.0.0/104")),
        ("::10.1.2.3", None),
    ] {
        let decision = look(&limiter, &from_ip(ip));
        assert_eq!(decision.block().map(|block| block.reason), reason, "{ip}");
    }
}

#[test]
fn whole_address_families_can_be_blocked() {
    let limiter = limiter("");
    edit(&limiter, |editor| editor.put_block(net("0.0.0.0/0"), "", None));
    assert_eq!(blocked(&limiter, &from_ip("8.8.8.8")), Some(BlockKind::Ip));
    assert_eq!(blocked(&limiter, &from_ip("2001:db8::1")), None);
}

#[test]
fn host_bits_are_ignored() {
    let limiter = limiter("");
    edit(&limiter, |editor| editor.put_block(net("198.51.100.77/24"), "", None));
    assert_eq!(blocked(&limiter, &from_ip("198.51.100.1")), Some(BlockKind::Ip));
    edit(&limiter, |editor| editor.remove_block(net("198.51.100.1/24")));
    assert_eq!(limiter.rules().accounts().blocks(), 0);
}

#[test]
fn block_expires_at_its_time() {
    let limiter = limiter("");
    let until = NOW + Span::from_secs(60);
    edit(&limiter, |editor| editor.put_block(BlockTarget::User("alice"), "abuse", Some(until)));
    let request = by_user("alice");
    let last = limiter.check_now(&request, until - Span::from_micros(1));
    assert_eq!(last.answer, Answer::Block);
    let block = last.block().unwrap();
    assert_eq!((block.kind, block.reason, block.until), (BlockKind::User, "abuse", Some(until)));
    assert!(limiter.check_now(&request, until).admits());
    let accounts = limiter.rules();
    assert!(accounts.accounts().block(BlockTarget::User("alice"), NOW).is_some());
    assert!(accounts.accounts().block(BlockTarget::User("alice"), until).is_none());
}

#[test]
fn expired_block_does_not_hide_another() {
    let limiter = limiter("");
    edit(&limiter, |editor| {
        editor.put_block(BlockTarget::User("alice"), "past", Some(Timestamp::from_secs(1)));
        editor.put_block(net("192.0.2.0/24"), "past", Some(NOW));
        editor.put_block(net("192.0.2.0/28"), "present", None);
    });
    let request = Request { user: id("alice"), ..from_ip("192.0.2.3") };
    assert_eq!(look(&limiter, &request).block().map(|block| block.reason), Some("present"));
}

#[test]
fn block_beats_allow_rules_and_overrides() {
    let limiter = limiter("[[exemptions]]\ntype = \"user_id\"\nvalue = \"alice\"");
    assert!(limiter.check_now(&by_user("alice"), NOW).admits());
    edit(&limiter, |editor| editor.put_block(BlockTarget::User("alice"), "abuse", None));
    assert_eq!(blocked(&limiter, &by_user("alice")), Some(BlockKind::User));
    let rules = tollgate::RuleSet::from_toml("").unwrap();
    let own = &rules.rules()[0].limits[0].limit;
    let request = Request { limit_override: Some(own), ..by_user("alice") };
    assert_eq!(blocked(&limiter, &request), Some(BlockKind::User));
}

#[test]
fn blocked_requests_are_not_charged() {
    let limiter = limiter("default_limit = 5\ndefault_window = 60");
    edit(&limiter, |editor| editor.put_block(BlockTarget::User("alice"), "abuse", None));
    (0..10).for_each(|_| assert!(!limiter.check_now(&by_user("alice"), NOW).admits()));
    assert_eq!(limiter.counters().len(), 0);
    edit(&limiter, |editor| editor.remove_block(BlockTarget::User("alice")));
    assert_eq!(admitted(&limiter, &by_user("alice")), 5);
}

#[test]
fn explanation_names_the_block() {
    let limiter = limiter("");
    edit(&limiter, |editor| editor.put_block(BlockTarget::User("alice"), "abuse", None));
    let request = by_user("alice");
    let explanation = block_on(limiter.snapshot().explain(&request, NOW));
    assert_eq!(explanation.decision.block().map(|block| block.reason), Some("abuse"));
    let rules = explanation.rules(&request);
    assert_eq!(rules[0].reason, "not evaluated: the user is blocked");
    assert!(!rules[0].matched);
}

#[test]
fn unknown_ids_find_nothing() {
    let limiter = limiter("default_limit = 5\ndefault_window = 60");
    edit(&limiter, |editor| {
        editor.put_user("alice", Some("pro"), crate::per_hour(1)).unwrap();
        editor.put_key(&new_key("k1")).unwrap();
        editor.put_block(BlockTarget::User("mallory"), "", None);
    });
    let rules = limiter.rules();
    for number in 0..10_000_u64 {
        let name = format!("{:x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        assert!(rules.accounts().user(&name).is_none() && rules.accounts().key(&name).is_none());
        let client = format!("api_key:{name}");
        let request = Request { user: id(&name), api_key: crate::known(&client), ..at("/") };
        let mut scratch = Scratch::default();
        let resolved = rules.resolve(&request, &mut scratch);
        assert_eq!((resolved.tier, resolved.tenant), (None, None));
        let decision = limiter.check_now(&request, NOW);
        assert!(decision.admits() && decision.binding().unwrap().requests == 5);
    }
    let accounts = rules.accounts();
    assert_eq!((accounts.users(), accounts.keys(), accounts.blocks()), (1, 1, 1));
}

#[test]
fn enabled_false_admits_everything() {
    let limiter = limiter("enabled = false\ndefault_limit = 0\n[[rules]]\nname = \"b\"\naction = \"block\"");
    edit(&limiter, |editor| {
        editor.put_user("alice", None, per_hour(0)).unwrap();
        editor.put_block(BlockTarget::User("alice"), "", None);
    });
    let request = by_user("alice");
    assert!(look(&limiter, &request).reports.is_empty());
    assert!(limiter.check_now(&request, NOW).admits());
    let explanation = block_on(limiter.snapshot().explain(&request, NOW));
    let rules = explanation.rules(&request);
    assert!(rules.iter().all(|rule| rule.reason.contains("enabled = false")), "{rules:?}");
}
