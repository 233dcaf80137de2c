//! The way of one request, top to bottom.

mod reconcile;

use std::sync::Arc;

use smallvec::SmallVec;

use crate::accounts::Accounts;
use crate::counters::fallback::Fallback;
use crate::counters::memory::{MemoryBounds, MemoryCounters};
use crate::counters::{Charges, CounterAdmin, CounterStore, Effect, StoreError, Verdicts};
use crate::decision::{Decision, Draft, closed_rule};
use crate::explain::Explanation;
use crate::identity::{Request, Scratch, Seed};
use crate::inspect::{EndpointScope, Inspection};
use crate::record::{NoRecords, Record, RecordSink};
use crate::rules::overrides::{Override, Overrides};
use crate::rules::{
    CHARGES_MAX, ChargePlan, CurrentRules, EvaluationEnd, OnStoreFailure, RuleSet, Snapshot,
    retention_extensions,
};
use crate::time::Timestamp;

/// What a reset did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reset {
    /// Counters that held something.
    pub counters: usize,
    /// Rules of the client that count by something the request did not say.
    pub skipped: Vec<String>,
}

/// Decides about requests: rules, counters and a place for records.
///
/// ```
/// use tollgate::{Endpoint, Id, Limiter, MemoryCounters, Request, RuleSet, Timestamp};
///
/// let rules = RuleSet::from_toml("default_limit = 2\ndefault_window = 60")?;
/// let limiter = Limiter::new(rules, MemoryCounters::default());
/// let request = Request { user: Some(Id::parse("alice")?), ..Request::new(Endpoint::parse("/search")?) };
///
/// let now = Timestamp::from(std::time::SystemTime::now());
/// assert!(limiter.check_now(&request, now).admits());
/// assert!(limiter.check_now(&request, now).admits());
/// let refused = limiter.check_now(&request, now);
/// assert_eq!(refused.retry_after().map(|wait| wait.as_secs_ceil()), Some(30));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Limiter<S, R = NoRecords> {
    rules: CurrentRules,
    counters: S,
    /// Counts in place of `counters` while those cannot be reached.
    local: Fallback,
    records: R,
}

impl<S> Limiter<S> {
    /// A limiter that keeps no books and whose counters nobody else shares.
    pub fn new(rules: RuleSet, counters: S) -> Self {
        Limiter::with_records(rules, counters, NoRecords, Seed::random())
    }
}

impl<S, R: RecordSink> Limiter<S, R> {
    /// A limiter with a place for records. Limiters that share counters share the seed.
    pub fn with_records(rules: RuleSet, counters: S, records: R, seed: Seed) -> Self {
        let local = Fallback::new(MemoryBounds::default());
        Limiter { rules: CurrentRules::new(rules.with_seed(seed)), counters, local, records }
    }

    /// The same limiter; what it counts while the counters cannot be reached stays within these bounds.
    #[must_use]
    pub fn with_fallback_bounds(self, bounds: MemoryBounds) -> Self {
        Limiter { local: Fallback::new(bounds), ..self }
    }

    /// What was counted here while the counters could not be reached, and is not brought to them yet.
    pub fn fallback_counters(&self) -> &MemoryCounters {
        self.local.counters()
    }

    /// Drops what is as good as new from one shard of [`Limiter::fallback_counters`]. To be called from time to time, with
    /// one turn after another.
    pub fn sweep_fallback(&self, turn: usize, now: Timestamp) {
        self.local.sweep_shard(turn, now);
    }

    /// Forgets what was counted here of counters that another node has reset: it must not be brought to them any more.
    /// A counter is known by its subject and its id, combined by exclusive or; a client's record by its subject.
    pub fn discard_fallback(&self, reset: &[u128]) {
        self.local.forget(reset);
    }

    /// The counters.
    pub fn counters(&self) -> &S {
        &self.counters
    }

    /// Where records go.
    pub fn records(&self) -> &R {
        &self.records
    }

    /// The key of the subject hashes.
    pub fn seed(&self) -> Seed {
        self.rules.load().seed
    }

    /// Hashes subjects by another key from now on: what was counted under the old one is not found any more. For a node
    /// that joins others after it has begun.
    pub fn set_seed(&self, seed: Seed) {
        self.rules.update(|rules| rules.with_overrides(Arc::clone(rules.overrides())).with_seed(seed));
        self.local.discard_pending();
    }

    /// The rule set in force.
    pub fn rules(&self) -> Snapshot {
        self.rules.load()
    }

    /// A request that is refused or admitted without any counter being asked.
    fn settled(plan: &ChargePlan<'_>) -> Option<Draft> {
        match plan.end {
            EvaluationEnd::Blocked(rule) => Some(Draft::blocked(rule)),
            EvaluationEnd::BlockedPrincipal(block) => Some(Draft::barred(block)),
            _ if plan.charges.charges.is_empty() => Some(Draft::from_verdicts(plan, &Verdicts::default())),
            _ => None,
        }
    }

    fn conclude(&self, draft: Draft, rules: Snapshot, request: &Request<'_>, now: Timestamp) -> Decision {
        let decision = draft.complete(rules, now);
        if decision.rules().is_exact() {
            self.records.offer(&Record { request, decision: &decision });
        } else {
            let mut scratch = Scratch::default();
            let request = decision.rules().normalize(request, &mut scratch);
            self.records.offer(&Record { request: &request, decision: &decision });
        }
        decision
    }
}

impl<S: CounterStore, R: RecordSink> Limiter<S, R> {
    /// Replaces the rules; numbers set for single users stay, and so do the accounts.
    pub fn replace_rules(&self, rules: RuleSet) {
        // From the set in force when it is replaced, not before: numbers set meanwhile are not lost.
        self.change_rules(move |current| {
            let kept = rules.with_overrides(Arc::clone(current.overrides()));
            kept.with_accounts(Arc::clone(current.accounts())).with_seed(current.seed)
        });
    }

    /// Replaces the numbers set for single users.
    pub fn update_overrides(&self, next: impl Fn(&Overrides) -> Overrides) {
        self.change_rules(|rules| rules.with_overrides(Arc::new(next(rules.overrides()))));
    }

    /// Replaces what is known of users and keys, and who is blocked. `next` may be asked again, if another change comes
    /// between.
    pub fn update_accounts(&self, next: impl Fn(&Accounts) -> Accounts) {
        self.change_rules(|rules| rules.with_accounts(Arc::new(next(rules.accounts()))));
    }

    /// Replaces rules, numbers of single users and accounts at once. `next` makes the whole of them from those in force,
    /// and may be asked again, if another change comes between.
    pub fn update_rules(&self, next: impl Fn(&RuleSet) -> RuleSet) {
        self.change_rules(|current| next(current).with_seed(current.seed));
    }

    /// Puts the next rule set in force, and tells the counters which limits were lowered by it.
    fn change_rules(&self, next: impl Fn(&RuleSet) -> RuleSet) {
        let before = self.rules.update(next);
        // Afterwards: what is still counted by the old rules meanwhile is told of too. A decision that began before and
        // writes later is not, and is forgotten at the old limit's pace.
        for extension in retention_extensions(&before, &self.rules.load()) {
            self.counters.extend_retention(&extension);
            self.local.counters().extend_retention(&extension);
        }
    }
}

impl<S: CounterStore, R: RecordSink> Limiter<S, R> {
    /// The way of one request. A request always gets a decision.
    pub async fn check(&self, request: &Request<'_>, now: Timestamp) -> Decision {
        let rules = self.rules.load(); // one snapshot for the whole request
        let draft = self.decide(&rules, request, now, false).await;
        self.conclude(draft, rules, request, now)
    }

    /// What [`Limiter::check`] would answer now, without charging or recording anything.
    pub async fn peek(&self, request: &Request<'_>, now: Timestamp) -> Decision {
        let rules = self.rules.load();
        self.decide(&rules, request, now, true).await.complete(rules, now)
    }

    /// The same answer as [`Limiter::peek`], with what became of every rule on the walk.
    pub async fn explain(&self, request: &Request<'_>, now: Timestamp) -> Explanation {
        let rules = self.rules.load();
        let mut scratch = Scratch::default();
        let (mut plan, steps) = rules.plan_explained(request, &mut scratch, rules.seed, now);
        plan.charges.dry_run = true;
        let draft = self.charge(&mut plan, &rules, now).await;
        let mut behind = None;
        if draft.is_in_cooldown() {
            // Of a client that is kept out that is told, and not what its limits say: apart from its record they do.
            plan.charges.penalty = None;
            behind = Some(self.charge(&mut plan, &rules, now).await.into_reports());
        }
        drop(plan);
        Explanation::new(draft.complete(rules, now), steps, behind)
    }

    /// What the counters of the request's client hold, for every rule in force that counts it.
    ///
    /// # Errors
    /// When the store refuses us. While it cannot be reached, what this node has counted itself is told.
    pub async fn inspect(
        &self,
        request: &Request<'_>,
        endpoints: EndpointScope,
        now: Timestamp,
    ) -> Result<Inspection, StoreError> {
        let rules = self.rules.load();
        let request = Request { cost: 0, ..request.clone() };
        let mut scratch = Scratch::default();
        let (of_client, skipped) = rules.charges_to_inspect(&request, &mut scratch, rules.seed, endpoints);
        let mut inspection = Inspection::new(&skipped, now);
        // The record apart: of a client that is kept out no limit is looked at.
        let looks = of_client.charges.chunks(CHARGES_MAX).map(|some| (SmallVec::from_slice(some), None));
        let record = of_client.penalty.map(|penalty| (SmallVec::new(), Some(penalty)));
        for (charges, penalty) in looks.chain(record) {
            let look = Charges { charges, penalty, dry_run: true, tenant: of_client.tenant };
            match self.ask(&look, now).await {
                Ok(seen) => inspection.note(&look, &seen),
                Err(StoreError::Misconfigured) => return Err(StoreError::Misconfigured),
                Err(_) => {
                    let nodes = self.counters.nodes();
                    inspection.note_share(&look, &self.local.charge(&look, nodes, now), nodes);
                }
            }
        }
        Ok(inspection)
    }

    async fn decide(&self, rules: &RuleSet, request: &Request<'_>, now: Timestamp, dry_run: bool) -> Draft {
        let mut scratch = Scratch::default();
        let mut plan = rules.plan(request, &mut scratch, rules.seed, now);
        plan.charges.dry_run = dry_run;
        self.charge(&mut plan, rules, now).await
    }

    async fn charge(&self, plan: &mut ChargePlan<'_>, rules: &RuleSet, now: Timestamp) -> Draft {
        if let Some(draft) = Self::settled(plan) {
            return draft;
        }
        match self.ask(&plan.charges, now).await {
            Ok(verdicts) => Draft::from_verdicts(plan, &verdicts),
            Err(error) => self.without_counters(plan, rules, &error, now),
        }
    }

    /// Asks the counters. Without an outage this is one look at a flag more; the rest stays out of the way of the others.
    async fn ask(&self, charges: &Charges<'_>, now: Timestamp) -> Result<Verdicts, StoreError> {
        if self.local.is_used() {
            return Box::pin(self.ask_after_outage(charges, now)).await;
        }
        self.counters.charge_all(charges, now).await
    }

    /// Without the shared counters each rule says what happens: count this node's share here, admit, or
    /// refuse.
    fn without_counters(
        &self,
        plan: &mut ChargePlan<'_>,
        rules: &RuleSet,
        error: &StoreError,
        now: Timestamp,
    ) -> Draft {
        if let Some(rule) = closed_rule(plan, rules.rules(), error) {
            return Draft::unavailable(Some(rule), error);
        }
        let sources = plan.sources.clone();
        for (charge, source) in plan.charges.charges.iter_mut().zip(sources) {
            let rule = rules.rules().get(source as usize);
            if rule.is_some_and(|rule| rule.on_store_failure == OnStoreFailure::Open) {
                charge.effect = Effect::Shadow;
            }
        }
        let verdicts = self.local.charge(&plan.charges, self.counters.nodes(), now);
        Draft::from_verdicts(plan, &verdicts).degraded()
    }
}

impl<R: RecordSink> Limiter<MemoryCounters, R> {
    /// [`Limiter::check`] without a future: memory never waits.
    pub fn check_now(&self, request: &Request<'_>, now: Timestamp) -> Decision {
        let rules = self.rules.load();
        let mut scratch = Scratch::default();
        let plan = rules.plan(request, &mut scratch, rules.seed, now);
        let draft = Self::settled(&plan).unwrap_or_else(|| {
            Draft::from_verdicts(&plan, &self.counters.charge_all_now(&plan.charges, now))
        });
        drop(plan);
        self.conclude(draft, rules, request, now)
    }
}

impl<S: CounterStore + CounterAdmin, R: RecordSink> Limiter<S, R> {
    /// Clears the counters of the request's client, and its record. If the request brings numbers of its own, also the
    /// counter of such numbers, however large: it is known by their window and algorithm.
    ///
    /// # Errors
    /// When the store cannot be reached, or not all of it. What it could forget is forgotten all the same, and what was
    /// counted here in its place.
    pub async fn reset(&self, request: &Request<'_>) -> Result<Reset, StoreError> {
        let rules = self.rules.load();
        let mut scratch = Scratch::default();
        let (charges, skipped) = rules.charges_of_client(request, &mut scratch, rules.seed);
        let reset = self.counters.reset(&charges).await;
        if self.local.is_used() {
            // What is forgotten there must not be brought there again; and a part of it is, also when it fails.
            let counters = charges.charges.iter().map(|charge| charge.subject.0 ^ charge.counter.0);
            let record = charges.penalty.map(|penalty| penalty.subject.0);
            self.local.forget(&counters.chain(record).collect::<Vec<_>>());
        }
        Ok(Reset { counters: reset?, skipped: skipped.iter().map(|unsaid| unsaid.rule.to_owned()).collect() })
    }

    /// Sets numbers for one user on one endpoint, once `agreed` says that whoever shares the counters knows them.
    ///
    /// What the client has used by then under the rule in force is carried over, so that new numbers are no second
    /// allowance. If the store is lost at that very moment, the client starts afresh.
    ///
    /// # Errors
    /// That of `agreed`: then nothing is set.
    pub async fn set_override<E>(
        &self,
        request: &Request<'_>,
        new: Override,
        now: Timestamp,
        agreed: impl Future<Output = Result<(), E>>,
    ) -> Result<(), E> {
        // Looked at first: others who agree may put the numbers in force here before we do.
        let used = self.consumed_before(request, &new, now).await;
        agreed.await?;
        self.update_overrides(|overrides| overrides.with(new.clone()));
        self.charge_consumed(request, &new, used, now).await;
        Ok(())
    }

    /// What the client has used under the rule in force, as far as new numbers do not know of it.
    pub async fn consumed_before(&self, request: &Request<'_>, new: &Override, now: Timestamp) -> u32 {
        let request = &Request { cost: 0, ..request.clone() };
        let rules = self.rules.load();
        let mut scratch = Scratch::default();
        let mut plan = rules.plan(request, &mut scratch, rules.seed, now);
        plan.charges.dry_run = true;
        // Without its record: of a client that is kept out nothing remains, whatever it has used.
        plan.charges.penalty = None;
        let draft = self.charge(&mut plan, &rules, now).await;
        drop(plan);
        let before = draft.complete(rules, now);
        // The same window and algorithm are the same counter: what was used is there already.
        let same_counter = |old: &Arc<Override>| old.limit.counter == new.limit.counter;
        let known = self.rules.load().overrides().get(&new.user, &new.endpoint).is_some_and(same_counter);
        if known { 0 } else { request.client().map_or(0, |client| before.used_by(client)) }
    }

    /// Charges what was [used before](Self::consumed_before) to numbers that are in force now.
    pub async fn charge_consumed(&self, request: &Request<'_>, new: &Override, used: u32, now: Timestamp) {
        if used == 0 {
            return;
        }
        let rules = self.rules.load();
        let carried = Request { cost: used.min(new.limit.limit.capacity()), ..request.clone() };
        let mut scratch = Scratch::default();
        let mut plan = rules.plan(&carried, &mut scratch, rules.seed, now);
        plan.charges.penalty = None;
        let new_counter = new.limit.counter;
        plan.charges.charges.retain(|charge| charge.counter == new_counter);
        let _ = self.counters.charge_all(&plan.charges, now).await;
    }
}
