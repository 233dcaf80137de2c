//! Parsers of items. Rules and tiers are parsed as in the settings file.

use std::ops::RangeInclusive;

use serde_json::{Map, Value as Json};
use tollgate::accounts::{AccountError, AccountLimits};
use tollgate::config::values::{integer, parse_span, text};
use tollgate::config::{self, TableReader, Value, has_flat_names, read_rule, read_tier};
use tollgate::identity::ID_BYTES_MAX;
use tollgate::{Rule, Span, Timestamp, Window};
use tollgate_stores::sql::{
    BlockItem, BlockKind, Item, KeyItem, QuotaItem, RuleItem, TierItem, UserEndpointLimit,
};

use crate::auth::api_keys;
use crate::auth::scope::Scope;
use crate::check::error::CheckError;
use crate::check::parse::{parse_limit, parse_one_endpoint, parse_strategy};
use crate::config::rule_json;

/// The longest reason or description.
const TEXT_BYTES_MAX: usize = 1_024;

/// Shorter keys can be guessed; longer ones are not accepted in a check.
const IMPORTED_KEY_BYTES: RangeInclusive<usize> = 16..=ID_BYTES_MAX;
const INVALID_IMPORTED_KEY: &str = "must be 16 to 256 printable ASCII characters without spaces";

/// Names of rules that are made from tiers start with this.
pub(crate) const TIER_RULE_PREFIX: &str = "tier:";

/// The problem with a field that only responses have.
pub(crate) const READ_ONLY: &str = "is read-only";

/// Fields of [`super::view::Revision`] and `source`.
const REVISION_FIELDS: [&str; 5] = ["source", "version", "created_by", "created_at", "updated_at"];

pub(crate) fn rule(
    fields: &mut TableReader<'_, '_>,
    values: &Map<String, Json>,
    _: Timestamp,
) -> Option<Item> {
    reject_read_only(fields, &REVISION_FIELDS);
    reject_read_only(fields, &["definition", "problem"]);
    let rule = read_rule(fields)?;
    if rule.name.starts_with(TIER_RULE_PREFIX) {
        fields
            .report("name", format!("must not start with {TIER_RULE_PREFIX:?}, which is reserved for tiers"));
    }
    if let Err(reason) = no_nul(rule.name.to_string()) {
        fields.report("name", reason);
    }
    let mut body = if has_flat_names(fields) { rule_json::definition(&rule) } else { values.clone() };
    body.remove("name");
    set_failure_mode(&mut body, &rule);
    Some(Item::Rule(RuleItem { name: rule.name.into(), body }))
}

pub(crate) fn tier(
    fields: &mut TableReader<'_, '_>,
    values: &Map<String, Json>,
    _: Timestamp,
) -> Option<Item> {
    reject_read_only(fields, &REVISION_FIELDS);
    let description = fields.read("description", prose).unwrap_or_default();
    let name = fields.read("name", id);
    let rule = read_tier(fields)?;
    let mut body = if has_flat_names(fields) { tier_definition(&rule) } else { values.clone() };
    body.remove("name");
    body.remove("description");
    set_failure_mode(&mut body, &rule);
    Some(Item::Tier(TierItem { name: name?, description, body }))
}

/// Replaces aliases of `on_store_failure` and its values, which the database does not store.
fn set_failure_mode(body: &mut Map<String, Json>, rule: &Rule) {
    body.remove("failure_mode");
    if let Some(mode) = rule.on_store_failure {
        body.insert("on_store_failure".to_owned(), mode.as_str().into());
    }
}

/// The keys of `[[tiers]]` for a tier with flat names, which the database does not store.
fn tier_definition(rule: &Rule) -> Map<String, Json> {
    let mut body = rule_json::definition(rule);
    body.retain(|key, _| ["algorithm", "limits", "max_delay", "on_store_failure"].contains(&&**key));
    body
}

pub(crate) fn quota(fields: &mut TableReader<'_, '_>, _: &Map<String, Json>, _: Timestamp) -> Option<Item> {
    reject_read_only(fields, &REVISION_FIELDS);
    reject_read_only(fields, &["blocked", "block_reason", "blocked_until"]);
    reject_read_only(fields, &["requests_today", "requests_month", "last_request_at", "exceeded_count"]);
    let (tenant, user) = (fields.read("tenant", id), fields.require("user_id", id));
    let tier = fields.read("tier", id);
    let limits = account_limits(fields, false);
    Some(Item::Quota(QuotaItem { tenant, user: user?, tier, limits }))
}

/// The properties of a key, without id and secret. A new key must not have expired already.
pub(crate) fn key(fields: &mut TableReader<'_, '_>, now: Timestamp, is_new: bool) -> Option<KeyItem> {
    reject_read_only(fields, &REVISION_FIELDS);
    reject_read_only(fields, &["id", "status", "revoked_at", "revoked_by", "previous_until"]);
    reject_read_only(fields, &["last_used_at", "requests_total"]);
    if !is_new {
        reject_read_only(fields, &["key", "key_sha256"]);
    }
    let name = fields.require("name", id);
    let (user, tenant) = (fields.read("user_id", id), fields.read("tenant", id));
    let tier = fields.read("tier", id);
    let scopes = fields.items("scopes", scope).unwrap_or_default();
    let limits = account_limits(fields, true);
    let expires_at_micros = parse_end(fields, "expires_at", "expires_in", now, is_new);
    let mut names: Vec<&str> = Scope::ALL.map(Scope::as_str).into();
    names.retain(|name| scopes.iter().any(|scope| scope.as_str() == *name));
    let scopes = names.into_iter().map(str::to_owned).collect();
    Some(KeyItem { name: name?, user, tenant, tier, scopes, limits, expires_at_micros, ..KeyItem::default() })
}

/// The SHA-256 of a key that exists already, to be imported: `key` or `key_sha256`. Messages never repeat the key.
pub(crate) fn existing_key(fields: &mut TableReader<'_, '_>) -> Option<[u8; 32]> {
    if fields.has("key") && fields.has("key_sha256") {
        fields.report("key_sha256", "cannot be combined with key".to_owned());
    }
    let from_text = fields.read("key", |value| {
        let key = text(value)?;
        if api_keys::contains_key(&key) {
            return Err(
                "has the form of a key of this service; such keys are created, not imported".to_owned()
            );
        }
        let is_valid =
            IMPORTED_KEY_BYTES.contains(&key.len()) && key.bytes().all(|byte| byte.is_ascii_graphic());
        if is_valid { Ok(api_keys::sha256_of(&key)) } else { Err(INVALID_IMPORTED_KEY.to_owned()) }
    });
    let sha256 = |value: &Value| {
        api_keys::parse_sha256(&text(value)?).ok_or_else(|| api_keys::INVALID_SHA256.to_owned())
    };
    from_text.or_else(|| fields.read("key_sha256", sha256))
}

fn scope(value: &Value) -> Result<Scope, String> {
    let name = text(value)?;
    Scope::parse(&name).ok_or_else(|| {
        let names = Scope::ALL.map(Scope::as_str);
        format!("{name:?} is not one of {}", names.join(", "))
    })
}

/// A new block must not have ended already.
pub(crate) fn block(fields: &mut TableReader<'_, '_>, _: &Map<String, Json>, now: Timestamp) -> Option<Item> {
    let until_micros = parse_end(fields, "until", "for", now, true);
    block_until(fields, until_micros)
}

/// A block of an import. It may have ended: every export can be imported.
pub(crate) fn imported_block(
    fields: &mut TableReader<'_, '_>,
    _: &Map<String, Json>,
    _: Timestamp,
) -> Option<Item> {
    let _ = fields.read("for", |_| {
        Err::<(), String>(
            "would start over with each import; use `until = \"2027-01-31T12:00:00Z\"`".to_owned(),
        )
    });
    let until_micros = fields.read("until", instant);
    block_until(fields, until_micros)
}

fn block_until(fields: &mut TableReader<'_, '_>, until_micros: Option<u64>) -> Option<Item> {
    reject_read_only(fields, &REVISION_FIELDS);
    reject_read_only(fields, &["active"]);
    let client = fields.require("client", client);
    let reason = fields.read("reason", prose).unwrap_or_default();
    let tenant = fields.read("tenant", id);
    let (kind, subject) = client?;
    if tenant.is_some() && !kind.is_within_tenant() {
        fields.report("tenant", format!("is not allowed with {}:...: it is in no tenant", kind.as_str()));
        return None;
    }
    // Only API keys of tollgate can be blocked. A block of any other text would never match.
    if kind == BlockKind::ApiKey && !crate::auth::api_keys::is_id(&subject) {
        let reason =
            "must be api_key:<id>, with the 16 characters between `tg_` and the second `_` of the key";
        fields.report("client", reason.to_owned());
        return None;
    }
    Some(Item::Block(BlockItem { tenant, kind, subject, reason, until_micros }))
}

/// The override of one user on one endpoint, with the fields of `PUT /v1/rate-limit/config`.
pub(crate) fn limit(fields: &mut TableReader<'_, '_>, _: &Map<String, Json>, _: Timestamp) -> Option<Item> {
    reject_read_only(fields, &["updated_at"]);
    let (tenant, user) = (fields.read("tenant", id), fields.require("user_id", id));
    let endpoint =
        fields.require("endpoint", checked(|text| Ok(parse_one_endpoint(text)?.as_str().to_owned())));
    let requests = fields.require("limit", integer(0..=u32::MAX));
    let secs = fields.require("window_seconds", integer(1..=u32::MAX));
    let algorithm = fields.require("strategy", checked(parse_strategy));
    let burst = fields.read("burst_capacity", integer(0..=u32::MAX));
    let (requests, window) = (requests?, Span::from_secs(u64::from(secs?)));
    let algorithm = algorithm?;
    if let Err(error) = parse_limit(algorithm, requests, Window::Length(window), burst) {
        if let CheckError::InvalidField { field, reason } = error {
            fields.report(field, reason.into_owned());
        }
        return None;
    }
    Some(Item::Limit(UserEndpointLimit {
        tenant,
        user: user?,
        endpoint: endpoint?,
        requests,
        window_micros: window.as_micros(),
        algorithm: algorithm.as_str().to_owned(),
        burst,
    }))
}

/// A field that is parsed as in `PUT /v1/rate-limit/config`.
fn checked<T>(parse: impl Fn(&str) -> Result<T, CheckError>) -> impl Fn(&Value) -> Result<T, String> {
    move |value| {
        parse(&text(value)?).map_err(|error| match error {
            CheckError::InvalidField { reason, .. } => reason.into_owned(),
            error => error.to_string(),
        })
    }
}

/// Rejects fields that only responses have: ignored, they would look as if they had been set.
fn reject_read_only(fields: &mut TableReader<'_, '_>, keys: &[&'static str]) {
    for key in keys {
        let _ = fields.read(key, |_: &Value| Err::<(), String>(READ_ONLY.to_owned()));
    }
}

/// Limits of a user or key. Only keys have a limit per second.
fn account_limits(fields: &mut TableReader<'_, '_>, has_per_second: bool) -> AccountLimits {
    let number = integer(0..=u32::MAX);
    let per_second = if has_per_second {
        fields.read("requests_per_second", number.clone())
    } else {
        reject_window(fields, "requests_per_second")
    };
    reject_window(fields, "requests_per_minute");
    let limits = AccountLimits {
        requests_per_second: per_second,
        requests_per_hour: fields.read("requests_per_hour", number.clone()),
        requests_per_day: fields.read("requests_per_day", number.clone()),
        burst: fields.read("burst", number),
    };
    match limits.check() {
        Ok(()) => {}
        Err(AccountError::Limit { field, reason }) => fields.report(field, reason.to_string()),
        // Invalid limits were reported already; a burst without them would be reported once more.
        Err(_) if fields.has_problems() => {}
        Err(error) => fields.report("burst", error.to_string().replacen("burst ", "", 1)),
    }
    limits
}

/// Rejects a limit that rules have, and quotas or keys do not.
fn reject_window(fields: &mut TableReader<'_, '_>, key: &'static str) -> Option<u32> {
    let reason = "is not available here: write a rule for limits of this window";
    fields.read(key, |_: &Value| Err(reason.to_owned()))
}

/// An identifier: 1 to 256 bytes without NUL, which some databases cannot store.
pub(crate) fn id(value: &Value) -> Result<String, String> {
    let text = text(value)?;
    match text.len() {
        1..=ID_BYTES_MAX => no_nul(text),
        _ => Err(format!("must be 1 to {ID_BYTES_MAX} bytes")),
    }
}

fn prose(value: &Value) -> Result<String, String> {
    let text = text(value)?;
    if text.len() > TEXT_BYTES_MAX {
        return Err(format!("must be at most {TEXT_BYTES_MAX} bytes"));
    }
    no_nul(text)
}

fn no_nul(text: String) -> Result<String, String> {
    if text.contains('\0') { Err("must not contain a NUL character".to_owned()) } else { Ok(text) }
}

fn client(value: &Value) -> Result<(BlockKind, String), String> {
    parse_client(&text(value)?)
}

/// The client of a block, `user:alice`. Addresses are normalized.
pub(crate) fn parse_client(written: &str) -> Result<(BlockKind, String), String> {
    let forms = "must be user:…, api_key:<id>, tenant:…, login:… or ip:<address or network>";
    let (kind, subject) = written.split_once(':').ok_or(forms)?;
    let kind = BlockKind::parse(kind).ok_or(forms)?;
    if kind == BlockKind::Ip {
        return Ok((kind, network(subject)?));
    }
    id(&Value::Text(subject.to_owned())).map(|subject| (kind, subject))
}

/// Normalizes an address or network. A single address has no length.
fn network(written: &str) -> Result<String, String> {
    let net = config::network(&Value::Text(written.to_owned()))?;
    let is_address = net.prefix_len() == net.max_prefix_len();
    Ok(if is_address { net.addr().to_string() } else { net.to_string() })
}

/// The end of a key or block, given as a time or as a duration.
fn parse_end(
    fields: &mut TableReader<'_, '_>,
    at: &'static str,
    after: &'static str,
    now: Timestamp,
    is_new: bool,
) -> Option<u64> {
    let both = fields.has(at) && fields.has(after);
    let instant = fields.read(at, |value| match instant(value)? {
        past if is_new && past <= now.as_micros() => Err("is in the past".to_owned()),
        instant => Ok(instant),
    });
    let span = fields.read(after, duration);
    if both {
        fields.report(after, format!("cannot be combined with {at}"));
    }
    instant.or_else(|| span.map(|span| (now + span).as_micros()))
}

/// A time, or the end of a duration from now.
pub(crate) fn end_of(written: &str, now: Timestamp) -> Result<u64, String> {
    let value = Value::Text(written.to_owned());
    let end = instant(&value).or_else(|_| duration(&value).map(|span| (now + span).as_micros()));
    end.map_err(|_| "must be a time such as 2027-01-31T12:00:00Z or a duration such as 30d".to_owned())
}

/// A time, or the start of a duration until now.
pub(crate) fn start_of(written: &str, now: Timestamp) -> Result<u64, String> {
    let value = Value::Text(written.to_owned());
    let before = |span: Span| now.as_micros().saturating_sub(span.as_micros());
    let start = instant(&value).or_else(|_| duration(&value).map(before));
    start.map_err(|_| "must be a time such as 2027-01-31T12:00:00Z or a duration such as 1h".to_owned())
}

/// A duration of more than zero and at most 100 years.
fn duration(value: &Value) -> Result<Span, String> {
    const YEARS_100: Span = Span::from_secs(100 * 366 * 86_400);
    let span = parse_span(&text(value)?)?;
    match span {
        Span::ZERO => Err("must be longer than zero".to_owned()),
        span if span > YEARS_100 => Err("must be at most 100 years".to_owned()),
        span => Ok(span),
    }
}

/// A time in RFC 3339, as microseconds since 1970.
fn instant(value: &Value) -> Result<u64, String> {
    let written = if let Value::Datetime(time) = value { time.clone() } else { text(value)? };
    let wrong = || format!("{written:?} is not a time such as \"2027-01-31T12:00:00Z\"");
    let instant: jiff::Timestamp = written.parse().map_err(|_| wrong())?;
    u64::try_from(instant.as_microsecond()).map_err(|_| "is before 1970".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_normalized() {
        for (written, canonical) in [
            ("192.0.2.7/24", "192.0.2.0/24"),
            ("192.0.2.7/32", "192.0.2.7"),
            ("192.0.2.7", "192.0.2.7"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("::ffff:10.1.2.3", "10.1.2.3"),
            ("::ffff:10.1.2.3/104", "10.0.0.0/8"),
            ("2001:DB8:0:0::1/32", "2001:db8::/32"),
            ("::/0", "::/0"),
        ] {
            assert_eq!(network(written).unwrap(), canonical, "{written}");
        }
        for wrong in [
            "",
            "/",
            "10.0.0.0/33",
            "10.0.0.0/-1",
            "10.0.0.0/+8",
            "10.0.0.0/",
            "fe80::1%eth0",
            "x/8",
            "::/129",
        ] {
            assert!(network(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn clients_of_every_kind_are_parsed() {
        assert_eq!(parse_client("user:a:b").unwrap(), (BlockKind::User, "a:b".to_owned()));
        assert_eq!(parse_client("ip:10.0.0.1/8").unwrap(), (BlockKind::Ip, "10.0.0.0/8".to_owned()));
        for wrong in ["", "user", "user:", "planet:earth", "User:a", "ip:x", "user:a\0"] {
            assert!(parse_client(wrong).is_err(), "{wrong}");
        }
    }
}
