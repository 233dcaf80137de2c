//! Figures of what is configured, of keys and of usage, read when somebody asks.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::app::App;
use crate::catalog::Source;
use crate::keys::KeyRefusal;

/// What is known of the configuration and of those who use it.
#[derive(Default)]
pub(crate) struct CatalogGauges {
    version: Gauge,
    database_reached: Gauge,
    from_snapshot: Gauge,
    rules_refused: Gauge,
    secret_differs: Gauge,
    users: Gauge,
    keys: Gauge,
    blocks: Gauge,
    snapshot_failures: Gauge,
    key_failures: Gauge,
    key_attempts_held_up: Gauge,
    key_alarms: Gauge,
    usage_waiting: Gauge,
    usage_dropped: Gauge,
    /// Checks of clients whose key is none.
    keys_refused: Family<ReasonLabel, Counter>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

impl CatalogGauges {
    pub(super) fn register(&self, registry: &mut Registry) {
        let gauges = [
            ("catalog_version", "The version of the configuration in force", &self.version),
            ("catalog_database_reached", "Whether the database answers", &self.database_reached),
            ("catalog_from_snapshot", "Whether the configuration in force is from disk", &self.from_snapshot),
            (
                "catalog_rules_refused",
                "Whether rules of the database cannot be put in force",
                &self.rules_refused,
            ),
            (
                "catalog_secret_differs",
                "Whether other nodes hash API keys with another secret",
                &self.secret_differs,
            ),
            ("catalog_users", "Users with a record", &self.users),
            ("catalog_keys", "API keys", &self.keys),
            ("catalog_blocks", "Blocks, in force or over", &self.blocks),
            (
                "catalog_snapshot_failures",
                "Configurations that could not be written to disk",
                &self.snapshot_failures,
            ),
            ("key_failures", "Keys of callers that were compared and are none", &self.key_failures),
            (
                "key_attempts_held_up",
                "Requests turned away without a look at their key",
                &self.key_attempts_held_up,
            ),
            ("key_alarms", "How often somebody began to try keys", &self.key_alarms),
            ("usage_waiting", "Users and keys whose usage is not in the database yet", &self.usage_waiting),
            ("usage_dropped", "Usage that was not counted", &self.usage_dropped),
        ];
        for (name, help, gauge) in gauges {
            registry.register(name, help, gauge.clone());
        }
        registry.register("keys_refused", "Checks of clients whose key is none", self.keys_refused.clone());
    }

    pub(crate) fn count_refused(&self, refusal: KeyRefusal) {
        self.keys_refused.get_or_create(&ReasonLabel { reason: refusal.as_str() }).inc();
    }

    /// Reads all of them.
    pub(crate) fn read(&self, app: &App) {
        let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let (catalog, state) = (app.catalog(), app.catalog().state());
        self.version.set(count(catalog.version()));
        let reached = state.source == Source::Database && state.database_error.is_none();
        self.database_reached.set(i64::from(reached));
        self.from_snapshot.set(i64::from(state.source == Source::Snapshot));
        self.rules_refused.set(i64::from(state.rules_error.is_some()));
        self.secret_differs.set(i64::from(state.secret_differs));
        let rules = app.limiter().rules();
        self.users.set(count(rules.accounts().users() as u64));
        self.keys.set(count(rules.accounts().keys() as u64));
        self.blocks.set(count(rules.accounts().blocks() as u64));
        self.snapshot_failures.set(count(catalog.snapshot_failures()));
        let brake = app.brake().figures();
        self.key_failures.set(count(brake.failures));
        self.key_attempts_held_up.set(count(brake.held_up));
        self.key_alarms.set(count(brake.episodes));
        self.usage_waiting.set(count(app.usage().waiting() as u64));
        self.usage_dropped.set(count(app.usage().dropped()));
    }
}
