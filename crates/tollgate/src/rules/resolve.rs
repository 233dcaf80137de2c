//! From a request as sent to the request that rules, overrides and counters see.

use super::set::{ANONYMOUS_TIER, RuleSet};
use crate::accounts::ResolvedRequest;
use crate::identity::{Id, Request, Scratch, nat64_to_ipv4};

impl RuleSet {
    /// Completes a request by its accounts and normalizes it.
    ///
    /// Everything that looks up, matches, counts or resets works on the result.
    pub fn resolve<'a>(
        &'a self,
        request: &'a Request<'a>,
        scratch: &'a mut Scratch<'a>,
    ) -> ResolvedRequest<'a> {
        let mut resolved = ResolvedRequest::new(request);
        if self.has_accounts {
            self.accounts.complete_by_key(&mut resolved);
        }
        if self.nat64 {
            resolved.request.ip = resolved.request.ip.map(nat64_to_ipv4);
        }
        if let Some(normalization) = &self.normalization {
            resolved.request = normalization.normalize(resolved.request, scratch);
        }
        if self.has_accounts {
            self.accounts.complete_by_user(&mut resolved);
        }
        if self.assigns_tiers && resolved.request.tier.is_none() {
            resolved.tier = self.assigned_tier(&resolved.request);
            resolved.request.tier = resolved.tier;
        }
        resolved
    }

    /// The tier of a request that neither has one nor gets one from an account.
    fn assigned_tier<'a>(&'a self, request: &Request<'_>) -> Option<Id<'a>> {
        let is_anonymous = request.user.is_none() && (request.api_key.is_none() || request.unverified_key);
        let tier = if is_anonymous { Some(ANONYMOUS_TIER) } else { self.settings.default_tier.as_deref() };
        tier.and_then(|tier| Id::parse(tier).ok())
    }

    /// Normalizes a request without looking up its accounts.
    pub fn normalize<'a>(&self, request: &'a Request<'a>, scratch: &'a mut Scratch<'a>) -> Request<'a> {
        let request = Request { endpoint: request.endpoint.borrowed(), ..*request };
        match &self.normalization {
            Some(normalization) => normalization.normalize(request, scratch),
            None => request,
        }
    }
}
