//! `/v1/admin/tiers`: plans and their limits. Tiers of the settings file are read-only.

use serde::Serialize;
use serde_json::{Map, Value as Json};
use tollgate::rules::OnStoreFailure;
use tollgate::{Algorithm, Rule};
use tollgate_stores::sql::{Item, ItemFilter, ItemId, ItemKind, StoredItem};
use utoipa::ToSchema;

use super::crud::{AdminResource, Operations, ParseItem, Writable};
use super::list_query::{self, ListFilter};
use super::parse::{self, TIER_RULE_PREFIX};
use super::schema::{TierInput, TierLimits};
use super::view::{self, SourceRevision};
use crate::config::rule_json;
use crate::http::Call;

/// A tier.
#[derive(Serialize, ToSchema)]
pub(crate) struct TierView {
    name: String,
    description: String,
    #[serde(flatten)]
    #[schema(value_type = TierLimits)]
    limits: Map<String, Json>,
    #[serde(flatten)]
    revision: SourceRevision,
}

pub(crate) struct Tiers;

impl AdminResource for Tiers {
    const KIND: ItemKind = ItemKind::Tier;
    const ID_FIELD: &'static str = "name";
    const FILTERS: &'static [ListFilter] = &[list_query::PREFIX];
    const OPERATIONS: Operations = Operations {
        noun: "tier",
        id: "Name of the tier.",
        create: "Creates a tier.",
        put: "Creates or replaces a tier.",
        delete: "Deletes a tier. Its users and keys remain, and are limited as if they had no tier.",
        create_conflict: "The tier already exists, in the database or in the settings file.",
        put_creates: true,
    };

    type Input = TierInput;
    type View = TierView;
    type Usage = ();

    fn view(_: &Call, stored: &StoredItem, (): &()) -> Option<TierView> {
        let Item::Tier(tier) = &stored.item else { return None };
        Some(TierView {
            name: tier.name.clone(),
            description: tier.description.clone(),
            limits: tier.body.clone(),
            revision: SourceRevision::database(stored),
        })
    }

    fn matches(stored: &StoredItem, filter: &ItemFilter) -> bool {
        let name = stored.item.id().to_string();
        filter.prefix.as_ref().is_none_or(|prefix| name.starts_with(&**prefix))
    }

    fn file_items(call: &Call, filter: &ItemFilter, _: Option<&str>) -> Vec<(ItemId, TierView)> {
        let prefix = filter.prefix.as_deref().unwrap_or_default();
        let rules = call.app.config_sync().rules().file_rules();
        let tiers = rules.iter().filter_map(|(rule, _)| Some((tier_of(rule)?, rule)));
        let tiers = tiers.filter(|(name, _)| name.starts_with(prefix));
        tiers.map(|(name, rule)| (ItemId::Tier(name.to_owned()), file_view(name, rule))).collect()
    }
}

impl Writable for Tiers {
    const PARSE: ParseItem = parse::tier;
}

/// The tier that a rule of the settings file was made from, if any.
fn tier_of(rule: &Rule) -> Option<&str> {
    let tier = rule.name.strip_prefix(TIER_RULE_PREFIX)?;
    (rule.when.tiers.len() == 1 && &*rule.when.tiers[0] == tier).then_some(tier)
}

fn file_view(name: &str, rule: &Rule) -> TierView {
    let mut limits = Map::new();
    let written = rule.limits.iter().map(|each| Json::Object(rule_json::limit(&each.limit)));
    view::put(&mut limits, "limits", Some(Json::Array(written.collect())));
    let algorithm = rule.limits.first().map(|each| each.limit.algorithm());
    let algorithm = algorithm.filter(|algorithm| *algorithm != Algorithm::TokenBucket);
    view::put(&mut limits, "algorithm", algorithm.map(Algorithm::as_str));
    view::put(&mut limits, "on_store_failure", rule.on_store_failure.map(OnStoreFailure::as_str));
    TierView {
        name: name.to_owned(),
        description: String::new(),
        limits,
        revision: SourceRevision::file("file"),
    }
}
