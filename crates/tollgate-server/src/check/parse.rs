//! Parses the fields of a check into the library's checked types. An error names the field.

use std::borrow::Cow;
use std::net::IpAddr;

use tollgate::identity::{Dimension, IdError, NormalForm, NormalizationError};
use tollgate::{Algorithm, Endpoint, Id, Limit, LimitError, LimitOverride, Method, Span, Window};

use super::error::CheckError;
use super::request::{CheckRequest, SentIp};
use crate::auth::api_keys::{KEY_INSTEAD_OF_ID, contains_key};

pub(super) fn parse_override(sent: &CheckRequest<'_>) -> Result<LimitOverride, CheckError> {
    let algorithm = sent.strategy.map(parse_strategy).transpose()?;
    let window = sent.window_seconds.map(|secs| Span::from_secs(u64::from(secs)));
    Ok(LimitOverride { algorithm, requests: sent.limit, window })
}

/// A limit from fields of the API.
pub(crate) fn parse_limit(
    algorithm: Algorithm,
    requests: u32,
    window: Window,
    burst: Option<u32>,
) -> Result<Limit, CheckError> {
    Limit::with_options(algorithm, requests, window, burst, None).map_err(invalid_limit)
}

pub(super) fn invalid_limit(error: LimitError) -> CheckError {
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

/// Parses an endpoint that must not be a pattern.
pub(crate) fn parse_one_endpoint(text: &str) -> Result<Endpoint<'_>, CheckError> {
    let endpoint = parse_endpoint(text)?;
    if endpoint.as_str().split('/').any(|segment| segment == "*" || segment.starts_with("%7B")) {
        return Err(CheckError::invalid("endpoint", "must be one endpoint; only rules can have patterns"));
    }
    Ok(endpoint)
}

pub(crate) fn parse_user(text: &str) -> Result<Id<'_>, CheckError> {
    parse_text("user_id", text)
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

pub(crate) fn parse_id<'t>(field: &'static str, text: Option<&'t str>) -> Result<Option<Id<'t>>, CheckError> {
    text.map(|text| parse_text(field, text)).transpose()
}

/// Parses an id. A whole API key in its place is refused: ids are stored, logged and shown.
fn parse_text<'t>(field: &'static str, text: &'t str) -> Result<Id<'t>, CheckError> {
    if contains_key(text) {
        return Err(CheckError::invalid(field, KEY_INSTEAD_OF_ID));
    }
    Id::parse(text).map_err(|error| invalid_id(field, error))
}

pub(super) fn parse_ip(sent: SentIp<'_>) -> Result<IpAddr, CheckError> {
    let text = match sent {
        SentIp::Address(address) => return Ok(address),
        SentIp::Text(text) => text,
    };
    let reason = "must be an IPv4 or IPv6 address without port or zone";
    text.parse().map_err(|_| CheckError::invalid("ip", reason))
}

pub(super) fn parse_method(text: &str) -> Result<Method, CheckError> {
    Method::parse(text).map_err(|error| CheckError::invalid("method", error.to_string()))
}

pub(super) fn parse_descriptors<'t>(
    pairs: &'t [(Cow<'_, str>, Cow<'_, str>)],
) -> Result<Vec<(Id<'t>, Id<'t>)>, CheckError> {
    let parse = |text: &'t str| parse_text("descriptors", text);
    pairs.iter().map(|(name, value)| Ok((parse(name)?, parse(value)?))).collect()
}

/// The tenant of a caller that is bound to one; `named` is the tenant that the request names.
pub(crate) fn bind_tenant<'t>(
    bound_to: &'t str,
    named: Option<&str>,
    form: NormalForm,
) -> Result<Id<'t>, CheckError> {
    if named.is_some_and(|named| form.normalize(named) != form.normalize(bound_to)) {
        return Err(CheckError::TenantMismatch { bound_to: bound_to.into() });
    }
    Id::parse(bound_to).map_err(|error| invalid_id("tenant", error))
}

pub(super) fn invalid_id(field: &'static str, error: IdError) -> CheckError {
    CheckError::invalid(field, error.to_string())
}
