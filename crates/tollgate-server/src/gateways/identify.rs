//! Who sends a request: verified token, then API key, then login name, then address.
//!
//! The client itself writes everything in here except its address, so nothing is believed that is not verified: a token is checked
//! by signature, an API key by its hash. Names that anyone can send are counted together with the address.

use std::borrow::Cow;
use std::net::IpAddr;

use http::{HeaderMap, HeaderValue, header};
use thiserror::Error;
use tollgate::{Endpoint, Method, Timestamp};

use super::login::login_name;
use crate::app::Reloadable;
use crate::auth::jwt::{JwtError, JwtVerifier, VerifiedToken};
use crate::check::request::CheckRequest;
use crate::config::settings::{ClientIdSettings, InvalidToken, LoginEndpoint};

/// A request of a client. The reverse proxy has the request itself, forward-auth a description of it.
#[derive(Copy, Clone)]
pub(crate) struct ClientRequest<'r> {
    pub(crate) method: &'r str,
    /// The path as sent.
    pub(crate) path: &'r str,
    pub(crate) headers: &'r HeaderMap,
    pub(crate) address: IpAddr,
}

/// How clients are identified.
#[derive(Copy, Clone)]
pub(crate) struct IdentityPolicy<'s> {
    client_ids: &'s ClientIdSettings,
    /// Absent without configured issuers: `Authorization` is not ours to judge then.
    jwt: Option<&'s JwtVerifier>,
    rejects_invalid_tokens: bool,
}

/// The ids of a client.
#[derive(Debug, Default)]
pub(crate) struct Identity<'r> {
    token: Option<VerifiedToken>,
    api_key: Option<&'r str>,
    login: Option<String>,
    address: String,
}

/// Why a request is refused before it is counted.
#[derive(Debug, Error)]
pub(crate) enum IdentityError {
    /// The client must get a new token.
    #[error("the bearer token is invalid: {0}")]
    InvalidToken(JwtError),
    /// The client must send the header once.
    #[error("{header}: {reason}")]
    InvalidHeader { header: Cow<'static, str>, reason: &'static str },
    #[error("{field}: {reason}")]
    InvalidLogin { field: Box<str>, reason: Cow<'static, str> },
    #[error("{0}")]
    InvalidLoginBody(Cow<'static, str>),
    #[error("{0}")]
    UnsupportedLoginBody(&'static str),
    #[error("the body of a login request must be at most {0} bytes")]
    LoginBodyTooLarge(usize),
}

impl<'s> From<&'s Reloadable> for IdentityPolicy<'s> {
    fn from(settings: &'s Reloadable) -> Self {
        IdentityPolicy {
            client_ids: &settings.client_ids,
            jwt: settings.jwt.as_deref(),
            rejects_invalid_tokens: settings.invalid_token == InvalidToken::Reject,
        }
    }
}

impl<'s> IdentityPolicy<'s> {
    /// The login endpoint that a request is sent to. Its body must be read, at most `body_bytes_max` of it.
    pub(crate) fn login_endpoint(&self, request: &ClientRequest<'_>) -> Option<&'s LoginEndpoint> {
        if self.client_ids.login_endpoints.is_empty() {
            return None;
        }
        // A path or method that is invalid is reported by the check.
        let endpoint = Endpoint::parse(request.path).ok()?;
        self.client_ids.login_endpoint(Method::parse(request.method).ok(), &endpoint)
    }

    /// Identifies the client. `login` is the body of a request to a login endpoint.
    pub(crate) fn identify<'r>(
        &self,
        request: &ClientRequest<'r>,
        login: Option<(&LoginEndpoint, &[u8])>,
        now: Timestamp,
    ) -> Result<Identity<'r>, IdentityError> {
        Ok(Identity {
            token: self.verified_token(request.headers, now)?,
            api_key: self.api_key(request.headers)?,
            login: login.map(|(endpoint, body)| login_name(endpoint, request.headers, body)).transpose()?,
            address: request.address.to_string(),
        })
    }

    fn verified_token(
        &self,
        headers: &HeaderMap,
        now: Timestamp,
    ) -> Result<Option<VerifiedToken>, IdentityError> {
        let Some(verifier) = self.jwt else { return Ok(None) };
        let Some(value) = single(headers, &header::AUTHORIZATION)? else { return Ok(None) };
        let (scheme, token) = value.split_once(' ').unwrap_or((value, ""));
        // Another scheme is for the server behind the gateway.
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Ok(None);
        }
        match verifier.verify(token.trim(), now) {
            Ok(token) => Ok(Some(token)),
            Err(error) if self.rejects_invalid_tokens => Err(IdentityError::InvalidToken(error)),
            Err(_) => Ok(None),
        }
    }

    fn api_key<'r>(&self, headers: &'r HeaderMap) -> Result<Option<&'r str>, IdentityError> {
        let mut found = None;
        for header in &self.client_ids.api_key_headers {
            let Some(key) = single(headers, header)? else { continue };
            let invalid =
                |reason| Err(IdentityError::InvalidHeader { header: header.to_string().into(), reason });
            // Some proxies join two headers to one with a comma.
            if key.contains(|letter: char| letter == ',' || !letter.is_ascii_graphic()) {
                return invalid("must be one API key of printable characters, without spaces and commas");
            }
            if found.replace(key).is_some() {
                return invalid("is the second API key: send one of identity.api_key_headers");
            }
        }
        Ok(found)
    }
}

impl Identity<'_> {
    /// The check of this client. The tenant and tier are those of its token; an API key brings its own.
    pub(crate) fn check<'c>(&'c self, request: &ClientRequest<'c>) -> CheckRequest<'c> {
        let token = self.token.as_ref();
        CheckRequest {
            endpoint: request.path,
            method: Some(request.method),
            user_id: token.map(|token| &*token.user),
            tenant: token.and_then(|token| token.tenant.as_deref()),
            tier: token.and_then(|token| token.tier.as_deref()),
            api_key: self.api_key,
            login: self.login.as_deref(),
            ip: Some(&self.address),
            from_client: true,
            ..CheckRequest::default()
        }
    }
}

/// The value of a header that may be present once. An empty one is absent: some gateways send it so.
fn single<'h>(headers: &'h HeaderMap, name: &header::HeaderName) -> Result<Option<&'h str>, IdentityError> {
    let mut values = headers.get_all(name).iter().map(HeaderValue::to_str);
    let invalid = |reason| Err(IdentityError::InvalidHeader { header: name.to_string().into(), reason });
    match (values.next(), values.next()) {
        (None, _) => Ok(None),
        (Some(_), Some(_)) => invalid("must be present at most once"),
        (Some(Err(_)), None) => invalid("must be ASCII"),
        (Some(Ok(value)), None) => Ok(Some(value.trim()).filter(|value| !value.is_empty())),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::settings::Settings;

    const NOW: Timestamp = Timestamp::from_secs(1_000_000);

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    fn identify(
        settings: &str,
        jwt: Option<&JwtVerifier>,
        rejects_invalid_tokens: bool,
        fields: &[(&'static str, &str)],
    ) -> Result<String, String> {
        let settings = Settings::from_toml(settings).unwrap();
        let policy = IdentityPolicy { client_ids: &settings.client_ids, jwt, rejects_invalid_tokens };
        let headers = headers(fields);
        let address = IpAddr::from([192, 0, 2, 1]);
        let request = ClientRequest { method: "GET", path: "/a", headers: &headers, address };
        let identity = policy.identify(&request, None, NOW).map_err(|error| error.to_string())?;
        let check = identity.check(&request);
        assert_eq!(
            (check.ip, check.tenant, check.tier, check.from_client),
            (Some("192.0.2.1"), None, None, true)
        );
        Ok(check.user_id.or(check.api_key).or(check.ip).unwrap().to_owned())
    }

    #[test]
    fn two_api_keys_are_refused() {
        let read = |fields: &[(&'static str, &str)]| {
            identify("[identity]\napi_key_headers = [\"X-API-Key\", \"X-Key\"]", None, true, fields)
        };
        assert_eq!(read(&[("x-key", " k1 "), ("x-api-key", "")]).as_deref(), Ok("k1"));
        assert_eq!(read(&[]).as_deref(), Ok("192.0.2.1"));
        for (fields, reason) in [
            (&[("x-api-key", "a"), ("x-api-key", "a")][..], "x-api-key: must be present at most once"),
            (&[("x-api-key", "a"), ("x-key", "a")], "x-key: is the second API key"),
            (&[("x-api-key", "a, b")], "x-api-key: must be one API key"),
            (&[("x-api-key", "a b")], "x-api-key: must be one API key"),
        ] {
            let error = read(fields).unwrap_err();
            assert!(error.starts_with(reason), "{error}");
        }
        let off = identify("[identity]\napi_key_headers = []", None, true, &[("x-api-key", "a")]);
        assert_eq!(off.as_deref(), Ok("192.0.2.1"));
    }

    #[test]
    fn invalid_token_is_refused_or_anonymous() {
        let issuer = "[[identity.jwt]]\nissuer = 'i'\naudience = 'a'\nalgorithm = 'HS256'\nsecret = '01234567890123456789012345678901'";
        let issuers = Settings::from_toml(issuer).unwrap().jwt.issuers;
        let verifier = JwtVerifier::new(&issuers, &Arc::default(), None).unwrap();
        let bearer = [("authorization", "Bearer not.a.token")];
        assert!(
            identify("", Some(&verifier), true, &bearer)
                .unwrap_err()
                .starts_with("the bearer token is invalid")
        );
        assert!(identify("", Some(&verifier), true, &[("authorization", "bearer")]).is_err());
        let anonymous = Ok("192.0.2.1".to_owned());
        assert_eq!(identify("", Some(&verifier), false, &bearer), anonymous);
        assert_eq!(identify("", None, true, &bearer), anonymous, "without issuers it is not ours");
        assert_eq!(identify("", Some(&verifier), true, &[("authorization", "Basic YTpi")]), anonymous);
        let twice = [bearer[0], bearer[0]];
        assert!(identify("", Some(&verifier), false, &twice).unwrap_err().contains("at most once"));
    }
}
