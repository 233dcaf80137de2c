//! Looks at the servers once, without joining the fleet.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Client, Cmd, FromRedisValue, InfoDict};
use tokio::time::timeout;

use super::connection::dial::dial;
use super::fleet;
use super::settings::{Address, Login, RedisSettings, Topology};

/// Timeout of a query: nothing waits for it but an operator.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

/// One server and what it reports, or why it does not.
#[derive(Clone, Debug)]
pub struct ServerProbe {
    /// The address, and `sentinel` if it is one.
    pub server: String,
    /// What it reports.
    pub report: Result<ServerReport, String>,
}

/// What a server reports.
#[derive(Clone, Debug, Default)]
pub struct ServerReport {
    /// The version of Redis, or the one that Valkey is compatible with.
    pub version: String,
    /// The eviction policy; empty for a sentinel.
    pub maxmemory_policy: String,
    /// Memory limit in bytes; zero for none.
    pub maxmemory: u64,
    /// Memory used in bytes.
    pub used_memory: u64,
    /// How far its clock is ahead of this host's, in microseconds.
    pub clock_offset_micros: i64,
    /// How long an answer takes.
    pub round_trip: Duration,
    /// The versions of the tollgate nodes that use the server; empty if it does not hold the list.
    pub node_versions: Vec<String>,
}

/// Probes the configured servers; with sentinels, also the master that they name.
pub async fn probe(settings: &RedisSettings) -> Vec<ServerProbe> {
    let Topology::Sentinel { sentinels, master, login } = &settings.topology else {
        let servers = settings.topology.servers().iter();
        return join_all(servers.map(|server| probe_server(settings, server, &settings.login))).await;
    };
    let mut probes = join_all(sentinels.iter().map(|sentinel| probe_server(settings, sentinel, login))).await;
    for probe in &mut probes {
        probe.server.insert_str(0, "sentinel ");
    }
    match find_master(settings, sentinels, master, login).await {
        Some(address) => probes.push(probe_server(settings, &address, &settings.login).await),
        None => probes.push(ServerProbe {
            server: format!("master {master}"),
            report: Err("no sentinel names it; check counters.sentinel_master".to_owned()),
        }),
    }
    probes
}

async fn probe_server(settings: &RedisSettings, address: &Address, login: &Login) -> ServerProbe {
    let report = async {
        let client = settings.client_with(address, login, 0).map_err(|error| error.to_string())?;
        report(&client, settings.connect_timeout).await
    };
    ServerProbe { server: address.to_string(), report: report.await }
}

async fn report(client: &Client, connect_timeout: Duration) -> Result<ServerReport, String> {
    let dialed = dial(client, connect_timeout, QUERY_TIMEOUT).await;
    let (mut connection, _) = dialed.map_err(|error| error.message)?;
    let info: InfoDict = query(&mut connection, &redis::cmd("INFO")).await?;
    let (sent, local) = (Instant::now(), SystemTime::now());
    let (seconds, micros): (i64, i64) = query(&mut connection, &redis::cmd("TIME")).await.unwrap_or_default();
    let round_trip = sent.elapsed();
    let local = local.duration_since(UNIX_EPOCH).unwrap_or_default() + round_trip / 2;
    let local = i64::try_from(local.as_micros()).unwrap_or(i64::MAX);
    let remote = if seconds == 0 { local } else { seconds * 1_000_000 + micros };
    // In a cluster another server may have the list, which is not an error.
    let nodes: Vec<String> = query(&mut connection, &fleet::list_nodes()).await.unwrap_or_default();
    Ok(ServerReport {
        version: info.get("redis_version").unwrap_or_default(),
        maxmemory_policy: info.get("maxmemory_policy").unwrap_or_default(),
        maxmemory: info.get("maxmemory").unwrap_or(0),
        used_memory: info.get("used_memory").unwrap_or(0),
        clock_offset_micros: remote - local,
        round_trip,
        node_versions: nodes.iter().map(|node| fleet::version_of(node)).collect(),
    })
}

/// The master that the first sentinel to answer names.
async fn find_master(
    settings: &RedisSettings,
    sentinels: &[Address],
    master: &str,
    login: &Login,
) -> Option<Address> {
    for sentinel in sentinels {
        let Ok(client) = settings.client_with(sentinel, login, 0) else { continue };
        let Ok((mut connection, _)) = dial(&client, settings.connect_timeout, QUERY_TIMEOUT).await else {
            continue;
        };
        let mut command = redis::cmd("SENTINEL");
        command.arg("get-master-addr-by-name").arg(master);
        if let Ok((host, port)) = query::<(String, u16)>(&mut connection, &command).await {
            return Some(Address::Tcp { host, port });
        }
    }
    None
}

async fn query<T: FromRedisValue>(
    connection: &mut MultiplexedConnection,
    command: &Cmd,
) -> Result<T, String> {
    let reply = timeout(QUERY_TIMEOUT, connection.req_packed_command(command)).await;
    let value = reply.map_err(|_| "no answer within 2 s".to_owned())?.map_err(|error| error.to_string())?;
    T::from_redis_value(value).map_err(|error| error.to_string())
}
