//! Measures whether the duration of a refusal reveals which key ids exist: Welch's t of two classes of keys, measured in random
//! order, as dudect does. Run by hand on a quiet machine:
//!
//! ```sh
//! cargo test --release -p tollgate-server --lib -- --ignored --nocapture refusal_time
//! ```
//!
//! Over half a million measurements |t| < 4.5. Without the slowest ones the means differ by up to 5 ns in either direction and |t|
//! reaches 84; the cause is unknown. A skipped lookup showed as 22 to 70 ns. The test therefore prints t and fails only on a
//! difference as large as a skipped step.

use std::hint::black_box;
use std::time::Instant;

use super::tests::{NOW, secret};
use super::*;
use tollgate::accounts::Key as Record;

/// Texts of each class.
const TEXTS: usize = 4_096;
/// dudect's threshold.
const T_MAX: f64 = 4.5;
/// A difference of means that indicates a skipped step.
const NANOS_MAX: f64 = 20.0;
/// Measurements above these percentiles are dropped, to exclude interrupts.
const CROPS: [usize; 5] = [100, 99, 95, 90, 75];

/// Mean and variance, one value at a time.
#[derive(Copy, Clone, Default)]
struct Moments {
    count: f64,
    mean: f64,
    squares: f64,
}

impl Moments {
    fn add(&mut self, value: f64) {
        self.count += 1.0;
        let before = value - self.mean;
        self.mean += before / self.count;
        self.squares += before * (value - self.mean);
    }

    /// The square of the standard error.
    fn error(&self) -> f64 {
        self.squares / (self.count - 1.0) / self.count
    }
}

fn welch_t(one: &Moments, other: &Moments) -> f64 {
    (one.mean - other.mean) / (one.error() + other.error()).sqrt()
}

/// Numbers without a pattern that matters.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).unwrap()
    }
}

fn shuffle<T>(items: &mut [T], random: &mut Random) {
    (1..items.len()).rev().for_each(|last| items.swap(last, random.below(last + 1)));
}

/// Nanoseconds of each refusal, by class.
fn measure(accounts: &Accounts, texts: &mut [(bool, String)], rounds: usize) -> [Vec<u32>; 2] {
    let (secret, mut random) = (secret(), Random(0x9e37_79b9_7f4a_7c15));
    let mut took = [Vec::new(), Vec::new()];
    for round in 0..=rounds {
        shuffle(texts, &mut random);
        for (is_known, text) in &*texts {
            let id = id_of(text).unwrap();
            let started = Instant::now();
            let refused = black_box(verify(accounts, &secret, black_box(text), id, NOW)).is_err();
            let nanos = u32::try_from(started.elapsed().as_nanos()).unwrap_or(u32::MAX);
            assert!(refused);
            // The first round warms up.
            if round > 0 {
                took[usize::from(*is_known)].push(nanos);
            }
        }
    }
    took
}

/// Tells t for all crops, which are the same for both classes. The difference of the means at the crop to 95 %.
fn judge_times(what: &str, took: &[Vec<u32>; 2]) -> f64 {
    let mut all: Vec<u32> = took.concat();
    all.sort_unstable();
    let mut difference = f64::NAN;
    for crop in CROPS {
        let bound = all[(all.len() * crop / 100).min(all.len() - 1)];
        let mut moments = [Moments::default(); 2];
        for (class, times) in moments.iter_mut().zip(took) {
            times.iter().filter(|nanos| **nanos <= bound).for_each(|nanos| class.add(f64::from(*nanos)));
        }
        let t = welch_t(&moments[1], &moments[0]);
        println!(
            "{what}, up to {crop} %: unknown {:.2} ns, wrong secret {:.2} ns, t = {t:.2}",
            moments[0].mean, moments[1].mean
        );
        if crop == 95 {
            difference = moments[1].mean - moments[0].mean;
        }
    }
    difference
}

/// So many keys, and their ids.
fn keys(count: usize) -> (Accounts, Vec<String>) {
    let mut accounts = Accounts::default().edit();
    let ids = (0..count).map(|_| {
        let key = NewKey::random().unwrap();
        accounts.put_key(&Record::new(key.id(), secret().verifier(key.reveal()))).unwrap();
        key.id().to_owned()
    });
    let ids = ids.collect();
    (accounts.finish(), ids)
}

/// Wrong secrets for these ids, and for as many that there are not, by turns.
fn texts(known: &[String]) -> Vec<(bool, String)> {
    let unknown: Vec<String> = known.iter().map(|_| NewKey::random().unwrap().id().to_owned()).collect();
    let text = |is_known, id: &str| (is_known, NewKey::with_id(id).unwrap().reveal().to_owned());
    let pairs = known.iter().zip(&unknown).cycle().take(TEXTS);
    pairs.flat_map(|(known, unknown)| [text(true, known), text(false, unknown)]).collect()
}

#[test]
#[ignore = "measures time: by hand, optimised, on a quiet machine"]
fn refusal_time_does_not_reveal_known_ids() {
    // Many are in each shard of the table, and hardly one.
    let differences = [100_000, 10_000, 100].map(|count| {
        let (accounts, mut ids) = keys(count);
        // Keys that were made one after another stand near each other.
        shuffle(&mut ids, &mut Random(count as u64));
        judge_times(&format!("{count} keys"), &measure(&accounts, &mut texts(&ids), 64))
    });
    println!("nanoseconds more for a wrong secret: {differences:.1?}");
    assert!(differences.iter().all(|nanos| nanos.abs() < NANOS_MAX), "times differ: {differences:.1?}");
}

#[test]
fn welch_t_separates_different_distributions() {
    let mut random = Random(7);
    let mut moments = |shift: u32| {
        let mut moments = Moments::default();
        (0..10_000).for_each(|_| {
            moments.add(f64::from(shift) + f64::from(u32::try_from(random.below(100)).unwrap()));
        });
        moments
    };
    let (one, same, other) = (moments(0), moments(0), moments(3));
    assert!(welch_t(&one, &same).abs() < T_MAX);
    assert!(welch_t(&other, &one) > T_MAX);
}
