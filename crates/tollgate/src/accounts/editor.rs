//! The editor that makes the next generation of accounts.

use std::fmt;
use std::sync::Arc;

use super::blocks::{BlockRecord, BlockTarget};
use super::keys::KeyRecord;
use super::limits::{AccountLimits, CompiledLimits};
use super::pool::{Pool, PoolId};
use super::{AccountError, Accounts, UserRecord, hash_of};
use crate::identity::{Id, tag};
use crate::rules::overrides::{KEY_NAMESPACE, QUOTA_NAMESPACE};
use crate::time::Timestamp;

/// An API key to add.
#[derive(Copy, Clone)]
pub struct NewKey<'a> {
    /// The public part of the key.
    pub id: &'a str,
    /// The keyed hash that the presented key must match.
    pub verifier: [u8; 32],
    /// The verifier from before a rotation, and when it expires.
    pub previous: Option<([u8; 32], Timestamp)>,
    /// The user that the key belongs to.
    pub user: Option<&'a str>,
    /// The tenant that the key belongs to.
    pub tenant: Option<&'a str>,
    /// The tier.
    pub tier: Option<&'a str>,
    /// Permission bits, defined by the application.
    pub scopes: u16,
    /// Limits set for the key.
    pub limits: AccountLimits,
    /// When the key expires.
    pub expires_at: Option<Timestamp>,
    /// Whether the key was revoked.
    pub is_revoked: bool,
}

impl<'a> NewKey<'a> {
    /// A key without user, tenant, tier, limits and expiry.
    pub fn new(id: &'a str, verifier: [u8; 32]) -> Self {
        NewKey {
            id,
            verifier,
            previous: None,
            user: None,
            tenant: None,
            tier: None,
            scopes: 0,
            limits: AccountLimits::default(),
            expires_at: None,
            is_revoked: false,
        }
    }
}

impl fmt::Debug for NewKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NewKey").field(&self.id).finish()
    }
}

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
    pub fn put_user(
        &mut self,
        id: &str,
        tier: Option<&str>,
        limits: AccountLimits,
    ) -> Result<(), AccountError> {
        check_id("user_id", Some(id))?;
        check_id("tier", tier)?;
        let accounts = &mut self.accounts;
        let limits = intern_limits(&mut accounts.quotas, QUOTA_NAMESPACE, limits)?;
        let record = UserRecord { tier: intern_tier(&mut accounts.tiers, tier)?, limits };
        self.put_user_hashed(self.accounts.hash_of_user(id), record);
        Ok(())
    }

    pub(super) fn put_user_hashed(&mut self, hash: u128, record: UserRecord) {
        self.accounts.users.change(hash, |shard| (isize::from(shard.put(hash, record).is_none()), ()));
    }

    /// Removes a user.
    pub fn remove_user(&mut self, id: &str) {
        let hash = self.accounts.hash_of_user(id);
        // Checked first: an unknown user must not copy a shard.
        if self.accounts.user_by_hash(hash).is_some() {
            self.accounts.users.change(hash, |shard| (-isize::from(shard.remove(hash).is_some()), ()));
        }
    }

    /// Adds or replaces an API key.
    ///
    /// # Errors
    /// When an id, the tier or a limit is invalid.
    pub fn put_key(&mut self, key: &NewKey<'_>) -> Result<(), AccountError> {
        check_id("id", Some(key.id))?;
        for (field, text) in [("user_id", key.user), ("tenant", key.tenant), ("tier", key.tier)] {
            check_id(field, text)?;
        }
        let accounts = &mut self.accounts;
        let limits = intern_limits(&mut accounts.key_limits, KEY_NAMESPACE, key.limits)?;
        let tier = intern_tier(&mut accounts.tiers, key.tier)?;
        self.put_key_record(&KeyRecord {
            id: key.id,
            verifier: &key.verifier,
            previous: key.previous.as_ref().map(|(verifier, until)| (verifier, *until)),
            user: key.user,
            tenant: key.tenant,
            tier,
            limits,
            scopes: key.scopes,
            expires_at: key.expires_at,
            is_revoked: key.is_revoked,
        })
    }

    pub(super) fn put_key_record(&mut self, key: &KeyRecord<'_>) -> Result<(), AccountError> {
        let hash = hash_of(self.accounts.seed, tag::KNOWN_KEY, key.id.as_bytes());
        let more = self.accounts.keys.change(hash, |shard| {
            let more = shard.put(hash, key);
            (more.unwrap_or(0), more)
        });
        more.map(|_| ()).ok_or(AccountError::TooMany)
    }

    /// Removes an API key.
    pub fn remove_key(&mut self, id: &str) {
        if self.accounts.key(id).is_some() {
            let hash = hash_of(self.accounts.seed, tag::KNOWN_KEY, id.as_bytes());
            self.accounts.keys.change(hash, |shard| (shard.remove(hash, id), ()));
        }
    }

    /// Adds or replaces a block. Without `until` it never expires.
    pub fn put_block(&mut self, target: BlockTarget<'_>, reason: &str, until: Option<Timestamp>) {
        let hash = target.hash(self.accounts.seed);
        self.accounts.blocks.put(hash, target, reason, until);
    }

    pub(super) fn put_block_hashed(&mut self, hash: u128, block: BlockRecord) {
        self.accounts.blocks.put_hashed(hash, block);
    }

    /// Removes a block.
    pub fn remove_block(&mut self, target: BlockTarget<'_>) {
        self.accounts.blocks.remove(target.hash(self.accounts.seed));
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
        let mut used = [tiers.slots().len(), quotas.slots().len(), key_limits.slots().len()]
            .map(|slots| vec![false; slots]);
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

fn intern_tier(tiers: &mut Arc<Pool<Box<str>>>, tier: Option<&str>) -> Result<Option<PoolId>, AccountError> {
    let Some(tier) = tier else { return Ok(None) };
    let known = tiers.find(tier, |known| **known == *tier);
    known.or_else(|| Pool::add(tiers, tier.into())).map(Some).ok_or(AccountError::TooMany)
}

fn intern_limits(
    pool: &mut Arc<Pool<CompiledLimits>>,
    namespace: &str,
    limits: AccountLimits,
) -> Result<Option<PoolId>, AccountError> {
    if limits.is_empty() {
        return Ok(None);
    }
    // Searched before compiling: most accounts share their limits with others.
    if let Some(known) = pool.find(&limits, |known| known.written == limits) {
        return Ok(Some(known));
    }
    let compiled = CompiledLimits::new(namespace, limits)?;
    Pool::add(pool, compiled).map(Some).ok_or(AccountError::TooMany)
}
