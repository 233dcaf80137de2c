//! `/v1/admin/rules`: rules of the database. Rules of the settings file are read-only.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::{Map, Value as Json};
use tollgate::config::read_rule;
use tollgate::rules::OnStoreFailure;
use tollgate::{Limit, Rule, RuleSet};
use tollgate_stores::sql::{ItemFilter, ItemId, ItemKind, StoredItem};
use utoipa::ToSchema;

use super::body::RequestBody;
use super::crud::{AdminResource, Operations, ParseItem, Writable};
use super::definition::definition;
use super::list_query::{self, ListFilter};
use super::parse;
use super::schema::{ConditionsInput, RuleInput};
use super::view::SourceRevision;
use crate::config::rule_json;
use crate::http::Call;
use crate::http::error::ApiError;

/// A rule as the server reads it, and as it is written.
#[derive(Default, Serialize, ToSchema)]
pub(crate) struct RuleView {
    name: String,
    /// Rules with a lower number are evaluated first.
    priority: u32,
    /// Position in the order of evaluation, from 1; null if the rule is not in force.
    position: Option<usize>,
    /// Requests that the rule matches.
    #[schema(value_type = ConditionsInput)]
    when: Json,
    /// `reject`, `throttle`, `block`, `allow` or `log_only`.
    action: &'static str,
    /// What the rule counts by; empty if it allows or blocks.
    per: Vec<String>,
    /// Only the first matching rule of a layer applies. Empty if the rule allows or blocks: it has no layer.
    layer: String,
    /// Whether the rule is in force.
    enabled: bool,
    limits: Vec<RuleLimitView>,
    /// Longest delay of a throttled request.
    max_delay: Option<String>,
    /// Whether nodes may lease units of hot counters in advance.
    leases: bool,
    /// Behaviour while the counters are unreachable: `local`, `open` or `closed`.
    on_store_failure: &'static str,
    response: RefusalView,
    #[serde(flatten)]
    revision: SourceRevision,
    /// The rule with the keys of `[[rules]]`, as `PUT` accepts it.
    #[schema(value_type = RuleInput)]
    definition: Map<String, Json>,
    /// Why the rule is not in force, if the database contains an invalid rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

/// Response to refused requests.
#[derive(Default, Serialize, ToSchema)]
pub(crate) struct RefusalView {
    /// HTTP status for the client.
    status: u16,
    /// Message for the client.
    message: Option<String>,
    /// Minimum of `Retry-After`.
    retry_after_floor: String,
}

/// One limit of a rule.
#[derive(Serialize, ToSchema)]
pub(crate) struct RuleLimitView {
    /// Requests per window.
    requests: u32,
    /// The window.
    window: String,
    /// Bucket capacity, if not `requests`.
    burst: Option<u32>,
    algorithm: &'static str,
}

pub(crate) struct Rules;

impl AdminResource for Rules {
    const KIND: ItemKind = ItemKind::Rule;
    const ID_FIELD: &'static str = "name";
    const FILTERS: &'static [ListFilter] =
        &[list_query::PREFIX, list_query::ACTION, list_query::ENABLED, list_query::SOURCE];
    const OPERATIONS: Operations = Operations {
        noun: "rule",
        id: "Name of the rule.",
        create: "Creates a rule.",
        put: "Creates or replaces a rule.",
        delete: "Deletes a rule.",
        create_conflict: "The rule already exists, in the database or in the settings file.",
        put_creates: true,
    };

    type Input = RuleInput;
    type View = RuleView;
    type Usage = Positions;

    async fn usage(call: &Call, _: &[StoredItem]) -> Result<Positions, ApiError> {
        Ok(Positions::of(&call.app.limiter().rules()))
    }

    fn view(call: &Call, stored: &StoredItem, positions: &Positions) -> Option<RuleView> {
        let definition = definition(&stored.item);
        let view = match RequestBody::new(definition.clone()).parse(|fields, _| read_rule(fields)) {
            Ok(rule) => RuleView::of(&rule, default_of(call)),
            Err(error) => RuleView {
                name: stored.item.id().to_string(),
                when: Json::Object(Map::new()),
                problem: Some(error.message().to_owned()),
                ..RuleView::default()
            },
        };
        let position = positions.get(&view.name);
        Some(RuleView { revision: SourceRevision::database(stored), definition, position, ..view })
    }

    fn matches(stored: &StoredItem, filter: &ItemFilter) -> bool {
        let rule = RequestBody::new(definition(&stored.item)).parse(|fields, _| read_rule(fields));
        rule.is_ok_and(|rule| matches(&rule, filter))
    }

    fn file_items(call: &Call, filter: &ItemFilter, source: Option<&str>) -> Vec<(ItemId, RuleView)> {
        let rules = call.app.config_sync().rules().file_rules();
        let default = default_of(call);
        let positions = Positions::of(&call.app.limiter().rules());
        let wanted = rules
            .iter()
            .filter(|(rule, from)| source.is_none_or(|source| source == *from) && matches(rule, filter));
        wanted
            .map(|(rule, from)| {
                let view = RuleView::of_file(rule, from, default);
                (
                    ItemId::Rule(rule.name.to_string()),
                    RuleView { position: positions.get(&rule.name), ..view },
                )
            })
            .collect()
    }
}

impl Writable for Rules {
    const PARSE: ParseItem = parse::rule;
}

/// What rules do by default while the counters are unreachable.
fn default_of(call: &Call) -> OnStoreFailure {
    call.app.limiter().rules().settings().on_store_failure
}

/// Applies the filter of the database to a rule.
fn matches(rule: &Rule, filter: &ItemFilter) -> bool {
    filter.prefix.as_ref().is_none_or(|prefix| rule.name.starts_with(&**prefix))
        && filter.action.as_ref().is_none_or(|action| rule.action.as_str() == *action)
        && filter.enabled.is_none_or(|enabled| rule.enabled == enabled)
}

/// The rules of a settings file as `GET /v1/admin/rules` returns them, in order of evaluation.
pub fn rule_views(rules: &RuleSet) -> Vec<Json> {
    let view = |(position, rule): (usize, &Rule)| {
        let view = RuleView::of_file(rule, "file", rules.settings().on_store_failure);
        serde_json::to_value(RuleView { position: Some(position), ..view }).unwrap_or_default()
    };
    (1..).zip(rules.rules()).map(view).collect()
}

/// The order of evaluation: the positions of the rules in force, by name.
#[derive(Default)]
pub(crate) struct Positions(HashMap<Box<str>, usize>);

impl Positions {
    fn of(rules: &RuleSet) -> Self {
        Positions(rules.rules().iter().map(|rule| rule.name.clone()).zip(1..).collect())
    }

    fn get(&self, rule: &str) -> Option<usize> {
        self.0.get(rule).copied()
    }
}

impl RuleView {
    fn of_file(rule: &Rule, source: &'static str, default: OnStoreFailure) -> Self {
        let definition = rule_json::definition(rule);
        RuleView { revision: SourceRevision::file(source), definition, ..RuleView::of(rule, default) }
    }

    /// The fields that come from the rule itself. `default` applies if the rule has no `on_store_failure`.
    fn of(rule: &Rule, default: OnStoreFailure) -> Self {
        let max_delay = rule.limits.first().and_then(|each| each.limit.max_delay());
        let limits = rule.action.limits();
        RuleView {
            name: rule.name.to_string(),
            priority: rule.priority,
            when: Json::Object(rule_json::conditions(&rule.when)),
            action: rule.action.as_str(),
            per: rule.per.iter().filter(|_| limits).map(ToString::to_string).collect(),
            layer: if limits { rule.layer.to_string() } else { String::new() },
            enabled: rule.enabled,
            limits: rule.limits.iter().map(|each| RuleLimitView::of(&each.limit)).collect(),
            max_delay: max_delay.map(|delay| delay.to_string()),
            leases: rule.leases,
            on_store_failure: rule.on_store_failure.unwrap_or(default).as_str(),
            response: RefusalView {
                status: rule.response.status,
                message: rule.response.message.as_deref().map(str::to_owned),
                retry_after_floor: rule.response.retry_after_floor.to_string(),
            },
            ..RuleView::default()
        }
    }
}

impl RuleLimitView {
    fn of(limit: &Limit) -> Self {
        RuleLimitView {
            requests: limit.requests(),
            window: limit.window().to_string(),
            burst: limit.burst(),
            algorithm: limit.algorithm().as_str(),
        }
    }
}
