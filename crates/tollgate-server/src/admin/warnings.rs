//! Warnings about changes that are valid but probably not meant.

use tollgate::RuleSet;
use tollgate_stores::sql::{Item, ItemEdit, ItemWrite};

use crate::check::warnings::Warnings;
use crate::config::sync;
use crate::http::Call;
use crate::http::error::ApiError;

/// Warnings about edits that are about to be written.
///
/// # Errors
/// When an edit names an unknown tier and `identity.unknown_tier` is `reject`.
pub(super) fn of_edits(call: &Call, edits: &[ItemEdit]) -> Result<Warnings, ApiError> {
    let mut warnings = Warnings::default();
    let before = call.app.limiter().rules();
    let writes: Vec<ItemWrite> = edits.iter().map(|edit| edit.write.clone()).collect();
    // Rules that do not compile are rejected when they are checked.
    let Ok(after) = sync::preview_rules(call.app.config_sync(), &before, &writes) else {
        return Ok(warnings);
    };
    for write in &writes {
        let Some(tier) = unknown_tier(write, &after) else { continue };
        if call.settings.rejects_unknown_tiers && !is_stored(write, &before) {
            let reason = format!("no rule names the tier {tier:?}, and identity.unknown_tier is \"reject\"");
            return Err(ApiError::invalid("tier", reason));
        }
        warnings.add(format!(
            "no rule names the tier {tier:?}: only rules without a tier condition apply to its clients"
        ));
    }
    Ok(warnings)
}

/// Whether a key has its tier already: revoking a key must not fail because of it.
fn is_stored(write: &ItemWrite, rules: &RuleSet) -> bool {
    let ItemWrite::Put(Item::Key(key)) = write else { return false };
    rules.accounts().key(&key.id).is_some_and(|stored| stored.tier == key.tier.as_deref())
}

/// The tier of an account, if no rule names it.
fn unknown_tier<'w>(write: &'w ItemWrite, rules: &RuleSet) -> Option<&'w str> {
    let tier = match write {
        ItemWrite::Put(Item::Quota(quota)) => &quota.tier,
        ItemWrite::Put(Item::Key(key)) => &key.tier,
        _ => return None,
    };
    tier.as_deref().filter(|tier| !rules.names_tier(tier))
}
