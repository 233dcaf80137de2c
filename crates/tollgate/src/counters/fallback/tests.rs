use super::*;
use crate::algorithms::Outcome;
use crate::counters::{CounterId, Effect};
use crate::identity::Subject;
use crate::limit::{Algorithm, Window};
use crate::time::Span;

const MINUTE: Window = Window::Length(Span::from_secs(60));
const NOW: Timestamp = Timestamp::from_secs(6_000);

fn nodes(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).unwrap()
}

fn charges(limit: &Limit, cost: u32) -> Charges<'_> {
    let (subject, counter) = (Subject(7), CounterId(9));
    let charge = Charge { subject, counter, rule: "r", limit, cost, effect: Effect::Enforce, leases: true };
    Charges { charges: SmallVec::from_slice(&[charge]), ..Charges::default() }
}

fn admitted(fallback: &Fallback, limit: &Limit, number: u32) -> usize {
    let charge = |_: &u32| fallback.charge(&charges(limit, 1), nodes(number), NOW).verdicts[0].admits();
    (0..1_000).filter(charge).count()
}

#[test]
fn each_of_three_nodes_admits_a_third_rounded_up_by_every_algorithm() {
    for algorithm in Algorithm::ALL {
        let limit = Limit::new(algorithm, 100, MINUTE).unwrap();
        let fallback = Fallback::new(MemoryBounds::default());
        assert_eq!(admitted(&fallback, &limit, 3), 34, "{algorithm}");
    }
}

#[test]
fn more_nodes_than_requests_admit_one_each_and_a_limit_of_none_admits_none() {
    for (requests, expected) in [(2, 1), (1, 1), (0, 0)] {
        let limit = Limit::new(Algorithm::FixedWindow, requests, MINUTE).unwrap();
        assert_eq!(admitted(&Fallback::new(MemoryBounds::default()), &limit, 50), expected);
    }
}

#[test]
fn a_cost_beyond_the_share_passes_while_the_share_is_unused() {
    for algorithm in Algorithm::ALL {
        let limit = Limit::new(algorithm, 100, MINUTE).unwrap();
        let fallback = Fallback::new(MemoryBounds::default());
        let outcome = |cost: u32| fallback.charge(&charges(&limit, cost), nodes(4), NOW).verdicts[0];
        assert!(outcome(80).admits(), "{algorithm}");
        assert!(matches!(outcome(80).outcome, Outcome::Refuse { .. }), "{algorithm}");
        assert_eq!(outcome(101).outcome, Outcome::Never, "{algorithm}");
    }
}

#[test]
fn what_was_counted_is_taken_out_once_and_only_while_its_window_lasts() {
    for algorithm in Algorithm::ALL {
        let limit = Limit::new(algorithm, 100, MINUTE).unwrap();
        let fallback = Fallback::new(MemoryBounds::default());
        assert!(!fallback.is_used());
        assert_eq!(admitted(&fallback, &limit, 4), 25);
        assert!(fallback.is_used());
        let taken = fallback.transfer(&charges(&limit, 1), NOW);
        let costs: Vec<u32> = taken.charges.charges.iter().map(|charge| charge.cost).collect();
        assert_eq!(costs, [25], "{algorithm}");
        assert!(fallback.transfer(&charges(&limit, 1), NOW).charges.charges.is_empty());
        drop(taken);
        let later = NOW + Span::from_secs(121);
        assert!(fallback.transfer(&charges(&limit, 1), later).charges.charges.is_empty(), "{algorithm}");
    }
}

#[test]
fn nodes_together_are_paid_back_what_one_limit_pays() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::Gcra, Algorithm::LeakyBucket] {
        for burst in [None, Some(40), Some(400)] {
            let limit = Limit::with_options(algorithm, 120, MINUTE, burst, None).unwrap();
            let (share, later) = (limit.capacity() / 4, NOW + Span::from_secs(8));
            let fallback = Fallback::new(MemoryBounds::default());
            assert_eq!(admitted(&fallback, &limit, 4), share as usize);
            let taken = fallback.transfer(&charges(&limit, 1), later);
            let cost = taken.charges.charges.first().map_or(0, |charge| charge.cost);
            // Of the 16 that come back in eight seconds each of four nodes pays 4.
            assert_eq!(cost, share - 4, "{algorithm}, {burst:?}");
            drop(taken);
            let again = fallback.transfer(&charges(&limit, 1), later + Span::from_secs(2));
            assert_eq!(again.charges.charges[0].cost, share - 5, "{algorithm}, put back");
        }
    }
}

#[test]
fn what_cannot_be_brought_anywhere_is_not_lost_to_what_was_counted_meanwhile() {
    for algorithm in Algorithm::ALL {
        let limit = Limit::new(algorithm, 100, MINUTE).unwrap();
        let fallback = Fallback::new(MemoryBounds::default());
        assert_eq!(admitted(&fallback, &limit, 1), 100);
        let taken = fallback.transfer(&charges(&limit, 1), NOW);
        assert!(fallback.charge(&charges(&limit, 60), nodes(1), NOW).verdicts[0].admits());
        drop(taken);
        assert_eq!(admitted(&fallback, &limit, 1), 0, "{algorithm}");
        assert_eq!(fallback.status().pending, 1, "and is still to be brought in");
    }
}

#[test]
fn what_is_reset_on_its_way_does_not_come_back() {
    let limit = Limit::new(Algorithm::FixedWindow, 100, MINUTE).unwrap();
    let fallback = Fallback::new(MemoryBounds::default());
    assert_eq!(admitted(&fallback, &limit, 4), 25);
    let taken = fallback.transfer(&charges(&limit, 1), NOW);
    fallback.discard(&[7 ^ 9]);
    drop(taken);
    assert!(fallback.counters().is_empty());
    assert_eq!(admitted(&fallback, &limit, 4), 25);
}

#[test]
fn the_list_is_of_counters_and_not_of_requests_and_a_sweep_strikes_off_what_is_over() {
    let limit = Limit::new(Algorithm::FixedWindow, 100, MINUTE).unwrap();
    let fallback = Fallback::new(MemoryBounds::default());
    assert_eq!(admitted(&fallback, &limit, 1), 100);
    assert_eq!(fallback.status().pending, 1);
    (0..SHARDS).for_each(|turn| fallback.sweep_shard(turn, NOW));
    assert_eq!(fallback.status().pending, 1, "its window lasts");
    (0..SHARDS).for_each(|turn| fallback.sweep_shard(turn, NOW + Span::from_secs(61)));
    assert_eq!(fallback.status(), ReconcileStatus::default());
}

#[test]
fn a_list_that_is_full_says_so_and_the_rest_is_brought_in_when_its_client_comes() {
    let limit = Limit::new(Algorithm::FixedWindow, 100, MINUTE).unwrap();
    let keys_max = std::num::NonZeroUsize::MIN;
    let fallback = Fallback::new(MemoryBounds { keys_max, ..MemoryBounds::default() });
    let mut in_one_shard = charges(&limit, 1);
    for number in [0, SHARDS as u128, 2 * SHARDS as u128] {
        in_one_shard.charges[0].subject = Subject(number);
        assert!(fallback.charge(&in_one_shard, nodes(1), NOW).verdicts[0].admits());
    }
    let ReconcileStatus { pending, untracked, .. } = fallback.status();
    assert_eq!((pending, untracked), (1, 2));
}

#[test]
fn a_sweep_after_the_outage_forgets_that_there_was_one() {
    let limit = Limit::new(Algorithm::TokenBucket, 100, MINUTE).unwrap();
    let fallback = Fallback::new(MemoryBounds::default());
    admitted(&fallback, &limit, 1);
    (0..SHARDS).for_each(|turn| fallback.sweep_shard(turn, NOW));
    assert!(fallback.is_used(), "it still holds something");
    (0..SHARDS).for_each(|turn| fallback.sweep_shard(turn, NOW + Span::from_secs(61)));
    assert!(!fallback.is_used() && fallback.counters().is_empty());
}
