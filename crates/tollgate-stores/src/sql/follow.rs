//! Following the changes of others: what has changed since a version, and hints that something has.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};

use super::Database;
use super::audit::AuditEntry;
use super::change::CHANNEL;
use super::engine::{Transaction, signed, unsigned, within};
use super::error::DatabaseError;
use super::items::{ItemId, Kind, Stored};
use super::query::{Query, Value};
use super::settings::{Options, SqlSettings};

/// The most entries of the trail that are followed one by one.
const FOLLOWED_MAX: usize = 10_000;
/// How long between attempts to listen again.
const RETRY: Duration = Duration::from_secs(1);
/// How long it may be silent before we ask whether anybody is there: a connection may be gone without a word.
const SILENCE: Duration = Duration::from_secs(30);

/// What has changed since a version.
#[derive(Clone, Debug, PartialEq)]
pub enum Changes {
    /// Nothing.
    None,
    /// These.
    Some {
        /// The version that is now.
        version: u64,
        /// Items that were changed, each once, as they are now; nothing for those that are gone.
        items: Vec<(ItemId, Option<Stored>)>,
        /// What was done besides, oldest first.
        acts: Vec<AuditEntry>,
    },
    /// More than is worth telling, or it cannot be told: the trail does not reach back that far, or the database has gone
    /// back behind that version. Load everything.
    TooMany,
}

impl Database {
    /// What has changed since a version, from the audit trail; the items as they are now, all at one version.
    ///
    /// # Errors
    /// When the database cannot be asked, or somebody else has written what cannot be read.
    pub async fn changes_since(&self, version: u64) -> Result<Changes, DatabaseError> {
        let mut transaction = self.pool.begin_snapshot().await?;
        let now = transaction.config_version().await?;
        let changes = match now.checked_sub(version) {
            Some(0) => Ok(Changes::None),
            None => Ok(Changes::TooMany),
            Some(count) => transaction.changes(version, now, count).await,
        };
        transaction.end().await?;
        changes
    }

    /// Hints that something has changed.
    pub fn hints(&self) -> Hints {
        let options = match self.settings.options() {
            Options::Postgres(options) => Some((**options).clone()),
            Options::Sqlite(_) | Options::MySql(_) => None,
        };
        Hints { options, settings: self.settings.clone(), listener: None }
    }
}

impl Transaction {
    async fn changes(&mut self, version: u64, now: u64, count: u64) -> Result<Changes, DatabaseError> {
        const WHAT: &str = "admin_audit";
        let since = signed(version, "version")?;
        let limit = i64::try_from(FOLLOWED_MAX + 1).unwrap_or(i64::MAX);
        let mut query = Query::new("SELECT version, kind, subject FROM admin_audit WHERE version > ");
        query.bind(Value::Int(since)).push(" ORDER BY version LIMIT ").bind(Value::Int(limit));
        let rows = self.rows(&query).await?;
        let (mut versions, mut seen, mut ids) = (HashSet::new(), HashSet::new(), Vec::new());
        for row in &rows {
            versions.insert(unsigned::<u64>(row.int(0)?, WHAT)?);
            let Some(kind) = Kind::parse(&row.text(1, WHAT)?) else { continue };
            let id = ItemId::parse(kind, &row.text(2, WHAT)?);
            let id = id.ok_or(DatabaseError::Corrupt { what: WHAT })?;
            if seen.insert(id.clone()) {
                ids.push(id);
            }
        }
        // Every version has an entry, unless the trail was cut.
        if rows.len() > FOLLOWED_MAX || versions.len() as u64 != count {
            return Ok(Changes::TooMany);
        }
        let acts = self.acts_since(since, limit).await?;
        let mut found: HashMap<ItemId, Stored> = self.find(&ids.iter().collect::<Vec<_>>()).await?;
        let items = ids.into_iter().map(|id| {
            let stored = found.remove(&id);
            (id, stored)
        });
        Ok(Changes::Some { version: now, items: items.collect(), acts })
    }
}

/// Hints that something has changed: only PostgreSQL gives any.
pub struct Hints {
    options: Option<PgConnectOptions>,
    settings: SqlSettings,
    listener: Option<PgListener>,
}

impl Hints {
    /// Resolves when something may have changed: PostgreSQL said so, or could not have said so for a while. Pends for ever
    /// on other engines. May be dropped and asked again.
    pub async fn next(&mut self) {
        let Some(options) = self.options.clone() else { return std::future::pending().await };
        loop {
            let Some(listener) = &mut self.listener else {
                match listen(options.clone(), &self.settings).await {
                    // What was said while nobody listened is not said again.
                    Ok(listener) => return self.listener = Some(listener),
                    Err(_) => tokio::time::sleep(RETRY).await,
                }
                continue;
            };
            match tokio::time::timeout(SILENCE, listener.try_recv()).await {
                Ok(Ok(Some(_))) => return,
                Ok(Ok(None) | Err(_)) => self.listener = None,
                Err(_) => {
                    let question = sqlx::query("SELECT 1").execute(&mut *listener);
                    if within(self.settings.connect_timeout, question).await.is_err() {
                        self.listener = None;
                    }
                }
            }
        }
    }
}

impl std::fmt::Debug for Hints {
    /// The driver's own options show the password.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Hints").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// Listens on a connection of its own: one of the pool's would be missing there, and close with it.
async fn listen(options: PgConnectOptions, settings: &SqlSettings) -> Result<PgListener, sqlx::Error> {
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .max_lifetime(None)
        .idle_timeout(None)
        .acquire_timeout(settings.connect_timeout)
        .connect_lazy_with(options);
    let listening = async {
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.eager_reconnect(false);
        listener.listen(CHANNEL).await?;
        Ok(listener)
    };
    within(settings.connect_timeout, listening).await
}
