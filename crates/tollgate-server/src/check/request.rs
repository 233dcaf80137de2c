//! A check as written, and the facts it states once checked.

use std::net::IpAddr;

use serde::Deserialize;
use tollgate::identity::{Dimension, IdError, NormalForm, Normalization, NormalizationError};
use tollgate::{Algorithm, Endpoint, Id, Limit, Method, Request, Span, Window};
use utoipa::ToSchema;

use crate::auth::Caller;
use crate::auth::api_keys::{ApiKeyError, KeyRing};
use crate::http::error::{ApiError, Code};
use crate::http::json::{Pairs, Text};

/// A check as written. TableReader that are not known are ignored, so that clients may be ahead of the server.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct CheckBody<'a> {
    /// Who is asking: at least one of `user_id`, `api_key`, `ip`, `tenant`, `login`.
    #[serde(borrow)]
    #[schema(value_type = Option<String>, max_length = 256)]
    pub(crate) user_id: Option<Text<'a>>,
    /// What is asked for.
    #[serde(borrow)]
    #[schema(value_type = String, max_length = 2048)]
    pub(crate) endpoint: Text<'a>,
    /// The HTTP method.
    #[serde(borrow)]
    #[schema(value_type = Option<String>)]
    pub(crate) method: Option<Text<'a>>,
    /// The key of the client that is limited.
    #[serde(borrow)]
    #[schema(value_type = Option<String>, max_length = 256)]
    pub(crate) api_key: Option<Text<'a>>,
    /// The client's address.
    #[serde(borrow)]
    #[schema(value_type = Option<String>)]
    pub(crate) ip: Option<Text<'a>>,
    /// The organisation of the user.
    #[serde(borrow)]
    #[schema(value_type = Option<String>, max_length = 256)]
    pub(crate) tenant: Option<Text<'a>>,
    /// The plan of the client.
    #[serde(borrow)]
    #[schema(value_type = Option<String>, max_length = 256)]
    pub(crate) tier: Option<Text<'a>>,
    /// The name a login attempt is for.
    #[serde(borrow)]
    #[schema(value_type = Option<String>, max_length = 256)]
    pub(crate) login: Option<Text<'a>>,
    /// How many units the request is worth; 0 only looks. 1 if absent.
    pub(crate) cost: Option<u32>,
    /// Further facts by name.
    #[serde(borrow)]
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    pub(crate) descriptors: Option<Pairs<'a>>,
    /// Numbers for this check alone, for callers that may set them: the algorithm.
    #[serde(borrow)]
    #[schema(value_type = Option<String>)]
    pub(crate) strategy: Option<Text<'a>>,
    /// Requests per window, for this check alone.
    pub(crate) limit: Option<u32>,
    /// The window in seconds, for this check alone.
    #[schema(minimum = 1)]
    pub(crate) window_seconds: Option<u32>,
}

/// The facts of a check, each of them valid.
#[derive(Debug)]
pub(crate) struct CheckRequest<'a> {
    request: Request<'a>,
    descriptors: Vec<(Id<'a>, Id<'a>)>,
    /// Numbers for this check alone.
    pub(crate) own: LimitOverride,
}

/// Numbers for one check alone; what is absent is taken from the rule in force.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LimitOverride {
    algorithm: Option<Algorithm>,
    requests: Option<u32>,
    window: Option<Span>,
}

impl<'a> CheckBody<'a> {
    /// The text of the limited client's key.
    pub(crate) fn key_text(&self) -> Option<&str> {
        self.api_key.as_ref().map(|text| &*text.0)
    }

    /// Checks every fact, for a caller that may be bound to one organisation. The first that does not hold is named: as it
    /// is written, and as it is read where spellings are folded.
    pub(crate) fn facts(
        &'a self,
        normalization: &Normalization,
        keys: &'a KeyRing<'_>,
        caller: &'a Caller,
    ) -> Result<CheckRequest<'a>, ApiError> {
        let mut request = Request::new(endpoint(&self.endpoint.0)?);
        request.user = id("user_id", self.user_id.as_ref())?;
        request.tenant = id("tenant", self.tenant.as_ref())?;
        request.tier = id("tier", self.tier.as_ref())?;
        request.login = id("login", self.login.as_ref())?;
        request.cost = self.cost.unwrap_or(1);
        let mut key_tenant = None;
        if let Some(key) = &self.api_key {
            let (key, tenant) = keys.client(&key.0).map_err(not_taken)?;
            (request.api_key, key_tenant) = (Some(key), tenant);
        }
        if let Some(tenant) = &caller.tenant {
            let said = request.tenant.map(Id::as_str).or(key_tenant);
            request.tenant = Some(bound(tenant, said, normalization.ids.tenant)?);
        }
        if let Some(ip) = &self.ip {
            request.ip = Some(address(&ip.0)?);
        }
        if let Some(method) = &self.method {
            let method = Method::parse(&method.0);
            request.method = Some(method.map_err(|error| ApiError::invalid("method", error.to_string()))?);
        }
        if request.client().is_none() {
            let reason = "at least one of user_id, api_key, ip, tenant, login is needed";
            return Err(ApiError::invalid("user_id", reason));
        }
        let facts = CheckRequest { request, descriptors: self.descriptors()?, own: self.own_numbers()? };
        normalization.check_lengths(&facts.request(None)).map_err(|error| too_long(&error))?;
        Ok(facts)
    }

    fn descriptors(&'a self) -> Result<Vec<(Id<'a>, Id<'a>)>, ApiError> {
        let pairs = self.descriptors.iter().flat_map(|pairs| &pairs.0);
        let parse = |text: &'a Text<'a>| Id::parse(&text.0).map_err(|error| wrong("descriptors", error));
        pairs.map(|(name, value)| Ok((parse(name)?, parse(value)?))).collect()
    }

    fn own_numbers(&self) -> Result<LimitOverride, ApiError> {
        let algorithm = self.strategy.as_ref().map(|text| strategy(&text.0)).transpose()?;
        let window = self.window_seconds.map(|secs| Span::from_secs(u64::from(secs)));
        Ok(LimitOverride { algorithm, requests: self.limit, window })
    }
}

impl<'a> CheckRequest<'a> {
    /// The request, with these numbers in place of the rule's if there are any.
    pub(crate) fn request<'b>(&'b self, own: Option<&'b Limit>) -> Request<'b>
    where
        'a: 'b,
    {
        Request { descriptors: &self.descriptors, limit_override: own, ..self.request.clone() }
    }
}

impl LimitOverride {
    /// Whether the check brings any.
    pub(crate) fn any(&self) -> bool {
        *self != LimitOverride::default()
    }

    /// The limit they make together with the numbers in force.
    pub(crate) fn limit(&self, in_force: Option<&Limit>) -> Result<Limit, ApiError> {
        let (algorithm, requests, window) = in_force.map_or_else(
            || (Algorithm::TokenBucket, 100, Window::Length(Span::from_secs(60))),
            |limit| (limit.algorithm(), limit.requests(), limit.window().clone()),
        );
        let algorithm = self.algorithm.unwrap_or(algorithm);
        let window = match (self.window, window) {
            (Some(own), _) => Window::Length(own),
            // Only a fixed window can be one of a calendar.
            (None, Window::Calendar(calendar)) if algorithm != Algorithm::FixedWindow => {
                Window::Length(calendar.nominal())
            }
            (None, window) => window,
        };
        numbers(algorithm, self.requests.unwrap_or(requests), window, None)
    }
}

/// A limit from numbers of the API; what does not fit is named by its field.
pub(crate) fn numbers(
    algorithm: Algorithm,
    requests: u32,
    window: Window,
    burst: Option<u32>,
) -> Result<Limit, ApiError> {
    use tollgate::LimitError as Wrong;
    Limit::with_options(algorithm, requests, window, burst, None).map_err(|error| {
        let field = match error {
            // In the words of the field, which has whole seconds.
            Wrong::WindowTooShort | Wrong::WindowTooLong => {
                let reason = format!("must be an integer from 1 to {}", u32::MAX);
                return ApiError::field(Code::InvalidLimit, "window_seconds", reason);
            }
            Wrong::BurstZero | Wrong::BurstWithoutBucket => "burst_capacity",
            _ => "limit",
        };
        ApiError::field(Code::InvalidLimit, field, error.to_string())
    })
}

/// A strategy by its name.
pub(crate) fn strategy(name: &str) -> Result<Algorithm, ApiError> {
    Algorithm::parse(name).ok_or_else(|| {
        let names = Algorithm::ALL.map(Algorithm::as_str);
        ApiError::invalid("strategy", format!("must be one of {}, sliding_window", names.join(", ")))
    })
}

/// An endpoint in its normal form.
pub(crate) fn endpoint(text: &str) -> Result<Endpoint<'_>, ApiError> {
    if text.is_empty() {
        return Err(ApiError::invalid("endpoint", "must not be empty"));
    }
    Endpoint::parse(text).map_err(|error| ApiError::invalid("endpoint", error.to_string()))
}

/// An optional identifier.
pub(crate) fn id<'a>(field: &'static str, text: Option<&'a Text<'a>>) -> Result<Option<Id<'a>>, ApiError> {
    text.map(|text| Id::parse(&text.0).map_err(|error| wrong(field, error))).transpose()
}

fn address(text: &str) -> Result<IpAddr, ApiError> {
    text.parse().map_err(|_| ApiError::invalid("ip", "must be an IPv4 or IPv6 address, without port or zone"))
}

/// The organisation of a caller that is bound to it; `said` is what the request says about that.
fn bound<'a>(tenant: &'a str, said: Option<&str>, fold: NormalForm) -> Result<Id<'a>, ApiError> {
    if said.is_some_and(|said| fold.normalize(said) != fold.normalize(tenant)) {
        let message = format!("the key is bound to the tenant {tenant:?}, and the request is of another");
        return Err(ApiError::new(Code::Forbidden, message));
    }
    Id::parse(tenant).map_err(|error| wrong("tenant", error))
}

/// A fact that is too long as it is read, by the name that the API has for it.
pub(crate) fn too_long(error: &NormalizationError) -> ApiError {
    let field = match error.fact {
        Dimension::User => "user_id",
        Dimension::Tenant => "tenant",
        Dimension::Login => "login",
        Dimension::Endpoint => "endpoint",
        _ => "descriptors",
    };
    ApiError::invalid(field, error.to_string())
}

fn not_taken(error: ApiKeyError) -> ApiError {
    match error {
        ApiKeyError::Malformed(error) => wrong("api_key", error),
        ApiKeyError::Refused(refusal) => ApiError::key_refused(refusal),
    }
}

fn wrong(field: &'static str, error: IdError) -> ApiError {
    ApiError::invalid(field, error.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tollgate::calendar::{Calendar, CalendarUnit};

    use super::*;

    #[test]
    fn own_numbers_count_in_the_window_of_the_rule_unless_they_bring_one() {
        let day = Window::Calendar(Arc::new(Calendar::new(CalendarUnit::Day, "Europe/Berlin").unwrap()));
        let daily = Limit::new(Algorithm::FixedWindow, 9, day.clone()).unwrap();
        let window = |own: LimitOverride| own.limit(Some(&daily)).unwrap().window().clone();
        let (none, span) = (LimitOverride::default, Span::from_secs);
        assert_eq!(window(LimitOverride { requests: Some(5), ..none() }), day);
        assert_eq!(window(LimitOverride { window: Some(span(60)), ..none() }), Window::Length(span(60)));
        // No other algorithm can count days of a calendar.
        let bucket = LimitOverride { algorithm: Some(Algorithm::TokenBucket), ..none() };
        assert_eq!(window(bucket), Window::Length(span(86_400)));
    }
}
