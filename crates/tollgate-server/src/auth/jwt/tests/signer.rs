//! Signs tokens with keys that are created with the `openssl` command.

use std::process::Command;
use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, crypto};
use serde_json::{Value as Json, json};

use crate::auth::jwt::keys;

/// A secret that is long enough for every algorithm.
pub(super) const SECRET: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// A private and a public key in PEM.
pub(super) struct KeyPair {
    pub(super) private: String,
    pub(super) public: String,
}

impl KeyPair {
    pub(super) fn create(options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let openssl = |args: &[&str]| {
            let output = Command::new("openssl").args(args).current_dir(folder.path()).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        };
        openssl(&[&["genpkey", "-out", "private.pem"], options].concat());
        openssl(&["pkey", "-in", "private.pem", "-pubout", "-out", "public.pem"]);
        let read = |name| std::fs::read_to_string(folder.path().join(name)).unwrap();
        KeyPair { private: read("private.pem"), public: read("public.pem") }
    }

    pub(super) fn rsa(bits: u32) -> Self {
        KeyPair::create(&["-algorithm", "RSA", "-pkeyopt", &format!("rsa_keygen_bits:{bits}")])
    }

    pub(super) fn ec(curve: &str) -> Self {
        KeyPair::create(&["-algorithm", "EC", "-pkeyopt", &format!("ec_paramgen_curve:{curve}")])
    }

    pub(super) fn ed() -> Self {
        KeyPair::create(&["-algorithm", "ed25519"])
    }
}

static RSA: LazyLock<KeyPair> = LazyLock::new(|| KeyPair::rsa(2_048));
static EC256: LazyLock<KeyPair> = LazyLock::new(|| KeyPair::ec("P-256"));
static EC384: LazyLock<KeyPair> = LazyLock::new(|| KeyPair::ec("P-384"));
static ED: LazyLock<KeyPair> = LazyLock::new(KeyPair::ed);

/// An issuer with one key.
pub(super) struct Signer {
    algorithm: Algorithm,
    key: EncodingKey,
    /// Absent for secrets.
    public: Option<String>,
}

impl Signer {
    pub(super) fn hmac(name: &str) -> Self {
        let key = EncodingKey::from_secret(SECRET.as_bytes());
        Signer { algorithm: name.parse().unwrap(), key, public: None }
    }

    pub(super) fn rsa(name: &str) -> Self {
        Signer::new(name, &RSA)
    }

    pub(super) fn ec256() -> Self {
        Signer::new("ES256", &EC256)
    }

    pub(super) fn ed() -> Self {
        Signer::new("EdDSA", &ED)
    }

    pub(super) fn new(name: &str, pair: &KeyPair) -> Self {
        let (algorithm, pem) = (name.parse().unwrap(), pair.private.as_bytes());
        let key = match name {
            "EdDSA" => EncodingKey::from_ed_pem(pem),
            "ES256" | "ES384" => EncodingKey::from_ec_pem(pem),
            _ => EncodingKey::from_rsa_pem(pem),
        };
        Signer { algorithm, key: key.unwrap(), public: Some(pair.public.clone()) }
    }

    pub(super) fn of_every_algorithm() -> Vec<Self> {
        let new = |(name, _): &(&str, Algorithm)| match *name {
            "HS256" | "HS384" | "HS512" => Signer::hmac(name),
            "ES256" => Signer::ec256(),
            "ES384" => Signer::new(name, &EC384),
            "EdDSA" => Signer::ed(),
            name => Signer::rsa(name),
        };
        keys::ALGORITHMS.iter().map(new).collect()
    }

    pub(super) fn name(&self) -> &'static str {
        keys::name(self.algorithm)
    }

    pub(super) fn public(&self) -> &str {
        self.public.as_deref().unwrap()
    }

    /// The setting with the key.
    pub(super) fn settings(&self) -> String {
        match &self.public {
            Some(pem) => format!("public_key = '''{pem}'''"),
            None => format!("secret = '{SECRET}'"),
        }
    }

    /// The public key for a key set.
    pub(super) fn jwk(&self, id: &str) -> Json {
        let mut jwk =
            serde_json::to_value(Jwk::from_encoding_key(&self.key, self.algorithm).unwrap()).unwrap();
        jwk["kid"] = id.into();
        jwk
    }

    pub(super) fn token(&self, claims: &Json) -> String {
        self.token_with(&json!({ "alg": self.name(), "typ": "JWT" }), claims)
    }

    pub(super) fn token_with(&self, header: &Json, claims: &Json) -> String {
        self.sign(&header.to_string(), &claims.to_string())
    }

    /// A token with a key id.
    pub(super) fn token_of(&self, id: &str, claims: &Json) -> String {
        self.token_with(&json!({ "alg": self.name(), "kid": id }), claims)
    }

    /// Signs any text, with the algorithm of the key whatever the header says.
    pub(super) fn sign(&self, header: &str, claims: &str) -> String {
        let message = format!("{}.{}", encode(header), encode(claims));
        let signature = crypto::sign(message.as_bytes(), &self.key, self.algorithm).unwrap();
        format!("{message}.{signature}")
    }
}

pub(super) fn encode(text: &str) -> String {
    URL_SAFE_NO_PAD.encode(text)
}
