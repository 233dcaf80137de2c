//! Hints that something has changed: PostgreSQL tells those who listen.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::Database;
use super::change::CHANNEL;
use super::engine::within;
use super::settings::{Options, SqlSettings};

/// How long between attempts to listen again.
const RETRY: Duration = Duration::from_secs(1);
/// How long it may be silent before we ask whether anybody is there: a connection may be gone without a word.
const SILENCE: Duration = Duration::from_secs(30);

/// Hints that something has changed: only PostgreSQL gives any.
pub struct ChangeListener {
    settings: SqlSettings,
    /// One hint stands for all that came since the last was taken.
    heard: Arc<Notify>,
    /// Who listens. A task of its own, so that it goes on when nobody waits for a hint.
    listening: Option<JoinHandle<()>>,
}

impl Database {
    /// Hints that something has changed.
    pub fn change_listener(&self) -> ChangeListener {
        ChangeListener { settings: self.settings.clone(), heard: Arc::default(), listening: None }
    }
}

impl ChangeListener {
    /// Resolves when something may have changed: PostgreSQL said so, or nobody listened for a while, as before the first
    /// call. Pends for ever on other engines. May be dropped and called again: no hint is lost.
    pub async fn changed(&mut self) {
        let Options::Postgres(options) = self.settings.options() else { return std::future::pending().await };
        if self.listening.is_none() {
            let listening = listen((**options).clone(), self.settings.connect_timeout, self.heard.clone());
            self.listening = Some(tokio::spawn(listening));
        }
        self.heard.notified().await;
    }
}

impl Drop for ChangeListener {
    fn drop(&mut self) {
        if let Some(listening) = &self.listening {
            listening.abort();
        }
    }
}

impl fmt::Debug for ChangeListener {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ChangeListener").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// Listens, for ever.
async fn listen(options: PgConnectOptions, deadline: Duration, heard: Arc<Notify>) {
    loop {
        if let Ok(mut listener) = connect(options.clone(), deadline).await {
            heard.notify_one(); // what was said while nobody listened is not said again
            while goes_on(&mut listener, deadline, &heard).await {}
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// On a connection of its own: one of the pool's would be missing there.
async fn connect(options: PgConnectOptions, deadline: Duration) -> Result<PgListener, sqlx::Error> {
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .max_lifetime(None)
        .idle_timeout(None)
        .acquire_timeout(deadline)
        .connect_lazy_with(options);
    let listening = async {
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.eager_reconnect(false);
        listener.listen(CHANNEL).await?;
        Ok(listener)
    };
    within(deadline, listening).await
}

/// Waits for one hint; whether the connection is good for more.
async fn goes_on(listener: &mut PgListener, deadline: Duration, heard: &Notify) -> bool {
    match tokio::time::timeout(SILENCE, listener.try_recv()).await {
        Ok(Ok(Some(_))) => {
            heard.notify_one();
            true
        }
        Ok(Ok(None) | Err(_)) => false,
        Err(_) => within(deadline, sqlx::query("SELECT 1").execute(listener)).await.is_ok(),
    }
}
