//! The configuration after changes that are not applied: for dry runs.

use std::sync::Arc;

use tollgate::config::Problems;
use tollgate::identity::InTenant;
use tollgate::{RuleSet, Timestamp};
use tollgate_stores::sql::{Item, ItemId, ItemWrite};

use super::{ConfigSync, items};

/// The rule set after these changes, with overrides and accounts.
///
/// # Errors
/// When the rules would be invalid.
pub(crate) fn preview(
    sync: &ConfigSync,
    in_force: &RuleSet,
    writes: &[ItemWrite],
) -> Result<RuleSet, Problems> {
    let changes_rules = writes.iter().any(|write| {
        matches!(
            write,
            ItemWrite::Put(Item::Rule(_) | Item::Tier(_))
                | ItemWrite::Delete(ItemId::Rule(_) | ItemId::Tier(_))
        )
    });
    let rules = if changes_rules { sync.rules().compile_with(writes)? } else { in_force.clone() };
    let (mut overrides, mut accounts) = (Arc::clone(in_force.overrides()), in_force.accounts().edit());
    for write in writes {
        match write {
            ItemWrite::Put(Item::Limit(limit)) => {
                let new = limit.to_override(Timestamp::default());
                overrides = new.map_or(overrides.clone(), |new| Arc::new(overrides.with(new)));
            }
            ItemWrite::Delete(ItemId::Limit { tenant, user, endpoint }) => {
                let user = InTenant::new(tenant.as_deref(), &**user);
                overrides = overrides.without(user, endpoint).map_or(overrides, Arc::new);
            }
            ItemWrite::Put(item) => drop(items::put(&mut accounts, item)),
            ItemWrite::Delete(id) => drop(items::remove(&mut accounts, id)),
        }
    }
    Ok(rules.with_overrides(overrides).with_accounts(Arc::new(accounts.finish())))
}
