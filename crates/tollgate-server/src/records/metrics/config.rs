//! Metrics of the configuration, of authentication, of tokens and of usage.

use super::MetricSources;
use super::collector::Collector;
use crate::auth::jwt::JwtVerifier;
use crate::config::sync::Source;

pub(super) fn collect(sources: &MetricSources<'_>, collector: &mut Collector) {
    collect_configuration(sources, collector);
    let auth = sources.auth_throttle.stats();
    collector.counter("auth_failures", "Invalid caller keys that were compared", auth.failures);
    let help = "Requests refused without comparing their key, because their address is in backoff";
    collector.counter("auth_throttled", help, auth.throttled);
    let help = "Times that authentication backoff began, for one address or for all";
    collector.counter("auth_throttle_activations", help, auth.activations);
    collect_tokens(sources, collector);
    let help = "Users and keys whose usage is not yet in the database";
    collector.gauge("usage_waiting", help, sources.limiter.records().usage.waiting());
    collector.counter(
        "usage_dropped",
        "Usage entries dropped because too many were waiting",
        sources.limiter.records().usage.dropped(),
    );
}

fn collect_tokens(sources: &MetricSources<'_>, collector: &mut Collector) {
    let stats = sources.jwt_stats;
    collector.counter("tokens_accepted", "Verified tokens of clients", stats.accepted());
    let refused = stats.refused().map(|(reason, count)| (vec![("reason", reason.to_owned())], count));
    collector.counters("tokens_refused", "Tokens of clients that are not accepted", refused);
    let help = "Times that backoff after invalid tokens began, for one address or for all";
    collector.counter("token_throttle_activations", help, sources.token_throttle.stats().activations);
    let help = "Attempts to fetch a key set of a token issuer";
    collector.counter("jwks_fetches", help, stats.fetches());
    let help = "Attempts to fetch a key set of a token issuer that failed";
    collector.counter("jwks_fetch_failures", help, stats.fetch_failures());
    let help = "Time since the last successful fetch of the key set for which it is longest";
    collector.gauge("jwks_age_seconds", help, sources.jwt.map_or(0, JwtVerifier::keys_age_secs));
}

fn collect_configuration(sources: &MetricSources<'_>, collector: &mut Collector) {
    let (sync, state) = (sources.config_sync, sources.config_sync.state());
    // A gauge: a database restored from a backup has an earlier version.
    collector.gauge("config_version", "Version of the database configuration in force", sync.version());
    let is_up = state.source == Source::Database && state.database_error.is_none();
    collector.flag("config_database_up", "Whether the database is reachable", is_up);
    let help = "Whether the configuration in force was read from the local snapshot";
    collector.flag("config_from_snapshot", help, state.source == Source::Snapshot);
    let help = "Whether the rules in the database are invalid and the last valid ones are in force";
    collector.flag("config_rules_rejected", help, state.rules_error.is_some());
    let help = "Whether auth.key_secret differs from that of the other nodes";
    collector.flag("config_key_secret_differs", help, state.secret_differs);
    let rules = sources.limiter.rules();
    collector.gauge("config_users", "Users with an account", rules.accounts().users());
    collector.gauge("config_api_keys", "API keys", rules.accounts().keys());
    collector.gauge("config_blocks", "Blocks, including expired ones", rules.accounts().blocks());
    let help = "Configuration snapshots that could not be written";
    collector.counter("config_snapshot_failures", help, sources.persistence.configuration.failures());
}
