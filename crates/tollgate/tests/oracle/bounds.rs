//! The published bound of each algorithm, against adversarial traffic.
//!
//! The adversary uses up the limit at instants of its choice, among them both sides of every boundary. The most that is
//! admitted in any span is compared with the theorem.

use tollgate::algorithms::Outcome;
use tollgate::{Algorithm, Limit, Span, Window};

use crate::properties::Single;
use crate::random::Random;

const WINDOW: i128 = 1_000_000;
/// A boundary of the window.
const BOUNDARY: i128 = 1_700_000_000 * WINDOW;
const LIMITS: [u32; 7] = [1, 2, 3, 5, 10, 37, 100];
const ADVERSARIES: u64 = 60;

fn limit(algorithm: Algorithm, requests: u32, burst: Option<u32>) -> Limit {
    let window = Window::Length(Span::from_micros(u64::try_from(WINDOW).unwrap()));
    Limit::with_options(algorithm, requests, window, burst, None).unwrap()
}

/// Instants over four windows: boundaries, their neighbours, and random ones.
fn instants(seed: u64) -> Vec<i128> {
    let mut random = Random::new(seed);
    let mut instants: Vec<i128> =
        (0..4).flat_map(|n| [-2, -1, 0, 1].map(|near| BOUNDARY + n * WINDOW + near)).collect();
    instants.retain(|_| random.chance(2, 3));
    let phase = random.between(0, WINDOW);
    instants.extend([BOUNDARY + phase, BOUNDARY + phase + WINDOW - 1, BOUNDARY + phase + WINDOW]);
    let others = random.pick(&[0, 5, 200]);
    instants.extend((0..others).map(|_| BOUNDARY + random.between(-WINDOW, 3 * WINDOW)));
    instants.sort_unstable();
    instants
}

/// Takes everything at each instant. Returns when each unit was admitted.
fn greedy(single: &Single, instants: &[i128]) -> Vec<i128> {
    let mut admitted = Vec::new();
    for now in instants {
        while single.charge(1, *now).admits() {
            admitted.push(*now);
        }
    }
    admitted
}

/// The most in any half-open span of a window's length.
fn most_in_a_window(admitted: &[i128]) -> usize {
    let within = |first: &i128| admitted.iter().filter(|at| (*first..first + WINDOW).contains(at)).count();
    admitted.iter().map(within).max().unwrap_or(0)
}

fn worst(algorithm: Algorithm, requests: u32) -> usize {
    let attack =
        |seed| most_in_a_window(&greedy(&Single::new(limit(algorithm, requests, None)), &instants(seed)));
    (0..ADVERSARIES).map(attack).max().unwrap()
}

#[test]
fn fixed_window_admits_at_most_twice_its_limit() {
    for requests in LIMITS {
        assert_eq!(worst(Algorithm::FixedWindow, requests), 2 * requests as usize);
    }
}

#[test]
fn sliding_window_counter_admits_at_most_2l_minus_1() {
    for requests in LIMITS {
        assert_eq!(worst(Algorithm::SlidingWindowCounter, requests), 2 * requests as usize - 1);
    }
}

#[test]
fn sliding_window_log_never_exceeds_its_limit() {
    for requests in LIMITS {
        assert_eq!(worst(Algorithm::SlidingWindowLog, requests), requests as usize);
    }
}

#[test]
fn bucket_admits_at_most_burst_plus_refill() {
    for algorithm in [Algorithm::TokenBucket, Algorithm::Gcra, Algorithm::LeakyBucket] {
        for (requests, burst) in [(1, 1), (2, 1), (3, 3), (7, 20), (10, 3), (100, 100), (100, 7)] {
            let mut tight = false;
            for seed in 0..ADVERSARIES {
                let single = Single::new(limit(algorithm, requests, Some(burst)));
                let admitted = greedy(&single, &instants(seed));
                for (n, first) in admitted.iter().enumerate() {
                    for (count, last) in (1..).zip(&admitted[n..]) {
                        let bound = i128::from(burst) + (last - first) * i128::from(requests) / WINDOW;
                        assert!(
                            count <= bound,
                            "{algorithm} {requests}/{burst}: {count} in {}",
                            last - first
                        );
                        tight |= count == bound && last > first;
                    }
                }
            }
            assert!(tight, "{algorithm} {requests}/{burst}: the bound is never reached");
        }
    }
}

#[test]
fn bucket_admits_at_most_twice_its_limit_per_window() {
    let single = Single::new(limit(Algorithm::TokenBucket, 100, None));
    let every_refill: Vec<i128> = (0..=100).map(|n| BOUNDARY + n * WINDOW / 100).collect();
    assert_eq!(greedy(&single, &every_refill).len(), 200);
}

#[test]
fn saturated_sliding_window_counter_admits_limit_minus_1() {
    // After a full window the last unit is restored only at the end of the next one.
    for requests in [2, 5, 10, 50] {
        let single = Single::new(limit(Algorithm::SlidingWindowCounter, requests, None));
        let every_ms: Vec<i128> = (0..100_000).map(|n| BOUNDARY + n * 1_000).collect();
        let admitted = greedy(&single, &every_ms).len();
        assert_eq!(admitted, 100 * (requests as usize - 1) + 1);
    }
}

#[test]
fn leaky_bucket_starts_at_most_one_plus_rate() {
    for (requests, queue) in [(1, 5), (10, 10), (100, 30), (1_000, 1_000)] {
        for seed in 0..20 {
            let single = Single::new(limit(Algorithm::LeakyBucket, requests, Some(queue)));
            let mut starts = Vec::new();
            for now in instants(seed) {
                while let Outcome::Admit { delay } = single.charge(1, now).outcome {
                    starts.push(now + i128::from(delay.as_micros()));
                }
            }
            assert!(starts.is_sorted());
            for (n, first) in starts.iter().enumerate() {
                for (count, last) in (1..).zip(&starts[n..]) {
                    assert!(count <= 1 + (last - first) * i128::from(requests) / WINDOW);
                }
            }
        }
    }
}
