//! Who sends a request: verified token, then API key, then login name, then address.
//!
//! The client itself writes everything in here except its address, so nothing is believed that is not verified: a token is checked
//! by signature, an API key by its hash. Names that anyone can send are counted together with the address.

use std::borrow::Cow;
use std::net::IpAddr;

use http::{HeaderMap, HeaderValue, header};
use thiserror::Error;
use tollgate::{Endpoint, Method, Span, Timestamp};

use super::login::login_name;
use crate::app::Reloadable;
use crate::auth::jwt::{JwtError, JwtVerifier, VerifiedToken};
use crate::auth::throttle::AuthThrottle;
use crate::check::request::{CheckRequest, SentIp};
use crate::config::settings::{ClientIdSettings, InvalidToken, LoginEndpoint};
use crate::runtime::clock::Clock;

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
    /// Backs off clients with invalid tokens.
    throttle: &'s AuthThrottle,
}

/// The ids of a client.
#[derive(Debug, Default)]
pub(crate) struct Identity<'r> {
    token: Option<VerifiedToken>,
    api_key: Option<&'r str>,
    login: Option<String>,
}

/// Why a request is refused before it is counted.
#[derive(Debug, Error)]
pub(crate) enum IdentityError {
    /// The client must get a new token.
    #[error("the bearer token is invalid: {0}")]
    InvalidToken(JwtError),
    /// The client must wait.
    #[error("too many invalid bearer tokens from this address; retry after Retry-After")]
    TooManyInvalidTokens { wait: Span },
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

impl<'s> IdentityPolicy<'s> {
    pub(crate) fn new(settings: &'s Reloadable, throttle: &'s AuthThrottle) -> Self {
        IdentityPolicy {
            client_ids: &settings.client_ids,
            jwt: settings.jwt.as_deref(),
            rejects_invalid_tokens: settings.invalid_token == InvalidToken::Reject,
            throttle,
        }
    }

    /// The login endpoint that a request is sent to. Its body must be read, at most `body_bytes_max` of it.
    pub(crate) fn login_endpoint(&self, method: &str, path: &str) -> Option<&'s LoginEndpoint> {
        if self.client_ids.login_endpoints.is_empty() {
            return None;
        }
        // A path or method that is invalid is reported by the check.
        let endpoint = Endpoint::parse(path).ok()?;
        self.client_ids.login_endpoint(Method::parse(method).ok(), &endpoint)
    }

    /// Identifies the client. `login` is the body of a request to a login endpoint.
    pub(crate) fn identify<'r>(
        &self,
        request: &ClientRequest<'r>,
        login: Option<(&LoginEndpoint, &[u8])>,
        clock: Clock,
    ) -> Result<Identity<'r>, IdentityError> {
        Ok(Identity {
            token: self.verified_token(request, clock)?,
            api_key: self.api_key(request.headers)?,
            login: login.map(|(endpoint, body)| login_name(endpoint, request.headers, body)).transpose()?,
        })
    }

    fn verified_token(
        &self,
        request: &ClientRequest<'_>,
        clock: Clock,
    ) -> Result<Option<VerifiedToken>, IdentityError> {
        let Some(verifier) = self.jwt else { return Ok(None) };
        let Some(value) = single(request.headers, &header::AUTHORIZATION)? else { return Ok(None) };
        let (scheme, token) = value.split_once(' ').unwrap_or((value, ""));
        // Another scheme is for the server behind the gateway.
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Ok(None);
        }
        match self.verify(verifier, token.trim(), request.address, clock.now()) {
            Ok(token) => Ok(Some(token)),
            Err(_) if !self.rejects_invalid_tokens => Ok(None),
            Err(JwtError::Throttled { wait }) => Err(IdentityError::TooManyInvalidTokens { wait }),
            Err(error) => Err(IdentityError::InvalidToken(error)),
        }
    }

    /// Verifies a token. While its address is in backoff, only tokens that were valid before are read.
    fn verify(
        &self,
        verifier: &JwtVerifier,
        token: &str,
        address: IpAddr,
        now: Timestamp,
    ) -> Result<VerifiedToken, JwtError> {
        if let Some(verified) = verifier.verified_before(token, now) {
            return Ok(verified);
        }
        if let Some(wait) = self.throttle.backoff(address, token, now) {
            return Err(verifier.refuse(JwtError::Throttled { wait }));
        }
        let outcome = verifier.verify_anew(token, now);
        match &outcome {
            Ok(_) => self.throttle.record_success(address, token),
            Err(error) if self.is_guess(error) => self.throttle.record_failure(address, token, now),
            Err(_) => {}
        }
        outcome
    }

    /// Whether a refused token counts as an attempt. One that its issuer signed is no guess, even if it has expired. Where invalid
    /// tokens are ignored, tokens of other systems are expected.
    fn is_guess(&self, error: &JwtError) -> bool {
        error.is_forgery() || (self.rejects_invalid_tokens && error.is_foreign())
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
            ip: Some(SentIp::Address(request.address)),
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
    use std::net::Ipv4Addr;
    use std::sync::Arc;
    use std::time::{Duration, SystemTime};

    use jsonwebtoken::{Algorithm, EncodingKey, Header};
    use serde_json::json;

    use super::*;
    use crate::config::settings::Settings;

    const NOW: Timestamp = Timestamp::from_secs(1_000_000);
    const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    const SECRET: &str = "01234567890123456789012345678901";

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
        let throttle = AuthThrottle::default();
        let client_ids = &settings.client_ids;
        let policy = IdentityPolicy { client_ids, jwt, rejects_invalid_tokens, throttle: &throttle };
        let headers = headers(fields);
        let request = ClientRequest { method: "GET", path: "/a", headers: &headers, address: ADDRESS };
        let clock = Clock::anchored(SystemTime::UNIX_EPOCH + Duration::from_micros(NOW.as_micros()));
        let identity = policy.identify(&request, None, clock).map_err(|error| error.to_string())?;
        let check = identity.check(&request);
        assert_eq!((check.tenant, check.tier, check.from_client), (None, None, true));
        let name = check.user_id.or(check.api_key).map(str::to_owned);
        Ok(name.unwrap_or_else(|| match check.ip.unwrap() {
            SentIp::Address(address) => address.to_string(),
            SentIp::Text(text) => text.to_owned(),
        }))
    }

    fn verifier() -> JwtVerifier {
        let issuer = format!(
            "[[identity.jwt]]\nissuer = 'i'\naudience = 'a'\nalgorithm = 'HS256'\nsecret = '{SECRET}'"
        );
        let issuers = Settings::from_toml(&issuer).unwrap().jwt.issuers;
        JwtVerifier::new(&issuers, &Arc::default(), None).unwrap()
    }

    fn signed(claims: &serde_json::Value, secret: &str) -> String {
        let key = EncodingKey::from_secret(secret.as_bytes());
        jsonwebtoken::encode(&Header::new(Algorithm::HS256), claims, &key).unwrap()
    }

    fn token(user: &str, expires_at: u64, secret: &str) -> String {
        signed(&json!({"iss": "i", "aud": "a", "sub": user, "exp": expires_at}), secret)
    }

    /// Whether the token is accepted at this time, for clients at one address.
    struct Clients<'a> {
        policy: IdentityPolicy<'a>,
        verifier: &'a JwtVerifier,
    }

    impl Clients<'_> {
        fn verify(&self, token: &str, now: Timestamp) -> Result<(), JwtError> {
            self.policy.verify(self.verifier, token, ADDRESS, now).map(drop)
        }

        /// Whether a token that is valid and new is read after this one was sent often.
        fn reads_new_tokens_after(&self, invalid: &str) -> bool {
            for _ in 0..1_000 {
                assert!(self.verify(invalid, NOW).is_err());
            }
            self.verify(&token("newcomer", 1_000_100, SECRET), NOW).is_ok()
        }
    }

    /// Calls `test` with clients that have sent no token yet.
    fn with_clients<T>(rejects_invalid_tokens: bool, test: impl FnOnce(&Clients<'_>) -> T) -> T {
        let (throttle, verifier) = (AuthThrottle::default(), verifier());
        let client_ids = &Settings::from_toml("").unwrap().client_ids;
        let policy =
            IdentityPolicy { client_ids, jwt: Some(&verifier), rejects_invalid_tokens, throttle: &throttle };
        test(&Clients { policy, verifier: &verifier })
    }

    #[test]
    fn guessed_tokens_back_off_their_address() {
        let forged = token("a", 1_000_100, &SECRET.replace('0', "x"));
        let unknown_issuer = signed(&json!({"iss": "j"}), SECRET);
        for guess in [&*forged, &unknown_issuer, "malformed", ""] {
            let reads = with_clients(true, |clients| clients.reads_new_tokens_after(guess));
            assert!(!reads, "{guess}");
        }
        let expired = token("a", 999_000, SECRET);
        assert!(with_clients(true, |clients| clients.reads_new_tokens_after(&expired)), "not a guess");
    }

    #[test]
    fn ignored_tokens_of_other_systems_are_no_guesses() {
        assert!(with_clients(false, |clients| clients.reads_new_tokens_after("opaque")));
        let forged = token("a", 1_000_100, &SECRET.replace('0', "x"));
        assert!(!with_clients(false, |clients| clients.reads_new_tokens_after(&forged)));
    }

    #[test]
    fn verified_token_passes_while_its_address_is_in_backoff() {
        let alice = token("alice", 1_000_100, SECRET);
        with_clients(true, |clients| {
            assert_eq!(clients.verify(&alice, NOW), Ok(()));
            assert!(!clients.reads_new_tokens_after("guess"));
            assert_eq!(clients.verify(&alice, NOW), Ok(()), "from the cache");
            // A reload empties the cache.
            let reloaded = Clients { verifier: &verifier(), policy: clients.policy };
            assert_eq!(reloaded.verify(&alice, NOW), Ok(()), "known from this address");
            let wait = Span::from_secs(1);
            assert_eq!(reloaded.verify("guess", NOW), Err(JwtError::Throttled { wait }));
            assert_eq!(
                reloaded.verify(&token("bob", 1_000_100, SECRET), NOW + wait),
                Ok(()),
                "after backoff"
            );
        });
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
        let verifier = verifier();
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
