//! The result of an evaluation: what one request is charged, and by which rules.

use smallvec::SmallVec;

use super::overrides::{CHECK_NAMESPACE, CONFIG_NAMESPACE, KEY_NAMESPACE, QUOTA_NAMESPACE};
use crate::accounts::BlockPosition;
use crate::counters::Charges;

/// The maximum number of rule limits that one request is charged. The limits of an API key have up to three windows and
/// may replace no rule, so they can add three more. Limits per client are charged twice if they also count the address.
pub const CHARGES_MAX: usize = 16;

/// What one request is charged, and by which rules.
#[derive(Debug, Default)]
pub(crate) struct ChargePlan<'a> {
    /// The charges for the counter store.
    pub(crate) charges: Charges<'a>,
    /// The position of the rule behind each charge.
    pub(crate) sources: SmallVec<[u32; 4]>,
    /// The charges that count the address beside the client, as a bit set.
    pub(crate) address_charges: u64,
    pub(crate) end: EvaluationEnd,
}

/// How an evaluation ended.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum EvaluationEnd {
    /// After the last rule.
    #[default]
    Exhausted,
    /// At this `allow` rule.
    Allowed(u32),
    /// At this `block` rule.
    Blocked(u32),
    /// Before the first rule, by a block of the request's user, key, tenant, login or address.
    BlockedPrincipal(BlockPosition),
}

/// The outcome of one rule.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum RuleOutcome {
    /// Its limits apply.
    Collected,
    /// It matched, but the override of this name takes its place.
    Replaced(&'static str),
    /// It matched and admitted.
    Allowed,
    /// It matched and refused.
    Blocked,
    /// It is disabled.
    Disabled,
    /// All rules are switched off.
    SwitchedOff,
    /// A condition does not match.
    Mismatch,
    /// The request has no value for the dimension at this position of `per`.
    NoSubject(usize),
    /// An earlier rule occupies its layer.
    LayerTaken,
    /// An earlier rule ended the evaluation.
    NotReached,
    /// The request already has the maximum number of limits.
    TooMany,
}

impl RuleOutcome {
    /// Whether the request matches the conditions of the rule, whatever became of it.
    pub(crate) fn is_match(self) -> bool {
        use RuleOutcome::{Allowed, Blocked, Collected, LayerTaken, Replaced, TooMany};
        matches!(self, Collected | Replaced(_) | Allowed | Blocked | LayerTaken | TooMany)
    }
}

/// The names that overrides are reported by in the place of a rule.
// An override that replaces no rule has its position here, counted down from `u32::MAX`, as the source of its charges.
pub const OVERRIDE_NAMES: [&str; 4] = [CHECK_NAMESPACE, CONFIG_NAMESPACE, KEY_NAMESPACE, QUOTA_NAMESPACE];

/// The source of the charges of an override that replaces no rule.
pub(super) fn no_rule(namespace: &str) -> u32 {
    let found = (0..).zip(OVERRIDE_NAMES).find(|(_, name)| *name == namespace);
    u32::MAX - found.map_or(0, |(number, _)| number)
}

/// The name of an override by the source of its charges.
pub(crate) fn namespace(source: u32) -> &'static str {
    OVERRIDE_NAMES.get((u32::MAX - source) as usize).copied().unwrap_or(CHECK_NAMESPACE)
}
