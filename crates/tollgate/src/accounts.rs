//! Users, API keys and blocks, in the compact form that decisions read.
//!
//! Millions of each must fit in memory, so users are stored as hashes of their ids, keys as packed bytes, and tiers
//! and limits that many accounts share only once. Accounts are immutable. An [`AccountsEditor`] makes the next
//! generation: it copies the shards that it changes (of 1024) and shares the rest.
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

use std::fmt;
use std::sync::Arc;

pub(crate) use self::blocks::BlockPosition;
use self::blocks::Blocks;
pub use self::blocks::{Block, BlockKind, BlockTarget};
pub use self::editor::{AccountsEditor, NewKey};
use self::keys::{KeyRecord, KeyShard};
pub use self::limits::AccountLimits;
pub(crate) use self::limits::CompiledLimits;
use self::pool::{Pool, PoolId};
pub(crate) use self::resolve::AccountOverride;
pub use self::resolve::ResolvedRequest;
use self::shards::Shards;
use self::table::Table;
use crate::identity::{IdError, Seed, SubjectHasher, tag};
use crate::limit::LimitError;
use crate::time::Timestamp;

/// Users, API keys and blocks. Cloning is cheap.
///
/// Ids are compared byte by byte with those of normalized requests.
#[derive(Clone)]
pub struct Accounts {
    /// The key of the hashes.
    seed: Seed,
    users: Shards<Table<UserRecord>>,
    keys: Shards<KeyShard>,
    blocks: Blocks,
    tiers: Arc<Pool<Box<str>>>,
    /// Limits of users and of keys, separate because they are counted under different names.
    quotas: Arc<Pool<CompiledLimits>>,
    key_limits: Arc<Pool<CompiledLimits>>,
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
        if self.keys.count() == 0 {
            return None;
        }
        let hash = hash_of(self.seed, tag::KNOWN_KEY, id.as_bytes());
        Some(Key { accounts: self, fields: self.keys.of(hash)?.get(hash, id)? })
    }

    /// The API key with this id, or a decoy, and whether it is the key itself.
    ///
    /// Looking up a key that exists and one that does not takes the same time, so timing does not reveal which ids exist.
    pub fn key_or_decoy(&self, id: &str) -> (Key<'_>, bool) {
        let hash = hash_of(self.seed, tag::KNOWN_KEY, id.as_bytes());
        let (fields, is_key) = KeyShard::get_or_decoy(self.keys.of(hash), hash, id);
        (Key { accounts: self, fields }, is_key)
    }

    /// The user with this id.
    pub fn user(&self, id: &str) -> Option<User<'_>> {
        self.user_by_hash(self.hash_of_user(id))
    }

    fn hash_of_user(&self, id: &str) -> u128 {
        hash_of(self.seed, tag::USER, id.as_bytes())
    }

    fn user_by_hash(&self, hash: u128) -> Option<User<'_>> {
        Some(User { accounts: self, record: *self.users.of(hash)?.get(hash)? })
    }

    /// The block set for exactly this target, if it is in force at `now`.
    pub fn block(&self, target: BlockTarget<'_>, now: Timestamp) -> Option<Block<'_>> {
        self.blocks.exactly(target.hash(self.seed), now)
    }

    pub(crate) fn block_at(&self, at: BlockPosition) -> Option<Block<'_>> {
        self.blocks.at(at)
    }

    /// Starts the next generation.
    #[must_use]
    pub fn edit(&self) -> AccountsEditor {
        AccountsEditor::new(self.clone())
    }

    /// The heap size in bytes, including memory shared with other generations.
    pub fn heap_bytes(&self) -> usize {
        self.users.heap_bytes()
            + self.keys.heap_bytes()
            + self.blocks.heap_bytes()
            + self.tiers.heap_bytes(|tier| tier.len())
            + self.quotas.heap_bytes(CompiledLimits::heap_bytes)
            + self.key_limits.heap_bytes(CompiledLimits::heap_bytes)
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

/// The hash of an id. The tag separates the user `a` from the tenant `a`.
fn hash_of(seed: Seed, tag: u8, id: &[u8]) -> u128 {
    let mut hasher = SubjectHasher::new(seed);
    hasher.push_bytes(tag, id);
    hasher.subject().0
}

/// The account of a user.
#[derive(Copy, Clone)]
pub struct User<'a> {
    accounts: &'a Accounts,
    record: UserRecord,
}

impl<'a> User<'a> {
    /// The tier.
    pub fn tier(&self) -> Option<&'a str> {
        self.accounts.tier(self.record.tier)
    }

    /// The limits set for the user; empty if there are none.
    pub fn limits(&self) -> AccountLimits {
        self.compiled_limits().map_or_else(AccountLimits::default, |compiled| compiled.written)
    }

    pub(crate) fn compiled_limits(&self) -> Option<&'a CompiledLimits> {
        self.accounts.quotas.get(self.record.limits?)
    }
}

impl fmt::Debug for User<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "User(tier: {:?}, {:?})", self.tier(), self.limits())
    }
}

/// The account of an API key.
#[derive(Copy, Clone)]
pub struct Key<'a> {
    accounts: &'a Accounts,
    fields: KeyRecord<'a>,
}

impl<'a> Key<'a> {
    /// The public part of the key.
    pub fn id(&self) -> &'a str {
        self.fields.id
    }

    /// The keyed hash that the presented key must match.
    pub fn verifier(&self) -> &'a [u8; 32] {
        self.fields.verifier
    }

    /// The verifier from before the last rotation, while it is still valid.
    pub fn previous(&self, now: Timestamp) -> Option<&'a [u8; 32]> {
        self.fields.previous.filter(|(_, until)| now < *until).map(|(verifier, _)| verifier)
    }

    /// The user that the key belongs to.
    pub fn user(&self) -> Option<&'a str> {
        self.fields.user
    }

    /// The tenant that the key belongs to.
    pub fn tenant(&self) -> Option<&'a str> {
        self.fields.tenant
    }

    /// The tier.
    pub fn tier(&self) -> Option<&'a str> {
        self.accounts.tier(self.fields.tier)
    }

    /// Permission bits, defined by the application.
    pub fn scopes(&self) -> u16 {
        self.fields.scopes
    }

    /// The limits set for the key; empty if there are none.
    pub fn limits(&self) -> AccountLimits {
        self.compiled_limits().map_or_else(AccountLimits::default, |compiled| compiled.written)
    }

    pub(crate) fn compiled_limits(&self) -> Option<&'a CompiledLimits> {
        self.accounts.key_limits.get(self.fields.limits?)
    }

    /// When the key expires.
    pub fn expires_at(&self) -> Option<Timestamp> {
        self.fields.expires_at
    }

    /// Whether the key has expired at `now`.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.fields.expires_at.is_some_and(|at| at <= now)
    }

    /// Whether the key was revoked.
    pub fn is_revoked(&self) -> bool {
        self.fields.is_revoked
    }
}

impl fmt::Debug for Key<'_> {
    /// The id only: verifiers are secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Key").field(&self.id()).finish()
    }
}
