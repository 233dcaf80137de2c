//! `POST /v1/rate-limit/explain`: why would this request pass, or not?

use http::StatusCode;
use hyper::body::Incoming;
use serde::Serialize;
use tollgate::algorithms::Outcome;
use tollgate::counters::Effect;
use tollgate::decision::LimitReport;
use tollgate::explain::RuleExplanation;
use tollgate::headers::retry_after_secs;
use tollgate::identity::Scratch;
use tollgate::{Decision, Id, Timestamp};
use utoipa::ToSchema;

use super::check::CheckBody;
use super::decision::DecisionBody;
use crate::http::error::{ApiError, ErrorEnvelope};
use crate::http::json;
use crate::http::response;
use crate::http::{CHECK_BYTES_MAX, Call, Response};

/// A decision and everything behind it. Nothing was charged.
#[derive(Serialize, ToSchema)]
pub(crate) struct ExplainBody<'a> {
    /// What the request would be told now.
    #[serde(flatten)]
    decision: DecisionBody<'a>,
    /// Who the request is counted as, `user:alice`.
    client: Option<String>,
    /// What is known of the key and the user; absent if nothing is.
    #[serde(skip_serializing_if = "KnownBody::is_empty")]
    known: KnownBody<'a>,
    /// The endpoint in its normal form.
    normalized_endpoint: &'a str,
    /// The earliest instant at which the request is admitted, in Unix microseconds; null if never.
    next_allowed_at_us: Option<u64>,
    /// Until when the client is kept out for running into its limits, in Unix seconds; absent if it is not. The limits
    /// below are told as their counters stand all the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    cooldown_until: Option<u64>,
    /// Every rule in the order of the walk.
    rules: Vec<RuleBody<'a>>,
}

/// What the request did not say and is known all the same.
#[derive(Serialize, ToSchema, PartialEq, Default)]
pub(crate) struct KnownBody<'a> {
    /// The user, by the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    user_id: Option<&'a str>,
    /// The organisation, by the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<&'a str>,
    /// The plan, by the key or the user's record.
    #[serde(skip_serializing_if = "Option::is_none")]
    tier: Option<&'a str>,
    /// OverrideKey numbers apply in place of a rule's: `@check` the check's own, `@config` those set for user and endpoint,
    /// `@key` the key's, `@quota` the user's.
    #[serde(skip_serializing_if = "Option::is_none")]
    numbers: Option<&'static str>,
    /// Which fact is blocked: `user`, `api_key`, `tenant`, `login` or `ip`.
    #[serde(skip_serializing_if = "Option::is_none")]
    blocked: Option<&'static str>,
}

impl KnownBody<'_> {
    fn is_empty(&self) -> bool {
        *self == KnownBody::default()
    }
}

/// What became of one rule.
#[derive(Serialize, ToSchema)]
pub(crate) struct RuleBody<'a> {
    /// The rule.
    name: &'a str,
    /// Whether the request meets its conditions.
    matched: bool,
    /// What became of it, in words.
    reason: String,
    /// What it does.
    action: &'static str,
    /// Lower is looked at first.
    priority: u32,
    /// Only the first matching rule of a layer applies.
    layer: &'a str,
    /// Whether one of its limits decided.
    binding: bool,
    /// What its limits say, if they apply.
    limits: Vec<LimitBody>,
}

/// What one limit says.
#[derive(Serialize, ToSchema)]
pub(crate) struct LimitBody {
    /// Requests per window.
    limit: u32,
    /// The window in seconds.
    window_seconds: u64,
    /// The algorithm.
    strategy: &'static str,
    /// What would pass now.
    remaining: u32,
    /// Seconds until the request is admitted by this limit; null if it is now, or never will be.
    retry_after: Option<u64>,
    /// When the limit is as good as new, in Unix seconds.
    reset_at: u64,
    /// Whether a refusal by it counts.
    enforced: bool,
}

/// Explains one request without charging it.
#[utoipa::path(
    post, path = "/v1/rate-limit/explain", request_body = CheckBody<'_>,
    responses(
        (status = 200, description = "The decision, and every rule behind it", body = ExplainBody<'_>),
        (status = 400, description = "A field is wrong", body = ErrorEnvelope<'_>),
        (status = 503, description = "The counters cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn explain(call: Call, body: Incoming) -> Result<Response, ApiError> {
    let body = call.json_body(body, CHECK_BYTES_MAX).await?;
    let check: CheckBody<'_> = json::parse(&body)?;
    let (checker, check) = (call.checker(), check.request());
    let resolved = checker.resolve(&check)?;
    let request = resolved.request();
    let explanation = checker.explain(&request).await;
    let decision = &explanation.decision;
    let rules = explanation.rules(&request);
    let mut scratch = Scratch::default();
    let resolved = explanation.resolved(&request, &mut scratch);
    let known = KnownBody {
        user_id: resolved.user.map(Id::as_str),
        tenant: resolved.tenant.map(Id::as_str),
        tier: resolved.tier.map(Id::as_str),
        numbers: explanation.override_source(&request),
        blocked: decision.block().map(|block| block.kind.as_str()),
    };
    let body = ExplainBody {
        decision: DecisionBody::new(decision),
        client: resolved.request.client().map(|client| client.to_string()),
        known,
        normalized_endpoint: resolved.request.endpoint.as_str(),
        next_allowed_at_us: explanation.next_allowed_at().map(Timestamp::as_micros),
        cooldown_until: explanation.cooldown_until().map(Timestamp::as_secs_ceil),
        rules: rules.iter().map(|rule| rule_body(rule, decision)).collect(),
    };
    Ok(response::json(StatusCode::OK, &body))
}

fn rule_body<'a>(explained: &RuleExplanation<'a>, decision: &Decision) -> RuleBody<'a> {
    let rule = explained.rule;
    RuleBody {
        name: &rule.name,
        matched: explained.matched,
        reason: explained.reason.clone(),
        action: rule.action.as_str(),
        priority: rule.priority,
        layer: &rule.layer,
        binding: decision.rule_name() == Some(&*rule.name),
        limits: explained.reports.iter().map(|report| limit_body(report, decision.now)).collect(),
    }
}

fn limit_body(report: &LimitReport, now: Timestamp) -> LimitBody {
    LimitBody {
        limit: report.requests,
        window_seconds: report.window.as_secs_ceil(),
        strategy: report.algorithm.as_str(),
        remaining: report.remaining(),
        retry_after: match report.verdict.outcome {
            Outcome::Refuse { retry_after } => Some(retry_after_secs(retry_after)),
            _ => None,
        },
        reset_at: (now + report.verdict.reset_after).as_secs_ceil(),
        enforced: report.effect == Effect::Enforce,
    }
}
