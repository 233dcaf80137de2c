use serde_json::json;
use tollgate_stores::sql::{Item, ItemId, RuleItem};

use super::*;

fn catalog(text: &str) -> Catalog {
    let settings = Settings::from_toml(text).unwrap();
    Catalog::new(&settings, KeySecret::new("0123456789abcdef0123456789abcdef"))
}

fn put(name: &str) -> Write {
    let body = json!({ "per": ["user"], "limits": [{ "requests": 4, "window": "1s" }] });
    let body = body.as_object().unwrap().clone();
    Write::Put(Item::Rule(RuleItem { name: name.to_owned(), body }))
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
    assert_eq!(crate::keys::id_of(key.reveal()), Some(key.id()));
    assert_eq!(catalog.new_secret(key.id()).unwrap().id(), key.id());
    catalog.update_state(|state| state.secret_differs = true);
    let refused = catalog.new_key().unwrap_err();
    assert_eq!(refused.code(), Code::Conflict);
}

#[test]
fn what_is_wrong_is_told_with_what_is_in_force() {
    let mut state = CatalogState::default();
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
    assert!(catalog.replace_file(file(clash)).is_err());
    assert_eq!(catalog.replace_file(file("default_limit = 3")).unwrap().rules().len(), 2);
    assert!(catalog.is_from_database("stored"));
    // The database has come to clash with the file: another file that does is taken with the rules that are good.
    catalog.rules.lock().book.write(&put("default"));
    catalog.update_state(|state| state.rules_error = Some("clash".to_owned()));
    let set = catalog.replace_file(file("default_limit = 4")).unwrap();
    assert_eq!(set.rules().len(), 2);
    assert!(catalog.state().rules_error.is_some());
    assert!(catalog.replace_file(file("")).is_ok());
    assert_eq!(catalog.state().rules_error, None);
}

#[test]
fn of_several_rules_that_clash_with_the_file_each_can_be_removed() {
    let rule = |name: &str| format!("[[rules]]\nname = \"{name}\"\naction = \"allow\"\n");
    let catalog = catalog(&(rule("a") + &rule("b") + &rule("c")));
    let remove = |name: &str| Write::Delete(ItemId::Rule(name.to_owned()));
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
