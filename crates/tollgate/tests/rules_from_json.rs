//! Rules and plans that come by an API, as JSON: the same as those of a file.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use tollgate::config::{Document, Origin, Problems, TableReader, Value, read_rule, read_tier};
use tollgate::{Rule, RuleSet};

fn read(json: &str, read: impl FnOnce(&mut TableReader<'_, '_>) -> Option<Rule>) -> Result<Rule, Problems> {
    let value: Value = serde_json::from_str(json).unwrap();
    let document = Document::from_value(value, Origin::Named("body".to_owned())).unwrap();
    let mut problems = Problems::default();
    let mut fields = document.fields(&mut problems);
    let rule = read(&mut fields);
    fields.finish();
    problems.into_result(rule)
}

#[test]
fn a_rule_in_json_is_the_rule_in_toml() {
    let json = r#"{"name": "a", "per": ["user"], "when": {"tiers": ["free"], "descriptors": {"plan": "eu"}},
        "limits": [{"requests": 5, "window": "1m", "burst": 7}], "priority": 3, "layer": null}"#;
    let toml = "[[rules]]\nname = \"a\"\nper = [\"user\"]\npriority = 3\n\
        when = { tiers = [\"free\"], descriptors = { plan = \"eu\" } }\n\
        limits = [{ requests = 5, window = \"1m\", burst = 7 }]";
    let written = RuleSet::from_toml(toml).unwrap();
    assert_eq!(format!("{:?}", read(json, read_rule).unwrap()), format!("{:?}", written.rules()[0]));
}

#[test]
fn a_tier_in_json_is_the_rule_of_that_plan() {
    let rule = read(r#"{"name": "free", "limit": 10, "window": "1m"}"#, read_tier).unwrap();
    assert_eq!((&*rule.name, &*rule.when.tiers[0]), ("tier:free", "free"));
}

#[test]
fn t36_mistakes_in_json_are_all_named_with_their_keys() {
    let json =
        r#"{"per": ["planet"], "limits": [{"requests": 18446744073709551615, "window": 1.5}], "x": 1}"#;
    let problems = read(json, read_rule).unwrap_err();
    let mut keys: Vec<&str> = problems.0.iter().map(|problem| &*problem.key).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["limits[0].requests", "limits[0].window", "name", "per[0]", "x"]);
    assert!(problems.0.iter().all(|problem| problem.origin == Origin::Named("body".to_owned())));
}

#[test]
fn t35_a_key_that_stands_twice_is_refused() {
    for json in [r#"{"a": 1, "a": 2}"#, r#"{"a": [{"b": 1, "b": 1}]}"#] {
        assert!(serde_json::from_str::<Value>(json).unwrap_err().to_string().contains("duplicate key"));
    }
    assert!(serde_json::from_str::<Value>("[null]").is_err(), "a list has no place for nothing");
}
