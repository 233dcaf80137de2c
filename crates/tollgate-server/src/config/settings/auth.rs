//! `[auth]`: callers with their keys or certificates, and the secret of API keys.

use std::collections::HashSet;
use std::fmt::Display;
use std::io::Read;
use std::path::PathBuf;

use tollgate::config::values::{boolean, integer, text};
use tollgate::config::{TableReader, Value, id};
use tollgate_stores::redis::Secret;

use super::{AuthSettings, Caller, Credential, KeySecretSettings};
use crate::auth::api_keys;
use crate::auth::client_certificate::{CertificateName, parse_subject};
use crate::auth::scope::{Scope, Scopes};

const NAME_BYTES_MAX: usize = 64;
/// Shorter secrets could be guessed.
const KEY_SECRET_BYTES_MIN: u64 = 32;
const KEY_SECRET_BYTES_MAX: u64 = 1_024;

/// Reads the section.
pub(super) fn read(fields: &mut TableReader<'_, '_>) -> AuthSettings {
    let open_checks = fields.read("open_checks", boolean).unwrap_or(true);
    let override_max = fields.read("override_max", integer(0..=u32::MAX));
    let (mut names, mut keys, mut certificates) = (HashSet::new(), HashSet::new(), HashSet::new());
    let callers = fields.list_of_tables("callers", |one| {
        // Checked first: another error in a caller must not hide a duplicate.
        if let Some(name) = one.peek("name", caller_name)
            && !names.insert(name.clone())
        {
            one.report("name", format!("another caller is named {name:?}"));
        }
        if one.peek("key_sha256", sha256).is_some_and(|key| !keys.insert(key)) {
            one.report("key_sha256", "another caller has this key".to_owned());
        }
        let caller = read_caller(one);
        if let Some(Caller { credential: Credential::Certificate(name), .. }) = &caller
            && !certificates.insert(name.clone())
        {
            one.report("certificate", "another caller has this certificate name".to_owned());
        }
        caller
    });
    AuthSettings { open_checks, override_max, callers, key_secret: read_key_secret(fields) }
}

/// Messages never contain the secret.
fn read_key_secret(fields: &mut TableReader<'_, '_>) -> Option<KeySecretSettings> {
    let inline = fields.read("key_secret", |value| key_secret(text(value)?));
    let from_file = fields.read("key_secret_file", |value| {
        let path = PathBuf::from(text(value)?);
        let unreadable = |error: std::io::Error| format!("cannot read {}: {error}", path.display());
        let mut bytes = Vec::new();
        let file = std::fs::File::open(&path).map_err(unreadable)?;
        file.take(KEY_SECRET_BYTES_MAX + 2).read_to_end(&mut bytes).map_err(unreadable)?;
        let secret = String::from_utf8(bytes).map_err(|_| invalid_key_secret())?;
        Ok((key_secret(secret.trim().to_owned())?, path))
    });
    if fields.has("key_secret") && fields.has("key_secret_file") {
        fields.report("key_secret_file", "set either key_secret or key_secret_file, not both".to_owned());
    }
    match (inline, from_file) {
        (Some(secret), _) => Some(KeySecretSettings { secret, file: None }),
        (None, Some((secret, path))) => Some(KeySecretSettings { secret, file: Some(path) }),
        (None, None) => None,
    }
}

fn key_secret(text: String) -> Result<Secret, String> {
    let length = KEY_SECRET_BYTES_MIN..=KEY_SECRET_BYTES_MAX;
    let is_valid = length.contains(&(text.len() as u64)) && text.bytes().all(|byte| byte.is_ascii_graphic());
    if is_valid { Ok(Secret(text)) } else { Err(invalid_key_secret()) }
}

fn invalid_key_secret() -> String {
    format!(
        "must be {KEY_SECRET_BYTES_MIN} to {KEY_SECRET_BYTES_MAX} printable ASCII characters, the same on all nodes"
    )
}

fn read_caller(fields: &mut TableReader<'_, '_>) -> Option<Caller> {
    let name = fields.require("name", caller_name);
    let credential = read_credential(fields);
    let scopes = fields.items("scopes", scope).map(Scopes::from_iter);
    if !fields.has("scopes") || fields.has_empty_list("scopes") {
        fields.report("scopes", format!("is missing; use one or more of {}", scope_names()));
    }
    let tenant = fields.read("tenant", id);
    Some(Caller { name: name?, credential: credential?, scopes: scopes?, tenant })
}

/// Either a key or a certificate.
fn read_credential(fields: &mut TableReader<'_, '_>) -> Option<Credential> {
    if fields.has("certificate") {
        if fields.has("key_sha256") {
            fields.report("certificate", "set either key_sha256 or certificate, not both".to_owned());
        }
        fields.skip("key_sha256");
        return fields.table("certificate", read_certificate_name).flatten().map(Credential::Certificate);
    }
    fields.require("key_sha256", sha256).map(Credential::KeySha256)
}

/// Exactly one name of the certificate.
fn read_certificate_name(fields: &mut TableReader<'_, '_>) -> Option<CertificateName> {
    let names = [
        fields.read("subject", |value| parse_subject(&text(value)?)),
        fields.read("dns", dns_name),
        fields.read("uri", |value| uri(value, "")),
        fields.read("spiffe", |value| uri(value, "spiffe://")),
    ];
    let written = ["subject", "dns", "uri", "spiffe"].into_iter().filter(|key| fields.has(key));
    let written: Vec<&str> = written.collect();
    match written[..] {
        [] => fields.report("subject", "is missing; set one of subject, dns, uri, spiffe".to_owned()),
        [_] => {}
        [_, second, ..] => {
            fields.report(second, "set only one of subject, dns, uri, spiffe".to_owned());
            return None;
        }
    }
    names.into_iter().flatten().next()
}

fn dns_name(value: &Value) -> Result<CertificateName, String> {
    let name = text(value)?;
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_letter) {
        return Err("must be a DNS name without wildcard, such as \"billing.internal\"".to_owned());
    }
    Ok(CertificateName::Dns(name.to_ascii_lowercase().into()))
}

fn uri(value: &Value, prefix: &str) -> Result<CertificateName, String> {
    let uri = text(value)?;
    let has_scheme = uri.split_once(':').is_some_and(|(scheme, rest)| !scheme.is_empty() && !rest.is_empty());
    if !has_scheme || !uri.starts_with(prefix) || uri.chars().any(char::is_whitespace) {
        let example = "spiffe://example.org/billing";
        return Err(format!("must be a URI such as \"{example}\""));
    }
    Ok(CertificateName::Uri(uri.into()))
}

fn caller_name(value: &Value) -> Result<Box<str>, String> {
    let name = text(value)?;
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        return Err(format!("must be 1 to {NAME_BYTES_MAX} printable bytes"));
    }
    // The audit log must not confuse a caller with the owner of admin.key.
    if name == "admin" {
        Err("\"admin\" is reserved for the owner of admin.key".to_owned())
    } else {
        Ok(name.into())
    }
}

/// The message never quotes the text: it may be the key itself, put here by mistake.
fn sha256(value: &Value) -> Result<[u8; 32], String> {
    api_keys::parse_sha256(&text(value)?).ok_or_else(|| api_keys::INVALID_SHA256.to_owned())
}

fn scope(value: &Value) -> Result<Scope, String> {
    let name = text(value)?;
    Scope::parse(&name).ok_or_else(|| format!("{name:?} is not one of {}", scope_names()))
}

fn scope_names() -> impl Display {
    Scope::ALL.map(Scope::as_str).join(", ")
}
