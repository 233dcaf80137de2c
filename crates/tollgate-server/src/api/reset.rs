//! `POST /v1/rate-limit/reset`: a client starts afresh.

use http::StatusCode;
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};
use tollgate::Request;
use tollgate::identity::Scratch;
use utoipa::ToSchema;

use crate::admin::dry_run;
use crate::check::request::CheckRequest;
use crate::config::sync::{self, resets};
use crate::http::error::{ApiError, ErrorEnvelope};
use crate::http::json::{self, Pairs, Text};
use crate::http::response;
use crate::http::{CHECK_BYTES_MAX, Call, Response};

/// OverrideKey counters, and which: of the facts of a check those that say so.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResetBody<'a> {
    /// Who is meant: at least one of `user_id`, `api_key`, `ip`, `tenant`, `login`.
    #[serde(borrow)]
    #[schema(value_type = Option<String>, max_length = 256)]
    user_id: Option<Text<'a>>,
    /// Where the counters apply.
    #[serde(borrow)]
    #[schema(value_type = String, max_length = 2048)]
    endpoint: Text<'a>,
    /// The HTTP method, where rules count by it.
    #[serde(borrow)]
    #[schema(value_type = Option<String>)]
    method: Option<Text<'a>>,
    /// The client's key, or its id.
    #[serde(borrow)]
    #[schema(value_type = Option<String>, max_length = 256)]
    api_key: Option<Text<'a>>,
    /// The client's address.
    #[serde(borrow)]
    #[schema(value_type = Option<String>)]
    ip: Option<Text<'a>>,
    /// The organisation of the user.
    #[serde(borrow)]
    #[schema(value_type = Option<String>, max_length = 256)]
    tenant: Option<Text<'a>>,
    /// The plan of the client: it says which rule completes a check's own numbers. Counters of all plans are cleared.
    #[serde(borrow)]
    #[schema(value_type = Option<String>, max_length = 256)]
    tier: Option<Text<'a>>,
    /// The name a login attempt is for.
    #[serde(borrow)]
    #[schema(value_type = Option<String>, max_length = 256)]
    login: Option<Text<'a>>,
    /// Further facts by name, where rules count by them.
    #[serde(borrow)]
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    descriptors: Option<Pairs<'a>>,
    /// The algorithm of a check's own numbers.
    #[serde(borrow)]
    #[schema(value_type = Option<String>)]
    strategy: Option<Text<'a>>,
    /// Requests per window of such numbers; they have one counter whatever it is.
    limit: Option<u32>,
    /// The window of such numbers in seconds.
    #[schema(minimum = 1)]
    window_seconds: Option<u32>,
}

impl ResetBody<'_> {
    fn request(&self) -> CheckRequest<'_> {
        CheckRequest {
            endpoint: &self.endpoint,
            method: self.method.as_deref(),
            user_id: self.user_id.as_deref(),
            api_key: self.api_key.as_deref(),
            ip: self.ip.as_deref(),
            tenant: self.tenant.as_deref(),
            tier: self.tier.as_deref(),
            login: self.login.as_deref(),
            cost: None,
            descriptors: self.descriptors.as_deref().unwrap_or_default(),
            strategy: self.strategy.as_deref(),
            limit: self.limit,
            window_seconds: self.window_seconds,
        }
    }
}

/// What was cleared.
#[derive(Serialize, ToSchema)]
pub(crate) struct ResetAnswer<'a> {
    /// As asked.
    user_id: Option<&'a str>,
    /// As asked.
    endpoint: &'a str,
    /// How many counters held something.
    counters: usize,
    /// Rules that count by something the request does not say, and so were left alone.
    skipped: Vec<String>,
    /// When it was done.
    done_at: String,
}

/// Clears every counter of one client that applies on the endpoint, and its penalties.
///
/// Takes the facts of a check that say who is meant: `user_id`, `api_key`, `ip`, `tenant`, `login`, and `method` and
/// `descriptors` where rules count by them. Checks that brought numbers of their own have counters by window and strategy:
/// with the same `limit`, `window_seconds`, `strategy` and `tier` as in the check that counter is cleared too.
#[utoipa::path(
    post, path = "/v1/rate-limit/reset", request_body = ResetBody<'_>,
    responses(
        (status = 200, description = "The client starts afresh", body = ResetAnswer<'_>),
        (status = 400, description = "A field is wrong; nothing was changed", body = ErrorEnvelope<'_>),
        (status = 503, description = "The counters cannot be reached; send it again", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn reset(call: Call, body: Incoming) -> Result<Response, ApiError> {
    call.caller.require_unbound()?;
    dry_run::reject(&call)?;
    let body = call.json_body(body, CHECK_BYTES_MAX).await?;
    let body: ResetBody<'_> = json::parse(&body)?;
    let (checker, target) = (call.checker(), body.request());
    let resolved = checker.resolve_target(&target)?;
    let request = resolved.request();
    let version = record_reset(&call, &request).await?;
    let reset = checker.reset(&request).await?;
    let mut scratch = Scratch::default();
    let client = checker.rules().resolve(&request, &mut scratch).request.client();
    let client = client.map(|client| client.to_string()).unwrap_or_default();
    let (endpoint, counters) = (request.endpoint.as_str(), reset.counters);
    tracing::info!(by = %call.caller.name, ?client, ?endpoint, counters, "counters reset");
    if let Some(version) = version {
        call.app.config_sync().catch_up(&call.app, version).await;
    }
    let answer = ResetAnswer {
        user_id: target.user_id,
        endpoint: target.endpoint,
        counters,
        skipped: reset.skipped,
        done_at: response::rfc3339(call.app.now()),
    };
    Ok(response::json(StatusCode::OK, &answer))
}

/// Writes the reset into the audit trail, by which nodes with counters of their own follow it. The version it has there.
///
/// First, so that a reset that nobody hears of does not happen. Where the trail is this node's alone and the counters are
/// not, the reset is not for it to hold up.
async fn record_reset(call: &Call, request: &Request<'_>) -> Result<Option<u64>, ApiError> {
    let catalog = call.app.config_sync();
    let noted = match catalog.database() {
        Ok(database) => {
            let act = resets::act_of(&call.app, request);
            let noted = database.record_event(&call.caller.name, call.app.now().as_micros(), &act).await;
            noted.map_err(|error| sync::failed(&error))
        }
        Err(error) => Err(error),
    };
    match noted {
        Ok(version) => Ok(Some(version)),
        Err(error) if catalog.keeps_limits() => Err(error),
        Err(_) => {
            tracing::warn!("a reset is not in the audit trail: the database cannot be reached");
            Ok(None)
        }
    }
}
