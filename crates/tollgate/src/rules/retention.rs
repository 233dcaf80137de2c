//! Retention after a limit is lowered.
//!
//! A bucket that was filled under a higher limit takes longer to drain under a lower one, so its counter must be kept
//! longer. Windows are not affected: what they counted expires with the window. Another window or algorithm is another
//! counter.

use std::sync::Arc;

use hashbrown::HashMap;

use super::rule::RuleLimit;
use super::set::RuleSet;
use crate::counters::{CounterId, RetentionExtension};
use crate::identity::{SubjectHasher, tag};
use crate::limit::Limit;
use crate::time::Span;

/// The extensions needed when `after` replaces `before`: one for the limits of all rules, and one per lowered override.
/// Limits of accounts are not covered, because accounts store only hashes of their owners.
pub(crate) fn retention_extensions(before: &RuleSet, after: &RuleSet) -> Vec<RetentionExtension> {
    rules_extension(before, after).into_iter().chain(override_extensions(before, after)).collect()
}

fn rules_extension(before: &RuleSet, after: &RuleSet) -> Option<RetentionExtension> {
    if Arc::ptr_eq(&before.rules, &after.rules) {
        return None;
    }
    retention_extension(limits(before), limits(after))
}

/// The extension needed when the limits `after` replace those `before`; `None` if no bucket was lowered.
pub fn retention_extension<'a>(
    before: impl IntoIterator<Item = &'a RuleLimit>,
    after: impl IntoIterator<Item = &'a RuleLimit>,
) -> Option<RetentionExtension> {
    let old: HashMap<CounterId, &Limit> = before.into_iter().map(|old| (old.counter, &old.limit)).collect();
    let slower = |new: &RuleLimit| extension_of(old.get(&new.counter)?, &new.limit);
    after.into_iter().filter_map(slower).reduce(|one, other| {
        let steeper = |a: &RetentionExtension, b: &RetentionExtension| {
            u64::from(a.numerator) * u64::from(b.denominator)
                >= u64::from(b.numerator) * u64::from(a.denominator)
        };
        let max = one.max.max(other.max);
        RetentionExtension { max, ..if steeper(&one, &other) { one } else { other } }
    })
}

fn limits(set: &RuleSet) -> impl Iterator<Item = &RuleLimit> {
    set.rules.iter().flat_map(|rule| &rule.limits)
}

fn override_extensions(before: &RuleSet, after: &RuleSet) -> Vec<RetentionExtension> {
    if Arc::ptr_eq(&before.overrides, &after.overrides) {
        return Vec::new();
    }
    let each = after.overrides.iter().filter_map(|new| {
        let (user, endpoint) = (&*new.user, &*new.endpoint);
        let old =
            before.overrides.get(user, endpoint).filter(|old| old.limit.counter == new.limit.counter)?;
        let extension = extension_of(&old.limit.limit, &new.limit.limit)?;
        let mut values = SubjectHasher::new(after.seed);
        values.push_bytes(tag::USER, user.as_bytes());
        values.push_bytes(tag::OVERRIDE, endpoint.as_bytes());
        Some(RetentionExtension { counter: Some(values.subject().0 ^ new.limit.counter.0), ..extension })
    });
    each.collect()
}

/// How much longer a counter takes to be restored under the new limit, if at all.
fn extension_of(old: &Limit, new: &Limit) -> Option<RetentionExtension> {
    if !new.algorithm().has_burst() || new.requests() >= old.requests() {
        return None;
    }
    // A limit of zero never drains a bucket: its counter is kept for one window, in case the limit is raised again.
    let drain = Span::from_micros(new.ticks_to_refill(new.debt_units_max()) * new.tick().micros());
    let max = drain.max(new.window_length());
    let (numerator, denominator) = (old.requests(), new.requests().max(1));
    Some(RetentionExtension { counter: None, numerator, denominator, max })
}
