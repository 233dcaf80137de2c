//! Who calls tollgate itself, and what they may do.

use http::HeaderMap;
use http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::error::{ApiError, Code};
use crate::scope::{Scope, Scopes};
use crate::settings::{AuthSettings, Caller as CallerSettings};

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
    scopes: Scopes,
}

impl Caller {
    fn anonymous() -> Self {
        Caller { name: "".into(), scopes: Scopes::default() }
    }

    /// Whether the caller's key has this scope.
    pub(crate) fn has(&self, scope: Scope) -> bool {
        self.scopes.has(scope)
    }
}

/// The keys that are known, and whether checks need one.
#[derive(Debug)]
pub(crate) struct Gate {
    callers: Vec<CallerSettings>,
    open_checks: bool,
}

impl Gate {
    pub(crate) fn new(settings: &AuthSettings, admin_key: &str) -> Self {
        let mut callers = settings.callers.clone();
        callers.push(CallerSettings {
            name: "admin".into(),
            key_sha256: Sha256::digest(admin_key.as_bytes()).into(),
            scopes: Scopes::from(Scope::Admin),
        });
        Gate { callers, open_checks: settings.open_checks }
    }

    /// Whether anyone may check.
    pub(crate) fn open_checks(&self) -> bool {
        self.open_checks
    }

    /// The caller, if the route lets it in.
    pub(crate) fn admit(&self, headers: &HeaderMap, access: Access) -> Result<Caller, ApiError> {
        let needed = match access {
            // Probes may come through proxies with credentials of their own: they are no business of ours.
            Access::Anyone => return Ok(Caller::anonymous()),
            Access::OpenScope(scope) | Access::Keyed(scope) => scope,
        };
        let open = self.open_checks && matches!(access, Access::OpenScope(_));
        match self.identify(headers)? {
            None if open => Ok(Caller::anonymous()),
            Some(caller) if open => Ok(caller),
            Some(caller) if caller.has(needed) => Ok(caller),
            Some(_) => Err(forbidden(needed)),
            None => Err(ApiError::new(
                Code::Unauthorized,
                "a key is needed: Authorization: Bearer … (the admin key is in admin.key of the data directory)",
            )),
        }
    }

    fn identify(&self, headers: &HeaderMap) -> Result<Option<Caller>, ApiError> {
        let Some(value) = headers.get(AUTHORIZATION) else { return Ok(None) };
        let unknown = || ApiError::new(Code::Unauthorized, "the key is not known");
        let text = value.to_str().map_err(|_| unknown())?;
        let (scheme, key) = text.split_once(' ').ok_or_else(unknown)?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(ApiError::new(Code::Unauthorized, "the key goes into Authorization: Bearer …"));
        }
        let presented: [u8; 32] = Sha256::digest(key.trim().as_bytes()).into();
        // Every known key is compared, and each in constant time: how long it takes tells nothing about them.
        let mut found = None;
        for caller in &self.callers {
            if bool::from(caller.key_sha256.ct_eq(&presented)) {
                found = Some(Caller { name: caller.name.clone(), scopes: caller.scopes });
            }
        }
        found.map(Some).ok_or_else(unknown)
    }
}

/// The caller's key lacks this scope.
pub(crate) fn forbidden(scope: Scope) -> ApiError {
    ApiError::new(Code::Forbidden, format!("the key does not have the scope {}", scope.as_str()))
}
