//! `POST /v1/rate-limit/explain`: the decision about a request and the rules behind it, without charging.

use http::StatusCode;
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};
use tollgate::algorithms::Outcome;
use tollgate::counters::Effect;
use tollgate::decision::LimitReport;
use tollgate::explain::{Explanation, RuleExplanation, describe_excess, describe_override};
use tollgate::headers::retry_after_secs;
use tollgate::identity::Scratch;
use tollgate::rules::Action;
use tollgate::{Decision, Id, Timestamp, Window};
use utoipa::{IntoParams, ToSchema};

use super::check::CheckBody;
use super::decision::DecisionBody;
use crate::admin::dry_run::parse_flag;
use crate::admin::page;
use crate::check::warnings::Warnings;
use crate::http::error::{ApiError, Code};
use crate::http::response;
use crate::http::{CHECK_BYTES_MAX, Call, Response};

/// A decision and the rules behind it. Nothing is charged.
#[derive(Serialize, ToSchema)]
pub(crate) struct ExplainBody<'a> {
    /// The decision that a check would get now.
    #[serde(flatten)]
    decision: DecisionBody<'a>,
    /// The client as which the request is counted, `user:alice`.
    client: Option<String>,
    /// What the accounts contribute to the request; absent if nothing.
    #[serde(skip_serializing_if = "AccountBody::is_empty")]
    account: AccountBody<'a>,
    /// The normalized endpoint.
    normalized_endpoint: &'a str,
    /// The earliest time at which the request would be admitted, in Unix microseconds; null if never.
    next_allowed_at_us: Option<u64>,
    /// When the cooldown of the client ends, in Unix seconds; absent without one. `rules` shows the counters regardless of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    cooldown_until: Option<u64>,
    /// The rules that match, with `all` every rule, in order of evaluation; then an override that replaces none of them.
    rules: Vec<RuleBody<'a>>,
    /// Rules that do not match.
    unmatched: usize,
    /// Pass it as `after` to list the rules that follow; absent on the last page.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// Which rules are listed.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ExplainQuery {
    /// `true` lists rules that do not match too.
    #[param(value_type = Option<bool>)]
    all: Option<String>,
    /// Rules per page, 1 to 1000; default 100.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
    /// `next` of an earlier response.
    after: Option<String>,
}

/// The rules of one page.
struct RulePage {
    all: bool,
    limit: usize,
    skip: usize,
}

impl RulePage {
    fn parse(call: &Call) -> Result<Self, ApiError> {
        let query: ExplainQuery = call.query()?;
        let limit = page::parse_limit(query.limit.as_deref())?;
        let reason = "must be `next` of an earlier response";
        let invalid = |_| ApiError::field(Code::InvalidInput, "after", reason);
        let skip: u32 = query.after.as_deref().map_or(Ok(0), str::parse).map_err(invalid)?;
        Ok(RulePage {
            all: parse_flag("all", query.all.as_deref())?,
            limit: usize::try_from(limit).unwrap_or(usize::MAX),
            skip: usize::try_from(skip).unwrap_or(usize::MAX),
        })
    }

    /// The rules of the page, and `next`.
    fn select<'r, 'a>(
        &self,
        rules: &'r [RuleExplanation<'a>],
    ) -> (Vec<&'r RuleExplanation<'a>>, Option<String>) {
        let mut listed = rules.iter().filter(|rule| self.all || rule.matched).skip(self.skip);
        let page = listed.by_ref().take(self.limit).collect();
        (page, listed.next().map(|_| (self.skip + self.limit).to_string()))
    }
}

/// Facts from the accounts that the request does not contain.
#[derive(Serialize, ToSchema, PartialEq, Default)]
pub(crate) struct AccountBody<'a> {
    /// The user of the API key.
    #[serde(skip_serializing_if = "Option::is_none")]
    user_id: Option<&'a str>,
    /// The tenant of the API key.
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<&'a str>,
    /// The tier of the API key or of the user.
    #[serde(skip_serializing_if = "Option::is_none")]
    tier: Option<&'a str>,
    /// The override that replaces the limit of a rule: `@check` sent with the check, `@config` set for user and endpoint, `@key` of the
    /// API key, `@quota` of the user.
    #[serde(rename = "override", skip_serializing_if = "Option::is_none")]
    override_source: Option<&'static str>,
    /// What is blocked: `user`, `api_key`, `tenant`, `login` or `ip`.
    #[serde(skip_serializing_if = "Option::is_none")]
    blocked: Option<&'static str>,
}

impl AccountBody<'_> {
    fn is_empty(&self) -> bool {
        *self == AccountBody::default()
    }
}

/// How one rule applies to the request.
#[derive(Serialize, ToSchema)]
pub(crate) struct RuleBody<'a> {
    /// The name of the rule.
    name: &'a str,
    /// Whether the request matches the conditions of the rule.
    matched: bool,
    /// Why the rule applies or does not, in English.
    reason: String,
    /// The action of the rule.
    action: &'static str,
    /// Rules with a lower priority value are evaluated first.
    priority: u32,
    /// The layer; only the first matching rule of a layer applies. Empty if the rule allows or blocks: it has no layer.
    layer: &'a str,
    /// Whether a limit of this rule is the binding one.
    binding: bool,
    /// The state of its limits, if the rule applies.
    limits: Vec<LimitBody>,
}

/// The state of one limit.
#[derive(Serialize, ToSchema)]
pub(crate) struct LimitBody {
    /// Requests per window.
    limit: u32,
    /// The most units that can be admitted at once: the burst if the limit has one; during an outage, of this node's share.
    capacity: u32,
    /// The window: `1m`, or `month in Europe/Berlin`.
    window: String,
    /// The window in seconds; null for days, weeks and months of a calendar, which differ in length.
    window_seconds: Option<u64>,
    /// The algorithm.
    strategy: &'static str,
    /// Units that would be admitted now.
    remaining: u32,
    /// Seconds until this limit admits the request; null if it does now or never will.
    retry_after: Option<u64>,
    /// When the limit is fully restored, in Unix seconds.
    reset_at: u64,
    /// Whether the limit is enforced; false in shadow mode.
    enforced: bool,
    /// The address that this limit counts, `ip:192.0.2.1`, beside a client whose login name or API key is not verified; absent for
    /// every other limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
}

/// Explains one request without charging it.
#[utoipa::path(
    post, path = "/v1/rate-limit/explain", params(ExplainQuery), request_body = CheckBody<'_>,
    responses(
        (status = 200, description = "The decision and the rules behind it", body = ExplainBody<'_>),
    )
)]
pub(crate) async fn explain(call: Call, body: Incoming) -> Result<Response, ApiError> {
    let page = RulePage::parse(&call)?;
    let body = call.json_body(body, CHECK_BYTES_MAX).await?;
    let mut warnings = Warnings::default();
    let check = CheckBody::parse(&body, call.settings.strict_checks, &mut warnings)?;
    let (checker, check) = (call.checker()?, check.request());
    let resolved = checker.resolve(&check, &mut warnings)?;
    let request = resolved.request();
    checker.warn_of_account_tier(&request, &mut warnings);
    checker.warn_of_tenants(&request, &mut warnings);
    let explanation = checker.explain(&request).await;
    let decision = &explanation.decision;
    let rules = explanation.rules(&request);
    let (listed, next) = page.select(&rules);
    let mut scratch = Scratch::default();
    let resolved = explanation.resolved(&request, &mut scratch);
    let address = resolved.request.address_beside_client().map(|address| address.to_string());
    let override_beside =
        override_body(&explanation, request.cost, address.as_deref()).filter(|_| next.is_none());
    let account = AccountBody {
        user_id: resolved.user.map(Id::as_str),
        tenant: resolved.tenant.map(Id::as_str),
        tier: resolved.tier.map(Id::as_str),
        override_source: explanation.override_source(&request),
        blocked: decision.block().map(|block| block.kind.as_str()),
    };
    let body = ExplainBody {
        decision: DecisionBody::new(decision).with_warnings(&warnings),
        client: resolved.request.client().map(|client| client.to_string()),
        account,
        normalized_endpoint: resolved.request.endpoint.as_str(),
        next_allowed_at_us: next_allowed_at(&call, &explanation).map(Timestamp::as_micros),
        cooldown_until: explanation.cooldown_until().map(Timestamp::as_secs_ceil),
        rules: listed
            .iter()
            .map(|rule| rule_body(rule, decision, address.as_deref()))
            .chain(override_beside)
            .collect(),
        unmatched: rules.iter().filter(|rule| !rule.matched).count(),
        next,
    };
    Ok(response::json(StatusCode::OK, &body))
}

/// On this node's clock. Redis reports the wait as of its own decision, so it is counted from the reply, which is later: a
/// request at that instant is not too early, however far the two clocks differ.
fn next_allowed_at(call: &Call, explanation: &Explanation) -> Option<Timestamp> {
    if call.app.counters().memory().is_some() {
        return explanation.next_allowed_at();
    }
    Some(call.app.now() + explanation.wait()?)
}

fn rule_body<'a>(
    explained: &RuleExplanation<'a>,
    decision: &Decision,
    address: Option<&str>,
) -> RuleBody<'a> {
    let rule = explained.rule;
    RuleBody {
        name: &rule.name,
        matched: explained.matched,
        reason: explained.reason.clone(),
        action: rule.action.as_str(),
        priority: rule.priority,
        layer: if rule.action.limits() { &rule.layer } else { "" },
        binding: decision.rule_name() == Some(&*rule.name),
        limits: explained.reports.iter().map(|report| limit_body(report, decision.now, address)).collect(),
    }
}

/// An override that replaces no rule, as a rule of a layer of its own.
fn override_body(explanation: &Explanation, cost: u32, address: Option<&str>) -> Option<RuleBody<'static>> {
    let (name, reports) = explanation.override_beside_rules()?;
    let decision = &explanation.decision;
    let excess = describe_excess(&reports, cost).map(|excess| format!(", and {excess}"));
    Some(RuleBody {
        name,
        matched: true,
        reason: format!("{} applies beside the rules{}", describe_override(name), excess.unwrap_or_default()),
        action: Action::Reject.as_str(),
        priority: 0,
        layer: name,
        binding: decision.rule_name() == Some(name),
        limits: reports.iter().map(|report| limit_body(report, decision.now, address)).collect(),
    })
}

fn limit_body(report: &LimitReport, now: Timestamp, address: Option<&str>) -> LimitBody {
    LimitBody {
        limit: report.requests,
        capacity: report.capacity,
        window: report.window.describe().to_string(),
        window_seconds: match &report.window {
            Window::Length(length) => Some(length.as_secs_ceil()),
            Window::Calendar(_) => None,
        },
        strategy: report.algorithm.as_str(),
        remaining: report.remaining(),
        retry_after: match report.verdict.outcome {
            Outcome::Refuse { retry_after } => Some(retry_after_secs(retry_after)),
            _ => None,
        },
        reset_at: (now + report.verdict.reset_after).as_secs_ceil(),
        enforced: report.effect == Effect::Enforce,
        address: address.filter(|_| report.by_address).map(str::to_owned),
    }
}
