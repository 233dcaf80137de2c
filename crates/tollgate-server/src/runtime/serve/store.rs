//! Finds the counters when the service starts.

use std::time::Duration;

use tollgate::Seed;
use tollgate_stores::redis::{RedisCounters, RedisSettingsError};
use tracing::{error, info, warn};

use crate::config::settings::{CounterSettings, RedisCounterSettings};
use crate::counters::{Counters, StoreState};
use crate::fleet::membership;
use crate::runtime::data_dir::DataDir;

/// How long a start waits for the shared counters. After that it serves without them.
const PATIENCE: Duration = Duration::from_secs(1);

/// The counters of these settings and the seed of their subjects.
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
            warn_of_open_links(settings);
            if let Some(nodes) = data_dir.fleet_nodes() {
                redis.fleet().restore_node_count(nodes);
            }
            redis.fleet().set_awaiting_seed(true);
            redis.connected(PATIENCE).await;
            let seed = membership::join(&redis, data_dir).await;
            let counters = Counters::Redis(redis);
            match counters.state() {
                StoreState::Reached => info!("the counter store is connected"),
                StoreState::Hindered(reason) => {
                    warn!(reason, "the counter store is connected, and needs attention");
                }
                StoreState::Unreached(reason) => {
                    warn!(
                        reason,
                        "serving without the counter store: limits are counted here until it answers"
                    );
                }
                StoreState::Refused(reason) => tell_of_refusal(&reason),
            }
            Ok((counters, seed))
        }
    }
}

/// Tells when the shared counters begin and cease to refuse us. Outages the stores tell of.
pub(super) fn tell_of_refusals(before: &StoreState, now: &StoreState) {
    match (before, now) {
        (StoreState::Refused(_), StoreState::Refused(_))
        | (StoreState::Hindered(_), StoreState::Hindered(_)) => {}
        (StoreState::Reached, StoreState::Hindered(reason)) => {
            warn!(reason, "the counter store needs attention");
        }
        (_, StoreState::Refused(reason)) => tell_of_refusal(reason),
        (StoreState::Refused(_), _) => info!("the counter store does not refuse us any more"),
        _ => {}
    }
}

fn tell_of_refusal(reason: &str) {
    error!(reason, "the counter store refuses us: no request is admitted until that is mended");
}

fn warn_of_open_links(settings: &RedisCounterSettings) {
    for server in settings.unprotected() {
        warn!(%server, "the counter store is reached in plain text and without a password: whoever reaches it can \
            read and change every counter");
    }
    if settings.redis.tls.as_ref().is_some_and(|tls| tls.insecure) {
        warn!("counters.tls.insecure: any certificate of the counter store is taken");
    }
}
