//! Follows the master that Redis Sentinel names.
//!
//! Normally one sentinel is asked. If its answer differs from the master in use, or the master is suspect, all sentinels
//! are asked and the server with the most votes that has the role of a master is used: a sentinel cut off from the others
//! keeps naming the old one.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use redis::{AsyncConnectionConfig, Client, FromRedisValue, Value};
use tokio::time::timeout;
use tracing::{info, warn};

use super::{CurrentMaster, majority_rejection};
use crate::redis::connection::dial::{CHECK_LOGIN, explain};
use crate::redis::connection::error::Fault;
use crate::redis::connection::server::Server;
use crate::redis::settings::{Address, Login, RedisSettings};

const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum pause between polls when calls fail.
const POLL_PAUSE: Duration = Duration::from_millis(100);
/// Timeout of a query on an open connection.
const QUERY_TIMEOUT: Duration = Duration::from_millis(500);
const CHECK_SENTINEL_LOGIN: &str = "check counters.sentinel_user and counters.sentinel_password";

/// Follows the master.
pub(super) struct MasterWatcher {
    settings: RedisSettings,
    sentinels: Vec<Client>,
    master: String,
    current: Arc<CurrentMaster>,
    /// The last reason logged for an unknown master.
    logged: Option<String>,
}

impl MasterWatcher {
    pub(super) fn new(
        settings: &RedisSettings,
        sentinels: &[Address],
        master: &str,
        login: &Login,
    ) -> Result<Self, Fault> {
        let clients = sentinels.iter().map(|address| settings.client_with(address, login, 0));
        let clients = clients.collect::<Result<Vec<_>, _>>();
        Ok(MasterWatcher {
            settings: settings.clone(),
            sentinels: clients.map_err(|error| Fault::misconfigured(error.to_string()))?,
            master: master.to_owned(),
            current: CurrentMaster::new(None),
            logged: None,
        })
    }

    pub(super) fn current(&self) -> Arc<CurrentMaster> {
        Arc::clone(&self.current)
    }

    pub(super) async fn run(mut self) {
        let mut doubted = true;
        loop {
            if doubted || !self.is_confirmed().await {
                self.find_master().await;
            }
            doubted = timeout(POLL_INTERVAL, self.current.doubted.notified()).await.is_ok();
            tokio::time::sleep(POLL_PAUSE).await;
        }
    }

    /// Whether the first sentinel names the master in use and its calls succeed.
    async fn is_confirmed(&self) -> bool {
        let server = self.current.server.load_full().filter(|server| !server.is_suspect());
        let (Some(server), Some(first)) = (server, self.sentinels.first()) else { return false };
        matches!(self.named_by(first).await, Ok(address) if address.to_string() == server.name())
    }

    async fn find_master(&mut self) {
        let answers = join_all(self.sentinels.iter().map(|sentinel| self.named_by(sentinel))).await;
        let mut candidates: Vec<(usize, &Address)> = Vec::new();
        for address in answers.iter().flatten() {
            match candidates.iter_mut().find(|(_, known)| *known == address) {
                Some((votes, _)) => *votes += 1,
                None => candidates.push((1, address)),
            }
        }
        // A stable sort: on a tie the first one named wins.
        candidates.sort_by_key(|(votes, _)| std::cmp::Reverse(*votes));
        let mut found = None;
        for (_, address) in &candidates {
            if self.is_master(address).await {
                found = Some(*address);
                break;
            }
        }
        // Without a master so far, an unreachable candidate is better than none: it is dialed, and reported as missing.
        let has_master = self.current.server.load().is_some();
        let found = found.or_else(|| candidates.first().map(|(_, address)| *address).filter(|_| !has_master));
        if let Some(address) = found {
            if !self.is_current(address) {
                self.switch_to(address);
            }
            let naming = answers.iter().position(|answer| answer.as_ref() == Ok(address));
            self.sentinels.swap(0, naming.unwrap_or(0));
        }
        self.note_errors(&answers);
    }

    /// The master that a sentinel names.
    async fn named_by(&self, sentinel: &Client) -> Result<Address, Fault> {
        let master = &self.master;
        let mut command = redis::cmd("SENTINEL");
        command.arg("get-master-addr-by-name").arg(master);
        let reply = query(sentinel, &command, self.settings.connect_timeout, CHECK_SENTINEL_LOGIN).await;
        let reply = match reply {
            Err(fault @ Fault::Misconfigured(_)) if fault.to_string().contains("unknown command") => {
                let hint = "the server is no sentinel; check counters.nodes and counters.topology";
                return Err(Fault::misconfigured(format!("{fault}: {hint}")));
            }
            reply => reply?,
        };
        match Option::<(String, u16)>::from_redis_value(reply) {
            Ok(Some((host, port))) => Ok(Address::Tcp { host, port }),
            Ok(None) => Err(Fault::misconfigured(format!(
                "the sentinels know no master {master:?}; check counters.sentinel_master"
            ))),
            Err(_) => Err(Fault::misconfigured("unexpected reply of a sentinel to get-master-addr-by-name")),
        }
    }

    fn is_current(&self, address: &Address) -> bool {
        self.current.server.load().as_ref().is_some_and(|server| server.name() == address.to_string())
    }

    /// Whether a server has the role of a master. One that does not permit the query is assumed to.
    async fn is_master(&self, address: &Address) -> bool {
        let role = redis::cmd("ROLE");
        let known = self.current.server.load_full().filter(|server| server.name() == address.to_string());
        let reply = if let Some(server) = known {
            server.query(&role, QUERY_TIMEOUT).await
        } else {
            let Ok(client) = self.settings.client(address) else { return false };
            query(&client, &role, self.settings.connect_timeout, CHECK_LOGIN).await
        };
        match reply {
            Ok(Value::Array(items)) => {
                matches!(items.first(), Some(Value::BulkString(name)) if name == b"master")
            }
            Ok(_) | Err(Fault::Misconfigured(_)) => true,
            Err(_) => false,
        }
    }

    fn switch_to(&self, address: &Address) {
        match Server::open(address, &self.settings) {
            Ok(server) => {
                info!(master = %self.master, server = %address, "redis: using this master");
                if self.current.server.swap(Some(Arc::new(server))).is_some() {
                    self.current.changed.store(true, Ordering::Relaxed);
                }
            }
            Err(fault) => warn!(server = %address, reason = %fault, "redis: cannot connect to the master"),
        }
    }

    /// Reports why no sentinel names a master; logs each reason once.
    fn note_errors(&mut self, answers: &[Result<Address, Fault>]) {
        if answers.iter().any(Result::is_ok) {
            self.current.error.store(None);
            self.logged = None;
            return;
        }
        let faults = answers.iter().filter_map(|answer| answer.as_ref().err());
        let rejections: Vec<Fault> =
            faults.clone().filter(|fault| matches!(fault, Fault::Misconfigured(_))).cloned().collect();
        let reason = rejections.first().or(answers.first().and_then(|answer| answer.as_ref().err()));
        let reason = reason.map(Fault::to_string).unwrap_or_default();
        if self.logged.as_ref() != Some(&reason) {
            warn!(master = %self.master, reason, "redis: no sentinel names the master");
            self.logged = Some(reason);
        }
        self.current.error.store(majority_rejection(&rejections, self.sentinels.len()));
    }
}

/// Runs one query on a connection of its own.
async fn query(
    client: &Client,
    command: &redis::Cmd,
    connect_timeout: Duration,
    check: &str,
) -> Result<Value, Fault> {
    let config =
        AsyncConnectionConfig::new().set_connection_timeout(Some(connect_timeout)).set_response_timeout(None);
    let mut connection = match client.get_multiplexed_async_connection_with_config(&config).await {
        Ok(connection) => connection,
        Err(error) => return Err(explained(client, &error, check).await),
    };
    match timeout(QUERY_TIMEOUT, connection.send_packed_command(command)).await {
        Ok(Ok(Value::ServerError(error))) => Err(Fault::from_server(&error)),
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(explained(client, &error, check).await),
        Err(_) => Err(Fault::NoReply),
    }
}

/// The fault of a failed connection, with its reason.
async fn explained(client: &Client, error: &redis::RedisError, check: &str) -> Fault {
    let error = explain(client, error, check).await;
    if error.fault == Fault::NotSent { Fault::Unavailable(error.message) } else { error.fault }
}
