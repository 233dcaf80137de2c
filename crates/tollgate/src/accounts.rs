//! Users, API keys and blocks, in the compact form that decisions read.
//!
//! Millions of each must fit in memory, so users are stored as hashes of their ids, keys as packed bytes, and tiers
//! and limits that many accounts share only once. Accounts are immutable. An [`AccountsEditor`] makes the next
//! generation: it copies the shards that it changes (of 1024) and shares the rest.
//!
//! Users, and blocks of users, logins and addresses, belong to a tenant or to none ([`InTenant`]). API keys have unique ids.
//!
//! The hashes are keyed with a secret seed, so a client cannot choose ids that collide.

mod blocks;
mod editor;
mod keys;
mod limits;
mod pool;
mod resolve;
mod shards;
mod snapshot;
mod table;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

pub(crate) use self::blocks::BlockPosition;
use self::blocks::Blocks;
pub use self::blocks::{Block, BlockKind, BlockTarget};
pub use self::editor::AccountsEditor;
use self::keys::{KeyRecord, KeyShard};
pub use self::limits::AccountLimits;
pub(crate) use self::limits::CompiledLimits;
use self::pool::{Pool, PoolId};
pub(crate) use self::resolve::AccountOverride;
pub use self::resolve::ResolvedRequest;
use self::shards::Shards;
use self::table::Table;
use crate::identity::{IdError, InTenant, Seed, SubjectHasher, tag};
use crate::limit::LimitError;
use crate::time::Timestamp;

/// Tenants that are searched for a user that is given without one.
const TENANTS_SEARCHED_MAX: usize = 1_000;

/// Users, API keys and blocks. Cloning is cheap.
///
/// Ids are compared byte by byte with those of normalized requests.
#[derive(Clone)]
pub struct Accounts {
    /// The key of the hashes.
    seed: Seed,
    users: Shards<Table<UserRecord>>,
    /// The number of users of each tenant.
    user_tenants: Arc<BTreeMap<Box<str>, usize>>,
    keys: Shards<KeyShard>,
    blocks: Blocks,
    tiers: Arc<Pool<Box<str>, Box<str>>>,
    /// Limits of users and of keys, separate because they are counted under different names.
    quotas: Arc<Pool<AccountLimits, CompiledLimits>>,
    key_limits: Arc<Pool<AccountLimits, CompiledLimits>>,
}

/// Why an account is rejected. Nothing was changed.
#[non_exhaustive]
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccountError {
    /// An invalid identifier.
    #[error("{field} {reason}")]
    Id {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        reason: IdError,
    },
    /// An invalid limit.
    #[error("{field}: {reason}")]
    Limit {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        reason: LimitError,
    },
    /// A burst without a limit.
    #[error("burst needs requests_per_second, requests_per_hour or requests_per_day")]
    BurstAlone,
    /// A shard of the keys, or the pool of tiers or limits, is full (2^32 bytes or entries).
    #[error("too many accounts: the table is full")]
    TooMany,
}

#[derive(Copy, Clone)]
struct UserRecord {
    tier: Option<PoolId>,
    limits: Option<PoolId>,
}

impl Default for Accounts {
    fn default() -> Self {
        Accounts {
            seed: Seed::random(),
            users: Shards::default(),
            user_tenants: Arc::default(),
            keys: Shards::default(),
            blocks: Blocks::default(),
            tiers: Arc::default(),
            quotas: Arc::default(),
            key_limits: Arc::default(),
        }
    }
}

impl Accounts {
    /// Whether there are no users, keys and blocks.
    pub fn is_empty(&self) -> bool {
        self.users() == 0 && self.keys() == 0 && self.blocks() == 0
    }

    /// The number of users.
    pub fn users(&self) -> usize {
        self.users.count()
    }

    /// The number of API keys.
    pub fn keys(&self) -> usize {
        self.keys.count()
    }

    /// The number of blocks, expired ones included.
    pub fn blocks(&self) -> usize {
        self.blocks.table.count()
    }

    /// The API key with this id.
    pub fn key(&self, id: &str) -> Option<Key<'_>> {
        self.key_record(id).map(|record| self.key_of(record))
    }

    /// The API key with this id, or a decoy, and whether it is the key itself.
    ///
    /// Looking up a key that exists and one that does not takes the same time, so timing does not reveal which ids exist.
    pub fn key_or_decoy(&self, id: &str) -> (Key<'_>, bool) {
        let hash = self.hash_of_key(id);
        let (record, is_key) = KeyShard::get_or_decoy(self.keys.of(hash), hash, id);
        (self.key_of(record), is_key)
    }

    fn key_record(&self, id: &str) -> Option<KeyRecord<'_>> {
        if self.keys.count() == 0 {
            return None;
        }
        let hash = self.hash_of_key(id);
        self.keys.of(hash)?.get(hash, id)
    }

    fn key_of<'a>(&'a self, record: KeyRecord<'a>) -> Key<'a> {
        record.into_key(self.tier(record.tier), written(&self.key_limits, record.limits))
    }

    /// The user with this id in its tenant.
    pub fn user<'i>(&self, id: impl Into<InTenant<'i, &'i str>>) -> Option<User<'_>> {
        let UserRecord { tier, limits } = self.user_record(self.hash_of_user(id.into()))?;
        Some(User { tier: self.tier(tier), limits: written(&self.quotas, limits) })
    }

    /// The tenants that have a user with this id. Only the first thousand tenants are searched.
    pub fn tenants_of_user(&self, id: &str) -> Vec<&str> {
        let tenants = self.user_tenants.keys().take(TENANTS_SEARCHED_MAX).map(|tenant| &**tenant);
        tenants.filter(|tenant| self.user(InTenant::new(Some(tenant), id)).is_some()).collect()
    }

    fn user_record(&self, hash: u128) -> Option<UserRecord> {
        self.users.of(hash)?.get(hash).copied()
    }

    fn hash_of_user(&self, user: InTenant<'_, &str>) -> u128 {
        hash_in(user.tenant, self.seed, tag::USER, user.id.as_bytes())
    }

    fn hash_of_key(&self, id: &str) -> u128 {
        hash_in(None, self.seed, tag::KNOWN_KEY, id.as_bytes())
    }

    /// The block set for exactly this target, if it is in force at `now`.
    pub fn block<'i>(
        &self,
        target: impl Into<InTenant<'i, BlockTarget<'i>>>,
        now: Timestamp,
    ) -> Option<Block<'_>> {
        self.blocks.exactly(blocks::hash_of_target(self.seed, target.into()), now)
    }

    pub(crate) fn block_at(&self, at: BlockPosition) -> Option<Block<'_>> {
        self.blocks.at(at)
    }

    /// Starts the next generation.
    #[must_use]
    pub fn edit(&self) -> AccountsEditor {
        AccountsEditor::new(self.clone())
    }

    fn tier(&self, id: Option<PoolId>) -> Option<&str> {
        self.tiers.get(id?).map(|tier| &**tier)
    }
}

impl fmt::Debug for Accounts {
    /// Counts only: no ids, no verifiers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Accounts({} users, {} keys, {} blocks)", self.users(), self.keys(), self.blocks())
    }
}

/// The hash of an id inside its tenant. The tag separates the user `a` from the tenant `a`.
fn hash_in(tenant: Option<&str>, seed: Seed, tag: u8, id: &[u8]) -> u128 {
    let mut hasher = SubjectHasher::new(seed);
    hasher.push_tenant(tenant);
    hasher.push_bytes(tag, id);
    hasher.subject().0
}

/// The limits of a pool as they were set; empty if no limit was set.
fn written(pool: &Pool<AccountLimits, CompiledLimits>, id: Option<PoolId>) -> AccountLimits {
    id.and_then(|id| pool.get(id)).map_or_else(AccountLimits::default, |compiled| compiled.written)
}

/// The account of a user.
#[derive(Copy, Clone, Debug)]
pub struct User<'a> {
    /// The tier.
    pub tier: Option<&'a str>,
    /// The limits set for the user; empty if no limit was set.
    pub limits: AccountLimits,
}

/// The account of an API key.
#[derive(Copy, Clone)]
pub struct Key<'a> {
    /// The public part of the key.
    pub id: &'a str,
    /// The keyed hash that the presented key must match.
    pub verifier: [u8; 32],
    /// The verifier from before the last rotation, and when it expires.
    pub previous: Option<([u8; 32], Timestamp)>,
    /// The user that the key belongs to.
    pub user: Option<&'a str>,
    /// The tenant that the key belongs to.
    pub tenant: Option<&'a str>,
    /// The tier.
    pub tier: Option<&'a str>,
    /// Permission bits, defined by the application.
    pub scopes: u16,
    /// The limits set for the key; empty if no limit was set.
    pub limits: AccountLimits,
    /// When the key expires.
    pub expires_at: Option<Timestamp>,
    /// Whether the key was revoked.
    pub is_revoked: bool,
}

impl<'a> Key<'a> {
    /// A key without user, tenant, tier, limits and expiry.
    pub fn new(id: &'a str, verifier: [u8; 32]) -> Self {
        Key {
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

    /// The verifier from before the last rotation, while it is still valid.
    pub fn previous_verifier(&self, now: Timestamp) -> Option<&[u8; 32]> {
        self.previous.as_ref().filter(|(_, until)| now < *until).map(|(verifier, _)| verifier)
    }

    /// Whether the key has expired at `now`.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }
}

impl fmt::Debug for Key<'_> {
    /// The id only: verifiers are secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Key").field(&self.id).finish()
    }
}
