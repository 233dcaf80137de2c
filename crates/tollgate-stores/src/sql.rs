//! The configuration database: rules, tiers, quotas, API keys, blocks and limits of users in SQLite, PostgreSQL, MySQL or MariaDB.
//!
//! No check waits for it. A node loads the whole configuration at one version ([`Database::load`]), then polls for changes
//! ([`Database::changes_since`]). PostgreSQL also notifies it ([`Database::change_listener`]).
//!
//! **A change is one transaction** ([`Database::change`]): increment the configuration version, write the items, append one audit
//! entry per changed item. Incrementing the version locks its only row until the transaction ends. Therefore
//! - changes of all nodes are serialized, and the audit log shows the state that a change replaced;
//! - a reader that sees a version sees all changes up to it;
//! - two changes cannot deadlock.
//!
//! The server rolls back a change whose future is dropped (`engine.rs`).
//!
//! Queries are the same on all engines and consist of constants and bound values. Engines differ in the schema (`migrations/`),
//! the upsert syntax (`query.rs`), the connection setup (`engine/`) and the migration lock (`migrations.rs`). Names are
//! opaque and compared byte by byte. NUL characters are rejected everywhere, because PostgreSQL cannot store them in text.

mod audit;
mod change;
mod change_feed;
mod engine;
mod error;
mod items;
mod key_secret;
mod listener;
mod migrations;
mod query;
pub mod records;
mod settings;
mod usage;
mod version;

pub use self::audit::{AUDIT_COUNT_MAX, AuditEntry, AuditEvent, AuditFilter};
pub use self::change::{AppliedChange, ItemChange, ItemEdit, ItemWrite, Precondition};
pub use self::change_feed::Changes;
pub use self::engine::sqlite::copy as copy_sqlite;
pub use self::error::{DatabaseError, ValueError};
pub use self::items::list::{ITEM_COUNT_MAX, ItemFilter};
pub use self::items::{
    BlockItem, Item, ItemId, ItemKind, KeyItem, QuotaItem, RuleItem, StoredItem, TierItem,
};
pub use self::key_secret::KeySecretCheck;
pub use self::listener::ChangeListener;
pub use self::migrations::{Migration, MigrationSet};
pub use self::settings::{Engine, SqlSettings, UrlError};
pub use self::usage::{KeyUsage, KeyUsageDelta, UsageBatch, UserUsage, UserUsageDelta};
pub use tollgate::accounts::{AccountLimits, BlockKind};
pub use tollgate::rules::overrides::UserEndpointLimit;

use tollgate::identity::InTenant;

use self::change::Author;
use self::engine::{Durability, Pool};
use self::items::list;

/// A pool of connections to the configuration database. Clones share it.
///
/// Every operation fails when the database is unreachable, a query fails or a row is corrupt; see [`DatabaseError`].
#[derive(Clone, Debug)]
pub struct Database {
    pool: Pool,
    settings: SqlSettings,
}

#[expect(clippy::missing_errors_doc, reason = "documented where there is more to say than on the type")]
impl Database {
    /// Connects to the database of a URL with default settings: see [`SqlSettings::from_url`].
    ///
    /// # Errors
    /// When the URL is invalid, or as [`connect`](Self::connect).
    pub async fn open(url: &str) -> Result<Self, DatabaseError> {
        Self::connect(SqlSettings::from_url(url)?).await
    }

    /// Connects to a database. Does not touch the schema: see [`migrate`](Self::migrate).
    ///
    /// # Errors
    /// When the database is unreachable, rejects the credentials, is too old or does not store text as UTF-8. Messages never
    /// contain the password.
    pub async fn connect(settings: SqlSettings) -> Result<Self, DatabaseError> {
        let pool = Pool::connect(&settings, Durability::Commit).await?;
        Ok(Database { pool, settings })
    }

    /// Closes all connections, waiting for those in use.
    pub async fn close(&self) {
        self.pool.close().await;
    }

    /// Applies all pending migrations and returns them. Safe to call on many nodes at once: one migrates, the others wait.
    ///
    /// # Errors
    /// When the schema is newer than this program, another node takes too long, or a migration fails.
    pub async fn migrate(&self) -> Result<Vec<Migration>, DatabaseError> {
        migrations::migrate(MigrationSet::CONFIGURATION, &self.pool, &self.settings).await
    }

    /// The migrations that [`migrate`](Self::migrate) would apply. Changes nothing.
    ///
    /// # Errors
    /// When the schema is newer than this program, or the query fails.
    pub async fn pending_migrations(&self) -> Result<Vec<Migration>, DatabaseError> {
        migrations::pending(MigrationSet::CONFIGURATION, &self.pool, &self.settings).await
    }

    /// The configuration version: incremented by every change.
    pub async fn version(&self) -> Result<u64, DatabaseError> {
        let mut transaction = self.pool.begin_snapshot().await?;
        let version = version::current(&mut transaction).await?;
        transaction.rollback().await?;
        Ok(version)
    }

    /// One item, if it exists.
    pub async fn get(&self, id: &ItemId) -> Result<Option<StoredItem>, DatabaseError> {
        list::get(&self.pool, id).await
    }

    /// A page of items of a kind, ordered by the bytes of their ids. `after` is the last id of the previous page. Returns at
    /// most `count_max` and at most [`ITEM_COUNT_MAX`] items.
    ///
    /// # Errors
    /// When `after` is of another kind, the query fails, or a row is corrupt.
    pub async fn list(
        &self,
        kind: ItemKind,
        filter: &ItemFilter,
        after: Option<&ItemId>,
        count_max: u32,
    ) -> Result<Vec<StoredItem>, DatabaseError> {
        list::list(&self.pool, kind, filter, after, count_max).await
    }

    /// Passes every item of one version to `each` and returns the version. Holds a few thousand rows in memory at a time.
    /// After an error, some items may have been passed on already.
    pub async fn load(&self, each: impl FnMut(StoredItem) + Send) -> Result<u64, DatabaseError> {
        list::load(&self.pool, each).await
    }

    /// What has changed since a version, in its current state, read at one version.
    pub async fn changes_since(&self, version: u64) -> Result<Changes, DatabaseError> {
        change_feed::since(&self.pool, version).await
    }

    /// A listener for notifications of changes.
    pub fn change_listener(&self) -> ChangeListener {
        ChangeListener::new(self.settings.clone())
    }

    /// Applies all edits in one transaction. Edits without effect are skipped; if none has an effect, the version stays. The
    /// audit log gets one entry per changed item, with `by` and `at_micros`.
    ///
    /// # Errors
    /// When a value cannot be stored, a precondition fails, an item occurs twice, or a query fails. Nothing is changed then,
    /// except possibly after [`DatabaseError::OutcomeUnknown`].
    pub async fn change(
        &self,
        by: &str,
        at_micros: u64,
        edits: &[ItemEdit],
    ) -> Result<AppliedChange, DatabaseError> {
        change::apply(&self.pool, None, Author { by, at_micros }, edits).await
    }

    /// Like [`change`](Self::change), but only if the configuration is at this version.
    ///
    /// # Errors
    /// As `change`, and [`DatabaseError::VersionConflict`] at another version.
    pub async fn change_at_version(
        &self,
        version: u64,
        by: &str,
        at_micros: u64,
        edits: &[ItemEdit],
    ) -> Result<AppliedChange, DatabaseError> {
        change::apply(&self.pool, Some(version), Author { by, at_micros }, edits).await
    }

    /// What [`change`](Self::change) would do. Writes nothing.
    pub async fn dry_run(&self, edits: &[ItemEdit]) -> Result<Vec<ItemChange>, DatabaseError> {
        change::dry_run(&self.pool, edits).await
    }

    /// Appends an event to the audit log and returns its version. Other nodes receive it like a change.
    ///
    /// # Errors
    /// When a value cannot be stored or a query fails. The event is not recorded then, except possibly after
    /// [`DatabaseError::OutcomeUnknown`].
    pub async fn record_event(
        &self,
        by: &str,
        at_micros: u64,
        event: &AuditEvent,
    ) -> Result<u64, DatabaseError> {
        change::record_event(&self.pool, Author { by, at_micros }, event).await
    }

    /// A page of the audit log, oldest first. `after` is the last id of the previous page, or 0. Returns at most `count_max` and
    /// at most [`AUDIT_COUNT_MAX`] entries.
    pub async fn audit(
        &self,
        filter: &AuditFilter,
        after: u64,
        count_max: u32,
    ) -> Result<Vec<AuditEntry>, DatabaseError> {
        audit::oldest_first(&self.pool, filter, after, count_max).await
    }

    /// A page of the audit log, newest first. `before` is the last id of the previous page.
    pub async fn audit_newest(
        &self,
        filter: &AuditFilter,
        before: Option<u64>,
        count_max: u32,
    ) -> Result<Vec<AuditEntry>, DatabaseError> {
        audit::newest_first(&self.pool, filter, before, count_max).await
    }

    /// Compares a fingerprint of the secret that hashes API keys with the one of the first node, or stores it. The fingerprint
    /// must not reveal the secret.
    pub async fn check_key_secret(&self, fingerprint: &[u8; 32]) -> Result<KeySecretCheck, DatabaseError> {
        key_secret::check(&self.pool, fingerprint).await
    }

    /// Compares a fingerprint with the stored one, and stores nothing. `None` if none is stored.
    pub async fn compare_key_secret(
        &self,
        fingerprint: &[u8; 32],
    ) -> Result<Option<KeySecretCheck>, DatabaseError> {
        key_secret::compare(&self.pool, fingerprint).await
    }

    /// Adds a batch to the totals in one transaction. Returns false if it was added before. Skips users without a quota and
    /// deleted keys. Requests of a day before a user's last one count only for the month, and only if it is still the current one.
    ///
    /// # Errors
    /// When a query fails. The same batch can be sent again after every error.
    pub async fn add_usage(&self, batch: &UsageBatch) -> Result<bool, DatabaseError> {
        usage::add(&self.pool, batch).await
    }

    /// The totals of these users, in no particular order. Users without totals are missing.
    pub async fn users_usage(&self, users: &[InTenant<'_, &str>]) -> Result<Vec<UserUsage>, DatabaseError> {
        usage::of_users(&self.pool, users).await
    }

    /// The totals of these keys, in no particular order. Keys without totals are missing.
    pub async fn keys_usage(&self, ids: &[&str]) -> Result<Vec<KeyUsage>, DatabaseError> {
        usage::of_keys(&self.pool, ids).await
    }
}
