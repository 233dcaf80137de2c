//! Verification keys: a secret, a public key in PEM, or the usable keys of a JSON Web Key Set.
//!
//! A key verifies only algorithms that the settings list for its issuer, whatever a token says.

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind, crypto};
use serde::Deserialize;
use serde_json::value::RawValue;
use thiserror::Error;
use x509_parser::prelude::FromDer;
use x509_parser::public_key::RSAPublicKey;

/// Maximum size of a key set.
pub(crate) const SET_BYTES_MAX: usize = 256 << 10;
/// Maximum number of keys in a set.
pub(crate) const SET_KEYS_MAX: usize = 100;
/// Maximum length of a key id.
pub(crate) const KID_BYTES_MAX: usize = 256;

const RSA_BITS: std::ops::RangeInclusive<usize> = 2_048..=8_192;

/// The keys of one issuer.
#[derive(Debug)]
pub(crate) struct KeySet {
    keys: Vec<Key>,
    /// Whether the set has one configured key, which verifies tokens with any `kid`.
    ignores_kid: bool,
}

/// One key.
#[derive(Debug)]
pub(crate) struct Key {
    id: Option<Box<str>>,
    decoding: DecodingKey,
    /// The algorithms that this key may verify; never empty.
    algorithms: Vec<Algorithm>,
}

/// Why keys cannot be used. The message follows the name of a setting.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum KeyError {
    #[error("contains a private key; set the public key of the issuer")]
    PrivateKey,
    #[error("contains no public key in PEM format (-----BEGIN PUBLIC KEY-----)")]
    NotPem,
    #[error("must be {}, which {} requires", requirement(*.0), name(*.0))]
    Unsuitable(Algorithm),
    #[error("is larger than {SET_BYTES_MAX} bytes")]
    SetTooLarge,
    #[error("is not a JSON Web Key Set ({{\"keys\": [...]}}): {0}")]
    NotASet(String),
    #[error("contains {0} keys; at most {SET_KEYS_MAX} are supported")]
    TooManyKeys(usize),
    #[error("contains no signature key for {}", names(.0))]
    NoUsableKey(Vec<Algorithm>),
}

impl Key {
    /// A configured key, which must fit all algorithms.
    fn new(key: DecodingKey, algorithms: &[Algorithm]) -> Result<Self, KeyError> {
        match algorithms.iter().find(|algorithm| !fits(&key, **algorithm)) {
            Some(algorithm) => Err(KeyError::Unsuitable(*algorithm)),
            None => Ok(Key { id: None, decoding: key, algorithms: algorithms.to_vec() }),
        }
    }

    /// A key of a set. `None` if it is not meant for, or does not fit, any of the algorithms.
    fn from_jwk(text: &str, algorithms: &[Algorithm]) -> Option<Self> {
        let jwk: Jwk = serde_json::from_str(text).ok()?;
        let common = &jwk.common;
        let is_for_signatures =
            common.public_key_use.as_ref().is_none_or(|use_| *use_ == PublicKeyUse::Signature)
                && common.key_operations.as_ref().is_none_or(|all| all.contains(&KeyOperations::Verify));
        let has_valid_id = common.key_id.as_ref().is_none_or(|id| id.len() <= KID_BYTES_MAX);
        if !is_for_signatures || !has_valid_id {
            return None;
        }
        let key = DecodingKey::from_jwk(&jwk).ok()?;
        let is_meant = |algorithm: &Algorithm| {
            common.key_algorithm.is_none_or(|given| given == KeyAlgorithm::from(*algorithm))
                && is_declared(&jwk.algorithm, *algorithm)
                && fits(&key, *algorithm)
        };
        let algorithms: Vec<Algorithm> = algorithms.iter().copied().filter(is_meant).collect();
        let id = common.key_id.as_deref().map(Into::into);
        (!algorithms.is_empty()).then_some(Key { id, decoding: key, algorithms })
    }

    /// Whether this is the signature of the message by this key with this algorithm.
    pub(super) fn verifies(&self, algorithm: Algorithm, message: &str, signature: &str) -> bool {
        self.algorithms.contains(&algorithm)
            && crypto::verify(signature, message.as_bytes(), &self.decoding, algorithm).unwrap_or(false)
    }
}

impl KeySet {
    /// A shared secret for HMAC.
    pub(crate) fn from_secret(secret: &str, algorithms: &[Algorithm]) -> Result<Self, KeyError> {
        let key = DecodingKey::from_secret(secret.as_bytes());
        Ok(KeySet { keys: vec![Key::new(key, algorithms)?], ignores_kid: true })
    }

    /// A public key in PEM.
    pub(crate) fn from_pem(pem: &str, algorithms: &[Algorithm]) -> Result<Self, KeyError> {
        if pem.contains("PRIVATE KEY-----") {
            return Err(KeyError::PrivateKey);
        }
        if !pem.contains("-----BEGIN PUBLIC KEY-----") && !pem.contains("-----BEGIN RSA PUBLIC KEY-----") {
            return Err(KeyError::NotPem);
        }
        let Some(first) = algorithms.first() else { return Err(KeyError::NoUsableKey(Vec::new())) };
        let key = match first.family() {
            AlgorithmFamily::Rsa => DecodingKey::from_rsa_pem(pem.as_bytes()),
            AlgorithmFamily::Ec => DecodingKey::from_ec_pem(pem.as_bytes()),
            _ => DecodingKey::from_ed_pem(pem.as_bytes()),
        };
        let key = key.map_err(|_| KeyError::Unsuitable(*first))?;
        Ok(KeySet { keys: vec![Key::new(key, algorithms)?], ignores_kid: true })
    }

    /// The keys of a JSON Web Key Set that fit the algorithms. Others are ignored: sets also contain keys for encryption.
    pub(crate) fn from_jwks(text: &[u8], algorithms: &[Algorithm]) -> Result<Self, KeyError> {
        #[derive(Deserialize)]
        struct JwkSet<'a> {
            #[serde(borrow)]
            keys: Vec<&'a RawValue>,
        }
        if text.len() > SET_BYTES_MAX {
            return Err(KeyError::SetTooLarge);
        }
        let set: JwkSet<'_> =
            serde_json::from_slice(text).map_err(|error| KeyError::NotASet(error.to_string()))?;
        if set.keys.len() > SET_KEYS_MAX {
            return Err(KeyError::TooManyKeys(set.keys.len()));
        }
        let keys: Vec<Key> = set.keys.iter().filter_map(|key| Key::from_jwk(key.get(), algorithms)).collect();
        if keys.is_empty() {
            return Err(KeyError::NoUsableKey(algorithms.to_vec()));
        }
        Ok(KeySet { keys, ignores_kid: false })
    }

    /// The key that a token names. A token that names none can only mean the only key.
    pub(super) fn find(&self, id: Option<&str>) -> Option<&Key> {
        match id {
            Some(id) if !self.ignores_kid => self.keys.iter().find(|key| key.id.as_deref() == Some(id)),
            _ => self.keys.first().filter(|_| self.keys.len() == 1),
        }
    }

    /// The number of usable keys.
    pub(super) fn len(&self) -> usize {
        self.keys.len()
    }
}

/// Whether a set declares a key for the algorithm. Secrets do not belong in a key set.
fn is_declared(parameters: &AlgorithmParameters, algorithm: Algorithm) -> bool {
    match (parameters, algorithm) {
        (AlgorithmParameters::RSA(_), _) => algorithm.family() == AlgorithmFamily::Rsa,
        (AlgorithmParameters::EllipticCurve(key), Algorithm::ES256) => key.curve == EllipticCurve::P256,
        (AlgorithmParameters::EllipticCurve(key), Algorithm::ES384) => key.curve == EllipticCurve::P384,
        (AlgorithmParameters::OctetKeyPair(key), Algorithm::EdDSA) => key.curve == EllipticCurve::Ed25519,
        _ => false,
    }
}

/// Whether kind and size of a key are those that the algorithm requires.
fn fits(key: &DecodingKey, algorithm: Algorithm) -> bool {
    if key.family() != algorithm.family() {
        return false;
    }
    match (key.kind(), algorithm) {
        (DecodingKeyKind::RsaModulusExponent { n, .. }, _) => RSA_BITS.contains(&bits(n)),
        (DecodingKeyKind::SecretOrDer(bytes), Algorithm::ES256) => bytes.len() == 65 && bytes[0] == 4,
        (DecodingKeyKind::SecretOrDer(bytes), Algorithm::ES384) => bytes.len() == 97 && bytes[0] == 4,
        (DecodingKeyKind::SecretOrDer(bytes), Algorithm::EdDSA) => bytes.len() == 32,
        (DecodingKeyKind::SecretOrDer(bytes), _) => match secret_bytes_min(algorithm) {
            Some(min) => bytes.len() >= min,
            None => RSAPublicKey::from_der(bytes).is_ok_and(|(_, key)| RSA_BITS.contains(&bits(key.modulus))),
        },
    }
}

/// The length of an unsigned big-endian number.
fn bits(number: &[u8]) -> usize {
    let significant = number.iter().skip_while(|byte| **byte == 0).count();
    let first = number.iter().find(|byte| **byte != 0);
    significant * 8 - first.map_or(0, |byte| byte.leading_zeros() as usize)
}

/// The minimum length of a secret: the output of the hash (RFC 7518, 3.2). `None` for public keys.
fn secret_bytes_min(algorithm: Algorithm) -> Option<usize> {
    match algorithm {
        Algorithm::HS256 => Some(32),
        Algorithm::HS384 => Some(48),
        Algorithm::HS512 => Some(64),
        _ => None,
    }
}

fn requirement(algorithm: Algorithm) -> String {
    match (algorithm, secret_bytes_min(algorithm)) {
        (_, Some(min)) => format!("at least {min} bytes long"),
        (Algorithm::ES256, _) => "a P-256 key".to_owned(),
        (Algorithm::ES384, _) => "a P-384 key".to_owned(),
        (Algorithm::EdDSA, _) => "an Ed25519 key".to_owned(),
        _ => format!("an RSA key of {} to {} bits", RSA_BITS.start(), RSA_BITS.end()),
    }
}

/// All algorithms, by their names in settings and tokens.
pub(crate) const ALGORITHMS: [(&str, Algorithm); 12] = [
    ("HS256", Algorithm::HS256),
    ("HS384", Algorithm::HS384),
    ("HS512", Algorithm::HS512),
    ("RS256", Algorithm::RS256),
    ("RS384", Algorithm::RS384),
    ("RS512", Algorithm::RS512),
    ("PS256", Algorithm::PS256),
    ("PS384", Algorithm::PS384),
    ("PS512", Algorithm::PS512),
    ("ES256", Algorithm::ES256),
    ("ES384", Algorithm::ES384),
    ("EdDSA", Algorithm::EdDSA),
];

/// The name of an algorithm in settings and tokens.
pub(crate) fn name(algorithm: Algorithm) -> &'static str {
    ALGORITHMS.iter().find(|(_, other)| *other == algorithm).map_or("", |(name, _)| name)
}

fn names(algorithms: &[Algorithm]) -> String {
    algorithms.iter().map(|algorithm| name(*algorithm)).collect::<Vec<_>>().join(", ")
}
