//! Who calls tollgate itself, and what they may do.

pub(crate) mod alerts;
pub(crate) mod api_keys;
pub(crate) mod caller_limits;
pub(crate) mod scope;
pub(crate) mod throttle;

use std::net::IpAddr;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tollgate::Timestamp;
use tollgate::accounts::Key;

use crate::app::App;
use crate::auth::api_keys::KeyRefusal;
use crate::auth::scope::{Scope, Scopes};
use crate::config::settings::{AuthSettings, Caller as CallerSettings};
use crate::http::error::{ApiError, Code};

/// What a route asks of its caller.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Nothing.
    Anyone,
    /// This scope; nothing while checks are open to everyone.
    OpenScope(Scope),
    /// A key with this scope, always.
    Keyed(Scope),
}

/// Who is calling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    /// The name of the key; empty for a caller without one.
    pub(crate) name: Box<str>,
    /// The organisation that everything it asks is about, if it is bound to one.
    pub(crate) tenant: Option<Box<str>>,
    scopes: Scopes,
}

impl Caller {
    pub(crate) fn anonymous() -> Self {
        Caller { name: "".into(), tenant: None, scopes: Scopes::default() }
    }

    #[cfg(test)]
    pub(crate) fn named(name: &str, scopes: Scopes) -> Self {
        Caller { name: name.into(), tenant: None, scopes }
    }

    /// A key that was made in the database.
    fn keyed(key: &Key<'_>) -> Self {
        Caller {
            name: format!("key:{}", key.id()).into(),
            tenant: key.tenant().map(Into::into),
            scopes: Scopes::from_bits(key.scopes()),
        }
    }

    /// Refuses a caller that is bound to an organisation what concerns all of them.
    pub(crate) fn require_unbound(&self) -> Result<(), ApiError> {
        match &self.tenant {
            None => Ok(()),
            Some(tenant) => {
                let message =
                    format!("the key is bound to the tenant {tenant:?}, and this concerns all tenants");
                Err(ApiError::new(Code::Forbidden, message))
            }
        }
    }

    /// Whether it sent no key: whoever has one has a name.
    pub(crate) fn is_anonymous(&self) -> bool {
        self.name.is_empty()
    }

    /// Whether the caller's key has this scope.
    pub(crate) fn has(&self, scope: Scope) -> bool {
        self.scopes.has(scope)
    }
}

/// The keys that are known, and whether checks need one.
#[derive(Debug)]
pub(crate) struct Authenticator {
    callers: Vec<CallerSettings>,
    open_checks: bool,
    override_max: Option<u32>,
}

impl Authenticator {
    pub(crate) fn new(settings: &AuthSettings, admin_key: &str) -> Self {
        let mut callers = settings.callers.clone();
        callers.push(CallerSettings {
            name: "admin".into(),
            key_sha256: Sha256::digest(admin_key.as_bytes()).into(),
            scopes: Scopes::from(Scope::Admin),
        });
        Authenticator { callers, open_checks: settings.open_checks, override_max: settings.override_max }
    }

    /// Whether anyone may check.
    pub(crate) fn open_checks(&self) -> bool {
        self.open_checks
    }

    /// The most requests per window in numbers that a check brings itself, whoever sends it.
    pub(crate) fn override_max(&self) -> Option<u32> {
        self.override_max
    }

    /// The caller, if the route lets it in.
    pub(crate) fn admit(
        &self,
        headers: &HeaderMap,
        access: Access,
        peer: IpAddr,
        app: &App,
    ) -> Result<Caller, ApiError> {
        let needed = match access {
            // Probes may come through proxies with credentials of their own: they are no business of ours.
            Access::Anyone => return Ok(Caller::anonymous()),
            Access::OpenScope(scope) | Access::Keyed(scope) => scope,
        };
        let open = self.open_checks && matches!(access, Access::OpenScope(_));
        match self.identify(headers, peer, app)? {
            None if open => Ok(Caller::anonymous()),
            Some(caller) if caller.scopes.is_empty() => Err(no_caller()),
            Some(caller) if open => Ok(caller),
            Some(caller) if caller.has(needed) => Ok(caller),
            Some(_) => Err(forbidden(needed)),
            None => Err(ApiError::new(
                Code::Unauthorized,
                "a key is needed: Authorization: Bearer … (the admin key is in admin.key of the data directory)",
            )),
        }
    }

    fn identify(&self, headers: &HeaderMap, peer: IpAddr, app: &App) -> Result<Option<Caller>, ApiError> {
        let Some(value) = headers.get(AUTHORIZATION) else { return Ok(None) };
        let now = app.now();
        let (scheme, key) = value.to_str().ok().and_then(|text| text.split_once(' ')).unwrap_or_default();
        if let Some(wait) = app.auth_throttle().wait(peer, key, now) {
            return Err(ApiError::too_many_attempts(wait));
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(ApiError::new(Code::Unauthorized, "the key goes into Authorization: Bearer …"));
        }
        let compared = self.compare(key.trim(), app, now);
        // Nobody is guessing who brings a key that cannot be known yet: it must not make him wait once it is.
        if compared.is_err() && !app.config_sync().has_keys() && api_keys::id_of(key.trim()).is_some() {
            return Err(ApiError::new(
                Code::ServiceUnavailable,
                "API keys cannot be looked up yet: the database has not been read; /readyz says why",
            ));
        }
        let reason = match compared {
            Ok(caller) => {
                app.auth_throttle().note_success(peer, key);
                return Ok(Some(caller));
            }
            Err(KeyRefusal::Unknown) => {
                app.auth_throttle().note_failure(peer, key, now);
                "the key is not known"
            }
            // Who knows the secret is not guessing.
            Err(KeyRefusal::Expired) => "the key has expired",
            Err(KeyRefusal::Revoked) => "the key was revoked",
        };
        Err(ApiError::new(Code::Unauthorized, reason))
    }

    /// Every known key is compared, and each in constant time: how long it takes tells nothing about them.
    fn compare(&self, key: &str, app: &App, now: Timestamp) -> Result<Caller, KeyRefusal> {
        let presented: [u8; 32] = Sha256::digest(key.as_bytes()).into();
        let mut found = Err(KeyRefusal::Unknown);
        for caller in &self.callers {
            if bool::from(caller.key_sha256.ct_eq(&presented)) {
                found = Ok(Caller { name: caller.name.clone(), tenant: None, scopes: caller.scopes });
            }
        }
        let Some(id) = api_keys::id_of(key) else { return found };
        let rules = app.limiter().rules();
        match api_keys::verify(rules.accounts(), app.config_sync().secret(), key, id, now) {
            Ok(key) => {
                app.usage().note_key(key.id(), false, now);
                Ok(Caller::keyed(&key))
            }
            Err(KeyRefusal::Unknown) => found,
            Err(refusal) => Err(refusal),
        }
    }
}

/// A key of a limited client, which may not call tollgate itself.
fn no_caller() -> ApiError {
    ApiError::new(
        Code::Forbidden,
        "the key has no scope: it is for limited clients, not for callers of tollgate",
    )
}

/// The caller's key lacks this scope.
pub(crate) fn forbidden(scope: Scope) -> ApiError {
    ApiError::new(Code::Forbidden, format!("the key does not have the scope {}", scope.as_str()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tollgate::{MemoryCounters, Seed};

    use super::*;
    use crate::app::Secrets;
    use crate::auth::api_keys::KeySecret;
    use crate::config::settings::Settings;
    use crate::counters::Counters;
    use crate::runtime::clock::Clock;

    /// A service whose database has not been read.
    fn app() -> Arc<App> {
        let counters = Counters::Memory(MemoryCounters::default());
        let secrets = Secrets { admin_key: "admin", key_secret: KeySecret::new("secret") };
        let settings = Settings::from_toml("").unwrap();
        App::new(settings, counters, Seed([1; 16]), secrets, Clock::start(), Arc::default())
    }

    fn admit(app: &App, key: &str) -> Result<Caller, Code> {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, format!("Bearer {key}").parse().unwrap());
        let peer = IpAddr::from([192, 0, 2, 1]);
        let admitted = app.live().gate.admit(&headers, Access::Keyed(Scope::Admin), peer, app);
        admitted.map_err(|error| error.code())
    }

    #[test]
    fn a_key_that_cannot_be_known_yet_is_no_guess() {
        let app = app();
        let key = api_keys::NewKey::random().unwrap();
        for _ in 0..1_000 {
            assert_eq!(admit(&app, key.reveal()), Err(Code::ServiceUnavailable));
        }
        assert_eq!(app.auth_throttle().figures().failures, 0);
        assert_eq!(
            admit(&app, "wrong"),
            Err(Code::Unauthorized),
            "what is none of ours is wrong at any time"
        );
        assert!(admit(&app, "admin").is_ok());
    }
}
