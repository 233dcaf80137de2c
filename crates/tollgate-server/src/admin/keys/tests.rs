use http_body_util::BodyExt;
use serde_json::json;
use tollgate_stores::sql::{AccountLimits, AppliedChange, ItemChange};

use super::*;
use crate::app::App;

/// A call whose database has gone away.
fn call() -> Call {
    Call::for_tests(&App::for_tests(""), "/v1/admin/keys")
}

/// A key that was made just before.
fn made() -> Made {
    let key = KeyItem {
        id: "abcdefghijklmn27".to_owned(),
        hash: [7; 32],
        previous_hash: None,
        previous_until_micros: None,
        name: "app".to_owned(),
        user: None,
        tenant: None,
        tier: None,
        scopes: Vec::new(),
        limits: AccountLimits::default(),
        expires_at_micros: None,
        revoked_at_micros: None,
        revoked_by: None,
    };
    let id = ItemId::Key(key.id.clone());
    let differences = vec![ItemChange { id, before: None, after: Some(Item::Key(key)) }];
    Made::new(AppliedChange { version: 7, items: differences }, 1_800_000_000_000_000)
}

async fn json_of(answer: Response) -> Json {
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    serde_json::from_slice(&body).unwrap()
}

#[tokio::test]
async fn a_key_that_was_made_is_told_though_the_database_goes_away() {
    let (call, made) = (call(), made());
    let answer = answer_with_secret(&call, &made, "abcdefghijklmn27", "tg_told", StatusCode::CREATED);
    let answer = answer.await.unwrap();
    assert_eq!(answer.status(), StatusCode::CREATED);
    assert_eq!(answer.headers()["cache-control"], "no-store");
    assert_eq!(answer.headers()["etag"], "\"7\"");
    let body = json_of(answer).await;
    assert_eq!(
        (&body["id"], &body["key"], &body["version"]),
        (&json!("abcdefghijklmn27"), &json!("tg_told"), &json!(7))
    );
}

#[tokio::test]
async fn of_a_change_that_was_made_nobody_is_told_that_it_was_not() {
    let id = ItemId::Key("abcdefghijklmn27".to_owned());
    let answer = change::answer_with(&call(), &id, &made(), StatusCode::OK).await.unwrap();
    assert_eq!(json_of(answer).await["name"], "app");
}
