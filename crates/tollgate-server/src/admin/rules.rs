//! `/v1/admin/rules`: those of the database, and to be read those of the file.

use http::StatusCode;
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use tollgate::Rule;
use tollgate_stores::sql::{Item, ItemFilter, ItemId, ItemKind, StoredItem};
use utoipa::{IntoParams, ToSchema};

use super::body::Sent;
use super::change::{self, ITEM_BYTES_MAX};
use super::page::Page;
use super::schema::{ConditionsWritten, Length, LimitWritten, OneOrMore, ResponseWritten};
use super::{parse, render};
use crate::admin::change::{ChangeQuery, DryRunAnswer};
use crate::config::rule_json::definition;
use crate::config::sync;
use crate::http::error::{ApiError, Code, ErrorEnvelope};
use crate::http::response;
use crate::http::{Call, Response};

/// Which rules.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct RulesQuery {
    /// How many, 1 to 1000; 100 if absent.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000)]
    limit: Option<String>,
    /// Behind those of an earlier answer: its `next`.
    after: Option<String>,
    /// OverrideKey names begin so.
    prefix: Option<String>,
    /// Those with this action.
    action: Option<String>,
    /// Those that are switched on, or off.
    #[param(value_type = Option<bool>)]
    enabled: Option<String>,
    /// `file`, `database` or `built-in`.
    source: Option<String>,
}

/// A page of rules, in the order of their names.
#[derive(Serialize, ToSchema)]
pub(crate) struct RulesAnswer {
    rules: Vec<RuleSummary>,
    /// The cursor of the next page; null if this is the last.
    next: Option<String>,
}

/// One rule: what it comes to, and how it is written.
#[derive(Serialize, ToSchema)]
pub(crate) struct RuleSummary {
    /// The rule.
    name: String,
    /// Lower is looked at first.
    priority: u32,
    /// Which requests it is about.
    #[schema(value_type = ConditionsWritten)]
    when: Json,
    /// What it does.
    action: &'static str,
    /// What it counts by.
    per: Vec<String>,
    /// Only the first matching rule of a layer applies.
    layer: String,
    /// Whether it is switched on.
    enabled: bool,
    /// Its limits.
    limits: Vec<LimitSummary>,
    /// How long a request is held at most.
    max_delay: Option<String>,
    /// Whether nodes may take units of busy counters in advance.
    leases: bool,
    /// What happens when its counters cannot be reached.
    on_store_failure: &'static str,
    /// What a refused client is told.
    response: RuleResponse,
    /// `file`, `database`, or `built-in` for the rule that is in force where none is configured.
    source: &'static str,
    /// The version that changed it last; null for a rule of the file.
    version: Option<u64>,
    /// Who made it.
    created_by: Option<String>,
    /// When it was made.
    created_at: Option<String>,
    /// When it was changed last.
    updated_at: Option<String>,
    /// The rule as it is written, with the keys of `[[rules]]`: what `PUT` takes.
    #[schema(value_type = RuleWritten)]
    definition: Map<String, Json>,
    /// Why it is not in force, if somebody has written to the database what is no rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

/// What a refused client is told.
#[derive(Default, Serialize, ToSchema)]
pub(crate) struct RuleResponse {
    /// The status a gateway answers with.
    status: u16,
    /// The text for the client.
    message: Option<String>,
    /// Clients are never asked back sooner than this.
    retry_after_floor: String,
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

/// A rule as it is written: the keys of `[[rules]]`.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes what the reader of the configuration file takes")]
pub(crate) struct RuleWritten {
    /// 1 to 128 bytes; may be left out where the path names it.
    name: Option<String>,
    /// 0 to 1,000,000; 100 if absent.
    #[schema(maximum = 1_000_000)]
    priority: Option<u32>,
    /// Which requests it is about: `tiers`, `endpoints`, `methods`, `ips`, `users`, `tenants`, `descriptors`; all if absent.
    when: Option<ConditionsWritten>,
    /// What it counts by.
    per: Option<OneOrMore>,
    /// Only the first matching rule of a layer applies.
    layer: Option<String>,
    /// `reject`, `throttle`, `block`, `allow` or `log_only`.
    action: Option<String>,
    /// How it counts.
    algorithm: Option<String>,
    /// `{"requests": 100, "window": "1m", "burst": 20}`, at most eight.
    #[schema(max_items = 8)]
    limits: Option<Vec<LimitWritten>>,
    /// In place of `limits`: so many in a second.
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
    /// How long `throttle` holds a request.
    max_delay: Option<Length>,
    /// Whether nodes may take units of busy counters in advance.
    leases: Option<bool>,
    /// `local`, `open` or `closed`.
    on_store_failure: Option<String>,
    /// What a refused client is told: `status`, `message`, `retry_after_floor`.
    response: Option<ResponseWritten>,
    /// Whether it is switched on.
    enabled: Option<bool>,
}

/// The rules of the file and of the database, in the order of their names.
#[utoipa::path(
    get, path = "/v1/admin/rules", params(RulesQuery),
    responses(
        (status = 200, description = "A page of rules", body = RulesAnswer),
        (status = 400, description = "A parameter is wrong", body = ErrorEnvelope<'_>),
        (status = 503, description = "The database cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn list(call: Call) -> Result<Response, ApiError> {
    let query: RulesQuery = call.query()?;
    let page = Page::of(ItemKind::Rule, query.limit.as_deref(), query.after.as_deref())?;
    let filter = query.filter()?;
    let mut rules = Vec::new();
    let is_asked = |source: &str| query.source.as_deref().is_none_or(|asked| asked == source);
    let source = call.app.config_sync().rules().file_source();
    if is_asked(source) {
        let of_file = call.app.config_sync().rules().file_rules();
        let fitting = of_file.iter().filter(|rule| fits(rule, &filter));
        rules.extend(fitting.map(|rule| configured(rule, source)));
    }
    if is_asked("database") {
        let stored = call.database()?.list(ItemKind::Rule, &filter, page.after.as_ref(), page.asked()).await;
        rules.extend(stored.map_err(|error| sync::failed(&error))?.iter().map(of_database));
    }
    let after = page.after.as_ref().map(ToString::to_string).unwrap_or_default();
    rules.retain(|rule| *rule.name > *after);
    rules.sort_by(|a, b| a.name.cmp(&b.name));
    let (rules, next) = page.cut(rules, |rule| ItemId::Rule(rule.name.clone()));
    Ok(response::json(StatusCode::OK, &RulesAnswer { rules, next }))
}

/// Adds a rule that is not there yet.
#[utoipa::path(
    post, path = "/v1/admin/rules", request_body = RuleWritten, params(ChangeQuery),
    responses(
        (status = 201, description = "In force; Location and ETag say where and which version", body = RuleSummary),
        (status = 200, description = "With dry_run: what would change", body = DryRunAnswer),
        (status = 400, description = "A field is wrong; nothing was changed", body = ErrorEnvelope<'_>),
        (status = 409, description = "There is such a rule, in the database or in the file", body = ErrorEnvelope<'_>),
        (status = 503, description = "The database cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn create(call: Call, body: Incoming) -> Result<Response, ApiError> {
    let body = call.json_body(body, ITEM_BYTES_MAX).await?;
    let item = Sent::json(&body)?.read(parse::rule)?;
    change::create(&call, item).await
}

/// One rule.
#[utoipa::path(
    get, path = "/v1/admin/rules/{name}",
    params(("name" = String, Path, description = "The rule")),
    responses(
        (status = 200, description = "The rule; ETag says which version", body = RuleSummary),
        (status = 304, description = "It is still the version that If-None-Match says"),
        (status = 404, description = "No such rule", body = ErrorEnvelope<'_>),
        (status = 503, description = "The database cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn read(call: Call) -> Result<Response, ApiError> {
    let name = call.path_param("name")?;
    if let Some(rule) = call.app.config_sync().rules().file_rules().iter().find(|rule| *rule.name == *name) {
        let source = call.app.config_sync().rules().file_source();
        return Ok(response::json(StatusCode::OK, &configured(rule, source)));
    }
    change::read(&call, &ItemId::Rule(name)).await
}

/// Adds a rule or replaces it. The name is in the path; a body that says another is refused.
#[utoipa::path(
    put, path = "/v1/admin/rules/{name}", request_body = RuleWritten,
    params(("name" = String, Path, description = "The rule"), ChangeQuery),
    responses(
        (status = 200, description = "Replaced, or with dry_run what would change", body = RuleSummary),
        (status = 201, description = "Added", body = RuleSummary),
        (status = 400, description = "A field is wrong; nothing was changed", body = ErrorEnvelope<'_>),
        (status = 409, description = "The rule is in the file", body = ErrorEnvelope<'_>),
        (status = 412, description = "It is not what If-Match or If-None-Match says", body = ErrorEnvelope<'_>),
        (status = 503, description = "The database cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn put(call: Call, body: Incoming) -> Result<Response, ApiError> {
    let body = call.json_body(body, ITEM_BYTES_MAX).await?;
    let item = Sent::json(&body)?.named("name", &call.path_param("name")?)?.read(parse::rule)?;
    change::put(&call, item).await
}

/// Removes a rule.
#[utoipa::path(
    delete, path = "/v1/admin/rules/{name}",
    params(("name" = String, Path, description = "The rule"), ChangeQuery),
    responses(
        (status = 204, description = "Removed"),
        (status = 200, description = "With dry_run: what would change", body = DryRunAnswer),
        (status = 404, description = "No such rule", body = ErrorEnvelope<'_>),
        (status = 409, description = "The rule is in the file", body = ErrorEnvelope<'_>),
        (status = 412, description = "It is not what If-Match says", body = ErrorEnvelope<'_>),
        (status = 503, description = "The database cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn delete(call: Call) -> Result<Response, ApiError> {
    let id = ItemId::Rule(call.path_param("name")?);
    change::delete(&call, id).await
}

impl RulesQuery {
    fn filter(&self) -> Result<ItemFilter, ApiError> {
        let invalid = |field, reason: String| Err(ApiError::field(Code::InvalidInput, field, reason));
        if !matches!(self.source.as_deref(), None | Some("file" | "database" | "built-in")) {
            return invalid("source", "must be file, database or built-in".to_owned());
        }
        let actions = tollgate::rules::Action::ALL.map(tollgate::rules::Action::as_str);
        if self.action.as_deref().is_some_and(|action| !actions.contains(&action)) {
            return invalid("action", format!("must be one of {}", actions.join(", ")));
        }
        let enabled = self.enabled.as_deref();
        let enabled = enabled.map(|text| change::flag("enabled", Some(text))).transpose()?;
        super::require_text("prefix", self.prefix.as_deref())?;
        Ok(ItemFilter {
            prefix: self.prefix.clone(),
            action: self.action.clone(),
            enabled,
            ..ItemFilter::default()
        })
    }
}

/// What the database does with its rules, done with one of the file.
fn fits(rule: &Rule, filter: &ItemFilter) -> bool {
    filter.prefix.as_ref().is_none_or(|prefix| rule.name.starts_with(&**prefix))
        && filter.action.as_ref().is_none_or(|action| rule.action.as_str() == *action)
        && filter.enabled.is_none_or(|enabled| rule.enabled == enabled)
}

/// A rule of the database as its answer.
pub(crate) fn show(stored: &StoredItem) -> Json {
    serde_json::to_value(of_database(stored)).unwrap_or_default()
}

fn of_database(stored: &StoredItem) -> RuleSummary {
    let Item::Rule(item) = &stored.item else { return RuleSummary::default() };
    let mut body = item.body.clone();
    body.insert("name".to_owned(), item.name.clone().into());
    let summary = match Sent::of(body).read(|fields, _| tollgate::config::read_rule(fields)) {
        Ok(rule) => RuleSummary::of(&rule),
        Err(error) => {
            let problem = Some(error.message().to_owned());
            RuleSummary { name: item.name.clone(), problem, ..RuleSummary::default() }
        }
    };
    RuleSummary {
        source: "database",
        version: Some(stored.version),
        created_by: Some(stored.created_by.clone()),
        created_at: Some(render::instant(stored.created_at_micros)),
        updated_at: Some(render::instant(stored.updated_at_micros)),
        definition: render::written(&stored.item),
        ..summary
    }
}

/// A rule that is in force without the database.
fn configured(rule: &Rule, source: &'static str) -> RuleSummary {
    RuleSummary { source, definition: definition(rule), ..RuleSummary::of(rule) }
}

impl Default for RuleSummary {
    /// Of what is no rule.
    fn default() -> Self {
        RuleSummary {
            name: String::new(),
            priority: 0,
            when: Json::Object(Map::new()),
            action: "",
            per: Vec::new(),
            layer: String::new(),
            enabled: false,
            limits: Vec::new(),
            max_delay: None,
            leases: false,
            on_store_failure: "",
            response: RuleResponse::default(),
            source: "database",
            version: None,
            created_by: None,
            created_at: None,
            updated_at: None,
            definition: Map::new(),
            problem: None,
        }
    }
}

impl RuleSummary {
    /// What a rule comes to.
    fn of(rule: &Rule) -> Self {
        let when = definition(rule).remove("when").unwrap_or_else(|| Json::Object(Map::new()));
        let max_delay = rule.limits.first().and_then(|each| each.limit.max_delay());
        RuleSummary {
            name: rule.name.to_string(),
            priority: rule.priority,
            when,
            action: rule.action.as_str(),
            per: rule.per.iter().map(ToString::to_string).collect(),
            layer: rule.layer.to_string(),
            enabled: rule.enabled,
            limits: rule.limits.iter().map(|each| LimitSummary::of(&each.limit)).collect(),
            max_delay: max_delay.map(|delay| delay.to_string()),
            leases: rule.leases,
            on_store_failure: rule.on_store_failure.as_str(),
            response: RuleResponse {
                status: rule.response.status,
                message: rule.response.message.as_deref().map(str::to_owned),
                retry_after_floor: rule.response.retry_after_floor.to_string(),
            },
            ..RuleSummary::default()
        }
    }
}

impl LimitSummary {
    pub(crate) fn of(limit: &tollgate::Limit) -> Self {
        LimitSummary {
            requests: limit.requests(),
            window: limit.window().to_string(),
            burst: limit.burst(),
            algorithm: limit.algorithm().as_str(),
        }
    }
}
