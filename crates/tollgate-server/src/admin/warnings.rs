//! Warnings about changes that are valid but may not do what was meant.

use tollgate::RuleSet;
use tollgate::rules::LimitOwner;
use tollgate_stores::sql::{AccountLimits, Item, ItemEdit, ItemKind, ItemWrite};

use crate::check::unknown_tier;
use crate::http::Call;
use crate::http::error::ApiError;

const DEFAULT_ENDS: &str = "the built-in default of 100 requests per minute ends with the first rule that limits \
                            requests: clients that no rule matches are now unlimited; add a rule for all clients, \
                            or set default_limit";

/// Stricter rules that are named for one quota or key.
const RULES_MAX: usize = 5;
/// Quotas and keys of one change that are compared with the rules.
const OWNERS_MAX: usize = 100;

/// Warnings about edits that are about to be made.
pub(crate) fn of(call: &Call, edits: &[ItemEdit]) -> Vec<String> {
    let rules = call.app.limiter().rules();
    let items = edits.iter().filter_map(|edit| match &edit.write {
        ItemWrite::Put(item) => Some(item),
        ItemWrite::Delete(_) => None,
    });
    let mut warnings = unknown_tiers(call, edits);
    if call.app.config_sync().rules().leaves_clients_unlimited(edits.iter().map(|edit| &edit.write)) {
        warnings.push(DEFAULT_ENDS.to_owned());
    }
    warnings.extend(
        items.filter_map(limits_of).take(OWNERS_MAX).flat_map(|limits| stricter_rules(&rules, &limits)),
    );
    warnings
}

/// Rejects accounts with a tier that no rule names, if `identity.unknown_tier` is `reject`.
pub(crate) fn reject_unknown_tiers(call: &Call, edits: &[ItemEdit]) -> Result<(), ApiError> {
    if !call.settings.rejects_unknown_tiers {
        return Ok(());
    }
    // A key that has its tier already can be revoked.
    let rules = call.app.limiter().rules();
    let is_stored = |item: &Item, tier: &str| match item {
        Item::Key(key) => rules.accounts().key(&key.id).is_some_and(|stored| stored.tier == Some(tier)),
        _ => false,
    };
    match tiers_without_rule(call, edits).into_iter().find(|(item, tier)| !is_stored(item, tier)) {
        Some((_, tier)) => Err(ApiError::invalid("tier", unknown_tier(tier))),
        None => Ok(()),
    }
}

fn unknown_tiers(call: &Call, edits: &[ItemEdit]) -> Vec<String> {
    let mut tiers: Vec<&str> = tiers_without_rule(call, edits).into_iter().map(|(_, tier)| tier).collect();
    tiers.sort_unstable();
    tiers.dedup();
    let warning =
        |tier: &&str| format!("no rule names the tier {tier:?}: only rules without a tier condition apply");
    tiers.iter().take(RULES_MAX).map(warning).collect()
}

/// Accounts with a tier that no rule names, neither now nor after the edits.
fn tiers_without_rule<'e>(call: &Call, edits: &'e [ItemEdit]) -> Vec<(&'e Item, &'e str)> {
    let rules = call.app.limiter().rules();
    let puts = edits.iter().filter_map(|edit| match &edit.write {
        ItemWrite::Put(item) => Some(item),
        ItemWrite::Delete(_) => None,
    });
    let accounts = puts.filter_map(|item| match item {
        Item::Quota(quota) => Some((item, quota.tier.as_deref()?)),
        Item::Key(key) => Some((item, key.tier.as_deref()?)),
        _ => None,
    });
    let mut unknown: Vec<(&Item, &str)> = accounts.filter(|(_, tier)| !rules.names_tier(tier)).collect();
    let changes_rules = |edit: &ItemEdit| matches!(edit.id().kind(), ItemKind::Rule | ItemKind::Tier);
    if !unknown.is_empty() && edits.iter().any(changes_rules) {
        // Rules that do not compile are rejected elsewhere.
        let after = call.app.config_sync().rules().compile_with(edits.iter().map(|edit| &edit.write));
        unknown.retain(|(_, tier)| after.as_ref().is_ok_and(|after| !after.names_tier(tier)));
    }
    unknown
}

/// Limits that are set for one user or key.
struct OwnLimits<'a> {
    name: String,
    owner: LimitOwner<'a>,
    limits: AccountLimits,
}

fn limits_of(item: &Item) -> Option<OwnLimits<'_>> {
    let (name, owner, limits) = match item {
        Item::Quota(quota) => {
            let (user, tier) = (Some(&*quota.user), quota.tier.as_deref());
            let owner = LimitOwner { user, tenant: quota.tenant.as_deref(), tier, ..LimitOwner::default() };
            (format!("the quota of {:?}", quota.user), owner, quota.limits)
        }
        Item::Key(key) => {
            let (user, tenant, tier) = (key.user.as_deref(), key.tenant.as_deref(), key.tier.as_deref());
            let owner = LimitOwner { is_key: true, user, tenant, tier };
            (format!("the limits of key {:?}", key.id), owner, key.limits)
        }
        _ => return None,
    };
    Some(OwnLimits { name, owner, limits }).filter(|_| !limits.is_empty())
}

/// Names the rules that refuse requests before these limits do.
fn stricter_rules(rules: &RuleSet, OwnLimits { name, owner, limits }: &OwnLimits<'_>) -> Vec<String> {
    let found = rules.stricter_rules(*owner, *limits);
    let warning = |(rule, limit): &(&tollgate::Rule, &tollgate::Limit)| {
        let per: Vec<String> = rule.per.iter().map(ToString::to_string).collect();
        format!(
            "rule {:?} remains stricter than {name}: {} per {} by {}",
            rule.name,
            limit.requests(),
            limit.window(),
            per.join("+")
        )
    };
    let mut warnings: Vec<String> = found.iter().take(RULES_MAX).map(warning).collect();
    if found.len() > RULES_MAX {
        warnings.push(format!("{} more rules remain stricter than {name}", found.len() - RULES_MAX));
    }
    warnings
}
