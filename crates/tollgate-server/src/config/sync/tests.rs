use serde_json::json;
use tollgate::{Endpoint, Id, MemoryCounters, Request, Seed, Timestamp};
use tollgate_stores::sql::{Item, ItemEdit, ItemId, Precondition, RuleItem, StoredItem, UserEndpointLimit};

use super::*;
use crate::app::Secrets;
use crate::counters::Counters;
use crate::runtime::clock::Clock;

fn catalog(text: &str) -> ConfigSync {
    let settings = Settings::from_toml(text).unwrap();
    ConfigSync::new(&settings, KeySecret::new("0123456789abcdef0123456789abcdef"))
}

fn put(name: &str) -> ItemWrite {
    let body = json!({ "per": ["user"], "limits": [{ "requests": 4, "window": "1s" }] });
    let body = body.as_object().unwrap().clone();
    ItemWrite::Put(Item::Rule(RuleItem { name: name.to_owned(), body }))
}

#[test]
fn a_change_is_compiled_without_being_made() {
    let catalog = catalog("[[rules]]\nname = \"mine\"\naction = \"allow\"");
    let set = catalog.compile_with(&[put("other")]).unwrap();
    assert_eq!(set.rules().len(), 2);
    assert!(!catalog.is_from_database("other"));
    let told = catalog.compile_with(&[put("mine")]).unwrap_err().to_string();
    assert!(told.contains("\"mine\""), "{told}");
    assert_eq!(catalog.compile_with(&[]).unwrap().rules().len(), 1);
}

#[test]
fn keys_are_not_made_where_other_nodes_would_not_know_them() {
    let catalog = catalog("");
    let key = catalog.new_key().unwrap();
    assert_eq!(crate::auth::api_keys::id_of(key.reveal()), Some(key.id()));
    assert_eq!(catalog.new_secret(key.id()).unwrap().id(), key.id());
    catalog.update_state(|state| state.secret_differs = true);
    let refused = catalog.new_key().unwrap_err();
    assert_eq!(refused.code(), Code::Conflict);
}

#[test]
fn what_is_wrong_is_told_with_what_is_in_force() {
    let mut state = SyncState::default();
    assert_eq!(state.trouble(), None);
    state.database_error = Some("it is down".to_owned());
    assert!(state.trouble().unwrap().starts_with("it is down: only the rules of the file"));
    state.source = Source::Snapshot;
    assert!(state.trouble().unwrap().contains("on disk"));
    state.rules_error = Some("two rules clash".to_owned());
    assert!(state.trouble().unwrap().contains("; rules are not in force: two rules clash"));
}

#[test]
fn a_file_is_not_taken_if_it_clashes_with_what_is_in_force_and_is_if_it_mends_a_clash() {
    let catalog = catalog("");
    let file = |text: &str| FileRules::of(&Settings::from_toml(text).unwrap());
    catalog.rules.lock().book.write(&put("stored"));
    let clash = "[[rules]]\nname = \"stored\"\naction = \"allow\"";
    let replace = |text: &str| {
        let mut taken = None;
        catalog.replace_file(file(text), |set| taken = Some(set)).map(|()| taken.unwrap())
    };
    assert!(replace(clash).is_err());
    assert_eq!(replace("default_limit = 3").unwrap().rules().len(), 2);
    assert!(catalog.is_from_database("stored"));
    // The database has come to clash with the file: another file that does is taken with the rules that are good.
    catalog.rules.lock().book.write(&put("default"));
    catalog.update_state(|state| state.rules_error = Some("clash".to_owned()));
    let set = replace("default_limit = 4").unwrap();
    assert_eq!(set.rules().len(), 2);
    assert!(catalog.state().rules_error.is_some());
    assert!(replace("").is_ok());
    assert_eq!(catalog.state().rules_error, None);
}

#[test]
fn of_several_rules_that_clash_with_the_file_each_can_be_removed() {
    let rule = |name: &str| format!("[[rules]]\nname = \"{name}\"\naction = \"allow\"\n");
    let catalog = catalog(&(rule("a") + &rule("b") + &rule("c")));
    let remove = |name: &str| ItemWrite::Delete(ItemId::Rule(name.to_owned()));
    for name in ["a", "b"] {
        catalog.rules.lock().book.write(&put(name));
        assert_eq!(catalog.file_of(name), None, "the database has it too");
    }
    assert!(catalog.file_of("c").is_some());
    assert_eq!(catalog.compile_with(&[remove("a")]).unwrap().rules().len(), 3, "what is in force stays");
    assert!(catalog.compile_with(&[put("d")]).is_err());
    assert!(catalog.compile_with(&[remove("a"), remove("b")]).is_ok());
}

#[test]
fn numbers_are_being_set_until_whoever_sets_them_is_done() {
    let catalog = catalog("");
    let being_set = catalog.begin_to_set("alice", "/x");
    assert!(catalog.is_being_set("alice", "/x") && !catalog.is_being_set("alice", "/y"));
    drop(being_set);
    assert!(!catalog.is_being_set("alice", "/x"));
}

fn app(text: &str) -> Arc<App> {
    let settings = Settings::from_toml(text).unwrap();
    let counters = Counters::Memory(MemoryCounters::default());
    let key_secret = KeySecret::new("0123456789abcdef0123456789abcdef");
    let secrets = Secrets { admin_key: "key", key_secret };
    App::new(settings, counters, Seed([1; 16]), secrets, Clock::start(), Arc::default())
}

/// Follows a change that put this item.
fn follow_put(app: &App, version: u64, item: Item) {
    let changed = [(item.id(), Some(stored(version, item)))];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(apply::take_over(app, version, &changed));
}

fn stored(version: u64, item: Item) -> StoredItem {
    StoredItem { item, version, created_by: "test".to_owned(), created_at_micros: 0, updated_at_micros: 0 }
}

#[test]
fn a_reload_and_a_change_of_the_database_at_once_are_both_in_force() {
    let app = app("default_limit = 1000");
    for round in 1..=300_u32 {
        let file = format!("default_limit = {round}");
        std::thread::scope(|threads| {
            threads.spawn(|| app.apply(&Settings::from_toml(&file).unwrap()).unwrap());
            threads.spawn(|| {
                let ItemWrite::Put(item) = put(&format!("stored-{round}")) else { unreachable!() };
                follow_put(&app, round.into(), item);
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
async fn a_database_that_is_away_is_told_from_one_that_does_not_do_what_it_is_asked_to() {
    let away = Database::open("postgres://u@127.0.0.1:1/nobody-listens").await.unwrap_err();
    assert!(failed(&away).message().contains("cannot be reached"), "{away}");
    let broken = failed(&DatabaseError::Corrupt { what: "api_keys" });
    assert_eq!(broken.code(), Code::ServiceUnavailable);
    assert!(broken.message().contains("log says why"), "{}", broken.message());
}

fn limit(user: &str, requests: u32) -> Item {
    Item::Limit(UserEndpointLimit {
        user: user.to_owned(),
        endpoint: "/x".to_owned(),
        requests,
        window_micros: 3_600_000_000,
        algorithm: "token_bucket".to_owned(),
        burst: None,
    })
}

#[tokio::test]
async fn numbers_of_ten_thousand_users_are_followed_at_once_and_what_was_used_is_carried_over() {
    let app = app("default_limit = 100\ndefault_window = \"1h\"");
    let users: Vec<String> = (0..10_000).map(|number| format!("user-{number}")).collect();
    let request = |user: &'static str| {
        let endpoint = Endpoint::parse("/x").unwrap();
        Request { user: Some(Id::parse(user).unwrap()), ..Request::new(endpoint) }
    };
    for _ in 0..3 {
        assert!(app.limiter().check(&request("user-7"), app.now()).await.admits());
    }
    let changed: Vec<_> = users.iter().map(|user| limit(user, 4)).map(|item| (item.id(), item)).collect();
    let put: Vec<_> = changed.iter().map(|(id, item)| (id.clone(), Some(stored(1, item.clone())))).collect();
    apply::take_over(&app, 1, &put).await;
    assert_eq!(app.limiter().rules().overrides().len(), 10_000);
    assert!(app.limiter().check(&request("user-7"), app.now()).await.admits());
    assert!(!app.limiter().check(&request("user-7"), app.now()).await.admits(), "three were used before");
    assert!(app.limiter().check(&request("user-8"), app.now()).await.admits());
    let gone: Vec<_> = changed.iter().skip(1).map(|(id, _)| (id.clone(), None)).collect();
    apply::take_over(&app, 2, &gone).await;
    assert_eq!(app.limiter().rules().overrides().len(), 1);
}

#[tokio::test]
async fn numbers_that_are_put_in_force_late_do_not_stay_in_place_of_later_ones() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("gate.db").display());
    let database = Database::open(&url).await.unwrap();
    database.migrate().await.unwrap();
    let app = app("");
    let in_force = || {
        let rules = app.limiter().rules();
        rules.overrides().get("alice", "/x").map(|numbers| numbers.limit.limit.requests())
    };
    // Ours were stored first and are put in force last.
    let late = || {
        let Item::Limit(ours) = limit("alice", 5) else { unreachable!() };
        let ours = ours.to_override(Timestamp::from_secs(1)).unwrap();
        app.limiter().update_overrides(|now| now.with(ours.clone()));
        app.config_sync().compare_again("alice", "/x");
    };
    for (write, expected) in
        [(ItemWrite::Put(limit("alice", 6)), Some(6)), (ItemWrite::Delete(limit("alice", 6).id()), None)]
    {
        let edit = ItemEdit { write, precondition: Precondition::None };
        database.change("test", 1, &[edit]).await.unwrap();
        late();
        assert_eq!(in_force(), Some(5));
        apply::compare(&app, &database).await.unwrap();
        assert_eq!(in_force(), expected);
        assert!(app.config_sync().to_compare.lock().is_empty());
    }
    late();
    database.close().await;
    assert!(apply::compare(&app, &database).await.is_err());
    assert_eq!(app.config_sync().to_compare.lock().len(), 1, "it is tried again");
}
