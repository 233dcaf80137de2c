//! Rules and tiers in short form, from their JSON.

use serde_json::Value;

use super::Style;
use super::format::{joined, text_of};

/// The action of a rule; `off` if it is disabled.
pub(crate) fn format_action(rule: &Value) -> String {
    if is_enabled(rule) { rule["action"].as_str().unwrap_or("reject").to_owned() } else { "off".to_owned() }
}

/// Disabled rules are shown faint.
pub(crate) fn rule_style(rule: &Value) -> Style {
    if is_enabled(rule) { Style::Plain } else { Style::Faint }
}

fn is_enabled(rule: &Value) -> bool {
    rule["enabled"].as_bool() != Some(false)
}

/// `tiers=free endpoints=/a,/b`.
pub(crate) fn format_conditions(conditions: &Value) -> String {
    let Some(conditions) = conditions.as_object().filter(|conditions| !conditions.is_empty()) else {
        return "always".to_owned();
    };
    let mut parts = Vec::new();
    for (key, value) in conditions {
        match value {
            Value::Object(descriptors) => {
                let descriptor =
                    |(name, value): (&String, &Value)| format!("{key}.{name}={}", joined(value, ","));
                parts.extend(descriptors.iter().map(descriptor));
            }
            other => parts.push(format!("{key}={}", joined(other, ","))),
        }
    }
    parts.join(" ")
}

/// The limits of an item in any notation: `1000/1m burst 20`, `5/s, 100/h`.
pub(crate) fn format_limits(item: &Value) -> String {
    let one = |limit: &Value| {
        let burst = limit["burst"].as_u64().map(|burst| format!(" burst {burst}")).unwrap_or_default();
        let requests = if limit["requests"].is_null() { &limit["limit"] } else { &limit["requests"] };
        let algorithm = limit["algorithm"].as_str().map(|name| format!(" {name}")).unwrap_or_default();
        format!("{}/{}{burst}{algorithm}", text_of(requests), text_of(&limit["window"]))
    };
    let mut parts: Vec<String> = match item["limits"].as_array() {
        Some(limits) => limits.iter().map(one).collect(),
        None if !item["limit"].is_null() => vec![one(item)],
        None => Vec::new(),
    };
    for (key, unit) in [("second", "s"), ("minute", "m"), ("hour", "h"), ("day", "d")] {
        let number = &item[format!("requests_per_{key}")];
        parts.extend(number.as_u64().map(|number| format!("{number}/{unit}")));
    }
    parts.extend(item["max_delay"].as_str().map(|delay| format!("delay {delay}")));
    parts.extend(item["burst_size"].as_u64().map(|burst| format!("burst {burst}")));
    // A single limit already shows its algorithm.
    let algorithm = item["algorithm"].as_str().filter(|_| item["limit"].is_null());
    parts.extend(algorithm.map(str::to_owned));
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn conditions_are_abbreviated() {
        let conditions =
            json!({"tiers": ["free", "trial"], "endpoints": "/a", "descriptors": {"plan": ["eu"]}});
        assert_eq!(format_conditions(&conditions), "descriptors.plan=eu endpoints=/a tiers=free,trial");
        assert_eq!(format_conditions(&json!({})), "always");
        assert_eq!(format_conditions(&Value::Null), "always");
    }

    #[test]
    fn limits_are_shown_in_every_notation() {
        for (item, shown) in [
            (json!({"limit": 10, "window": "1m", "burst": 5}), "10/1m burst 5"),
            (json!({"requests_per_second": 5, "requests_per_day": 9, "burst_size": 7}), "5/s, 9/d, burst 7"),
            (
                json!({"limits": [{"requests": 1, "window": 60}, {"requests": 2, "window": "1h"}], "algorithm": "gcra"}),
                "1/60, 2/1h, gcra",
            ),
            (json!({}), ""),
        ] {
            assert_eq!(format_limits(&item), shown);
        }
    }
}
