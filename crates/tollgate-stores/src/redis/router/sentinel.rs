//! Sentinels say which server is the master; when they say another, the connection follows.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::{Client, FromRedisValue};
use tokio::time::timeout;
use tracing::{info, warn};

use super::super::error::Fault;
use super::super::link::Link;
use super::super::settings::{Address, Login, RedisSettings};
use super::Spot;

/// How often the sentinels are asked when nothing is amiss.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How often at most when something is.
const ASK_AGAIN: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_millis(500);

/// Follows the master.
pub(super) struct Watch {
    settings: RedisSettings,
    sentinels: Vec<Client>,
    master: String,
    spot: Arc<Spot>,
}

impl Watch {
    /// Until the sentinels have spoken there is no server to ask, and that is what callers are told.
    pub(super) fn new(
        settings: &RedisSettings,
        sentinels: &[Address],
        master: &str,
        login: &Login,
    ) -> Result<Self, Fault> {
        let misconfigured = |error: redis::RedisError| Fault::Misconfigured(error.to_string());
        let clients = sentinels.iter().map(|address| settings.client_with(address, login, 0));
        let clients = clients.collect::<Result<Vec<_>, _>>().map_err(misconfigured)?;
        Ok(Watch {
            settings: settings.clone(),
            sentinels: clients,
            master: master.to_owned(),
            spot: Spot::new(None),
        })
    }

    pub(super) fn spot(&self) -> Arc<Spot> {
        Arc::clone(&self.spot)
    }

    /// Asks again and again; sooner when calls fail.
    pub(super) async fn run(mut self) {
        loop {
            match self.ask().await {
                Some(address) if !self.follows(&address) => self.follow(&address),
                Some(_) => {}
                None => warn!(master = %self.master, "no sentinel says where the master is"),
            }
            let _ = timeout(ASK_EVERY, self.spot.doubted.notified()).await;
            tokio::time::sleep(ASK_AGAIN).await;
        }
    }

    fn follows(&self, address: &Address) -> bool {
        self.spot.link.load().as_ref().is_some_and(|link| link.name() == address.to_string())
    }

    fn follow(&self, address: &Address) {
        match Link::open(address, &self.settings) {
            Ok(link) => {
                info!(master = %self.master, server = %address, "counters are kept by this server now");
                // The first master is no change.
                if self.spot.link.swap(Some(Arc::new(link))).is_some() {
                    self.spot.generation.fetch_add(1, Ordering::Relaxed);
                }
            }
            Err(fault) => warn!(server = %address, ?fault, "the master cannot be reached"),
        }
    }

    /// The first sentinel that knows. It is asked first the next time.
    async fn ask(&mut self) -> Option<Address> {
        for position in 0..self.sentinels.len() {
            if let Ok(Some(address)) =
                timeout(PATIENCE, master_of(&self.sentinels[position], &self.master)).await
            {
                self.sentinels.swap(0, position);
                return Some(address);
            }
        }
        None
    }
}

async fn master_of(sentinel: &Client, master: &str) -> Option<Address> {
    let mut connection = sentinel.get_multiplexed_async_connection().await.ok()?;
    let mut command = redis::cmd("SENTINEL");
    command.arg("get-master-addr-by-name").arg(master);
    let answer = connection.send_packed_command(&command).await.ok()?;
    let (host, port): (String, u16) = Option::from_redis_value(answer).ok()??;
    Some(Address::Tcp { host, port })
}
