use serde_json::json;
use tollgate::{Answer, Endpoint, Id, Request};
use tollgate_stores::sql::{
    BlockItem, BlockKind, Item, ItemEdit, ItemId, ItemWrite, Precondition, RuleItem, StoredItem,
    UserEndpointLimit,
};

use super::*;
use crate::app::App;

const SECRET: &str = "0123456789abcdef0123456789abcdef";

fn sync(text: &str) -> ConfigSync {
    let settings = Settings::from_toml(text).unwrap();
    ConfigSync::new(&settings, KeySecret::new(SECRET))
}

fn put(name: &str) -> ItemWrite {
    let body = json!({ "per": ["user"], "limits": [{ "requests": 4, "window": "1s" }] });
    let body = body.as_object().unwrap().clone();
    ItemWrite::Put(Item::Rule(RuleItem { name: name.to_owned(), body }))
}

#[test]
fn compile_with_changes_nothing() {
    let sync = sync("[[rules]]\nname = \"mine\"\naction = \"allow\"");
    let set = sync.rules().compile_with(&[put("other")]).unwrap();
    assert_eq!(set.rules().len(), 2);
    assert!(!sync.rules().last_valid.contains("other"));
    let error = sync.rules().compile_with(&[put("mine")]).unwrap_err().to_string();
    assert!(error.contains("\"mine\""), "{error}");
    assert_eq!(sync.rules().compile_with(&[]).unwrap().rules().len(), 2, "with the built-in default");
}

#[test]
fn no_keys_are_created_with_another_secret() {
    let sync = sync("");
    let key = sync.new_key().unwrap();
    assert_eq!(crate::auth::api_keys::id_of(key.reveal()), Some(key.id()));
    assert_eq!(sync.new_secret(key.id()).unwrap().id(), key.id());
    sync.update_state(|state| state.secret_differs = true);
    assert_eq!(sync.new_key().unwrap_err(), SyncError::SecretDiffers);
}

#[test]
fn problem_includes_what_is_in_force() {
    let mut state = SyncState::default();
    assert_eq!(state.problem(), None);
    state.database_error = Some("it is down".to_owned());
    assert!(state.problem().unwrap().starts_with("it is down; only the rules of the settings file"));
    state.source = Source::Unread;
    assert!(state.problem().unwrap().contains("checks answer 503"));
    state.source = Source::Snapshot;
    assert!(state.problem().unwrap().contains("on disk"));
    state.rules_error = Some("two rules conflict".to_owned());
    assert!(state.problem().unwrap().contains("; rules are not in force: two rules conflict"));
}

#[test]
fn conflicting_file_is_rejected_unless_rules_conflict_already() {
    let sync = sync("");
    let file = |text: &str| FileRules::new(&Settings::from_toml(text).unwrap());
    sync.rules.lock().database.write(&put("stored"));
    let conflicting = "[[rules]]\nname = \"stored\"\naction = \"allow\"";
    let replace = |text: &str| {
        let mut applied = None;
        sync.replace_file(file(text), |set| applied = Some(set)).map(|()| applied.unwrap())
    };
    assert!(replace(conflicting).is_err());
    assert_eq!(replace("default_limit = 3").unwrap().rules().len(), 2);
    assert!(sync.rules().last_valid.contains("stored"));
    // The database conflicts with the file: a new file is combined with the last valid rules.
    sync.rules.lock().database.write(&put("default"));
    sync.update_state(|state| state.rules_error = Some("conflict".to_owned()));
    let set = replace("default_limit = 4").unwrap();
    assert_eq!(set.rules().len(), 2);
    assert!(sync.state().rules_error.is_some());
    assert!(replace("").is_ok());
    assert_eq!(sync.state().rules_error, None);
}

#[test]
fn conflicting_rules_can_be_deleted_one_by_one() {
    let rule = |name: &str| format!("[[rules]]\nname = \"{name}\"\naction = \"allow\"\n");
    let sync = sync(&(rule("a") + &rule("b") + &rule("c")));
    let delete = |name: &str| ItemWrite::Delete(ItemId::Rule(name.to_owned()));
    for name in ["a", "b"] {
        sync.rules.lock().database.write(&put(name));
        assert_eq!(sync.rules().file_of(name), None, "the database defines it too");
    }
    assert!(sync.rules().file_of("c").is_some());
    assert_eq!(
        sync.rules().compile_with(&[delete("a")]).unwrap().rules().len(),
        4,
        "the rules in force stay, with the built-in default"
    );
    assert!(sync.rules().compile_with(&[put("d")]).is_err());
    assert!(sync.rules().compile_with(&[delete("a"), delete("b")]).is_ok());
}

fn stored(version: u64, item: Item) -> StoredItem {
    StoredItem { item, version, created_by: "test".to_owned(), created_at_micros: 0, updated_at_micros: 0 }
}

async fn apply_changes(app: &App, version: u64, changed: &[apply::ItemState]) {
    apply::apply_changes(app.config_sync(), app.limiter(), app.now(), version, changed).await;
}

#[test]
fn concurrent_reload_and_database_change_both_apply() {
    let app = App::for_tests("default_limit = 1000");
    for round in 1..=300_u32 {
        let file = format!("default_limit = {round}");
        std::thread::scope(|threads| {
            threads.spawn(|| app.apply(&Settings::from_toml(&file).unwrap()).unwrap());
            threads.spawn(|| {
                let ItemWrite::Put(item) = put(&format!("stored-{round}")) else { unreachable!() };
                let changed = [(item.id(), Some(stored(round.into(), item)))];
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(apply_changes(&app, round.into(), &changed));
            });
        });
        let rules = app.limiter().rules();
        let names: Vec<&str> = rules.rules().iter().map(|rule| &*rule.name).collect();
        assert!(names.contains(&&*format!("stored-{round}")), "round {round}: {names:?}");
        let default = rules.rules().iter().find(|rule| &*rule.name == "default").unwrap();
        assert_eq!(default.limits[0].limit.requests(), round);
    }
}

#[tokio::test]
async fn block_never_lapses_when_normalization_changes() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("gate.db").display());
    let database = Database::open(&url).await.unwrap();
    database.migrate().await.unwrap();
    let (kind, subject) = (BlockKind::Login, "Alice".to_owned());
    let block =
        Item::Block(BlockItem { tenant: None, kind, subject, reason: String::new(), until_micros: None });
    let edit = ItemEdit { write: ItemWrite::Put(block), precondition: Precondition::None };
    database.change("test", 1, &[edit]).await.unwrap();

    let app = App::for_tests("");
    let blocked = async |login: &str| {
        let endpoint = Endpoint::parse("/x").unwrap();
        let request = Request { login: Some(Id::parse(login).unwrap()), ..Request::new(endpoint) };
        app.limiter().check(&request, app.now()).await.answer == Answer::Block
    };
    let load = async || {
        let normalization = app.config_sync().rules().file_normalization().clone();
        let loaded = apply::load(&database, &normalization).await.unwrap();
        apply::put_in_force(app.config_sync(), app.limiter(), loaded, Source::Database);
    };
    load().await;
    let mut other_is_blocked = false;
    assert!(blocked("Alice").await && !blocked("ALICE").await);
    for file in ["[identity]\nnormalize = { login = \"casefold\" }", "default_limit = 5"] {
        app.apply(&Settings::from_toml(file).unwrap()).unwrap();
        assert!(app.config_sync().rules().normalization_changed());
        assert!(blocked("Alice").await, "until the items are loaded again: {file}");
        assert_eq!(blocked("ALICE").await, other_is_blocked, "{file}");
        load().await;
        other_is_blocked = !other_is_blocked;
        assert!(blocked("Alice").await, "{file}");
        assert_eq!(blocked("ALICE").await, other_is_blocked, "{file}");
    }
}

fn limit(user: &str, requests: u32) -> UserEndpointLimit {
    UserEndpointLimit {
        tenant: None,
        user: user.to_owned(),
        endpoint: "/x".to_owned(),
        requests,
        window_micros: 3_600_000_000,
        algorithm: "token_bucket".to_owned(),
        burst: None,
    }
}

#[tokio::test]
async fn thousands_of_overrides_apply_at_once_and_store_usage() {
    let app = App::for_tests("default_limit = 100\ndefault_window = \"1h\"");
    let users: Vec<String> = (0..10_000).map(|number| format!("user-{number}")).collect();
    let request = |user: &'static str| {
        let endpoint = Endpoint::parse("/x").unwrap();
        Request { user: Some(Id::parse(user).unwrap()), ..Request::new(endpoint) }
    };
    for _ in 0..3 {
        assert!(app.limiter().check(&request("user-7"), app.now()).await.admits());
    }
    let changed: Vec<_> =
        users.iter().map(|user| Item::Limit(limit(user, 4))).map(|item| (item.id(), item)).collect();
    let put: Vec<_> = changed.iter().map(|(id, item)| (id.clone(), Some(stored(1, item.clone())))).collect();
    apply_changes(&app, 1, &put).await;
    assert_eq!(app.limiter().rules().overrides().len(), 10_000);
    assert!(app.limiter().check(&request("user-7"), app.now()).await.admits());
    assert!(!app.limiter().check(&request("user-7"), app.now()).await.admits(), "three were used before");
    assert!(app.limiter().check(&request("user-8"), app.now()).await.admits());
    let deleted: Vec<_> = changed.iter().skip(1).map(|(id, _)| (id.clone(), None)).collect();
    apply_changes(&app, 2, &deleted).await;
    assert_eq!(app.limiter().rules().overrides().len(), 1);
}
