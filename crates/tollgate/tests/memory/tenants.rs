//! Each tenant has a fair share of the table (threat 16).

use std::num::NonZeroUsize;

use tollgate::counters::memory::{MemoryBounds, MemoryCounters};
use tollgate::counters::{Charges, PenaltyCharge};
use tollgate::identity::Tenant;
use tollgate::penalties::PenaltyPolicy;
use tollgate::record::NoRecords;
use tollgate::{Algorithm, Client, Endpoint, Id, Limit, Limiter, Request, RuleSet, Seed, Span, Timestamp};

use crate::{DAY, NOW, SHARDS, bounded, charges, limit, one, subject};

const SEED: Seed = Seed([3; 16]);
const LOUD: Option<&str> = Some("loud");
const QUIET: Option<&str> = Some("quiet");

/// Space for 400 counters per shard, and about as many logs.
fn table() -> MemoryCounters {
    let keys_max = NonZeroUsize::new(SHARDS * 400).unwrap();
    MemoryCounters::new(MemoryBounds { keys_max, log_bytes_max: 20 << 20, ..MemoryBounds::default() })
}

/// Whether the client with this number is admitted, with or without a tenant.
fn admits(store: &MemoryCounters, limit: &Limit, tenant: Option<&str>, client: u64) -> bool {
    let tenant = tenant.map(|name| Tenant::new(Id::parse(name).unwrap(), SEED));
    let charges = Charges { tenant, ..charges([one(limit, subject(client), 1)]) };
    store.charge_all_now(&charges, NOW).admitted(&charges)
}

/// How many of `clients` new clients are admitted.
fn flood(store: &MemoryCounters, limit: &Limit, tenant: Option<&str>, clients: u64) -> usize {
    (1_000_000..1_000_000 + clients).filter(|client| admits(store, limit, tenant, *client)).count()
}

/// Whether each client is admitted exactly up to its limit, which requires its own counter.
fn each_has_its_own_counter(
    store: &MemoryCounters,
    limit: &Limit,
    tenant: Option<&str>,
    clients: u64,
) -> bool {
    let own = |client| {
        let times = (0..=limit.requests()).filter(|_| admits(store, limit, tenant, client)).count();
        times == limit.requests() as usize
    };
    (0..clients).all(own)
}

#[test]
fn flooding_tenant_leaves_space_for_others() {
    for algorithm in Algorithm::ALL {
        for (loud, quiet) in [(LOUD, QUIET), (LOUD, None), (None, QUIET)] {
            let store = table();
            let day = limit(algorithm, 2, DAY);
            flood(&store, &day, loud, 400_000);
            let overflow_charges = store.overflow_charges();
            assert!(overflow_charges > 200_000, "{algorithm}: the flood must not fit");
            assert!(
                each_has_its_own_counter(&store, &day, quiet, 1_000),
                "{algorithm}: {quiet:?} next to {loud:?}"
            );
            assert_eq!(store.overflow_charges(), overflow_charges, "{algorithm}");
        }
    }
}

#[test]
fn single_tenant_gets_nearly_the_whole_table() {
    for tenant in [LOUD, None] {
        let store = bounded(SHARDS * 1_000);
        flood(&store, &limit(Algorithm::FixedWindow, 2, DAY), tenant, 1_000_000);
        assert!((900..=1_000).contains(&(store.len() / SHARDS)), "{} of 1,000", store.len() / SHARDS);
    }
}

#[test]
fn tenants_have_separate_overflow_counters() {
    let store = bounded(SHARDS * 64);
    let day = limit(Algorithm::FixedWindow, 5, DAY);
    flood(&store, &day, LOUD, 200_000);
    flood(&store, &day, QUIET, 4_000);
    assert!(
        (0..5_000).all(|client| !admits(&store, &day, LOUD, client)),
        "its overflow counters are used up"
    );
    let admitted = (0..5_000).filter(|client| admits(&store, &day, QUIET, *client)).count();
    assert!(admitted > 0, "those of the other tenant are not");
}

#[test]
fn fake_tenants_stay_within_the_bound() {
    let store = bounded(SHARDS * 64);
    // Logs have their own bound.
    let algorithms = Algorithm::ALL.into_iter().filter(|algorithm| *algorithm != Algorithm::SlidingWindowLog);
    let limits: Vec<Limit> = algorithms.map(|algorithm| limit(algorithm, 2, DAY)).collect();
    for number in 0..300_000_u64 {
        let name = format!("tenant {}", number % 1_000);
        admits(&store, &limits[usize::try_from(number % 5).unwrap()], Some(&name), number);
    }
    // Beyond the bound there is one overflow counter per limit.
    assert!(store.len() <= SHARDS * (64 + limits.len()), "{} counters", store.len());
}

#[test]
fn tenant_usage_survives_a_snapshot() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindowLog] {
        let (store, restored) = (table(), table());
        let day = limit(algorithm, 2, DAY);
        flood(&store, &day, LOUD, 400_000);
        let mut bytes = Vec::new();
        store.save(SEED, NOW, &mut bytes).unwrap();
        restored.restore(bytes.as_slice()).unwrap();
        let (held, overflow_charges) = (restored.len(), restored.overflow_charges());
        assert_eq!(flood(&restored, &day, LOUD, 400_000), flood(&store, &day, LOUD, 400_000));
        assert!(restored.overflow_charges() > overflow_charges && restored.len() == held, "{algorithm}");
        assert!(each_has_its_own_counter(&restored, &day, QUIET, 1_000), "{algorithm}");
    }
}

#[test]
fn released_space_can_be_used_again() {
    for algorithm in Algorithm::ALL {
        let store = table();
        let second = limit(algorithm, 2, Span::from_secs(1));
        let later = |round: u32| NOW + Span::from_secs(5 * u64::from(round));
        let mut held = Vec::new();
        for round in 0..5 {
            store.sweep(later(round));
            assert!(store.is_empty(), "{algorithm}");
            flood_at(&store, &second, later(round));
            held.push(store.len());
        }
        assert!(held.iter().all(|len| *len == held[0]), "{algorithm}: {held:?}");
    }
}

fn flood_at(store: &MemoryCounters, limit: &Limit, now: Timestamp) {
    let tenant = LOUD.map(|name| Tenant::new(Id::parse(name).unwrap(), SEED));
    for client in 0..200_000 {
        let charges = Charges { tenant, ..charges([one(limit, subject(client), 1)]) };
        store.charge_all_now(&charges, now);
    }
}

#[test]
fn penalty_records_are_shared_fairly() {
    let policy = PenaltyPolicy { violation_threshold: 1, ..PenaltyPolicy::default() };
    let bounds = MemoryBounds { penalties_max: SHARDS * 200, ..MemoryBounds::default() };
    let store = MemoryCounters::new(bounds);
    let never = limit(Algorithm::FixedWindow, 1, DAY);
    let is_in_cooldown = |tenant: &'static str, number: u64| {
        let name = format!("client {number}");
        let (subject, tenant) = (subject(number), Tenant::new(Id::parse(tenant).unwrap(), SEED));
        let penalty = PenaltyCharge {
            subject,
            client: Client::User(Id::parse(&name).unwrap()).into(),
            policy: &policy,
            client_charges: u32::MAX,
        };
        // The first request uses up the limit, the second is refused.
        (0..2).any(|_| {
            let charges = Charges {
                tenant: Some(tenant),
                penalty: Some(penalty),
                ..charges([one(&never, subject, 1)])
            };
            store.charge_all_now(&charges, NOW).cooldown.is_some()
        })
    };
    let in_cooldown = (0..100_000).filter(|number| is_in_cooldown("loud", *number)).count();
    assert!(in_cooldown < SHARDS * 200, "{in_cooldown}: not all records fit");
    assert!((200_000..200_100).all(|number| is_in_cooldown("quiet", number)));
}

#[test]
fn counters_are_accounted_to_the_requests_tenant() {
    let rules = RuleSet::from_toml("default_limit = 1\ndefault_window = 86400").unwrap();
    let limiter = Limiter::with_records(rules, bounded(SHARDS * 64), NoRecords, SEED);
    let admits = |tenant: &str, user: u64| {
        let user = format!("user {user}");
        let request = Request {
            user: Some(Id::parse(&user).unwrap()),
            tenant: Some(Id::parse(tenant).unwrap()),
            ..Request::new(Endpoint::parse("/x").unwrap())
        };
        limiter.check_now(&request, NOW).admits()
    };
    let loud = (1_000..60_000).filter(|user| admits("loud", *user)).count();
    assert!(loud < 20_000, "{loud}: new clients share overflow counters");
    // A shard may be full by chance.
    let quiet = (0..200).filter(|user| admits("quiet", *user)).count();
    assert!(quiet >= 190, "{quiet}");
    assert!((0..200).all(|user| !admits("quiet", user)));
}
