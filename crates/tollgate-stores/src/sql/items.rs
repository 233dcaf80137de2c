//! What people configure, one thing at a time: rules, tiers, quotas, keys, blocks, and limits of users on endpoints.

use std::fmt;

use serde_json::{Map, Value as Json};
use tollgate::accounts::AccountLimits;
use tollgate::rules::overrides::UserEndpointLimit;

pub(super) mod list;
mod row;
mod rule_columns;
pub(super) mod table;

/// The kinds of items.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ItemKind {
    /// A rule.
    Rule,
    /// A tier and its limits.
    Tier,
    /// What is known of a user: the tier, numbers of their own.
    Quota,
    /// An API key.
    Key,
    /// Somebody who is refused outright.
    Block,
    /// Numbers for one user on one endpoint.
    Limit,
}

impl ItemKind {
    /// All of them. Writers go through the tables in this order.
    pub const ALL: [ItemKind; 6] =
        [ItemKind::Rule, ItemKind::Tier, ItemKind::Quota, ItemKind::Key, ItemKind::Block, ItemKind::Limit];

    /// Its name in the audit trail.
    pub const fn as_str(self) -> &'static str {
        match self {
            ItemKind::Rule => "rule",
            ItemKind::Tier => "tier",
            ItemKind::Quota => "quota",
            ItemKind::Key => "key",
            ItemKind::Block => "block",
            ItemKind::Limit => "user_endpoint_limit",
        }
    }

    /// The kind with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// Who can be blocked.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BlockKind {
    /// An API key, by its id.
    ApiKey,
    /// An address or a network, in its canonical text.
    Ip,
    /// A login name.
    Login,
    /// A tenant.
    Tenant,
    /// A user.
    User,
}

impl BlockKind {
    /// All of them, in the order of their names.
    pub const ALL: [BlockKind; 5] =
        [BlockKind::ApiKey, BlockKind::Ip, BlockKind::Login, BlockKind::Tenant, BlockKind::User];

    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            BlockKind::ApiKey => "api_key",
            BlockKind::Ip => "ip",
            BlockKind::Login => "login",
            BlockKind::Tenant => "tenant",
            BlockKind::User => "user",
        }
    }

    /// The kind with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// Which item. Printed as the audit trail tells it, without its kind: a name as it is, `user:alice` for a block,
/// `["alice","/search"]` for a user's limit on an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ItemId {
    /// A rule, by name.
    Rule(String),
    /// A tier, by name.
    Tier(String),
    /// A quota, by its user.
    Quota(String),
    /// A key, by its id.
    Key(String),
    /// A block.
    Block {
        /// Of whom.
        kind: BlockKind,
        /// Of which of them.
        subject: String,
    },
    /// A limit.
    Limit {
        /// Of which user.
        user: String,
        /// On which endpoint.
        endpoint: String,
    },
}

impl ItemId {
    /// Its kind.
    pub const fn kind(&self) -> ItemKind {
        match self {
            ItemId::Rule(_) => ItemKind::Rule,
            ItemId::Tier(_) => ItemKind::Tier,
            ItemId::Quota(_) => ItemKind::Quota,
            ItemId::Key(_) => ItemKind::Key,
            ItemId::Block { .. } => ItemKind::Block,
            ItemId::Limit { .. } => ItemKind::Limit,
        }
    }

    /// What was printed, read again.
    pub fn parse(kind: ItemKind, text: &str) -> Option<Self> {
        let name = text.to_owned();
        Some(match kind {
            ItemKind::Rule => ItemId::Rule(name),
            ItemKind::Tier => ItemId::Tier(name),
            ItemKind::Quota => ItemId::Quota(name),
            ItemKind::Key => ItemId::Key(name),
            ItemKind::Block => {
                let (kind, subject) = text.split_once(':')?;
                ItemId::Block { kind: BlockKind::parse(kind)?, subject: subject.to_owned() }
            }
            ItemKind::Limit => {
                let (user, endpoint) = serde_json::from_str(text).ok()?;
                ItemId::Limit { user, endpoint }
            }
        })
    }

    /// The columns that name it.
    pub(super) fn keys(&self) -> [Option<&str>; 2] {
        match self {
            ItemId::Rule(name) | ItemId::Tier(name) | ItemId::Quota(name) | ItemId::Key(name) => {
                [Some(name), None]
            }
            ItemId::Block { kind, subject } => [Some(kind.as_str()), Some(subject)],
            ItemId::Limit { user, endpoint } => [Some(user), Some(endpoint)],
        }
    }
}

impl fmt::Display for ItemId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ItemId::Rule(name) | ItemId::Tier(name) | ItemId::Quota(name) | ItemId::Key(name) => {
                out.write_str(name)
            }
            ItemId::Block { kind, subject } => write!(out, "{}:{subject}", kind.as_str()),
            ItemId::Limit { user, endpoint } => {
                write!(out, "{}", Json::from([&**user, endpoint].map(Json::from).to_vec()))
            }
        }
    }
}

/// An item.
#[allow(clippy::large_enum_variant, reason = "most of many items are keys")]
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// A rule.
    Rule(RuleItem),
    /// A tier.
    Tier(TierItem),
    /// A quota.
    Quota(QuotaItem),
    /// A key.
    Key(KeyItem),
    /// A block.
    Block(BlockItem),
    /// A limit.
    Limit(UserEndpointLimit),
}

impl Item {
    /// Which item it is.
    pub fn id(&self) -> ItemId {
        match self {
            Item::Rule(rule) => ItemId::Rule(rule.name.clone()),
            Item::Tier(tier) => ItemId::Tier(tier.name.clone()),
            Item::Quota(quota) => ItemId::Quota(quota.user.clone()),
            Item::Key(key) => ItemId::Key(key.id.clone()),
            Item::Block(block) => ItemId::Block { kind: block.kind, subject: block.subject.clone() },
            Item::Limit(limit) => {
                ItemId::Limit { user: limit.user.clone(), endpoint: limit.endpoint.clone() }
            }
        }
    }
}

/// A rule as it was written. Whether it makes a rule is for the library to say; a key that `[[rules]]` does not have, or
/// a value of a wrong type, is refused here too.
#[derive(Clone, Debug, PartialEq)]
pub struct RuleItem {
    /// Its name: 1 to 128 bytes.
    pub name: String,
    /// The keys of `[[rules]]` in TOML, without `name`.
    pub body: Map<String, Json>,
}

/// A tier as it was written.
#[derive(Clone, Debug, PartialEq)]
pub struct TierItem {
    /// Its name: 1 to 256 bytes.
    pub name: String,
    /// What it is for, in words of people.
    pub description: String,
    /// The keys of `[[tiers]]` in TOML, without `name`.
    pub body: Map<String, Json>,
}

/// What is known of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaItem {
    /// The user: 1 to 256 bytes.
    pub user: String,
    /// The user's tier.
    pub tier: Option<String>,
    /// The user's own numbers; none per second.
    pub limits: AccountLimits,
}

/// An API key.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyItem {
    /// Its public part: 1 to 64 bytes.
    pub id: String,
    /// The keyed hash of its text.
    pub hash: [u8; 32],
    /// The hash of the text that it had before.
    pub previous_hash: Option<[u8; 32]>,
    /// Until when the text before is good, in microseconds since 1970. There is both or neither.
    pub previous_until_micros: Option<u64>,
    /// What people call it.
    pub name: String,
    /// Whose key it is.
    pub user: Option<String>,
    /// Which tenant it is bound to.
    pub tenant: Option<String>,
    /// The tier of who uses it.
    pub tier: Option<String>,
    /// What its holder may ask of tollgate itself.
    pub scopes: Vec<String>,
    /// Its own numbers.
    pub limits: AccountLimits,
    /// When it ends, in microseconds since 1970.
    pub expires_at_micros: Option<u64>,
    /// When it was revoked.
    pub revoked_at_micros: Option<u64>,
    /// By whom. There is both or neither.
    pub revoked_by: Option<String>,
}

impl fmt::Debug for KeyItem {
    /// Without hashes: a log is read by more people than a database.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("KeyItem")
            .field("id", &self.id)
            .field("has_previous", &self.previous_hash.is_some())
            .field("previous_until_micros", &self.previous_until_micros)
            .field("name", &self.name)
            .field("user", &self.user)
            .field("tenant", &self.tenant)
            .field("tier", &self.tier)
            .field("scopes", &self.scopes)
            .field("limits", &self.limits)
            .field("expires_at_micros", &self.expires_at_micros)
            .field("revoked_at_micros", &self.revoked_at_micros)
            .field("revoked_by", &self.revoked_by)
            .finish_non_exhaustive()
    }
}

/// Somebody who is refused outright.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockItem {
    /// Of whom.
    pub kind: BlockKind,
    /// Of which of them: 1 to 256 bytes. An address or network must be in its canonical text: two spellings are two blocks.
    pub subject: String,
    /// Why.
    pub reason: String,
    /// Until when, in microseconds since 1970; for ever if nothing is said.
    pub until_micros: Option<u64>,
}

/// An item in the database.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredItem {
    /// What it is.
    pub item: Item,
    /// The version of the configuration that changed it last.
    pub version: u64,
    /// Who made it.
    pub created_by: String,
    /// When it was made, in microseconds since 1970 (UTC).
    pub created_at_micros: u64,
    /// When it was changed last.
    pub updated_at_micros: u64,
}
