//! Cases of penalties.

use super::Harness;
use super::fixture::{LONG, TestLimit, charge_all, charges, random, remaining, settle, short};
use crate::algorithms::Outcome;
use crate::counters::{Charges, CounterAdmin, PenaltyCharge, Verdicts};
use crate::identity::{Client, Id, Subject};
use crate::limit::Algorithm;
use crate::penalties::PenaltyPolicy;
use crate::time::Span;

/// A client with a penalty record.
pub(super) struct TestClient {
    subject: Subject,
    name: String,
}

impl TestClient {
    pub(super) fn new() -> Self {
        TestClient { subject: Subject(random()), name: format!("{:032x}", random()) }
    }

    pub(super) fn client(&self) -> Client<'_> {
        match Id::parse(&self.name) {
            Ok(id) => Client::User(id),
            Err(error) => panic!("{error}"),
        }
    }

    pub(super) fn penalty<'a>(&'a self, policy: &'a PenaltyPolicy) -> PenaltyCharge<'a> {
        PenaltyCharge {
            subject: self.subject,
            client: self.client().into(),
            policy,
            client_charges: u32::MAX,
        }
    }

    pub(super) fn charge<H: Harness>(
        &self,
        harness: &H,
        tested: &TestLimit,
        policy: &PenaltyPolicy,
    ) -> Verdicts {
        let charges = charges(&[tested], 1);
        charge_all(harness, &Charges { penalty: Some(self.penalty(policy)), ..charges })
    }

    /// The violations on record, and whether the client is in cooldown.
    pub(super) fn record<H: Harness>(&self, harness: &H) -> Option<(usize, bool)> {
        let Ok(list) = harness.block_on(harness.store().penalized_clients(usize::MAX, harness.now())) else {
            panic!("the store returned no list");
        };
        let shown = self.client().to_string();
        let found = list.into_iter().find(|listed| listed.client == shown)?;
        Some((found.violations, found.cooldown_until.is_some()))
    }
}

pub(super) fn strict(cooldown: Span) -> PenaltyPolicy {
    PenaltyPolicy { violation_threshold: 1, base_cooldown: cooldown, ..PenaltyPolicy::default() }
}

/// A client in cooldown is refused and not charged; after the cooldown it is charged again.
pub fn cooldown_refuses_whatever_the_limits_admit<H: Harness>(harness: &H) {
    settle(harness, LONG);
    let policy = strict(short(harness));
    let (used_up, free, client) = (
        TestLimit::long(Algorithm::FixedWindow, 1),
        TestLimit::long(Algorithm::FixedWindow, 9),
        TestClient::new(),
    );
    assert!(client.charge(harness, &used_up, &policy).verdicts[0].admits());
    assert!(!client.charge(harness, &used_up, &policy).verdicts[0].admits());
    let in_cooldown = client.charge(harness, &free, &policy);
    assert!(in_cooldown.in_cooldown, "{in_cooldown:?}");
    assert!(in_cooldown.verdicts.iter().all(|verdict| verdict.remaining == 9), "{in_cooldown:?}");
    let Some(left) = in_cooldown.cooldown else { panic!("no cooldown: {in_cooldown:?}") };
    assert!(left <= policy.base_cooldown);
    assert_eq!(remaining(harness, &free), 9);
    assert!(TestClient::new().charge(harness, &free, &policy).verdicts[0].admits(), "another client");
    harness.advance(left);
    assert!(client.charge(harness, &free, &policy).verdicts[0].admits());
}

/// The refusal that starts a cooldown reports its length.
pub fn refusal_that_starts_a_cooldown_reports_it<H: Harness>(harness: &H) {
    settle(harness, LONG);
    let policy = PenaltyPolicy { violation_threshold: 2, ..strict(LONG) };
    let policy = PenaltyPolicy { cooldown_max: LONG, ..policy };
    let (first, second, client) = (
        TestLimit::new(Algorithm::FixedWindow, 0, short(harness)),
        TestLimit::new(Algorithm::TokenBucket, 1, short(harness)),
        TestClient::new(),
    );
    assert_eq!(
        client.charge(harness, &first, &policy).cooldown,
        None,
        "a cost above the capacity is no violation"
    );
    assert!(client.charge(harness, &second, &policy).verdicts[0].admits());
    assert_eq!(client.charge(harness, &second, &policy).cooldown, None, "below the threshold");
    harness.advance(short(harness));
    assert!(client.charge(harness, &second, &policy).verdicts[0].admits());
    let refused = client.charge(harness, &second, &policy);
    assert!(matches!(refused.verdicts[0].outcome, Outcome::Refuse { .. }), "{refused:?}");
    assert_eq!(refused.cooldown, Some(LONG));
}

/// Retries within one episode do not escalate.
pub fn one_episode_is_one_violation<H: Harness>(harness: &H) {
    settle(harness, LONG);
    let (tested, client, policy) =
        (TestLimit::long(Algorithm::TokenBucket, 1), TestClient::new(), PenaltyPolicy::default());
    assert!(client.charge(harness, &tested, &policy).verdicts[0].admits());
    assert_eq!(client.record(harness), None);
    for _ in 0..10 {
        assert_eq!(client.charge(harness, &tested, &policy).cooldown, None);
    }
    assert_eq!(client.record(harness), Some((1, false)));
}
