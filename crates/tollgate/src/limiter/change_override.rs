//! Changing the limits of one client on an endpoint without granting a second allowance.
//!
//! Limits with another window or algorithm, and those of a rule, have counters of their own. What the client has consumed
//! under the limits that an override replaces is carried over to its counter, and back when it is deleted. A counter may
//! hold a part of that already, from an earlier change: it is charged the difference.

use std::sync::Arc;

use smallvec::SmallVec;

use super::Limiter;
use crate::algorithms::Verdict;
use crate::counters::{Charge, Charges, CounterId, CounterStore, Effect};
use crate::identity::{Id, Request, Scratch, Seed, Subject, Tenant};
use crate::limit::Limit;
use crate::record::RecordSink;
use crate::rules::overrides::Overrides;
use crate::rules::{ChargePlan, RuleSet};
use crate::time::{Span, Timestamp};

/// Attempts to charge a counter while requests charge it too.
const TRIES: u32 = 3;

/// The limits of a client that a change replaces, and those in their place.
#[derive(Clone, Debug, Default)]
pub struct CarryOver {
    tenant: Option<(Box<str>, Seed)>,
    replaced: SmallVec<[ClientLimit; 2]>,
    /// With what each held before the change.
    new: SmallVec<[(ClientLimit, u32); 2]>,
}

/// A counter of the client, kept while the rules change.
#[derive(Clone, Debug)]
struct ClientLimit {
    subject: Subject,
    counter: CounterId,
    rule: Box<str>,
    limit: Limit,
}

impl<S: CounterStore, R: RecordSink> Limiter<S, R> {
    /// Changes the override of the request's client and endpoint once `published` has made the change known to the other
    /// nodes, and carries over what the client has consumed.
    ///
    /// If the store becomes unreachable at that moment, the client starts with the full new limit.
    ///
    /// # Errors
    /// The error of `published`; nothing is changed then.
    pub async fn change_override<E>(
        &self,
        request: &Request<'_>,
        now: Timestamp,
        published: impl Future<Output = Result<(), E>>,
        change: impl Fn(&Overrides) -> Overrides,
    ) -> Result<(), E> {
        // Read first: another node may put the change in force here as soon as it is published.
        let next = Arc::new(change(self.rules.load().overrides()));
        let carry_over = self.prepare_carry_over(request, &next, now).await;
        published.await?;
        self.update_overrides(change);
        self.carry_over(&carry_over, now).await;
        Ok(())
    }

    /// Reads what a change to these overrides replaces for the client of a request. To be called before the change.
    pub async fn prepare_carry_over(
        &self,
        request: &Request<'_>,
        next: &Arc<Overrides>,
        now: Timestamp,
    ) -> CarryOver {
        let rules = self.rules.load();
        let before = client_limits(&rules, request, now);
        let after = client_limits(&rules.with_overrides(Arc::clone(next)), request, now);
        let is_in = |all: &[ClientLimit], limit: &ClientLimit| all.iter().any(|other| limit.is_same(other));
        let mut carry_over = CarryOver {
            tenant: request.tenant.map(|tenant| (tenant.as_str().into(), rules.seed)),
            replaced: before.iter().filter(|limit| !is_in(&after, limit)).cloned().collect(),
            new: SmallVec::new(),
        };
        for limit in after.into_iter().filter(|limit| !is_in(&before, limit)) {
            let used = self.used_of(&limit, carry_over.tenant(), now).await.unwrap_or(0);
            carry_over.new.push((limit, used));
        }
        carry_over
    }

    /// Charges the new limits what the client has consumed of those that they replace. To be called once the change is in
    /// force, so that no request is missed.
    pub async fn carry_over(&self, carry_over: &CarryOver, now: Timestamp) {
        let mut consumed: SmallVec<[(Span, u32); 2]> = SmallVec::new();
        for limit in &carry_over.replaced {
            // During an outage the client starts with the full limit.
            let Some(used) = self.used_of(limit, carry_over.tenant(), now).await else { return };
            consumed.push((limit.limit.window_length(), used));
        }
        for (limit, held) in &carry_over.new {
            let used = used_within(&consumed, limit.limit.window_length()).unwrap_or(0);
            let missing = used.min(limit.limit.capacity()).saturating_sub(*held);
            self.charge_up_to(limit, carry_over.tenant(), missing, now).await;
        }
    }

    /// Charges a counter as much of `cost` as fits.
    async fn charge_up_to(&self, limit: &ClientLimit, tenant: Option<Tenant<'_>>, cost: u32, now: Timestamp) {
        for _ in 0..TRIES {
            let Some(used) = self.used_of(limit, tenant, now).await else { return };
            let cost = cost.min(limit.limit.capacity().saturating_sub(used));
            if cost == 0 {
                return;
            }
            let charged = self.counters.charge_all(&limit.charges(cost, tenant), now).await;
            // Refused if a request was faster.
            if charged.is_ok_and(|verdicts| verdicts.verdicts.iter().any(Verdict::admits)) {
                return;
            }
        }
    }

    /// How much of a limit is used. `None` if the store is unreachable.
    async fn used_of(&self, limit: &ClientLimit, tenant: Option<Tenant<'_>>, now: Timestamp) -> Option<u32> {
        let charges = Charges { dry_run: true, ..limit.charges(0, tenant) };
        let verdicts = self.charge(&charges, now).await.ok()?;
        verdicts.verdicts.first().map(|verdict| limit.limit.capacity().saturating_sub(verdict.remaining))
    }
}

impl CarryOver {
    fn tenant(&self) -> Option<Tenant<'_>> {
        let (tenant, seed) = self.tenant.as_ref()?;
        Some(Tenant::new(Id::parse(tenant).ok()?, *seed))
    }
}

impl ClientLimit {
    fn new(charge: &Charge<'_>) -> Self {
        let &Charge { subject, counter, rule, limit, .. } = charge;
        ClientLimit { subject, counter, rule: rule.into(), limit: limit.clone() }
    }

    /// Whether it is the same counter, whatever its limit.
    fn is_same(&self, other: &ClientLimit) -> bool {
        self.subject == other.subject && self.counter == other.counter
    }

    fn charges<'a>(&'a self, cost: u32, tenant: Option<Tenant<'a>>) -> Charges<'a> {
        let charge = Charge {
            subject: self.subject,
            counter: self.counter,
            rule: &self.rule,
            limit: &self.limit,
            cost,
            effect: Effect::Enforce,
            leases: false,
            refundable: false,
        };
        Charges { charges: [charge].into_iter().collect(), tenant, ..Charges::default() }
    }
}

/// The limits that count the request's client.
fn client_limits(rules: &RuleSet, request: &Request<'_>, now: Timestamp) -> SmallVec<[ClientLimit; 4]> {
    let mut scratch = Scratch::default();
    let plan: ChargePlan<'_> = rules.plan(request, &mut scratch, now);
    let client = request.client();
    let counts_client = |source: u32| {
        let rule = rules.rules().get(source as usize);
        rule.is_none_or(|rule| rule.per.iter().any(|part| client.is_some_and(|client| part.is_id_of(client))))
    };
    let is_address = |position| plan.address_charges.checked_shr(position).unwrap_or(0) & 1 == 1;
    let charges = plan.charges.charges.iter().zip(&plan.sources).zip(0_u32..);
    let of_client = charges.filter(|((charge, source), position)| {
        let is_override = charge.rule.starts_with('@');
        charge.effect == Effect::Enforce && !is_address(*position) && (is_override || counts_client(**source))
    });
    of_client.map(|((charge, _), _)| ClientLimit::new(charge)).collect()
}

/// What was consumed within a window: of the shortest limit that is not shorter, or else of the longest.
fn used_within(consumed: &[(Span, u32)], window: Span) -> Option<u32> {
    let longer = consumed.iter().filter(|(length, _)| *length >= window).min_by_key(|(length, _)| *length);
    longer.or_else(|| consumed.iter().max_by_key(|(length, _)| *length)).map(|(_, used)| *used)
}
