//! Items of the configuration: rules, tiers, quotas, API keys, blocks, and limits of users on endpoints.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};
use tollgate::accounts::{AccountLimits, BlockKind};
use tollgate::rules::overrides::UserEndpointLimit;

pub(super) mod list;
pub(super) mod row;
mod row_reader;
mod rule_columns;
pub(super) mod table;

/// The kinds of items.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ItemKind {
    /// A rule.
    Rule,
    /// A tier and its limits.
    Tier,
    /// The tier and limits of a user.
    Quota,
    /// An API key.
    Key,
    /// A blocked client.
    Block,
    /// The limit of one user on one endpoint.
    Limit,
}

impl ItemKind {
    /// All kinds, in the order in which changes write and lock their tables.
    pub const ALL: [ItemKind; 6] =
        [ItemKind::Rule, ItemKind::Tier, ItemKind::Quota, ItemKind::Key, ItemKind::Block, ItemKind::Limit];

    /// Its name in the audit log.
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

    /// Parses [`as_str`](Self::as_str).
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// The id of an item. Printed as in the audit log, without the kind: a plain name, `user:alice` for a block,
/// `["alice","/search"]` for a limit.
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
        /// What it matches.
        kind: BlockKind,
        /// The blocked user, key, address and so on.
        subject: String,
    },
    /// A limit, by user and endpoint.
    Limit {
        /// The user.
        user: String,
        /// The endpoint.
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

    /// Parses a printed id.
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

    /// The values of its primary key.
    pub(super) fn key_values(&self) -> [Option<&str>; 2] {
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
    /// Its id.
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

/// A rule as written. Storing it rejects unknown keys and wrong types; the library validates the rest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RuleItem {
    /// Its name: 1 to 128 bytes.
    pub name: String,
    /// The keys of `[[rules]]` in TOML, without `name`.
    pub body: Map<String, Json>,
}

/// A tier as written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TierItem {
    /// Its name: 1 to 256 bytes.
    pub name: String,
    /// A free text.
    pub description: String,
    /// The keys of `[[tiers]]` in TOML, without `name`.
    pub body: Map<String, Json>,
}

/// The quota of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaItem {
    /// The user: 1 to 256 bytes.
    pub user: String,
    /// The user's tier.
    pub tier: Option<String>,
    /// The user's limits. Storing it rejects a limit per second.
    pub limits: AccountLimits,
}

/// An API key.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct KeyItem {
    /// Its public id: 1 to 64 bytes.
    pub id: String,
    /// The keyed hash of the secret.
    pub hash: [u8; 32],
    /// The hash of the previous secret, after a rotation.
    pub previous_hash: Option<[u8; 32]>,
    /// When the previous secret expires, in microseconds since 1970. Set if and only if `previous_hash` is.
    pub previous_until_micros: Option<u64>,
    /// A display name.
    pub name: String,
    /// The user that it belongs to.
    pub user: Option<String>,
    /// The tenant that it belongs to.
    pub tenant: Option<String>,
    /// The tier of its requests.
    pub tier: Option<String>,
    /// What it may do as a caller of tollgate's API.
    pub scopes: Vec<String>,
    /// Its limits.
    pub limits: AccountLimits,
    /// When it expires, in microseconds since 1970.
    pub expires_at_micros: Option<u64>,
    /// When it was revoked.
    pub revoked_at_micros: Option<u64>,
    /// Who revoked it. Set if and only if `revoked_at_micros` is.
    pub revoked_by: Option<String>,
}

impl fmt::Debug for KeyItem {
    /// Omits the hashes: logs have more readers than the database.
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

/// A blocked client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockItem {
    /// What it matches.
    pub kind: BlockKind,
    /// The blocked user, key, address and so on: 1 to 256 bytes. An address or network must be in canonical form.
    pub subject: String,
    /// The reason.
    pub reason: String,
    /// When it expires, in microseconds since 1970; never if `None`.
    pub until_micros: Option<u64>,
}

/// An item in the database.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredItem {
    /// The item.
    pub item: Item,
    /// The configuration version that last changed it.
    pub version: u64,
    /// Who created it.
    pub created_by: String,
    /// When it was created, in microseconds since 1970 (UTC).
    pub created_at_micros: u64,
    /// When it was last changed.
    pub updated_at_micros: u64,
}
