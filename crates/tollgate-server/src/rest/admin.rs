//! `/v1/admin`: for operators.

use http::StatusCode;
use serde::Serialize;
use tollgate::Rule;
use tollgate::counters::CounterAdmin;
use utoipa::ToSchema;

use super::{Call, Response, decode};
use crate::answer;
use crate::error::{ApiError, Code, ErrorEnvelope};

/// As many clients as one answer lists.
const LISTED_MAX: usize = 1_000;

/// What a reload did.
#[derive(Serialize, ToSchema)]
pub(crate) struct ReloadAnswer {
    /// Rules in force.
    rules: usize,
    /// How many configurations have been in force.
    generation: u64,
    /// Settings that changed in the file and need a restart.
    needs_restart: Vec<String>,
}

/// Reads the configuration again. A broken file changes nothing and is answered with everything wrong in it.
#[utoipa::path(
    post, path = "/v1/admin/reload",
    responses(
        (status = 200, description = "In force", body = ReloadAnswer),
        (status = 400, description = "The file is broken; the old rules stay in force", body = ErrorEnvelope<'_>),
        (status = 401, description = "No key", body = ErrorEnvelope<'_>),
        (status = 403, description = "The key lacks the scope admin", body = ErrorEnvelope<'_>),
    )
)]
pub(super) async fn reload(call: Call) -> Result<Response, ApiError> {
    let handle =
        call.app.reload().ok_or_else(|| ApiError::new(Code::Conflict, "there is nothing to reload"))?;
    let handle = handle.clone();
    // Reading a file waits on the disk: not on a thread that serves requests.
    let outcome = tokio::task::spawn_blocking(move || handle.reload()).await;
    let outcome = outcome.map_err(|_| ApiError::new(Code::InternalError, "the reload failed"))?;
    let report = outcome.map_err(|error| ApiError::field(Code::InvalidInput, "config", error.to_string()))?;
    tracing::info!(by = %call.caller.name, generation = report.generation, "configuration reloaded");
    let answer = ReloadAnswer {
        rules: call.app.limiter().rules().rules().len(),
        generation: report.generation,
        needs_restart: report.needs_restart,
    };
    Ok(answer::json(StatusCode::OK, &answer))
}

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
pub(super) async fn rules(call: Call) -> Result<Response, ApiError> {
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

/// Clients on record.
#[derive(Serialize, ToSchema)]
pub(crate) struct PenaltiesAnswer {
    penalties: Vec<PenaltyBody>,
}

/// One client on record.
#[derive(Serialize, ToSchema)]
pub(crate) struct PenaltyBody {
    /// The client, `user:alice`.
    client: String,
    /// Violations on record.
    violations: usize,
    /// Kept out until then, in Unix seconds; null if it is not kept out.
    cooldown_until: Option<u64>,
}

/// Clients that are kept out or on record, the longest kept out first, at most a thousand.
#[utoipa::path(
    get, path = "/v1/admin/penalties",
    responses(
        (status = 200, description = "Clients on record", body = PenaltiesAnswer),
        (status = 503, description = "The counters cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(super) async fn penalties(call: Call) -> Result<Response, ApiError> {
    let found = call.app.counters().penalised(LISTED_MAX, call.app.now()).await?;
    let penalties = found.into_iter().map(|each| PenaltyBody {
        client: each.client,
        violations: each.violations,
        cooldown_until: each.cooldown_until.map(tollgate::Timestamp::as_secs_ceil),
    });
    Ok(answer::json(StatusCode::OK, &PenaltiesAnswer { penalties: penalties.collect() }))
}

/// Pardons a client: its record is cleared.
#[utoipa::path(
    delete, path = "/v1/admin/penalties/{client}",
    params(("client" = String, Path, description = "The client, user:alice or ip:192.0.2.1")),
    responses(
        (status = 204, description = "Nothing is held against the client any more"),
        (status = 404, description = "No such client is on record", body = ErrorEnvelope<'_>),
        (status = 503, description = "The counters cannot be reached; send it again", body = ErrorEnvelope<'_>),
    )
)]
pub(super) async fn pardon(call: Call) -> Result<Response, ApiError> {
    let text = decode("client", call.path_behind("/v1/admin/penalties/"))?;
    if !call.app.counters().pardon(&text).await? {
        let message = "no such client is on record; name it as GET /v1/admin/penalties does, user:alice";
        return Err(ApiError::new(Code::NotFound, message));
    }
    tracing::info!(by = %call.caller.name, client = ?text, "client pardoned");
    let mut response = Response::default();
    *response.status_mut() = StatusCode::NO_CONTENT;
    Ok(response)
}
