//! Which limits a change of the rules has lowered: what was used of them is made up for later than was reckoned with.
//!
//! Only buckets are made up for at the pace of their limit. What a window has counted ends with the window, whatever the
//! limit, and another window or algorithm is another counter.

use std::sync::Arc;

use hashbrown::HashMap;

use super::rule::RuleLimit;
use super::set::RuleSet;
use crate::counters::{CounterId, RetentionExtension};
use crate::identity::{SubjectHasher, tag};
use crate::limit::Limit;
use crate::time::Span;

/// What to tell the counters of when `after` takes the place of `before`: one thing of all limits of rules together, and one
/// of each user whose own numbers were lowered. Of accounts nothing: they know hashes of their owners, and no counters.
pub(crate) fn retention_extensions(before: &RuleSet, after: &RuleSet) -> Vec<RetentionExtension> {
    of_rules(before, after).into_iter().chain(of_overrides(before, after)).collect()
}

fn of_rules(before: &RuleSet, after: &RuleSet) -> Option<RetentionExtension> {
    if Arc::ptr_eq(&before.rules, &after.rules) {
        return None;
    }
    retention_extension(limits(before), limits(after))
}

/// What to tell counters of when the limits `after` take the place of those `before`; nothing if none of them was lowered.
pub fn retention_extension<'a>(
    before: impl IntoIterator<Item = &'a RuleLimit>,
    after: impl IntoIterator<Item = &'a RuleLimit>,
) -> Option<RetentionExtension> {
    let old: HashMap<CounterId, &Limit> = before.into_iter().map(|old| (old.counter, &old.limit)).collect();
    let slower = |new: &RuleLimit| slower(old.get(&new.counter)?, &new.limit);
    after.into_iter().filter_map(slower).reduce(|one, other| {
        let steeper = |a: &RetentionExtension, b: &RetentionExtension| {
            u64::from(a.times) * u64::from(b.of) >= u64::from(b.times) * u64::from(a.of)
        };
        let longest = one.longest.max(other.longest);
        RetentionExtension { longest, ..if steeper(&one, &other) { one } else { other } }
    })
}

fn limits(set: &RuleSet) -> impl Iterator<Item = &RuleLimit> {
    set.rules.iter().flat_map(|rule| &rule.limits)
}

fn of_overrides(before: &RuleSet, after: &RuleSet) -> Vec<RetentionExtension> {
    if Arc::ptr_eq(&before.overrides, &after.overrides) {
        return Vec::new();
    }
    let each = after.overrides.as_read().filter_map(|(user, endpoint, new)| {
        let old =
            before.overrides.get(user, endpoint).filter(|old| old.limit.counter == new.limit.counter)?;
        let slower = slower(&old.limit.limit, &new.limit.limit)?;
        let mut values = SubjectHasher::new(after.seed);
        values.push_bytes(tag::USER, user.as_bytes());
        values.push_bytes(tag::OVERRIDE, endpoint.as_bytes());
        Some(RetentionExtension { counter: Some(values.subject().0 ^ new.limit.counter.0), ..slower })
    });
    each.collect()
}

/// By how much a counter of both limits is restored later under the new one, if it is.
fn slower(old: &Limit, new: &Limit) -> Option<RetentionExtension> {
    if !new.algorithm().has_burst() || new.requests() >= old.requests() {
        return None;
    }
    // A limit of nothing makes up for nothing. For a window it is remembered what was used, in case it is raised again.
    let whole = Span::from_micros(new.ticks_to_refill(new.debt_units_max()) * new.tick().micros());
    let longest = whole.max(new.window_length());
    Some(RetentionExtension { counter: None, times: old.requests(), of: new.requests().max(1), longest })
}
