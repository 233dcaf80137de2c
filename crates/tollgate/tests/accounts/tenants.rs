//! Users and blocks belong to a tenant or to none (threat 31).

use tollgate::Request;
use tollgate::accounts::{AccountLimits, BlockTarget, Key};
use tollgate::identity::InTenant;

use crate::{admitted, at, by_key, by_user, edit, id, limiter, look, new_key, per_hour};

const TENANTS: [Option<&str>; 3] = [Some("acme"), Some("beta"), None];

fn bob(tenant: Option<&'static str>) -> Request<'static> {
    Request { tenant: tenant.and_then(id), ..by_user("bob") }
}

#[test]
fn quota_applies_in_its_tenant_only() {
    let limiter = limiter("default_limit = 3\ndefault_window = \"1h\"");
    edit(&limiter, |accounts| {
        accounts.put_user(InTenant::new(Some("acme"), "bob"), None, per_hour(7)).unwrap();
        accounts.put_user("bob", None, per_hour(5)).unwrap();
    });
    assert_eq!(TENANTS.map(|tenant| admitted(&limiter, &bob(tenant))), [7, 3, 5]);
    let accounts = limiter.rules().accounts().clone();
    assert_eq!(accounts.tenants_of_user("bob"), ["acme"]);
    assert!(accounts.user(InTenant::new(Some("beta"), "bob")).is_none());
    edit(&limiter, |accounts| accounts.remove_user(InTenant::new(Some("acme"), "bob")));
    let accounts = limiter.rules().accounts().clone();
    assert!(accounts.user("bob").is_some() && accounts.tenants_of_user("bob").is_empty());
}

#[test]
fn tier_of_a_user_applies_in_its_tenant_only() {
    let limiter = limiter(
        "[[rules]]\nname = \"pro\"\nwhen = { tiers = \"pro\" }\nper = \"user\"\nlimits = [{ requests = 3, window = \"1h\" }]",
    );
    edit(&limiter, |accounts| {
        accounts.put_user(InTenant::new(Some("acme"), "bob"), Some("pro"), AccountLimits::default()).unwrap();
    });
    assert_eq!(TENANTS.map(|tenant| look(&limiter, &bob(tenant)).reports.len()), [1, 0, 0]);
}

#[test]
fn blocks_match_inside_their_tenant() {
    let request = |tenant: Option<&'static str>| Request {
        login: id("bob"),
        ip: "192.0.2.7".parse().ok(),
        ..bob(tenant)
    };
    let network = || BlockTarget::Ip("192.0.2.0/24".parse().unwrap());
    for (target, blocked) in [
        (InTenant::new(Some("acme"), BlockTarget::User("bob")), [true, false, false]),
        (InTenant::from(BlockTarget::User("bob")), [false, false, true]),
        (InTenant::new(Some("acme"), BlockTarget::Login("bob")), [true, false, false]),
        (InTenant::from(BlockTarget::Login("bob")), [false, false, true]),
        (InTenant::new(Some("acme"), network()), [true, false, false]),
        // An attacker's address is blocked everywhere.
        (InTenant::from(network()), [true, true, true]),
        (InTenant::from(BlockTarget::Tenant("acme")), [true, false, false]),
    ] {
        let limiter = limiter("default_limit = 3\ndefault_window = \"1h\"");
        edit(&limiter, |accounts| accounts.put_block(target, "abuse", None));
        let found = TENANTS.map(|tenant| look(&limiter, &request(tenant)).block().is_some());
        assert_eq!(found, blocked, "{target:?}");
        edit(&limiter, |accounts| accounts.remove_block(target));
        assert!(TENANTS.into_iter().all(|tenant| look(&limiter, &request(tenant)).block().is_none()));
    }
}

#[test]
fn key_blocks_apply_whatever_the_tenant() {
    let limiter = limiter("default_limit = 3\ndefault_window = \"1h\"");
    edit(&limiter, |accounts| {
        accounts.put_key(&new_key("k1")).unwrap();
        accounts.put_block(BlockTarget::ApiKey("k1"), "leaked", None);
    });
    for tenant in TENANTS {
        let request = Request { tenant: tenant.and_then(id), ..by_key("api_key:k1") };
        assert!(look(&limiter, &request).block().is_some(), "{tenant:?}");
    }
    assert!(look(&limiter, &at("/")).block().is_none());
}

#[test]
fn key_limits_are_counted_per_tenant() {
    let limiter = limiter("default_limit = 3\ndefault_window = \"1h\"");
    edit(&limiter, |accounts| {
        accounts.put_key(&Key { limits: per_hour(5), ..new_key("k1") }).unwrap();
    });
    let by_tenant = TENANTS
        .map(|tenant| admitted(&limiter, &Request { tenant: tenant.and_then(id), ..by_key("api_key:k1") }));
    assert_eq!(by_tenant, [5, 5, 5]);
}
