//! Whether the time that a refusal takes tells which ids there are, as dudect asks it: Welch's t of two classes of keys, measured
//! in random order. It depends on the machine, so it is run by hand, optimised and on a quiet one:
//!
//! ```sh
//! cargo test --release -p tollgate-server --lib -- --ignored --nocapture t28_
//! ```

use std::hint::black_box;
use std::time::Instant;

use super::tests::{NOW, secret};
use super::*;
use tollgate::accounts::NewKey as Record;

const KEYS: usize = 10_000;
/// Texts of each class.
const TEXTS: usize = 4_096;
/// Beyond this, dudect says, it is not chance.
const T_MAX: f64 = 4.5;
/// Measurements above these percentiles are left out, as interrupts and other work are up there.
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

/// The largest t of all crops, which are the same for both classes.
fn judge_times(what: &str, took: &[Vec<u32>; 2]) -> f64 {
    let mut all: Vec<u32> = took.concat();
    all.sort_unstable();
    let mut largest = 0.0_f64;
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
        largest = largest.max(t.abs());
    }
    largest
}

fn keys() -> (Accounts, Vec<String>) {
    let mut accounts = Accounts::default().edit();
    let ids = (0..KEYS).map(|_| {
        let key = NewKey::random().unwrap();
        accounts.put_key(&Record::new(key.id(), secret().verifier(key.reveal()))).unwrap();
        key.id().to_owned()
    });
    let ids = ids.collect();
    (accounts.finish(), ids)
}

/// A wrong secret for each of these ids, of both classes by turns.
fn texts<'a>(
    known: impl Iterator<Item = &'a str>,
    unknown: impl Iterator<Item = String>,
) -> Vec<(bool, String)> {
    let text = |is_known, id: &str| (is_known, NewKey::with_id(id).unwrap().reveal().to_owned());
    let pairs = known.zip(unknown).take(TEXTS);
    pairs.flat_map(|(known, unknown)| [text(true, known), text(false, &unknown)]).collect()
}

#[test]
#[ignore = "measures time: by hand, optimised, on a quiet machine"]
fn t28_how_long_a_refusal_takes_does_not_tell_whether_there_is_such_an_id() {
    let (accounts, ids) = keys();
    let nobody = || NewKey::random().unwrap().id().to_owned();
    let one = nobody();
    let mut of_one = texts(std::iter::repeat(&*ids[0]), std::iter::repeat(one));
    let mut of_many = texts(ids.iter().map(|id| &**id), std::iter::repeat_with(nobody));
    let largest = [
        judge_times("one id, many secrets", &measure(&accounts, &mut of_one, 128)),
        judge_times("many ids", &measure(&accounts, &mut of_many, 128)),
    ];
    println!("largest |t|: {:.2} for one id, {:.2} for many", largest[0], largest[1]);
    assert!(largest.iter().all(|t| *t < T_MAX), "times differ: {largest:?}");
}

#[test]
fn welchs_t_tells_what_differs_from_what_does_not() {
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
