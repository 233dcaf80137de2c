//! `/v1/admin/tiers`: plans and what each may do; those of the file to be read.

use http::StatusCode;
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::{Map, Value as Json};
use tollgate::{Algorithm, Rule};
use tollgate_stores::sql::{ItemFilter, ItemId, ItemKind, StoredItem};
use utoipa::{IntoParams, ToSchema};

use super::body::Sent;
use super::change::{self, ChangeQuery, DryRunAnswer, ITEM_BYTES_MAX};
use super::page::Page;
use super::parse::TIER;
use super::schema::{Length, LimitWritten};
use super::{parse, render, require_text, view};
use crate::config::rule_json;
use crate::config::sync;
use crate::http::error::{ApiError, ErrorEnvelope};
use crate::http::response;
use crate::http::{Call, Response};

/// Which tiers.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TiersQuery {
    /// How many, 1 to 1000; 100 if absent.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
    /// Behind those of an earlier answer: its `next`.
    after: Option<String>,
    /// OverrideKey names begin so.
    prefix: Option<String>,
}

/// A tier as it is written: the keys of `[[tiers]]`.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes what the reader of the configuration file takes")]
pub(crate) struct TierWritten {
    /// 1 to 256 bytes; may be left out where the path names it.
    name: Option<String>,
    /// What it is for; at most 1024 bytes.
    description: Option<String>,
    /// Requests per window.
    limit: Option<u32>,
    /// The window, in seconds or as `"1m"`.
    window: Option<Length>,
    /// What a bucket holds, if not `limit`.
    #[schema(minimum = 1)]
    burst: Option<u32>,
    /// How it counts.
    algorithm: Option<String>,
    /// In place of `limit` and `window`: several, as a rule has them.
    #[schema(max_items = 8)]
    limits: Option<Vec<LimitWritten>>,
    /// In place of `limit` and `window`: so many in a second.
    requests_per_second: Option<u32>,
    /// So many in a minute.
    requests_per_minute: Option<u32>,
    /// So many in an hour.
    requests_per_hour: Option<u32>,
    /// So many in a day.
    requests_per_day: Option<u32>,
    /// What a bucket holds, for all of those.
    #[schema(minimum = 1)]
    burst_size: Option<u32>,
    /// How long a request is held, beside `limits` or `requests_per_…` of `leaky_bucket`.
    max_delay: Option<Length>,
}

/// A tier, and where it is from.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes an answer that is made of what was written")]
pub(crate) struct TierAnswer {
    /// The tier.
    name: String,
    /// What it is for.
    description: String,
    /// Requests per window.
    limit: Option<u32>,
    /// The window.
    window: Option<Length>,
    /// What a bucket holds, if not `limit`.
    burst: Option<u32>,
    /// How it counts, if it is written.
    algorithm: Option<String>,
    /// Several limits, as a rule has them.
    #[schema(max_items = 8)]
    limits: Option<Vec<LimitWritten>>,
    /// In place of `limit` and `window`: so many in a second.
    requests_per_second: Option<u32>,
    /// So many in a minute.
    requests_per_minute: Option<u32>,
    /// So many in an hour.
    requests_per_hour: Option<u32>,
    /// So many in a day.
    requests_per_day: Option<u32>,
    /// What a bucket holds, for all of those.
    #[schema(minimum = 1)]
    burst_size: Option<u32>,
    /// How long a request is held, beside `limits` or `requests_per_…` of `leaky_bucket`.
    max_delay: Option<Length>,
    /// `file` or `database`.
    source: String,
    /// The version that changed it last; null for a tier of the file.
    version: Option<u64>,
    /// Who made it.
    created_by: Option<String>,
    /// When it was made.
    created_at: Option<String>,
    /// When it was changed last.
    updated_at: Option<String>,
}

/// A page of tiers, in the order of their names.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes an answer that is made of what was written")]
pub(crate) struct TiersAnswer {
    tiers: Vec<TierAnswer>,
    /// The cursor of the next page; null if this is the last.
    next: Option<String>,
}

/// The tiers of the file and of the database, in the order of their names.
#[utoipa::path(
    get, path = "/v1/admin/tiers", params(TiersQuery),
    responses(
        (status = 200, description = "A page of tiers", body = TiersAnswer),
        (status = 400, description = "A parameter is wrong", body = ErrorEnvelope<'_>),
        (status = 503, description = "The database cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn list(call: Call) -> Result<Response, ApiError> {
    let query: TiersQuery = call.query()?;
    let page = Page::of(ItemKind::Tier, query.limit.as_deref(), query.after.as_deref())?;
    require_text("prefix", query.prefix.as_deref())?;
    let prefix = query.prefix.clone().unwrap_or_default();
    let filter = ItemFilter { prefix: query.prefix, ..ItemFilter::default() };
    let stored = call.database()?.list(ItemKind::Tier, &filter, page.after.as_ref(), page.asked()).await;
    let stored = stored.map_err(|error| sync::failed(&error))?;
    let mut tiers: Vec<(String, Json)> =
        stored.iter().map(|stored| (stored.item.id().to_string(), show(stored))).collect();
    let after = page.after.as_ref().map(ToString::to_string).unwrap_or_default();
    let of_file = call.app.config_sync().rules().file_rules();
    let of_file = of_file.iter().filter_map(|rule| Some((tier_of(rule)?.to_owned(), show_rule(rule))));
    tiers.extend(of_file.filter(|(name, _)| name.starts_with(&prefix) && *name > after));
    tiers.sort_by(|(a, _), (b, _)| a.cmp(b));
    let (tiers, next) = page.cut(tiers, |(name, _)| ItemId::Tier(name.clone()));
    let tiers = tiers.into_iter().map(|(_, tier)| tier).collect();
    Ok(response::json(StatusCode::OK, &view::page(ItemKind::Tier, tiers, next)))
}

/// Adds a tier that is not there yet.
#[utoipa::path(
    post, path = "/v1/admin/tiers", request_body = TierWritten, params(ChangeQuery),
    responses(
        (status = 201, description = "In force; Location and ETag say where and which version", body = TierAnswer),
        (status = 200, description = "With dry_run: what would change", body = DryRunAnswer),
        (status = 400, description = "A field is wrong; nothing was changed", body = ErrorEnvelope<'_>),
        (status = 409, description = "There is such a tier, in the database or in the file", body = ErrorEnvelope<'_>),
        (status = 503, description = "The database cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn create(call: Call, body: Incoming) -> Result<Response, ApiError> {
    let body = call.json_body(body, ITEM_BYTES_MAX).await?;
    let item = Sent::json(&body)?.read(parse::tier)?;
    change::create(&call, item).await
}

/// One tier.
#[utoipa::path(
    get, path = "/v1/admin/tiers/{name}",
    params(("name" = String, Path, description = "The tier")),
    responses(
        (status = 200, description = "The tier; ETag says which version", body = TierAnswer),
        (status = 304, description = "It is still the version that If-None-Match says"),
        (status = 404, description = "No such tier", body = ErrorEnvelope<'_>),
        (status = 503, description = "The database cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn read(call: Call) -> Result<Response, ApiError> {
    let name = call.path_param("name")?;
    let of_file = call.app.config_sync().rules().file_rules();
    if let Some(rule) = of_file.iter().find(|rule| tier_of(rule) == Some(&name)) {
        return Ok(response::json(StatusCode::OK, &show_rule(rule)));
    }
    change::read(&call, &ItemId::Tier(name)).await
}

/// Adds a tier or replaces it. The name is in the path; a body that says another is refused.
#[utoipa::path(
    put, path = "/v1/admin/tiers/{name}", request_body = TierWritten,
    params(("name" = String, Path, description = "The tier"), ChangeQuery),
    responses(
        (status = 200, description = "Replaced, or with dry_run what would change", body = TierAnswer),
        (status = 201, description = "Added", body = TierAnswer),
        (status = 400, description = "A field is wrong; nothing was changed", body = ErrorEnvelope<'_>),
        (status = 409, description = "The tier is in the file", body = ErrorEnvelope<'_>),
        (status = 412, description = "It is not what If-Match or If-None-Match says", body = ErrorEnvelope<'_>),
        (status = 503, description = "The database cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn put(call: Call, body: Incoming) -> Result<Response, ApiError> {
    let body = call.json_body(body, ITEM_BYTES_MAX).await?;
    let item = Sent::json(&body)?.named("name", &call.path_param("name")?)?.read(parse::tier)?;
    change::put(&call, item).await
}

/// Removes a tier. Users and keys of it stay, and are counted as if they had none.
#[utoipa::path(
    delete, path = "/v1/admin/tiers/{name}",
    params(("name" = String, Path, description = "The tier"), ChangeQuery),
    responses(
        (status = 204, description = "Removed"),
        (status = 200, description = "With dry_run: what would change", body = DryRunAnswer),
        (status = 404, description = "No such tier", body = ErrorEnvelope<'_>),
        (status = 409, description = "The tier is in the file", body = ErrorEnvelope<'_>),
        (status = 412, description = "It is not what If-Match says", body = ErrorEnvelope<'_>),
        (status = 503, description = "The database cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn delete(call: Call) -> Result<Response, ApiError> {
    let id = ItemId::Tier(call.path_param("name")?);
    change::delete(&call, id).await
}

/// A tier of the database as its answer.
pub(crate) fn show(stored: &StoredItem) -> Json {
    let mut all = view::with_origin(stored);
    render::put(&mut all, "source", Some("database"));
    all.entry("description").or_insert_with(|| "".into());
    Json::Object(all)
}

/// The tier that a rule of the file stands for, if it does.
fn tier_of(rule: &Rule) -> Option<&str> {
    let tier = rule.name.strip_prefix(TIER)?;
    (rule.when.tiers.len() == 1 && &*rule.when.tiers[0] == tier).then_some(tier)
}

fn show_rule(rule: &Rule) -> Json {
    let mut all = Map::new();
    render::put(&mut all, "name", tier_of(rule));
    render::put(&mut all, "description", Some(""));
    let limits = rule.limits.iter().map(|each| Json::Object(rule_json::limit(&each.limit)));
    render::put(&mut all, "limits", Some(Json::Array(limits.collect())));
    let algorithm = rule.limits.first().map(|each| each.limit.algorithm());
    let named = algorithm.filter(|algorithm| *algorithm != Algorithm::TokenBucket);
    render::put(&mut all, "algorithm", named.map(Algorithm::as_str));
    render::put(&mut all, "source", Some("file"));
    view::or_null(&mut all, &["version", "created_by", "created_at", "updated_at"]);
    Json::Object(all)
}
