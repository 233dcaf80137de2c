use http_body_util::BodyExt;
use serde_json::{Value as Json, json};
use tollgate_stores::sql::{AppliedChange, ItemChange};

use super::*;
use crate::app::App;

/// A call while the database is unreachable.
fn call() -> Call {
    Call::for_tests(&App::for_tests(""), "/v1/admin/keys")
}

/// A key that was just created.
fn created() -> Applied {
    let key = KeyItem {
        id: "abcdefghijklmn27".to_owned(),
        hash: [7; 32],
        name: "app".to_owned(),
        ..KeyItem::default()
    };
    let id = ItemId::Key(key.id.clone());
    let differences = vec![ItemChange { id, before: None, after: Some(Item::Key(key)) }];
    Applied {
        change: AppliedChange { version: 7, items: differences },
        at_micros: 1_800_000_000_000_000,
        warnings: Vec::new(),
    }
}

async fn json_of(response: Response) -> Json {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    serde_json::from_slice(&body).unwrap()
}

#[tokio::test]
async fn new_secret_is_shown_if_the_database_fails_now() {
    let (call, applied) = (call(), created());
    let response = secret_response(&call, &applied, "abcdefghijklmn27", "tg_secret", StatusCode::CREATED);
    let response = response.await.unwrap();
    assert_eq!(response.status(), StatusCode::CREATED);
    assert_eq!(response.headers()["cache-control"], "no-store");
    assert_eq!(response.headers()["etag"], "\"7\"");
    let body = json_of(response).await;
    assert_eq!(
        (&body["id"], &body["key"], &body["version"]),
        (&json!("abcdefghijklmn27"), &json!("tg_secret"), &json!(7))
    );
}

#[tokio::test]
async fn applied_change_is_reported_if_the_database_fails_now() {
    let id = ItemId::Key("abcdefghijklmn27".to_owned());
    let response = crud::written::<Keys>(&call(), &created(), &id, StatusCode::OK).await.unwrap();
    assert_eq!(json_of(response).await["name"], "app");
}
