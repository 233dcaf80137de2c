use std::sync::Arc;

use http_body_util::BodyExt;
use tollgate::{MemoryCounters, Seed};

use super::*;
use crate::app::{App, Secrets};
use crate::auth::Caller;
use crate::clock::Clock;
use crate::counters::Counters;
use crate::keys::KeySecret;
use crate::rest::RequestId;
use crate::settings::Settings;

/// A call whose database has gone away.
fn call() -> Call {
    let counters = Counters::Memory(MemoryCounters::default());
    let secrets = Secrets { admin_key: "admin", key_secret: KeySecret::new("secret") };
    let settings = Settings::from_toml("").unwrap();
    let app = App::new(settings, counters, Seed([1; 16]), secrets, Clock::start(), Arc::default());
    let (parts, ()) = http::Request::new(()).into_parts();
    let request_id = RequestId::of(&app, &parts.headers);
    Call { app, parts, path: "/v1/admin/keys", caller: Caller::anonymous(), request_id }
}

#[tokio::test]
async fn a_key_that_was_made_is_told_though_the_database_goes_away() {
    let answer =
        answer_with_secret(&call(), "abcdefghijklmn27", "tg_told", StatusCode::CREATED).await.unwrap();
    assert_eq!(answer.status(), StatusCode::CREATED);
    assert_eq!(answer.headers()["cache-control"], "no-store");
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    let body: Json = serde_json::from_slice(&body).unwrap();
    assert_eq!(body, json!({ "id": "abcdefghijklmn27", "key": "tg_told" }));
}

#[tokio::test]
async fn of_a_change_that_was_made_nobody_is_told_that_it_was_not() {
    let id = ItemId::Key("abcdefghijklmn27".to_owned());
    let error = change::answer_with(&call(), &id, StatusCode::OK).await.unwrap_err();
    assert_eq!(error.code(), Code::ServiceUnavailable);
    assert!(error.message().starts_with("the change was made"), "{}", error.message());
}
