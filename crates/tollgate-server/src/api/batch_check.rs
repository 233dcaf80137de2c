//! `POST /v1/rate-limit/batch-check`: up to a thousand checks in one call, each with its own outcome.

mod body_budget;

use std::num::NonZeroUsize;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tollgate::{Decision, Timestamp};
use utoipa::ToSchema;

pub(crate) use self::body_budget::BodyBudget;
use super::check::override_limit;
use crate::auth::api_keys::KeyRefusal;
use crate::check::idempotency::Turn;
use crate::check::request::CheckBody;
use crate::counters::Counters;
use crate::http::error::{ApiError, Code, ErrorBody, ErrorEnvelope};
use crate::http::json::{self, Text};
use crate::http::response::{self, DecisionBody};
use crate::http::{BATCH_BYTES_MAX, Call, Response, failed};

const CHECKS_MAX: usize = 1_000;
const KEY_BYTES_MAX: usize = 256;
/// Checks that are decided before others have their turn: some microseconds each.
const CHECKS_AT_A_TIME: usize = 32;
/// Batches that wait for Redis at once.
const PLACES_ON_REDIS: usize = 32;

/// How many batches are worked on at once, in the order in which they are there: the others wait, and single checks for no more than
/// these. On counters in memory a batch never waits for anything, so more than there are threads would only share them.
pub(crate) fn concurrent_batches(counters: &Counters) -> usize {
    let threads = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    if counters.redis().is_some() { PLACES_ON_REDIS } else { threads() }
}

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
        (status = 413, description = "More than 1000 checks, more than 1 MB, or more checks than callers may ever send at once",
         body = ErrorEnvelope<'_>),
        (status = 422, description = "The key was used for another body", body = ErrorEnvelope<'_>),
        (status = 503, description = "There is no room for the body: nothing was charged", body = ErrorEnvelope<'_>),
    )
)]
pub(crate) async fn batch_check(call: Call, body: Incoming) -> Result<Response, ApiError> {
    // What is refused here counts as nothing: not a byte of it was read.
    let room = call.app.batch_room.take(body.size_hint().exact()).await?;
    let call = Arc::new(call);
    let owed = Owed { call: Arc::clone(&call), counted: false };
    let body = call.json_body(body, BATCH_BYTES_MAX).await?;
    answer_batch(owed, body_budget::held(body, room)).await
}

/// A batch without a key ends with its caller. One with a key is decided apart from the connection: whoever lost it sends the batch
/// again, and must not find that half of it was charged and nobody knows.
async fn answer_batch(mut owed: Owed, body: Bytes) -> Result<Response, ApiError> {
    let call = Arc::clone(&owed.call);
    // They are never closed.
    let place = Arc::clone(&call.app.batches).acquire_owned().await.ok();
    let batch: BatchBody<'_> = json::parse(&body)?;
    if batch.checks.len() > CHECKS_MAX {
        let reason = format!("a batch has at most {CHECKS_MAX} checks");
        return Err(ApiError::field(Code::PayloadTooLarge, "checks", reason));
    }
    let Some(key) = &batch.idempotency_key else {
        owed.count(batch.checks.len())?;
        let checks = batch.checks.iter().map(|raw| raw.get().as_bytes());
        return Ok(render(&decide(&call, checks, call.app.now()).await, call.request_id.as_str()));
    };
    if key.0.is_empty() || key.0.len() > KEY_BYTES_MAX {
        return Err(ApiError::invalid("idempotency_key", "must be 1 to 256 bytes"));
    }
    let key = key.0.as_ref().to_owned();
    let checks = batch.checks.iter().map(|raw| body.slice_ref(raw.get().as_bytes())).collect();
    let keyed = Keyed { owed, body: body.clone(), key, checks };
    let decided = tokio::spawn(async move {
        // Held to the end, and so waited for when the service ends: see `App::finish_batches`.
        let _place = place;
        keyed.answer().await
    });
    // A panic in it is told by the runtime.
    decided.await.unwrap_or_else(|_| Err(failed()))
}

/// A batch with a key, and all that it takes to decide it without its caller.
struct Keyed {
    owed: Owed,
    body: Bytes,
    key: String,
    checks: Vec<Bytes>,
}

impl Keyed {
    async fn answer(self) -> Result<Response, ApiError> {
        let Keyed { mut owed, body, key, checks } = self;
        let call = Arc::clone(&owed.call);
        let now = call.app.now();
        let mut ticket = match call.app.idempotency.turn(&call.caller.name, &key, &body, now)? {
            Turn::Decide(ticket) => ticket,
            // What is only told again counts as what is only asked.
            Turn::Replay(answer) => return owed.count(1).map(|()| replay(&answer)),
        };
        if let Some(answer) = ticket.claim(&call.app).await? {
            ticket.answer(&answer);
            return owed.count(1).map(|()| replay(&answer));
        }
        owed.count(checks.len())?;
        let outcomes = decide(&call, checks.iter().map(Bytes::as_ref), now).await;
        if let Some(answer) = replayable(&outcomes, call.request_id.as_str()) {
            ticket.tell_others(&call.app, &answer).await;
            ticket.answer(&answer);
        }
        Ok(render(&outcomes, call.request_id.as_str()))
    }
}

/// A check that was decided, or whose key was refused, or what is wrong with it.
type Outcome<'a> = Result<(CheckBody<'a>, Result<Decision, KeyRefusal>), ApiError>;

/// What a batch still counts for its caller: as much as is in it, all or nothing. One that never gets so far, because something is
/// wrong with it or the caller hangs up, counts as one: its body was read all the same.
struct Owed {
    call: Arc<Call>,
    counted: bool,
}

impl Owed {
    /// Counts so many checks, and an empty batch as one.
    fn count(&mut self, checks: usize) -> Result<(), ApiError> {
        let Call { app, caller, peer, .. } = &*self.call;
        let live = app.live();
        let Some(callers) = &live.callers else { return Ok(()) };
        let cost = u32::try_from(checks.max(1)).unwrap_or(u32::MAX);
        let counted = callers.charge(caller, *peer, cost, app.now());
        // One that has to wait changes nothing, and one that is too large for ever is as wrong as any other.
        self.counted = counted.as_ref().map_or_else(|error| error.code() == Code::CallerLimited, |()| true);
        counted
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        if !self.counted {
            // The answer stands, whatever else was asked meanwhile.
            let _ = self.count(1);
        }
    }
}

/// Decides every check, and lets others have their turn now and then: memory never waits, and a thousand checks in one go would keep
/// everybody waiting who shares the thread.
async fn decide<'a>(
    call: &Call,
    checks: impl ExactSizeIterator<Item = &'a [u8]>,
    now: Timestamp,
) -> Vec<Outcome<'a>> {
    let mut outcomes = Vec::with_capacity(checks.len());
    for (number, raw) in checks.enumerate() {
        if number > 0 && number % CHECKS_AT_A_TIME == 0 {
            tokio::task::yield_now().await;
        }
        let outcome = decide_one(call, raw, now).await;
        outcomes.push(outcome.map_err(|error| error.within(&format!("checks[{number}]"))));
    }
    outcomes
}

fn render(outcomes: &[Outcome<'_>], request_id: &str) -> Response {
    let results = outcomes.iter().map(|outcome| item(outcome, request_id)).collect();
    response::json(StatusCode::OK, &BatchAnswer { results, replayed: false })
}

/// The answer for those who send the batch again; a decision made without the counters is none.
fn replayable(outcomes: &[Outcome<'_>], request_id: &str) -> Option<Bytes> {
    let without_counters = |outcome: &Outcome<'_>| match outcome {
        Ok((_, decision)) => decision.as_ref().is_ok_and(|decision| decision.degraded),
        Err(error) => error.code() == Code::ServiceUnavailable,
    };
    if outcomes.iter().any(without_counters) {
        return None;
    }
    let results = outcomes.iter().map(|outcome| item(outcome, request_id)).collect();
    serde_json::to_vec(&BatchAnswer { results, replayed: true }).ok().map(Bytes::from)
}

async fn decide_one<'a>(call: &Call, raw: &'a [u8], now: Timestamp) -> Outcome<'a> {
    let check: CheckBody<'a> = json::parse(raw)?;
    let decision = {
        let keys = call.app.key_ring(check.key_text(), now);
        match check.facts(call.app.limiter().rules().normalization(), &keys, &call.caller) {
            Ok(facts) => {
                let own = override_limit(&call.app, &call.caller, &facts)?;
                Ok(call.app.limiter().check(&facts.request(own.as_ref()), now).await)
            }
            Err(error) => Err(error.key_refusal().ok_or(error)?),
        }
    };
    // A batch answers 200 whatever its items say, so an item that got no decision is an error of its own.
    match &decision {
        Ok(decision) => drop(response::status(decision)?),
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

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::pin::pin;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::task::Poll;
    use std::time::Duration;

    use http_body_util::BodyExt;
    use tollgate::{MemoryCounters, Seed};

    use super::*;
    use crate::app::{App, Secrets};
    use crate::auth::Caller;
    use crate::auth::api_keys::KeySecret;
    use crate::config::settings::Settings;
    use crate::http::RequestId;
    use crate::runtime::clock::Clock;

    fn app(settings: &str) -> Arc<App> {
        let counters = Counters::Memory(MemoryCounters::default());
        let secrets = Secrets { admin_key: "admin", key_secret: KeySecret::new("secret") };
        let settings = Settings::from_toml(settings).unwrap();
        App::new(settings, counters, Seed([1; 16]), secrets, Clock::start(), Arc::default())
    }

    fn call(app: &Arc<App>) -> Arc<Call> {
        let (parts, ()) = http::Request::new(()).into_parts();
        let request_id = RequestId::of(app, &parts.headers);
        let (caller, peer) = (Caller::anonymous(), [192, 0, 2, 1].into());
        let path = "/v1/rate-limit/batch-check";
        Arc::new(Call { app: Arc::clone(app), parts, path, caller, peer, request_id })
    }

    fn owed(call: &Arc<Call>) -> Owed {
        Owed { call: Arc::clone(call), counted: false }
    }

    #[tokio::test]
    async fn t38_others_have_their_turn_while_a_batch_is_decided() {
        let body =
            format!(r#"{{"checks":[{}]}}"#, vec![r#"{"user_id":"a","endpoint":"/x"}"#; 1_000].join(","));
        let (turns, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        // On the one thread of this test: it has a turn only when the batch gives it one.
        let other = tokio::spawn({
            let (turns, done) = (Arc::clone(&turns), Arc::clone(&done));
            async move {
                while !done.load(Ordering::Relaxed) {
                    turns.fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                }
            }
        });
        let call = call(&app("default_limit = 5000"));
        let batch: BatchBody<'_> = json::parse(body.as_bytes()).unwrap();
        let checks = batch.checks.iter().map(|raw| raw.get().as_bytes());
        let outcomes = decide(&call, checks, call.app.now()).await;
        done.store(true, Ordering::Relaxed);
        other.await.unwrap();
        assert_eq!(outcomes.len(), 1_000);
        assert!(turns.load(Ordering::Relaxed) >= 1_000 / CHECKS_AT_A_TIME - 1, "{turns:?}");
    }

    async fn sent(app: &Arc<App>, body: &Bytes) -> Result<serde_json::Value, Code> {
        let answer = answer_batch(owed(&call(app)), body.clone()).await.map_err(|error| error.code())?;
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        Ok(serde_json::from_slice(&body).unwrap())
    }

    #[tokio::test]
    async fn t39_a_batch_with_a_key_is_finished_without_its_caller_and_charged_once() {
        // None comes back while the test runs.
        let app = app("default_limit = 5000\ndefault_window = \"365d\"");
        let checks = vec![r#"{"user_id":"a","endpoint":"/x"}"#; 1_000].join(",");
        let body = Bytes::from(format!(r#"{{"idempotency_key":"k","checks":[{checks}]}}"#));
        let remaining = || async {
            let look = Bytes::from_static(br#"{"checks":[{"user_id":"a","endpoint":"/x","cost":0}]}"#);
            sent(&app, &look).await.unwrap()["results"][0]["remaining"].as_u64()
        };
        {
            let mut caller = pin!(answer_batch(owed(&call(&app)), body.clone()));
            // Until some of it is charged, and then the connection is gone.
            while app.limiter().counters().memory().unwrap().is_empty() {
                let polled = poll_fn(|context| Poll::Ready(caller.as_mut().poll(context))).await;
                assert!(polled.is_pending());
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(sent(&app, &body).await, Err(Code::Conflict), "it is under way");
        app.finish_batches(Duration::from_mins(1)).await;
        assert_eq!(remaining().await, Some(4_000));
        let again = sent(&app, &body).await.unwrap();
        assert_eq!((&again["replayed"], &again["results"][999]["remaining"]), (&true.into(), &4_000.into()));
        assert_eq!(remaining().await, Some(4_000));
    }

    #[tokio::test]
    async fn t38_what_never_gets_so_far_counts_as_one_and_what_must_wait_as_nothing() {
        let app = app("[callers]\nlimit = 10\nwindow = \"1h\"");
        let call = call(&app);
        let count = |checks| owed(&call).count(checks).map_err(|error| error.code());
        drop(owed(&call));
        assert_eq!(count(9), Ok(()), "nine were left");
        assert_eq!(count(1), Err(Code::CallerLimited));

        let app = self::app("[callers]\nlimit = 10\nwindow = \"1h\"");
        let call = self::call(&app);
        let count = |checks| owed(&call).count(checks).map_err(|error| error.code());
        assert_eq!(count(6), Ok(()));
        for _ in 0..100 {
            assert_eq!(count(5), Err(Code::CallerLimited), "and four are still left");
        }
        assert_eq!(count(11), Err(Code::PayloadTooLarge), "which counts as one");
        assert_eq!(count(4), Err(Code::CallerLimited));
        assert_eq!((count(3), count(0)), (Ok(()), Err(Code::CallerLimited)), "nothing at all is one too");
    }
}
