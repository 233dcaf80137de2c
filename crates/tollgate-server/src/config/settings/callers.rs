//! `[callers]`: how much each caller of the service itself may ask.

use tollgate::Algorithm;
use tollgate::config::values::{integer, text};
use tollgate::config::{TableReader, read_limit_and_window};
use tollgate::rules::RuleLimit;

use super::to_toml::{Toml, limits};

/// What its counters are called. They are kept apart from those of rules, so no rule can have them.
const NAME: &str = "callers";
/// How callers may be counted: a caller is answered at once and never held, and nothing is remembered of each request.
const ALGORITHMS: [Algorithm; 4] =
    [Algorithm::TokenBucket, Algorithm::Gcra, Algorithm::SlidingWindowCounter, Algorithm::FixedWindow];

/// The keys that say how many requests; `limits` has them one level below.
const NUMBERS: [&str; 5] =
    ["limit", "requests_per_second", "requests_per_minute", "requests_per_hour", "requests_per_day"];

/// How much each caller may ask.
#[derive(Clone, Debug)]
pub struct CallerLimits(pub(crate) Vec<RuleLimit>);

impl CallerLimits {
    pub(super) fn show(&self, out: &mut Toml) {
        let Some(first) = self.0.first() else { return };
        out.section("callers");
        out.text("algorithm", first.limit.algorithm());
        out.plain("limits", limits(&self.0));
    }
}

/// Reads the section, which has the keys of a tier; what is wrong, the fields know.
pub(super) fn read(fields: &mut TableReader<'_, '_>) -> CallerLimits {
    let limits = read_limit_and_window(fields);
    // As it is written: of limits that are wrong otherwise there is none to look at.
    let algorithm = fields.peek("algorithm", text).and_then(|name| Algorithm::parse(&name));
    if let Some(other) = algorithm.filter(|one| !ALGORITHMS.contains(one)) {
        let names = ALGORITHMS.map(Algorithm::as_str).join(", ");
        fields.report("algorithm", format!("{:?} is not for callers: one of {names}", other.as_str()));
    }
    let is_zero = |key: &&str| fields.peek(key, integer(0..=0_u32)).is_some();
    let listed = limits.iter().any(|limit| limit.requests() == 0).then_some("limits");
    if let Some(key) = NUMBERS.into_iter().find(is_zero).or(listed) {
        fields.report(key, "must be at least 1: callers could ask nothing at all".to_owned());
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
    fn nothing_is_limited_unless_it_is_said() {
        let settings = Settings::from_toml("default_limit = 5").unwrap();
        assert!(settings.callers.is_none());
        assert!(!settings.show().contains("[callers]"));
    }

    #[test]
    fn limits_are_written_as_those_of_a_tier_and_shown_as_they_are() {
        for section in [
            "limit = 50000\nwindow = \"1s\"",
            "limit = 100\nwindow = \"1m\"\nburst = 1000\nalgorithm = \"gcra\"",
            "requests_per_second = 10\nrequests_per_hour = 1000",
            "limits = [{ requests = 5, window = \"1s\", burst = 7 }]",
        ] {
            let settings = Settings::from_toml(&format!("[callers]\n{section}")).unwrap();
            let limits = read(&format!("[callers]\n{section}"));
            assert!(!limits.is_empty(), "{section}");
            assert_eq!(read(&settings.show()), limits, "{section}");
        }
    }

    #[test]
    fn the_environment_says_it_too() {
        let environment = [("TOLLGATE_CALLERS__LIMIT", "9"), ("TOLLGATE_CALLERS__WINDOW", "1m")];
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let settings = Settings::load(&super::super::Flags::default(), environment.into_iter()).unwrap();
        assert_eq!(settings.callers.unwrap().0[0].limit.requests(), 9);
    }
}
