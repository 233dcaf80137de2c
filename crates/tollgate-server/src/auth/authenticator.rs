//! Identifies the caller of a request by its `Authorization` header or its client certificate, and checks its scope.

use std::collections::HashMap;
use std::net::IpAddr;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tollgate::Timestamp;
use tollgate::accounts::Key;

use super::api_keys::{self, KeyRefusal};
use super::client_certificate::{CertificateName, ClientCertificate};
use super::error::AuthError;
use super::scope::{Scope, Scopes};
use super::throttle::AuthThrottle;
use crate::ServiceLimiter;
use crate::config::settings::{AuthSettings, Caller as CallerSettings, Credential};
use crate::config::sync::ConfigSync;
use crate::runtime::clock::Clock;

/// What a route requires of its caller.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Nothing.
    Anyone,
    /// This scope, unless `auth.open_checks` is set.
    OpenScope(Scope),
    /// A key with this scope.
    Keyed(Scope),
    /// A connection from one of `identity.trusted_proxies`.
    TrustedProxy,
}

/// An authenticated caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    /// The name of the key; empty without one.
    pub(crate) name: Box<str>,
    /// The tenant to which the key is bound.
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

    /// The caller with this key from the database.
    fn with_key(key: &Key<'_>) -> Self {
        Caller {
            name: format!("key:{}", key.id).into(),
            tenant: key.tenant.map(Into::into),
            scopes: Scopes::from_bits(key.scopes),
        }
    }

    /// The caller of these settings.
    fn of(settings: &CallerSettings) -> Self {
        Caller { name: settings.name.clone(), tenant: settings.tenant.clone(), scopes: settings.scopes }
    }

    /// Refuses a caller bound to a tenant, for operations that concern all tenants.
    pub(crate) fn require_unbound(&self) -> Result<(), AuthError> {
        self.tenant.clone().map_or(Ok(()), |tenant| Err(AuthError::TenantBound(tenant)))
    }

    pub(crate) fn is_anonymous(&self) -> bool {
        self.name.is_empty()
    }

    pub(crate) fn has(&self, scope: Scope) -> bool {
        self.scopes.has(scope)
    }
}

/// The parts of the service that authentication uses.
#[derive(Copy, Clone)]
pub(crate) struct AuthParts<'a> {
    pub(crate) clock: &'a Clock,
    pub(crate) throttle: &'a AuthThrottle,
    pub(crate) limiter: &'a ServiceLimiter,
    pub(crate) config_sync: &'a ConfigSync,
}

/// What a request presents to identify its caller.
#[derive(Copy, Clone)]
pub(crate) struct Presented<'a> {
    pub(crate) headers: &'a HeaderMap,
    /// The verified client certificate of the connection.
    pub(crate) certificate: Option<&'a ClientCertificate>,
    /// The address that the request came from.
    pub(crate) address: IpAddr,
}

/// The callers of the settings file and the rules for anonymous ones. Replaced on reload.
#[derive(Debug)]
pub(crate) struct Authenticator {
    by_key: Vec<([u8; 32], Caller)>,
    by_certificate: HashMap<CertificateName, Caller>,
    open_checks: bool,
}

impl Authenticator {
    pub(crate) fn new(settings: &AuthSettings, admin_key: &str) -> Self {
        let (mut by_key, mut by_certificate) = (Vec::new(), HashMap::new());
        for caller in &settings.callers {
            match &caller.credential {
                Credential::KeySha256(key) => by_key.push((*key, Caller::of(caller))),
                Credential::Certificate(name) => {
                    by_certificate.insert(name.clone(), Caller::of(caller));
                }
            }
        }
        let admin = Caller { name: "admin".into(), tenant: None, scopes: Scopes::from(Scope::Admin) };
        by_key.push((Sha256::digest(admin_key.as_bytes()).into(), admin));
        Authenticator { by_key, by_certificate, open_checks: settings.open_checks }
    }

    /// Whether checks need no key.
    pub(crate) fn open_checks(&self) -> bool {
        self.open_checks
    }

    /// The caller, if the route accepts it.
    pub(crate) fn authorize(
        &self,
        presented: Presented<'_>,
        access: Access,
        parts: AuthParts<'_>,
    ) -> Result<Caller, AuthError> {
        let needed = match access {
            // Probes may carry a proxy's credentials, which are not ours to judge.
            // `Authorization` of a gateway's request is that of its client.
            Access::Anyone | Access::TrustedProxy => return Ok(Caller::anonymous()),
            Access::OpenScope(scope) | Access::Keyed(scope) => scope,
        };
        let open = self.open_checks && matches!(access, Access::OpenScope(_));
        match self.authenticate(presented, parts)? {
            None if open => Ok(Caller::anonymous()),
            Some(caller) if caller.scopes.is_empty() => Err(AuthError::NoScopes),
            Some(caller) if open || caller.has(needed) => Ok(caller),
            Some(_) => Err(AuthError::ScopeMissing(needed)),
            None => Err(presented.certificate.map_or(AuthError::KeyMissing, |certificate| {
                AuthError::CertificateUnknown(certificate.to_string().into())
            })),
        }
    }

    /// The caller whose key the request presents, or else that of its certificate, if any.
    fn authenticate(
        &self,
        presented: Presented<'_>,
        parts: AuthParts<'_>,
    ) -> Result<Option<Caller>, AuthError> {
        let Presented { headers, certificate, address: peer } = presented;
        let now = parts.clock.now();
        let Some(value) = headers.get(AUTHORIZATION) else {
            let caller = certificate.map(|certificate| self.caller_of(certificate, now));
            return Ok(caller.transpose()?.flatten());
        };
        let (scheme, key) = value.to_str().ok().and_then(|text| text.split_once(' ')).unwrap_or_default();
        if let Some(wait) = parts.throttle.backoff(peer, key, now) {
            return Err(AuthError::Throttled { wait });
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(AuthError::NotBearer);
        }
        match self.find_caller(key.trim(), parts, now) {
            Ok(caller) => {
                parts.throttle.record_success(peer, key);
                Ok(Some(caller))
            }
            // Before the database is read, every key of its form is unknown. That is not a failed attempt.
            Err(_) if !parts.config_sync.has_keys() && api_keys::id_of(key.trim()).is_some() => {
                Err(AuthError::KeysNotLoaded)
            }
            Err(refusal) => {
                // An expired or revoked key has the right secret, so it is not a guess.
                if refusal == KeyRefusal::Unknown {
                    parts.throttle.record_failure(peer, key, now);
                }
                Err(AuthError::KeyRefused(refusal))
            }
        }
    }

    /// The caller with a name of this certificate; of several, that of the first name.
    fn caller_of(
        &self,
        certificate: &ClientCertificate,
        now: Timestamp,
    ) -> Result<Option<Caller>, AuthError> {
        // The handshake verified it, but a connection may stay open for long.
        if certificate.is_expired(now) {
            return Err(AuthError::CertificateExpired(certificate.to_string().into()));
        }
        let found = certificate.names().iter().find_map(|name| self.by_certificate.get(name));
        Ok(found.cloned())
    }

    /// Compares every configured key in constant time, so that the duration reveals nothing about them.
    fn find_caller(&self, key: &str, parts: AuthParts<'_>, now: Timestamp) -> Result<Caller, KeyRefusal> {
        let presented: [u8; 32] = Sha256::digest(key.as_bytes()).into();
        let mut found = None;
        for (key, caller) in &self.by_key {
            if bool::from(key.ct_eq(&presented)) {
                found = Some(caller);
            }
        }
        if let Some(caller) = found {
            return Ok(caller.clone());
        }
        let rules = parts.limiter.rules();
        match api_keys::find(rules.accounts(), parts.config_sync.secret(), key, now) {
            Some(Ok(key)) => {
                parts.limiter.records().usage.note_key(key.id, false, now);
                Ok(Caller::with_key(&key))
            }
            Some(Err(refusal)) => Err(refusal),
            None => Err(KeyRefusal::Unknown),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tollgate::{MemoryCounters, Seed};
    use tollgate_stores::counters::Counters;

    use super::*;
    use crate::app::App;
    use crate::app::Secrets;
    use crate::auth::api_keys::KeySecret;
    use crate::config::settings::Settings;

    /// A service that has not read its database.
    fn app() -> Arc<App> {
        let counters = Counters::Memory(MemoryCounters::default());
        let secrets = Secrets { admin_key: "admin", key_secret: KeySecret::new("secret") };
        let settings = Settings::from_toml("").unwrap();
        App::new(&settings, counters, Seed([1; 16]), secrets, Clock::start(), Arc::default(), Arc::default())
    }

    fn authorize(app: &App, key: &str) -> Result<Caller, AuthError> {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, format!("Bearer {key}").parse().unwrap());
        let address = IpAddr::from([192, 0, 2, 1]);
        let presented = Presented { headers: &headers, certificate: None, address };
        app.live().authenticator.authorize(presented, Access::Keyed(Scope::Admin), app.auth_parts())
    }

    #[test]
    fn key_is_no_failure_before_the_database_is_read() {
        let app = app();
        let key = api_keys::NewKey::random().unwrap();
        for _ in 0..1_000 {
            assert_eq!(authorize(&app, key.reveal()), Err(AuthError::KeysNotLoaded));
        }
        assert_eq!(app.auth_throttle().stats().failures, 0);
        assert_eq!(
            authorize(&app, "wrong"),
            Err(AuthError::KeyRefused(KeyRefusal::Unknown)),
            "a key of another form is always unknown"
        );
        assert!(authorize(&app, "admin").is_ok());
    }
}
