//! The task that tells the database how much users and keys have asked, and the end of the process.

use std::sync::Arc;
use std::time::Duration;

use tollgate_stores::sql::ItemId;
use tracing::{info, warn};

use super::follow;
use crate::app::App;
use crate::runtime::data_dir::DataDir;

/// How often what was counted is added to the database.
const FLUSH_EVERY: Duration = Duration::from_secs(10);
/// How often it is looked whether there is too much to wait that long.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long the end of the process waits for the database.
const CLOSE_PATIENCE: Duration = Duration::from_secs(3);

/// Adds what was counted to the database, again and again.
pub(crate) async fn flush_usage(app: Arc<App>, data_dir: Arc<DataDir>) {
    take_up(&app, &data_dir).await;
    let looks = FLUSH_EVERY.as_secs() / LOOK_EVERY.as_secs();
    for look in 1_u64.. {
        tokio::time::sleep(LOOK_EVERY).await;
        if look % looks == 0 || app.usage().is_filling_up() {
            flush(&app, &data_dir).await;
        }
    }
}

/// What the last process has left goes first.
async fn take_up(app: &App, data_dir: &Arc<DataDir>) {
    let reader = Arc::clone(data_dir);
    let left = tokio::task::spawn_blocking(move || reader.usage()).await.ok().flatten();
    let Some(left) = left else { return };
    if !app.config_sync().flusher.lock().await.take_up(&left) {
        warn!("what users and keys had asked before the last end cannot be read, and is dropped");
        data_dir.keep_usage(None);
    }
}

/// Sends what there is; whether all of it arrived.
async fn flush(app: &App, data_dir: &Arc<DataDir>) -> bool {
    let Ok(database) = app.config_sync().database() else { return false };
    let mut flusher = app.config_sync().flusher.lock().await;
    let arrived = flusher.flush(app.usage(), &database, |user| stored_as(app, user)).await;
    if arrived && flusher.has_taken_up() {
        flusher.forget_taken_up();
        let data_dir = Arc::clone(data_dir);
        let _ = tokio::task::spawn_blocking(move || data_dir.keep_usage(None)).await;
    }
    arrived
}

/// A user as the database knows it, where it was written before spellings were folded.
fn stored_as(app: &App, user: String) -> String {
    let (id, rules) = (ItemId::Quota(user), app.limiter().rules());
    app.config_sync().stored_as(&id, rules.normalization()).to_string()
}

/// Before the process ends: usage goes into the database, or else to disk, and the configuration in force to disk.
pub(crate) async fn close(app: &Arc<App>, data_dir: &Arc<DataDir>) {
    let all_arrived = tokio::time::timeout(CLOSE_PATIENCE, flush(app, data_dir)).await;
    if all_arrived != Ok(true) {
        let left = match tokio::time::timeout(CLOSE_PATIENCE, app.config_sync().flusher.lock()).await {
            Ok(mut flusher) => flusher.left(app.usage(), |user| stored_as(app, user)),
            Err(_) => None,
        };
        if let Some(left) = left {
            info!(
                bytes = left.len(),
                "the database was not told what users and keys have asked: it is kept on disk"
            );
            let data_dir = Arc::clone(data_dir);
            let _ = tokio::task::spawn_blocking(move || data_dir.keep_usage(Some(&left))).await;
        }
    }
    if app.config_sync().has_keys() {
        follow::save(app, data_dir).await;
    }
    if let Ok(database) = app.config_sync().database() {
        let _ = tokio::time::timeout(CLOSE_PATIENCE, database.close()).await;
    }
}
