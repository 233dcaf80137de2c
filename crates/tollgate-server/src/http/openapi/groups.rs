//! Tags and their groups: the sections of `/docs`, by reader.

use serde_json::{Value, json};

use crate::http::routes::Route;

/// A group of `/docs`, with its tags and their descriptions.
type Group = (&'static str, &'static [(&'static str, &'static str)]);

const GROUPS: [Group; 3] = [
    ("Check", &[("checks", "Decide about requests, preview decisions and explain them.")]),
    (
        "Manage",
        &[
            ("rules", "Which requests are limited, by what, and how."),
            ("tiers", "Limits by plan."),
            ("limits", "Limits of one user at one endpoint."),
            ("quotas", "Tier and limits of one user."),
            ("keys", "API keys of clients and callers."),
            ("blocks", "Clients that are refused."),
            ("import-export", "The whole configuration as one document."),
        ],
    ),
    (
        "Operate",
        &[
            ("service", "Health, readiness, metrics and this description."),
            ("counters", "Consumption of a client."),
            ("top", "The busiest and most refused clients."),
            ("records", "Decisions and requests of the past, from the records database."),
            ("penalties", "Clients in cooldown after repeated refusals."),
            ("upstreams", "Servers behind the reverse proxy."),
            ("audit", "Who changed what, and when."),
            ("reload", "Apply the settings file again."),
        ],
    ),
];

/// Adds the tags, and the groups in the notation of Redoc.
pub(super) fn describe(api: &mut Value) {
    let tags = GROUPS.iter().flat_map(|(_, tags)| tags.iter());
    api["tags"] = tags.map(|(name, about)| json!({ "name": name, "description": about })).collect();
    let names = |tags: &[(&str, &str)]| tags.iter().map(|(name, _)| json!(name)).collect::<Value>();
    let group = |(name, tags): &Group| json!({ "name": name, "tags": names(tags) });
    api["x-tagGroups"] = GROUPS.iter().map(group).collect();
}

/// The tag of a route, from its path.
pub(super) fn tag(route: &Route) -> &'static str {
    let mut parts = route.path.split('/').skip(1);
    match (parts.next(), parts.next(), parts.next()) {
        (Some("v1"), Some("rate-limit"), Some("config")) => "limits",
        (Some("v1"), Some("rate-limit"), Some("reset")) => "counters",
        (Some("v1"), Some("rate-limit"), _) | (Some("v1"), Some("forward-auth"), None) => "checks",
        (Some("v1"), Some("admin"), Some("actions")) => "audit",
        (Some("v1"), Some("admin"), Some("decisions" | "windows" | "rollups" | "usage")) => "records",
        (Some("v1"), Some("admin"), Some("import" | "export")) => "import-export",
        (Some("v1"), Some("admin"), Some(kind)) => kind,
        _ => "service",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::http::routes::ROUTES;

    #[test]
    fn every_tag_is_in_one_group_and_used() {
        let listed: Vec<&str> =
            GROUPS.iter().flat_map(|(_, tags)| tags.iter()).map(|(name, _)| *name).collect();
        let used: BTreeSet<&str> = ROUTES.iter().map(tag).collect();
        assert_eq!(listed.iter().copied().collect::<BTreeSet<&str>>(), used);
        assert_eq!(listed.len(), used.len(), "a tag is listed twice");
    }
}
