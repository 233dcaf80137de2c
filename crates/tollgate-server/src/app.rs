//! The parts of the running service, and the settings that a reload replaces. Parts do not know `App`.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use tollgate::config::Problems;
use tollgate::headers::HeaderProfile;
use tollgate::identity::ClientAddressPolicy;
use tollgate::rules::{OnStoreFailure, RuleSettings};
use tollgate::{Limiter, RuleSet, Seed, Timestamp};
use tollgate_stores::counters::{Counters, StoreState};

use crate::ServiceLimiter;
use crate::api::batch_check::BodyBudget;
use crate::auth::api_keys::KeySecret;
use crate::auth::caller_limits::CallerLimiter;
use crate::auth::jwt::{JwtStats, JwtVerifier};
use crate::auth::throttle::{AuthThrottle, GuessedCredential};
use crate::auth::{AuthParts, Authenticator, Caller};
use crate::check::batch::BatchQueue;
use crate::check::error::CheckError;
use crate::check::idempotency::IdempotencyStore;
use crate::check::{Checker, OverridePolicy};
use crate::config::reload::ReloadHandle;
use crate::config::settings::{ClientIdSettings, InvalidToken, ServerCertificate, Settings};
use crate::config::sync::{ConfigSync, FileRules, SyncParts};
use crate::gateways::proxy::Proxy;
use crate::gateways::untrusted_log::UntrustedGatewayLog;
use crate::http::hosts::HostPolicy;
use crate::http::request_id::RequestIds;
use crate::listener::{AcceptPolicy, ConnectionStats};
use crate::records::Records;
use crate::records::metrics::{MetricFormat, MetricSources, Metrics};
use crate::records::queries::RecordQueries;
use crate::records::recorder::NodeNames;
use crate::records::traffic_sample::TrafficSample;
use crate::runtime::clock::Clock;
use crate::runtime::data_dir::DataDir;
use crate::runtime::data_dir::persistence_status::PersistenceStatus;

/// The secrets of the service.
pub(crate) struct Secrets<'a> {
    pub(crate) admin_key: &'a str,
    /// Keys the hashes of API keys.
    pub(crate) key_secret: KeySecret,
}

/// All parts of the service.
pub(crate) struct App {
    limiter: Arc<ServiceLimiter>,
    clock: Clock,
    config_sync: Arc<ConfigSync>,
    auth_throttle: AuthThrottle,
    token_throttle: AuthThrottle,
    untrusted_gateways: UntrustedGatewayLog,
    live: ArcSwap<Reloadable>,
    /// Absent without a configuration file.
    reload: OnceLock<ReloadHandle>,
    /// Absent without `[proxy]`.
    proxy: OnceLock<Arc<Proxy>>,
    draining: AtomicBool,
    persistence: Arc<PersistenceStatus>,
    connections: Arc<ConnectionStats>,
    accept_policy: Arc<ArcSwap<AcceptPolicy>>,
    admin_key: Box<str>,
    idempotency: IdempotencyStore,
    batches: BatchQueue,
    batch_bodies: BodyBudget,
    request_ids: RequestIds,
    record_queries: RecordQueries,
    body_timeout: Duration,
    listen: SocketAddr,
    /// The engine of the configuration database.
    database: &'static str,
    node: NodeNames,
    /// Kept across reloads.
    jwt_stats: Arc<JwtStats>,
}

/// The settings that a reload replaces.
pub(crate) struct Reloadable {
    pub(crate) authenticator: Authenticator,
    /// The families of rate-limit headers in responses.
    pub(crate) profiles: Vec<HeaderProfile>,
    /// The names of this server.
    pub(crate) hosts: HostPolicy,
    pub(crate) overrides: OverridePolicy,
    /// Whether unknown fields of a check are errors (`api.strict`).
    pub(crate) strict_checks: bool,
    /// Whether unknown tiers are errors (`identity.unknown_tier`).
    pub(crate) rejects_unknown_tiers: bool,
    /// How the address of a client is found.
    pub(crate) client_address: ClientAddressPolicy,
    /// Where gateways find the ids of clients.
    pub(crate) client_ids: ClientIdSettings,
    /// Absent without `[callers]`.
    pub(crate) callers: Option<CallerLimiter>,
    /// Absent without `[[identity.jwt]]`.
    pub(crate) jwt: Option<Arc<JwtVerifier>>,
    /// What happens to requests with an invalid token.
    pub(crate) invalid_token: InvalidToken,
    /// The certificates of all listeners.
    pub(crate) certificates: Vec<ServerCertificate>,
}

impl Reloadable {
    /// `listen` is the address in use: changing it needs a restart.
    fn new(
        settings: &Settings,
        listen: SocketAddr,
        admin_key: &str,
        jwt_stats: &Arc<JwtStats>,
        before: Option<&Reloadable>,
    ) -> Self {
        let jwt_before = before.and_then(|before| before.jwt.as_deref());
        Reloadable {
            hosts: HostPolicy::new(&settings.server.hosts, listen.ip()),
            overrides: OverridePolicy {
                is_open: settings.auth.open_checks && listen.ip().is_loopback(),
                requests_max: settings.auth.override_max,
            },
            authenticator: Authenticator::new(&settings.auth, admin_key),
            strict_checks: settings.strict_checks,
            rejects_unknown_tiers: settings.rejects_unknown_tiers,
            profiles: settings.server.headers.clone(),
            client_address: settings.client_address.clone(),
            client_ids: settings.client_ids.clone(),
            callers: CallerLimiter::new(settings, before.and_then(|before| before.callers.as_ref())),
            jwt: JwtVerifier::new(&settings.jwt.issuers, jwt_stats, jwt_before).map(Arc::new),
            invalid_token: settings.jwt.invalid_token,
            certificates: settings.certificates().into_iter().cloned().collect(),
        }
    }
}

impl App {
    pub(crate) fn new(
        settings: &Settings,
        counters: Counters,
        seed: Seed,
        secrets: Secrets<'_>,
        clock: Clock,
        connections: Arc<ConnectionStats>,
        persistence: Arc<PersistenceStatus>,
    ) -> Arc<Self> {
        let Secrets { admin_key, key_secret } = secrets;
        let jwt_stats = Arc::default();
        let live = Reloadable::new(settings, settings.listen, admin_key, &jwt_stats, None);
        let rules = settings.rule_set();
        let records = Records::new(&rules, settings, counters.redis().is_some());
        Arc::new(App {
            config_sync: Arc::new(ConfigSync::new(settings, key_secret)),
            auth_throttle: AuthThrottle::new(GuessedCredential::ApiKey),
            token_throttle: AuthThrottle::new(GuessedCredential::Token),
            untrusted_gateways: UntrustedGatewayLog::default(),
            clock,
            live: ArcSwap::from_pointee(live),
            reload: OnceLock::new(),
            proxy: OnceLock::new(),
            draining: AtomicBool::new(false),
            persistence,
            connections,
            accept_policy: Arc::new(ArcSwap::from_pointee(AcceptPolicy::new(settings))),
            admin_key: admin_key.into(),
            idempotency: IdempotencyStore::new(counters.redis().cloned()),
            batches: BatchQueue::new(&counters),
            batch_bodies: BodyBudget::default(),
            request_ids: RequestIds::new(Seed::random()),
            record_queries: RecordQueries::new(settings),
            limiter: Arc::new(
                Limiter::with_records(rules, counters, records, seed)
                    .with_fallback_bounds(settings.counters.bounds()),
            ),
            body_timeout: settings.server.body_timeout,
            listen: settings.listen,
            database: settings.database.sql(&settings.data_dir).engine().as_str(),
            node: NodeNames::new(&settings.server),
            jwt_stats,
        })
    }

    /// A service with counters in memory and these settings.
    #[cfg(test)]
    pub(crate) fn for_tests(settings: &str) -> Arc<Self> {
        let counters = Counters::Memory(tollgate::MemoryCounters::default());
        let secrets = Secrets { admin_key: "admin", key_secret: KeySecret::new("secret") };
        let settings = Settings::from_toml(settings).unwrap();
        App::new(&settings, counters, Seed([1; 16]), secrets, Clock::start(), Arc::default(), Arc::default())
    }

    pub(crate) fn shared_limiter(&self) -> &Arc<ServiceLimiter> {
        &self.limiter
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    pub(crate) fn limiter(&self) -> &ServiceLimiter {
        &self.limiter
    }

    pub(crate) fn counters(&self) -> &Counters {
        self.limiter.counters()
    }

    /// Drops fully restored counters from one shard; `turn` selects it.
    pub(crate) fn sweep(&self, turn: usize) {
        match self.counters().memory() {
            Some(memory) => memory.sweep_shard(turn, self.now()),
            None => self.limiter.sweep_fallback(turn, self.now()),
        }
        if let Some(callers) = &self.live().callers {
            callers.sweep(turn, self.now());
        }
    }

    /// Counts `passed` as degraded time if the shared counters are unavailable.
    pub(crate) fn count_outage(&self, state: &StoreState, passed: Duration) {
        if state.is_outage() {
            self.metrics().count_degraded(passed);
        }
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.limiter.records().metrics
    }

    pub(crate) fn config_sync(&self) -> &ConfigSync {
        &self.config_sync
    }

    /// The parts that config sync works with.
    pub(crate) fn sync_parts(&self, data_dir: Arc<DataDir>) -> SyncParts {
        SyncParts {
            sync: Arc::clone(&self.config_sync),
            limiter: Arc::clone(&self.limiter),
            clock: self.clock,
            data_dir,
        }
    }

    pub(crate) fn auth_throttle(&self) -> &AuthThrottle {
        &self.auth_throttle
    }

    /// Backs off clients with invalid tokens.
    pub(crate) fn token_throttle(&self) -> &AuthThrottle {
        &self.token_throttle
    }

    pub(crate) fn untrusted_gateways(&self) -> &UntrustedGatewayLog {
        &self.untrusted_gateways
    }

    pub(crate) fn auth_parts(&self) -> AuthParts<'_> {
        AuthParts {
            clock: &self.clock,
            throttle: &self.auth_throttle,
            limiter: &self.limiter,
            config_sync: &self.config_sync,
        }
    }

    /// Decides the checks of one caller with the rules in force now.
    /// Without a configuration they are decided only under `on_store_failure = "open"`, or if limiting is switched off.
    ///
    /// # Errors
    /// While the configured database was never read.
    pub(crate) fn checker<'a>(
        &'a self,
        caller: &'a Caller,
        settings: &Reloadable,
        request_id: Option<&'a str>,
    ) -> Result<Checker<'a>, CheckError> {
        let (snapshot, is_unread) = (self.limiter.snapshot(), self.config_sync.is_unread());
        let RuleSettings { enabled, on_store_failure, .. } = *snapshot.rules().settings();
        if is_unread && enabled && on_store_failure != OnStoreFailure::Open {
            return Err(CheckError::ConfigurationUnread);
        }
        let (now, started) = self.clock.read();
        Ok(Checker {
            snapshot,
            is_unread,
            metrics: self.metrics(),
            recorder: self.limiter.records().recorder.as_deref(),
            request_id,
            key_secret: self.config_sync.has_keys().then(|| self.config_sync.secret()),
            caller,
            overrides: settings.overrides,
            rejects_unknown_tiers: settings.rejects_unknown_tiers,
            now,
            started,
        })
    }

    pub(crate) fn idempotency(&self) -> &IdempotencyStore {
        &self.idempotency
    }

    pub(crate) fn batches(&self) -> &BatchQueue {
        &self.batches
    }

    pub(crate) fn batch_bodies(&self) -> &BodyBudget {
        &self.batch_bodies
    }

    pub(crate) fn request_ids(&self) -> &RequestIds {
        &self.request_ids
    }

    /// Reads the records database.
    pub(crate) fn record_queries(&self) -> &RecordQueries {
        &self.record_queries
    }

    /// How long a request body may take to arrive.
    pub(crate) fn body_timeout(&self) -> Duration {
        self.body_timeout
    }

    pub(crate) fn traffic_sample(&self) -> &TrafficSample {
        &self.limiter.records().traffic_sample
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(crate) fn live(&self) -> arc_swap::Guard<Arc<Reloadable>> {
        self.live.load()
    }

    /// Applies reloaded settings: rules, callers, header profiles, host names and caller limits. Other settings need a restart.
    /// Returns the number of rules in force.
    ///
    /// # Errors
    /// When the rules conflict with those of the database; nothing is changed then.
    pub(crate) fn apply(&self, settings: &Settings) -> Result<usize, Problems> {
        self.config_sync.replace_file(FileRules::new(settings), |rules| self.replace_rules(rules))?;
        let before = Some(&**self.live());
        let live = Reloadable::new(settings, self.listen, &self.admin_key, &self.jwt_stats, before);
        self.live.store(Arc::new(live));
        self.start_fetching_keys();
        self.replace_accept_policy(AcceptPolicy::new(settings));
        // Another normalization takes effect when the items of the database are loaded again.
        self.config_sync.poll_now();
        Ok(self.limiter.rules().rules().len())
    }

    /// Starts to fetch the key sets of token issuers that are not fetched yet. Needs a tokio runtime.
    pub(crate) fn start_fetching_keys(&self) {
        if let Some(jwt) = &self.live().jwt {
            jwt.start_fetching();
        }
    }

    /// Applies to new connections. Switching TLS on or off needs a restart: clients would find another protocol at the same address.
    fn replace_accept_policy(&self, policy: AcceptPolicy) {
        let before = self.accept_policy.load();
        let is_switched = before.tls.is_some() != policy.tls.is_some();
        let tls = if is_switched { before.tls.clone() } else { policy.tls };
        self.accept_policy.store(Arc::new(AcceptPolicy { tls, ..policy }));
    }

    /// How new connections are accepted.
    pub(crate) fn accept_policy(&self) -> &Arc<ArcSwap<AcceptPolicy>> {
        &self.accept_policy
    }

    /// Replaces the rules in force.
    pub(crate) fn replace_rules(&self, rules: RuleSet) {
        self.limiter.records().apply_rules(&rules);
        self.limiter.replace_rules(rules);
    }

    pub(crate) fn set_reload(&self, handle: ReloadHandle) {
        let _ = self.reload.set(handle);
    }

    pub(crate) fn reload(&self) -> Option<&ReloadHandle> {
        self.reload.get()
    }

    pub(crate) fn set_proxy(&self, proxy: Arc<Proxy>) {
        let _ = self.proxy.set(proxy);
    }

    pub(crate) fn proxy(&self) -> Option<&Arc<Proxy>> {
        self.proxy.get()
    }

    /// Makes `/readyz` report `draining`.
    pub(crate) fn start_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    pub(crate) fn persistence(&self) -> &PersistenceStatus {
        &self.persistence
    }

    /// All metrics.
    pub(crate) fn encode_metrics(&self, format: MetricFormat) -> Vec<u8> {
        let live = self.live();
        let sources = MetricSources {
            limiter: &self.limiter,
            clock: self.clock,
            config_sync: &self.config_sync,
            auth_throttle: &self.auth_throttle,
            token_throttle: &self.token_throttle,
            idempotency: &self.idempotency,
            connections: &self.connections,
            certificates: &live.certificates,
            reload: self.reload(),
            persistence: &self.persistence,
            database: self.database,
            node: &self.node,
            proxy: self.proxy().map(|proxy| &**proxy),
            jwt_stats: &self.jwt_stats,
            jwt: live.jwt.as_deref(),
        };
        self.metrics().encode(&sources, format)
    }
}
