//! What is known of users and of API keys, and who is blocked: compiled for the way of a request.
//!
//! A million of each must fit beside everything else and must not slow a check down, so users are kept as hashes of
//! their ids (nobody asks for their names here), keys as bytes, and what many have in common once. All of it is
//! immutable. The next generation is made by an [`AccountsEditor`], which copies the thousandth parts that it changes and
//! shares the rest.
//!
//! The hashes are keyed, by a key of their own that is saved with them: whoever makes up ids finds nobody and cannot
//! make a look-up slow.

mod blocks;
mod editor;
mod file;
mod keys;
mod limits;
mod pool;
mod resolve;
mod shards;
mod table;

use std::fmt;
use std::sync::Arc;

pub(crate) use self::blocks::BlockPosition;
use self::blocks::Blocks;
pub use self::blocks::{Block, BlockKind, BlockTarget};
pub use self::editor::{AccountsEditor, NewKey};
pub use self::file::AccountsFileError;
use self::keys::{KeyRecord, KeyShard};
pub use self::limits::AccountLimits;
pub(crate) use self::limits::CompiledLimits;
use self::pool::{Pool, PoolId};
pub(crate) use self::resolve::AccountOverride;
pub use self::resolve::ResolvedRequest;
use self::shards::Shards;
use self::table::Table;
use crate::identity::{IdError, IdNormalization, Seed, SubjectHasher, tag};
use crate::limit::LimitError;
use crate::time::Timestamp;

/// Users, API keys and blocks, as a decision reads them. A clone is the same memory.
#[derive(Clone)]
pub struct Accounts {
    /// The key of the hashes.
    seed: Seed,
    /// Which spellings of ids are one here: hashes cannot be folded afterwards.
    normalization: IdNormalization,
    users: Shards<Table<UserRecord>>,
    keys: Shards<KeyShard>,
    blocks: Blocks,
    tiers: Arc<Pool<Box<str>>>,
    /// The numbers of users and those of keys, apart because their counters have different names.
    quotas: Arc<Pool<CompiledLimits>>,
    key_limits: Arc<Pool<CompiledLimits>>,
}

/// Why something cannot be kept. Nothing was changed.
#[non_exhaustive]
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccountError {
    /// A text that is no identifier.
    #[error("{field} {reason}")]
    Id {
        /// Which.
        field: &'static str,
        /// Why.
        reason: IdError,
    },
    /// Numbers that make no limit.
    #[error("{field}: {reason}")]
    Limit {
        /// Which.
        field: &'static str,
        /// Why.
        reason: LimitError,
    },
    /// A burst of nothing.
    #[error("burst needs requests_per_second, requests_per_hour or requests_per_day")]
    BurstAlone,
    /// More than four billion bytes in a thousandth part of the keys, or values that differ.
    #[error("there are too many already")]
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
            normalization: IdNormalization::default(),
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
    /// Accounts of nobody yet, whose ids are folded. They keep to it whatever the rules beside them do, until others are made
    /// in their place: nobody is forgotten when rules begin to fold.
    pub fn with_normalization(normalization: IdNormalization) -> Self {
        Accounts { normalization, ..Accounts::default() }
    }

    /// Which spellings of ids are one.
    pub fn normalization(&self) -> IdNormalization {
        self.normalization
    }

    /// Whether nothing is known of anybody.
    pub fn is_empty(&self) -> bool {
        self.users() == 0 && self.keys() == 0 && self.blocks() == 0
    }

    /// How many users are known.
    pub fn users(&self) -> usize {
        self.users.count()
    }

    /// How many API keys are known.
    pub fn keys(&self) -> usize {
        self.keys.count()
    }

    /// How many blocks there are, in force or over.
    pub fn blocks(&self) -> usize {
        self.blocks.table.count()
    }

    /// The key with this id.
    pub fn key(&self, id: &str) -> Option<Key<'_>> {
        if self.keys.count() == 0 {
            return None;
        }
        let hash = hash_of(self.seed, tag::KNOWN_KEY, id.as_bytes());
        Some(Key { accounts: self, fields: self.keys.of(hash)?.get(hash, id)? })
    }

    /// The key with this id, or else some other in its place, and whether it is the one: to look at a key that is there and at
    /// one that is not takes the same steps and as much memory, so that the time tells nothing. Which other one it is does not
    /// change as long as the keys do not; if there is none at all, it is one that nobody has.
    pub fn key_or_decoy(&self, id: &str) -> (Key<'_>, bool) {
        let hash = hash_of(self.seed, tag::KNOWN_KEY, id.as_bytes());
        let (fields, is_it) = KeyShard::get_or_other(self.keys.of(hash), hash, id);
        (Key { accounts: self, fields }, is_it)
    }

    /// The user with this id.
    pub fn user(&self, id: &str) -> Option<User<'_>> {
        self.user_by_hash(self.hash_of_user(id))
    }

    fn hash_of_user(&self, id: &str) -> u128 {
        hash_of(self.seed, tag::USER, self.normalization.user.normalize(id).as_bytes())
    }

    fn user_by_hash(&self, hash: u128) -> Option<User<'_>> {
        Some(User { accounts: self, record: *self.users.of(hash)?.get(hash)? })
    }

    /// The block of one that is in force at `now`; of an address or a network, the one set for exactly that.
    pub fn block(&self, who: BlockTarget<'_>, now: Timestamp) -> Option<Block<'_>> {
        self.blocks.exactly(who.hash(self.seed, self.normalization), now)
    }

    pub(crate) fn block_at(&self, at: BlockPosition) -> Option<Block<'_>> {
        self.blocks.at(at)
    }

    /// Begins the next generation.
    #[must_use]
    pub fn edit(&self) -> AccountsEditor {
        AccountsEditor::new(self.clone())
    }

    /// The memory that it takes, in bytes. Shared with other generations as it is, nothing is counted twice only if they
    /// are not asked.
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
    /// How many: neither who nor anything that keys are checked against.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Accounts({} users, {} keys, {} blocks)", self.users(), self.keys(), self.blocks())
    }
}

/// The hash of an id. The tag keeps the user `a` and the tenant `a` apart.
fn hash_of(seed: Seed, tag: u8, id: &[u8]) -> u128 {
    let mut hasher = SubjectHasher::new(seed);
    hasher.push_bytes(tag, id);
    hasher.subject().0
}

/// What is known of a user.
#[derive(Copy, Clone)]
pub struct User<'a> {
    accounts: &'a Accounts,
    record: UserRecord,
}

impl<'a> User<'a> {
    /// The plan.
    pub fn tier(&self) -> Option<&'a str> {
        self.accounts.tier(self.record.tier)
    }

    /// Numbers of the user's own; all absent if it has none.
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

/// What is known of an API key.
#[derive(Copy, Clone)]
pub struct Key<'a> {
    accounts: &'a Accounts,
    fields: KeyRecord<'a>,
}

impl<'a> Key<'a> {
    /// The part of the key that may be shown.
    pub fn id(&self) -> &'a str {
        self.fields.id
    }

    /// What the key is checked against.
    pub fn verifier(&self) -> &'a [u8; 32] {
        self.fields.verifier
    }

    /// What it was checked against before it was changed, as long as that is still good.
    pub fn previous(&self, now: Timestamp) -> Option<&'a [u8; 32]> {
        self.fields.previous.filter(|(_, until)| now < *until).map(|(verifier, _)| verifier)
    }

    /// Whose it is.
    pub fn user(&self) -> Option<&'a str> {
        self.fields.user
    }

    /// The organisation that it belongs to.
    pub fn tenant(&self) -> Option<&'a str> {
        self.fields.tenant
    }

    /// The plan.
    pub fn tier(&self) -> Option<&'a str> {
        self.accounts.tier(self.fields.tier)
    }

    /// What its holder may do here; whoever put it in knows what the bits mean.
    pub fn scopes(&self) -> u16 {
        self.fields.scopes
    }

    /// Numbers of the key's own; all absent if it has none.
    pub fn limits(&self) -> AccountLimits {
        self.compiled_limits().map_or_else(AccountLimits::default, |compiled| compiled.written)
    }

    pub(crate) fn compiled_limits(&self) -> Option<&'a CompiledLimits> {
        self.accounts.key_limits.get(self.fields.limits?)
    }

    /// From then on it is good no more.
    pub fn expires_at(&self) -> Option<Timestamp> {
        self.fields.expires_at
    }

    /// Whether its time is over at `now`.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.fields.expires_at.is_some_and(|at| at <= now)
    }

    /// Whether it was withdrawn.
    pub fn is_revoked(&self) -> bool {
        self.fields.is_revoked
    }
}

impl fmt::Debug for Key<'_> {
    /// The id alone: what the key is checked against is nobody's business.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Key").field(&self.id()).finish()
    }
}
