//! `GET /v1/admin/limits`: the limits of single users on single endpoints, which `/v1/rate-limit/config` sets.

use http::StatusCode;
use serde::{Deserialize, Serialize};
use tollgate::rules::overrides::Override;
use tollgate_stores::sql::{Item, ItemId, ItemKind};
use utoipa::{IntoParams, ToSchema};

use super::list_query::check_text;
use super::page::Page;
use crate::api::config::{ConfigAnswer, answer_of};
use crate::http::error::ApiError;
use crate::http::{Call, Response, response};

/// Selects limits of users.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct LimitsQuery {
    /// Limits per page, 1 to 1000; default 100.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
    /// Continues after this limit: `next` of an earlier response.
    after: Option<String>,
    /// Only limits of this user.
    user_id: Option<String>,
    /// Only limits of users of this tenant.
    tenant: Option<String>,
}

/// A page of limits, by user and endpoint.
#[derive(Serialize, ToSchema)]
pub(crate) struct LimitsPage<'a> {
    limits: Vec<ConfigAnswer<'a>>,
    /// Cursor of the next page; null if there are no more limits.
    next: Option<String>,
}

/// Lists the limits that are set for one user on one endpoint, and in force on this node.
#[utoipa::path(
    get, path = "/v1/admin/limits", operation_id = "list_limits", params(LimitsQuery),
    responses(
        (status = 200, description = "A page of limits.", body = LimitsPage<'_>),
    )
)]
pub(crate) async fn limits(call: Call) -> Result<Response, ApiError> {
    let query: LimitsQuery = call.query()?;
    let page = Page::parse(ItemKind::Limit, query.limit.as_deref(), query.after.as_deref())?;
    check_text("user_id", query.user_id.as_deref())?;
    let rules = call.app.limiter().rules();
    let user = query.user_id.as_deref().map(|user| rules.normalization().ids.user.normalize(user));
    let tenant = call.tenant(query.tenant.as_deref())?;
    let is_wanted = |each: &&Override| {
        user.as_deref().is_none_or(|user| *each.user == *user)
            && (tenant.is_none() || each.tenant.as_deref() == tenant.as_deref())
    };
    let wanted = rules.overrides().iter().filter(is_wanted);
    let listed = wanted.map(|each| (id_of(each), each));
    let listed = listed.filter(|(id, _)| page.after.as_ref().is_none_or(|after| id > after)).collect();
    let (limits, next) = page.cut(first_of(listed, page.limit));
    let limits = limits.into_iter().map(answer_of).collect();
    Ok(response::json(StatusCode::OK, &LimitsPage { limits, next }))
}

fn id_of(limit: &Override) -> ItemId {
    Item::Limit(limit.into()).id()
}

/// The first items in order, one more than a page has. The others are not sorted.
fn first_of<T>(mut items: Vec<(ItemId, T)>, limit: u32) -> Vec<(ItemId, T)> {
    let last = usize::try_from(limit).unwrap_or(usize::MAX);
    if items.len() > last {
        items.select_nth_unstable_by(last, |(a, _), (b, _)| a.cmp(b));
        items.truncate(last + 1);
    }
    items.sort_by(|(a, _), (b, _)| a.cmp(b));
    items
}
