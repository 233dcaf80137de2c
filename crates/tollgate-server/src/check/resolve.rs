//! The one step from text to a checked [`Request`]: ids, API key, tenant binding, normalization, override.

use std::borrow::Cow;
use std::net::IpAddr;

use tollgate::identity::{Dimension, IdError, NormalForm, NormalizationError};
use tollgate::{
    Algorithm, ApiKey, Endpoint, Id, Limit, LimitError, LimitOverride, Method, Request, Span, Window,
};

use super::Checker;
use super::error::CheckError;
use super::request::CheckRequest;
use crate::auth::api_keys;
use crate::auth::scope::Scope;

/// A request with valid fields, a verified API key and a complete override.
pub(crate) struct ResolvedRequest<'r> {
    request: Request<'r>,
    descriptors: Vec<(Id<'r>, Id<'r>)>,
    limit: Option<Limit>,
}

impl ResolvedRequest<'_> {
    /// The request as the limiter takes it.
    pub(crate) fn request(&self) -> Request<'_> {
        Request {
            descriptors: &self.descriptors,
            limit_override: self.limit.as_ref(),
            ..self.request.clone()
        }
    }
}

/// How a request may name the client's API key.
#[derive(Copy, Clone, PartialEq, Eq)]
enum KeyLookup {
    /// By the whole key.
    Secret,
    /// By the whole key or by its id alone.
    SecretOrId,
}

impl Checker<'_> {
    /// Resolves a check. The first invalid field is reported.
    pub(crate) fn resolve<'r>(
        &'r self,
        request: &'r CheckRequest<'_>,
    ) -> Result<ResolvedRequest<'r>, CheckError> {
        let resolved = self.resolve_fields(request, KeyLookup::Secret)?;
        let sent = parse_override(request)?;
        if !sent.is_empty() {
            self.authorize_override()?;
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
            (request.api_key, key_tenant) = self.resolve_key(text, lookup)?;
        }
        if let Some(bound_to) = &self.caller.tenant {
            let named = request.tenant.map(Id::as_str).or(key_tenant);
            request.tenant = Some(bind_tenant(bound_to, named, self.rules().normalization().ids.tenant)?);
        }
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

    /// The client's key and its tenant. Text that does not have the form of a tollgate key is an opaque id.
    fn resolve_key<'r>(
        &'r self,
        text: &'r str,
        lookup: KeyLookup,
    ) -> Result<(Option<ApiKey<'r>>, Option<&'r str>), CheckError> {
        let accounts = self.rules().accounts();
        let key = match (self.key_secret, api_keys::id_of(text)) {
            (Some(secret), Some(id)) => {
                let verified = api_keys::verify(accounts, secret, text, id, self.now);
                Some(verified.map_err(|refusal| {
                    self.metrics.count_refused_key(refusal);
                    CheckError::ApiKeyRefused(refusal)
                })?)
            }
            (Some(_), None) if lookup == KeyLookup::SecretOrId => accounts.key(text),
            _ => None,
        };
        match key {
            Some(key) => {
                let tenant = key.tenant();
                Ok((Some(ApiKey::known(key)), tenant))
            }
            None => {
                let key = ApiKey::parse(text).map_err(|error| invalid_id("api_key", error))?;
                Ok((Some(key), None))
            }
        }
    }

    fn complete_override<'r>(
        &self,
        resolved: ResolvedRequest<'r>,
        sent: &LimitOverride,
    ) -> Result<ResolvedRequest<'r>, CheckError> {
        let limit =
            self.rules().complete_override(&resolved.request(), sent).map_err(|e| invalid_limit(&e))?;
        Ok(ResolvedRequest { limit, ..resolved })
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
}

fn parse_override(sent: &CheckRequest<'_>) -> Result<LimitOverride, CheckError> {
    let algorithm = sent.strategy.map(parse_strategy).transpose()?;
    let window = sent.window_seconds.map(|secs| Span::from_secs(u64::from(secs)));
    Ok(LimitOverride { algorithm, requests: sent.limit, window })
}

/// A limit from fields of the API. An error names the field.
pub(crate) fn parse_limit(
    algorithm: Algorithm,
    requests: u32,
    window: Window,
    burst: Option<u32>,
) -> Result<Limit, CheckError> {
    Limit::with_options(algorithm, requests, window, burst, None).map_err(|error| invalid_limit(&error))
}

fn invalid_limit(error: &LimitError) -> CheckError {
    match error {
        // The API has whole seconds, and so does its error.
        LimitError::WindowTooShort | LimitError::WindowTooLong => {
            CheckError::invalid("window_seconds", format!("must be an integer from 1 to {}", u32::MAX))
        }
        LimitError::BurstZero | LimitError::BurstWithoutBucket => {
            CheckError::invalid("burst_capacity", error.to_string())
        }
        _ => CheckError::invalid("limit", error.to_string()),
    }
}

pub(crate) fn parse_strategy(name: &str) -> Result<Algorithm, CheckError> {
    Algorithm::parse(name).ok_or_else(|| {
        let names = Algorithm::ALL.map(Algorithm::as_str);
        CheckError::invalid("strategy", format!("must be one of {}, sliding_window", names.join(", ")))
    })
}

/// Parses and normalizes an endpoint.
pub(crate) fn parse_endpoint(text: &str) -> Result<Endpoint<'_>, CheckError> {
    if text.is_empty() {
        return Err(CheckError::invalid("endpoint", "must not be empty"));
    }
    Endpoint::parse(text).map_err(|error| CheckError::invalid("endpoint", error.to_string()))
}

pub(crate) fn parse_user(text: &str) -> Result<Id<'_>, CheckError> {
    Id::parse(text).map_err(|error| invalid_id("user_id", error))
}

/// A field that exceeds the length bound once normalized.
pub(crate) fn too_long(error: &NormalizationError) -> CheckError {
    let field = match error.fact {
        Dimension::User => "user_id",
        Dimension::Tenant => "tenant",
        Dimension::Login => "login",
        Dimension::Endpoint => "endpoint",
        _ => "descriptors",
    };
    CheckError::invalid(field, error.to_string())
}

fn parse_id<'t>(field: &'static str, text: Option<&'t str>) -> Result<Option<Id<'t>>, CheckError> {
    text.map(|text| Id::parse(text).map_err(|error| invalid_id(field, error))).transpose()
}

fn parse_ip(text: &str) -> Result<IpAddr, CheckError> {
    let reason = "must be an IPv4 or IPv6 address without port or zone";
    text.parse().map_err(|_| CheckError::invalid("ip", reason))
}

fn parse_method(text: &str) -> Result<Method, CheckError> {
    Method::parse(text).map_err(|error| CheckError::invalid("method", error.to_string()))
}

fn parse_descriptors<'t>(
    pairs: &'t [(Cow<'_, str>, Cow<'_, str>)],
) -> Result<Vec<(Id<'t>, Id<'t>)>, CheckError> {
    let parse = |text: &'t str| Id::parse(text).map_err(|error| invalid_id("descriptors", error));
    pairs.iter().map(|(name, value)| Ok((parse(name)?, parse(value)?))).collect()
}

/// The tenant of a caller that is bound to one; `named` is the tenant that the request names.
fn bind_tenant<'t>(bound_to: &'t str, named: Option<&str>, form: NormalForm) -> Result<Id<'t>, CheckError> {
    if named.is_some_and(|named| form.normalize(named) != form.normalize(bound_to)) {
        return Err(CheckError::TenantMismatch { bound_to: bound_to.into() });
    }
    Id::parse(bound_to).map_err(|error| invalid_id("tenant", error))
}

fn invalid_id(field: &'static str, error: IdError) -> CheckError {
    CheckError::invalid(field, error.to_string())
}
