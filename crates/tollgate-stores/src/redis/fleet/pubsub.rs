//! Hears what other nodes say.
//!
//! On this connection nothing is asked, so that nobody would notice if it led nowhere. When nothing was said for a while
//! it is asked whether it is there.

use std::sync::Weak;
use std::time::Duration;

use futures_util::StreamExt;
use redis::aio::PubSub;
use redis::{RedisResult, Value};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use crate::redis::connection::server::Server;
use crate::redis::fleet::CHANNEL;
use crate::redis::random::jitter;
use crate::redis::script::keys;
use crate::redis::{ADMIN_TIMEOUT, Store};

/// How often a silent channel is looked at: whether it is still there, and whether the store is still used.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How long the answer to a question may take. What other nodes say is waited for all the same.
const PING_PATIENCE: Duration = Duration::from_secs(2);

/// Hears what other nodes say; when the connection is lost, makes another.
pub(crate) async fn listen(store: Weak<Store>) {
    // What was told already, so that each reason is told once.
    let mut told = None;
    loop {
        let Some(strong) = store.upgrade() else { return };
        let (server, connect_timeout) = (strong.shards.server(strong.home()), strong.connect_timeout);
        drop(strong);
        if let Some(server) = server {
            let (name, hints) = (server.name().to_owned(), subscribe(&server, connect_timeout).await);
            // A server that is replaced is let go.
            drop(server);
            match hints {
                Ok(hints) => {
                    info!("listening for changes by other nodes");
                    told = None;
                    store.upgrade().inspect(|store| store.resets.note_hearing());
                    let heeded = heed(hints, &name, &store).await;
                    if heeded.is_none() {
                        return;
                    }
                    store.upgrade().inspect(|store| store.resets.note_hearing());
                    warn!("no longer hear of changes by other nodes at once; connecting again");
                }
                Err(reason) if told.as_ref() != Some(&reason) => {
                    warn!(
                        reason,
                        "changes by other nodes are heard of later: their channel cannot be listened to"
                    );
                    told = Some(reason);
                }
                Err(_) => {}
            }
        }
        sleep(Duration::from_millis(100) + jitter(Duration::from_millis(900))).await;
    }
}

async fn subscribe(server: &Server, connect_timeout: Duration) -> Result<PubSub, String> {
    let dialling = server.dialling();
    let _permit = dialling.acquire().await;
    let mut hints = within(connect_timeout, server.client().get_async_pubsub()).await?;
    within(ADMIN_TIMEOUT, hints.subscribe(keys::shared(CHANNEL))).await?;
    Ok(hints)
}

async fn within<T>(patience: Duration, asked: impl Future<Output = RedisResult<T>>) -> Result<T, String> {
    match timeout(patience, asked).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err("no answer in time".to_owned()),
    }
}

/// Heeds messages until the connection is lost, or another server has taken over. Nothing once the store is gone.
async fn heed(hints: PubSub, server: &str, store: &Weak<Store>) -> Option<()> {
    let (mut asks, mut messages) = hints.split();
    loop {
        match timeout(LOOK_EVERY, messages.next()).await {
            Ok(Some(message)) => {
                store.upgrade()?.heed(&message.get_payload::<String>().unwrap_or_default());
            }
            Ok(None) => return Some(()),
            Err(_) => {
                let strong = store.upgrade()?;
                if strong.shards.server_changed(strong.home(), server) {
                    return Some(());
                }
                drop(strong);
                let answer = timeout(PING_PATIENCE, asks.ping::<Value>()).await;
                if !matches!(answer, Ok(Ok(_))) {
                    return Some(());
                }
            }
        }
    }
}
