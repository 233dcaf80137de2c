//! `/v1/admin/rules`.

use http::StatusCode;
use serde::Serialize;
use tollgate::Rule;
use utoipa::ToSchema;

use crate::answer;
use crate::error::ApiError;
use crate::rest::{Call, Response};

/// The rules in force.
#[derive(Serialize, ToSchema)]
pub(crate) struct RulesAnswer<'a> {
    rules: Vec<RuleSummary<'a>>,
}

/// One rule in force.
#[derive(Serialize, ToSchema)]
pub(crate) struct RuleSummary<'a> {
    /// The rule.
    name: &'a str,
    /// Lower is looked at first.
    priority: u32,
    /// What it does.
    action: &'static str,
    /// What it counts by.
    per: Vec<String>,
    /// Only the first matching rule of a layer applies.
    layer: &'a str,
    /// Whether it is switched on.
    enabled: bool,
    /// Its limits.
    limits: Vec<LimitSummary>,
}

/// One limit of a rule.
#[derive(Serialize, ToSchema)]
pub(crate) struct LimitSummary {
    /// Requests per window.
    requests: u32,
    /// The window, as written.
    window: String,
    /// What a bucket holds, if not `requests`.
    burst: Option<u32>,
    /// The algorithm.
    algorithm: &'static str,
}

/// The rules in force, in the order of the walk.
#[utoipa::path(
    get, path = "/v1/admin/rules",
    responses((status = 200, description = "The rules in force, in the order of the walk", body = RulesAnswer<'_>))
)]
pub(in crate::rest) async fn list(call: Call) -> Result<Response, ApiError> {
    let rules = call.app.limiter().rules();
    let answer = RulesAnswer { rules: rules.rules().iter().map(summary).collect() };
    Ok(answer::json(StatusCode::OK, &answer))
}

fn summary(rule: &Rule) -> RuleSummary<'_> {
    let limits = rule.limits.iter().map(|each| LimitSummary {
        requests: each.limit.requests(),
        window: each.limit.window().to_string(),
        burst: each.limit.burst(),
        algorithm: each.limit.algorithm().as_str(),
    });
    RuleSummary {
        name: &rule.name,
        priority: rule.priority,
        action: rule.action.as_str(),
        per: rule.per.iter().map(ToString::to_string).collect(),
        layer: &rule.layer,
        enabled: rule.enabled,
        limits: limits.collect(),
    }
}
