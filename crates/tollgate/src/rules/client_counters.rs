//! All counters of one client, for resets and inspection.

use super::evaluate::Evaluation;
use super::plan::ChargePlan;
use super::rule::Rule;
use super::set::RuleSet;
use crate::accounts::ResolvedRequest;
use crate::counters::{Charges, Effect};
use crate::identity::{Dimension, Request, Scratch, SubjectHasher};
use crate::inspect::{EndpointScope, SkippedRule};
use crate::limit::Limit;

impl RuleSet {
    /// The counters that a reset of the request's client clears, and the rules whose counters cannot be found.
    ///
    /// Conditions other than the endpoint are ignored, so a reset need not know the client's tier or address. Counters
    /// shared with other clients (global, per endpoint) are excluded. Of the overrides sent with checks, the one in the
    /// request and `check_overrides` are included.
    pub(crate) fn charges_of_client<'a>(
        &'a self,
        request: &'a Request<'a>,
        check_overrides: &'a [Limit],
        scratch: &'a mut Scratch<'a>,
    ) -> (Charges<'a>, Vec<SkippedRule>) {
        let resolved = self.resolve(request, scratch);
        self.client_charges(&resolved, EndpointScope::Requested, check_overrides, |_| true)
    }

    /// The counters that an inspection reads: those of enabled rules, for the tier of the request if it has one.
    ///
    /// Rules that only count clients of another kind are not reported as missing.
    pub(crate) fn charges_to_inspect<'a>(
        &'a self,
        request: &'a Request<'a>,
        scratch: &'a mut Scratch<'a>,
        endpoints: EndpointScope,
    ) -> (Charges<'a>, Vec<SkippedRule>) {
        let resolved = self.resolve(request, scratch);
        let tier = resolved.request.tier;
        let has_tier = |rule: &Rule| {
            let tiers = &rule.when.tiers;
            tier.is_none_or(|tier| tiers.is_empty() || tiers.iter().any(|known| **known == *tier.as_str()))
        };
        let counts_kind = |rule: &Rule| {
            let mut unused = SubjectHasher::new(self.seed);
            let mut has = |dimension: &Dimension| unused.push(dimension, &resolved.request, self.ip_prefixes);
            rule.per.iter().any(|by| (by.identifies_client() || *by == Dimension::Tenant) && has(by))
        };
        let wanted = |rule: &Rule| rule.enabled && has_tier(rule) && counts_kind(rule);
        self.client_charges(&resolved, endpoints, &[], wanted)
    }

    fn client_charges<'a>(
        &'a self,
        resolved: &ResolvedRequest<'a>,
        endpoints: EndpointScope,
        check_overrides: &'a [Limit],
        wanted: impl Fn(&Rule) -> bool,
    ) -> (Charges<'a>, Vec<SkippedRule>) {
        let request = &resolved.request;
        let mut plan = ChargePlan::default();
        let mut evaluation = Evaluation::new(self, request, &mut plan);
        let mut skipped = Vec::new();
        let is_given = |dimension: &Dimension| {
            endpoints == EndpointScope::Requested || *dimension != Dimension::Endpoint
        };
        for (position, (rule, compiled)) in (0u32..).zip(self.rules.iter().zip(&*self.compiled)) {
            let patterns = &rule.when.endpoints;
            let elsewhere = endpoints == EndpointScope::Requested
                && !patterns.is_empty()
                && !patterns.iter().any(|pattern| pattern.matches(&request.endpoint));
            if elsewhere || rule.limits.is_empty() || !evaluation.counts_client(compiled) || !wanted(rule) {
                continue;
            }
            let mut values = compiled.start_subject(self.seed, request);
            let mut push =
                |dimension| is_given(dimension) && values.push(dimension, request, self.ip_prefixes);
            let missing: Vec<Dimension> =
                rule.per.iter().filter(|dimension| !push(*dimension)).cloned().collect();
            if missing.is_empty() {
                evaluation.charge_rule(position, compiled, values.subject(), Effect::Enforce);
                evaluation.charge_address(position, compiled, Effect::Enforce);
            } else {
                skipped.push(SkippedRule { rule: rule.name.to_string(), missing });
            }
        }
        resolved.account_overrides().for_each(|own| evaluation.charge_account(None, &own));
        evaluation.charge_every_override(check_overrides);
        evaluation.finish();
        (plan.charges, skipped)
    }
}
