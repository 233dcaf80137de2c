//! Measures whether the duration of a refusal reveals which key ids exist. Run by hand on a quiet machine:
//!
//! ```sh
//! cargo test --release -p tollgate-server --lib -- --ignored --nocapture refusal_time
//! ```
//!
//! Wrong secrets for known ids and for unknown ids are measured in random order; the means of the fastest 95 % are compared. They
//! differ by up to 5 ns in either direction; a skipped lookup shows as 22 to 70 ns.

use std::hint::black_box;
use std::time::Instant;

use super::*;

/// Refusals of each class.
const TEXTS: usize = 4_096;
const ROUNDS: usize = 64;
/// A difference of means that indicates a skipped step.
const NANOS_MAX: f64 = 20.0;

fn shuffle<T>(items: &mut [T], state: &mut u64) {
    for last in (1..items.len()).rev() {
        // xorshift
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        items.swap(last, usize::try_from(*state % (last as u64 + 1)).unwrap());
    }
}

/// Accounts with this many keys, and their ids in random order.
fn keys(count: usize) -> (Accounts, Vec<String>) {
    let mut accounts = Accounts::default().edit();
    let mut ids = Vec::new();
    for _ in 0..count {
        let key = NewKey::random().unwrap();
        accounts.put_key(&Record::new(key.id(), secret().verifier(key.reveal()))).unwrap();
        ids.push(key.id().to_owned());
    }
    shuffle(&mut ids, &mut (count as u64));
    (accounts.finish(), ids)
}

/// Wrong secrets for these ids, and for as many unknown ids.
fn texts(known: &[String]) -> Vec<(bool, String)> {
    let unknown: Vec<String> = known.iter().map(|_| NewKey::random().unwrap().id().to_owned()).collect();
    let text = |is_known, id: &str| (is_known, NewKey::with_id(id).unwrap().reveal().to_owned());
    let pairs = known.iter().zip(&unknown).cycle().take(TEXTS);
    pairs.flat_map(|(known, unknown)| [text(true, known), text(false, unknown)]).collect()
}

/// Nanoseconds that a wrong secret takes more than an unknown id.
fn difference(count: usize) -> f64 {
    let (accounts, ids) = keys(count);
    let (mut texts, secret, mut random) = (texts(&ids), secret(), 0x9e37_79b9_7f4a_7c15);
    let mut took = Vec::new();
    for round in 0..=ROUNDS {
        shuffle(&mut texts, &mut random);
        for (is_known, text) in &texts {
            let id = id_of(text).unwrap();
            let started = Instant::now();
            let refused = black_box(verify(&accounts, &secret, black_box(text), id, NOW)).is_err();
            let nanos = u32::try_from(started.elapsed().as_nanos()).unwrap_or(u32::MAX);
            assert!(refused);
            // The first round warms up.
            if round > 0 {
                took.push((nanos, *is_known));
            }
        }
    }
    // The slowest are interrupts.
    took.sort_unstable();
    took.truncate(took.len() * 95 / 100);
    let mean = |class: bool| {
        let times: Vec<f64> =
            took.iter().filter(|(_, known)| *known == class).map(|(nanos, _)| f64::from(*nanos)).collect();
        times.iter().sum::<f64>() / f64::from(u32::try_from(times.len()).unwrap())
    };
    let (known, unknown) = (mean(true), mean(false));
    println!("{count} keys: unknown id {unknown:.2} ns, wrong secret {known:.2} ns");
    known - unknown
}

#[test]
#[ignore = "measures time: by hand, optimised, on a quiet machine"]
fn refusal_time_does_not_reveal_known_ids() {
    // With 100,000 keys a shard of the table has many, with 100 hardly one.
    let differences = [100_000, 10_000, 100].map(difference);
    assert!(differences.iter().all(|nanos| nanos.abs() < NANOS_MAX), "times differ: {differences:.1?}");
}
