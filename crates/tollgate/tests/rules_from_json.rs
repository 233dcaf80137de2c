//! Rules and tiers from JSON.
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
fn json_rule_equals_toml_rule() {
    let json = r#"{"name": "a", "per": ["user"], "when": {"tiers": ["free"], "descriptors": {"plan": "eu"}},
        "limits": [{"requests": 5, "window": "1m", "burst": 7}], "priority": 3, "layer": null}"#;
    let toml = "[[rules]]\nname = \"a\"\nper = [\"user\"]\npriority = 3\n\
        when = { tiers = [\"free\"], descriptors = { plan = \"eu\" } }\n\
        limits = [{ requests = 5, window = \"1m\", burst = 7 }]";
    let written = RuleSet::from_toml(toml).unwrap();
    assert_eq!(format!("{:?}", read(json, read_rule).unwrap()), format!("{:?}", written.rules()[0]));
}

#[test]
fn json_tier_becomes_its_rule() {
    let rule = read(r#"{"name": "free", "limit": 10, "window": "1m"}"#, read_tier).unwrap();
    assert_eq!((&*rule.name, &*rule.when.tiers[0]), ("tier:free", "free"));
}

#[test]
fn all_json_problems_are_reported_with_keys() {
    let json =
        r#"{"per": ["planet"], "limits": [{"requests": 18446744073709551615, "window": 1.5}], "x": 1}"#;
    let problems = read(json, read_rule).unwrap_err();
    let mut keys: Vec<&str> = problems.0.iter().map(|problem| &*problem.key).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["limits[0].requests", "limits[0].window", "name", "per[0]", "x"]);
    assert!(problems.0.iter().all(|problem| problem.origin == Origin::Named("body".to_owned())));
}

#[test]
fn duplicate_json_keys_are_rejected() {
    for json in [r#"{"a": 1, "a": 2}"#, r#"{"a": [{"b": 1, "b": 1}]}"#] {
        assert!(serde_json::from_str::<Value>(json).unwrap_err().to_string().contains("duplicate key"));
    }
    assert!(serde_json::from_str::<Value>("[null]").is_err(), "a list has no place for nothing");
}
