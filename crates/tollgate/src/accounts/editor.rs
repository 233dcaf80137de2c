//! The editor that makes the next generation of accounts.

use std::sync::Arc;

use super::blocks::{BlockRecord, BlockTarget, hash_of_target};
use super::keys::KeyRecord;
use super::limits::{AccountLimits, CompiledLimits};
use super::pool::{Pool, PoolId};
use super::{AccountError, Accounts, Key, UserRecord};
use crate::identity::{Id, InTenant};
use crate::rules::overrides::{KEY_NAMESPACE, QUOTA_NAMESPACE};
use crate::time::Timestamp;

/// The next generation of accounts. A rejected edit changes nothing.
#[derive(Debug)]
pub struct AccountsEditor {
    accounts: Accounts,
}

impl AccountsEditor {
    pub(super) fn new(accounts: Accounts) -> Self {
        AccountsEditor { accounts }
    }

    /// Adds or replaces a user.
    ///
    /// # Errors
    /// When the id, the tier or a limit is invalid.
    pub fn put_user<'i>(
        &mut self,
        id: impl Into<InTenant<'i, &'i str>>,
        tier: Option<&str>,
        limits: AccountLimits,
    ) -> Result<(), AccountError> {
        let user = id.into();
        check_id("user_id", Some(user.id))?;
        check_id("tenant", user.tenant)?;
        check_id("tier", tier)?;
        let before = self.accounts.users();
        self.put_user_hashed(self.accounts.hash_of_user(user), tier, limits)?;
        if self.accounts.users() > before {
            self.count_users(user.tenant, 1);
        }
        Ok(())
    }

    /// Counts users that were added to a tenant.
    pub(super) fn count_users(&mut self, tenant: Option<&str>, added: usize) {
        let Some(tenant) = tenant else { return };
        let count = Arc::make_mut(&mut self.accounts.user_tenants).entry(tenant.into()).or_default();
        // A damaged snapshot may have any number: its checksum is verified at the end.
        *count = count.saturating_add(added);
    }

    fn uncount_user(&mut self, tenant: Option<&str>) {
        let Some(tenant) = tenant else { return };
        let tenants = Arc::make_mut(&mut self.accounts.user_tenants);
        if let Some(count) = tenants.get_mut(tenant) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                tenants.remove(tenant);
            }
        }
    }

    pub(super) fn put_user_hashed(
        &mut self,
        hash: u128,
        tier: Option<&str>,
        limits: AccountLimits,
    ) -> Result<(), AccountError> {
        let Accounts { users, tiers, quotas, .. } = &mut self.accounts;
        let limits = intern_limits(quotas, QUOTA_NAMESPACE, limits)?;
        let record = UserRecord { tier: intern_tier(tiers, tier)?, limits };
        users.change(hash, |shard| (isize::from(shard.put(hash, record).is_none()), ()));
        Ok(())
    }

    /// Removes a user.
    pub fn remove_user<'i>(&mut self, id: impl Into<InTenant<'i, &'i str>>) {
        let user = id.into();
        let hash = self.accounts.hash_of_user(user);
        // Checked first: an unknown user must not copy a shard.
        if self.accounts.user_record(hash).is_some() {
            self.uncount_user(user.tenant);
            self.accounts.users.change(hash, |shard| (-isize::from(shard.remove(hash).is_some()), ()));
        }
    }

    /// Adds or replaces an API key.
    ///
    /// # Errors
    /// When an id, the tier or a limit is invalid.
    pub fn put_key(&mut self, key: &Key<'_>) -> Result<(), AccountError> {
        let ids = [("id", Some(key.id)), ("user_id", key.user), ("tenant", key.tenant), ("tier", key.tier)];
        for (field, text) in ids {
            check_id(field, text)?;
        }
        let hash = self.accounts.hash_of_key(key.id);
        let Accounts { keys, tiers, key_limits, .. } = &mut self.accounts;
        let record = KeyRecord {
            id: key.id,
            verifier: &key.verifier,
            previous: key.previous.as_ref().map(|(verifier, until)| (verifier, *until)),
            user: key.user,
            tenant: key.tenant,
            limits: intern_limits(key_limits, KEY_NAMESPACE, key.limits)?,
            tier: intern_tier(tiers, key.tier)?,
            scopes: key.scopes,
            expires_at: key.expires_at,
            is_revoked: key.is_revoked,
        };
        let more = keys.change(hash, |shard| {
            let more = shard.put(hash, &record);
            (more.unwrap_or(0), more)
        });
        more.map(|_| ()).ok_or(AccountError::TooMany)
    }

    /// Removes an API key.
    pub fn remove_key(&mut self, id: &str) {
        if self.accounts.key_record(id).is_some() {
            let hash = self.accounts.hash_of_key(id);
            self.accounts.keys.change(hash, |shard| (shard.remove(hash, id), ()));
        }
    }

    /// Adds or replaces a block. Without `until` it never expires.
    pub fn put_block<'i>(
        &mut self,
        target: impl Into<InTenant<'i, BlockTarget<'i>>>,
        reason: &str,
        until: Option<Timestamp>,
    ) {
        let target = target.into();
        let hash = hash_of_target(self.accounts.seed, target);
        self.accounts.blocks.put(hash, target.id, reason, until);
    }

    pub(super) fn put_block_hashed(&mut self, hash: u128, block: BlockRecord) {
        self.accounts.blocks.put_hashed(hash, block);
    }

    /// Removes a block.
    pub fn remove_block<'i>(&mut self, target: impl Into<InTenant<'i, BlockTarget<'i>>>) {
        self.accounts.blocks.remove(hash_of_target(self.accounts.seed, target.into()));
    }

    /// The accounts as edited so far.
    pub fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    /// Returns the next generation.
    pub fn finish(mut self) -> Accounts {
        self.sweep_pools();
        self.accounts.users.shrink();
        self.accounts.keys.shrink();
        self.accounts.blocks.table.shrink();
        self.accounts
    }

    /// Drops unused tiers and limits if there may be many.
    fn sweep_pools(&mut self) {
        let Accounts { users, keys, tiers, quotas, key_limits, .. } = &mut self.accounts;
        if !tiers.should_sweep() && !quotas.should_sweep() && !key_limits.should_sweep() {
            return;
        }
        let mut used = [tiers.slots(), quotas.slots(), key_limits.slots()].map(|slots| vec![false; slots]);
        let mut mark = |pool: usize, id: Option<PoolId>| {
            if let Some(used) = id.and_then(|id| used[pool].get_mut(id.slot())) {
                *used = true;
            }
        };
        for (_, user) in users.iter().flat_map(super::Table::iter) {
            mark(0, user.tier);
            mark(1, user.limits);
        }
        for key in keys.iter().flat_map(super::KeyShard::iter) {
            mark(0, key.tier);
            mark(2, key.limits);
        }
        Pool::sweep(tiers, &used[0]);
        Pool::sweep(quotas, &used[1]);
        Pool::sweep(key_limits, &used[2]);
    }
}

fn check_id(field: &'static str, text: Option<&str>) -> Result<(), AccountError> {
    match text.map(Id::parse) {
        Some(Err(reason)) => Err(AccountError::Id { field, reason }),
        _ => Ok(()),
    }
}

fn intern_tier(
    tiers: &mut Arc<Pool<Box<str>, Box<str>>>,
    tier: Option<&str>,
) -> Result<Option<PoolId>, AccountError> {
    tier.map(|tier| Pool::intern(tiers, tier.into(), |tier| Ok(tier.clone()))).transpose()
}

fn intern_limits(
    pool: &mut Arc<Pool<AccountLimits, CompiledLimits>>,
    namespace: &str,
    limits: AccountLimits,
) -> Result<Option<PoolId>, AccountError> {
    if limits.is_empty() {
        return Ok(None);
    }
    Pool::intern(pool, limits, |limits| CompiledLimits::new(namespace, *limits)).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_values_are_dropped() {
        let mut accounts = Accounts::default();
        for number in 0..5_000 {
            let mut editor = accounts.edit();
            let tier = format!("tier-{number}");
            let limits = AccountLimits { requests_per_hour: Some(number), ..AccountLimits::default() };
            editor.put_user("alice", Some(&tier), limits).unwrap();
            editor.put_key(&Key { tier: Some(&tier), limits, ..Key::new("k", [0; 32]) }).unwrap();
            accounts = editor.finish();
            let pools = [accounts.tiers.slots(), accounts.quotas.slots(), accounts.key_limits.slots()];
            assert!(pools.iter().all(|slots| *slots < 300), "{pools:?} slots for one user and one key");
            assert_eq!(accounts.user("alice").unwrap().tier, Some(&*tier));
            assert_eq!(accounts.key("k").unwrap().limits, limits);
        }
    }
}
