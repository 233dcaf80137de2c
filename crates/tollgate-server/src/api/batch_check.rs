//! `POST /v1/rate-limit/batch-check`: decides up to 1000 requests in one call.

mod body_budget;

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use hyper::body::{Body, Incoming};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::OwnedSemaphorePermit;
use tollgate::Decision;
use utoipa::ToSchema;

pub(crate) use self::body_budget::BodyBudget;
use super::check::CheckBody;
use super::decision::DecisionBody;
use crate::auth::AuthError;
use crate::auth::api_keys::KeyRefusal;
use crate::check::Checker;
use crate::check::batch::{CHECKS_MAX, yield_turn};
use crate::check::error::CheckError;
use crate::check::idempotency::KeyState;
use crate::check::warnings::Warnings;
use crate::http::error::{ApiError, Code, ErrorBody, ErrorEnvelope};
use crate::http::json::{self, Text};
use crate::http::{BATCH_BYTES_MAX, Call, Response, response};

const KEY_BYTES_MAX: usize = 256;

/// The requests to decide.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct BatchBody<'a> {
    /// Makes a retry safe: the same key and body within five minutes return the first response, marked as replayed.
    #[serde(borrow)]
    #[schema(value_type = Option<String>, max_length = 256)]
    idempotency_key: Option<Text<'a>>,
    /// The requests, decided in this order.
    #[serde(borrow)]
    #[schema(value_type = Vec<CheckBody<'_>>, max_items = 1000)]
    checks: Vec<&'a RawValue>,
}

/// The results, in the order of the checks.
#[derive(Serialize, ToSchema)]
pub(crate) struct BatchAnswer<'a> {
    results: Vec<ItemBody<'a>>,
    /// Whether this is the stored response of an earlier batch with the same key.
    replayed: bool,
}

/// The result of one check: a decision or an error.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum ItemBody<'a> {
    /// The check was decided.
    Decided {
        /// The `user_id` of the check.
        user_id: Option<&'a str>,
        /// The `endpoint` of the check.
        endpoint: &'a str,
        /// The decision.
        #[serde(flatten)]
        decision: DecisionBody<'a>,
    },
    /// The check was not decided and nothing was charged for it.
    Wrong {
        /// What is wrong with the check.
        error: ErrorBody<'a>,
    },
}

/// Decides up to 1000 requests, in order.
#[utoipa::path(
    post, path = "/v1/rate-limit/batch-check", request_body = BatchBody<'_>,
    responses(
        (status = 200, description = "One result per check, in order", body = BatchAnswer<'_>),
        (status = 409, description = "The first batch with this key is still in progress", body = ErrorEnvelope<'_>),
        (status = 413, description = "More than 1000 checks, more than 1 MB, or more checks than a caller may send at once",
         body = ErrorEnvelope<'_>),
        (status = 422, description = "The key was used with a different body", body = ErrorEnvelope<'_>),
        (status = 503, description = "Too many large batches are in progress; nothing was charged", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn batch_check(call: Call, body: Incoming) -> Result<Response, ApiError> {
    // A refusal here is not charged to the caller: none of the body was read.
    let mut permit = call.app.batch_bodies().acquire(body.size_hint().exact()).await?;
    let charge = BatchCharge { call: Arc::new(call), is_charged: false };
    let body = charge.call.json_body(body, BATCH_BYTES_MAX).await?;
    body_budget::release_excess(&mut permit, body.len());
    answer_batch(charge, body, Some(permit)).await
}

/// A batch without a key is abandoned when its caller disconnects. A batch with a key is decided in a task of its own: the caller will
/// send it again, and must not find it half charged.
async fn answer_batch(
    mut charge: BatchCharge,
    body: Bytes,
    permit: Option<OwnedSemaphorePermit>,
) -> Result<Response, ApiError> {
    let call = Arc::clone(&charge.call);
    let slot = call.app.batches().acquire().await;
    let batch: BatchBody<'_> = json::parse(&body)?;
    if batch.checks.len() > CHECKS_MAX {
        let reason = format!("must have at most {CHECKS_MAX} checks");
        return Err(ApiError::field(Code::PayloadTooLarge, "checks", reason));
    }
    let Some(key) = &batch.idempotency_key else {
        charge.count(batch.checks.len())?;
        let checks = batch.checks.iter().map(|raw| raw.get().as_bytes());
        let outcomes = decide(&call.checker()?, checks, call.settings.strict_checks).await;
        return Ok(render(&outcomes, call.request_id.as_str()));
    };
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return Err(ApiError::invalid("idempotency_key", "must be 1 to 256 bytes"));
    }
    let key = (**key).to_owned();
    let checks: Vec<Bytes> = batch.checks.iter().map(|raw| body.slice_ref(raw.get().as_bytes())).collect();
    let body = body.clone();
    let decided = tokio::spawn(async move {
        // Held to the end: shutdown waits for the slot, and the body is in memory.
        let _held = (slot, permit);
        answer_keyed(charge, &key, &body, &checks).await
    });
    // The runtime logs a panic.
    decided.await.unwrap_or_else(|_| Err(ApiError::internal()))
}

async fn answer_keyed(
    mut charge: BatchCharge,
    key: &str,
    body: &[u8],
    checks: &[Bytes],
) -> Result<Response, ApiError> {
    let call = Arc::clone(&charge.call);
    let checker = call.checker()?;
    let lock = match call.app.idempotency().lock(&call.caller.name, key, body, checker.now).await? {
        KeyState::Locked(lock) => lock,
        KeyState::Completed(response) => {
            charge.count(1)?;
            return Ok(replay(&response));
        }
    };
    charge.count(checks.len())?;
    let checks = checks.iter().map(Bytes::as_ref);
    let outcomes = decide(&checker, checks, call.settings.strict_checks).await;
    if let Some(response) = replayable(&outcomes, call.request_id.as_str()) {
        lock.complete(&response, call.app.now()).await;
    }
    Ok(render(&outcomes, call.request_id.as_str()))
}

/// Charges a batch to its caller's own limit: all of its checks or, if they exceed it, none. A batch that fails before it is charged,
/// because it is invalid or its caller disconnects, counts as one request: its body was read.
struct BatchCharge {
    call: Arc<Call>,
    is_charged: bool,
}

impl BatchCharge {
    /// Charges this many checks; an empty batch counts as one.
    fn count(&mut self, checks: usize) -> Result<(), AuthError> {
        let Call { app, settings, caller, address, .. } = &*self.call;
        let Some(callers) = &settings.callers else { return Ok(()) };
        let cost = u32::try_from(checks.max(1)).unwrap_or(u32::MAX);
        let charged = callers.charge(caller, *address, cost, app.now());
        // A caller that must wait is not charged. A batch that can never be admitted counts as one, like any invalid one.
        self.is_charged = matches!(charged, Ok(()) | Err(AuthError::CallerLimited { .. }));
        charged
    }
}

impl Drop for BatchCharge {
    fn drop(&mut self) {
        if !self.is_charged {
            // The response is decided already, whether or not this exceeds the limit.
            let _ = self.count(1);
        }
    }
}

/// A check with its decision. A refused API key of the client is rendered as a decision too.
struct Decided<'a> {
    check: CheckBody<'a>,
    decision: Result<Decision, KeyRefusal>,
    warnings: Warnings,
}

type Outcome<'a> = Result<Decided<'a>, ApiError>;

/// Decides every check in order, all with the same rules and at the same instant.
async fn decide<'a>(
    checker: &Checker<'_>,
    checks: impl ExactSizeIterator<Item = &'a [u8]>,
    strict: bool,
) -> Vec<Outcome<'a>> {
    let mut outcomes = Vec::with_capacity(checks.len());
    for (index, raw) in checks.enumerate() {
        yield_turn(index).await;
        let outcome = decide_one(checker, raw, strict).await;
        outcomes.push(outcome.map_err(|error| error.within(&format!("checks[{index}]"))));
    }
    outcomes
}

async fn decide_one<'a>(checker: &Checker<'_>, raw: &'a [u8], strict: bool) -> Outcome<'a> {
    let mut warnings = Warnings::default();
    let check = CheckBody::parse(raw, strict, &mut warnings)?;
    let decision = match checker.check(&check.request(), &mut warnings, Instant::now()).await {
        Ok(decision) => Ok(decision),
        Err(CheckError::ApiKeyRefused(refusal)) => Err(refusal),
        Err(error) => return Err(error.into()),
    };
    Ok(Decided { check, decision, warnings })
}

fn render(outcomes: &[Outcome<'_>], request_id: &str) -> Response {
    let results = outcomes.iter().map(|outcome| item(outcome, request_id)).collect();
    response::json(StatusCode::OK, &BatchAnswer { results, replayed: false })
}

/// The response to store under the idempotency key; none if any check was decided without the shared counters.
fn replayable(outcomes: &[Outcome<'_>], request_id: &str) -> Option<Bytes> {
    let is_degraded = |outcome: &Outcome<'_>| match outcome {
        Ok(decided) => decided.decision.as_ref().is_ok_and(|decision| decision.degraded),
        Err(error) => error.code() == Code::ServiceUnavailable,
    };
    if outcomes.iter().any(is_degraded) {
        return None;
    }
    let results = outcomes.iter().map(|outcome| item(outcome, request_id)).collect();
    serde_json::to_vec(&BatchAnswer { results, replayed: true }).ok().map(Bytes::from)
}

fn item<'a>(outcome: &'a Outcome<'_>, request_id: &'a str) -> ItemBody<'a> {
    match outcome {
        Ok(Decided { check, decision, warnings }) => ItemBody::Decided {
            user_id: check.user_id.as_deref(),
            endpoint: &check.endpoint,
            decision: match decision {
                Ok(decision) => DecisionBody::new(decision),
                Err(refusal) => DecisionBody::key_refused(*refusal),
            }
            .with_warnings(warnings),
        },
        Err(error) => ItemBody::Wrong { error: error.body(request_id) },
    }
}

fn replay(response: &Bytes) -> Response {
    let mut response = Response::new(response.clone().into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::pin::pin;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::task::Poll;
    use std::time::Duration;

    use http_body_util::BodyExt;

    use super::*;
    use crate::app::App;
    use crate::check::batch::CHECKS_PER_TURN;

    fn call(app: &Arc<App>) -> Arc<Call> {
        Arc::new(Call::for_tests(app, "/v1/rate-limit/batch-check"))
    }

    fn charge(call: &Arc<Call>) -> BatchCharge {
        BatchCharge { call: Arc::clone(call), is_charged: false }
    }

    #[tokio::test]
    async fn batch_yields_to_other_tasks() {
        let body =
            format!(r#"{{"checks":[{}]}}"#, vec![r#"{"user_id":"a","endpoint":"/x"}"#; 1_000].join(","));
        let (turns, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        // The test has one thread: this runs only when the batch yields.
        let other = tokio::spawn({
            let (turns, done) = (Arc::clone(&turns), Arc::clone(&done));
            async move {
                while !done.load(Ordering::Relaxed) {
                    turns.fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                }
            }
        });
        let call = call(&App::for_tests("default_limit = 5000"));
        let batch: BatchBody<'_> = json::parse(body.as_bytes()).unwrap();
        let checks = batch.checks.iter().map(|raw| raw.get().as_bytes());
        let outcomes = decide(&call.checker().unwrap(), checks, false).await;
        done.store(true, Ordering::Relaxed);
        other.await.unwrap();
        assert_eq!(outcomes.len(), 1_000);
        assert!(turns.load(Ordering::Relaxed) >= 1_000 / CHECKS_PER_TURN - 1, "{turns:?}");
    }

    async fn sent(app: &Arc<App>, body: &Bytes) -> Result<serde_json::Value, Code> {
        let answer =
            answer_batch(charge(&call(app)), body.clone(), None).await.map_err(|error| error.code())?;
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        Ok(serde_json::from_slice(&body).unwrap())
    }

    #[tokio::test]
    async fn keyed_batch_finishes_without_its_caller() {
        // Nothing is restored while the test runs.
        let app = App::for_tests("default_limit = 5000\ndefault_window = \"365d\"");
        let checks = vec![r#"{"user_id":"a","endpoint":"/x"}"#; 1_000].join(",");
        let body = Bytes::from(format!(r#"{{"idempotency_key":"k","checks":[{checks}]}}"#));
        let remaining = || async {
            let look = Bytes::from_static(br#"{"checks":[{"user_id":"a","endpoint":"/x","cost":0}]}"#);
            sent(&app, &look).await.unwrap()["results"][0]["remaining"].as_u64()
        };
        {
            let mut caller = pin!(answer_batch(charge(&call(&app)), body.clone(), None));
            // Poll until some of it is charged, then drop it like a closed connection.
            while app.limiter().counters().memory().unwrap().is_empty() {
                let polled = poll_fn(|context| Poll::Ready(caller.as_mut().poll(context))).await;
                assert!(polled.is_pending());
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(sent(&app, &body).await, Err(Code::Conflict), "in progress");
        app.batches().drain(Duration::from_mins(1)).await;
        assert_eq!(remaining().await, Some(4_000));
        let again = sent(&app, &body).await.unwrap();
        assert_eq!((&again["replayed"], &again["results"][999]["remaining"]), (&true.into(), &4_000.into()));
        assert_eq!(remaining().await, Some(4_000));
    }

    #[tokio::test]
    async fn failed_batch_counts_as_one_request() {
        let app = App::for_tests("[callers]\nlimit = 10\nwindow = \"1h\"");
        let call = call(&app);
        let count = |checks| charge(&call).count(checks).map_err(|error| ApiError::from(error).code());
        drop(charge(&call));
        assert_eq!(count(9), Ok(()), "the dropped charge counted as one of ten");
        assert_eq!(count(1), Err(Code::CallerLimited));

        let app = App::for_tests("[callers]\nlimit = 10\nwindow = \"1h\"");
        let call = self::call(&app);
        let count = |checks| charge(&call).count(checks).map_err(|error| ApiError::from(error).code());
        assert_eq!(count(6), Ok(()));
        for _ in 0..100 {
            assert_eq!(count(5), Err(Code::CallerLimited), "a refused batch is not charged");
        }
        assert_eq!(count(11), Err(Code::PayloadTooLarge), "counts as one");
        assert_eq!(count(4), Err(Code::CallerLimited));
        assert_eq!((count(3), count(0)), (Ok(()), Err(Code::CallerLimited)), "an empty batch counts as one");
    }
}
