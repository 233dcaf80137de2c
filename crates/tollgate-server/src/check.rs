//! The protocol-neutral check: a [`CheckRequest`] becomes a [`Decision`].
//!
//! Handlers parse their protocol into a `CheckRequest`, call a [`Checker`] and render the result. Nothing in here knows HTTP.

pub(crate) mod batch;
pub(crate) mod error;
pub(crate) mod idempotency;
pub(crate) mod request;
pub(crate) mod resolve;

use tollgate::counters::StoreError;
use tollgate::explain::Explanation;
use tollgate::inspect::{EndpointScope, Inspection};
use tollgate::{Answer, Decision, LimiterSnapshot, Request, Reset, RuleSet, Timestamp};

use self::error::CheckError;
use self::request::CheckRequest;
use crate::auth::Caller;
use crate::auth::api_keys::KeySecret;
use crate::counters::Counters;
use crate::records::Records;
use crate::records::metrics::Metrics;

/// Who may send a limit with a check, and how high it may be.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OverridePolicy {
    /// Whether the scope `override` is not required: checks are open and the service listens on a loopback address.
    pub(crate) is_open: bool,
    /// The highest number of requests per window (`auth.override_max`).
    pub(crate) requests_max: Option<u32>,
}

/// Decides the checks of one API request: all of them see the same rules, accounts, settings and instant.
pub(crate) struct Checker<'a> {
    pub(crate) snapshot: LimiterSnapshot<'a, Counters, Records>,
    pub(crate) metrics: &'a Metrics,
    /// Verifies the API keys of clients; absent until accounts have been loaded, and every key is opaque until then.
    pub(crate) key_secret: Option<&'a KeySecret>,
    pub(crate) caller: &'a Caller,
    pub(crate) overrides: OverridePolicy,
    pub(crate) now: Timestamp,
}

impl Checker<'_> {
    /// Decides one check and charges it if it is admitted.
    pub(crate) async fn check(&self, request: &CheckRequest<'_>) -> Result<Decision, CheckError> {
        let resolved = self.resolve(request)?;
        require_available(self.snapshot.check(&resolved.request(), self.now).await)
    }

    /// Decides one check without charging it.
    pub(crate) async fn peek(&self, request: &CheckRequest<'_>) -> Result<Decision, CheckError> {
        let resolved = self.resolve(request)?;
        require_available(self.snapshot.peek(&resolved.request(), self.now).await)
    }

    /// Decides a resolved request without charging it, and reports what every rule contributed.
    pub(crate) async fn explain(&self, request: &Request<'_>) -> Explanation {
        self.snapshot.explain(request, self.now).await
    }

    /// Reads the counters of a resolved request's client.
    pub(crate) async fn inspect(
        &self,
        request: &Request<'_>,
        endpoints: EndpointScope,
    ) -> Result<Inspection, CheckError> {
        Ok(self.snapshot.inspect(request, endpoints, self.now).await?)
    }

    /// Clears the counters and penalties of a resolved request's client.
    pub(crate) async fn reset(&self, request: &Request<'_>) -> Result<Reset, CheckError> {
        Ok(self.snapshot.reset(request).await?)
    }

    /// The rules in force for this API request.
    pub(crate) fn rules(&self) -> &RuleSet {
        self.snapshot.rules()
    }
}

/// A decision that no counter and no fallback could make is an error in every protocol.
fn require_available(decision: Decision) -> Result<Decision, CheckError> {
    match decision.answer {
        Answer::Unavailable if decision.misconfigured => Err(StoreError::Misconfigured.into()),
        Answer::Unavailable => Err(StoreError::Unreachable.into()),
        _ => Ok(decision),
    }
}
