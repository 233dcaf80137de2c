//! Identities live inside their tenant (threat 31).

use tollgate::counters::CounterAdmin;
use tollgate::counters::conformance::block_on;
use tollgate::identity::InTenant;
use tollgate::inspect::EndpointScope;
use tollgate::rules::overrides::Override;
use tollgate::{Algorithm, ApiKey, Endpoint, Id, Limit, Request, Span, Window};

use crate::{NOW, admitted, id, limiter, look};

/// Rules that count by identities.
const IDENTITIES: [&str; 7] = [
    "\"user\"",
    "\"client\"",
    "\"ip\"",
    "\"api_key\"",
    "\"login\"",
    "\"descriptor:device\"",
    "[\"user\", \"endpoint\", \"method\"]",
];

fn rule(per: &str, more: &str) -> String {
    format!("[[rules]]\nname = \"r\"\nper = {per}\n{more}\nlimits = [{{ requests = 3, window = \"1h\" }}]")
}

/// A request with every identity, of a tenant or of none.
fn of_tenant<'a>(tenant: Option<&'a str>, descriptors: &'a [(Id<'a>, Id<'a>)]) -> Request<'a> {
    Request {
        tenant: tenant.and_then(id),
        user: id("bob"),
        login: id("bob"),
        api_key: ApiKey::parse("opaque").ok(),
        ip: "192.0.2.7".parse().ok(),
        method: tollgate::Method::parse("GET").ok(),
        descriptors,
        ..Request::new(Endpoint::parse("/search").unwrap())
    }
}

const TENANTS: [Option<&str>; 3] = [Some("acme"), Some("beta"), None];

#[test]
fn tenants_never_share_a_counter() {
    let device = [(id("device").unwrap(), id("d1").unwrap())];
    for per in IDENTITIES {
        let limiter = limiter(&rule(per, ""));
        for tenant in TENANTS {
            assert_eq!(admitted(&limiter, &of_tenant(tenant, &device)), 3, "{per} {tenant:?}");
        }
    }
}

#[test]
fn across_tenants_shares_a_counter() {
    let device = [(id("device").unwrap(), id("d1").unwrap())];
    for per in IDENTITIES {
        let limiter = limiter(&rule(per, "across_tenants = true"));
        let admitted = TENANTS.map(|tenant| admitted(&limiter, &of_tenant(tenant, &device)));
        assert_eq!(admitted, [3, 0, 0], "{per}");
    }
}

#[test]
fn counters_of_no_identity_are_shared_by_tenants() {
    for per in ["\"global\"", "\"endpoint\"", "\"method\"", "[\"endpoint\", \"method\"]"] {
        let limiter = limiter(&rule(per, ""));
        assert_eq!(TENANTS.map(|tenant| admitted(&limiter, &of_tenant(tenant, &[]))), [3, 0, 0], "{per}");
    }
    let limiter = limiter(&rule("[\"tenant\", \"user\"]", ""));
    assert_eq!(TENANTS.map(|tenant| admitted(&limiter, &of_tenant(tenant, &[]))), [3, 3, 100]);
}

fn limit(requests: u32) -> Limit {
    Limit::new(Algorithm::FixedWindow, requests, Window::Length(Span::from_secs(3_600))).unwrap()
}

#[test]
fn override_applies_in_its_tenant_only() {
    let limiter = limiter(&rule("\"user\"", ""));
    let endpoint = Endpoint::parse("/search").unwrap();
    let bob = InTenant::new(Some("acme"), id("bob").unwrap());
    limiter.update_overrides(|all| all.with(Override::new(bob, &endpoint, limit(7), NOW)));
    assert_eq!(TENANTS.map(|tenant| admitted(&limiter, &of_tenant(tenant, &[]))), [7, 3, 3]);
    let acme = InTenant::new(Some("acme"), "bob");
    let overrides = limiter.rules().overrides().clone();
    assert!(overrides.get(acme, "/search").is_some() && overrides.get("bob", "/search").is_none());
    assert!(overrides.without("bob", "/search").is_none());
    limiter.update_overrides(|all| all.changed(&[], &[(acme, "/search")]));
    assert!(limiter.rules().overrides().is_empty());
}

#[test]
fn check_overrides_of_tenants_are_counted_apart() {
    let (limiter, sent) = (limiter(&rule("\"user\"", "")), limit(5));
    for tenant in TENANTS {
        let request = Request { limit_override: Some(&sent), ..of_tenant(tenant, &[]) };
        assert_eq!(admitted(&limiter, &request), 5, "{tenant:?}");
    }
}

#[test]
fn reset_and_inspection_stay_in_their_tenant() {
    let limiter = limiter(&rule("\"user\"", ""));
    for tenant in TENANTS {
        admitted(&limiter, &of_tenant(tenant, &[]));
    }
    let reset = block_on(limiter.snapshot().reset(&of_tenant(Some("acme"), &[]))).unwrap();
    assert_eq!(reset.counters, 1);
    let used = TENANTS.map(|tenant| {
        let request = of_tenant(tenant, &[]);
        let inspected = block_on(limiter.snapshot().inspect(&request, EndpointScope::All, NOW)).unwrap();
        inspected.counters[0].used()
    });
    assert_eq!(used, [0, 3, 3]);
}

#[test]
fn cooldown_holds_in_its_tenant_only() {
    let limiter = limiter(&format!(
        "[progressive_penalties]\nenabled = true\nviolation_threshold = 1\n{}",
        rule("\"user\"", "")
    ));
    let acme = of_tenant(Some("acme"), &[]);
    while limiter.check_now(&acme, NOW).admits() {}
    assert!(look(&limiter, &acme).cooldown_until().is_some());
    for tenant in [Some("beta"), None] {
        assert!(look(&limiter, &of_tenant(tenant, &[])).cooldown_until().is_none(), "{tenant:?}");
    }
    let listed = block_on(limiter.counters().penalized_clients(9, NOW)).unwrap();
    let clients: Vec<_> = listed.iter().map(|listed| InTenant::parse_client(&listed.client)).collect();
    assert_eq!(clients, [InTenant::new(Some("acme"), "user:bob")]);
    assert!(!block_on(limiter.counters().pardon("user:bob")).unwrap());
    assert!(block_on(limiter.counters().pardon(&listed[0].client)).unwrap());
}
