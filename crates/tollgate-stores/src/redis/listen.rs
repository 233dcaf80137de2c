//! Hears what other nodes say.

use std::sync::Weak;
use std::time::Duration;

use futures_util::StreamExt;
use redis::Client;
use redis::aio::PubSub;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::fleet::CHANNEL;
use super::random::jitter;
use super::{ADMIN_TIMEOUT, Store, keys};

/// How often a silent channel is looked at, so that a store that is no longer used is let go.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Hears what other nodes say; when the connection is lost, makes another.
pub(super) async fn listen(store: Weak<Store>) {
    // What was told already, so that each reason is told once.
    let mut told = None;
    loop {
        let Some(strong) = store.upgrade() else { return };
        let client = strong.router.client(strong.home());
        drop(strong);
        if let Some(client) = client {
            match subscribe(&client).await {
                Ok(hints) => {
                    info!("listening for changes by other nodes");
                    told = None;
                    if heed(hints, &client, &store).await.is_none() {
                        return;
                    }
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

async fn subscribe(client: &Client) -> Result<PubSub, String> {
    let subscribed = async {
        let mut hints = client.get_async_pubsub().await?;
        hints.subscribe(keys::shared(CHANNEL)).await?;
        Ok(hints)
    };
    match timeout(ADMIN_TIMEOUT, subscribed).await {
        Ok(Ok(hints)) => Ok(hints),
        Ok(Err(error)) => Err(redis::RedisError::to_string(&error)),
        Err(_) => Err("no answer in time".to_owned()),
    }
}

/// Heeds messages until the connection is lost, or another server has taken over. Nothing once the store is gone.
async fn heed(mut hints: PubSub, client: &Client, store: &Weak<Store>) -> Option<()> {
    let mut messages = hints.on_message();
    loop {
        let next = timeout(LOOK_EVERY, messages.next()).await;
        let store = store.upgrade()?;
        match next {
            Ok(Some(message)) => store.heed(&message.get_payload::<String>().unwrap_or_default()),
            Ok(None) => return Some(()),
            Err(_) if store.router.client_changed(store.home(), client) => return Some(()),
            Err(_) => {}
        }
    }
}
