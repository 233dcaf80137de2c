//! Sentinels say which server is the master; when they say another, the connection follows.
//!
//! Usually one of them is asked. If the server it names is doubted, or is not the one in use, all of them are, and the
//! server that most of them name and that takes itself for a master is followed: a sentinel that was cut off from the
//! others names the old one for ever.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use redis::{AsyncConnectionConfig, Client, FromRedisValue, Value};
use tokio::time::timeout;
use tracing::{info, warn};

use super::{CurrentMaster, refusal_of_most};
use crate::redis::connection::dial::explain;
use crate::redis::connection::error::Fault;
use crate::redis::connection::server::Server;
use crate::redis::settings::{Address, Login, RedisSettings};

/// How often the sentinels are asked when nothing is amiss.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How often at most when something is.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// How long the answer to a question may take, once there is a connection.
const PATIENCE: Duration = Duration::from_millis(500);

/// Follows the master.
pub(crate) struct Watch {
    settings: RedisSettings,
    sentinels: Vec<Client>,
    master: String,
    spot: Arc<CurrentMaster>,
    /// What was last told of sentinels that do not know, so that it is told once.
    told: Option<String>,
}

impl Watch {
    /// Until the sentinels have spoken there is no server to ask, and that is what callers are told.
    pub(crate) fn new(
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
            spot: CurrentMaster::new(None),
            told: None,
        })
    }

    pub(crate) fn spot(&self) -> Arc<CurrentMaster> {
        Arc::clone(&self.spot)
    }

    /// Asks again and again; sooner when calls fail.
    pub(crate) async fn run(mut self) {
        let mut doubted = true;
        loop {
            if doubted || !self.is_confirmed().await {
                self.look_for_master().await;
            }
            doubted = timeout(ASK_EVERY, self.spot.doubted.notified()).await.is_ok();
            tokio::time::sleep(ASK_AGAIN).await;
        }
    }

    /// Whether the first sentinel names the server in use, and nothing speaks against that.
    async fn is_confirmed(&self) -> bool {
        let Some(server) = self.spot.server.load_full().filter(|server| !server.is_doubted()) else {
            return false;
        };
        let Some(first) = self.sentinels.first() else { return false };
        matches!(self.named_by(first).await, Ok(address) if address.to_string() == server.name())
    }

    /// Asks all sentinels, and follows the server that most of them name if it takes itself for a master.
    async fn look_for_master(&mut self) {
        let answers = join_all(self.sentinels.iter().map(|sentinel| self.named_by(sentinel))).await;
        let mut named: Vec<(usize, &Address)> = Vec::new();
        for address in answers.iter().flatten() {
            match named.iter_mut().find(|(_, known)| *known == address) {
                Some((votes, _)) => *votes += 1,
                None => named.push((1, address)),
            }
        }
        // Stable: of those with as many votes the first one named.
        named.sort_by_key(|(votes, _)| std::cmp::Reverse(*votes));
        let mut found = None;
        for (_, address) in &named {
            if self.is_master(address).await {
                found = Some(*address);
                break;
            }
        }
        // Better one that does not answer than none: it is dialled, and it is known which one is missing.
        let known = self.spot.server.load().is_some();
        let found = found.or_else(|| named.first().map(|(_, address)| *address).filter(|_| !known));
        if let Some(address) = found {
            if !self.follows(address) {
                self.follow(address);
            }
            let naming = answers.iter().position(|answer| answer.as_ref() == Ok(address));
            self.sentinels.swap(0, naming.unwrap_or(0));
        }
        self.note_refusals(&answers);
    }

    /// The master that a sentinel names.
    async fn named_by(&self, sentinel: &Client) -> Result<Address, Fault> {
        let master = &self.master;
        let mut command = redis::cmd("SENTINEL");
        command.arg("get-master-addr-by-name").arg(master);
        let answer = match ask(sentinel, &command, self.settings.connect_timeout).await {
            Err(Fault::Misconfigured(reason)) if reason.contains("unknown command") => {
                let words =
                    "this server is no sentinel: nodes must name sentinels, or topology must be another";
                return Err(Fault::Misconfigured(format!("{reason}: {words}")));
            }
            answer => answer?,
        };
        match Option::<(String, u16)>::from_redis_value(answer) {
            Ok(Some((host, port))) => Ok(Address::Tcp { host, port }),
            Ok(None) => Err(Fault::Misconfigured(format!(
                "the sentinels know no master {master:?}: see sentinel_master"
            ))),
            Err(_) => {
                Err(Fault::Misconfigured("a sentinel answered something else than an address".to_owned()))
            }
        }
    }

    fn follows(&self, address: &Address) -> bool {
        self.spot.server.load().as_ref().is_some_and(|server| server.name() == address.to_string())
    }

    /// Whether a server says that it is a master. One that we may not ask counts as one.
    async fn is_master(&self, address: &Address) -> bool {
        let role = redis::cmd("ROLE");
        let known = self.spot.server.load_full().filter(|server| server.name() == address.to_string());
        let answer = if let Some(server) = known {
            server.ask_aside(&role, PATIENCE).await
        } else {
            let Ok(client) = self.settings.client(address) else { return false };
            ask(&client, &role, self.settings.connect_timeout).await
        };
        match answer {
            Ok(Value::Array(items)) => {
                matches!(items.first(), Some(Value::BulkString(name)) if name == b"master")
            }
            Ok(_) | Err(Fault::Misconfigured(_)) => true,
            Err(_) => false,
        }
    }

    fn follow(&self, address: &Address) {
        match Server::open(address, &self.settings) {
            Ok(server) => {
                info!(master = %self.master, server = %address, "counters are kept by this server now");
                // The first master is no change.
                if self.spot.server.swap(Some(Arc::new(server))).is_some() {
                    self.spot.changed.store(true, Ordering::Relaxed);
                }
            }
            Err(fault) => warn!(server = %address, ?fault, "the master cannot be reached"),
        }
    }

    /// Keeps in mind why no sentinel names a master, and tells each reason once.
    fn note_refusals(&mut self, answers: &[Result<Address, Fault>]) {
        if answers.iter().any(Result::is_ok) {
            self.spot.trouble.store(None);
            self.told = None;
            return;
        }
        let faults = answers.iter().filter_map(|answer| answer.as_ref().err());
        let refusals: Vec<Fault> =
            faults.clone().filter(|fault| matches!(fault, Fault::Misconfigured(_))).cloned().collect();
        let reason = refusals.first().or(answers.first().and_then(|answer| answer.as_ref().err()));
        let reason = reason.map(Fault::words).unwrap_or_default();
        if self.told.as_ref() != Some(&reason) {
            warn!(master = %self.master, reason, "no sentinel says where the master is");
            self.told = Some(reason);
        }
        self.spot.trouble.store(refusal_of_most(&refusals, self.sentinels.len()));
    }
}

/// One question on a connection of its own.
async fn ask(client: &Client, command: &redis::Cmd, connect_timeout: Duration) -> Result<Value, Fault> {
    let config =
        AsyncConnectionConfig::new().set_connection_timeout(Some(connect_timeout)).set_response_timeout(None);
    let mut connection = match client.get_multiplexed_async_connection_with_config(&config).await {
        Ok(connection) => connection,
        Err(error) => return Err(fault_of(client, &error).await),
    };
    match timeout(PATIENCE, connection.send_packed_command(command)).await {
        Ok(Ok(Value::ServerError(error))) => Err(Fault::from_server(&error)),
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(fault_of(client, &error).await),
        Err(_) => Err(Fault::NoReply),
    }
}

/// What is no refusal is told in the words of the connection.
async fn fault_of(client: &Client, error: &redis::RedisError) -> Fault {
    let none = explain(client, error).await;
    if none.fault == Fault::NotSent { Fault::Unavailable(none.words) } else { none.fault }
}
