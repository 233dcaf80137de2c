//! What people configure, kept in a SQL database: SQLite, PostgreSQL, MySQL or MariaDB.
//!
//! No request waits for it. A node reads everything at one version ([`Database::load`]), compiles it, and asks now and then
//! what has changed since ([`Database::changes_since`]).
//!
//! **Every change is one transaction** ([`Database::change`]) that first takes the next version, then writes, then leaves one
//! entry in the audit trail for each item that differs. Taking the version locks its only row until the transaction ends, and so
//! - changes happen one after another, on all nodes: what an entry tells as the state before is what was replaced;
//! - who sees a version sees all changes up to it;
//! - two changes cannot deadlock, for they lock that row before any other.
//!
//! A change whose future is dropped halfway is undone by the server; see `sql/engine.rs`.
//!
//! This would be slow for counters. For configuration it is plenty, and simpler than retrying.
//!
//! **One set of queries**, put together from words of ours and bound values only, runs on all engines; what differs is the
//! schema (`migrations/`), the words by which an `INSERT` replaces a row (`sql/table.rs`), how a connection is made (`sql/{sqlite,postgres,mysql}.rs`) and how it is locked while the schema
//! changes. Names are opaque and compared byte by byte everywhere; a NUL, which PostgreSQL cannot keep in a text, is refused
//! by all so that moving from one engine to another loses nothing.

mod audit;
mod change;
mod changes;
mod engine;
mod error;
mod items;
mod key_secret;
mod listener;
mod migrations;
mod query;
mod settings;
mod usage;

pub use self::audit::{AUDIT_COUNT_MAX, AuditEntry, AuditFilter};
pub use self::change::{AppliedChange, AuditEvent, ItemChange, ItemEdit, ItemWrite, Precondition};
pub use self::changes::Changes;
pub use self::error::{DatabaseError, ValueError};
pub use self::items::list::{ITEM_COUNT_MAX, ItemFilter};
pub use self::items::{
    BlockItem, BlockKind, Item, ItemId, ItemKind, KeyItem, QuotaItem, RuleItem, StoredItem, TierItem,
};
pub use self::key_secret::KeySecretCheck;
pub use self::listener::ChangeListener;
pub use self::migrations::Migration;
pub use self::settings::{Engine, SqlSettings, UrlError};
pub use self::usage::{KeyUsage, KeyUsageDelta, UsageBatch, UserUsage, UserUsageDelta};
pub use tollgate::accounts::AccountLimits;
pub use tollgate::rules::overrides::UserEndpointLimit;

use self::engine::{Pool, unsigned};
use self::query::Query;

/// A database, and some connections to it. Clones share them.
#[derive(Clone, Debug)]
pub struct Database {
    pool: Pool,
    settings: SqlSettings,
}

impl Database {
    /// Connects to the database of a URL, with the usual settings: see [`SqlSettings::from_url`].
    ///
    /// # Errors
    /// When the URL is none, or the database cannot be reached or used. No message repeats a password.
    pub async fn open(url: &str) -> Result<Self, DatabaseError> {
        Self::connect(SqlSettings::from_url(url)?).await
    }

    /// Connects to a database. The schema is left alone: see [`Database::migrate`].
    ///
    /// # Errors
    /// When the database cannot be reached, refuses us, is too old or does not keep text as UTF-8.
    pub async fn connect(settings: SqlSettings) -> Result<Self, DatabaseError> {
        let pool = Pool::connect(&settings).await?;
        Ok(Database { pool, settings })
    }

    /// Which kind of database it is.
    pub fn engine(&self) -> Engine {
        self.settings.engine()
    }

    /// The version of the configuration: it grows by one with every change.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn version(&self) -> Result<u64, DatabaseError> {
        let mut transaction = self.pool.begin_snapshot().await?;
        let version = transaction.config_version().await?;
        transaction.end().await?;
        Ok(version)
    }

    /// Closes all connections, when those in use are done.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}

impl engine::Transaction {
    async fn config_version(&mut self) -> Result<u64, DatabaseError> {
        let row = self.row(&Query::new("SELECT version FROM config_version WHERE id = 1")).await?;
        unsigned(row.ok_or(DatabaseError::Corrupt { what: "config_version" })?.int(0)?, "config_version")
    }
}
