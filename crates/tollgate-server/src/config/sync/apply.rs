//! Puts the configuration of the database in force.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tollgate::accounts::{Accounts, AccountsEditor};
use tollgate::identity::{InTenant, Normalization};
use tollgate::rules::overrides::{self, Override, Overrides};
use tollgate::{RuleSet, Timestamp};
use tollgate_stores::sql::{Database, DatabaseError, Item, ItemId, StoredItem};
use tracing::{error, info, warn};

use super::database_rules::DatabaseRules;
use super::listed_blocks::ListedBlocks;
use super::rule_sources::RuleSources;
use super::{ConfigSync, Source, items};
use crate::ServiceLimiter;
use crate::config::normalize;

/// A changed item in its current state; `None` if it was deleted.
pub(super) type ItemState = (ItemId, Option<StoredItem>);

/// The configuration at one version.
#[derive(Debug)]
pub(super) struct Configuration {
    pub(super) version: u64,
    pub(super) rules: DatabaseRules,
    pub(super) overrides: Overrides,
    pub(super) accounts: Accounts,
    /// Absent in a snapshot.
    pub(super) listed_blocks: Option<ListedBlocks>,
    /// Whether some ids were not normalized.
    pub(super) has_other_ids: bool,
    /// The normalization that the ids were loaded with.
    pub(super) normalization: Normalization,
}

/// Loads the whole configuration at one version. Of several items for the same client the one with the normalized id applies,
/// and of several blocks the longest.
pub(super) async fn load(
    database: &Database,
    normalization: &Normalization,
) -> Result<Configuration, DatabaseError> {
    let mut loading = Loading {
        rules: DatabaseRules::default(),
        accounts: Accounts::default().edit(),
        overrides: HashMap::new(),
        listed_blocks: ListedBlocks::default(),
    };
    let mut others = Vec::new();
    let version = database
        .load(|stored: StoredItem| {
            let id = stored.item.id();
            loading.listed_blocks.put(&stored);
            if normalize::is_normalized(&id, normalization) {
                loading.put(id, &stored);
            } else {
                others.push(stored);
            }
        })
        .await?;
    let other_ids = others.len();
    for mut stored in others {
        // An id that is too long once normalized matches no request.
        let Ok(item) = normalize::item(stored.item, normalization) else { continue };
        stored.item = item;
        if !loading.contains(&stored.item.id()) {
            loading.put(stored.item.id(), &stored);
        }
    }
    if other_ids > 0 {
        warn!(
            items = other_ids,
            "items were stored under other [identity] settings and cannot be changed by their ids; export and import them"
        );
    }
    Ok(Configuration {
        version,
        rules: loading.rules,
        accounts: loading.accounts.finish(),
        overrides: loading.overrides.into_values().collect(),
        listed_blocks: Some(loading.listed_blocks),
        has_other_ids: other_ids > 0,
        normalization: normalization.clone(),
    })
}

/// A configuration that is being loaded.
struct Loading {
    rules: DatabaseRules,
    accounts: AccountsEditor,
    overrides: HashMap<ItemId, Override>,
    listed_blocks: ListedBlocks,
}

impl Loading {
    fn put(&mut self, id: ItemId, stored: &StoredItem) {
        match &stored.item {
            Item::Rule(_) | Item::Tier(_) => drop(self.rules.put(&stored.item)),
            Item::Limit(_) => self.overrides.extend(override_of(stored).map(|set| (id, set))),
            Item::Block(block) if items::has_longer_block(self.accounts.accounts(), block) => {}
            item => drop(items::put(&mut self.accounts, item)),
        }
    }

    /// Whether a quota or override of this id was loaded.
    fn contains(&self, id: &ItemId) -> bool {
        match id {
            ItemId::Quota { tenant, user } => {
                self.accounts.accounts().user(InTenant::new(tenant.as_deref(), &**user)).is_some()
            }
            id => self.overrides.contains_key(id),
        }
    }
}

/// Replaces everything in force by a whole configuration.
pub(super) fn put_in_force(
    sync: &ConfigSync,
    limiter: &ServiceLimiter,
    configuration: Configuration,
    source: Source,
) {
    let Configuration { version, rules, overrides, accounts, listed_blocks, has_other_ids, normalization } =
        configuration;
    *sync.listed_blocks.lock() = listed_blocks;
    sync.has_other_ids.store(has_other_ids, Ordering::Relaxed);
    let (accounts, overrides) = (Arc::new(accounts), Arc::new(overrides));
    let mut sources = sync.rules.lock();
    (sources.database, sources.normalization) = (rules, Some(normalization));
    let set = compile(sync, &mut sources, true);
    if let Some(set) = &set {
        limiter.records().apply_rules(set);
    }
    limiter.update_rules(|current| {
        let overrides = if sync.stores_overrides { &overrides } else { current.overrides() };
        set.as_ref()
            .unwrap_or(current)
            .with_overrides(Arc::clone(overrides))
            .with_accounts(Arc::clone(&accounts))
    });
    drop(sources);
    sync.has_keys.store(true, Ordering::Relaxed);
    sync.update_state(|state| {
        state.source = source;
        if source == Source::Database {
            state.database_error = None;
        }
    });
    sync.version.send_replace(version);
}

/// Applies changed items. Returns whether rules or tiers are among them.
pub(super) async fn apply_changes(
    sync: &ConfigSync,
    limiter: &ServiceLimiter,
    now: Timestamp,
    version: u64,
    changed: &[ItemState],
) -> bool {
    apply_accounts(limiter, changed);
    if sync.stores_overrides {
        apply_overrides(limiter, now, changed).await;
    }
    let has_rules = apply_rules(sync, limiter, changed);
    apply_listed_blocks(sync, changed);
    info!(version, changes = changed.len(), "configuration changes are in force");
    sync.version.send_replace(version);
    has_rules
}

fn apply_accounts(limiter: &ServiceLimiter, changed: &[ItemState]) {
    let mut accounts = limiter.rules().accounts().edit();
    let mut has_accounts = false;
    for (id, stored) in changed {
        has_accounts |= match stored {
            Some(stored) => items::put(&mut accounts, &stored.item),
            None => items::remove(&mut accounts, id),
        };
    }
    if has_accounts {
        let accounts = accounts.finish();
        limiter.update_accounts(|_| accounts.clone());
    }
}

fn apply_listed_blocks(sync: &ConfigSync, changed: &[ItemState]) {
    let mut listed = sync.listed_blocks.lock();
    for (id, stored) in changed {
        match (listed.as_mut(), stored) {
            (Some(listed), Some(stored)) => listed.put(stored),
            (Some(listed), None) => listed.remove(id),
            (None, _) => {}
        }
    }
}

fn apply_rules(sync: &ConfigSync, limiter: &ServiceLimiter, changed: &[ItemState]) -> bool {
    let mut sources = sync.rules.lock();
    let mut has_rules = false;
    for (id, stored) in changed {
        has_rules |= match stored {
            Some(stored) => sources.database.put(&stored.item),
            None => sources.database.remove(id),
        };
    }
    let set = if has_rules { compile(sync, &mut sources, false) } else { None };
    if let Some(set) = set {
        limiter.records().apply_rules(&set);
        limiter.replace_rules(set);
    }
    has_rules
}

/// Applies all overrides in one step: each step copies all of them, and an import may have thousands.
async fn apply_overrides(limiter: &ServiceLimiter, now: Timestamp, changed: &[ItemState]) {
    let (mut set, mut removed, mut requests) = (Vec::new(), Vec::new(), Vec::new());
    for (id, stored) in changed {
        let ItemId::Limit { tenant, user, endpoint } = id else { continue };
        let user = InTenant::new(tenant.as_deref(), &**user);
        match stored.as_ref().and_then(override_of) {
            Some(new) => set.push(new),
            None => removed.push((user, &**endpoint)),
        }
        requests.extend(overrides::request_of(user, endpoint));
    }
    if set.is_empty() && removed.is_empty() {
        return;
    }
    // Consumption is carried over to the new counters. With shared counters the node that made the change does so.
    let mut carried = Vec::new();
    if limiter.counters().memory().is_some() {
        let next = Arc::new(limiter.rules().overrides().changed(&set, &removed));
        for request in &requests {
            carried.push(limiter.prepare_carry_over(request, &next, now).await);
        }
    }
    limiter.update_overrides(|overrides| overrides.changed(&set, &removed));
    for carry_over in carried {
        limiter.carry_over(&carry_over, now).await;
    }
}

fn override_of(stored: &StoredItem) -> Option<Override> {
    let Item::Limit(limit) = &stored.item else { return None };
    limit.to_override(Timestamp::from_micros(stored.updated_at_micros))
}

/// Compiles the rules of the file and the database. Invalid rules keep the last valid ones in force (`None`), which a full load
/// compiles again with the normalization of its items; the initial load uses the valid part.
fn compile(sync: &ConfigSync, sources: &mut RuleSources, is_full_load: bool) -> Option<RuleSet> {
    match sources.compile() {
        Ok(set) => {
            if sync.state.load().rules_error.is_some() {
                info!("the rules of the database and the settings file are valid again");
            }
            sync.update_state(|state| state.rules_error = None);
            Some(set)
        }
        Err(problems) => {
            for problem in &problems.0 {
                error!(problem = %problem, "the rules of the database are invalid, the last valid rules stay in force");
            }
            let reason = problems.to_string().replace('\n', "; ");
            sync.update_state(|state| state.rules_error = Some(reason.clone()));
            if is_full_load { sources.compile_last_valid(sync.version() == 0) } else { None }
        }
    }
}
