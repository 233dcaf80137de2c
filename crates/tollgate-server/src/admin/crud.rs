//! The CRUD handlers: one per verb, shared by every kind of configuration item.
//!
//! A kind implements [`AdminResource`]. The handlers add what all kinds share: paging, dry runs, `If-Match`, and the
//! `ETag` and `Location` headers.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use http::{HeaderValue, StatusCode, header};
use hyper::body::Incoming;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde_json::{Map, Value as Json, json};
use tollgate::Timestamp;
use tollgate::config::{TableReader, flat_name_warnings};
use tollgate_stores::sql::{
    Item, ItemEdit, ItemFilter, ItemId, ItemKind, ItemWrite, Precondition, StoredItem,
};
use utoipa::ToSchema;

use super::body::RequestBody;
use super::change::{self, Applied, ConflictError};
use super::list_query::{ListFilter, ListQuery};
use super::page::Page;
use super::{dry_run, preconditions, view};
use crate::check::tenants_of_user;
use crate::http::error::{ApiError, Code};
use crate::http::{Call, Response, response};

/// How long a list waits for the database if the items are in memory too.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// A kind of configuration item that `/v1/admin` serves.
pub(crate) trait AdminResource {
    /// The kind in the database.
    const KIND: ItemKind;
    /// The path parameter with the id; for kinds that are written whole, also the field of the body.
    const ID_FIELD: &'static str;
    /// Query parameters of the list beside `limit` and `after`.
    const FILTERS: &'static [ListFilter];
    /// Whether items belong to a tenant or to none. `tenant` of the query selects it.
    const IN_TENANT: bool = false;
    /// What OpenAPI says about the operations.
    const OPERATIONS: Operations;

    /// The schema of a request body.
    type Input: ToSchema;
    /// The item as responses show it.
    type View: Serialize + ToSchema + Send;
    /// Usage recorded for several items.
    type Usage: Default + Send + Sync;

    /// The id in a path, in the tenant of the query.
    fn parse_id(text: &str, tenant: Option<&str>) -> Result<ItemId, ApiError> {
        let missing = || ApiError::new(Code::NotFound, format!("{text:?} does not exist"));
        ItemId::parse(Self::KIND, tenant, text).ok_or_else(missing)
    }

    /// The item in responses; none if it is of another kind.
    fn view(call: &Call, stored: &StoredItem, usage: &Self::Usage) -> Option<Self::View>;

    /// Applies the filter of the database to an item in memory.
    fn matches(_stored: &StoredItem, _filter: &ItemFilter) -> bool {
        true
    }

    /// Looks up the recorded usage of several items at once.
    fn usage(
        _call: &Call,
        _stored: &[StoredItem],
    ) -> impl Future<Output = Result<Self::Usage, ApiError>> + Send {
        async { Ok(Self::Usage::default()) }
    }

    /// Items of the settings file, or only those of one source (`file`, `built-in`). They can be read, not changed.
    fn file_items(_call: &Call, _filter: &ItemFilter, _source: Option<&str>) -> Vec<(ItemId, Self::View)> {
        Vec::new()
    }
}

/// A kind that a request body defines completely. API keys are not one: the server generates their ids and secrets.
pub(crate) trait Writable: AdminResource {
    const PARSE: ParseItem;
}

/// Parses an item from a table of a document. Rules and tiers store the values as written.
pub(crate) type ParseItem = fn(&mut TableReader<'_, '_>, &Map<String, Json>, Timestamp) -> Option<Item>;

/// Summaries and status texts of the operations of one kind.
pub(crate) struct Operations {
    /// The item in a sentence: `rule`.
    pub(crate) noun: &'static str,
    /// The path parameter.
    pub(crate) id: &'static str,
    pub(crate) create: &'static str,
    pub(crate) put: &'static str,
    pub(crate) delete: &'static str,
    /// When creating fails with 409.
    pub(crate) create_conflict: &'static str,
    /// Whether `PUT` creates an item that does not exist.
    pub(crate) put_creates: bool,
}

/// `GET /v1/admin/{kind}`
pub(crate) async fn list<R: AdminResource>(call: Call) -> Result<Response, ApiError> {
    let query = ListQuery::parse(&call, R::FILTERS)?;
    let page = Page::parse(R::KIND, query.get("limit"), query.get("after"))?;
    let filter = query.item_filter(&call)?;
    let mut items = R::file_items(&call, &filter, query.get("source"));
    items.retain(|(id, _)| page.after.as_ref().is_none_or(|after| id > after));
    let has_file_items = !items.is_empty();
    let mut is_stale = false;
    if query.includes_source("database") {
        let stored;
        (stored, is_stale) = stored_page::<R>(&call, &filter, &page).await?;
        let usage = R::usage(&call, &stored).await?;
        let views =
            stored.iter().filter_map(|stored| Some((stored.item.id(), R::view(&call, stored, &usage)?)));
        items.extend(views);
    }
    if has_file_items {
        items.sort_by(|(a, _), (b, _)| a.cmp(b));
    }
    let (items, next) = page.cut(items);
    let mut body = json!({ view::plural(R::KIND): items, "next": next });
    if is_stale {
        body["stale"] = true.into();
    }
    Ok(response::json(StatusCode::OK, &body))
}

/// A page of the database, one item longer so that a next page is noticed. While the database is unreachable: of the items in
/// memory, and `true`. Kinds that are not in memory wait for the database.
async fn stored_page<R: AdminResource>(
    call: &Call,
    filter: &ItemFilter,
    page: &Page,
) -> Result<(Vec<StoredItem>, bool), ApiError> {
    let (sync, after, count_max) = (call.app.config_sync(), page.after.as_ref(), page.limit + 1);
    let in_memory = || {
        let mut items = sync.items_in_memory(R::KIND)?;
        items.retain(|stored| {
            R::matches(stored, filter) && after.is_none_or(|after| stored.item.id() > *after)
        });
        items.sort_by_cached_key(|stored| stored.item.id());
        items.truncate(usize::try_from(count_max).unwrap_or(usize::MAX));
        Some((items, true))
    };
    if sync.is_database_down()
        && let Some(page) = in_memory()
    {
        return Ok(page);
    }
    let database = change::database(call)?;
    let mut listing = pin!(database.list(R::KIND, filter, after, count_max));
    let listed = match tokio::time::timeout(READ_TIMEOUT, &mut listing).await {
        Ok(listed) => listed,
        Err(_) => match in_memory() {
            Some(page) => return Ok(page),
            None => listing.await,
        },
    };
    match listed {
        Err(error) if error.is_unreachable() => in_memory().ok_or_else(|| error.into()),
        listed => Ok((listed?, false)),
    }
}

/// `POST /v1/admin/{kind}`
pub(crate) async fn create<R: Writable>(call: Call, body: Incoming) -> Result<Response, ApiError> {
    let body = RequestBody::read(&call, body).await?;
    let (_, body) = with_tenant::<R>(&call, body)?;
    let (item, notes) = parse::<R>(&call, &body)?;
    write::<R>(&call, item, notes, Precondition::Absent, change::already_exists).await
}

/// `GET /v1/admin/{kind}/{id}`
pub(crate) async fn read<R: AdminResource>(call: Call) -> Result<Response, ApiError> {
    let id = path_id::<R>(&call)?;
    let named = ItemFilter { prefix: Some(id.to_string()), ..ItemFilter::default() };
    if let Some((_, item)) = R::file_items(&call, &named, None).into_iter().find(|(known, _)| *known == id) {
        return Ok(response::json(StatusCode::OK, &item));
    }
    let id = change::normalized_id(&call, &id);
    let stored = change::database(&call)?.get(&id).await?;
    let stored = stored.ok_or_else(|| not_found(&call, &id))?;
    let etag = preconditions::etag(stored.version);
    let mut response = if preconditions::is_unchanged(&call.parts.headers, stored.version) {
        response::empty(StatusCode::NOT_MODIFIED)
    } else {
        let usage = R::usage(&call, std::slice::from_ref(&stored)).await?;
        response::json(StatusCode::OK, &R::view(&call, &stored, &usage))
    };
    response.headers_mut().insert(header::ETAG, etag);
    Ok(response)
}

/// `PUT /v1/admin/{kind}/{id}`
pub(crate) async fn put<R: Writable>(call: Call, body: Incoming) -> Result<Response, ApiError> {
    let text = call.path_param(R::ID_FIELD)?;
    let (tenant, body) = with_tenant::<R>(&call, RequestBody::read(&call, body).await?)?;
    let id = R::parse_id(&text, tenant.as_deref())?;
    let body = body.with_default(R::ID_FIELD, &id.to_string());
    let (item, notes) = parse::<R>(&call, &body)?;
    if change::normalized_id(&call, &item.id()) != change::normalized_id(&call, &id) {
        return Err(ApiError::field(Code::InvalidInput, R::ID_FIELD, "differs from the path"));
    }
    let precondition = preconditions::parse(&call.parts.headers)?;
    let conflict: ConflictError = match precondition {
        Precondition::Absent => change::exists_despite_condition,
        _ => change::version_differs,
    };
    write::<R>(&call, item, notes, precondition, conflict).await
}

/// Parses a body. Returns the item, and what is read otherwise than it is written.
fn parse<R: Writable>(call: &Call, body: &RequestBody) -> Result<(Item, Vec<String>), ApiError> {
    body.parse(|fields, values| {
        let notes = flat_name_warnings(fields).into_iter().map(|note| format!("the rule {note}")).collect();
        Some(((R::PARSE)(fields, values, call.app.now())?, notes))
    })
}

/// `DELETE /v1/admin/{kind}/{id}`
pub(crate) async fn delete<R: AdminResource>(call: Call) -> Result<Response, ApiError> {
    let id = path_id::<R>(&call)?;
    let (precondition, conflict): (Precondition, ConflictError) =
        match preconditions::parse(&call.parts.headers)? {
            Precondition::None => (Precondition::Present, change::not_found),
            Precondition::Absent => {
                return Err(ApiError::field(
                    Code::InvalidInput,
                    "if-none-match",
                    "is not supported for DELETE",
                ));
            }
            precondition => (precondition, change::version_differs),
        };
    let edit = ItemEdit { write: ItemWrite::Delete(change::normalized_id(&call, &id)), precondition };
    if is_dry_run::<R>(&call)? {
        return dry_run::respond(&call, &[edit], conflict).await;
    }
    change::apply(&call, &[edit], conflict).await?;
    Ok(response::empty(StatusCode::NO_CONTENT))
}

/// The id in the path.
pub(crate) fn path_id<R: AdminResource>(call: &Call) -> Result<ItemId, ApiError> {
    let text = call.path_param(R::ID_FIELD)?;
    let tenant = if R::IN_TENANT { call.tenant(call.tenant_in_query()?.as_deref())? } else { None };
    R::parse_id(&text, tenant.as_deref())
}

/// The tenant of an item that is written: that of the caller, the query or the body, which gets it as a default.
fn with_tenant<R: AdminResource>(
    call: &Call,
    body: RequestBody,
) -> Result<(Option<String>, RequestBody), ApiError> {
    if !R::IN_TENANT {
        return Ok((None, body));
    }
    let in_query = call.tenant_in_query()?;
    let in_body = body.values().get("tenant").and_then(Json::as_str).map(str::to_owned);
    if in_query.is_some() && in_body.is_some() && in_query != in_body {
        return Err(ApiError::field(Code::InvalidInput, "tenant", "differs from the query"));
    }
    let tenant = call.tenant(in_query.or(in_body).as_deref())?;
    let body = match &tenant {
        Some(tenant) => body.with_default("tenant", tenant),
        None => body,
    };
    Ok((tenant, body))
}

fn is_dry_run<R: AdminResource>(call: &Call) -> Result<bool, ApiError> {
    if R::IN_TENANT { dry_run::parse_in_tenant(call) } else { dry_run::parse(call) }
}

/// The error for a missing item. To an operator it names the tenants that have the user.
fn not_found(call: &Call, id: &ItemId) -> ApiError {
    let error = change::not_found(id, None);
    let ItemId::Quota { tenant: None, user } = id else { return error };
    match tenants_of_user(call.app.limiter().rules().accounts(), user) {
        Some(warning) if call.caller.tenant.is_none() => error.with_message(warning),
        _ => error,
    }
}

/// Stores an item, or shows what would change.
async fn write<R: AdminResource>(
    call: &Call,
    item: Item,
    notes: Vec<String>,
    precondition: Precondition,
    conflict: ConflictError,
) -> Result<Response, ApiError> {
    let item = change::normalized(call, item)?;
    let id = item.id();
    // Kinds without a tenant are refused to such a caller before.
    if R::IN_TENANT {
        call.tenant(id.tenant())?;
    }
    let edit = ItemEdit { write: ItemWrite::Put(item), precondition };
    if is_dry_run::<R>(call)? {
        return dry_run::respond(call, &[edit], conflict).await;
    }
    let mut applied = change::apply(call, &[edit], conflict).await?;
    applied.warnings.extend(notes);
    let is_new = applied.change.items.iter().any(|change| change.before.is_none());
    written::<R>(call, &applied, &id, if is_new { StatusCode::CREATED } else { StatusCode::OK }).await
}

/// The response to a write that was made: the item as it is now.
pub(crate) async fn written<R: AdminResource>(
    call: &Call,
    applied: &Applied,
    id: &ItemId,
    status: StatusCode,
) -> Result<Response, ApiError> {
    let stored = applied.stored(call, id).await?;
    Ok(item_response(applied, &stored, &written_view::<R>(call, &stored).await, status))
}

/// An item that was just written. The write succeeded, so a failed lookup of its usage is not reported.
pub(crate) async fn written_view<R: AdminResource>(call: &Call, stored: &StoredItem) -> Option<R::View> {
    let usage = R::usage(call, std::slice::from_ref(stored)).await.unwrap_or_default();
    R::view(call, stored, &usage)
}

/// The body of the response to a write.
#[derive(Serialize)]
struct Written<'a, V> {
    #[serde(flatten)]
    view: &'a V,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    warnings: &'a [String],
}

/// A response with an item that was written, warnings, its `ETag` and, if it is new, its `Location`.
pub(crate) fn item_response(
    applied: &Applied,
    stored: &StoredItem,
    view: &impl Serialize,
    status: StatusCode,
) -> Response {
    let mut response = response::json(status, &Written { view, warnings: &applied.warnings });
    let headers = response.headers_mut();
    headers.insert(header::ETAG, preconditions::etag(stored.version));
    if status == StatusCode::CREATED
        && let Ok(location) = HeaderValue::try_from(location(&stored.item.id()))
    {
        headers.insert(header::LOCATION, location);
    }
    response
}

/// The path of an item. Characters with a meaning in a path are escaped.
fn location(id: &ItemId) -> String {
    const KEPT: &AsciiSet =
        &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~').remove(b':');
    let path =
        format!("/v1/admin/{}/{}", view::plural(id.kind()), utf8_percent_encode(&id.to_string(), KEPT));
    match id.tenant() {
        Some(tenant) => format!("{path}?tenant={}", utf8_percent_encode(tenant, KEPT)),
        None => path,
    }
}
