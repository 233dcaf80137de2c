//! The walk: from a request to what it is charged.
//!
//! Matching rules are looked at in the order of the set. `allow` ends the walk, and what was collected before it
//! still applies. `block` refuses at once. A limiting rule is collected unless its layer is taken. Rules that only
//! log take no layer and refuse nothing. The same walk serves a decision, which visits the candidates of the index,
//! and an explanation, which visits every rule.
//!
//! Where users or keys are known, the request is completed before the walk, and whoever is blocked does not set out.

use smallvec::SmallVec;

use super::compiled::CompiledRule;
use super::overrides::{CHECK_NAMESPACE, CONFIG_NAMESPACE, KEY_NAMESPACE, QUOTA_NAMESPACE};
use super::rule::{Action, RuleLimit, counter_id};
use super::set::RuleSet;
use crate::accounts::{AccountOverride, BlockPosition, ResolvedRequest};
use crate::counters::{Charge, Charges, CounterId, Effect, PenaltyCharge};
use crate::identity::{Client, Dimension, Request, Scratch, Seed, Subject, SubjectHasher, Tenant, tag};
use crate::limit::{Limit, LimitError, LimitOverride};
use crate::time::Timestamp;

/// The most limits of rules that one request is charged. A key's own numbers, which stand in the place of one rule, have
/// up to three windows and so can make it two more.
pub const CHARGES_MAX: usize = 16;

/// What one request is charged, and by which rules.
#[derive(Debug, Default)]
pub(crate) struct ChargePlan<'a> {
    /// What to ask the counters.
    pub(crate) charges: Charges<'a>,
    /// The rule behind each charge.
    pub(crate) sources: SmallVec<[u32; 4]>,
    /// How the walk ended.
    pub(crate) end: EvaluationEnd,
}

/// How a walk ended.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum EvaluationEnd {
    /// No more rules.
    #[default]
    Exhausted,
    /// At this rule, which admits.
    Allowed(u32),
    /// At this rule, which refuses.
    Blocked(u32),
    /// Before it began: somebody whom the request names is blocked.
    BlockedPrincipal(BlockPosition),
}

/// What became of one rule on the walk.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum RuleOutcome {
    /// Its limits apply.
    Collected,
    /// It ended the walk by admitting.
    Allowed,
    /// It ended the walk by refusing.
    Blocked,
    /// It is switched off.
    Disabled,
    /// A condition does not hold.
    Mismatch,
    /// The request lacks the value that the rule counts by, the one at this position of its `per`.
    NoSubject(usize),
    /// A rule before it has its layer.
    LayerTaken,
    /// The walk had ended before it.
    NotReached,
    /// The request already has as many limits as one can have.
    TooMany,
}

/// A walk under way.
pub(super) struct Evaluation<'a, 'r> {
    set: &'a RuleSet,
    request: &'r Request<'a>,
    seed: Seed,
    plan: &'r mut ChargePlan<'a>,
    layers: SmallVec<[u32; 8]>,
    /// Limits of rules that only log.
    shadows: usize,
    overridden: bool,
    /// Numbers of the key's or of the user's own, until they have taken the place of a rule.
    own: Option<&'r AccountOverride<'a>>,
    client: Option<Client<'a>>,
    /// Which charges count the client, as bits.
    client_charges: u32,
}

impl RuleSet {
    /// What the request is charged.
    pub(crate) fn plan<'a>(
        &'a self,
        request: &'a Request<'a>,
        scratch: &'a mut Scratch<'a>,
        seed: Seed,
        now: Timestamp,
    ) -> ChargePlan<'a> {
        if self.needs_resolution {
            return self.plan_known(request, scratch, seed, now);
        }
        self.walk(request, seed, None)
    }

    /// The same where users or keys are known, addresses translated, or spellings folded.
    #[inline(never)]
    fn plan_known<'a>(
        &'a self,
        request: &'a Request<'a>,
        scratch: &'a mut Scratch<'a>,
        seed: Seed,
        now: Timestamp,
    ) -> ChargePlan<'a> {
        let resolved = self.resolve(request, scratch);
        match self.accounts.block_of(&resolved, now) {
            Some(at) => ChargePlan { end: EvaluationEnd::BlockedPrincipal(at), ..ChargePlan::default() },
            None => self.walk(&resolved.request, seed, self.own_of(&resolved).as_ref()),
        }
    }

    #[inline]
    fn walk<'a>(
        &'a self,
        request: &Request<'a>,
        seed: Seed,
        own: Option<&AccountOverride<'a>>,
    ) -> ChargePlan<'a> {
        let mut plan = ChargePlan::default();
        let mut walk = Evaluation::new(self, request, seed, &mut plan);
        walk.own = own;
        for position in self.index.candidates(request) {
            // Most rules that could match are less specific ones of a layer that has its rule: they are not
            // even looked at.
            if !walk.layers.contains(&self.layers[position as usize]) {
                walk.visit(position, true);
            }
            if walk.plan.end != EvaluationEnd::Exhausted {
                break;
            }
        }
        walk.finish();
        plan
    }

    /// The same walk over every rule, with what became of each.
    pub(crate) fn plan_explained<'a>(
        &'a self,
        request: &'a Request<'a>,
        scratch: &'a mut Scratch<'a>,
        seed: Seed,
        now: Timestamp,
    ) -> (ChargePlan<'a>, Vec<RuleOutcome>) {
        let resolved = self.resolve(request, scratch);
        let mut plan = ChargePlan::default();
        if let Some(at) = self.accounts.block_of(&resolved, now) {
            plan.end = EvaluationEnd::BlockedPrincipal(at);
        }
        let own = self.own_of(&resolved);
        let mut walk = Evaluation::new(self, &resolved.request, seed, &mut plan);
        walk.own = own.as_ref();
        let steps = (0u32..).zip(&*self.rules).map(|(position, _)| walk.visit(position, false)).collect();
        walk.finish();
        (plan, steps)
    }

    /// The numbers of its key's or its user's own that apply to the request: the check's own and those set for user and
    /// endpoint come before them.
    fn own_of<'a>(&self, resolved: &ResolvedRequest<'a>) -> Option<AccountOverride<'a>> {
        let request = &resolved.request;
        let own = resolved.own().next()?;
        let is_set = request.limit_override.is_some() || self.overrides.find(request).is_some();
        Some(own).filter(|_| !is_set)
    }

    /// Completes an override sent with a check from the limit in force. Returns `None` if the override is empty.
    ///
    /// # Errors
    /// When the combined values are not a valid limit.
    pub fn complete_override(
        &self,
        request: &Request<'_>,
        sent: &LimitOverride,
    ) -> Result<Option<Limit>, LimitError> {
        if sent.is_empty() {
            return Ok(None);
        }
        sent.complete(self.limit_in_force(request).as_ref()).map(Some)
    }

    /// The limit that an override sent with the request replaces: the first one that counts the request's client.
    ///
    /// It depends on the rules and the account alone, not on counters, cooldowns or blocks of the account. A rule that
    /// blocks ends the evaluation here too.
    pub fn limit_in_force(&self, request: &Request<'_>) -> Option<Limit> {
        let request = Request { limit_override: None, ..request.clone() };
        let mut scratch = Scratch::default();
        let resolved = self.resolve(&request, &mut scratch);
        let client = resolved.request.client()?;
        let plan = self.walk(&resolved.request, self.seed, self.own_of(&resolved).as_ref());
        let counts = |(charge, source): &(&Charge<'_>, &u32)| {
            let rule = self.compiled.get(**source as usize);
            charge.effect == Effect::Enforce
                && rule.is_none_or(|rule| rule.per.iter().any(|dimension| dimension.is_id_of(client)))
        };
        let first = plan.charges.charges.iter().zip(&plan.sources).find(counts);
        first.map(|(charge, _)| charge.limit.clone())
    }

    /// The name of the numbers that apply to the request in place of a rule's, `@key` for instance.
    pub(crate) fn namespace_of(&self, resolved: &ResolvedRequest<'_>) -> Option<&'static str> {
        let request = &resolved.request;
        let check = request.limit_override.map(|_| CHECK_NAMESPACE);
        let config = || self.overrides.find(request).map(|_| CONFIG_NAMESPACE);
        check.or_else(config).or_else(|| resolved.own().next().map(|own| own.namespace))
    }
}

impl<'a, 'r> Evaluation<'a, 'r> {
    pub(super) fn new(
        set: &'a RuleSet,
        request: &'r Request<'a>,
        seed: Seed,
        plan: &'r mut ChargePlan<'a>,
    ) -> Self {
        let (client, layers, overridden, own) = (request.client(), SmallVec::new(), false, None);
        Evaluation {
            set,
            request,
            seed,
            plan,
            layers,
            shadows: 0,
            overridden,
            own,
            client,
            client_charges: 0,
        }
    }

    /// Looks at one rule, which the index found or not.
    fn visit(&mut self, position: u32, found: bool) -> RuleOutcome {
        let (brief, rule) = (&self.set.compiled[position as usize], &self.set.rules[position as usize]);
        if !brief.enabled {
            return RuleOutcome::Disabled;
        }
        if self.plan.end != EvaluationEnd::Exhausted {
            return RuleOutcome::NotReached;
        }
        let request = self.request;
        if !(if found { brief.matches_found(rule, request) } else { rule.when.matches(request) }) {
            return RuleOutcome::Mismatch;
        }
        match brief.action {
            Action::Allow => {
                self.plan.end = EvaluationEnd::Allowed(position);
                RuleOutcome::Allowed
            }
            Action::Block => {
                self.plan.end = EvaluationEnd::Blocked(position);
                RuleOutcome::Blocked
            }
            Action::Reject | Action::Throttle | Action::LogOnly => self.collect(position, brief),
        }
    }

    fn collect(&mut self, position: u32, rule: &'a CompiledRule) -> RuleOutcome {
        let layer = self.set.layers[position as usize];
        let shadow = rule.action == Action::LogOnly;
        if !shadow && self.layers.contains(&layer) {
            return RuleOutcome::LayerTaken;
        }
        // The layers leave room for every rule that is enforced. Rules that only log share what is left, and so never
        // push out one that is.
        if shadow && self.shadows + rule.limits.len() > CHARGES_MAX - self.set.enforced_max {
            return RuleOutcome::TooMany;
        }
        let mut values = SubjectHasher::new(self.seed);
        let missing = |dimension| !values.push(dimension, self.request, self.set.ipv6_prefix);
        if let Some(position) = rule.per.iter().position(missing) {
            return RuleOutcome::NoSubject(position);
        }
        if shadow {
            self.shadows += rule.limits.len();
            self.charge_rule(position, rule, values.subject(), Effect::Shadow);
            return RuleOutcome::Collected;
        }
        self.layers.push(layer);
        match self.client.filter(|client| rule.per.iter().any(|dimension| dimension.is_id_of(*client))) {
            Some(client) if self.replace(position, client) => {}
            counted if self.own.is_some() && self.replace_by_own(position, rule, counted.is_some()) => {}
            _ => self.charge_rule(position, rule, values.subject(), Effect::Enforce),
        }
        RuleOutcome::Collected
    }

    /// Charges numbers of the key's or the user's own in place of the rule's, if the rule counts the client, or that key
    /// or user. They take the place of one rule.
    fn replace_by_own(&mut self, position: u32, rule: &CompiledRule, counts_client: bool) -> bool {
        let counts =
            |own: &AccountOverride<'_>| rule.per.iter().any(|dimension| dimension.is_id_of(own.client));
        let Some(own) = self.own.take_if(|own| counts_client || counts(own)) else { return false };
        self.charge_own(Some(position), own);
        true
    }

    /// Numbers of somebody's own count by their owner, on all endpoints together.
    pub(super) fn charge_own(&mut self, position: Option<u32>, own: &AccountOverride<'a>) {
        let alone = if own.namespace == KEY_NAMESPACE { NO_RULE_KEY } else { NO_RULE_QUOTA };
        let mut values = SubjectHasher::new(self.seed);
        values.push_client(own.client, self.set.ipv6_prefix);
        for limit in &own.limits.limits {
            let (subject, position) = (values.subject(), position.unwrap_or(alone));
            self.push(position, own.namespace, subject, limit.counter, &limit.limit, Effect::Enforce);
        }
    }

    /// Whether what the rule counts is the client's own doing.
    pub(super) fn is_own(&self, rule: &CompiledRule) -> bool {
        let counts = |dimension: &Dimension| self.client.is_some_and(|client| dimension.is_id_of(client));
        rule.per.iter().any(|dimension| dimension.identifies_client() || counts(dimension))
    }

    /// Charges numbers that take the place of the rule's, if there are any: the check's own before those set for the
    /// user and endpoint. They take the place of one rule.
    fn replace(&mut self, position: u32, client: Client<'_>) -> bool {
        if self.overridden {
            return false;
        }
        let found = self.of_check().or_else(|| self.configured());
        if let Some(numbers) = found {
            self.overridden = true;
            self.charge_override(position, client, numbers);
        }
        found.is_some()
    }

    fn of_check(&self) -> Option<Replacement<'a>> {
        let limit = self.request.limit_override?;
        Some(Replacement { namespace: CHECK_NAMESPACE, counter: counter_id(CHECK_NAMESPACE, limit), limit })
    }

    fn configured(&self) -> Option<Replacement<'a>> {
        let RuleLimit { counter, limit } = &self.set.overrides.find(self.request)?.limit;
        Some(Replacement { namespace: CONFIG_NAMESPACE, counter: *counter, limit })
    }

    pub(super) fn charge_rule(
        &mut self,
        position: u32,
        rule: &'a CompiledRule,
        subject: Subject,
        effect: Effect,
    ) {
        for limit in &rule.limits {
            self.push(position, &rule.name, subject, limit.counter, &limit.limit, effect);
        }
    }

    /// Numbers of their own count on their own: by client and endpoint, whatever the rule counts by.
    fn charge_override(&mut self, position: u32, client: Client<'_>, numbers: Replacement<'a>) {
        let Replacement { namespace, counter, limit } = numbers;
        let mut values = SubjectHasher::new(self.seed);
        values.push_client(client, self.set.ipv6_prefix);
        values.push_bytes(tag::OVERRIDE, self.request.endpoint.as_str().as_bytes());
        self.push(position, namespace, values.subject(), counter, limit, Effect::Enforce);
    }

    /// Adds a charge on behalf of the rule at this position. It is counted under `name`: that of the rule, or that of the
    /// numbers in its place, which are the same wherever they stand.
    fn push(
        &mut self,
        position: u32,
        name: &'a str,
        subject: Subject,
        counter: CounterId,
        limit: &'a Limit,
        effect: Effect,
    ) {
        let rule = self.set.compiled.get(position as usize);
        // Only penalties ask whose doing a refusal is.
        if self.set.penalties.is_some() && rule.is_none_or(|rule| self.is_own(rule)) {
            let bit = u32::try_from(self.plan.sources.len()).unwrap_or(u32::MAX);
            self.client_charges |= 1_u32.checked_shl(bit).unwrap_or(0);
        }
        let leases = rule.is_none_or(|rule| rule.leases);
        let cost = self.request.cost;
        self.plan.charges.charges.push(Charge { subject, counter, rule: name, limit, cost, effect, leases });
        self.plan.sources.push(position);
    }

    pub(super) fn finish(&mut self) {
        self.plan.charges.tenant = self.request.tenant.map(|id| Tenant::new(id, self.seed));
        if let Some(client) = self.client {
            self.charge_without_rule(client);
        }
        let enforced = |charge: &Charge<'_>| charge.effect == Effect::Enforce;
        if let Some(policy) = &self.set.penalties
            && let Some(client) = self.client
            && self.plan.charges.charges.iter().any(enforced)
        {
            // The same subject as that of a rule that counts by this client, so that a cluster keeps both in one slot.
            let mut values = SubjectHasher::new(self.seed);
            values.push_client(client, self.set.ipv6_prefix);
            let subject = values.subject();
            let client_charges = self.client_charges;
            self.plan.charges.penalty = Some(PenaltyCharge { subject, client, policy, client_charges });
        }
    }

    /// Charges all numbers of the client's own on the endpoint, whichever would apply: the check's, and those set for it.
    pub(super) fn charge_every_override(&mut self) {
        self.overridden = true;
        for (position, numbers) in [(NO_RULE_CHECK, self.of_check()), (NO_RULE_CONFIG, self.configured())] {
            if let Some((client, numbers)) = self.client.zip(numbers) {
                self.charge_override(position, client, numbers);
            }
        }
    }

    /// Numbers of its own whose place no collected rule has: they apply alone. Whom a rule exempts is not limited by
    /// numbers that were set before.
    fn charge_without_rule(&mut self, client: Client<'_>) {
        if self.overridden
            || matches!(self.plan.end, EvaluationEnd::Blocked(_) | EvaluationEnd::BlockedPrincipal(_))
        {
            return;
        }
        if self.plan.end == EvaluationEnd::Exhausted
            && let Some(own) = self.own.take()
        {
            return self.charge_own(None, own);
        }
        let own = self.of_check().map(|numbers| (NO_RULE_CHECK, numbers));
        let set = self.configured().filter(|_| self.plan.end == EvaluationEnd::Exhausted);
        if let Some((position, numbers)) = own.or(set.map(|numbers| (NO_RULE_CONFIG, numbers))) {
            self.charge_override(position, client, numbers);
        }
    }
}

/// Numbers that take the place of a rule's on one endpoint.
#[derive(Copy, Clone)]
struct Replacement<'a> {
    namespace: &'static str,
    counter: CounterId,
    limit: &'a Limit,
}

/// The source of a charge with a check's own numbers, where they stand alone.
const NO_RULE_CHECK: u32 = u32::MAX;
/// The source of a charge with numbers set for the user and endpoint, where they stand alone.
const NO_RULE_CONFIG: u32 = u32::MAX - 1;
/// The source of a charge with a key's own numbers, where they stand alone.
const NO_RULE_KEY: u32 = u32::MAX - 2;
/// The source of a charge with a user's own numbers, where they stand alone.
const NO_RULE_QUOTA: u32 = u32::MAX - 3;

/// The name of what stands in a rule's place.
pub(crate) const fn namespace(position: u32) -> &'static str {
    match position {
        NO_RULE_CONFIG => CONFIG_NAMESPACE,
        NO_RULE_KEY => KEY_NAMESPACE,
        NO_RULE_QUOTA => QUOTA_NAMESPACE,
        _ => CHECK_NAMESPACE,
    }
}
