//! `[callers]`: request limits of callers of the API.

use tollgate::Algorithm;
use tollgate::config::values::{integer, text};
use tollgate::config::{TableReader, read_limit_and_window};
use tollgate::rules::RuleLimit;

/// The namespace of the counters, which are separate from those of rules.
const NAME: &str = "callers";
/// Algorithms that neither delay requests nor store each of them.
const ALGORITHMS: [Algorithm; 4] =
    [Algorithm::TokenBucket, Algorithm::Gcra, Algorithm::SlidingWindowCounter, Algorithm::FixedWindow];

/// Keys with a number of requests, besides `limits`.
const REQUEST_KEYS: [&str; 5] =
    ["limit", "requests_per_second", "requests_per_minute", "requests_per_hour", "requests_per_day"];

/// The limits of each caller.
#[derive(Clone, Debug)]
pub struct CallerLimits(pub(crate) Vec<RuleLimit>);

/// Reads the section, which has the keys of a tier.
pub(super) fn read(fields: &mut TableReader<'_, '_>) -> CallerLimits {
    let limits = read_limit_and_window(fields);
    // As written, because invalid limits are not returned.
    let algorithm = fields.peek("algorithm", text).and_then(|name| Algorithm::parse(&name));
    if let Some(other) = algorithm.filter(|one| !ALGORITHMS.contains(one)) {
        let names = ALGORITHMS.map(Algorithm::as_str).join(", ");
        fields.report("algorithm", format!("{:?} cannot limit callers; use one of {names}", other.as_str()));
    }
    let is_zero = |key: &&str| fields.peek(key, integer(0..=0_u32)).is_some();
    let listed = limits.iter().any(|limit| limit.requests() == 0).then_some("limits");
    if let Some(key) = REQUEST_KEYS.into_iter().find(is_zero).or(listed) {
        fields.report(key, "must be at least 1, or every call would be refused".to_owned());
    }
    CallerLimits(limits.into_iter().map(|limit| RuleLimit::new(NAME, limit)).collect())
}

#[cfg(test)]
mod tests {
    use tollgate::Limit;

    use super::super::Settings;

    fn read(section: &str) -> Vec<Limit> {
        let settings = Settings::from_toml(section).unwrap();
        settings.callers.unwrap().0.into_iter().map(|limit| limit.limit).collect()
    }

    #[test]
    fn callers_are_not_limited_by_default() {
        let settings = Settings::from_toml("default_limit = 5").unwrap();
        assert!(settings.callers.is_none());
        assert!(!settings.to_toml().contains("[callers]"));
    }

    #[test]
    fn caller_limits_survive_a_round_trip() {
        for section in [
            "limit = 50000\nwindow = \"1s\"",
            "limit = 100\nwindow = \"1m\"\nburst = 1000\nalgorithm = \"gcra\"",
            "requests_per_second = 10\nrequests_per_hour = 1000",
            "limits = [{ requests = 5, window = \"1s\", burst = 7 }]",
        ] {
            let settings = Settings::from_toml(&format!("[callers]\n{section}")).unwrap();
            let limits = read(&format!("[callers]\n{section}"));
            assert!(!limits.is_empty(), "{section}");
            assert_eq!(read(&settings.to_toml()), limits, "{section}");
        }
    }

    #[test]
    fn environment_sets_caller_limits() {
        let environment = [("TOLLGATE_CALLERS__LIMIT", "9"), ("TOLLGATE_CALLERS__WINDOW", "1m")];
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let settings = Settings::load(&super::super::Flags::default(), environment.into_iter()).unwrap();
        assert_eq!(settings.callers.unwrap().0[0].limit.requests(), 9);
    }
}
