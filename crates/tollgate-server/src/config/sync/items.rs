//! Puts quotas, API keys and blocks of the database into the accounts of the rule set.

use std::net::IpAddr;

use tollgate::Timestamp;
use tollgate::accounts::{Accounts, AccountsEditor, BlockTarget, Key};
use tollgate::identity::InTenant;
use tollgate_stores::sql::{BlockItem, BlockKind, Item, ItemId, KeyItem, QuotaItem};
use tracing::warn;

use crate::auth::scope::{Scope, Scopes};

/// Adds or replaces a quota, key or block. Returns false for other items.
pub(super) fn put(accounts: &mut AccountsEditor, item: &Item) -> bool {
    let put = match item {
        Item::Quota(quota) => put_quota(accounts, quota),
        Item::Key(key) => put_key(accounts, key),
        Item::Block(block) => put_block(accounts, block),
        Item::Rule(_) | Item::Tier(_) | Item::Limit(_) => return false,
    };
    if let Err(reason) = put {
        // The API rejects such items, so something else wrote to the table.
        warn!(item = %item.id(), reason, "ignoring an invalid item of the database");
        remove(accounts, &item.id());
    }
    true
}

/// Removes a quota, key or block. Returns false for ids of other items.
pub(super) fn remove(accounts: &mut AccountsEditor, id: &ItemId) -> bool {
    match id {
        ItemId::Quota { tenant, user } => accounts.remove_user(InTenant::new(tenant.as_deref(), &**user)),
        ItemId::Key(id) => accounts.remove_key(id),
        ItemId::Block { tenant, kind, subject } => {
            if let Some(blocked) = blocked(*kind, subject) {
                accounts.remove_block(InTenant::new(tenant.as_deref(), blocked));
            }
        }
        ItemId::Rule(_) | ItemId::Tier(_) | ItemId::Limit { .. } => return false,
    }
    true
}

fn put_quota(accounts: &mut AccountsEditor, quota: &QuotaItem) -> Result<(), String> {
    let user = InTenant::new(quota.tenant.as_deref(), &*quota.user);
    accounts.put_user(user, quota.tier.as_deref(), quota.limits).map_err(|error| error.to_string())
}

fn put_key(accounts: &mut AccountsEditor, key: &KeyItem) -> Result<(), String> {
    let until = key.previous_until_micros.map(Timestamp::from_micros);
    accounts
        .put_key(&Key {
            id: &key.id,
            verifier: key.hash,
            previous: key.previous_hash.zip(until),
            user: key.user.as_deref(),
            tenant: key.tenant.as_deref(),
            tier: key.tier.as_deref(),
            scopes: scopes(&key.scopes).bits(),
            limits: key.limits,
            expires_at: key.expires_at_micros.map(Timestamp::from_micros),
            is_revoked: key.revoked_at_micros.is_some(),
        })
        .map_err(|error| error.to_string())
}

/// Scopes of newer versions are ignored.
fn scopes(names: &[String]) -> Scopes {
    names.iter().filter_map(|name| Scope::parse(name)).collect()
}

fn put_block(accounts: &mut AccountsEditor, block: &BlockItem) -> Result<(), String> {
    let blocked = blocked(block.kind, &block.subject).ok_or("not an IP address or network")?;
    let blocked = InTenant::new(block.tenant.as_deref(), blocked);
    accounts.put_block(blocked, &block.reason, block.until_micros.map(Timestamp::from_micros));
    Ok(())
}

/// Whether the accounts have a block of the same client that lasts longer.
pub(super) fn has_longer_block(accounts: &Accounts, block: &BlockItem) -> bool {
    // At the beginning of time every block is in force, including expired ones.
    let existing = blocked(block.kind, &block.subject).and_then(|blocked| {
        accounts.block(InTenant::new(block.tenant.as_deref(), blocked), Timestamp::default())
    });
    let until = |until: Option<Timestamp>| until.map_or(u64::MAX, Timestamp::as_micros);
    existing
        .is_some_and(|existing| until(existing.until) > until(block.until_micros.map(Timestamp::from_micros)))
}

fn blocked(kind: BlockKind, subject: &str) -> Option<BlockTarget<'_>> {
    Some(match kind {
        BlockKind::User => BlockTarget::User(subject),
        BlockKind::ApiKey => BlockTarget::ApiKey(subject),
        BlockKind::Tenant => BlockTarget::Tenant(subject),
        BlockKind::Login => BlockTarget::Login(subject),
        BlockKind::Ip => {
            let network = subject.parse().ok();
            BlockTarget::Ip(network.or_else(|| subject.parse::<IpAddr>().ok().map(Into::into))?)
        }
    })
}
