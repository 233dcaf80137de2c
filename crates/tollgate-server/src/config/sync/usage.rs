//! Adds usage totals to the database, and closes it when the process ends.

use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};

use super::SyncParts;
use super::task::save_snapshot;

/// How often usage is added to the database.
const FLUSH_EVERY: Duration = Duration::from_secs(10);
/// How often the amount of usage is checked in between.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// How long the end of the process waits for the database.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// Adds usage to the database, forever.
pub(crate) async fn flush_usage(parts: SyncParts) {
    read_spool(&parts).await;
    let checks = FLUSH_EVERY.as_secs() / CHECK_EVERY.as_secs();
    for check in 1_u64.. {
        tokio::time::sleep(CHECK_EVERY).await;
        if check % checks == 0 || parts.limiter.records().usage.is_filling_up() {
            flush(&parts).await;
        }
    }
}

/// Reads the usage that the previous process saved to disk.
async fn read_spool(parts: &SyncParts) {
    let reader = Arc::clone(&parts.data_dir);
    let spooled = tokio::task::spawn_blocking(move || reader.usage()).await.ok().flatten();
    let Some(spooled) = spooled else { return };
    if !parts.sync.flusher.lock().await.load(&spooled) {
        warn!("dropping saved usage that cannot be parsed");
        parts.data_dir.store_usage(None);
    }
}

/// Adds all usage. Returns whether it succeeded.
async fn flush(parts: &SyncParts) -> bool {
    let Ok(database) = parts.sync.database() else { return false };
    let mut flusher = parts.sync.flusher.lock().await;
    let is_stored = flusher.flush(&parts.limiter.records().usage, &database).await;
    if is_stored && std::mem::take(&mut flusher.has_loaded_file) {
        let data_dir = Arc::clone(&parts.data_dir);
        let _ = tokio::task::spawn_blocking(move || data_dir.store_usage(None)).await;
    }
    is_stored
}

/// Adds the remaining usage to the database, or saves it to disk; saves the configuration; closes the database.
pub(crate) async fn close(parts: &SyncParts) {
    let stored = tokio::time::timeout(CLOSE_TIMEOUT, flush(parts)).await;
    if stored != Ok(true) {
        let left = match tokio::time::timeout(CLOSE_TIMEOUT, parts.sync.flusher.lock()).await {
            Ok(mut flusher) => flusher.unsent(&parts.limiter.records().usage),
            Err(_) => None,
        };
        if let Some(left) = left {
            info!(bytes = left.len(), "the database is unreachable, saving usage to disk");
            let data_dir = Arc::clone(&parts.data_dir);
            let _ = tokio::task::spawn_blocking(move || data_dir.store_usage(Some(&left))).await;
        }
    }
    if parts.sync.has_keys() {
        save_snapshot(parts).await;
    }
    if let Ok(database) = parts.sync.database() {
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, database.close()).await;
    }
}
