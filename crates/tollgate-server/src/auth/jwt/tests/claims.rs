//! Validity periods, audiences and identities.

use serde_json::{Value as Json, json};
use tollgate::Timestamp;

use super::signer::Signer;
use super::{NOW, NOW_SECS, alice, claims, key_settings, verifier, with};
use crate::auth::jwt::{JwtError, JwtVerifier};

fn hmac(settings: &str) -> (JwtVerifier, Signer) {
    let signer = Signer::hmac("HS256");
    (verifier(&format!("{settings}\n{}", key_settings(&signer))), signer)
}

/// The name of the claim that the token is refused for.
fn invalid_claim(verifier: &JwtVerifier, token: &str) -> String {
    match verifier.verify(token, NOW) {
        Err(JwtError::InvalidClaim { claim, .. }) => claim.into_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn expiry_is_exact_to_the_microsecond() {
    for (leeway, secs) in [("0s", 0), ("10s", 10), ("30s", 30)] {
        let (verifier, signer) = hmac(&format!("leeway = '{leeway}'"));
        let token = signer.token(&with("exp", json!(NOW_SECS)));
        let end = (NOW_SECS + secs) * 1_000_000;
        assert_eq!(verifier.verify(&token, Timestamp::from_micros(end - 1)), Ok(alice()), "{leeway}");
        assert_eq!(verifier.verify(&token, Timestamp::from_micros(end)), Err(JwtError::Expired), "{leeway}");
        let token = signer.token(&with("nbf", json!(NOW_SECS)));
        let start = (NOW_SECS - secs) * 1_000_000;
        assert_eq!(verifier.verify(&token, Timestamp::from_micros(start)), Ok(alice()), "{leeway}");
        let early = verifier.verify(&token, Timestamp::from_micros(start - 1));
        assert_eq!(early, Err(JwtError::NotYetValid), "{leeway}");
    }
}

#[test]
fn default_leeway_is_thirty_seconds() {
    let (verifier, signer) = hmac("");
    let token = signer.token(&with("exp", json!(NOW_SECS - 30)));
    assert_eq!(verifier.verify(&token, NOW), Err(JwtError::Expired));
    let token = signer.token(&with("exp", json!(NOW_SECS - 29)));
    assert_eq!(verifier.verify(&token, NOW), Ok(alice()));
}

#[test]
fn fractional_dates_are_rounded_against_the_token() {
    let (verifier, signer) = hmac("leeway = '0s'");
    let at = |micros: u64| Timestamp::from_micros(NOW_SECS * 1_000_000 + micros);
    let token = signer.sign(
        r#"{"alg":"HS256"}"#,
        &claims().to_string().replace(&format!("{}", NOW_SECS + 60), &format!("{NOW_SECS}.5")),
    );
    assert_eq!(verifier.verify(&token, at(499_999)), Ok(alice()));
    assert_eq!(verifier.verify(&token, at(500_000)), Err(JwtError::Expired));
    let token = signer.token(&with("nbf", json!(1_800_000_000.5)));
    assert_eq!(verifier.verify(&token, at(499_999)), Err(JwtError::NotYetValid));
    assert_eq!(verifier.verify(&token, at(500_000)), Ok(alice()));
}

#[test]
fn dates_must_be_numbers_in_range() {
    let (verifier, signer) = hmac("");
    assert_eq!(invalid_claim(&verifier, &signer.token(&with("exp", Json::Null))), "exp");
    let wrong = [
        json!("1900000000"),
        json!("2030-01-01T00:00:00Z"),
        json!([1_900_000_000]),
        json!({ "a": 1 }),
        json!(true),
        json!(-1),
        json!(-0.5),
        json!(4_503_599_628_u64),
        json!(1_900_000_000_000_u64),
        json!(u64::MAX),
        json!(1e300),
    ];
    for value in wrong {
        for claim in ["exp", "nbf"] {
            assert_eq!(
                invalid_claim(&verifier, &signer.token(&with(claim, value.clone()))),
                claim,
                "{value}"
            );
        }
    }
    for text in ["null", "1e400", "99999999999999999999999999"] {
        let claims = claims().to_string().replace(&format!("{}", NOW_SECS + 60), text);
        assert_eq!(invalid_claim(&verifier, &signer.sign(r#"{"alg":"HS256"}"#, &claims)), "exp", "{text}");
    }
}

#[test]
fn audience_must_be_one_of_the_configured() {
    let signer = Signer::hmac("HS256");
    let with_audience = |audience: &str| {
        super::verifier_of(&format!(
            "[[identity.jwt]]\nissuer = '{}'\naudience = {audience}\n{}",
            super::ISSUER,
            key_settings(&signer)
        ))
    };
    let several = with_audience("['api', 'web']");
    for accepted in [json!("api"), json!("web"), json!(["other", "web"]), json!(["api"])] {
        assert_eq!(
            several.verify(&signer.token(&with("aud", accepted.clone())), NOW),
            Ok(alice()),
            "{accepted}"
        );
    }
    for refused in [json!("other"), json!([]), json!(["other"]), json!(""), json!("api web"), Json::Null] {
        let outcome = several.verify(&signer.token(&with("aud", refused.clone())), NOW);
        assert_eq!(outcome, Err(JwtError::WrongAudience), "{refused}");
    }
    for invalid in [json!(1), json!([1]), json!({ "api": 1 })] {
        assert_eq!(invalid_claim(&several, &signer.token(&with("aud", invalid))), "aud");
    }
    let any = with_audience("[]");
    for accepted in [json!("other"), Json::Null] {
        assert_eq!(any.verify(&signer.token(&with("aud", accepted)), NOW), Ok(alice()));
    }
}

#[test]
fn issuer_must_match_exactly() {
    let (verifier, signer) = hmac("");
    for issuer in [
        json!("https://idp.example/"),
        json!("https://IDP.example"),
        json!("other"),
        json!(["https://idp.example"]),
        json!(1),
        json!(""),
        Json::Null,
    ] {
        let outcome = verifier.verify(&signer.token(&with("iss", issuer.clone())), NOW);
        assert_eq!(outcome, Err(JwtError::UnknownIssuer), "{issuer}");
    }
}

#[test]
fn identity_claims_must_be_short_strings() {
    let (verifier, signer) =
        hmac("user_claim = 'uid'\ntenant_claim = 'https://example.com/org'\ntier_claim = 'plan'");
    let claims = |user: Json, tenant: Json, tier: Json| {
        let mut claims = with("sub", Json::Null);
        for (name, value) in [("uid", user), ("https://example.com/org", tenant), ("plan", tier)] {
            if !value.is_null() {
                claims[name] = value;
            }
        }
        claims
    };
    let good = verifier.verify(&signer.token(&claims(json!("u"), json!("t"), json!("gold"))), NOW).unwrap();
    assert_eq!((&*good.user, good.tenant.as_deref(), good.tier.as_deref()), ("u", Some("t"), Some("gold")));
    // Only the tier is optional.
    let good = verifier.verify(&signer.token(&claims(json!("u"), json!("t"), Json::Null)), NOW).unwrap();
    assert_eq!(good.tier, None);
    let id = json!("u".repeat(256));
    assert!(verifier.verify(&signer.token(&claims(id.clone(), id.clone(), id)), NOW).is_ok());
    let missing = claims(Json::Null, json!("t"), json!("gold"));
    assert_eq!(invalid_claim(&verifier, &signer.token(&missing)), "uid");
    let missing = claims(json!("u"), Json::Null, json!("gold"));
    assert_eq!(invalid_claim(&verifier, &signer.token(&missing)), "https://example.com/org");
    for wrong in [json!(1), json!(["u"]), json!({ "u": 1 }), json!(""), json!(true), json!("u".repeat(257))] {
        let token = |user: &Json, tenant: &Json, tier: &Json| {
            signer.token(&claims(user.clone(), tenant.clone(), tier.clone()))
        };
        let text = json!("x");
        assert_eq!(invalid_claim(&verifier, &token(&wrong, &text, &text)), "uid", "{wrong}");
        assert_eq!(invalid_claim(&verifier, &token(&text, &wrong, &text)), "https://example.com/org");
        assert_eq!(invalid_claim(&verifier, &token(&text, &text, &wrong)), "plan");
    }
}

#[test]
fn prefixed_user_is_at_most_256_bytes() {
    let (verifier, signer) = hmac("user_prefix = 'idp:'");
    let user = |length: usize| verifier.verify(&signer.token(&with("sub", json!("u".repeat(length)))), NOW);
    assert_eq!(user(252).unwrap().user.len(), 256);
    assert!(matches!(user(253), Err(JwtError::InvalidClaim { .. })));
}
