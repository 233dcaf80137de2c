//! `POST /v1/admin/keys/{id}/rotate` and `/revoke`: another secret for a key, or none.

use http::StatusCode;
use hyper::body::Incoming;
use tollgate::config::Value;
use tollgate::config::values::{parse_span, text};
use tollgate::{Span, Timestamp};
use tollgate_stores::sql::KeyItem;
use utoipa::ToSchema;

use super::body::Sent;
use super::change::{self, ChangeQuery, ITEM_BYTES_MAX};
use super::keys::Updated;
use super::keys::{self, KeyAnswer};
use crate::http::error::{ApiError, Code, ErrorEnvelope};
use crate::http::{Call, Response};

/// How long the old secret is good unless the caller says otherwise.
const OVERLAP_DEFAULT: Span = Span::from_secs(24 * 3_600);
/// A secret that is good for longer was not replaced.
const OVERLAP_MAX: Span = Span::from_secs(30 * 24 * 3_600);

/// How a key is rotated.
#[derive(ToSchema)]
#[expect(dead_code, reason = "it describes what the reader takes")]
pub(crate) struct RotateBody {
    /// How long the old secret is good, `"0s"` to `"30d"`; `"24h"` if absent.
    overlap: Option<String>,
}

/// Gives a key another secret. It stays the same key: the same id, owner and counters.
///
/// The old secret is good until the overlap ends. One that was good from an earlier rotation is not any more.
#[utoipa::path(
    post, path = "/v1/admin/keys/{id}/rotate", request_body = Option<RotateBody>,
    params(("id" = String, Path, description = "The id of the key"), ChangeQuery),
    responses(
        (status = 200, description = "`key` is the new one, told this once; with dry_run what would change", body = KeyAnswer),
        (status = 400, description = "A field is wrong; nothing was changed", body = ErrorEnvelope<'_>),
        (status = 404, description = "No such key", body = ErrorEnvelope<'_>),
        (status = 409, description = "The key is revoked or expired", body = ErrorEnvelope<'_>),
        (status = 412, description = "It is not what If-Match says", body = ErrorEnvelope<'_>),
        (status = 503, description = "The database cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn rotate(call: Call, body: Incoming) -> Result<Response, ApiError> {
    let body = call.json_body_or_nothing(body, ITEM_BYTES_MAX).await?;
    let sent = Sent::json_or_nothing(&body)?;
    let overlap = sent.read(|fields, _| Some(fields.read("overlap", overlap).unwrap_or(OVERLAP_DEFAULT)))?;
    let (id, now) = (keys::id_of(&call)?, call.app.now());
    let catalog = call.app.config_sync();
    // Made anew for each attempt: one that was not written must not be told.
    let mut told = None;
    let rotated = |key: KeyItem| {
        refuse_ended(&key, now)?;
        let new = catalog.new_secret(&key.id)?;
        let hash = catalog.key_hash(new.reveal());
        told = Some(new);
        let until = Some((now + overlap).as_micros()).filter(|_| overlap > Span::ZERO);
        let previous_hash = until.map(|_| key.hash);
        Ok(KeyItem { hash, previous_hash, previous_until_micros: until, ..key })
    };
    let made = match keys::update(&call, &id, rotated).await? {
        Updated::Looked(answer) => return Ok(answer),
        Updated::Made(made) => made,
    };
    let new = told.ok_or_else(|| change::missing(&id, None))?;
    keys::answer_with_secret(&call, &made, new.id(), new.reveal(), StatusCode::OK).await
}

/// Takes a key back, for good: a key that was revoked is never good again.
#[utoipa::path(
    post, path = "/v1/admin/keys/{id}/revoke",
    params(("id" = String, Path, description = "The id of the key"), ChangeQuery),
    responses(
        (status = 200, description = "Revoked, now or before; with dry_run what would change", body = KeyAnswer),
        (status = 404, description = "No such key", body = ErrorEnvelope<'_>),
        (status = 412, description = "It is not what If-Match says", body = ErrorEnvelope<'_>),
        (status = 503, description = "The database cannot be reached", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn revoke(call: Call) -> Result<Response, ApiError> {
    let (id, now) = (keys::id_of(&call)?, call.app.now().as_micros());
    let revoked = |key: KeyItem| {
        if key.revoked_at_micros.is_some() {
            return Ok(key);
        }
        let revoked_by = Some(call.caller.name.to_string());
        // With the secret before this one: the overlap is over, too.
        Ok(KeyItem {
            revoked_at_micros: Some(now),
            revoked_by,
            previous_hash: None,
            previous_until_micros: None,
            ..key
        })
    };
    match keys::update(&call, &id, revoked).await? {
        Updated::Looked(answer) => Ok(answer),
        Updated::Made(made) => change::answer_with(&call, &id, &made, StatusCode::OK).await,
    }
}

fn overlap(value: &Value) -> Result<Span, String> {
    let span = parse_span(&text(value)?)?;
    if span > OVERLAP_MAX { Err("must be at most 30d".to_owned()) } else { Ok(span) }
}

/// A new secret would be as little good as the old one.
fn refuse_ended(key: &KeyItem, now: Timestamp) -> Result<(), ApiError> {
    let id = &key.id;
    let message = if key.revoked_at_micros.is_some() {
        format!("the key {id:?} is revoked: make another")
    } else if key.expires_at_micros.is_some_and(|end| end <= now.as_micros()) {
        format!("the key {id:?} has expired: PUT a later expires_at first")
    } else {
        return Ok(());
    };
    Err(ApiError::new(Code::Conflict, message))
}
