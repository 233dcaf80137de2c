//! The conformance suite of counter stores.
//!
//! A store's test file is one line:
//!
//! ```
//! tollgate::counters::conformance!(tollgate::MemoryCounters::default());
//! # fn main() {}
//! ```
//!
//! Each case becomes a test with a fresh store. A store that uses the caller's clock is driven by [`ManualClock`], and
//! comparisons are exact. A store with its own clock implements [`Harness`], which reads that clock, waits, and states
//! the tolerated drift; `conformance!(harness = …)` then runs the same cases with short windows. Subjects are random, so
//! a store may be shared and not empty.

#![allow(clippy::missing_panics_doc, reason = "a case panics when the store is wrong")]

mod charging;
mod dry_run;
mod fixture;
mod harness;
mod penalties;
mod reference;
mod refunds;
mod reset;
mod waiting;

pub use self::charging::*;
pub use self::dry_run::*;
pub use self::harness::{Harness, ManualClock, block_on};
pub use self::penalties::*;
pub use self::reference::{Reference, random_traces_equal_the_pure_functions};
pub use self::refunds::*;
pub use self::reset::{reset_restores_the_full_limit, reset_spares_other_subjects};
pub use self::waiting::*;

/// Declares one test per case. The argument creates a fresh store or, after `harness =`, a fresh [`Harness`].
/// `conformance!(cases)` lists the cases with their names instead, for a store whose servers are slow to start.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance {
    (harness = $harness:expr) => {
        $crate::__conformance! { @ tests [$harness] }
    };
    (cases) => {
        $crate::__conformance! { @ list [] }
    };
    (@ $form:ident [$($argument:tt)*]) => {
        $crate::__conformance! { @ $form [$($argument)*]
            refusal_by_one_limit_charges_no_other
            verdicts_keep_the_order_of_charges
            concurrent_callers_cannot_share_the_last_unit
            concurrent_callers_cannot_split_a_pair_of_limits
            subjects_and_rules_do_not_share_counters
            two_subjects_of_one_limit_are_charged_together
            burst_returns_after_idle_window
            waiting_for_retry_after_is_enough
            cost_above_capacity_is_never
            limit_of_zero_always_refuses
            peek_changes_nothing
            dry_run_changes_nothing
            uncharged_limit_reports_its_current_state
            shadow_refusal_does_not_refuse
            shadow_limit_is_charged_only_on_admission
            cooldown_refuses_whatever_the_limits_admit
            refusal_that_starts_a_cooldown_reports_it
            one_episode_is_one_violation
            reset_restores_the_full_limit
            reset_spares_other_subjects
            consumption_survives_a_limit_change
            callers_with_different_limits_get_the_largest
            refund_restores_one_charge
            refunds_in_any_order_restore_every_charge
            queue_gives_back_its_last_place_only
            refund_admits_a_refused_client
            refund_after_the_window_is_dropped
            refund_after_a_reset_is_dropped
            only_taken_charges_have_marks
            concurrent_refunds_never_over_admit
            random_traces_equal_the_pure_functions
        }
    };
    (@ tests [$harness:expr] $($case:ident)+) => {
        $(
            #[test]
            fn $case() {
                $crate::counters::conformance::$case(&$harness);
            }
        )+
    };
    (@ list [] $($case:ident)+) => {
        [$((stringify!($case), $crate::counters::conformance::$case as fn(&_))),+]
    };
    ($store:expr) => {
        $crate::__conformance! { harness = $crate::counters::conformance::ManualClock::new($store) }
    };
}
