//! Changing the limits of one client on an endpoint without granting a second allowance.
//!
//! Limits with another window or algorithm, and those of a rule, have counters of their own. What the client has consumed
//! under the limits that an override replaces is carried over to its counter, and back when it is deleted. A counter is
//! raised to what was consumed and never by it: it may hold a part of that already, from an earlier change.

use smallvec::SmallVec;

use super::Limiter;
use crate::algorithms::Verdict;
use crate::counters::{Charge, Charges, CounterId, CounterStore, Effect, Verdicts};
use crate::identity::{Request, Scratch, Subject};
use crate::record::RecordSink;
use crate::rules::overrides::Overrides;
use crate::rules::{ChargePlan, RuleSet};
use crate::time::{Span, Timestamp};

/// Attempts to raise a counter while requests charge it.
const TRIES: u32 = 3;

/// What a client has consumed of each limit in force.
#[derive(Clone, Debug, Default)]
pub struct Consumption(SmallVec<[ConsumedLimit; 4]>);

#[derive(Copy, Clone, Debug)]
struct ConsumedLimit {
    subject: Subject,
    counter: CounterId,
    window: Span,
    used: u32,
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
        let before = self.consumption(request, now).await;
        published.await?;
        self.update_overrides(change);
        self.carry_over(request, &before, now).await;
        Ok(())
    }

    /// Returns what the client of a request has consumed of each limit in force. Empty if the store is unreachable.
    pub async fn consumption(&self, request: &Request<'_>, now: Timestamp) -> Consumption {
        let rules = self.rules.load();
        let (request, mut scratch) = (Request { cost: 0, ..request.clone() }, Scratch::default());
        let mut plan = rules.plan(&request, &mut scratch, now);
        keep_limits_of_client(&mut plan, &rules, &request);
        let verdicts = self.charge(&plan.charges, now).await.unwrap_or_default();
        let limits = plan.charges.charges.iter().zip(&verdicts.verdicts);
        Consumption(limits.map(|(charge, verdict)| ConsumedLimit::new(charge, verdict.remaining)).collect())
    }

    /// Raises the limits that are in force now and were not before to what the client had consumed of those before that are
    /// not in force any more.
    pub async fn carry_over(&self, request: &Request<'_>, before: &Consumption, now: Timestamp) {
        let rules = self.rules.load();
        let (request, mut scratch) = (Request { cost: 0, ..request.clone() }, Scratch::default());
        let mut plan = rules.plan(&request, &mut scratch, now);
        keep_limits_of_client(&mut plan, &rules, &request);
        let charges = &plan.charges.charges;
        let replaced = |limit: &&ConsumedLimit| !charges.iter().any(|charge| limit.is_of(charge));
        let replaced: SmallVec<[ConsumedLimit; 4]> = before.0.iter().filter(replaced).copied().collect();
        for charge in charges.iter().filter(|charge| !before.0.iter().any(|limit| limit.is_of(charge))) {
            if let Some(used) = used_within(&replaced, charge.limit.window_length()) {
                self.raise(charge, used.min(charge.limit.capacity()), now).await;
            }
        }
    }

    /// Charges a counter so that it holds at least `used`. Requests meanwhile come on top.
    async fn raise(&self, charge: &Charge<'_>, used: u32, now: Timestamp) {
        let charge_with = |cost, dry_run| {
            let charges = [Charge { cost, ..*charge }].into_iter().collect();
            async move { self.counters.charge_all(&Charges { charges, dry_run, ..Charges::default() }, now).await }
        };
        for _ in 0..TRIES {
            let Ok(Verdicts { verdicts, .. }) = charge_with(0, true).await else { return };
            let remaining = verdicts.first().map_or(0, |verdict| verdict.remaining);
            let missing = used.saturating_sub(charge.limit.capacity().saturating_sub(remaining));
            if missing == 0 {
                return;
            }
            let charged = charge_with(missing, false).await;
            if charged.is_ok_and(|verdicts| verdicts.verdicts.iter().any(Verdict::admits)) {
                return;
            }
        }
    }
}

impl ConsumedLimit {
    fn new(charge: &Charge<'_>, remaining: u32) -> Self {
        let &Charge { subject, counter, limit, .. } = charge;
        let used = limit.capacity().saturating_sub(remaining);
        ConsumedLimit { subject, counter, window: limit.window_length(), used }
    }

    fn is_of(&self, charge: &Charge<'_>) -> bool {
        self.subject == charge.subject && self.counter == charge.counter
    }
}

/// Leaves the limits that count the request's client, to be read.
fn keep_limits_of_client(plan: &mut ChargePlan<'_>, rules: &RuleSet, request: &Request<'_>) {
    let client = request.client();
    let counts_client = |source: u32| {
        let rule = rules.rules().get(source as usize);
        rule.is_none_or(|rule| rule.per.iter().any(|part| client.is_some_and(|client| part.is_id_of(client))))
    };
    let is_address = |position| plan.address_charges.checked_shr(position).unwrap_or(0) & 1 == 1;
    let charges = plan.charges.charges.iter().zip(&plan.sources).zip(0_u32..);
    let kept = charges.filter(|((charge, source), position)| {
        let is_override = charge.rule.starts_with('@');
        charge.effect == Effect::Enforce && !is_address(*position) && (is_override || counts_client(**source))
    });
    let charges = kept.map(|((charge, _), _)| *charge).collect();
    // A cooldown would hide what the limits hold.
    plan.charges = Charges { charges, penalty: None, dry_run: true, tenant: plan.charges.tenant };
}

/// What was consumed within a window: of the shortest limit that is not shorter, or else of the longest.
fn used_within(limits: &[ConsumedLimit], window: Span) -> Option<u32> {
    let longer = limits.iter().filter(|limit| limit.window >= window).min_by_key(|limit| limit.window);
    longer.or_else(|| limits.iter().max_by_key(|limit| limit.window)).map(|limit| limit.used)
}
