//! Tokens that are accepted and refused, with a fixed time.

mod attacks;
mod claims;
mod fetching;
mod signer;

use std::sync::Arc;

use serde_json::{Value as Json, json};
use tollgate::Timestamp;

use self::signer::Signer;
use super::{JwtError, JwtVerifier, VerifiedToken};
use crate::config::settings::Settings;

const NOW_SECS: u64 = 1_800_000_000;
const NOW: Timestamp = Timestamp::from_secs(NOW_SECS);
const ISSUER: &str = "https://idp.example";

/// A verifier with these settings of one issuer, besides `issuer` and `audience`.
fn verifier(settings: &str) -> JwtVerifier {
    let settings = format!("[[identity.jwt]]\nissuer = '{ISSUER}'\naudience = 'api'\n{settings}");
    verifier_of(&settings)
}

fn verifier_of(settings: &str) -> JwtVerifier {
    let settings = Settings::from_toml(settings).unwrap_or_else(|error| panic!("{error:?}"));
    JwtVerifier::new(&settings.jwt.issuers, &Arc::default(), None).unwrap()
}

/// The settings of an issuer with this key.
fn key_settings(signer: &Signer) -> String {
    format!("algorithm = '{}'\n{}", signer.name(), signer.settings())
}

fn claims() -> Json {
    json!({ "iss": ISSUER, "aud": "api", "sub": "alice", "exp": NOW_SECS + 60 })
}

/// The claims with another value of one of them; `null` removes it.
fn with(name: &str, value: Json) -> Json {
    let mut claims = claims();
    let members = claims.as_object_mut().unwrap();
    if value.is_null() {
        members.remove(name)
    } else {
        members.insert(name.to_owned(), value)
    };
    claims
}

fn alice() -> VerifiedToken {
    VerifiedToken { user: "alice".into(), tenant: None, tier: None }
}

#[test]
fn every_algorithm_is_accepted() {
    for signer in Signer::of_every_algorithm() {
        let verifier = verifier(&key_settings(&signer));
        assert_eq!(verifier.verify(&signer.token(&claims()), NOW), Ok(alice()), "{}", signer.name());
    }
}

#[test]
fn listed_algorithms_of_one_key_are_accepted() {
    let [first, second] = [Signer::rsa("RS256"), Signer::rsa("PS512")];
    let verifier = verifier(&format!("algorithm = ['RS256', 'PS512']\n{}", first.settings()));
    for signer in [first, second] {
        assert_eq!(verifier.verify(&signer.token(&claims()), NOW), Ok(alice()));
    }
    let other = Signer::rsa("RS384").token(&claims());
    assert_eq!(verifier.verify(&other, NOW), Err(JwtError::WrongAlgorithm));
}

#[test]
fn tokens_select_their_issuer() {
    let [google, okta] = [Signer::ec256(), Signer::ed()];
    let table = |name: &str, prefix: &str, signer: &Signer| {
        format!(
            "[[identity.jwt]]\nissuer = '{name}'\naudience = []\nuser_prefix = '{prefix}'\n{}\n",
            key_settings(signer)
        )
    };
    let verifier = verifier_of(&[table("google", "g:", &google), table("okta", "o:", &okta)].concat());
    let token = |issuer: &str, signer: &Signer| signer.token(&with("iss", json!(issuer)));
    let user = |token: String| verifier.verify(&token, NOW).map(|token| token.user.into_string());
    assert_eq!(user(token("google", &google)), Ok("g:alice".to_owned()));
    assert_eq!(user(token("okta", &okta)), Ok("o:alice".to_owned()));
    assert_eq!(user(token("okta", &google)), Err(JwtError::WrongAlgorithm));
    assert_eq!(user(token("other", &google)), Err(JwtError::UnknownIssuer));
}

#[test]
fn cached_token_expires_and_is_counted() {
    let signer = Signer::ec256();
    let verifier = verifier(&format!("leeway = '0s'\n{}", key_settings(&signer)));
    let token = signer.token(&claims());
    for secs in 0..60 {
        assert_eq!(verifier.verify(&token, Timestamp::from_secs(NOW_SECS + secs)), Ok(alice()), "{secs}");
    }
    let expired = verifier.verify(&token, Timestamp::from_secs(NOW_SECS + 60));
    assert_eq!(expired, Err(JwtError::Expired));
    assert_eq!(verifier.stats.accepted(), 60);
    assert!(verifier.stats.refused().eq(JwtError::REASONS.map(|name| (name, u64::from(name == "expired")))));
}

#[test]
fn cached_token_does_not_vouch_for_a_changed_one() {
    let signer = Signer::ec256();
    let verifier = verifier(&key_settings(&signer));
    let token = signer.token(&claims());
    assert!(verifier.verify(&token, NOW).is_ok());
    let (message, signature) = token.rsplit_once('.').unwrap();
    let forged = signer::encode(&with("sub", json!("mallory")).to_string());
    let header = message.split_once('.').unwrap().0;
    let forged = format!("{header}.{forged}.{signature}");
    assert_eq!(verifier.verify(&forged, NOW), Err(JwtError::InvalidSignature));
}
