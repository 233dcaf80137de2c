//! Subscribes to the messages of other nodes.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use redis::aio::PubSub;
use redis::{RedisResult, Value};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::Fleet;
use super::resets::Resets;
use crate::redis::connection::random::jitter;
use crate::redis::connection::server::Server;
use crate::redis::script::keys;
use crate::redis::topology::{ADMIN_TIMEOUT_MIN, CHANNEL, ShardMap};

/// A subscription without messages for this long is checked with a `PING`: nothing else would reveal a dead connection.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
const PING_TIMEOUT: Duration = Duration::from_secs(2);
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_JITTER: Duration = Duration::from_millis(900);

/// Receives the messages of other nodes.
pub(crate) struct Subscriber {
    shards: Arc<ShardMap>,
    fleet: Arc<Fleet>,
    resets: Arc<Resets>,
    connect_timeout: Duration,
    /// The last reason logged for a failed subscription.
    logged: Option<String>,
}

impl Subscriber {
    pub(crate) fn new(
        shards: Arc<ShardMap>,
        fleet: Arc<Fleet>,
        resets: Arc<Resets>,
        connect_timeout: Duration,
    ) -> Self {
        Subscriber { shards, fleet, resets, connect_timeout, logged: None }
    }

    /// Subscribes, and subscribes again when the connection is lost, until stopped.
    pub(crate) async fn run(mut self) {
        loop {
            if let Some(server) = self.shards.server(self.shards.home()) {
                let (name, subscription) = (server.name().to_owned(), self.subscribe(&server).await);
                // A server that is replaced must be closed.
                drop(server);
                match subscription {
                    Ok(messages) => self.receive_all(messages, &name).await,
                    Err(reason) => self.log_failure(reason),
                }
            }
            sleep(RETRY_MIN + jitter(RETRY_JITTER)).await;
        }
    }

    async fn subscribe(&self, server: &Server) -> Result<PubSub, String> {
        let dialing = server.dialing();
        let _permit = dialing.acquire().await;
        let mut messages = within(self.connect_timeout, server.client().get_async_pubsub()).await?;
        within(ADMIN_TIMEOUT_MIN, messages.subscribe(keys::shared(CHANNEL))).await?;
        Ok(messages)
    }

    async fn receive_all(&mut self, messages: PubSub, server: &str) {
        info!("redis: subscribed to changes of other nodes");
        self.logged = None;
        self.resets.toggle_subscription();
        self.receive_until_lost(messages, server).await;
        self.resets.toggle_subscription();
        warn!("redis: subscription lost; changes of other nodes take effect later until it is restored");
    }

    /// Handles messages until the connection is lost or another server has taken over.
    async fn receive_until_lost(&self, messages: PubSub, server: &str) {
        let (mut sink, mut messages) = messages.split();
        loop {
            match timeout(CHECK_INTERVAL, messages.next()).await {
                Ok(Some(message)) => {
                    self.fleet.receive(&message.get_payload::<String>().unwrap_or_default());
                }
                Ok(None) => return,
                Err(_) => {
                    let current = self.shards.server(self.shards.home());
                    if current.is_some_and(|current| current.name() != server) {
                        return;
                    }
                    let pong = timeout(PING_TIMEOUT, sink.ping::<Value>()).await;
                    if !matches!(pong, Ok(Ok(_))) {
                        return;
                    }
                }
            }
        }
    }

    /// Logs each reason once.
    fn log_failure(&mut self, reason: String) {
        if self.logged.as_ref() != Some(&reason) {
            warn!(reason, "redis: cannot subscribe; changes of other nodes take effect later");
            self.logged = Some(reason);
        }
    }
}

async fn within<T>(patience: Duration, call: impl Future<Output = RedisResult<T>>) -> Result<T, String> {
    match timeout(patience, call).await {
        Ok(reply) => reply.map_err(|error| error.to_string()),
        Err(_) => Err("no reply in time".to_owned()),
    }
}
