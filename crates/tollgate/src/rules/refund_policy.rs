//! Which responses give back what their request was charged.

use std::fmt;

/// Which requests of a rule count, by the status of their response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RefundPolicy {
    /// All that are admitted.
    #[default]
    Never,
    /// Only failures (`count = "on_failure"`): a status below 400 is refunded.
    OnSuccess,
    /// All but those with one of these statuses (`refund_statuses`).
    Statuses(Box<[StatusPattern]>),
}

/// A status of HTTP, or a class of statuses.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum StatusPattern {
    /// One status, 200 to 599.
    Status(u16),
    /// All statuses with this first digit, 2 to 5.
    Class(u16),
}

impl RefundPolicy {
    /// The lowest status of a failure.
    const FAILURE_MIN: u16 = 400;

    /// Whether any status is refunded.
    pub const fn refunds_any(&self) -> bool {
        !matches!(self, RefundPolicy::Never)
    }

    /// Whether a request that was answered with this status is refunded.
    pub fn refunds(&self, status: u16) -> bool {
        match self {
            RefundPolicy::Never => false,
            RefundPolicy::OnSuccess => status < Self::FAILURE_MIN,
            RefundPolicy::Statuses(patterns) => patterns.iter().any(|pattern| pattern.matches(status)),
        }
    }
}

impl StatusPattern {
    /// Parses a class such as `5xx`.
    pub fn parse_class(text: &str) -> Option<Self> {
        let digit = text.strip_suffix("xx")?;
        let class = digit.parse().ok().filter(|class| (2..=5).contains(class) && digit.len() == 1)?;
        Some(StatusPattern::Class(class))
    }

    fn matches(self, status: u16) -> bool {
        match self {
            StatusPattern::Status(one) => status == one,
            StatusPattern::Class(class) => status / 100 == class,
        }
    }
}

impl fmt::Display for StatusPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StatusPattern::Status(status) => write!(f, "{status}"),
            StatusPattern::Class(class) => write!(f, "{class}xx"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_count_on_failure() {
        let policy = RefundPolicy::OnSuccess;
        assert!([101, 200, 204, 304, 399].into_iter().all(|status| policy.refunds(status)));
        assert!([400, 401, 429, 500, 599].into_iter().all(|status| !policy.refunds(status)));
    }

    #[test]
    fn listed_statuses_and_classes_are_refunded() {
        let statuses = [StatusPattern::Status(404), StatusPattern::Class(5)];
        let policy = RefundPolicy::Statuses(statuses.into());
        assert!([404, 500, 503, 599].into_iter().all(|status| policy.refunds(status)));
        assert!([200, 400, 403, 499, 600].into_iter().all(|status| !policy.refunds(status)));
        assert!(!RefundPolicy::Never.refunds(500));
    }

    #[test]
    fn class_is_one_digit_and_xx() {
        assert_eq!(StatusPattern::parse_class("5xx"), Some(StatusPattern::Class(5)));
        for text in ["", "xx", "5", "5x", "5XX", "1xx", "6xx", "55xx", "+5xx", " 5xx", "5xxx"] {
            assert_eq!(StatusPattern::parse_class(text), None, "{text}");
        }
    }
}
