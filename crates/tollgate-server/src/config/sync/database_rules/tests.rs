use serde_json::json;
use tollgate_stores::sql::{RuleItem, TierItem};

use super::*;
use crate::config::settings::Settings;

fn file(text: &str) -> FileRules {
    FileRules::new(&Settings::from_toml(text).unwrap())
}

fn body(value: &Json) -> Map<String, Json> {
    value.as_object().unwrap().clone()
}

fn rule(name: &str, requests: u32) -> Item {
    let body = body(&json!({ "per": ["user"], "limits": [{ "requests": requests, "window": "1m" }] }));
    Item::Rule(RuleItem { name: name.to_owned(), body })
}

fn tier(name: &str) -> Item {
    let body = body(&json!({ "limit": 5, "window": "1h" }));
    Item::Tier(TierItem { name: name.to_owned(), description: String::new(), body })
}

fn stored(items: &[Item]) -> DatabaseRules {
    let mut stored = DatabaseRules::default();
    for item in items {
        assert!(stored.put(item));
    }
    stored
}

fn names(set: &RuleSet) -> Vec<&str> {
    let mut names: Vec<&str> = set.rules().iter().map(|rule| &*rule.name).collect();
    names.sort_unstable();
    names
}

#[test]
fn database_rules_add_to_file_rules() {
    let file = file("default_limit = 7\n[[tiers]]\nname = \"free\"\nlimit = 1\nwindow = \"1m\"");
    let stored = stored(&[rule("burst", 3), tier("paid")]);
    let set = stored.compile(&file).unwrap();
    assert_eq!(names(&set), ["burst", "default", "tier:free", "tier:paid"]);
    assert!(
        stored.contains("burst")
            && stored.contains("tier:paid")
            && !stored.contains("default")
            && !stored.contains("tier:free")
    );
}

#[test]
fn rule_defined_twice_is_an_error_naming_both() {
    let file = file(
        "[[rules]]\nname = \"burst\"\nper = [\"ip\"]\nlimits = [{ requests = 1, window = \"1s\" }]\n\
                     [[tiers]]\nname = \"paid\"\nlimit = 1\nwindow = \"1m\"",
    );
    let stored = stored(&[rule("burst", 3), rule("other", 3), tier("paid")]);
    let error = stored.compile(&file).unwrap_err().to_string();
    for part in ["rule of the database", "\"burst\"", "tier of the database", "\"tier:paid\""] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let valid = stored.valid_part(&file);
    assert_eq!(names(&valid.compile(&file).unwrap()), ["burst", "other", "tier:paid"]);
    assert!(valid.contains("other") && !valid.contains("burst"));
}

#[test]
fn database_rule_replaces_only_the_built_in_default() {
    let stored = stored(&[rule("default", 3)]);
    let set = stored.compile(&file("")).unwrap();
    assert_eq!(names(&set), ["default"]);
    assert_eq!(set.rules()[0].limits[0].limit.requests(), 3);
    assert!(stored.compile(&file("default_limit = 5")).is_err());
    assert_eq!(names(&DatabaseRules::default().compile(&file("")).unwrap()), ["default"]);
}

#[test]
fn first_limiting_database_rule_ends_the_built_in_default() {
    let stored_rule =
        |fields: Json| stored(&[Item::Rule(RuleItem { name: "a".to_owned(), body: body(&fields) })]);
    let limits = json!([{ "requests": 1, "window": "1m" }]);
    for fields in [
        json!({ "action": "block", "when": { "users": ["bob"] } }),
        json!({ "action": "allow", "when": { "users": ["bob"] } }),
        json!({ "action": "log_only", "per": ["user"], "limits": limits }),
        json!({ "enabled": false, "per": ["user"], "limits": limits }),
    ] {
        assert_eq!(names(&stored_rule(fields).compile(&file("")).unwrap()), ["a", "default"]);
    }
    assert_eq!(names(&stored(&[rule("a", 3)]).compile(&file("")).unwrap()), ["a"]);
    assert_eq!(names(&stored(&[tier("paid")]).compile(&file("")).unwrap()), ["tier:paid"]);
    let block = "[[rules]]\nname = \"b\"\naction = \"block\"\nwhen = { users = [\"bob\"] }";
    assert_eq!(names(&stored(&[]).compile(&file(block)).unwrap()), ["b", "default"]);
    assert_eq!(names(&stored(&[rule("a", 3)]).compile(&file(block)).unwrap()), ["a", "b"]);
    assert_eq!(
        names(&stored(&[rule("a", 3)]).compile(&file("default_limit = 5")).unwrap()),
        ["a", "default"]
    );
}

#[test]
fn invalid_rule_is_reported_with_name_and_field() {
    let invalid =
        body(&json!({ "per": ["planet"], "limits": [{ "requests": 1, "window": "1m" }], "colour": 1 }));
    let stored = stored(&[Item::Rule(RuleItem { name: "odd".to_owned(), body: invalid }), rule("good", 1)]);
    let error = stored.compile(&file("")).unwrap_err().to_string();
    for part in ["rule \"odd\" of the database", "per[0]", "colour: unknown key"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert_eq!(names(&stored.valid_part(&file("")).compile(&file("")).unwrap()), ["good"]);
}

#[test]
fn rules_and_tiers_can_be_replaced_and_removed() {
    let mut stored = stored(&[rule("burst", 3), tier("paid")]);
    stored.write(&ItemWrite::Put(rule("burst", 9)));
    stored.write(&ItemWrite::Delete(ItemId::Tier("paid".to_owned())));
    let set = stored.compile(&file("[[rules]]\nname = \"a\"\naction = \"allow\"")).unwrap();
    assert_eq!(names(&set), ["a", "burst"]);
    assert_eq!(stored.items().count(), 1);
    assert!(
        !stored.remove(&ItemId::Quota { tenant: None, user: "burst".to_owned() }) && stored.contains("burst")
    );
}
