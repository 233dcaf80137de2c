//! Notifications of changes: PostgreSQL `LISTEN`/`NOTIFY`.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::engine::with_deadline;
use super::settings::{Options, SqlSettings};

/// The `NOTIFY` channel of changes.
pub(super) const CHANNEL: &str = "tollgate_config";
/// Pause before reconnecting.
const RETRY: Duration = Duration::from_secs(1);
/// A connection without notifications is probed after this time: it may be half open.
const PROBE_AFTER: Duration = Duration::from_secs(30);

/// Notifications that the configuration may have changed. Only PostgreSQL sends any.
#[derive(Debug)]
pub struct ChangeListener {
    settings: SqlSettings,
    /// Coalesces all notifications since the last [`changed`](Self::changed).
    notified: Arc<Notify>,
    /// A task of its own, so that notifications are received while nothing awaits them.
    task: Option<JoinHandle<()>>,
}

impl ChangeListener {
    pub(super) fn new(settings: SqlSettings) -> Self {
        ChangeListener { settings, notified: Arc::default(), task: None }
    }

    /// Resolves after a notification, and after every (re)connect, when notifications may have been missed. Never resolves on
    /// other engines. Cancel safe: no notification is lost.
    pub async fn changed(&mut self) {
        let Options::Postgres(options) = self.settings.options() else { return std::future::pending().await };
        if self.task.is_none() {
            let listen = listen((**options).clone(), self.settings.connect_timeout, self.notified.clone());
            self.task = Some(tokio::spawn(listen));
        }
        self.notified.notified().await;
    }
}

impl Drop for ChangeListener {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

async fn listen(options: PgConnectOptions, deadline: Duration, notified: Arc<Notify>) {
    loop {
        if let Ok(mut listener) = connect(options.clone(), deadline).await {
            notified.notify_one(); // notifications sent while disconnected are lost
            while receive(&mut listener, deadline, &notified).await {}
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// Uses a connection of its own: the pool may have none to spare.
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
    with_deadline(deadline, listening).await
}

/// Waits for one notification; returns whether the connection is still usable.
async fn receive(listener: &mut PgListener, deadline: Duration, notified: &Notify) -> bool {
    match tokio::time::timeout(PROBE_AFTER, listener.try_recv()).await {
        Ok(Ok(Some(_))) => {
            notified.notify_one();
            true
        }
        Ok(Ok(None) | Err(_)) => false,
        Err(_) => with_deadline(deadline, sqlx::query("SELECT 1").execute(listener)).await.is_ok(),
    }
}
