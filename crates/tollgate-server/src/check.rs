//! The protocol-neutral check: a [`CheckRequest`] becomes a [`Decision`].
//!
//! Handlers parse their protocol into a `CheckRequest`, call a [`Checker`] and render the result. Nothing in here knows HTTP.

pub(crate) mod batch;
pub(crate) mod error;
pub(crate) mod idempotency;
pub(crate) mod parse;
pub(crate) mod request;
pub(crate) mod warnings;

use std::time::{Duration, Instant};

use tollgate::accounts::{Accounts, Key};
use tollgate::counters::StoreError;
use tollgate::explain::Explanation;
use tollgate::identity::Scratch;
use tollgate::inspect::{EndpointScope, Inspection};
use tollgate::{
    Answer, ApiKey, Decision, Id, LimitOverride, LimiterSnapshot, Request, Reset, RuleSet, Timestamp,
};
use tollgate_stores::counters::Counters;

use self::error::CheckError;
use self::parse::{
    bind_tenant, invalid_id, invalid_limit, parse_descriptors, parse_endpoint, parse_id, parse_ip,
    parse_method, parse_override, too_long,
};
use self::request::{CheckRequest, ResolvedRequest};
use self::warnings::Warnings;
use crate::auth::Caller;
use crate::auth::api_keys::{self, KeySecret};
use crate::auth::scope::Scope;
use crate::records::Records;
use crate::records::metrics::Metrics;
use crate::records::recorder::{RecordedCheck, Recorder};

/// Who may send a limit with a check, and how high it may be.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OverridePolicy {
    /// Whether the scope `override` is not required: checks are open and the service listens on a loopback address.
    pub(crate) is_open: bool,
    /// The highest number of requests per window (`auth.override_max`).
    pub(crate) requests_max: Option<u32>,
}

const IGNORED_STRATEGY: &str = "strategy was ignored: it differs from that of the limit in force, and overriding it requires \
    a key with scope override";

/// How a request may name the client's API key.
#[derive(Copy, Clone, PartialEq, Eq)]
enum KeyLookup {
    /// By the whole key.
    Secret,
    /// By the whole key or by its id alone.
    SecretOrId,
}

/// Decides the checks of one API request: all of them see the same rules, accounts, settings and instant.
pub(crate) struct Checker<'a> {
    pub(crate) snapshot: LimiterSnapshot<'a, Counters, Records>,
    /// Whether the configured database was never read: blocks, keys and rules may be missing.
    pub(crate) is_unread: bool,
    pub(crate) metrics: &'a Metrics,
    /// Absent if nothing is recorded.
    pub(crate) recorder: Option<&'a Recorder>,
    /// The id of the API request, for records.
    pub(crate) request_id: Option<&'a str>,
    /// Verifies the API keys of clients; absent until accounts have been loaded, and every key is opaque until then.
    pub(crate) key_secret: Option<&'a KeySecret>,
    pub(crate) caller: &'a Caller,
    pub(crate) overrides: OverridePolicy,
    /// Whether a check with a tier that no rule names is invalid (`identity.unknown_tier`).
    pub(crate) rejects_unknown_tiers: bool,
    pub(crate) now: Timestamp,
    /// The instant of `now`.
    pub(crate) started: Instant,
}

impl Checker<'_> {
    /// Decides one check and charges it if it is admitted. The latency is measured from `started`.
    pub(crate) async fn check(
        &self,
        request: &CheckRequest<'_>,
        warnings: &mut Warnings,
        started: Instant,
    ) -> Result<Decision, CheckError> {
        let resolved = self.resolve(request, warnings)?;
        self.decide(&resolved.request(), started).await
    }

    /// Decides a resolved check and charges it if it is admitted.
    pub(crate) async fn decide(
        &self,
        request: &Request<'_>,
        started: Instant,
    ) -> Result<Decision, CheckError> {
        let decision = self.snapshot.check(request, self.now).await;
        let latency = started.elapsed();
        self.metrics.observe_decision(latency);
        if let Some(recorder) = self.recorder {
            self.record(recorder, request, &decision, latency);
        }
        self.require_available(decision)
    }

    /// Records a decision, with the request as it was counted.
    fn record(&self, recorder: &Recorder, request: &Request<'_>, decision: &Decision, latency: Duration) {
        let request_id = self.request_id;
        if decision.rules().is_exact() {
            return recorder.offer(&RecordedCheck { request, decision, latency, request_id });
        }
        let mut scratch = Scratch::default();
        let request = &decision.rules().normalize(request, &mut scratch);
        recorder.offer(&RecordedCheck { request, decision, latency, request_id });
    }

    /// Decides one check without charging it.
    pub(crate) async fn peek(
        &self,
        request: &CheckRequest<'_>,
        warnings: &mut Warnings,
    ) -> Result<Decision, CheckError> {
        let resolved = self.resolve(request, warnings)?;
        self.warn_of_account_tier(&resolved.request(), warnings);
        self.warn_of_tenants(&resolved.request(), warnings);
        self.require_available(self.snapshot.peek(&resolved.request(), self.now).await)
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

    /// Clears the counters and penalties of a resolved request's client once `recorded` has completed. After an error
    /// before that nothing has changed.
    pub(crate) async fn reset<E: From<StoreError>>(
        &self,
        request: &Request<'_>,
        recorded: impl Future<Output = Result<(), E>>,
    ) -> Result<Reset, E> {
        self.snapshot.reset_recorded(request, recorded).await
    }

    /// Resolves a check. The first invalid field is reported.
    pub(crate) fn resolve<'r>(
        &'r self,
        request: &'r CheckRequest<'_>,
        warnings: &mut Warnings,
    ) -> Result<ResolvedRequest<'r>, CheckError> {
        let resolved = self.resolve_fields(request, KeyLookup::Secret)?;
        self.check_tier(resolved.request.tier, warnings)?;
        self.warn_of_ignored_tenant(request.tenant, &resolved.request, warnings);
        let sent = parse_override(request)?;
        if sent.is_empty() || self.rules().is_in_force(&resolved.request(), &sent) {
            return Ok(resolved);
        }
        match self.authorize_override() {
            Ok(()) => {}
            Err(_) if sent.is_only_algorithm() => {
                warnings.add(IGNORED_STRATEGY);
                return Ok(resolved);
            }
            Err(error) => return Err(error),
        }
        let resolved = self.complete_override(resolved, &sent)?;
        // The completed limit is compared: a shorter window with the rule's own number of requests is an override too.
        match (&resolved.limit, self.overrides.requests_max) {
            (Some(limit), Some(most)) if limit.requests() > most => {
                let reason = format!("must be at most {most} (auth.override_max), not {}", limit.requests());
                Err(CheckError::invalid("limit", reason))
            }
            _ => Ok(resolved),
        }
    }

    /// Resolves the client whose counters an operator inspects or resets. An API key may be given by its id. An override only
    /// names a counter here, so it needs no permission.
    pub(crate) fn resolve_target<'r>(
        &'r self,
        request: &'r CheckRequest<'_>,
    ) -> Result<ResolvedRequest<'r>, CheckError> {
        let resolved = self.resolve_fields(request, KeyLookup::SecretOrId)?;
        self.complete_override(resolved, &parse_override(request)?)
    }

    fn resolve_fields<'r>(
        &'r self,
        sent: &'r CheckRequest<'_>,
        lookup: KeyLookup,
    ) -> Result<ResolvedRequest<'r>, CheckError> {
        let mut request = Request::new(parse_endpoint(sent.endpoint)?);
        request.user = parse_id("user_id", sent.user_id)?;
        request.tenant = parse_id("tenant", sent.tenant)?;
        request.tier = parse_id("tier", sent.tier)?;
        request.login = parse_id("login", sent.login)?;
        request.cost = sent.cost.unwrap_or(1);
        let mut key_tenant = None;
        if let Some(text) = sent.api_key {
            let (key, tenant) = self.resolve_key(text, lookup)?;
            (request.api_key, key_tenant) = (Some(key), tenant);
            request.unverified_key = sent.from_client && key.known_id().is_none();
        }
        if sent.from_client && sent.tenant.is_some() {
            self.require_same_tenant(request.tenant, key_tenant)?;
        }
        request.tenant = self.resolve_tenant(request.tenant, key_tenant)?;
        request.ip = sent.ip.map(parse_ip).transpose()?;
        request.method = sent.method.map(parse_method).transpose()?;
        if request.client().is_none() {
            let reason = "at least one of user_id, api_key, ip, tenant, login is required";
            return Err(CheckError::invalid("user_id", reason));
        }
        let descriptors = parse_descriptors(sent.descriptors)?;
        let resolved = ResolvedRequest { request, descriptors, limit: None };
        self.rules().normalization().check_lengths(&resolved.request()).map_err(|error| too_long(&error))?;
        Ok(resolved)
    }

    /// The tenant of a client's token must be that of its key: together they could name a user of another tenant.
    fn require_same_tenant(&self, named: Option<Id<'_>>, of_key: Option<&str>) -> Result<(), CheckError> {
        let form = self.rules().normalization().ids.tenant;
        let differs = |of_key: &str| {
            named.is_some_and(|named| form.normalize(named.as_str()) != form.normalize(of_key))
        };
        if of_key.is_some_and(differs) { Err(CheckError::KeyOfOtherTenant) } else { Ok(()) }
    }

    /// The tenant of a request: that of the caller's key, or else of the client's key, or else the one in the request.
    fn resolve_tenant<'r>(
        &'r self,
        named: Option<Id<'r>>,
        of_key: Option<&'r str>,
    ) -> Result<Option<Id<'r>>, CheckError> {
        let form = self.rules().normalization().ids.tenant;
        if let Some(bound_to) = &self.caller.tenant {
            if let Some(of_key) = of_key {
                bind_tenant(bound_to, Some(of_key), form)?;
            }
            return bind_tenant(bound_to, named.map(Id::as_str), form).map(Some);
        }
        Ok(of_key.and_then(|tenant| Id::parse(tenant).ok()).or(named))
    }

    /// The client's key and its tenant. Text that does not have the form of a tollgate key is an opaque id.
    fn resolve_key<'r>(
        &'r self,
        text: &'r str,
        lookup: KeyLookup,
    ) -> Result<(ApiKey<'r>, Option<&'r str>), CheckError> {
        let accounts = self.rules().accounts();
        let found = self.key_secret.and_then(|secret| api_keys::find(accounts, secret, text, self.now));
        let by_id =
            || self.own_key(text).filter(|_| self.key_secret.is_some() && lookup == KeyLookup::SecretOrId);
        let key = found.transpose().map_err(|refusal| {
            self.metrics.count_refused_key(refusal);
            CheckError::ApiKeyRefused(refusal)
        })?;
        let key = key.or_else(by_id);
        if let Some(key) = key {
            let tenant = key.tenant;
            return Ok((ApiKey::known(key), tenant));
        }
        let opaque = ApiKey::parse(text).map_err(|error| invalid_id("api_key", error))?;
        Ok((opaque, None))
    }

    /// The status of a client's API key, given whole or by its id; `None` until accounts have been loaded.
    pub(crate) fn key_status(&self, text: &str) -> Option<&'static str> {
        self.key_secret?;
        let id = api_keys::id_of(text).unwrap_or(text);
        // No key has an empty id.
        let id = self.own_key(id).map_or("", |key| key.id);
        Some(api_keys::status(self.rules().accounts(), id, self.now))
    }

    /// The key with this id. A caller that is bound to a tenant finds keys of its own tenant only.
    fn own_key(&self, id: &str) -> Option<Key<'_>> {
        let form = self.rules().normalization().ids.tenant;
        let bound_to = self.caller.tenant.as_deref().map(|tenant| form.normalize(tenant));
        let is_own =
            |key: &Key<'_>| bound_to.is_none() || key.tenant.map(|own| form.normalize(own)) == bound_to;
        self.rules().accounts().key(id).filter(is_own)
    }

    fn complete_override<'r>(
        &self,
        resolved: ResolvedRequest<'r>,
        sent: &LimitOverride,
    ) -> Result<ResolvedRequest<'r>, CheckError> {
        if sent.is_empty() || self.rules().is_in_force(&resolved.request(), sent) {
            return Ok(resolved);
        }
        let limit = self.rules().complete_override(&resolved.request(), sent).map_err(invalid_limit)?;
        Ok(ResolvedRequest { limit, ..resolved })
    }

    /// A misspelt tier leaves its client without the limits of any tier.
    fn check_tier(&self, tier: Option<Id<'_>>, warnings: &mut Warnings) -> Result<(), CheckError> {
        let Some(tier) = tier.map(Id::as_str).filter(|tier| !self.rules().names_tier(tier)) else {
            return Ok(());
        };
        if self.rejects_unknown_tiers {
            return Err(CheckError::invalid("tier", unknown_tier(tier)));
        }
        warnings.add(format!("no rule names the tier {tier:?}: only rules without a tier condition apply"));
        Ok(())
    }

    /// Warns of an unknown tier of the client's key or quota. A check does not: it would look up the account twice.
    pub(crate) fn warn_of_account_tier(&self, request: &Request<'_>, warnings: &mut Warnings) {
        let mut scratch = Scratch::default();
        let tier = self.rules().resolve(request, &mut scratch).tier.map(Id::as_str);
        if let Some(tier) = tier.filter(|tier| !self.rules().names_tier(tier)) {
            warnings.add(format!(
                "no rule names the tier {tier:?} of the client's account: only rules without a tier condition apply"
            ));
        }
    }

    fn warn_of_ignored_tenant(&self, sent: Option<&str>, request: &Request<'_>, warnings: &mut Warnings) {
        let form = self.rules().normalization().ids.tenant;
        let used = request.tenant.map(|tenant| form.normalize(tenant.as_str()));
        if sent.is_some_and(|sent| Some(form.normalize(sent)) != used) {
            warnings.add("tenant was ignored: the client's API key belongs to another tenant");
        }
    }

    /// Warns an operator that a user without a tenant exists in tenants, which the request probably meant.
    pub(crate) fn warn_of_tenants(&self, request: &Request<'_>, warnings: &mut Warnings) {
        if self.caller.tenant.is_some() || !self.caller.has(Scope::Admin) {
            return;
        }
        let mut scratch = Scratch::default();
        let request = self.rules().resolve(request, &mut scratch).request;
        let (None, Some(user)) = (request.tenant, request.user) else { return };
        if let Some(warning) = tenants_of_user(self.rules().accounts(), user.as_str()) {
            warnings.add(warning);
        }
    }

    fn authorize_override(&self) -> Result<(), CheckError> {
        if self.overrides.is_open || self.caller.has(Scope::Override) {
            Ok(())
        } else if self.caller.is_anonymous() {
            Err(CheckError::OverrideNeedsKey)
        } else {
            Err(CheckError::OverrideForbidden)
        }
    }

    /// A decision that no counter and no fallback could make is an error in every protocol.
    fn require_available(&self, mut decision: Decision) -> Result<Decision, CheckError> {
        decision.degraded |= self.is_unread;
        match decision.answer {
            Answer::Unavailable => Err(CheckError::Unavailable(Box::new(decision))),
            _ => Ok(decision),
        }
    }

    /// The rules in force for this API request.
    pub(crate) fn rules(&self) -> &RuleSet {
        self.snapshot.rules()
    }
}

/// A warning if a user has no account without a tenant, but one in tenants.
pub(crate) fn tenants_of_user(accounts: &Accounts, user: &str) -> Option<String> {
    const TENANTS_NAMED_MAX: usize = 3;
    let tenants = accounts.tenants_of_user(user);
    if tenants.is_empty() || accounts.user(user).is_some() {
        return None;
    }
    let named: Vec<String> = tenants.iter().take(TENANTS_NAMED_MAX).map(|name| format!("{name:?}")).collect();
    let more = if tenants.len() > TENANTS_NAMED_MAX { ", ..." } else { "" };
    Some(format!(
        "user {user:?} without a tenant has no account; send tenant to select one of {}{more}",
        named.join(", ")
    ))
}

/// Why a tier is rejected if `identity.unknown_tier` is `reject`.
pub(crate) fn unknown_tier(tier: &str) -> String {
    format!("no rule names the tier {tier:?}, and identity.unknown_tier is \"reject\"")
}
