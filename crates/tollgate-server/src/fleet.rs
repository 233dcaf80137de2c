//! This node among others that share its counters: the seed of their hashes, and numbers set for single users on any of
//! them.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tollgate::counters::StoreError;
use tollgate::rules::overrides::{Override, Overrides};
use tollgate::{Algorithm, Endpoint, Id, Limit, Seed, Span, Timestamp, Window};
use tollgate_stores::redis::RedisCounters;
use tracing::{info, warn};

use crate::app::App;
use crate::data_dir::DataDir;

/// How often a node that could not join tries again.
const JOIN_EVERY: Duration = Duration::from_millis(50);

/// The fleet's seed if it can be had, and else the one it had when this node last met it. Until it can be had nothing is
/// decided by the shared counters.
pub(crate) async fn join(redis: &RedisCounters, data_dir: &DataDir) -> Seed {
    let own = data_dir.fleet_seed().unwrap_or_else(Seed::random);
    match redis.fleet_seed(own).await {
        Ok(seed) => {
            adopt(redis, data_dir, seed);
            seed
        }
        Err(_) => own,
    }
}

fn adopt(redis: &RedisCounters, data_dir: &DataDir, seed: Seed) {
    if data_dir.fleet_seed() != Some(seed) {
        data_dir.keep_fleet_seed(seed);
    }
    redis.wait_for_seed(false);
}

/// Joins the fleet as soon as it can be reached, and then follows what is set on other nodes.
pub(crate) async fn follow(app: Arc<App>, data_dir: Arc<DataDir>) {
    let Some(redis) = app.limiter().counters().redis().cloned() else { return };
    loop {
        let own = app.limiter().seed();
        if let Ok(seed) = redis.fleet_seed(own).await {
            if seed != own {
                app.limiter().set_seed(seed);
            }
            adopt(&redis, &data_dir, seed);
            break;
        }
        tokio::time::sleep(JOIN_EVERY).await;
    }
    let mut version = redis.config_version();
    loop {
        match redis.shared_config().await {
            Ok(config) => {
                take_over(&app, &config);
                if version.changed().await.is_err() {
                    return;
                }
            }
            Err(_) => tokio::time::sleep(JOIN_EVERY).await,
        }
    }
}

/// Puts the numbers that any node has set in force here.
fn take_over(app: &App, config: &[(String, String)]) {
    let mut next = Overrides::default();
    for (name, text) in config {
        if let Some(numbers) = serde_json::from_str::<Numbers>(text).ok().and_then(|numbers| numbers.check())
        {
            next = next.with(numbers);
        } else {
            warn!(name, "numbers set by another node cannot be read; is it newer?");
        }
    }
    info!(count = next.len(), "numbers set for single users follow those of the fleet");
    app.limiter().update_overrides(|_| next.clone());
}

/// Sets, or removes, numbers on all nodes. On a node that is alone there is nothing to do.
pub(crate) async fn share(
    app: &App,
    user: &str,
    endpoint: &str,
    numbers: Option<&Override>,
) -> Result<(), StoreError> {
    let Some(redis) = app.limiter().counters().redis() else { return Ok(()) };
    // Texts and numbers always can be written.
    let name = serde_json::to_string(&(user, endpoint)).unwrap_or_default();
    let value = numbers.map(|numbers| serde_json::to_string(&Numbers::of(numbers)).unwrap_or_default());
    redis.share_config(&name, value.as_deref()).await
}

/// Numbers for one user on one endpoint, as nodes tell each other.
#[derive(Serialize, Deserialize)]
struct Numbers {
    user: String,
    endpoint: String,
    requests: u32,
    window_micros: u64,
    algorithm: String,
    burst: Option<u32>,
    updated_at_micros: u64,
}

impl Numbers {
    fn of(numbers: &Override) -> Self {
        let limit = &numbers.limit.limit;
        Numbers {
            user: numbers.user.to_string(),
            endpoint: numbers.endpoint.to_string(),
            requests: limit.requests(),
            window_micros: limit.window_length().as_micros(),
            algorithm: limit.algorithm().as_str().to_owned(),
            burst: limit.burst(),
            updated_at_micros: numbers.updated_at.as_micros(),
        }
    }

    fn check(&self) -> Option<Override> {
        let window = Window::Length(Span::from_micros(self.window_micros));
        let algorithm = Algorithm::parse(&self.algorithm)?;
        let limit = Limit::shaped(algorithm, self.requests, window, self.burst, None).ok()?;
        let (user, endpoint) = (Id::parse(&self.user).ok()?, Endpoint::parse(&self.endpoint).ok()?);
        Some(Override::new(user, &endpoint, limit, Timestamp::from_micros(self.updated_at_micros)))
    }
}
