//! `POST /v1/rate-limit/batch-check`: up to a thousand checks in one call, each with its own outcome.

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tollgate::{Decision, Timestamp};
use utoipa::ToSchema;

use super::check::own_limit;
use super::{BATCH_BYTES_MAX, Call, Response};
use crate::answer::{self, DecisionBody};
use crate::error::{ApiError, Code, ErrorBody, ErrorEnvelope};
use crate::facts::CheckBody;
use crate::idempotency::Turn;
use crate::json::{self, Text};
use crate::keys::KeyRefusal;

const CHECKS_MAX: usize = 1_000;
const KEY_BYTES_MAX: usize = 256;

/// Many checks.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct BatchBody<'a> {
    /// Send the same key again within five minutes and the first answer comes back, marked as replayed.
    #[serde(borrow)]
    #[schema(value_type = Option<String>, max_length = 256)]
    idempotency_key: Option<Text<'a>>,
    /// The checks, decided in this order.
    #[serde(borrow)]
    #[schema(value_type = Vec<CheckBody<'_>>, max_items = 1000)]
    checks: Vec<&'a RawValue>,
}

/// The outcomes, in the order of the checks.
#[derive(Serialize, ToSchema)]
pub(crate) struct BatchAnswer<'a> {
    results: Vec<ItemBody<'a>>,
    /// Whether this is the answer to an earlier batch with the same key.
    replayed: bool,
}

/// One outcome: a decision, or what is wrong with the check.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum ItemBody<'a> {
    /// The check was decided.
    Decided {
        /// As in the check.
        user_id: Option<&'a str>,
        /// As in the check.
        endpoint: &'a str,
        /// The decision.
        #[serde(flatten)]
        decision: DecisionBody<'a>,
    },
    /// The check was not decided and nothing was charged for it.
    Wrong {
        /// Why.
        error: ErrorBody<'a>,
    },
}

/// Decides many checks.
#[utoipa::path(
    post, path = "/v1/rate-limit/batch-check", request_body = BatchBody<'_>,
    responses(
        (status = 200, description = "One outcome per check, in order", body = BatchAnswer<'_>),
        (status = 400, description = "The batch itself is wrong; nothing was charged", body = ErrorEnvelope<'_>),
        (status = 409, description = "A batch with this key is under way", body = ErrorEnvelope<'_>),
        (status = 413, description = "More than 1000 checks, or more than 1 MB", body = ErrorEnvelope<'_>),
        (status = 422, description = "The key was used for another body", body = ErrorEnvelope<'_>),
    )
)]
pub(super) async fn batch_check(call: Call, body: Incoming) -> Result<Response, ApiError> {
    let body = call.json_body(body, BATCH_BYTES_MAX).await?;
    let batch: BatchBody<'_> = json::parse(&body)?;
    if batch.checks.len() > CHECKS_MAX {
        let reason = format!("a batch has at most {CHECKS_MAX} checks");
        return Err(ApiError::field(Code::PayloadTooLarge, "checks", reason));
    }
    let now = call.app.now();
    let Some(key) = &batch.idempotency_key else { return Ok(decide(&call, &batch, now).await.0) };
    if key.0.is_empty() || key.0.len() > KEY_BYTES_MAX {
        return Err(ApiError::invalid("idempotency_key", "must be 1 to 256 bytes"));
    }
    match call.app.idempotency.turn(&call.caller.name, &key.0, &body, now)? {
        Turn::Replay(answer) => Ok(replay(&answer)),
        Turn::Decide(mut ticket) => {
            if let Some(answer) = ticket.claim(&call.app).await? {
                ticket.answer(&answer);
                return Ok(replay(&answer));
            }
            let (response, replayable) = decide(&call, &batch, now).await;
            if let Some(answer) = replayable {
                ticket.tell_others(&call.app, &answer).await;
                ticket.answer(&answer);
            }
            Ok(response)
        }
    }
}

/// A check that was decided, or whose key was refused, or what is wrong with it.
type Outcome<'a> = Result<(CheckBody<'a>, Result<Decision, KeyRefusal>), ApiError>;

/// Decides every check. The second value is the answer for those who send the batch again; a decision made
/// without the counters is none.
async fn decide(call: &Call, batch: &BatchBody<'_>, now: Timestamp) -> (Response, Option<Bytes>) {
    let mut outcomes = Vec::with_capacity(batch.checks.len());
    for (number, raw) in batch.checks.iter().enumerate() {
        let outcome = decide_one(call, raw, now).await;
        outcomes.push(outcome.map_err(|error| error.within(&format!("checks[{number}]"))));
    }
    let items = || outcomes.iter().map(|outcome| item(outcome, call.request_id.as_str())).collect();
    let without_counters = |outcome: &Outcome<'_>| match outcome {
        Ok((_, decision)) => decision.as_ref().is_ok_and(|decision| decision.degraded),
        Err(error) => error.code() == Code::ServiceUnavailable,
    };
    let degraded = outcomes.iter().any(without_counters);
    let replayed = BatchAnswer { results: items(), replayed: true };
    let replayable = serde_json::to_vec(&replayed).ok().filter(|_| !degraded).map(Bytes::from);
    (answer::json(StatusCode::OK, &BatchAnswer { results: items(), replayed: false }), replayable)
}

async fn decide_one<'a>(call: &Call, raw: &'a RawValue, now: Timestamp) -> Outcome<'a> {
    let check: CheckBody<'a> = json::parse(raw.get().as_bytes())?;
    let decision = {
        let keys = call.app.key_ring(check.key_text(), now);
        match check.facts(call.app.limiter().rules().spelling(), &keys, &call.caller) {
            Ok(facts) => {
                let own = own_limit(&call.app, &call.caller, &facts, now).await?;
                Ok(call.app.limiter().check(&facts.request(own.as_ref()), now).await)
            }
            Err(error) => Err(error.key_refusal().ok_or(error)?),
        }
    };
    // A batch answers 200 whatever its items say, so an item that got no decision is an error of its own.
    match &decision {
        Ok(decision) => drop(answer::status(decision)?),
        Err(refusal) => call.app.metrics().count_refused_key(*refusal),
    }
    Ok((check, decision))
}

fn item<'a>(outcome: &'a Outcome<'_>, request_id: &'a str) -> ItemBody<'a> {
    match outcome {
        Ok((check, decision)) => ItemBody::Decided {
            user_id: check.user_id.as_ref().map(|text| &*text.0),
            endpoint: &check.endpoint.0,
            decision: match decision {
                Ok(decision) => DecisionBody::new(decision),
                Err(refusal) => DecisionBody::key_refused(*refusal),
            },
        },
        Err(error) => ItemBody::Wrong { error: error.body(request_id) },
    }
}

fn replay(answer: &Bytes) -> Response {
    let mut response = Response::new(Full::new(answer.clone()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
