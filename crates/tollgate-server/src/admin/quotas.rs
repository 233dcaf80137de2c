//! `/v1/admin/quotas`: what is known of single users, and how much they have used.

use std::collections::HashMap;

use http::StatusCode;
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::Value as Json;
use tollgate::accounts::BlockTarget;
use tollgate_stores::sql::{Item, ItemFilter, ItemId, ItemKind, StoredItem, UserUsage};
use utoipa::{IntoParams, ToSchema};

use super::body::Sent;
use super::change::{self, ChangeQuery, DryRunAnswer, ITEM_BYTES_MAX};
use super::page::Page;
use super::{parse, render, require_text, view};
use crate::config::sync;
use crate::http::error::{ApiError, Code, ErrorEnvelope};
use crate::http::response;
use crate::http::{Call, Response};

/// Which users.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct QuotasQuery {
    /// How many, 1 to 1000; 100 if absent.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
    /// Behind those of an earlier answer: its `next`.
    after: Option<String>,
    /// OverrideKey ids begin so.
    prefix: Option<String>,
    /// Those of this tier.
    tier: Option<String>,
}

/// What is to be known of a user.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes what the reader takes")]
pub(crate) struct QuotaWritten {
    /// The user; may be left out where the path names it.
    user_id: Option<String>,
    /// The user's plan.
    tier: Option<String>,
    /// Requests in an hour, in place of what the rules say.
    requests_per_hour: Option<u32>,
    /// Requests in a day, in place of what the rules say.
    requests_per_day: Option<u32>,
    /// What may come at once.
    burst: Option<u32>,
}

/// What is known of a user, and how much was used.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes an answer that is made of what was written")]
pub(crate) struct QuotaAnswer {
    /// The user.
    user_id: String,
    /// The user's plan.
    tier: Option<String>,
    /// Requests in an hour, in place of what the rules say.
    requests_per_hour: Option<u32>,
    /// Requests in a day, in place of what the rules say.
    requests_per_day: Option<u32>,
    /// What may come at once.
    burst: Option<u32>,
    /// Whether the user is blocked; see `/v1/admin/blocks`.
    blocked: bool,
    /// Why.
    block_reason: Option<String>,
    /// Until when; null if for good.
    blocked_until: Option<String>,
    /// Requests on this UTC day.
    requests_today: u64,
    /// Requests in this month.
    requests_month: u64,
    /// When the last request came.
    last_request_at: Option<String>,
    /// Requests that were refused because a limit was exceeded.
    exceeded_count: u64,
    /// The version that changed it last.
    version: u64,
    /// Who made it.
    created_by: String,
    /// When it was made.
    created_at: String,
    /// When it was changed last.
    updated_at: String,
}

/// A page of users, in the order of their ids.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes an answer that is made of what was written")]
pub(crate) struct QuotasAnswer {
    quotas: Vec<QuotaAnswer>,
    /// The cursor of the next page; null if this is the last.
    next: Option<String>,
}

/// The users that something is known of, in the order of their ids.
#[utoipa::path(
    get, path = "/v1/admin/quotas", params(QuotasQuery),
    responses(
        (status = 200, description = "A page of users", body = QuotasAnswer),
        (status = 400, description = "A parameter is wrong", body = ErrorEnvelope<'_>),
        (status = 503, description = "The database cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn list(call: Call) -> Result<Response, ApiError> {
    let query: QuotasQuery = call.query()?;
    let page = Page::of(ItemKind::Quota, query.limit.as_deref(), query.after.as_deref())?;
    require_text("prefix", query.prefix.as_deref())?;
    require_text("tier", query.tier.as_deref())?;
    let filter = ItemFilter { prefix: query.prefix, tier: query.tier, ..ItemFilter::default() };
    let stored = call.database()?.list(ItemKind::Quota, &filter, page.after.as_ref(), page.asked()).await;
    let (stored, next) = page.cut(stored.map_err(|error| sync::failed(&error))?, |stored| stored.item.id());
    let quotas = show(&call, &stored).await?;
    Ok(response::json(StatusCode::OK, &view::page(ItemKind::Quota, quotas, next)))
}

/// Adds a user that is not known yet.
#[utoipa::path(
    post, path = "/v1/admin/quotas", request_body = QuotaWritten, params(ChangeQuery),
    responses(
        (status = 201, description = "In force; Location and ETag say where and which version", body = QuotaAnswer),
        (status = 200, description = "With dry_run: what would change", body = DryRunAnswer),
        (status = 400, description = "A field is wrong; nothing was changed", body = ErrorEnvelope<'_>),
        (status = 409, description = "The user is known already", body = ErrorEnvelope<'_>),
        (status = 503, description = "The database cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn create(call: Call, body: Incoming) -> Result<Response, ApiError> {
    let body = call.json_body(body, ITEM_BYTES_MAX).await?;
    let item = Sent::json(&body)?.read(|fields, _| parse::quota(fields))?;
    change::create(&call, item).await
}

/// What is known of one user.
#[utoipa::path(
    get, path = "/v1/admin/quotas/{user_id}",
    params(("user_id" = String, Path, description = "The user")),
    responses(
        (status = 200, description = "What is known; ETag says which version", body = QuotaAnswer),
        (status = 304, description = "It is still the version that If-None-Match says"),
        (status = 404, description = "Nothing is known of this user", body = ErrorEnvelope<'_>),
        (status = 503, description = "The database cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn read(call: Call) -> Result<Response, ApiError> {
    let id = ItemId::Quota(call.path_param("user_id")?);
    change::read(&call, &id).await
}

/// Says what is to be known of a user, in place of what was.
#[utoipa::path(
    put, path = "/v1/admin/quotas/{user_id}", request_body = QuotaWritten,
    params(("user_id" = String, Path, description = "The user"), ChangeQuery),
    responses(
        (status = 200, description = "Replaced, or with dry_run what would change", body = QuotaAnswer),
        (status = 201, description = "Added", body = QuotaAnswer),
        (status = 400, description = "A field is wrong; nothing was changed", body = ErrorEnvelope<'_>),
        (status = 412, description = "It is not what If-Match or If-None-Match says", body = ErrorEnvelope<'_>),
        (status = 503, description = "The database cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn put(call: Call, body: Incoming) -> Result<Response, ApiError> {
    let body = call.json_body(body, ITEM_BYTES_MAX).await?;
    let id = ItemId::Quota(call.path_param("user_id")?);
    let sent = Sent::json(&body)?.named_if_absent("user_id", &id.to_string());
    let item = sent.read(|fields, _| parse::quota(fields))?;
    // A user may have several spellings: what they stand for is compared.
    if call.normalize_id(&item.id()) != call.normalize_id(&id) {
        return Err(ApiError::field(Code::InvalidInput, "user_id", "is not what the path says"));
    }
    change::put(&call, item).await
}

/// Forgets a user: the rules alone apply again, and what was used is not remembered.
#[utoipa::path(
    delete, path = "/v1/admin/quotas/{user_id}",
    params(("user_id" = String, Path, description = "The user"), ChangeQuery),
    responses(
        (status = 204, description = "Removed"),
        (status = 200, description = "With dry_run: what would change", body = DryRunAnswer),
        (status = 404, description = "Nothing is known of this user", body = ErrorEnvelope<'_>),
        (status = 412, description = "It is not what If-Match says", body = ErrorEnvelope<'_>),
        (status = 503, description = "The database cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn delete(call: Call) -> Result<Response, ApiError> {
    let id = ItemId::Quota(call.path_param("user_id")?);
    change::delete(&call, id).await
}

/// Users as their answers.
pub(crate) async fn show(call: &Call, stored: &[StoredItem]) -> Result<Vec<Json>, ApiError> {
    let users: Vec<&str> = stored.iter().filter_map(user_of).collect();
    let usage = call.database()?.users_usage(&users).await.map_err(|error| sync::failed(&error))?;
    let usage: HashMap<&str, &UserUsage> = usage.iter().map(|usage| (&*usage.user, usage)).collect();
    let shown = stored.iter().map(|stored| {
        let user = user_of(stored).unwrap_or_default();
        show_one(call, stored, user, usage.get(user).copied())
    });
    Ok(shown.collect())
}

fn user_of(stored: &StoredItem) -> Option<&str> {
    match &stored.item {
        Item::Quota(quota) => Some(&quota.user),
        _ => None,
    }
}

pub(crate) fn show_one(call: &Call, stored: &StoredItem, user: &str, usage: Option<&UserUsage>) -> Json {
    let now = call.app.now();
    let day = u32::try_from(now.as_micros() / 86_400_000_000).unwrap_or(u32::MAX);
    let mut all = view::with_origin(stored);
    let rules = call.app.limiter().rules();
    let block = rules.accounts().block(BlockTarget::User(user), now);
    render::put(&mut all, "blocked", Some(block.is_some()));
    render::put(&mut all, "block_reason", block.map(|block| block.reason));
    let until = block.and_then(|block| block.until).map(|until| render::instant(until.as_micros()));
    render::put(&mut all, "blocked_until", until);
    render::put(&mut all, "requests_today", Some(usage.map_or(0, |usage| usage.requests_on(day))));
    render::put(&mut all, "requests_month", Some(usage.map_or(0, |usage| usage.requests_in_month_of(day))));
    let last = usage.map(|usage| render::instant(usage.last_request_at_micros));
    render::put(&mut all, "last_request_at", last);
    render::put(&mut all, "exceeded_count", Some(usage.map_or(0, |usage| usage.exceeded_count)));
    let nullable = ["tier", "requests_per_hour", "requests_per_day", "burst"];
    view::or_null(&mut all, &nullable);
    view::or_null(&mut all, &["block_reason", "blocked_until", "last_request_at"]);
    Json::Object(all)
}
