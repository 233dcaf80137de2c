//! `[[identity.jwt]]`: issuers of the tokens of clients. Messages contain neither secrets nor keys.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jsonwebtoken::{Algorithm, AlgorithmFamily};
use tollgate::config::values::{text, word};
use tollgate::config::{TableReader, Value, id};
use tollgate_stores::redis::Tls;

use super::read::duration;
use super::redis::pem;
use crate::auth::jwt::jwks::{JwksSource, JwksUrl};
use crate::auth::jwt::keys::{ALGORITHMS, KeyError, KeySet, SET_BYTES_MAX};

/// Longer tolerance would keep expired tokens valid for long.
const LEEWAY_MAX: Duration = Duration::from_secs(30);
const NAME_BYTES_MAX: usize = 1_024;
const AUDIENCES_MAX: usize = 100;
const PREFIX_BYTES_MAX: usize = 128;
const KEY_FILE_BYTES_MAX: usize = 64 << 10;

/// The keys of an issuer, of which exactly one is set.
const KEYS: [&str; 6] = ["secret", "secret_file", "public_key", "public_key_file", "jwks_file", "jwks_url"];

/// Tokens of clients.
#[derive(Clone, Debug, Default)]
pub(crate) struct JwtSettings {
    /// The issuers; without any, tokens are not read.
    pub(crate) issuers: Vec<JwtIssuer>,
    /// What happens to requests with an invalid token.
    pub(crate) invalid_token: InvalidToken,
}

/// What happens to requests with an invalid token (`identity.invalid_token`).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum InvalidToken {
    /// They are refused with 401.
    #[default]
    Reject,
    /// They are treated as requests without a token.
    TreatAsAnonymous,
}

impl InvalidToken {
    const ALL: [InvalidToken; 2] = [InvalidToken::Reject, InvalidToken::TreatAsAnonymous];

    /// Its name in the settings.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            InvalidToken::Reject => "reject",
            InvalidToken::TreatAsAnonymous => "treat_as_anonymous",
        }
    }
}

/// An issuer of tokens.
#[derive(Clone, Debug)]
pub(crate) struct JwtIssuer {
    /// The `iss` claim of its tokens.
    pub(crate) issuer: Box<str>,
    /// Accepted audiences; an empty list accepts every token of the issuer.
    pub(crate) audiences: Vec<Box<str>>,
    /// The algorithms that its tokens may use, all of one key family.
    pub(crate) algorithms: Vec<Algorithm>,
    /// Its keys.
    pub(crate) keys: JwtKeys,
    /// Tolerated difference between the clocks.
    pub(crate) leeway: Duration,
    /// The claim with the user.
    pub(crate) user_claim: Box<str>,
    /// The claim with the tenant, if any.
    pub(crate) tenant_claim: Option<Box<str>>,
    /// The claim with the tier, if any.
    pub(crate) tier_claim: Option<Box<str>>,
    /// Put before the user, so that users of several issuers differ.
    pub(crate) user_prefix: Box<str>,
}

/// The keys of an issuer.
#[derive(Clone, Debug)]
pub(crate) enum JwtKeys {
    /// Read with the settings.
    Configured {
        /// Where they come from.
        origin: KeyOrigin,
        /// The keys.
        keys: Arc<KeySet>,
    },
    /// Fetched from a URL.
    Remote(JwksSource),
}

/// Where configured keys come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyOrigin {
    /// `secret`, which is kept only as a key: keys are not printed.
    Secret,
    /// `public_key`, in PEM.
    PublicKey(String),
    /// A file, with the key that names it.
    File(&'static str, PathBuf),
}

/// Reads `identity.jwt` and `identity.invalid_token`.
pub(super) fn read(fields: &mut TableReader<'_, '_>) -> JwtSettings {
    let known = InvalidToken::ALL.map(|policy| (policy.as_str(), policy));
    let invalid_token = fields.read("invalid_token", word(&known)).unwrap_or_default();
    let mut names = Vec::new();
    let mut prefixes: Vec<String> = Vec::new();
    let issuers = fields.list_of_tables("jwt", |one| {
        // Checked first: another error in an issuer must not hide these.
        if let Some(name) = one.peek("issuer", issuer_name) {
            if names.contains(&name) {
                one.report("issuer", format!("another issuer is named {name:?}"));
            }
            names.push(name);
        }
        let prefix = one.peek("user_prefix", user_prefix).unwrap_or_default().to_lowercase();
        if let Some(other) = prefixes.iter().find(|other| overlap(other, &prefix)) {
            one.report("user_prefix", overlapping(other));
        }
        prefixes.push(prefix);
        read_issuer(one)
    });
    JwtSettings { issuers, invalid_token }
}

/// Skips what [`read`] reads.
pub(super) fn skip(fields: &mut TableReader<'_, '_>) {
    fields.skip("invalid_token");
    fields.skip("jwt");
}

/// Whether users with these prefixes could be the same.
fn overlap(one: &str, other: &str) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

fn overlapping(other: &str) -> String {
    format!(
        "users of two issuers could be the same: an earlier issuer has the prefix {other:?}; give each issuer a prefix that \
         does not start with that of another, such as \"google:\""
    )
}

fn read_issuer(fields: &mut TableReader<'_, '_>) -> Option<JwtIssuer> {
    let issuer = fields.require("issuer", issuer_name);
    let audiences = read_audiences(fields);
    let algorithms = read_algorithms(fields);
    let keys = read_keys(fields, algorithms.as_deref());
    let leeway = fields.read("leeway", duration(Duration::ZERO, LEEWAY_MAX)).unwrap_or(LEEWAY_MAX);
    let user_claim = fields.read("user_claim", claim_name).unwrap_or_else(|| "sub".into());
    let tenant_claim = fields.read("tenant_claim", claim_name);
    let tier_claim = fields.read("tier_claim", claim_name);
    let user_prefix = fields.read("user_prefix", user_prefix).unwrap_or_default();
    Some(JwtIssuer {
        issuer: issuer?,
        audiences: audiences?,
        algorithms: algorithms?,
        keys: keys?,
        leeway,
        user_claim,
        tenant_claim,
        tier_claim,
        user_prefix,
    })
}

fn issuer_name(value: &Value) -> Result<Box<str>, String> {
    bounded(value, 1, NAME_BYTES_MAX)
}

fn user_prefix(value: &Value) -> Result<Box<str>, String> {
    bounded(value, 0, PREFIX_BYTES_MAX)
}

fn claim_name(value: &Value) -> Result<Box<str>, String> {
    id(value)
}

fn bounded(value: &Value, min: usize, max: usize) -> Result<Box<str>, String> {
    let text = text(value)?;
    if (min..=max).contains(&text.len()) && !text.chars().any(char::is_control) {
        Ok(text.into())
    } else {
        Err(format!("must be {min} to {max} printable bytes"))
    }
}

fn read_audiences(fields: &mut TableReader<'_, '_>) -> Option<Vec<Box<str>>> {
    if !fields.has("audience") {
        fields.skip("audience");
        let reason = "is missing; set the aud claim of tokens for this service, or [] to accept tokens for any audience";
        fields.report("audience", reason.to_owned());
        return None;
    }
    let audiences = fields.items("audience", issuer_name)?;
    if audiences.len() > AUDIENCES_MAX {
        fields.report("audience", format!("must list at most {AUDIENCES_MAX} audiences"));
    }
    Some(audiences)
}

fn read_algorithms(fields: &mut TableReader<'_, '_>) -> Option<Vec<Algorithm>> {
    let names = || ALGORITHMS.map(|(name, _)| name).join(", ");
    if !fields.has("algorithm") || fields.has_empty_list("algorithm") {
        fields.skip("algorithm");
        fields.report("algorithm", format!("is missing; use one of {}", names()));
        return None;
    }
    let algorithms = fields.items("algorithm", word(&ALGORITHMS))?;
    let first = algorithms.first()?;
    if algorithms.iter().any(|algorithm| algorithm.family() != first.family()) {
        let reason = "must list algorithms of one kind of key: HS, RS and PS, ES, or EdDSA";
        fields.report("algorithm", reason.to_owned());
        return None;
    }
    Some(algorithms)
}

/// Reads the keys. `None` if they are invalid, which is reported, or if the algorithms are.
fn read_keys(fields: &mut TableReader<'_, '_>, algorithms: Option<&[Algorithm]>) -> Option<JwtKeys> {
    let present: Vec<&'static str> = KEYS.into_iter().filter(|key| fields.has(key)).collect();
    let ca = fields.read("jwks_ca_file", pem("certificate", Tls::are_certificates));
    if fields.has("jwks_ca_file") && !fields.has("jwks_url") {
        fields.report("jwks_ca_file", "requires jwks_url".to_owned());
    }
    for key in KEYS {
        fields.skip(key);
    }
    let key = match *present {
        [key] => key,
        [] => {
            fields.report("issuer", format!("has no keys; set one of {}", KEYS.join(", ")));
            return None;
        }
        [first, second, ..] => {
            fields.report(second, format!("set either {first} or {second}, not both"));
            return None;
        }
    };
    let algorithms = algorithms?;
    let is_hmac = algorithms.iter().all(|algorithm| algorithm.family() == AlgorithmFamily::Hmac);
    if is_hmac != key.starts_with("secret") {
        let needed = if is_hmac { "secret or secret_file" } else { "a public key or key set" };
        fields.report(key, format!("does not fit the algorithm, which requires {needed}"));
        return None;
    }
    match key {
        "jwks_url" => {
            let url = fields.read("jwks_url", |value| JwksUrl::parse(&text(value)?))?;
            Some(JwtKeys::Remote(JwksSource { url, ca }))
        }
        _ => fields.read(key, |value| configured(key, value, algorithms)),
    }
}

fn configured(key: &'static str, value: &Value, algorithms: &[Algorithm]) -> Result<JwtKeys, String> {
    let written = text(value)?;
    let reason = |error: KeyError| error.to_string();
    let file = |bytes_max| read_file(&written, bytes_max);
    let (keys, origin) = match key {
        "secret" => (KeySet::from_secret(&written, algorithms), KeyOrigin::Secret),
        "secret_file" => {
            let secret = utf8(file(KEY_FILE_BYTES_MAX)?)?;
            (KeySet::from_secret(secret.trim(), algorithms), KeyOrigin::File(key, written.into()))
        }
        "public_key" => (KeySet::from_pem(&written, algorithms), KeyOrigin::PublicKey(written.clone())),
        "public_key_file" => {
            let pem = utf8(file(KEY_FILE_BYTES_MAX)?)?;
            (KeySet::from_pem(&pem, algorithms), KeyOrigin::File(key, written.into()))
        }
        _ => {
            let set = file(SET_BYTES_MAX)?;
            (KeySet::from_jwks(&set, algorithms), KeyOrigin::File(key, written.into()))
        }
    };
    Ok(JwtKeys::Configured { origin, keys: Arc::new(keys.map_err(reason)?) })
}

/// Reads at most one byte more than allowed.
fn read_file(path: &str, bytes_max: usize) -> Result<Vec<u8>, String> {
    let unreadable = |error: std::io::Error| format!("cannot read {path}: {error}");
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(bytes_max as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() > bytes_max { Err(format!("is larger than {bytes_max} bytes")) } else { Ok(bytes) }
}

fn utf8(bytes: Vec<u8>) -> Result<String, String> {
    String::from_utf8(bytes).map_err(|_| "is not text".to_owned())
}

#[cfg(test)]
mod tests;
