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
    let charge = Charge {
        subject,
        counter,
        rule: "r",
        limit,
        cost,
        effect: Effect::Enforce,
        leases: true,
        refundable: false,
    };
    Charges { charges: SmallVec::from_slice(&[charge]), ..Charges::default() }
}

fn admitted(fallback: &Fallback, limit: &Limit, number: u32) -> usize {
    let charge = |_: &u32| fallback.charge(&charges(limit, 1), nodes(number), NOW).0.verdicts[0].admits();
    (0..1_000).filter(charge).count()
}

#[test]
fn each_node_admits_its_share_rounded_up() {
    for algorithm in Algorithm::ALL {
        let limit = Limit::new(algorithm, 100, MINUTE).unwrap();
        let fallback = Fallback::new(MemoryBounds::default());
        assert_eq!(admitted(&fallback, &limit, 3), 34, "{algorithm}");
    }
}

#[test]
fn small_limits_admit_one_request_per_node() {
    for (requests, expected) in [(2, 1), (1, 1), (0, 0)] {
        let limit = Limit::new(Algorithm::FixedWindow, requests, MINUTE).unwrap();
        assert_eq!(admitted(&Fallback::new(MemoryBounds::default()), &limit, 50), expected);
    }
}

#[test]
fn cost_above_the_share_passes_while_it_is_unused() {
    for algorithm in Algorithm::ALL {
        let limit = Limit::new(algorithm, 100, MINUTE).unwrap();
        let fallback = Fallback::new(MemoryBounds::default());
        let outcome = |cost: u32| fallback.charge(&charges(&limit, cost), nodes(4), NOW).0.verdicts[0];
        assert!(outcome(80).admits(), "{algorithm}");
        assert!(matches!(outcome(80).outcome, Outcome::Refuse { .. }), "{algorithm}");
        assert_eq!(outcome(101).outcome, Outcome::Never, "{algorithm}");
    }
}

#[test]
fn counter_is_transferred_once_within_its_window() {
    for algorithm in Algorithm::ALL {
        let limit = Limit::new(algorithm, 100, MINUTE).unwrap();
        let fallback = Fallback::new(MemoryBounds::default());
        assert!(!fallback.is_used());
        assert_eq!(admitted(&fallback, &limit, 4), 25);
        assert!(fallback.is_used());
        let transfer = fallback.transfer(&charges(&limit, 1), NOW);
        let costs: Vec<u32> = transfer.charges.charges.iter().map(|charge| charge.cost).collect();
        assert_eq!(costs, [25], "{algorithm}");
        assert!(fallback.transfer(&charges(&limit, 1), NOW).charges.charges.is_empty());
        drop(transfer);
        let later = NOW + Span::from_secs(121);
        assert!(fallback.transfer(&charges(&limit, 1), later).charges.charges.is_empty(), "{algorithm}");
    }
}

#[test]
fn nodes_together_refill_one_limit() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::Gcra, Algorithm::LeakyBucket] {
        for burst in [None, Some(40), Some(400)] {
            let limit = Limit::with_options(algorithm, 120, MINUTE, burst, None).unwrap();
            let (share, later) = (limit.capacity() / 4, NOW + Span::from_secs(8));
            let fallback = Fallback::new(MemoryBounds::default());
            assert_eq!(admitted(&fallback, &limit, 4), share as usize);
            let transfer = fallback.transfer(&charges(&limit, 1), later);
            let cost = transfer.charges.charges.first().map_or(0, |charge| charge.cost);
            // Of the 16 that are refilled in eight seconds each of four nodes refills 4.
            assert_eq!(cost, share - 4, "{algorithm}, {burst:?}");
            drop(transfer);
            let again = fallback.transfer(&charges(&limit, 1), later + Span::from_secs(2));
            assert_eq!(again.charges.charges[0].cost, share - 5, "{algorithm}, put back");
        }
    }
}

#[test]
fn returned_transfer_adds_to_new_charges() {
    for algorithm in Algorithm::ALL {
        let limit = Limit::new(algorithm, 100, MINUTE).unwrap();
        let fallback = Fallback::new(MemoryBounds::default());
        assert!(fallback.charge(&charges(&limit, 60), nodes(1), NOW).0.verdicts[0].admits());
        let transfer = fallback.transfer(&charges(&limit, 1), NOW);
        assert_eq!(admitted(&fallback, &limit, 1), 40, "{algorithm}: a transfer frees nothing of the share");
        drop(transfer);
        assert_eq!(fallback.status().pending, 1, "still pending");
        let again = fallback.transfer(&charges(&limit, 1), NOW);
        assert_eq!(again.charges.charges[0].cost, 100, "{algorithm}");
    }
}

#[test]
fn last_answers_are_bounded_and_forgotten() {
    let limit = Limit::new(Algorithm::FixedWindow, 100, MINUTE).unwrap();
    let keys_max = std::num::NonZeroUsize::new(8 * SHARDS).unwrap();
    let answers = LastAnswers::new(keys_max);
    let answer = |subject: u128, remaining: u32| {
        let mut asked = charges(&limit, 1);
        asked.charges[0].subject = Subject(subject);
        let mut verdicts = MemoryCounters::default().charge_all_now(&asked, NOW);
        verdicts.verdicts[0].remaining = remaining;
        answers.update(&asked, &verdicts, nodes(4), NOW);
        answers.get(key_of(&asked.charges[0]), NOW).map(|answer| answer.remaining)
    };
    assert_eq!(answer(0, 25), None, "not less than the share: not stored");
    let in_one_shard = [0, SHARDS as u128, 2 * SHARDS as u128];
    assert_eq!(in_one_shard.map(|subject| answer(subject, 24)), [Some(24), Some(24), None], "full");
    assert_eq!(answer(0, 3), Some(3), "a stored one is updated");
    assert_eq!(answer(0, 25), None, "restored: forgotten");
    assert!(answers.get(SHARDS as u128 ^ 9, NOW + Span::from_secs(59)).is_some());
    assert!(answers.get(SHARDS as u128 ^ 9, NOW + Span::from_secs(60)).is_none(), "its window has ended");
}

#[test]
fn reset_in_flight_does_not_return() {
    let limit = Limit::new(Algorithm::FixedWindow, 100, MINUTE).unwrap();
    let fallback = Fallback::new(MemoryBounds::default());
    assert_eq!(admitted(&fallback, &limit, 4), 25);
    let transfer = fallback.transfer(&charges(&limit, 1), NOW);
    fallback.discard(&[7 ^ 9]);
    drop(transfer);
    assert!(fallback.unreconciled.is_empty() && fallback.shares().is_empty());
    assert_eq!(admitted(&fallback, &limit, 4), 25);
}

#[test]
fn sweep_drops_expired_pending_counters() {
    let limit = Limit::new(Algorithm::FixedWindow, 100, MINUTE).unwrap();
    let fallback = Fallback::new(MemoryBounds::default());
    assert_eq!(admitted(&fallback, &limit, 1), 100);
    assert_eq!(fallback.status().pending, 1);
    (0..SHARDS).for_each(|turn| fallback.sweep_shard(turn, NOW));
    assert_eq!(fallback.status().pending, 1, "its window has not ended");
    (0..SHARDS).for_each(|turn| fallback.sweep_shard(turn, NOW + Span::from_secs(61)));
    assert_eq!(fallback.status(), ReconcileStatus::default());
}

#[test]
fn full_pending_list_counts_untracked_charges() {
    let limit = Limit::new(Algorithm::FixedWindow, 100, MINUTE).unwrap();
    let keys_max = std::num::NonZeroUsize::MIN;
    let fallback = Fallback::new(MemoryBounds { keys_max, ..MemoryBounds::default() });
    let mut in_one_shard = charges(&limit, 1);
    for number in [0, SHARDS as u128, 2 * SHARDS as u128] {
        in_one_shard.charges[0].subject = Subject(number);
        assert!(fallback.charge(&in_one_shard, nodes(1), NOW).0.verdicts[0].admits());
    }
    let ReconcileStatus { pending, untracked, .. } = fallback.status();
    assert_eq!((pending, untracked), (1, 2));
}

#[test]
fn sweep_after_the_outage_clears_the_used_flag() {
    let limit = Limit::new(Algorithm::TokenBucket, 100, MINUTE).unwrap();
    let fallback = Fallback::new(MemoryBounds::default());
    admitted(&fallback, &limit, 1);
    (0..SHARDS).for_each(|turn| fallback.sweep_shard(turn, NOW));
    assert!(fallback.is_used(), "a counter is still held");
    (0..SHARDS).for_each(|turn| fallback.sweep_shard(turn, NOW + Span::from_secs(61)));
    assert!(!fallback.is_used() && fallback.unreconciled.is_empty());
}
