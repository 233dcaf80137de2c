//! Figures of what is configured, of keys and of usage.

use super::collector::Figures;
use crate::app::App;
use crate::config::sync::Source;

/// Reads all of them.
pub(super) fn read(app: &App, figures: &mut Figures) {
    read_configuration(app, figures);
    let auth = app.auth_throttle().stats();
    figures.counter("auth_failures", "Invalid caller keys that were compared", auth.failures);
    let help = "Requests refused without comparing their key, because their address is in backoff";
    figures.counter("auth_throttled", help, auth.throttled);
    let help = "Times that authentication backoff began, for one address or for all";
    figures.counter("auth_throttle_activations", help, auth.activations);
    let help = "Users and keys whose usage is not in the database yet";
    figures.gauge("usage_waiting", help, app.usage().waiting());
    figures.counter("usage_dropped", "Usage that was not counted", app.usage().dropped());
}

fn read_configuration(app: &App, figures: &mut Figures) {
    let (catalog, state) = (app.config_sync(), app.config_sync().state());
    // A gauge: a database that was restored from a backup is of an earlier version.
    figures.gauge("catalog_version", "The version of the configuration in force", catalog.version());
    let reached = state.source == Source::Database && state.database_error.is_none();
    figures.flag("catalog_database_reached", "Whether the database answers", reached);
    let help = "Whether the configuration in force is from disk";
    figures.flag("catalog_from_snapshot", help, state.source == Source::Snapshot);
    let help = "Whether rules of the database cannot be put in force";
    figures.flag("catalog_rules_refused", help, state.rules_error.is_some());
    let help = "Whether other nodes hash API keys with another secret";
    figures.flag("catalog_secret_differs", help, state.secret_differs);
    let rules = app.limiter().rules();
    figures.gauge("catalog_users", "Users with a record", rules.accounts().users());
    figures.gauge("catalog_keys", "API keys", rules.accounts().keys());
    figures.gauge("catalog_blocks", "Blocks, in force or over", rules.accounts().blocks());
    let help = "Configurations that could not be written to disk";
    figures.counter("catalog_snapshot_failures", help, catalog.snapshot_failures());
}
