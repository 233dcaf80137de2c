//! `POST /v1/admin/keys/{id}/rotate` and `/revoke`.

use http::StatusCode;
use hyper::body::Incoming;
use tollgate::config::Value;
use tollgate::config::values::{parse_span, text};
use tollgate::{Span, Timestamp};
use tollgate_stores::sql::KeyItem;
use utoipa::ToSchema;

use super::body::RequestBody;
use super::dry_run::ChangeQuery;
use super::keys::{self, KeyView, Keys, Updated};
use super::{change, crud};
use crate::http::error::{ApiError, Code, ErrorEnvelope};
use crate::http::{Call, Response};

const OVERLAP_DEFAULT: Span = Span::from_secs(24 * 3_600);
const OVERLAP_MAX: Span = Span::from_secs(30 * 24 * 3_600);

/// Options of a rotation.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what the parser accepts")]
pub(crate) struct RotateBody {
    /// How long the old secret remains valid: `"0s"` to `"30d"`, default `"24h"`.
    overlap: Option<String>,
}

/// Gives a key a new secret. Its id, owner and counters remain.
///
/// The old secret remains valid during the overlap. A secret from an earlier rotation becomes invalid at once.
#[utoipa::path(
    post, path = "/v1/admin/keys/{id}/rotate", operation_id = "rotate_key", request_body = Option<RotateBody>,
    params(("id" = String, Path, description = "Id of the key."), ChangeQuery),
    responses(
        (status = 200, description = "The key; `key` has the new secret, which is not shown again.", body = KeyView),
        (status = 404, description = "The key does not exist.", body = ErrorEnvelope<'_>),
        (status = 409, description = "The key is revoked or expired.", body = ErrorEnvelope<'_>),
        (status = 412, description = "The key is not at the version in `If-Match`.", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn rotate(call: Call, body: Incoming) -> Result<Response, ApiError> {
    let body = RequestBody::read_optional(&call, body).await?;
    let overlap = body.parse(|fields, _| Some(fields.read("overlap", overlap).unwrap_or(OVERLAP_DEFAULT)))?;
    let (id, now) = (crud::path_id::<Keys>(&call)?, call.app.now());
    let config_sync = call.app.config_sync();
    // Each attempt has a new secret, so that one that was not stored is never shown.
    let mut secret = None;
    let rotated = |key: KeyItem| {
        require_active(&key, now)?;
        let new = config_sync.new_secret(&key.id)?;
        let hash = config_sync.secret().verifier(new.reveal());
        secret = Some(new);
        let until = Some((now + overlap).as_micros()).filter(|_| overlap > Span::ZERO);
        let previous_hash = until.map(|_| key.hash);
        Ok(KeyItem { hash, previous_hash, previous_until_micros: until, ..key })
    };
    let applied = match keys::update(&call, &id, rotated).await? {
        Updated::DryRun(response) => return Ok(response),
        Updated::Applied(applied) => applied.without_warnings(),
    };
    let secret = secret.ok_or_else(|| change::not_found(&id, None))?;
    keys::secret_response(&call, &applied, secret.id(), secret.reveal(), StatusCode::OK).await
}

/// Revokes a key permanently.
#[utoipa::path(
    post, path = "/v1/admin/keys/{id}/revoke", operation_id = "revoke_key",
    params(("id" = String, Path, description = "Id of the key."), ChangeQuery),
    responses(
        (status = 200, description = "The key, revoked now or before.", body = KeyView),
        (status = 404, description = "The key does not exist.", body = ErrorEnvelope<'_>),
        (status = 412, description = "The key is not at the version in `If-Match`.", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn revoke(call: Call) -> Result<Response, ApiError> {
    let (id, now) = (crud::path_id::<Keys>(&call)?, call.app.now().as_micros());
    let revoked = |key: KeyItem| {
        if key.revoked_at_micros.is_some() {
            return Ok(key);
        }
        // The overlap of an earlier rotation ends, too.
        Ok(KeyItem {
            revoked_at_micros: Some(now),
            revoked_by: Some(call.caller.name.to_string()),
            previous_hash: None,
            previous_until_micros: None,
            ..key
        })
    };
    match keys::update(&call, &id, revoked).await? {
        Updated::DryRun(response) => Ok(response),
        Updated::Applied(applied) => {
            crud::written::<Keys>(&call, &applied.without_warnings(), &id, StatusCode::OK).await
        }
    }
}

fn overlap(value: &Value) -> Result<Span, String> {
    let span = parse_span(&text(value)?)?;
    if span > OVERLAP_MAX { Err("must be at most 30d".to_owned()) } else { Ok(span) }
}

/// A revoked or expired key would reject the new secret, too.
fn require_active(key: &KeyItem, now: Timestamp) -> Result<(), ApiError> {
    let id = &key.id;
    let message = if key.revoked_at_micros.is_some() {
        format!("key {id:?} is revoked; create another")
    } else if key.expires_at_micros.is_some_and(|end| end <= now.as_micros()) {
        format!("key {id:?} has expired; PUT a later expires_at first")
    } else {
        return Ok(());
    };
    Err(ApiError::new(Code::Conflict, message))
}
