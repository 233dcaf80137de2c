//! A decision as HTTP: status, JSON body and rate-limit headers.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde::{Serialize, Serializer};
use tollgate::decision::LimitReport;
use tollgate::headers::{self, Field, HeaderProfile, retry_after_secs};
use tollgate::{Answer, Decision, Timestamp, Window};
use utoipa::ToSchema;

use crate::auth::api_keys::KeyRefusal;
use crate::check::warnings::Warnings;
use crate::http::{Response, response};

/// The decision about one request.
#[derive(Default, Serialize, ToSchema)]
pub(crate) struct DecisionBody<'a> {
    /// Whether the request is admitted.
    allowed: bool,
    /// Requests per window of the binding limit; null if no limit applies.
    limit: Option<u32>,
    /// Units that would be admitted now, at most `limit`.
    remaining: Option<u32>,
    /// The most units that can be admitted at once: the burst if the limit has one; during an outage, of this node's share.
    capacity: Option<u32>,
    /// The window of the binding limit: `1m`, or `month in Europe/Berlin`.
    #[schema(value_type = Option<String>)]
    window: Option<WindowText<'a>>,
    /// When the limit is fully restored, in Unix seconds.
    reset_at: Option<u64>,
    /// The algorithm of the binding limit.
    strategy: Option<&'static str>,
    /// Seconds until the same request is admitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u64>,
    /// The rule of the binding limit.
    rule: Option<&'a str>,
    /// Delay the request by this many milliseconds before serving it.
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_ms: Option<u64>,
    /// Why the request is refused: `over_limit`, `cost_exceeds_limit`, `cooldown`, or the reason of the block.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    /// `blocked` if the client is blocked; absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    decision: Option<&'static str>,
    /// When the block ends, in Unix seconds; null if it does not expire.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<u64>)]
    blocked_until: Option<BlockedUntil>,
    /// The message of the rule for refused clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
    /// The HTTP status of the rule for refused clients, if it is not 429.
    #[serde(skip_serializing_if = "Option::is_none")]
    response_status: Option<u16>,
    /// Whether the decision was made without the shared counters.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    degraded: bool,
    /// Plain sentences about fields that were ignored or look like mistakes; absent without any.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    #[schema(value_type = Option<Vec<String>>)]
    warnings: &'a [Cow<'static, str>],
}

/// A window as text, written without a buffer.
struct WindowText<'a>(&'a Window);

impl Serialize for WindowText<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0.describe())
    }
}

/// When a block ends; null for a block without expiry. A field of its own so that null is written, not skipped.
#[derive(Serialize)]
struct BlockedUntil(Option<u64>);

impl<'a> DecisionBody<'a> {
    /// The decision about a client whose API key is unknown, expired or revoked.
    pub(crate) fn key_refused(refusal: KeyRefusal) -> Self {
        DecisionBody {
            reason: Some(refusal.as_str()),
            decision: Some("blocked"),
            blocked_until: Some(BlockedUntil(None)),
            ..DecisionBody::default()
        }
    }

    pub(crate) fn with_warnings(self, warnings: &'a Warnings) -> Self {
        DecisionBody { warnings: warnings.as_slice(), ..self }
    }

    pub(crate) fn new(decision: &'a Decision) -> Self {
        let binding = decision.binding();
        let rule = decision.rule();
        let message = rule.and_then(|rule| rule.response.message.as_deref());
        let status = rule.map(|rule| rule.response.status);
        let mut body = DecisionBody {
            allowed: decision.admits(),
            limit: binding.map(|report| report.requests),
            remaining: binding.map(LimitReport::remaining),
            capacity: binding.map(|report| report.capacity),
            window: binding.map(|report| WindowText(&report.window)),
            reset_at: decision.reset_at().map(Timestamp::as_secs_ceil),
            strategy: binding.map(|report| report.algorithm.as_str()),
            retry_after: decision.retry_after().map(retry_after_secs),
            rule: decision.rule_name(),
            message: message.filter(|_| !decision.admits()),
            response_status: status.filter(|status| !decision.admits() && *status != 429),
            degraded: decision.degraded,
            ..DecisionBody::default()
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

/// The response to a check.
pub(crate) fn response(decision: &Decision, warnings: &Warnings, profiles: &[HeaderProfile]) -> Response {
    let body = DecisionBody::new(decision).with_warnings(warnings);
    let mut response = response::json(status(decision), &body);
    if !decision.admits() {
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    put_headers(response.headers_mut(), decision, profiles);
    response
}

fn status(decision: &Decision) -> StatusCode {
    match decision.answer {
        Answer::Admit { .. } => StatusCode::OK,
        Answer::Refuse { .. } => StatusCode::TOO_MANY_REQUESTS,
        Answer::Block => StatusCode::FORBIDDEN,
        Answer::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// Adds the rate-limit headers of a decision.
pub(crate) fn put_headers(target: &mut HeaderMap, decision: &Decision, profiles: &[HeaderProfile]) {
    headers::for_each(decision, profiles, |field, value| put_header(target, field, value));
}

/// Adds the rate-limit headers of a client whose API key is refused.
pub(crate) fn put_headers_of_refused_key(target: &mut HeaderMap, profiles: &[HeaderProfile]) {
    headers::for_blocked(profiles, |field, value| put_header(target, field, value));
}

fn put_header(target: &mut HeaderMap, field: Field, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        target.insert(header_name(field), value);
    }
}

/// Constants, because parsing a header name at run time checks every byte of it.
fn header_name(field: Field) -> HeaderName {
    macro_rules! constants {
        ($($field:ident),*) => {
            match field {
                $(Field::$field => {
                    const NAME: HeaderName = HeaderName::from_static(Field::$field.as_str());
                    NAME
                })*
            }
        };
    }
    constants!(XLimit, XRemaining, XReset, XStrategy, Limit, Remaining, Reset, Policy, RateLimit, RetryAfter)
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
        assert_eq!(status(&decided), StatusCode::FORBIDDEN);
        serde_json::to_value(DecisionBody::new(&decided)).unwrap()
    }

    #[test]
    fn block_reports_reason_and_end() {
        let body = body("abuse, see #7", Some(Timestamp::from_micros(2_000_000_001)));
        assert_eq!(body["decision"], "blocked");
        assert_eq!(body["allowed"], false);
        assert_eq!(body["reason"], "abuse, see #7");
        assert_eq!(body["blocked_until"], 2_001, "rounded up: it is still in force at 2000");
    }

    #[test]
    fn permanent_block_has_null_end() {
        let body = body("", None);
        assert_eq!(body.get("blocked_until"), Some(&json!(null)));
        assert_eq!(body["reason"], "", "an empty reason stays empty");
    }
}
