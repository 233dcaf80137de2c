//! Decisions as HTTP answers.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use http_body_util::Full;
use serde::Serialize;
use tollgate::counters::StoreError;
use tollgate::headers::{self, Field, HeaderProfile, retry_after_secs};
use tollgate::{Answer, Decision, Timestamp};
use utoipa::ToSchema;

use crate::auth::api_keys::KeyRefusal;
use crate::http::Response;
use crate::http::error::ApiError;

/// Headers of an answer to a check, those that hyper adds included.
const HEADERS_USUAL: usize = 12;

/// The answer to one check.
#[derive(Serialize, ToSchema)]
pub(crate) struct DecisionBody<'a> {
    /// Whether the request may pass.
    pub(crate) allowed: bool,
    /// Requests per window of the limit that decided; null if no limit applies.
    pub(crate) limit: Option<u32>,
    /// What would pass now.
    pub(crate) remaining: Option<u32>,
    /// When the limit is as good as new, in Unix seconds.
    pub(crate) reset_at: Option<u64>,
    /// The algorithm of the limit that decided.
    pub(crate) strategy: Option<&'static str>,
    /// Seconds until the same request is admitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retry_after: Option<u64>,
    /// The rule that decided.
    pub(crate) rule: Option<&'a str>,
    /// Hold the request this long before it starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) delay_ms: Option<u64>,
    /// `over_limit`, `cost_exceeds_limit`, `cooldown`, or why it is blocked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<&'a str>,
    /// `blocked`, if no counter was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) decision: Option<&'static str>,
    /// When the block ends, in Unix seconds; null if it does not end by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    pub(crate) blocked_until: Option<BlockedUntil>,
    /// What the rule has its clients told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<&'a str>,
    /// The status the rule has its clients answered with, if it is not 429.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) response_status: Option<u16>,
    /// Whether it was decided without the shared counters.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) degraded: bool,
}

/// The end of a block. A rule's block has none: it ends when the rule does, as does one that was set for good.
#[derive(Serialize)]
pub(crate) struct BlockedUntil(Option<u64>);

impl<'a> DecisionBody<'a> {
    /// About a client whose key is none.
    pub(crate) fn key_refused(refusal: KeyRefusal) -> Self {
        DecisionBody {
            allowed: false,
            limit: None,
            remaining: None,
            reset_at: None,
            strategy: None,
            retry_after: None,
            rule: None,
            delay_ms: None,
            reason: Some(refusal.as_str()),
            decision: Some("blocked"),
            blocked_until: Some(BlockedUntil(None)),
            message: None,
            response_status: None,
            degraded: false,
        }
    }

    pub(crate) fn new(decision: &'a Decision) -> Self {
        let binding = decision.binding();
        let rule = decision.rule();
        let message = rule.and_then(|rule| rule.response.message.as_deref());
        let status = rule.map(|rule| rule.response.status);
        let mut body = DecisionBody {
            allowed: decision.admits(),
            limit: binding.map(|report| report.requests),
            remaining: binding.map(tollgate::decision::LimitReport::remaining),
            reset_at: decision.reset_at().map(Timestamp::as_secs_ceil),
            strategy: binding.map(|report| report.algorithm.as_str()),
            retry_after: decision.retry_after().map(retry_after_secs),
            rule: decision.rule_name(),
            delay_ms: None,
            reason: None,
            decision: None,
            blocked_until: None,
            message: message.filter(|_| !decision.admits()),
            response_status: status.filter(|status| !decision.admits() && *status != 429),
            degraded: decision.degraded,
        };
        match decision.answer {
            Answer::Admit { delay } => {
                body.delay_ms = Some(delay.as_millis_ceil()).filter(|delay| *delay > 0);
            }
            Answer::Refuse { reason, .. } => body.reason = Some(reason.as_str()),
            Answer::Block => {
                let block = decision.block();
                body.decision = Some("blocked");
                body.reason = block.map(|block| block.reason).or(message).or(Some("blocked by a rule"));
                let until = block.and_then(|block| block.until);
                body.blocked_until = Some(BlockedUntil(until.map(Timestamp::as_secs_ceil)));
            }
            Answer::Unavailable => {}
        }
        body
    }
}

/// The status of a decision.
pub(crate) fn status(decision: &Decision) -> Result<StatusCode, ApiError> {
    match decision.answer {
        Answer::Admit { .. } => Ok(StatusCode::OK),
        Answer::Refuse { .. } => Ok(StatusCode::TOO_MANY_REQUESTS),
        Answer::Block => Ok(StatusCode::FORBIDDEN),
        Answer::Unavailable if decision.misconfigured => Err(StoreError::Misconfigured.into()),
        Answer::Unavailable => Err(StoreError::Unreachable.into()),
    }
}

/// The answer to a check.
pub(crate) fn decision(decision: &Decision, profiles: &[HeaderProfile]) -> Result<Response, ApiError> {
    let status = status(decision)?;
    let mut response = json(status, &DecisionBody::new(decision));
    if !decision.admits() {
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    put_headers(&mut response, decision, profiles);
    Ok(response)
}

/// Adds the rate-limit headers of a decision.
pub(crate) fn put_headers(response: &mut Response, decision: &Decision, profiles: &[HeaderProfile]) {
    let target = response.headers_mut();
    headers::for_each(decision, profiles, |field, value| {
        if let Ok(value) = HeaderValue::from_str(value) {
            target.insert(name_of(field), value);
        }
    });
}

/// The name as a constant: making one checks every byte of it.
fn name_of(field: Field) -> HeaderName {
    macro_rules! constants {
        ($($field:ident),*) => {
            match field {
                $(Field::$field => {
                    const NAME: HeaderName = HeaderName::from_static(Field::$field.name());
                    NAME
                })*
            }
        };
    }
    constants!(XLimit, XRemaining, XReset, XStrategy, Limit, Remaining, Reset, Policy, RateLimit, RetryAfter)
}

/// Any value as a JSON answer.
pub(crate) fn json(status: StatusCode, body: &impl Serialize) -> Response {
    let mut bytes = Vec::with_capacity(256);
    if serde_json::to_writer(&mut bytes, body).is_err() {
        bytes.clear();
    }
    let mut response = Response::new(Full::new(Bytes::from(bytes)));
    *response.status_mut() = status;
    // BodyBudget for all that an answer carries, so that the map grows once.
    *response.headers_mut() = HeaderMap::with_capacity(HEADERS_USUAL);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A response without a body.
pub(crate) fn empty(status: StatusCode) -> Response {
    let mut response = Response::default();
    *response.status_mut() = status;
    response
}

/// An instant as RFC 3339 with seconds, `2026-11-15T12:00:00Z`.
pub(crate) fn rfc3339(at: Timestamp) -> String {
    let secs = i64::try_from(at.as_micros() / 1_000_000).unwrap_or(0);
    jiff::Timestamp::from_second(secs).map_or_else(|_| String::new(), |instant| instant.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tollgate::accounts::BlockTarget;
    use tollgate::{Endpoint, Id, Limiter, MemoryCounters, Request, RuleSet};

    use super::*;

    /// The body of a check by alice, who is blocked for `reason`.
    fn body(reason: &str, until: Option<Timestamp>) -> Value {
        let limiter = Limiter::new(RuleSet::from_toml("").unwrap(), MemoryCounters::default());
        limiter.update_accounts(|accounts| {
            let mut editor = accounts.edit();
            editor.put_block(BlockTarget::User("alice"), reason, until);
            editor.finish()
        });
        let user = Some(Id::parse("alice").unwrap());
        let request = Request { user, ..Request::new(Endpoint::parse("/").unwrap()) };
        let decided = limiter.check_now(&request, Timestamp::from_secs(1_000));
        assert_eq!(status(&decided).unwrap(), StatusCode::FORBIDDEN);
        serde_json::to_value(DecisionBody::new(&decided)).unwrap()
    }

    #[test]
    fn whoever_is_blocked_is_told_why_and_until_when() {
        let body = body("abuse, see #7", Some(Timestamp::from_micros(2_000_000_001)));
        assert_eq!(body["decision"], "blocked");
        assert_eq!(body["allowed"], false);
        assert_eq!(body["reason"], "abuse, see #7");
        assert_eq!(body["blocked_until"], 2_001, "rounded up: a second earlier it is not over");
    }

    #[test]
    fn a_block_for_good_ends_at_no_time() {
        let body = body("", None);
        assert_eq!(body.get("blocked_until"), Some(&json!(null)));
        assert_eq!(body["reason"], "", "whoever set it gave none");
    }
}
