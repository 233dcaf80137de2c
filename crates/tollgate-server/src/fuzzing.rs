//! Entry points for fuzz targets.

use std::sync::LazyLock;
use std::time::Instant;

use tollgate::identity::{DescriptorNormalization, HeadCounting, IdNormalization, NormalForm, Normalization};
use tollgate::{Limiter, MemoryCounters, RuleSet, Seed, Timestamp};
use tollgate_stores::counters::Counters;

use crate::ServiceLimiter;
use crate::api::check::CheckBody;
use crate::auth::Caller;
use crate::check::warnings::Warnings;
use crate::check::{Checker, OverridePolicy};
use crate::config::settings::Settings;
use crate::records::Records;

static LIMITER: LazyLock<ServiceLimiter> = LazyLock::new(|| {
    let rules = RuleSet::new(Vec::new(), None).unwrap_or_else(|error| unreachable!("{error:?}"));
    let rules = rules.with_normalization(normalization());
    let counters = Counters::Memory(MemoryCounters::default());
    let settings = Settings::from_toml("[records]\nenabled = false\n[log]\nrefusals = \"off\"");
    let settings = settings.unwrap_or_else(|error| unreachable!("{error:?}"));
    let records = Records::new(&rules, &settings, false);
    Limiter::with_records(rules, counters, records, Seed([1; 16]))
});

/// Parses and resolves bytes as the body of a check. Returns whether they are one; must neither panic nor hang on any input.
pub fn check_body(body: &[u8]) -> bool {
    let mut warnings = Warnings::default();
    let Ok(check) = CheckBody::parse(body, false, &mut warnings) else { return false };
    let checker = Checker {
        is_unread: false,
        snapshot: LIMITER.snapshot(),
        metrics: &LIMITER.records().metrics,
        key_secret: None,
        caller: &Caller::anonymous(),
        overrides: OverridePolicy { is_open: true, requests_max: None },
        rejects_unknown_tiers: false,
        now: Timestamp::from_secs(0),
        started: Instant::now(),
        recorder: None,
        request_id: None,
    };
    let check = check.request();
    let Ok(resolved) = checker.resolve(&check, &mut warnings) else { return false };
    let request = resolved.request();
    request.client().is_some() && !request.endpoint.as_str().is_empty()
}

/// Tokens of clients.
pub mod token {
    use std::sync::{Arc, LazyLock};

    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use jsonwebtoken::{Algorithm, EncodingKey, crypto};
    use tollgate::Timestamp;

    use crate::auth::jwt::JwtVerifier;
    use crate::config::settings::Settings;

    const SECRET: &str = "0123456789abcdef0123456789abcdef";
    const HEADER: &str = r#"{"alg":"HS256"}"#;

    static VERIFIER: LazyLock<JwtVerifier> = LazyLock::new(|| {
        let settings = format!(
            "[[identity.jwt]]\nissuer = 'i'\naudience = 'a'\nalgorithm = 'HS256'\nsecret = '{SECRET}'\ntenant_claim = 't'\n\
             tier_claim = 'r'"
        );
        let settings = Settings::from_toml(&settings).unwrap_or_else(|error| unreachable!("{error:?}"));
        let verifier = JwtVerifier::new(&settings.jwt.issuers, &Arc::default(), None);
        verifier.unwrap_or_else(|| unreachable!("there is an issuer"))
    });

    /// Whether the token is accepted in 2027. Must neither panic nor hang on any input.
    pub fn is_accepted(token: &str) -> bool {
        VERIFIER.verify(token, Timestamp::from_secs(1_800_000_000)).is_ok()
    }

    /// A token with these claims and a valid signature.
    pub fn sign(claims: &str) -> String {
        let message = format!("{}.{}", URL_SAFE_NO_PAD.encode(HEADER), URL_SAFE_NO_PAD.encode(claims));
        let key = EncodingKey::from_secret(SECRET.as_bytes());
        let signature = crypto::sign(message.as_bytes(), &key, Algorithm::HS256).unwrap_or_default();
        format!("{message}.{signature}")
    }
}

/// PROXY headers.
pub mod proxy_header {
    use std::net::SocketAddr;

    use crate::listener::proxy_header;

    /// The client that a header at the start of these bytes names, if any, and the length of the header. `None` if there is no header.
    /// At most `part` bytes arrive at a time. Must neither panic nor hang on any input.
    pub fn read(bytes: &[u8], part: usize) -> Option<(Option<SocketAddr>, usize)> {
        proxy_header::read_bytes(bytes, part).ok().flatten()
    }
}

/// Bodies of login requests.
pub mod login {
    use std::sync::LazyLock;

    use http::header::CONTENT_TYPE;
    use http::{HeaderMap, HeaderValue};

    use crate::config::settings::{LoginEndpoint, Settings};
    use crate::gateways::login::login_name;

    static ENDPOINT: LazyLock<Option<LoginEndpoint>> = LazyLock::new(|| {
        let settings =
            Settings::from_toml("[[identity.login_endpoints]]\nendpoint = '/login'\nfield = 'name'");
        let settings = settings.unwrap_or_else(|error| unreachable!("{error:?}"));
        settings.client_ids.login_endpoints.into_iter().next()
    });

    /// The login name `name` in a JSON body. Must neither panic nor hang on any input.
    pub fn from_json(body: &[u8]) -> Option<String> {
        read("application/json", body)
    }

    /// The login name `name` in a form.
    pub fn from_form(body: &[u8]) -> Option<String> {
        read("application/x-www-form-urlencoded", body)
    }

    fn read(content_type: &'static str, body: &[u8]) -> Option<String> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        login_name(ENDPOINT.as_ref()?, &headers, body).ok()
    }
}

/// Every normalization at once.
fn normalization() -> Normalization {
    let form = NormalForm::NfcCasefold;
    Normalization {
        ids: IdNormalization { user: form, tenant: form, login: form },
        descriptors: DescriptorNormalization::All(form),
        ignore_path_case: true,
        head: HeadCounting::Separate,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::Index;

    use super::{check_body, login, proxy_header, token};

    const BODY: &str = r#"{"user_id":"u","endpoint":"/a/%C3%89","method":"GET","ip":"::1","cost":2,"descriptors":{"k":"v"}}"#;

    fn is_object_with_endpoint(body: &[u8]) -> bool {
        let value: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
        value.is_object() && value["endpoint"].is_string()
    }

    const PROXY_LINE: &[u8] = b"PROXY TCP4 203.0.113.9 10.0.0.1 56324 443\r\nGET / HTTP/1.1\r\n";

    #[test]
    fn unchanged_header_and_login_are_read() {
        let (client, length) = proxy_header::read(PROXY_LINE, 7).unwrap();
        assert_eq!((client, length), (Some("203.0.113.9:56324".parse().unwrap()), 43));
        assert_eq!(login::from_json(br#"{"x":1,"name":"ann"}"#).as_deref(), Some("ann"));
        assert_eq!(login::from_form(b"x=1&name=ann%20b").as_deref(), Some("ann b"));
    }

    #[test]
    fn unchanged_body_is_a_check() {
        assert!(check_body(BODY.as_bytes()));
    }

    proptest! {
        #[test]
        fn mutated_body_is_rejected_or_a_json_object(edits in prop::collection::vec(any::<(Index, u8)>(), 1..6)) {
            let mut body = BODY.as_bytes().to_vec();
            for (at, byte) in edits {
                *at.get_mut(&mut body) = byte;
            }
            prop_assert!(!check_body(&body) || is_object_with_endpoint(&body));
        }

        #[test]
        fn header_does_not_depend_on_how_it_arrives(edits in prop::collection::vec(any::<(Index, u8)>(), 0..4), part in 1..80_usize) {
            let mut bytes = PROXY_LINE.to_vec();
            for (at, byte) in edits {
                *at.get_mut(&mut bytes) = byte;
            }
            prop_assert_eq!(proxy_header::read(&bytes, part), proxy_header::read(&bytes, usize::MAX));
        }

        #[test]
        fn mutated_login_is_refused_or_that_of_the_body(edits in prop::collection::vec(any::<(Index, u8)>(), 1..4)) {
            let mut body = br#"{"password":"p","name":"ann"}"#.to_vec();
            for (at, byte) in edits {
                *at.get_mut(&mut body) = byte;
            }
            if let Some(name) = login::from_json(&body) {
                let value: serde_json::Value = serde_json::from_slice(&body).unwrap();
                prop_assert_eq!(value["name"].as_str(), Some(&*name));
            }
        }

        #[test]
        fn mutated_claims_are_rejected_or_a_json_object(edits in prop::collection::vec(any::<(Index, u8)>(), 0..4)) {
            let mut claims = br#"{"iss":"i","aud":["a"],"sub":"u","exp":1900000000,"nbf":0.5,"t":"t","r":"r"}"#.to_vec();
            let is_unchanged = edits.is_empty();
            for (at, byte) in edits {
                *at.get_mut(&mut claims) = byte & 0x7f;
            }
            let text = String::from_utf8(claims).unwrap();
            let is_accepted = token::is_accepted(&token::sign(&text));
            prop_assert!(is_accepted || !is_unchanged);
            let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
            prop_assert!(!is_accepted || (value["iss"] == "i" && value["sub"].is_string()));
            prop_assert!(!token::is_accepted(&text));
        }

        #[test]
        fn nested_values_are_rejected_or_a_json_object(depth in 0..2_000_usize, byte in any::<u8>()) {
            let body = [b"{\"endpoint\":\"/\",\"descriptors\":".as_slice(), &vec![b'['; depth], &[byte]].concat();
            prop_assert!(!check_body(&body) || is_object_with_endpoint(&body));
        }
    }
}
