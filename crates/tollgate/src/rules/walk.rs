//! The walk: from a request to what it is charged.
//!
//! Matching rules are looked at in the order of the set. `allow` ends the walk, and what was collected before it
//! still applies. `block` refuses at once. A limiting rule is collected unless its layer is taken. Rules that only
//! log take no layer and refuse nothing. The same walk serves a decision, which visits the candidates of the index,
//! and an explanation, which visits every rule.

use smallvec::SmallVec;

use super::overrides::CHECK_NAMESPACE;
use super::rule::{Action, Condition, Rule, counter_id};
use super::set::RuleSet;
use crate::counters::{Charge, Charges, CounterId, Effect, PenaltyCharge};
use crate::identity::{Dimension, Request, Seed, Subject, SubjectValues, tag};
use crate::limit::Limit;

/// The most limits that one request is charged.
pub const CHARGES_MAX: usize = 16;

/// What one request is charged, and by which rules.
#[derive(Debug, Default)]
pub(crate) struct Plan<'a> {
    /// What to ask the counters.
    pub(crate) charges: Charges<'a>,
    /// The rule behind each charge.
    pub(crate) sources: SmallVec<[u32; 4]>,
    /// How the walk ended.
    pub(crate) end: End,
}

/// How a walk ended.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum End {
    /// No more rules.
    #[default]
    Exhausted,
    /// At this rule, which admits.
    Allowed(u32),
    /// At this rule, which refuses.
    Blocked(u32),
}

/// What became of one rule on the walk.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Step {
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
struct Walk<'a, 'r> {
    set: &'a RuleSet,
    request: &'r Request<'a>,
    seed: Seed,
    plan: &'r mut Plan<'a>,
    layers: SmallVec<[u32; 8]>,
    /// Limits of rules that only log.
    shadows: usize,
    overridden: bool,
}

impl RuleSet {
    /// What the request is charged.
    pub(crate) fn plan<'a>(&'a self, request: &Request<'a>, seed: Seed) -> Plan<'a> {
        let mut plan = Plan::default();
        let mut walk = Walk::new(self, request, seed, &mut plan);
        for position in self.index.candidates(request) {
            // Most rules that could match are less specific ones of a layer that has its rule: they are not
            // even looked at.
            if !walk.layers.contains(&self.layers[position as usize]) {
                walk.visit(position, self.index.met(position));
            }
            if walk.plan.end != End::Exhausted {
                break;
            }
        }
        walk.finish();
        plan
    }

    /// The same walk over every rule, with what became of each.
    pub(crate) fn plan_explained<'a>(&'a self, request: &Request<'a>, seed: Seed) -> (Plan<'a>, Vec<Step>) {
        let mut plan = Plan::default();
        let mut walk = Walk::new(self, request, seed, &mut plan);
        let steps = (0u32..).zip(&*self.rules).map(|(position, _)| walk.visit(position, None)).collect();
        walk.finish();
        (plan, steps)
    }

    /// Every counter that belongs to the client of the request, whichever rules match: what a reset clears.
    ///
    /// Conditions other than the endpoint are not looked at, so that a reset need not know the client's plan or
    /// address. Counters shared with others (global, by endpoint alone) stay.
    pub(crate) fn charges_of_client<'a>(&'a self, request: &Request<'a>, seed: Seed) -> Charges<'a> {
        let mut plan = Plan::default();
        let mut walk = Walk::new(self, request, seed, &mut plan);
        for (position, rule) in (0u32..).zip(&*self.rules) {
            let endpoints = &rule.when.endpoints;
            let elsewhere =
                !endpoints.is_empty() && !endpoints.iter().any(|pattern| pattern.matches(&request.endpoint));
            let shared = !rule.per.iter().any(Dimension::names_client);
            let mut values = SubjectValues::default();
            if elsewhere || shared || !rule.per.iter().all(|d| values.push(d, request, self.ipv6_prefix)) {
                continue;
            }
            walk.charge_rule(position, rule, seed.subject(&values), Effect::Enforce);
            walk.overridden = false;
            if let Some((counter, limit)) = walk.replacement() {
                walk.charge_override(position, values, counter, limit);
            }
        }
        walk.overridden = false;
        walk.finish();
        plan.charges
    }
}

impl<'a, 'r> Walk<'a, 'r> {
    fn new(set: &'a RuleSet, request: &'r Request<'a>, seed: Seed, plan: &'r mut Plan<'a>) -> Self {
        Walk { set, request, seed, plan, layers: SmallVec::new(), shadows: 0, overridden: false }
    }

    fn visit(&mut self, position: u32, known: Option<Condition>) -> Step {
        let rule = &self.set.rules[position as usize];
        if !rule.enabled {
            return Step::Disabled;
        }
        if self.plan.end != End::Exhausted {
            return Step::NotReached;
        }
        if !rule.when.matches_beyond(known, self.request) {
            return Step::Mismatch;
        }
        match rule.action {
            Action::Allow => {
                self.plan.end = End::Allowed(position);
                Step::Allowed
            }
            Action::Block => {
                self.plan.end = End::Blocked(position);
                Step::Blocked
            }
            Action::Reject | Action::Throttle | Action::LogOnly => self.collect(position, rule),
        }
    }

    fn collect(&mut self, position: u32, rule: &'a Rule) -> Step {
        let layer = self.set.layers[position as usize];
        let shadow = rule.action == Action::LogOnly;
        if !shadow && self.layers.contains(&layer) {
            return Step::LayerTaken;
        }
        // The layers leave room for every rule that is enforced. Rules that only log share what is left, and so never
        // push out one that is.
        if shadow && self.shadows + rule.limits.len() > CHARGES_MAX - self.set.enforced_max {
            return Step::TooMany;
        }
        let mut values = SubjectValues::default();
        let missing = |dimension| !values.push(dimension, self.request, self.set.ipv6_prefix);
        if let Some(position) = rule.per.iter().position(missing) {
            return Step::NoSubject(position);
        }
        if shadow {
            self.shadows += rule.limits.len();
            self.charge_rule(position, rule, self.seed.subject(&values), Effect::Shadow);
            return Step::Collected;
        }
        self.layers.push(layer);
        let replacement =
            if rule.per.iter().any(Dimension::names_client) { self.replacement() } else { None };
        match replacement {
            Some((counter, limit)) => self.charge_override(position, values, counter, limit),
            None => self.charge_rule(position, rule, self.seed.subject(&values), Effect::Enforce),
        }
        Step::Collected
    }

    /// Numbers that take the place of the rule's: the check's own before those set for the user and endpoint.
    fn replacement(&mut self) -> Option<(CounterId, &'a Limit)> {
        if self.overridden {
            return None;
        }
        let own = self.request.limit_override.map(|limit| (counter_id(CHECK_NAMESPACE, limit), limit));
        let found = own.or_else(|| {
            self.set.overrides.find(self.request).map(|found| (found.limit.counter, &found.limit.limit))
        });
        self.overridden = found.is_some();
        found
    }

    fn charge_rule(&mut self, position: u32, rule: &'a Rule, subject: Subject, effect: Effect) {
        for limit in &rule.limits {
            self.push(position, subject, limit.counter, &limit.limit, effect);
        }
    }

    /// Numbers of their own count on their own: by the rule's subject, for this endpoint.
    fn charge_override(
        &mut self,
        position: u32,
        mut values: SubjectValues,
        counter: CounterId,
        limit: &'a Limit,
    ) {
        values.push_bytes(tag::OVERRIDE, self.request.endpoint.as_str().as_bytes());
        self.push(position, self.seed.subject(&values), counter, limit, Effect::Enforce);
    }

    fn push(
        &mut self,
        position: u32,
        subject: Subject,
        counter: CounterId,
        limit: &'a Limit,
        effect: Effect,
    ) {
        let rule: &'a str = &self.set.rules[position as usize].name;
        let cost = self.request.cost;
        self.plan.charges.charges.push(Charge { subject, counter, rule, limit, cost, effect });
        self.plan.sources.push(position);
    }

    fn finish(&mut self) {
        let wants_own = self.request.limit_override.is_some() && !self.overridden;
        if wants_own && !matches!(self.plan.end, End::Blocked(_)) {
            self.charge_without_rule();
        }
        if let Some(policy) = &self.set.penalties
            && let Some(client) = self.request.client()
            && !self.plan.charges.charges.is_empty()
        {
            let mut values = SubjectValues::default();
            values.push_bytes(tag::PENALTY, b"");
            values.push_client(client, self.set.ipv6_prefix);
            let subject = self.seed.subject(&values);
            self.plan.charges.penalty = Some(PenaltyCharge { subject, client, policy });
        }
    }

    /// The check brought its own numbers and no rule of its client applies: they apply alone.
    fn charge_without_rule(&mut self) {
        let (Some(limit), Some(client)) = (self.request.limit_override, self.request.client()) else {
            return;
        };
        let mut values = SubjectValues::default();
        values.push_client(client, self.set.ipv6_prefix);
        values.push_bytes(tag::OVERRIDE, self.request.endpoint.as_str().as_bytes());
        let subject = self.seed.subject(&values);
        let counter = counter_id(CHECK_NAMESPACE, limit);
        let cost = self.request.cost;
        let charge = Charge { subject, counter, rule: CHECK_NAMESPACE, limit, cost, effect: Effect::Enforce };
        self.plan.charges.charges.push(charge);
        self.plan.sources.push(NO_RULE);
    }
}

/// The source of a charge that no rule stands behind.
pub(crate) const NO_RULE: u32 = u32::MAX;
