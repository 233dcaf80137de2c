//! Rule evaluation: from a request to the limits that it is charged.
//!
//! 1. The request is resolved: completed by its accounts and normalized.
//! 2. A block of its user, key, tenant, login or address ends the evaluation.
//! 3. Matching rules are visited in order. `allow` ends the evaluation, but limits collected before it still apply.
//!    `block` refuses. A limiting rule is collected unless an earlier rule occupies its layer. `log_only` rules
//!    occupy no layer and refuse nothing.
//! 4. Overrides apply, the first of: the check, user and endpoint, API key, user. The first two replace the first
//!    collected rule that counts the client. Limits of a key or user are charged once, in place of every collected
//!    plan-level rule ([`Rule::is_plan_level`](super::Rule::is_plan_level)). An override that replaces no rule applies
//!    beside the others.
//! 5. A rule that counts by client charges the address too if the client is only claimed
//!    ([`Request::address_beside_client`]).
//!
//! A decision visits only the candidates of the index; an explanation visits every rule.

use smallvec::SmallVec;

use super::compiled::CompiledRule;
use super::overrides::{CHECK_NAMESPACE, CONFIG_NAMESPACE, EndpointOverride};
use super::plan::{CHARGES_MAX, ChargePlan, EvaluationEnd, RuleOutcome, no_rule};
use super::rule::{Action, RuleLimit};
use super::set::RuleSet;
use crate::accounts::{AccountOverride, ResolvedRequest};
use crate::counters::{Charge, CounterId, Effect, PenaltyCharge};
use crate::identity::{
    Client, Dimension, Id, InTenant, Request, Scratch, Subject, SubjectHasher, Tenant, tag,
};
use crate::limit::{Algorithm, Limit, LimitError, LimitOverride};
use crate::time::Timestamp;

impl RuleSet {
    /// Evaluates a request.
    pub(crate) fn plan<'a>(
        &'a self,
        request: &'a Request<'a>,
        scratch: &'a mut Scratch<'a>,
        now: Timestamp,
    ) -> ChargePlan<'a> {
        if self.needs_resolution {
            return self.plan_resolved(request, scratch, now);
        }
        self.visit_candidates(request, None)
    }

    #[inline(never)]
    fn plan_resolved<'a>(
        &'a self,
        request: &'a Request<'a>,
        scratch: &'a mut Scratch<'a>,
        now: Timestamp,
    ) -> ChargePlan<'a> {
        if !self.settings.enabled {
            return ChargePlan::default();
        }
        let resolved = self.resolve(request, scratch);
        if let Some(block) = self.accounts.block_of(&resolved, now) {
            return ChargePlan { end: EvaluationEnd::BlockedPrincipal(block), ..ChargePlan::default() };
        }
        let account_override = self.account_override(&resolved);
        self.visit_candidates(&resolved.request, account_override.as_ref())
    }

    #[inline]
    fn visit_candidates<'a>(
        &'a self,
        request: &Request<'a>,
        account_override: Option<&AccountOverride<'a>>,
    ) -> ChargePlan<'a> {
        let mut plan = ChargePlan::default();
        let mut evaluation = Evaluation::new(self, request, &mut plan);
        evaluation.account_override = account_override;
        for position in self.index.candidates(request) {
            // Most candidates are less specific rules of a layer that is already taken: skip them early.
            if !evaluation.layers.contains(&self.layers[position as usize]) {
                evaluation.visit(position, true);
            }
            if evaluation.plan.end != EvaluationEnd::Exhausted {
                break;
            }
        }
        evaluation.finish();
        plan
    }

    /// Evaluates a request against every rule, and returns the outcome of each.
    pub(crate) fn plan_explained<'a>(
        &'a self,
        request: &'a Request<'a>,
        scratch: &'a mut Scratch<'a>,
        now: Timestamp,
    ) -> (ChargePlan<'a>, Vec<RuleOutcome>) {
        if !self.settings.enabled {
            return (ChargePlan::default(), vec![RuleOutcome::SwitchedOff; self.rules.len()]);
        }
        let resolved = self.resolve(request, scratch);
        let account_override = self.account_override(&resolved);
        let mut plan = ChargePlan::default();
        if let Some(block) = self.accounts.block_of(&resolved, now) {
            plan.end = EvaluationEnd::BlockedPrincipal(block);
        }
        let mut evaluation = Evaluation::new(self, &resolved.request, &mut plan);
        evaluation.account_override = account_override.as_ref();
        let positions = (0u32..).zip(&*self.rules);
        let outcomes = positions.map(|(position, _)| evaluation.visit(position, false)).collect();
        evaluation.finish();
        (plan, outcomes)
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
    pub fn limit_in_force(&self, request: &Request<'_>) -> Option<Limit> {
        self.limits_in_force(request).into_iter().next()
    }

    /// Whether the values sent with a check are those of a limit in force. Then they override nothing.
    pub fn is_in_force(&self, request: &Request<'_>, sent: &LimitOverride) -> bool {
        self.limits_in_force(request).iter().any(|limit| sent.equals(limit))
    }

    /// One limit for each counter that checks with an override of the limits in force may have charged: every algorithm
    /// with the windows in force. The numbers of requests mean nothing.
    pub(crate) fn check_overrides(&self, request: &Request<'_>) -> Vec<Limit> {
        let mut found: Vec<Limit> = Vec::new();
        for limit in self.limits_in_force(request) {
            let with = |algorithm| LimitOverride {
                algorithm: Some(algorithm),
                requests: Some(1),
                ..LimitOverride::default()
            };
            let all = Algorithm::ALL.into_iter().filter_map(|one| with(one).complete(Some(&limit)).ok());
            for one in all {
                if !found.contains(&one) {
                    found.push(one);
                }
            }
        }
        found
    }

    /// The limits that count the request's client.
    ///
    /// They depend on the rules and the account alone, not on counters, cooldowns or blocks of the account. A rule that
    /// blocks ends the evaluation here too.
    fn limits_in_force(&self, request: &Request<'_>) -> SmallVec<[Limit; 2]> {
        let request = Request { limit_override: None, ..request.clone() };
        let mut scratch = Scratch::default();
        let resolved = self.resolve(&request, &mut scratch);
        let Some(client) = resolved.request.client() else { return SmallVec::new() };
        let account_override = self.account_override(&resolved);
        let plan = self.visit_candidates(&resolved.request, account_override.as_ref());
        let counts_client = |(charge, source): &(&Charge<'_>, &u32)| {
            let rule = self.compiled.get(**source as usize);
            charge.effect == Effect::Enforce && rule.is_none_or(|rule| rule.counts(client))
        };
        let charges = plan.charges.charges.iter().zip(&plan.sources).filter(counts_client);
        charges.map(|(charge, _)| charge.limit.clone()).collect()
    }

    /// The override of the key or the user, unless an override of higher precedence applies.
    fn account_override<'a>(&self, resolved: &ResolvedRequest<'a>) -> Option<AccountOverride<'a>> {
        let request = &resolved.request;
        let first = resolved.account_overrides().next()?;
        let is_overridden = request.limit_override.is_some() || self.overrides.find(request).is_some();
        Some(first).filter(|_| !is_overridden)
    }

    /// The name of the override that applies to a request, such as `@key`.
    pub(crate) fn namespace_of(&self, resolved: &ResolvedRequest<'_>) -> Option<&'static str> {
        let request = &resolved.request;
        let check = request.limit_override.map(|_| CHECK_NAMESPACE);
        let config = || self.overrides.find(request).map(|_| CONFIG_NAMESPACE);
        let account = || resolved.account_overrides().next().map(|first| first.namespace);
        check.or_else(config).or_else(account)
    }
}

/// The evaluation of one request.
pub(super) struct Evaluation<'a, 'r> {
    set: &'a RuleSet,
    request: &'r Request<'a>,
    plan: &'r mut ChargePlan<'a>,
    /// The layers that are taken.
    layers: SmallVec<[u32; 8]>,
    /// The number of collected `log_only` limits.
    shadows: usize,
    /// Whether the override of the check, or of user and endpoint, has been charged.
    is_overridden: bool,
    /// The override of the key or the user.
    account_override: Option<&'r AccountOverride<'a>>,
    is_account_charged: bool,
    client: Option<Client<'a>>,
    /// The address, if it is counted beside the client.
    address: Option<Client<'a>>,
    /// The charges that count the client that penalties apply to, as a bit set.
    client_charges: u32,
}

impl<'a, 'r> Evaluation<'a, 'r> {
    pub(super) fn new(set: &'a RuleSet, request: &'r Request<'a>, plan: &'r mut ChargePlan<'a>) -> Self {
        Evaluation {
            set,
            request,
            plan,
            layers: SmallVec::new(),
            shadows: 0,
            is_overridden: false,
            account_override: None,
            is_account_charged: false,
            client: request.client(),
            address: request.address_beside_client(),
            client_charges: 0,
        }
    }

    /// Evaluates one rule. `is_candidate`: the index has already checked one of its conditions.
    fn visit(&mut self, position: u32, is_candidate: bool) -> RuleOutcome {
        let (compiled, rule) = (&self.set.compiled[position as usize], &self.set.rules[position as usize]);
        if !compiled.enabled {
            return RuleOutcome::Disabled;
        }
        if self.plan.end != EvaluationEnd::Exhausted {
            return RuleOutcome::NotReached;
        }
        let request = self.request;
        if !(if is_candidate {
            compiled.matches_candidate(rule, request)
        } else {
            rule.when.matches(request)
        }) {
            return RuleOutcome::Mismatch;
        }
        match compiled.action {
            Action::Allow => {
                self.plan.end = EvaluationEnd::Allowed(position);
                RuleOutcome::Allowed
            }
            Action::Block => {
                self.plan.end = EvaluationEnd::Blocked(position);
                RuleOutcome::Blocked
            }
            Action::Reject | Action::Throttle | Action::LogOnly => self.collect(position, compiled),
        }
    }

    /// Charges the limits of a matching rule, or those of an override in their place.
    fn collect(&mut self, position: u32, rule: &'a CompiledRule) -> RuleOutcome {
        let layer = self.set.layers[position as usize];
        let shadow = rule.action == Action::LogOnly;
        if !shadow && self.layers.contains(&layer) {
            return RuleOutcome::LayerTaken;
        }
        // `log_only` rules share what the enforced rules of all layers leave, so they never displace one.
        if shadow && self.shadows + rule.limits.len() > CHARGES_MAX - self.set.enforced_max {
            return RuleOutcome::TooMany;
        }
        let mut values = rule.start_subject(self.set.seed, self.request);
        let is_missing = |dimension| !values.push(dimension, self.request, self.set.ip_prefixes);
        if let Some(position) = rule.per.iter().position(is_missing) {
            return RuleOutcome::NoSubject(position);
        }
        if shadow {
            self.shadows += rule.limits.len();
            self.charge_rule(position, rule, values.subject(), Effect::Shadow);
            self.charge_address(position, rule, Effect::Shadow);
            return RuleOutcome::Collected;
        }
        self.layers.push(layer);
        let client = self.client.filter(|client| rule.counts(*client));
        let replaced_by = (client.and_then(|client| self.charge_override_instead(position, client)))
            .or_else(|| self.charge_account_instead(position, rule, client.is_some()));
        if let Some(namespace) = replaced_by {
            return RuleOutcome::Replaced(namespace);
        }
        self.charge_rule(position, rule, values.subject(), Effect::Enforce);
        self.charge_address(position, rule, Effect::Enforce);
        RuleOutcome::Collected
    }

    /// Charges the override of the check, or else that of user and endpoint. Each replaces only one rule.
    fn charge_override_instead(&mut self, position: u32, client: Client<'_>) -> Option<&'static str> {
        if self.is_overridden {
            return None;
        }
        let found = self.check_override().or_else(|| self.configured_override())?;
        self.is_overridden = true;
        self.charge_override(Some(position), client, found);
        Some(found.namespace)
    }

    /// Puts the override of the key or the user in the place of a plan-level rule that counts the client, or that key or
    /// user. It is charged once, at the first such rule.
    fn charge_account_instead(
        &mut self,
        position: u32,
        rule: &CompiledRule,
        counts_client: bool,
    ) -> Option<&'static str> {
        let own = self.account_override.filter(|_| rule.is_plan_level)?;
        if !counts_client && !rule.counts(own.client) {
            return None;
        }
        if !std::mem::replace(&mut self.is_account_charged, true) {
            self.charge_account(Some(position), own);
        }
        Some(own.namespace)
    }

    fn check_override(&self) -> Option<EndpointOverride<'a>> {
        self.request.limit_override.map(EndpointOverride::of_check)
    }

    fn configured_override(&self) -> Option<EndpointOverride<'a>> {
        let RuleLimit { counter, limit } = &self.set.overrides.find(self.request)?.limit;
        Some(EndpointOverride { namespace: CONFIG_NAMESPACE, counter: *counter, limit })
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

    /// Charges the limits of a rule that counts by client to the address too, if the client is only claimed.
    pub(super) fn charge_address(&mut self, position: u32, rule: &'a CompiledRule, effect: Effect) {
        let Some(address) = self.address.filter(|_| rule.per.contains(&Dimension::Client)) else { return };
        let mut values = rule.start_subject(self.set.seed, self.request);
        for dimension in &rule.per {
            match dimension {
                Dimension::Client => values.push_client(address, self.set.ip_prefixes),
                // The request has it: the client itself was counted.
                other => _ = values.push(other, self.request, self.set.ip_prefixes),
            }
        }
        for limit in &rule.limits {
            self.push_address(position, &rule.name, values.subject(), limit.counter, &limit.limit, effect);
        }
    }

    /// Counts by client and endpoint, whatever the replaced rule counts by.
    fn charge_override(&mut self, position: Option<u32>, client: Client<'_>, found: EndpointOverride<'a>) {
        let EndpointOverride { namespace, counter, limit } = found;
        let position = position.unwrap_or_else(|| no_rule(namespace));
        let subject = self.override_subject(client);
        self.push(position, namespace, subject, counter, limit, Effect::Enforce);
        if let Some(address) = self.address {
            let subject = self.override_subject(address);
            self.push_address(position, namespace, subject, counter, limit, Effect::Enforce);
        }
    }

    fn override_subject(&self, client: Client<'_>) -> Subject {
        let mut values = self.client_subject(client);
        values.push_bytes(tag::OVERRIDE, self.request.endpoint.as_str().as_bytes());
        values.subject()
    }

    /// Counts by key or user, over all endpoints.
    pub(super) fn charge_account(&mut self, position: Option<u32>, own: &AccountOverride<'a>) {
        let position = position.unwrap_or_else(|| no_rule(own.namespace));
        let values = self.client_subject(own.client);
        for limit in &own.limits.limits {
            self.push(
                position,
                own.namespace,
                values.subject(),
                limit.counter,
                &limit.limit,
                Effect::Enforce,
            );
        }
    }

    /// The subject of a client inside the request's tenant.
    fn client_subject(&self, client: Client<'_>) -> SubjectHasher {
        let mut values = SubjectHasher::new(self.set.seed);
        values.push_client_in(self.request.tenant, client, self.set.ip_prefixes);
        values
    }

    /// Adds a charge on behalf of the rule at `position`, counted under `name`: that of the rule or of the override.
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
        // Only penalties need to know which refusals the client itself has caused.
        if self.set.penalties.is_some() && self.is_violation(rule) {
            self.client_charges |= 1_u32.checked_shl(self.next_position()).unwrap_or(0);
        }
        let leases = rule.is_none_or(|rule| rule.leases);
        // A limit sent with a check may differ from request to request: its counter has no single rate to refund by.
        let refundable = rule.is_some_and(|rule| rule.refundable) && name != CHECK_NAMESPACE;
        let cost = rule.map_or(self.request.cost, |rule| rule.cost.of(self.request));
        let charge = Charge { subject, counter, rule: name, limit, cost, effect, leases, refundable };
        self.plan.charges.charges.push(charge);
        self.plan.sources.push(position);
    }

    /// Adds a charge that counts the address beside the client.
    fn push_address(
        &mut self,
        position: u32,
        name: &'a str,
        subject: Subject,
        counter: CounterId,
        limit: &'a Limit,
        effect: Effect,
    ) {
        let bit = self.next_position();
        self.plan.address_charges |= 1_u64.checked_shl(bit).unwrap_or(0);
        self.client_charges |= 1_u32.checked_shl(bit).unwrap_or(0);
        self.push(position, name, subject, counter, limit, effect);
    }

    fn next_position(&self) -> u32 {
        u32::try_from(self.plan.sources.len()).unwrap_or(u32::MAX)
    }

    /// Whether a refusal by this rule is a violation of the client that penalties apply to. A client that is only claimed has
    /// none: anyone could put it in cooldown by claiming it. Its address has.
    fn is_violation(&self, rule: Option<&CompiledRule>) -> bool {
        match self.address {
            Some(_) => rule.is_some_and(|rule| rule.per.contains(&Dimension::Ip)),
            None => rule.is_none_or(|rule| self.counts_client(rule)),
        }
    }

    /// Whether the rule counts the client, rather than something that clients share.
    pub(super) fn counts_client(&self, rule: &CompiledRule) -> bool {
        let is_client = |dimension: &Dimension| self.client.is_some_and(|client| dimension.is_id_of(client));
        rule.per.iter().any(|dimension| dimension.identifies_client() || is_client(dimension))
    }

    /// Adds overrides that replaced no rule, the tenant and the penalty.
    pub(super) fn finish(&mut self) {
        self.plan.charges.tenant = self.request.tenant.map(|id| Tenant::new(id, self.set.seed));
        let Some(client) = self.client else { return };
        self.charge_override_alone(client);
        let is_enforced = |charge: &Charge<'_>| charge.effect == Effect::Enforce;
        if let Some(policy) = &self.set.penalties
            && self.plan.charges.charges.iter().any(is_enforced)
        {
            let client = self.address.unwrap_or(client);
            // The same subject as that of rules that count by this client: Redis Cluster keeps both in one slot.
            let (subject, client_charges) = (self.client_subject(client).subject(), self.client_charges);
            let tenant = self.request.tenant.filter(|_| !matches!(client, Client::Tenant(_)));
            let client = InTenant::new(tenant.map(Id::as_str), client);
            self.plan.charges.penalty = Some(PenaltyCharge { subject, client, policy, client_charges });
        }
    }

    /// Charges an override that replaced no rule. After an `allow` rule only that of the check applies.
    fn charge_override_alone(&mut self, client: Client<'_>) {
        let is_blocked =
            matches!(self.plan.end, EvaluationEnd::Blocked(_) | EvaluationEnd::BlockedPrincipal(_));
        if self.is_overridden || is_blocked {
            return;
        }
        let is_exhausted = self.plan.end == EvaluationEnd::Exhausted;
        if let Some(own) = self.account_override.filter(|_| is_exhausted && !self.is_account_charged) {
            return self.charge_account(None, own);
        }
        let configured = || self.configured_override().filter(|_| is_exhausted);
        if let Some(found) = self.check_override().or_else(configured) {
            self.charge_override(None, client, found);
        }
    }

    /// Charges the overrides of the client on the endpoint, whichever would apply, and `more` as those of earlier checks.
    pub(super) fn charge_every_override(&mut self, more: &'a [Limit]) {
        self.is_overridden = true;
        let Some(client) = self.client else { return };
        let sent = self.check_override();
        let earlier = more.iter().map(EndpointOverride::of_check);
        let earlier = earlier.filter(|one| sent.is_none_or(|sent| sent.counter != one.counter));
        for found in sent.into_iter().chain(self.configured_override()).chain(earlier) {
            self.charge_override(None, client, found);
        }
    }
}
