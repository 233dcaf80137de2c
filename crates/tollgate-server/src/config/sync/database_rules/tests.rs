use serde_json::json;

use super::*;

fn file(text: &str) -> FileRules {
    FileRules::of(&Settings::from_toml(text).unwrap())
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

fn book(items: &[Item]) -> DatabaseRules {
    let mut book = DatabaseRules::default();
    for item in items {
        assert!(book.put(item));
    }
    book
}

fn names(set: &RuleSet) -> Vec<&str> {
    let mut names: Vec<&str> = set.rules().iter().map(|rule| &*rule.name).collect();
    names.sort_unstable();
    names
}

#[test]
fn the_database_adds_to_the_file() {
    let file = file("default_limit = 7\n[[tiers]]\nname = \"free\"\nlimit = 1\nwindow = \"1m\"");
    let book = book(&[rule("burst", 3), tier("paid")]);
    let set = book.compile(&file).unwrap();
    assert_eq!(names(&set), ["burst", "default", "tier:free", "tier:paid"]);
    assert!(book.has("burst") && book.has("tier:paid") && !book.has("default") && !book.has("tier:free"));
}

#[test]
fn a_name_that_is_in_both_is_an_error_that_names_both() {
    let file = file(
        "[[rules]]\nname = \"burst\"\nper = [\"ip\"]\nlimits = [{ requests = 1, window = \"1s\" }]\n\
                     [[tiers]]\nname = \"paid\"\nlimit = 1\nwindow = \"1m\"",
    );
    let book = book(&[rule("burst", 3), rule("other", 3), tier("paid")]);
    let told = book.compile(&file).unwrap_err().to_string();
    for part in ["rule of the database", "\"burst\"", "tier of the database", "\"tier:paid\""] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let fitting = book.what_fits(&file);
    assert_eq!(names(&fitting.compile(&file).unwrap()), ["burst", "other", "tier:paid"]);
    assert!(fitting.has("other") && !fitting.has("burst"));
}

#[test]
fn the_built_in_default_makes_way_for_a_rule_of_its_name_and_a_written_one_does_not() {
    let book = book(&[rule("default", 3)]);
    let set = book.compile(&file("")).unwrap();
    assert_eq!(names(&set), ["default"]);
    assert_eq!(set.rules()[0].limits[0].limit.requests(), 3);
    assert!(book.compile(&file("default_limit = 5")).is_err());
    assert_eq!(names(&DatabaseRules::default().compile(&file("")).unwrap()), ["default"]);
}

#[test]
fn what_is_no_rule_is_told_by_its_name_and_its_field() {
    let wrong =
        body(&json!({ "per": ["planet"], "limits": [{ "requests": 1, "window": "1m" }], "colour": 1 }));
    let book = book(&[Item::Rule(RuleItem { name: "odd".to_owned(), body: wrong }), rule("good", 1)]);
    let told = book.compile(&file("")).unwrap_err().to_string();
    for part in ["rule \"odd\" of the database", "per[0]", "colour: unknown key"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert_eq!(names(&book.what_fits(&file("")).compile(&file("")).unwrap()), ["default", "good"]);
}

#[test]
fn rules_and_tiers_can_be_replaced_and_removed() {
    let mut book = book(&[rule("burst", 3), tier("paid")]);
    book.write(&ItemWrite::Put(rule("burst", 9)));
    book.write(&ItemWrite::Delete(ItemId::Tier("paid".to_owned())));
    let set = book.compile(&file("[[rules]]\nname = \"a\"\naction = \"allow\"")).unwrap();
    assert_eq!(names(&set), ["a", "burst"]);
    assert_eq!(book.items().count(), 1);
    assert!(!book.remove(&ItemId::Quota("burst".to_owned())) && book.has("burst"));
}
