//! Forged headers, keys and signatures.

use jsonwebtoken::{Algorithm, EncodingKey, crypto};
use serde_json::{Value as Json, json};

use super::signer::{KeyPair, Signer, encode};
use super::{NOW, alice, claims, key_settings, verifier, with};
use crate::auth::jwt::token::TOKEN_BYTES_MAX;
use crate::auth::jwt::{JwtError, JwtVerifier};

fn is_malformed(outcome: &Result<super::VerifiedToken, JwtError>) -> bool {
    matches!(outcome, Err(JwtError::Malformed(_)))
}

/// A verifier with a key set of one key, and the folder of its file.
fn with_key_set(signer: &Signer, id: &str) -> (JwtVerifier, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys.json");
    std::fs::write(&file, json!({ "keys": [signer.jwk(id)] }).to_string()).unwrap();
    let settings = format!("algorithm = '{}'\njwks_file = '{}'", signer.name(), file.display());
    (verifier(&settings), folder)
}

#[test]
fn unsigned_tokens_are_refused() {
    for signer in [Signer::hmac("HS256"), Signer::rsa("RS256"), Signer::ec256()] {
        let verifier = verifier(&key_settings(&signer));
        for name in ["none", "None", "NONE", "nOnE", "", "hs256", "RS256 ", "HS256\0"] {
            let header = encode(&json!({ "alg": name }).to_string());
            for signature in ["", "AA", "e30"] {
                let token = format!("{header}.{}.{signature}", encode(&claims().to_string()));
                assert_eq!(verifier.verify(&token, NOW), Err(JwtError::WrongAlgorithm), "{name:?}");
            }
        }
        let header = encode(&json!({ "alg": signer.name() }).to_string());
        let unsigned = format!("{header}.{}.", encode(&claims().to_string()));
        assert_eq!(verifier.verify(&unsigned, NOW), Err(JwtError::InvalidSignature));
    }
}

#[test]
fn public_key_is_no_hmac_secret() {
    for signer in [Signer::rsa("RS256"), Signer::ec256(), Signer::ed()] {
        let verifier = verifier(&key_settings(&signer));
        for secret in [signer.public(), signer.public().trim_end()] {
            let message = format!(
                "{}.{}",
                encode(&json!({ "alg": "HS256" }).to_string()),
                encode(&claims().to_string())
            );
            let key = EncodingKey::from_secret(secret.as_bytes());
            let signature = crypto::sign(message.as_bytes(), &key, Algorithm::HS256).unwrap();
            let token = format!("{message}.{signature}");
            assert_eq!(verifier.verify(&token, NOW), Err(JwtError::WrongAlgorithm));
            // The same signature under the configured name.
            let header = encode(&json!({ "alg": signer.name() }).to_string());
            let token = format!("{header}.{}.{signature}", encode(&claims().to_string()));
            assert_eq!(verifier.verify(&token, NOW), Err(JwtError::InvalidSignature));
        }
    }
}

#[test]
fn other_algorithms_of_the_same_key_are_refused() {
    let verifier = verifier(&key_settings(&Signer::rsa("RS256")));
    for name in ["RS384", "RS512", "PS256", "PS384", "PS512"] {
        let token = Signer::rsa(name).token(&claims());
        assert_eq!(verifier.verify(&token, NOW), Err(JwtError::WrongAlgorithm), "{name}");
        // The header lies about the algorithm.
        let token = Signer::rsa(name).token_with(&json!({ "alg": "RS256" }), &claims());
        assert_eq!(verifier.verify(&token, NOW), Err(JwtError::InvalidSignature), "{name}");
    }
}

#[test]
fn keys_of_others_are_refused() {
    let verifier = verifier(&key_settings(&Signer::ec256()));
    let other = Signer::new("ES256", &KeyPair::ec("P-256"));
    assert_eq!(verifier.verify(&other.token(&claims()), NOW), Err(JwtError::InvalidSignature));
}

#[test]
fn key_id_is_only_a_name() {
    let signer = Signer::ec256();
    let (verifier, _folder) = with_key_set(&signer, "k1");
    assert_eq!(verifier.verify(&signer.token_of("k1", &claims()), NOW), Ok(alice()));
    // The set has one key, so a token without kid means it.
    assert_eq!(verifier.verify(&signer.token(&claims()), NOW), Ok(alice()));
    for id in [
        "",
        "K1",
        "k1 ",
        "../../../../dev/null",
        "/dev/null",
        "k1' OR '1'='1",
        "k1'; DROP TABLE keys; --",
        "http://127.0.0.1:1/keys.json",
        "file:///etc/passwd",
        "k1\0",
        "$(touch /tmp/x)",
    ] {
        assert_eq!(
            verifier.verify(&signer.token_of(id, &claims()), NOW),
            Err(JwtError::UnknownKey),
            "{id:?}"
        );
    }
    assert!(is_malformed(&verifier.verify(&signer.token_of(&"k".repeat(257), &claims()), NOW)));
    for id in [json!(1), json!(["k1"]), json!({ "k1": 1 }), json!(null)] {
        let token = signer.token_with(&json!({ "alg": "ES256", "kid": id }), &claims());
        assert!(is_malformed(&verifier.verify(&token, NOW)), "{id}");
    }
}

#[test]
fn keys_in_the_header_are_ignored() {
    let (good, attacker) = (Signer::ec256(), Signer::new("ES256", &KeyPair::ec("P-256")));
    let (verifier, _folder) = with_key_set(&good, "k1");
    let url = "http://127.0.0.1:1/keys.json";
    for (name, value) in [
        ("jwk", attacker.jwk("k1")),
        ("jku", json!(url)),
        ("x5u", json!(url)),
        ("x5c", json!(["MIIB"])),
        ("x5t", json!("AAAA")),
    ] {
        let mut header = json!({ "alg": "ES256", "kid": "k1" });
        header[name] = value;
        let forged = attacker.token_with(&header, &claims());
        assert_eq!(verifier.verify(&forged, NOW), Err(JwtError::InvalidSignature), "{name}");
        assert_eq!(verifier.verify(&good.token_with(&header, &claims()), NOW), Ok(alice()), "{name}");
    }
}

#[test]
fn critical_extensions_are_refused() {
    let signer = Signer::hmac("HS256");
    let verifier = verifier(&key_settings(&signer));
    for header in [
        json!({ "alg": "HS256", "crit": ["exp"], "exp": 1 }),
        json!({ "alg": "HS256", "crit": ["b64"], "b64": false }),
        json!({ "alg": "HS256", "crit": [] }),
        json!({ "alg": "HS256", "crit": null }),
    ] {
        assert!(is_malformed(&verifier.verify(&signer.token_with(&header, &claims()), NOW)), "{header}");
    }
}

#[test]
fn encrypted_and_oversized_tokens_are_refused() {
    let signer = Signer::hmac("HS256");
    let verifier = verifier(&key_settings(&signer));
    let header = encode(&json!({ "alg": "dir", "enc": "A256GCM", "zip": "DEF" }).to_string());
    let jwe = format!("{header}..AAAA.AAAA.AAAA");
    assert_eq!(verifier.verify(&jwe, NOW), Err(JwtError::Encrypted));
    // Nested: the payload is a token again.
    let inner = signer.token(&claims());
    let nested = signer.sign(&json!({ "alg": "HS256", "cty": "JWT" }).to_string(), &inner);
    assert!(is_malformed(&verifier.verify(&nested, NOW)));
    let padded = |length: usize| signer.token(&with("x", json!("x".repeat(length))));
    let largest =
        (0..TOKEN_BYTES_MAX).rev().map(padded).find(|token| token.len() <= TOKEN_BYTES_MAX).unwrap();
    assert!(largest.len() > TOKEN_BYTES_MAX - 3);
    assert_eq!(verifier.verify(&largest, NOW), Ok(alice()));
    for token in [padded(TOKEN_BYTES_MAX), "a".repeat(TOKEN_BYTES_MAX + 1), ".".repeat(1 << 20)] {
        assert_eq!(verifier.verify(&token, NOW), Err(JwtError::TooLarge));
    }
}

#[test]
fn malformed_tokens_are_refused() {
    let signer = Signer::hmac("HS256");
    let verifier = verifier(&key_settings(&signer));
    let good = signer.token(&claims());
    let texts = [
        "",
        ".",
        "..",
        "...",
        "a.b",
        "a.b.c",
        "é.é.é",
        "Bearer x",
        "e30.e30.e30",
        "W10.W10.",
        "bnVsbA.bnVsbA.",
    ];
    for token in texts.map(str::to_owned).into_iter().chain([
        format!("{good}="),
        format!(" {good}"),
        format!("{good} "),
        format!("{good}."),
        good.replace('.', ".."),
        signer.sign("{\"alg\":\"HS256\"", &claims().to_string()),
        signer.sign("[\"HS256\"]", &claims().to_string()),
        signer.sign("{\"alg\":\"HS256\"}", "[]"),
        signer.sign("{\"alg\":\"HS256\"}", &format!("{}x", claims())),
        signer.sign("{\"alg\":[\"HS256\"]}", &claims().to_string()),
        signer.sign("{}", &claims().to_string()),
    ]) {
        assert!(verifier.verify(&token, NOW).is_err(), "{token}");
    }
}

#[test]
fn duplicate_names_are_refused() {
    let signer = Signer::hmac("HS256");
    let verifier = verifier(&key_settings(&signer));
    let exp = &claims()["exp"];
    let base = format!(r#""iss":"{}","aud":"api","sub":"alice","exp":{exp}"#, super::ISSUER);
    assert_eq!(verifier.verify(&signer.sign(r#"{"alg":"HS256"}"#, &format!("{{{base}}}")), NOW), Ok(alice()));
    for duplicate in [
        r#""sub":"bob""#,
        r#""sub":"alice""#,
        r#""\u0073ub":"bob""#,
        r#""exp":9999999999"#,
        r#""aud":"other""#,
        r#""iss":"other""#,
        r#""x":1,"x":2"#,
    ] {
        let token = signer.sign(r#"{"alg":"HS256"}"#, &format!("{{{base},{duplicate}}}"));
        assert!(is_malformed(&verifier.verify(&token, NOW)), "{duplicate}");
    }
    let token = signer.sign(r#"{"alg":"none","alg":"HS256"}"#, &format!("{{{base}}}"));
    assert!(is_malformed(&verifier.verify(&token, NOW)));
}

#[test]
fn every_changed_bit_is_noticed() {
    for signer in [Signer::hmac("HS256"), Signer::ec256()] {
        let verifier = verifier(&key_settings(&signer));
        let token = signer.token(&claims());
        assert_eq!(verifier.verify(&token, NOW), Ok(alice()));
        for (at, bit) in (0..token.len()).flat_map(|at| (0..7).map(move |bit| (at, bit))) {
            let mut bytes = token.clone().into_bytes();
            bytes[at] ^= 1 << bit;
            let changed = String::from_utf8(bytes).unwrap();
            assert!(verifier.verify(&changed, NOW).is_err(), "byte {at}, bit {bit}");
        }
        for length in 0..token.len() {
            assert!(verifier.verify(&token[..length], NOW).is_err(), "{length}");
        }
    }
}

#[test]
fn unsuitable_keys_of_a_set_are_ignored() {
    let (ec, rsa) = (Signer::ec256(), Signer::rsa("RS256"));
    let changed = |id: &str, name: &str, value: Json| {
        let mut key = ec.jwk(id);
        key[name] = value;
        key
    };
    let keys = json!({ "keys": [
        changed("encryption", "use", json!("enc")),
        changed("other-alg", "alg", json!("ES384")),
        changed("other-curve", "crv", json!("P-384")),
        changed("encrypts", "key_ops", json!(["encrypt"])),
        changed("short", "x", json!("AAAA")),
        rsa.jwk("rsa"),
        { "kty": "oct", "k": encode("0123456789abcdef0123456789abcdef"), "kid": "secret", "alg": "ES256" },
        { "kty": "unknown", "kid": "unknown" },
        "not an object",
        changed("good", "use", json!("sig")),
    ]});
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys.json");
    std::fs::write(&file, keys.to_string()).unwrap();
    let verifier = verifier(&format!("algorithm = 'ES256'\njwks_file = '{}'", file.display()));
    assert_eq!(verifier.verify(&ec.token_of("good", &claims()), NOW), Ok(alice()));
    for id in ["encryption", "other-alg", "other-curve", "encrypts", "short", "rsa", "secret", "unknown"] {
        assert_eq!(verifier.verify(&ec.token_of(id, &claims()), NOW), Err(JwtError::UnknownKey), "{id}");
    }
}
