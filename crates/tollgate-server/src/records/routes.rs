//! The route of a path: what window records and rollups are kept by.

use std::hash::BuildHasher;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use hashbrown::{DefaultHashBuilder, HashSet};
use parking_lot::RwLock;
use tollgate::RuleSet;
use tollgate::endpoint::Endpoint;
use tollgate::rules::pattern::Pattern;
use tollgate::rules::pattern_index::PatternIndex;

/// The route of paths that no pattern matches once there are too many of them.
pub(crate) const OTHER: &str = "(other)";
/// Paths without a pattern that have a route of their own, per hour.
const PATHS_MAX: usize = 10_000;
const MINUTES_PER_HOUR: u64 = 60;

/// Finds routes: the most specific endpoint pattern of a rule that matches, or else the path itself, or [`OTHER`].
#[derive(Default)]
pub(crate) struct Routes {
    patterns: ArcSwap<Patterns>,
    paths: RwLock<Paths>,
    hashing: DefaultHashBuilder,
}

#[derive(Default)]
struct Patterns {
    index: PatternIndex,
    /// The most specific first.
    texts: Vec<Box<str>>,
}

/// Hashes of the paths with a route of their own in this hour.
#[derive(Default)]
struct Paths {
    hour: u64,
    known: HashSet<u64>,
}

impl Routes {
    /// Uses the patterns of these rules, without `/*`, which would hide all paths.
    pub(crate) fn apply_rules(&self, rules: &RuleSet) {
        let enabled = rules.rules().iter().filter(|rule| rule.enabled);
        let mut patterns: Vec<&Pattern> = enabled.flat_map(|rule| &rule.when.endpoints).collect();
        patterns.retain(|pattern| !pattern.is_everything());
        patterns
            .sort_by_cached_key(|pattern| (std::cmp::Reverse(pattern.specificity()), pattern.to_string()));
        patterns.dedup();
        let mut index = PatternIndex::default();
        for (number, pattern) in (0..).zip(&patterns) {
            index.insert(pattern, number);
        }
        let texts = patterns.iter().map(|pattern| pattern.to_string().into()).collect();
        self.patterns.store(Patterns { index, texts }.into());
    }

    /// Finds the routes of several paths.
    pub(crate) fn finder(&self) -> RouteFinder<'_> {
        RouteFinder { routes: self, patterns: self.patterns.load() }
    }

    fn has_own_route(&self, path: &str, hour: u64) -> bool {
        let hash = self.hashing.hash_one(path);
        let paths = self.paths.read();
        // Decisions of the last hour may be counted after the first of this one.
        if paths.hour >= hour {
            let is_known = paths.known.contains(&hash);
            if is_known || paths.known.len() >= PATHS_MAX {
                return is_known;
            }
        }
        drop(paths);
        let mut paths = self.paths.write();
        if paths.hour < hour {
            paths.hour = hour;
            paths.known.clear();
        }
        if paths.known.len() < PATHS_MAX {
            paths.known.insert(hash);
        }
        paths.known.contains(&hash)
    }
}

/// Finds routes by the patterns of one moment.
pub(crate) struct RouteFinder<'r> {
    routes: &'r Routes,
    patterns: Guard<Arc<Patterns>>,
}

impl RouteFinder<'_> {
    /// The route of a path in normal form.
    pub(crate) fn route<'a>(&'a self, path: &'a str, minute: u64) -> &'a str {
        let patterns = &self.patterns;
        let mut best: Option<u32> = None;
        if !patterns.texts.is_empty()
            // Fails only for a path that case folding has made too long.
            && let Ok(endpoint) = Endpoint::parse(path)
        {
            let most_specific = |number| best = Some(best.map_or(number, |best: u32| best.min(number)));
            patterns.index.for_each_match(&endpoint, most_specific);
        }
        match best.and_then(|number| patterns.texts.get(number as usize)) {
            Some(pattern) => pattern,
            None if self.routes.has_own_route(path, minute / MINUTES_PER_HOUR) => path,
            None => OTHER,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::settings::Settings;

    fn route(routes: &Routes, path: &str, minute: u64) -> String {
        routes.finder().route(path, minute).to_owned()
    }

    fn with_patterns(patterns: &str) -> Routes {
        let rules = format!(
            "[[rules]]\nname = \"a\"\nper = [\"client\"]\nrequests_per_second = 5\nwhen.endpoints = {patterns}"
        );
        let routes = Routes::default();
        routes.apply_rules(&Settings::from_toml(&rules).unwrap().rules);
        routes
    }

    #[test]
    fn most_specific_pattern_is_the_route() {
        let routes = with_patterns(r#"["/users/*", "/users/{id}/posts", "/*"]"#);
        assert_eq!(route(&routes, "/users/7", 0), "/users/*");
        assert_eq!(route(&routes, "/users/7/posts", 0), "/users/{id}/posts");
        assert_eq!(route(&routes, "/orders", 0), "/orders");
    }

    #[test]
    fn unmatched_paths_are_bounded_per_hour() {
        let routes = with_patterns(r#"["/users/*"]"#);
        for number in 0..PATHS_MAX {
            let path = format!("/p/{number}");
            assert_eq!(route(&routes, &path, 59), path);
        }
        assert_eq!(route(&routes, "/new", 59), OTHER);
        assert_eq!(route(&routes, "/p/0", 59), "/p/0");
        assert_eq!(route(&routes, "/users/1", 59), "/users/*");
        assert_eq!(route(&routes, "/new", 60), "/new");
    }
}
