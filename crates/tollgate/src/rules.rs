//! Which limits apply to a request: rules, compiled once into an immutable set that is swapped whole.

mod brief;
mod door;
mod index;
mod of_client;
pub mod overrides;
pub mod pattern;
mod rule;
mod set;
mod slower;
mod walk;

pub(crate) use self::of_client::Unsaid;
pub use self::rule::{Action, Matcher, Mismatch, OnStoreFailure, Response, Rule, RuleLimit};
pub(crate) use self::set::CurrentRules;
pub use self::set::{IPV6_PREFIX_DEFAULT, RuleSet, RuleSetError, Snapshot};
pub use self::slower::lowered;
pub(crate) use self::slower::slowed;
pub use self::walk::{CHARGES_MAX, Step};
pub(crate) use self::walk::{End, Plan, namespace};
