//! Unreachable counters: each node's share, and reconciliation afterwards.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "support/shared_counters.rs"]
mod shared_counters;

use std::num::NonZeroU32;
use std::sync::atomic::Ordering;

use tollgate::counters::memory::MemoryBounds;
use tollgate::counters::{Charges, CounterStore, StoreError, Verdicts};
use tollgate::inspect::EndpointScope;
use tollgate::record::NoRecords;
use tollgate::{
    Algorithm, Answer, Decision, Endpoint, Id, Limiter, MemoryCounters, Request, RuleSet, Seed, Span,
    Timestamp,
};

use self::shared_counters::{Shared, now_or_never};

fn rules(more: &str) -> RuleSet {
    let rule = format!(
        "[[rules]]\nname = \"r\"\nper = [\"user\"]\nalgorithm = \"fixed_window\"\n\
         limits = [{{ requests = 100, window = \"1h\" }}]\n{more}"
    );
    RuleSet::from_toml(&rule).unwrap()
}

fn request(user: &str) -> Request<'_> {
    let user = Some(Id::parse(user).unwrap());
    Request { user, ..Request::new(Endpoint::parse("/x").unwrap()) }
}

fn check(limiter: &Limiter<&Shared>, cost: u32, secs: u64) -> Decision {
    let request = Request { cost, ..request("alice") };
    now_or_never(limiter.check(&request, Timestamp::from_secs(secs)))
}

/// A node of a fleet that shares one seed.
fn node(shared: &Shared) -> Limiter<&Shared> {
    Limiter::with_records(rules(""), shared, NoRecords, Seed([7; 16]))
}

/// A node that admitted its share during an outage that has ended.
fn node_after_outage(shared: &Shared) -> Limiter<&Shared> {
    let limiter = node(shared);
    shared.down.store(true, Ordering::Relaxed);
    assert_eq!(admitted(&limiter, 7_200), 25);
    shared.down.store(false, Ordering::Relaxed);
    limiter
}

fn reconcile(limiter: &Limiter<&Shared>, secs: u64) -> usize {
    now_or_never(limiter.reconcile(16, Timestamp::from_secs(secs)))
}

fn admitted(limiter: &Limiter<&Shared>, secs: u64) -> usize {
    (0..1_000).filter(|_| check(limiter, 1, secs).admits()).count()
}

#[test]
fn fallback_admissions_are_reconciled() {
    let shared = Shared::default();
    let limiter = Limiter::new(rules(""), &shared);
    assert!((0..30).all(|_| check(&limiter, 1, 7_200).admits()));
    shared.down.store(true, Ordering::Relaxed);
    let alone = check(&limiter, 1, 7_200);
    assert!(alone.degraded && alone.admits());
    assert_eq!(alone.binding().unwrap().requests, 100, "the reported limit does not change");
    assert_eq!(1 + admitted(&limiter, 7_200), 25, "a quarter of the limit");
    shared.down.store(false, Ordering::Relaxed);
    let back = check(&limiter, 1, 7_200);
    assert!(!back.degraded && back.admits());
    assert_eq!(1 + admitted(&limiter, 7_200), 100 - 30 - 25);
    assert_eq!(shared.added.load(Ordering::Relaxed), 1, "once");
}

#[test]
fn fallback_counter_expires_with_its_window() {
    let shared = Shared::default();
    let limiter = Limiter::new(rules(""), &shared);
    shared.down.store(true, Ordering::Relaxed);
    assert_eq!(admitted(&limiter, 7_200), 25);
    shared.down.store(false, Ordering::Relaxed);
    assert_eq!(admitted(&limiter, 10_800), 100);
    assert_eq!(shared.added.load(Ordering::Relaxed), 0);
}

#[test]
fn failed_reconciliation_keeps_the_fallback_counter() {
    let shared = Shared::default();
    let limiter = Limiter::new(rules(""), &shared);
    shared.down.store(true, Ordering::Relaxed);
    assert_eq!(admitted(&limiter, 7_200), 25);
    shared.down.store(false, Ordering::Relaxed);
    shared.refuses_to_carry.store(true, Ordering::Relaxed);
    assert!(!check(&limiter, 1, 7_200).admits(), "still unreachable, and its share is used up");
    shared.refuses_to_carry.store(false, Ordering::Relaxed);
    assert_eq!(admitted(&limiter, 7_200), 75);
}

#[test]
fn reads_include_fallback_charges() {
    let looks: [fn(&Limiter<&Shared>) -> u32; 3] = [
        |node| {
            let decision = now_or_never(node.snapshot().peek(&request("alice"), Timestamp::from_secs(7_200)));
            decision.binding().unwrap().remaining()
        },
        |node| {
            let explained =
                now_or_never(node.snapshot().explain(&request("alice"), Timestamp::from_secs(7_200)));
            explained.decision.binding().unwrap().remaining()
        },
        |node| {
            let now = Timestamp::from_secs(7_200);
            let seen =
                now_or_never(node.snapshot().inspect(&request("alice"), EndpointScope::Requested, now))
                    .unwrap();
            assert!(!seen.degraded);
            seen.counters[0].verdict.remaining
        },
    ];
    for look in looks {
        let shared = Shared::default();
        let limiter = node_after_outage(&shared);
        let never_out = Shared::default();
        let expected = {
            let node = node(&never_out);
            assert!(check(&node, 25, 7_200).admits());
            look(&node)
        };
        assert_eq!([look(&limiter), look(&limiter)], [expected; 2], "a read changes nothing");
        assert_eq!(admitted(&limiter, 7_200), 75);
        assert_eq!(shared.added.load(Ordering::Relaxed), 1);
    }
}

#[test]
fn fallback_admissions_count_on_other_nodes() {
    let shared = Shared::default();
    let nodes = [node(&shared), node(&shared)];
    shared.down.store(true, Ordering::Relaxed);
    assert_eq!(nodes.each_ref().map(|node| admitted(node, 7_200)), [25, 25]);
    assert_eq!(reconcile(&nodes[0], 7_200), 0, "the counters are unreachable");
    shared.down.store(false, Ordering::Relaxed);
    assert_eq!(reconcile(&nodes[0], 7_200), 1);
    assert_eq!(admitted(&nodes[1], 7_200), 50);
}

#[test]
fn reconciled_counter_is_not_added_twice() {
    let shared = Shared::default();
    let limiter = node_after_outage(&shared);
    assert_eq!([reconcile(&limiter, 7_200), reconcile(&limiter, 7_200)], [1, 0]);
    assert_eq!(admitted(&limiter, 7_200), 75);
    // The other way round: the client's request comes first.
    let shared = Shared::default();
    let limiter = node_after_outage(&shared);
    assert_eq!(admitted(&limiter, 7_200), 75);
    reconcile(&limiter, 7_200);
    assert_eq!(shared.added.load(Ordering::Relaxed), 1);
    assert_eq!((limiter.reconcile_status().pending, limiter.reconcile_status().reconciled), (0, 1));
}

#[test]
fn failed_reconciliation_is_retried() {
    let shared = Shared::default();
    let limiter = node_after_outage(&shared);
    shared.refuses_to_carry.store(true, Ordering::Relaxed);
    assert_eq!(reconcile(&limiter, 7_200), 0);
    assert_eq!(limiter.reconcile_status().pending, 1);
    shared.refuses_to_carry.store(false, Ordering::Relaxed);
    assert_eq!(reconcile(&limiter, 7_200), 1);
    assert_eq!(admitted(&node(&shared), 7_200), 75);
}

#[test]
fn expired_window_is_not_reconciled() {
    let shared = Shared::default();
    let limiter = node_after_outage(&shared);
    reconcile(&limiter, 10_800);
    assert_eq!((limiter.reconcile_status().pending, shared.added.load(Ordering::Relaxed)), (0, 0));
}

#[test]
fn reset_counter_is_not_reconciled() {
    let shared = Shared::default();
    let limiter = node_after_outage(&shared);
    let names: Vec<u128> = {
        let spy = Spy::default();
        let other = Limiter::with_records(rules(""), &spy, NoRecords, Seed([7; 16]));
        now_or_never(other.check(&request("alice"), Timestamp::from_secs(7_200)));
        spy.names.lock().unwrap().clone()
    };
    limiter.discard_fallback(&names);
    reconcile(&limiter, 7_200);
    assert_eq!(shared.added.load(Ordering::Relaxed), 0);
    assert_eq!(admitted(&limiter, 7_200), 100);
}

#[test]
fn failed_reset_changes_nothing() {
    let shared = Shared::default();
    let limiter = node(&shared);
    shared.down.store(true, Ordering::Relaxed);
    assert!((0..5).all(|_| check(&limiter, 1, 7_200).admits()));
    let recorded = async { panic!("recorded although the store is unreachable") };
    let result = now_or_never(limiter.snapshot().reset_recorded(&request("alice"), recorded));
    assert_eq!(result, Err(StoreError::Unreachable));
    assert_eq!(admitted(&limiter, 7_200), 20, "the rest of its share");
    shared.down.store(false, Ordering::Relaxed);
    reconcile(&limiter, 7_200);
    assert_eq!(admitted(&limiter, 7_200), 75);
}

#[test]
fn reset_that_is_not_recorded_changes_nothing() {
    let shared = Shared::default();
    let limiter = node(&shared);
    assert_eq!(admitted(&limiter, 7_200), 100);
    let recorded = std::future::ready(Err(StoreError::Misconfigured));
    let result = now_or_never(limiter.snapshot().reset_recorded(&request("alice"), recorded));
    assert_eq!(result, Err(StoreError::Misconfigured));
    assert_eq!(admitted(&limiter, 7_200), 0);
}

/// Other nodes and reachable servers may have applied the reset already.
#[test]
fn reset_interrupted_by_an_outage_clears_the_fallback() {
    let shared = Shared::default();
    let limiter = node_after_outage(&shared);
    let goes_down = async {
        shared.down.store(true, Ordering::Relaxed);
        Ok(())
    };
    let result = now_or_never(limiter.snapshot().reset_recorded(&request("alice"), goes_down));
    assert_eq!(result, Err(StoreError::Unreachable));
    assert!(limiter.fallback_counters().is_empty());
    shared.down.store(false, Ordering::Relaxed);
    reconcile(&limiter, 7_200);
    assert_eq!(shared.added.load(Ordering::Relaxed), 0);
}

#[test]
fn changed_limit_is_reconciled_by_its_new_values() {
    let bucket = |requests: u32| {
        let rule = format!(
            "[[rules]]\nname = \"r\"\nper = [\"user\"]\nalgorithm = \"token_bucket\"\n\
             limits = [{{ requests = {requests}, window = \"1h\" }}]"
        );
        RuleSet::from_toml(&rule).unwrap()
    };
    let shared = Shared::default();
    let limiter = Limiter::with_records(bucket(100), &shared, NoRecords, Seed([7; 16]));
    shared.down.store(true, Ordering::Relaxed);
    assert_eq!(admitted(&limiter, 7_200), 25);
    shared.down.store(false, Ordering::Relaxed);
    limiter.replace_rules(bucket(1_000));
    let other = Limiter::with_records(bucket(1_000), &shared, NoRecords, Seed([7; 16]));
    assert!((0..800).all(|_| check(&other, 1, 7_200).admits()));
    assert_eq!(reconcile(&limiter, 7_200), 1);
    assert_eq!(
        admitted(&other, 7_200),
        1_000 - 800 - 25,
        "by the old ones 800 would be more than there can be"
    );
}

#[test]
fn reconciliation_is_limited_per_call() {
    let shared = Shared::default();
    let bounds = MemoryBounds::default();
    let limiter = node(&shared).with_fallback_bounds(bounds);
    shared.down.store(true, Ordering::Relaxed);
    let users: Vec<String> = (0..100).map(|number| format!("user-{number}")).collect();
    for user in &users {
        assert!(now_or_never(limiter.check(&request(user), Timestamp::from_secs(7_200))).admits());
    }
    shared.down.store(false, Ordering::Relaxed);
    let steps: Vec<usize> = (0..8).map(|_| reconcile(&limiter, 7_200)).collect();
    assert_eq!(steps, [16, 16, 16, 16, 16, 16, 4, 0]);
    assert_eq!(shared.counters.len(), 100);
}

/// Even if more of its counters are pending than one call takes.
#[test]
fn down_server_does_not_delay_other_counters() {
    const USERS: usize = 20_000;
    let shared = Shared::default();
    let limiter = node(&shared);
    shared.down.store(true, Ordering::Relaxed);
    let now = Timestamp::from_secs(7_200);
    for user in 0..USERS {
        assert!(now_or_never(limiter.check(&request(&format!("user-{user}")), now)).admits());
    }
    shared.half_down.store(true, Ordering::Relaxed);
    shared.down.store(false, Ordering::Relaxed);
    // Counters of the server that is down stay pending, and each round over the list visits all of them.
    let rounds = 2 * USERS / 16;
    let done: usize = (0..rounds).map(|_| reconcile(&limiter, 7_200)).sum();
    assert!((9_000..11_000).contains(&done), "{done}");
    shared.half_down.store(false, Ordering::Relaxed);
    while reconcile(&limiter, 7_200) > 0 {}
    assert_eq!(shared.added.load(Ordering::Relaxed), USERS);
    assert_eq!(limiter.reconcile_status().pending, 0);
}

/// A fleet of three nodes with a limit of 60 an hour.
struct Fleet<'a> {
    shared: &'a Shared,
    nodes: [Limiter<&'a Shared>; 3],
}

/// A store shared by three nodes.
fn shared_by_three() -> Shared {
    Shared { nodes: NonZeroU32::new(3), ..Shared::default() }
}

impl<'a> Fleet<'a> {
    fn new(shared: &'a Shared, algorithm: Algorithm) -> Self {
        let rule = format!(
            "[[rules]]\nname = \"r\"\nper = [\"user\"]\nalgorithm = \"{algorithm}\"\n\
             limits = [{{ requests = 60, window = \"1h\" }}]"
        );
        let rules = || RuleSet::from_toml(&rule).unwrap();
        let node = || Limiter::with_records(rules(), shared, NoRecords, Seed([7; 16]));
        Fleet { shared, nodes: [node(), node(), node()] }
    }

    /// Ends an outage and reconciles all nodes, or starts one.
    fn set_down(&self, down: bool, secs: u64) {
        self.shared.down.store(down, Ordering::Relaxed);
        if !down {
            for node in &self.nodes {
                while reconcile(node, secs) > 0 {}
            }
        }
    }

    /// What each node admits of many requests.
    fn admitted(&self, secs: u64) -> [usize; 3] {
        self.nodes.each_ref().map(|node| admitted(node, secs))
    }
}

/// Six outages in one window: the client, which sends all the time, gets at most the limit and one allowance more.
#[test]
fn outages_in_one_window_admit_one_extra_allowance() {
    for (algorithm, starts_down) in Algorithm::ALL.into_iter().flat_map(|one| [(one, true), (one, false)]) {
        let shared = shared_by_three();
        let fleet = Fleet::new(&shared, algorithm);
        let mut total = 0;
        for secs in (7_200..7_800).step_by(50) {
            fleet.set_down((secs / 50 % 2 == 0) == starts_down, secs);
            total += fleet.admitted(secs).iter().sum::<usize>();
        }
        // Within ten minutes a bucket refills a sixth of the limit, on Redis and in the shares.
        let refilled = if algorithm.has_burst() { 10 } else { 0 };
        assert!(total <= 2 * (60 + refilled), "{algorithm}: {total}");
    }
}

#[test]
fn refused_client_stays_refused_in_outages() {
    for algorithm in Algorithm::ALL {
        let shared = shared_by_three();
        let fleet = Fleet::new(&shared, algorithm);
        assert_eq!(fleet.admitted(7_200), [60, 0, 0]);
        for _ in 0..6 {
            fleet.set_down(true, 7_200);
            assert_eq!(fleet.admitted(7_200), [0; 3], "{algorithm}");
            fleet.set_down(false, 7_200);
            assert_eq!(fleet.admitted(7_200), [0; 3], "{algorithm}");
        }
    }
}

/// Seen by one node only, the client gets the share of each of the others, once.
#[test]
fn nodes_that_did_not_refuse_admit_their_share_once() {
    for algorithm in Algorithm::ALL {
        let shared = shared_by_three();
        let fleet = Fleet::new(&shared, algorithm);
        assert_eq!(admitted(&fleet.nodes[0], 7_200), 60);
        fleet.set_down(true, 7_200);
        assert_eq!(fleet.admitted(7_200), [0, 20, 20], "{algorithm}");
        fleet.set_down(false, 7_200);
        fleet.set_down(true, 7_200);
        assert_eq!(fleet.admitted(7_200), [0; 3], "{algorithm}");
    }
}

#[test]
fn outage_starts_with_what_is_left() {
    for algorithm in Algorithm::ALL {
        let shared = shared_by_three();
        let fleet = Fleet::new(&shared, algorithm);
        assert!((0..50).all(|_| check(&fleet.nodes[0], 1, 7_200).admits()));
        fleet.set_down(true, 7_200);
        assert_eq!(admitted(&fleet.nodes[0], 7_200), 4, "{algorithm}: a third of the 10 that are left");
        assert_eq!(admitted(&fleet.nodes[1], 7_200), 20, "{algorithm}: it has not seen the client");
    }
}

#[test]
fn cost_refused_by_redis_is_refused_in_an_outage() {
    let shared = shared_by_three();
    let fleet = Fleet::new(&shared, Algorithm::FixedWindow);
    assert!(check(&fleet.nodes[0], 30, 7_200).admits() && !check(&fleet.nodes[0], 50, 7_200).admits());
    fleet.set_down(true, 7_200);
    assert!(!check(&fleet.nodes[0], 50, 7_200).admits());
    assert_eq!(admitted(&fleet.nodes[0], 7_200), 10, "a third of what is left");
}

#[test]
fn share_is_whole_again_in_the_next_window() {
    for algorithm in Algorithm::ALL {
        let shared = shared_by_three();
        let fleet = Fleet::new(&shared, algorithm);
        assert_eq!(fleet.admitted(7_200), [60, 0, 0]);
        fleet.set_down(true, 7_200);
        assert_eq!(fleet.admitted(7_200), [0; 3]);
        // Two windows later the sliding counter has forgotten the first.
        assert_eq!(fleet.admitted(14_400), [20; 3], "{algorithm}");
    }
}

/// Counters that record the key of each charge.
#[derive(Default)]
struct Spy {
    names: std::sync::Mutex<Vec<u128>>,
}

impl CounterStore for &Spy {
    async fn charge_all(&self, charges: &Charges<'_>, now: Timestamp) -> Result<Verdicts, StoreError> {
        let names = charges.charges.iter().map(|charge| charge.subject.0 ^ charge.counter.0);
        self.names.lock().unwrap().extend(names);
        Ok(MemoryCounters::default().charge_all_now(charges, now))
    }
}

#[test]
fn cost_within_the_limit_can_be_retried_during_an_outage() {
    let shared = Shared::default();
    let limiter = Limiter::new(rules(""), &shared);
    shared.down.store(true, Ordering::Relaxed);
    assert!(check(&limiter, 60, 7_200).admits());
    let second = check(&limiter, 60, 7_200);
    assert!(second.retry_after().is_some(), "{:?}", second.answer);
}

#[test]
fn on_store_failure_is_applied_per_rule() {
    for (mode, refuses) in [("open", false), ("closed", true)] {
        let shared = Shared::default();
        let limiter = Limiter::new(rules(&format!("on_store_failure = \"{mode}\"")), &shared);
        shared.down.store(true, Ordering::Relaxed);
        let answers: Vec<Answer> = (0..50).map(|_| check(&limiter, 1, 7_200).answer).collect();
        assert_eq!(answers.iter().all(|answer| *answer == Answer::Unavailable), refuses, "{mode}");
        assert_eq!(answers.iter().all(|answer| matches!(answer, Answer::Admit { .. })), !refuses, "{mode}");
    }
}

#[test]
fn unused_client_has_its_whole_share_during_an_outage() {
    let shared = Shared::default();
    let limiter = node(&shared);
    shared.down.store(true, Ordering::Relaxed);
    let peek = check(&limiter, 0, 7_200);
    let report = peek.binding().unwrap();
    assert_eq!((report.requests, report.capacity, report.verdict.remaining), (100, 25, 25));
}

#[test]
fn failure_mode_of_the_file_applies_to_rules_without_one() {
    let answer = |text: &str, path: &str, tier: Option<&str>| {
        let shared = Shared { down: true.into(), ..Shared::default() };
        let limiter = Limiter::new(RuleSet::from_toml(text).unwrap(), &shared);
        let tier = tier.and_then(|tier| Id::parse(tier).ok());
        let request = Request { endpoint: Endpoint::parse(path).unwrap(), tier, ..request("alice") };
        now_or_never(limiter.check(&request, Timestamp::from_secs(1))).answer
    };
    let none = "default_limit = 0\n";
    let open = Answer::Admit { delay: Span::ZERO };
    for (mode, expected) in [
        ("on_store_failure = \"open\"", open),
        ("failure_mode = \"fail_open\"", open),
        ("failure_mode = \"fail_closed\"", Answer::Unavailable),
        ("on_store_failure = \"closed\"", Answer::Unavailable),
        ("on_store_failure = \"open\"\ndefault_failure_mode = \"closed\"", Answer::Unavailable),
        ("on_store_failure = \"closed\"\ndefault_on_store_failure = \"open\"", open),
    ] {
        assert_eq!(answer(&format!("{none}{mode}"), "/", None), expected, "{mode}");
    }
    let text = "on_store_failure = \"closed\"\ndefault_limit = 0\n\
        [[tiers]]\nname = \"t\"\nlimit = 0\nwindow = 60\nfailure_mode = \"fail_open\"\n\
        [[endpoints]]\npattern = \"/e\"\nlimit = 0\nwindow = 60\non_store_failure = \"open\"\n\
        [[rules]]\nname = \"r\"\nper = [\"client\"]\nwhen = { endpoints = [\"/r\"] }\n\
        requests_per_hour = 0\nfailure_mode = \"open\"";
    assert_eq!(answer(text, "/e", None), open);
    assert_eq!(answer(text, "/r", None), open);
    assert_eq!(answer(text, "/", Some("t")), open);
    assert_eq!(answer(text, "/", None), Answer::Unavailable);
    let twice = RuleSet::from_toml("failure_mode = \"open\"\non_store_failure = \"open\"").unwrap_err();
    assert!(twice.to_string().contains("another name of on_store_failure"), "{twice}");
}
