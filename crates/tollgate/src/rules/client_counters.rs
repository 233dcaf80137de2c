//! Every counter of one client, whichever rule would apply to its next request: what is cleared and looked at.

use super::evaluate::{ChargePlan, Evaluation};
use super::rule::Rule;
use super::set::RuleSet;
use crate::accounts::ResolvedRequest;
use crate::counters::{Charges, Effect};
use crate::identity::{Dimension, Request, Scratch, Seed, SubjectHasher};
use crate::inspect::EndpointScope;

/// A rule that counts by something the request does not say.
pub(crate) struct MissingDimension<'a> {
    pub(crate) rule: &'a str,
    /// What that is.
    pub(crate) by: Vec<&'a Dimension>,
}

impl RuleSet {
    /// Every counter that belongs to the client of the request, whichever rules match: what a reset clears.
    ///
    /// Conditions other than the endpoint are not looked at, so that a reset need not know the client's plan or
    /// address. Counters shared with others (global, by endpoint alone) stay. Rules that count by something the request
    /// does not say are named. Numbers of checks' own are counted by their window and algorithm, and nobody knows which
    /// there were: those that the request brings are meant.
    pub(crate) fn charges_of_client<'a>(
        &'a self,
        request: &'a Request<'a>,
        scratch: &'a mut Scratch<'a>,
        seed: Seed,
    ) -> (Charges<'a>, Vec<MissingDimension<'a>>) {
        self.own_charges(&self.resolve(request, scratch), seed, EndpointScope::Requested, |_| true)
    }

    /// The same of rules that are in force, for the client's plan if the request says it: what an inspection looks at.
    ///
    /// Rules that count clients of another kind alone are not named: nothing that could be said beside would help.
    pub(crate) fn charges_to_inspect<'a>(
        &'a self,
        request: &'a Request<'a>,
        scratch: &'a mut Scratch<'a>,
        seed: Seed,
        endpoints: EndpointScope,
    ) -> (Charges<'a>, Vec<MissingDimension<'a>>) {
        let resolved = self.resolve(request, scratch);
        let tier = resolved.request.tier;
        let of_plan = |rule: &Rule| {
            let tiers = &rule.when.tiers;
            tier.is_none_or(|tier| tiers.is_empty() || tiers.iter().any(|known| **known == *tier.as_str()))
        };
        let of_kind = |rule: &Rule| {
            let mut unused = SubjectHasher::new(seed);
            let mut said =
                |dimension: &Dimension| unused.push(dimension, &resolved.request, self.ipv6_prefix);
            rule.per.iter().any(|by| (by.identifies_client() || *by == Dimension::Tenant) && said(by))
        };
        self.own_charges(&resolved, seed, endpoints, |rule| rule.enabled && of_plan(rule) && of_kind(rule))
    }

    fn own_charges<'a>(
        &'a self,
        resolved: &ResolvedRequest<'a>,
        seed: Seed,
        endpoints: EndpointScope,
        wanted: impl Fn(&Rule) -> bool,
    ) -> (Charges<'a>, Vec<MissingDimension<'a>>) {
        let request = &resolved.request;
        let mut plan = ChargePlan::default();
        let mut walk = Evaluation::new(self, request, seed, &mut plan);
        let mut skipped = Vec::new();
        let said = |dimension: &Dimension| {
            endpoints == EndpointScope::Requested || *dimension != Dimension::Endpoint
        };
        for (position, (rule, brief)) in (0u32..).zip(self.rules.iter().zip(&*self.compiled)) {
            let patterns = &rule.when.endpoints;
            let elsewhere = endpoints == EndpointScope::Requested
                && !patterns.is_empty()
                && !patterns.iter().any(|pattern| pattern.matches(&request.endpoint));
            if elsewhere || rule.limits.is_empty() || !walk.is_own(brief) || !wanted(rule) {
                continue;
            }
            let mut values = SubjectHasher::new(seed);
            let mut push = |dimension| said(dimension) && values.push(dimension, request, self.ipv6_prefix);
            let by: Vec<&Dimension> = rule.per.iter().filter(|dimension| !push(*dimension)).collect();
            if by.is_empty() {
                walk.charge_rule(position, brief, values.subject(), Effect::Enforce);
            } else {
                skipped.push(MissingDimension { rule: &rule.name, by });
            }
        }
        // Whichever of them applies to the next request.
        resolved.own().for_each(|own| walk.charge_own(None, &own));
        walk.charge_every_override();
        walk.finish();
        (plan.charges, skipped)
    }
}
