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

/// The id of an item. Printed as in the audit log, without the kind and the tenant: a plain name, `user:alice` for a block,
/// `["alice","/search"]` for a limit. Items of the same kind are ordered as in their table.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ItemId {
    /// A rule, by name.
    Rule(String),
    /// A tier, by name.
    Tier(String),
    /// A quota, by its user.
    Quota {
        /// The tenant of the user.
        tenant: Option<String>,
        /// The user.
        user: String,
    },
    /// A key, by its id.
    Key(String),
    /// A block.
    Block {
        /// The tenant of the client.
        tenant: Option<String>,
        /// What it matches.
        kind: BlockKind,
        /// The blocked user, key, address and so on.
        subject: String,
    },
    /// A limit, by user and endpoint.
    Limit {
        /// The tenant of the user.
        tenant: Option<String>,
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
            ItemId::Quota { .. } => ItemKind::Quota,
            ItemId::Key(_) => ItemKind::Key,
            ItemId::Block { .. } => ItemKind::Block,
            ItemId::Limit { .. } => ItemKind::Limit,
        }
    }

    /// Its tenant, if it has one. Rules, tiers and keys are in none.
    pub fn tenant(&self) -> Option<&str> {
        match self {
            ItemId::Rule(_) | ItemId::Tier(_) | ItemId::Key(_) => None,
            ItemId::Quota { tenant, .. } | ItemId::Block { tenant, .. } | ItemId::Limit { tenant, .. } => {
                tenant.as_deref()
            }
        }
    }

    /// Parses a printed id.
    pub fn parse(kind: ItemKind, tenant: Option<&str>, text: &str) -> Option<Self> {
        let name = text.to_owned();
        let is_in_tenant = matches!(kind, ItemKind::Quota | ItemKind::Block | ItemKind::Limit);
        let tenant = tenant.map(str::to_owned);
        if tenant.is_some() && !is_in_tenant {
            return None;
        }
        Some(match kind {
            ItemKind::Rule => ItemId::Rule(name),
            ItemKind::Tier => ItemId::Tier(name),
            ItemKind::Quota => ItemId::Quota { tenant, user: name },
            ItemKind::Key => ItemId::Key(name),
            ItemKind::Block => {
                let (kind, subject) = text.split_once(':')?;
                let (kind, subject) = (BlockKind::parse(kind)?, subject.to_owned());
                ItemId::Block { tenant, kind, subject }
            }
            ItemKind::Limit => {
                let (user, endpoint) = serde_json::from_str(text).ok()?;
                ItemId::Limit { tenant, user, endpoint }
            }
        })
    }

    /// The values of its primary key.
    pub(super) fn key_values(&self) -> Vec<&str> {
        let tenant = self.tenant().unwrap_or_default();
        match self {
            ItemId::Rule(name) | ItemId::Tier(name) | ItemId::Key(name) => vec![name],
            ItemId::Quota { user, .. } => vec![tenant, user],
            ItemId::Block { kind, subject, .. } => vec![tenant, kind.as_str(), subject],
            ItemId::Limit { user, endpoint, .. } => vec![tenant, user, endpoint],
        }
    }
}

impl fmt::Display for ItemId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ItemId::Rule(name)
            | ItemId::Tier(name)
            | ItemId::Key(name)
            | ItemId::Quota { user: name, .. } => out.write_str(name),
            ItemId::Block { kind, subject, .. } => write!(out, "{}:{subject}", kind.as_str()),
            ItemId::Limit { user, endpoint, .. } => {
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
            Item::Quota(quota) => ItemId::Quota { tenant: quota.tenant.clone(), user: quota.user.clone() },
            Item::Key(key) => ItemId::Key(key.id.clone()),
            Item::Block(block) => {
                let (tenant, subject) = (block.tenant.clone(), block.subject.clone());
                ItemId::Block { tenant, kind: block.kind, subject }
            }
            Item::Limit(limit) => {
                let (user, endpoint) = (limit.user.clone(), limit.endpoint.clone());
                ItemId::Limit { tenant: limit.tenant.clone(), user, endpoint }
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
    /// The tenant of the user: 1 to 256 bytes.
    pub tenant: Option<String>,
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
    /// The tenant of a user, login or address. Other kinds have none.
    pub tenant: Option<String>,
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
