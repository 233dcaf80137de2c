//! Rules and overrides: which limits apply to a request.

mod client_counters;
mod compiled;
mod evaluate;
mod index;
pub mod overrides;
pub mod pattern;
pub mod pattern_index;
mod plan;
mod refund_policy;
mod resolve;
mod rule;
mod sample_rate;
mod set;
mod stricter;

pub use self::plan::{CHARGES_MAX, OVERRIDE_NAMES, RuleOutcome};
pub(crate) use self::plan::{ChargePlan, EvaluationEnd, namespace};
pub use self::refund_policy::{RefundPolicy, StatusPattern};
pub use self::rule::{
    Action, DEFAULT_RULE, Matcher, Mismatch, OnStoreFailure, Response, Rule, RuleCost, RuleLimit,
};
pub use self::sample_rate::SampleRate;
pub(crate) use self::set::CurrentRules;
pub use self::set::{ANONYMOUS_TIER, RuleSet, RuleSetError, RuleSettings, Snapshot};
pub use self::stricter::LimitOwner;
