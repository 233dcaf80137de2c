//! Opens the counters at start.

use std::time::Duration;

use tollgate::Seed;
use tollgate_stores::counters::Counters;
use tollgate_stores::redis::{RedisCounters, RedisSettingsError};
use tracing::warn;

use crate::config::settings::{CounterSettings, RedisCounterSettings};
use crate::fleet::membership;
use crate::runtime::data_dir::DataDir;

/// How long a start waits for Redis before it serves with the fallback.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The counters and the seed of their subjects.
pub(super) async fn open(
    settings: &CounterSettings,
    data_dir: &DataDir,
) -> Result<(Counters, Seed), RedisSettingsError> {
    match settings {
        CounterSettings::Memory { bounds, .. } => {
            let (memory, seed) = data_dir.load_counters(*bounds);
            Ok((Counters::Memory(memory), seed))
        }
        CounterSettings::Redis(settings) => {
            let redis = RedisCounters::open(&settings.redis)?;
            warn_if_unprotected(settings);
            if let Some(nodes) = data_dir.fleet_nodes() {
                redis.fleet().restore_node_count(nodes);
            }
            redis.fleet().set_awaiting_seed(true);
            redis.connected(CONNECT_TIMEOUT).await;
            let seed = membership::join(&redis, data_dir).await;
            Ok((Counters::Redis(redis), seed))
        }
    }
}

fn warn_if_unprotected(settings: &RedisCounterSettings) {
    for server in settings.unprotected() {
        warn!(%server, "the counter store has neither TLS nor a password: anyone who can connect to it can read and change \
            every counter");
    }
    if settings.redis.tls.as_ref().is_some_and(|tls| tls.insecure) {
        warn!("counters.tls.insecure is set: the certificate of the counter store is not verified");
    }
}
