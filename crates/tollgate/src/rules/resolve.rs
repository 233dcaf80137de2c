//! The door of the rules: from a request as it was sent to the one that is decided about.
//!
//! Who is known is looked up first, by what the request says; then addresses and spellings become those that are counted.
//! Rules, overrides and subjects are met behind it and nowhere else, so none of them can forget a spelling.

use super::set::RuleSet;
use crate::accounts::ResolvedRequest;
use crate::identity::{Request, Scratch, nat64_to_ipv4};

impl RuleSet {
    /// The request, completed by what is known of its key and its user, and read as it is counted.
    ///
    /// This is the one door: whatever is looked up, matched, counted, reset or told of a request is of what comes out here.
    pub fn resolve<'a>(
        &'a self,
        request: &'a Request<'a>,
        scratch: &'a mut Scratch<'a>,
    ) -> ResolvedRequest<'a> {
        let mut resolved = if self.has_accounts {
            self.accounts.resolve(request)
        } else {
            ResolvedRequest::unknown(request)
        };
        if self.nat64 {
            resolved.request.ip = resolved.request.ip.map(nat64_to_ipv4);
        }
        match &self.normalization {
            Some(normalization) => resolved.normalizeed(normalization, scratch),
            None => resolved,
        }
    }

    /// The request as it is counted, by itself: without what is known of its key and its user.
    pub fn read<'a>(&self, request: &'a Request<'a>, scratch: &'a mut Scratch<'a>) -> Request<'a> {
        let request = Request { endpoint: request.endpoint.borrowed(), ..*request };
        match &self.normalization {
            Some(normalization) => normalization.normalize(request, scratch),
            None => request,
        }
    }
}
