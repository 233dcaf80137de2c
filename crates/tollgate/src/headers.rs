//! A decision as response headers. Pure functions; a surface only copies the pairs.

use std::fmt::Write;

use itoa::Buffer;

use crate::counters::Effect;
use crate::decision::{Answer, Decision, LimitReport};
use crate::limit::Limit;
use crate::time::{Span, Timestamp};

named_enum! {
    /// A family of header fields. Drafts are versioned, so that a client written for one keeps working.
    pub enum HeaderProfile {
        /// `X-RateLimit-Limit`, `-Remaining`, `-Reset` (Unix seconds) and `-Strategy`.
        XRateLimit = "x-ratelimit",
        /// The `X-RateLimit-*` fields as Envoy writes them: all limits listed, reset in seconds from now.
        Draft03 = "draft-03",
        /// `RateLimit-Limit`, `-Remaining`, `-Reset` in seconds from now, and `RateLimit-Policy`.
        Draft06 = "draft-06",
        /// `RateLimit-Policy` and `RateLimit` as structured fields.
        Draft10 = "draft-10",
    }
}

impl HeaderProfile {
    /// The fields of the profile, besides `Retry-After`.
    pub const fn fields(self) -> &'static [Field] {
        match self {
            HeaderProfile::XRateLimit => &[Field::XLimit, Field::XRemaining, Field::XReset, Field::XStrategy],
            HeaderProfile::Draft03 => &[Field::XLimit, Field::XRemaining, Field::XReset],
            HeaderProfile::Draft06 => &[Field::Limit, Field::Remaining, Field::Reset, Field::Policy],
            HeaderProfile::Draft10 => &[Field::Policy, Field::RateLimit],
        }
    }

    /// A field that both profiles write. Such profiles cannot be combined.
    pub fn shared_field(self, other: HeaderProfile) -> Option<Field> {
        self.fields().iter().copied().find(|field| other.fields().contains(field))
    }
}

named_enum! {
    /// A header field. Names are in lower case, as HTTP/2 requires.
    pub enum Field {
        XLimit = "x-ratelimit-limit",
        XRemaining = "x-ratelimit-remaining",
        XReset = "x-ratelimit-reset",
        XStrategy = "x-ratelimit-strategy",
        Limit = "ratelimit-limit",
        Remaining = "ratelimit-remaining",
        Reset = "ratelimit-reset",
        Policy = "ratelimit-policy",
        RateLimit = "ratelimit",
        RetryAfter = "retry-after",
    }
}

/// Calls `put` with the field and value of every header. Values are ASCII without control characters.
///
/// ```
/// use tollgate::headers::{HeaderProfile, for_each};
/// # use tollgate::{Endpoint, Id, Limiter, MemoryCounters, Request, RuleSet, Timestamp};
/// # let limiter = Limiter::new(RuleSet::from_toml("").unwrap(), MemoryCounters::default());
/// # let request = Request { user: Some(Id::parse("a")?), ..Request::new(Endpoint::parse("/")?) };
/// let decision = limiter.check_now(&request, Timestamp::from_secs(1_000));
/// let mut lines = Vec::new();
/// for_each(&decision, &[HeaderProfile::Draft10], |field, value| lines.push(format!("{}: {value}", field.as_str())));
/// assert_eq!(lines, ["ratelimit-policy: \"default\";q=100;w=60", "ratelimit: \"default\";r=99;t=1"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn for_each(decision: &Decision, profiles: &[HeaderProfile], mut put: impl FnMut(Field, &str)) {
    if let Some(report) = decision.binding() {
        for profile in profiles {
            match profile {
                HeaderProfile::XRateLimit => x_ratelimit(decision, report, &mut put),
                HeaderProfile::Draft03 => draft_03(decision, report, &mut put),
                HeaderProfile::Draft06 => draft_06(decision, report, &mut put),
                HeaderProfile::Draft10 => draft_10(decision, report, &mut put),
            }
        }
    }
    match decision.answer {
        Answer::Block => {
            let until = decision.block().and_then(|block| block.until);
            without_counter(&Refused { until, ..Refused::at(decision.now) }, profiles, &mut put);
        }
        Answer::Unavailable => {
            let limit = decision.rule().and_then(|rule| rule.limits.first()).map(|limit| &limit.limit);
            let until = Some(decision.now + Span::from_secs(1));
            without_counter(&Refused { limit, until, now: decision.now }, profiles, &mut put);
        }
        Answer::Admit { .. } | Answer::Refuse { .. } => {}
    }
    if let Some(wait) = decision.retry_after() {
        put(Field::RetryAfter, Buffer::new().format(retry_after_secs(wait)));
    }
}

/// Calls `put` with each header field of a client that is refused whatever its counters hold, such as one with a revoked
/// API key.
pub fn for_blocked(profiles: &[HeaderProfile], mut put: impl FnMut(Field, &str)) {
    without_counter(&Refused::at(Timestamp::default()), profiles, &mut put);
}

/// A refusal that no counter made: nothing is left, of a limit of 0 if no limit is known.
struct Refused<'a> {
    limit: Option<&'a Limit>,
    /// When a retry may pass, if that is known.
    until: Option<Timestamp>,
    now: Timestamp,
}

impl Refused<'_> {
    fn at(now: Timestamp) -> Self {
        Refused { limit: None, until: None, now }
    }
}

fn without_counter(refused: &Refused<'_>, profiles: &[HeaderProfile], put: &mut impl FnMut(Field, &str)) {
    let requests = refused.limit.map_or(0, Limit::requests);
    for profile in profiles {
        let (limit, remaining, reset) = match profile {
            HeaderProfile::XRateLimit | HeaderProfile::Draft03 => {
                (Field::XLimit, Field::XRemaining, Field::XReset)
            }
            HeaderProfile::Draft06 => (Field::Limit, Field::Remaining, Field::Reset),
            // It names policies, and no policy decided.
            HeaderProfile::Draft10 => continue,
        };
        put(limit, Buffer::new().format(requests));
        put(remaining, "0");
        if let Some(until) = refused.until {
            let is_absolute = *profile == HeaderProfile::XRateLimit;
            let wait = until.since(refused.now).as_secs_ceil();
            put(reset, Buffer::new().format(if is_absolute { until.as_secs_ceil() } else { wait }));
        }
        if let (HeaderProfile::XRateLimit, Some(limit)) = (profile, refused.limit) {
            put(Field::XStrategy, limit.algorithm().as_str());
        }
    }
}

/// The value of `Retry-After`: whole seconds, rounded up, at least one.
pub fn retry_after_secs(wait: Span) -> u64 {
    wait.as_secs_ceil().max(1)
}

fn x_ratelimit(decision: &Decision, report: &LimitReport, put: &mut impl FnMut(Field, &str)) {
    put(Field::XLimit, Buffer::new().format(report.requests));
    put(Field::XRemaining, Buffer::new().format(report.remaining()));
    let reset_at = decision.now + report.verdict.reset_after;
    put(Field::XReset, Buffer::new().format(reset_at.as_secs_ceil()));
    put(Field::XStrategy, report.algorithm.as_str());
}

fn draft_03(decision: &Decision, report: &LimitReport, put: &mut impl FnMut(Field, &str)) {
    let mut line = report.requests.to_string();
    for each in enforced(decision) {
        let window = each.window_length().as_secs_ceil();
        let _ = write!(line, ", {};w={window};name={}", each.requests, quoted(&policy_name(decision, each)));
    }
    put(Field::XLimit, &line);
    put(Field::XRemaining, Buffer::new().format(report.remaining()));
    put(Field::XReset, Buffer::new().format(seconds_to_reset(decision, report)));
}

fn draft_06(decision: &Decision, report: &LimitReport, put: &mut impl FnMut(Field, &str)) {
    put(Field::Limit, Buffer::new().format(report.requests));
    put(Field::Remaining, Buffer::new().format(report.remaining()));
    put(Field::Reset, Buffer::new().format(seconds_to_reset(decision, report)));
    let policies =
        enforced(decision).map(|each| format!("{};w={}", each.requests, each.window_length().as_secs_ceil()));
    put(Field::Policy, &policies.collect::<Vec<_>>().join(", "));
}

fn draft_10(decision: &Decision, report: &LimitReport, put: &mut impl FnMut(Field, &str)) {
    let policy = |each: &LimitReport| {
        let name = quoted(&policy_name(decision, each));
        format!("{name};q={};w={}", each.requests, each.window_length().as_secs_ceil())
    };
    put(Field::Policy, &enforced(decision).map(policy).collect::<Vec<_>>().join(", "));
    let name = quoted(&policy_name(decision, report));
    put(
        Field::RateLimit,
        &format!("{name};r={};t={}", report.remaining(), seconds_to_reset(decision, report)),
    );
}

fn enforced(decision: &Decision) -> impl Iterator<Item = &LimitReport> {
    decision.reports.iter().filter(|report| report.effect == Effect::Enforce)
}

/// Seconds until a retry is admitted, or, if the request was admitted, until the limit is restored in full.
fn seconds_to_reset(decision: &Decision, report: &LimitReport) -> u64 {
    decision.retry_after().map_or_else(|| report.verdict.reset_after.as_secs_ceil(), retry_after_secs)
}

/// The rule's name, with the window where the rule has several limits.
fn policy_name(decision: &Decision, report: &LimitReport) -> String {
    let rule = decision.rule_name_of(report);
    let several = enforced(decision).filter(|other| decision.rule_name_of(other) == rule).count() > 1;
    if several { format!("{rule}/{}", report.window_length()) } else { rule.to_owned() }
}

/// A structured-field string: printable ASCII, with quotes and backslashes escaped.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            ' '..='~' => quoted.push(character),
            _ => quoted.push('?'),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Endpoint, Id, Limiter, MemoryCounters, Request, RuleSet};

    const TWO_LIMITS: &str = r#"
        [[rules]]
        name = "free \"tier\" \u00e9"
        per = ["user"]
        limits = [{ requests = 2, window = "1m" }, { requests = 5, window = "1h" }]
    "#;

    fn lines(profile: HeaderProfile, checks: usize) -> Vec<String> {
        let limiter = Limiter::new(RuleSet::from_toml(TWO_LIMITS).unwrap(), MemoryCounters::default());
        let user = Some(Id::parse("alice").unwrap());
        let request = Request { user, ..Request::new(Endpoint::parse("/").unwrap()) };
        let now = Timestamp::from_secs(600);
        for _ in 1..checks {
            limiter.check_now(&request, now);
        }
        let mut lines = Vec::new();
        let decision = limiter.check_now(&request, now);
        for_each(&decision, &[profile], |field, value| lines.push(format!("{}: {value}", field.as_str())));
        lines
    }

    #[test]
    fn calendar_windows_report_their_nominal_length() {
        for (window, seconds) in [("day", 86_400), ("week", 604_800), ("month", 2_592_000)] {
            let rules = format!(
                "[[rules]]\nname = \"r\"\nper = \"user\"\nalgorithm = \"fixed_window\"\n\
                 limits = [{{ requests = 2, window = \"{window}\", time_zone = \"Europe/Berlin\" }}]"
            );
            let limiter = Limiter::new(RuleSet::from_toml(&rules).unwrap(), MemoryCounters::default());
            let user = Some(Id::parse("alice").unwrap());
            let request = Request { user, ..Request::new(Endpoint::parse("/").unwrap()) };
            let decision = limiter.check_now(&request, Timestamp::from_secs(600));
            assert_eq!(decision.binding().unwrap().window_length().as_secs_ceil(), seconds, "{window}");
            let mut policy = None;
            for_each(&decision, &[HeaderProfile::Draft10], |field, value| {
                policy = policy.take().or((field.as_str() == "ratelimit-policy").then(|| value.to_owned()));
            });
            assert_eq!(policy.as_deref(), Some(&*format!("\"r\";q=2;w={seconds}")));
        }
    }

    #[test]
    fn binding_limit_is_reported() {
        assert_eq!(
            lines(HeaderProfile::XRateLimit, 1),
            [
                "x-ratelimit-limit: 2",
                "x-ratelimit-remaining: 1",
                "x-ratelimit-reset: 630",
                "x-ratelimit-strategy: token_bucket"
            ]
        );
    }

    #[test]
    fn profiles_list_the_fields_they_write() {
        for profile in HeaderProfile::ALL {
            let names: Vec<&str> = profile.fields().iter().map(|field| field.as_str()).collect();
            let lines = lines(profile, 1);
            let written: Vec<&str> = lines.iter().map(|line| line.split(':').next().unwrap()).collect();
            assert_eq!(written, names, "{profile:?}");
        }
    }

    #[test]
    fn profiles_conflict_on_shared_fields() {
        use HeaderProfile::{Draft03, Draft06, Draft10, XRateLimit};
        assert_eq!(XRateLimit.shared_field(Draft03), Some(Field::XLimit));
        assert_eq!(Draft10.shared_field(Draft06), Some(Field::Policy));
        for (one, other) in
            [(XRateLimit, Draft06), (XRateLimit, Draft10), (Draft03, Draft06), (Draft03, Draft10)]
        {
            assert_eq!(one.shared_field(other).or(other.shared_field(one)), None, "{one:?} {other:?}");
        }
    }

    #[test]
    fn refusal_has_retry_after_in_every_profile() {
        let last = |profile| lines(profile, 3).pop().unwrap();
        for profile in HeaderProfile::ALL {
            assert_eq!(last(profile), "retry-after: 30");
        }
    }

    #[test]
    fn rule_names_are_escaped() {
        let name = r#""free \"tier\" ?/1m""#;
        assert_eq!(
            lines(HeaderProfile::Draft10, 1),
            [
                format!(r#"ratelimit-policy: {name};q=2;w=60, "free \"tier\" ?/1h";q=5;w=3600"#),
                format!("ratelimit: {name};r=1;t=30"),
            ]
        );
    }

    #[test]
    fn older_drafts_list_all_limits() {
        assert_eq!(lines(HeaderProfile::Draft06, 1)[3], "ratelimit-policy: 2;w=60, 5;w=3600");
        assert!(lines(HeaderProfile::Draft03, 1)[0].starts_with("x-ratelimit-limit: 2, 2;w=60;name="));
    }
}
