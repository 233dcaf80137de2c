//! Counter snapshots from arbitrary bytes: rejected, or usable and readable again after saving.
#![no_main]

use std::hash::Hasher;
use std::io::{Read, repeat};

use libfuzzer_sys::fuzz_target;
use siphasher::sip::SipHasher13;
use tollgate::counters::conformance::block_on;
use tollgate::counters::{Charge, Charges, CounterAdmin, CounterId, Effect};
use tollgate::identity::Subject;
use tollgate::{Algorithm, Limit, MemoryCounters, Seed, Span, Timestamp, Window};

const NOW: Timestamp = Timestamp::from_secs(1_767_225_600);

fuzz_target!(|data: &[u8]| {
    // The checksum is wrong except once in 2^64.
    let foreign = MemoryCounters::default().restore(data);
    assert!(foreign.is_err() || has_checksum(data));
    // With a valid header and trailing empty lists, so that the reader gets past the header.
    let store = MemoryCounters::default();
    let forged = b"tollgat1".chain(data).chain(repeat(0).take(16_384));
    assert!(store.restore(forged).is_err());
    assert_usable(&store, data);
    let bytes = saved(&store);
    let again = MemoryCounters::default();
    match again.restore(bytes.as_slice()) {
        Ok(_) => assert_eq!(saved(&again).len(), bytes.len()),
        Err(error) => panic!("a saved snapshot cannot be read: {error}"),
    }
});

fn has_checksum(data: &[u8]) -> bool {
    let Some((body, sum)) = data.split_last_chunk::<8>() else { return false };
    let mut hasher = SipHasher13::new();
    hasher.write(body);
    hasher.finish() == u64::from_le_bytes(*sum)
}

fn saved(store: &MemoryCounters) -> Vec<u8> {
    let mut bytes = Vec::new();
    assert!(store.save(Seed([7; 16]), NOW, &mut bytes).is_ok());
    bytes
}

/// Charges the first counter of the data with every algorithm.
fn assert_usable(store: &MemoryCounters, data: &[u8]) {
    let first = data.get(24..40).and_then(|key| key.try_into().ok()).map_or(0, u128::from_le_bytes);
    for algorithm in Algorithm::ALL {
        let Ok(limit) = Limit::new(algorithm, 5, Window::Length(Span::from_secs(60))) else { continue };
        let (subject, counter, effect) = (Subject(first), CounterId(0), Effect::Enforce);
        let charge = Charge {
            subject,
            counter,
            rule: "fuzz",
            limit: &limit,
            cost: 1,
            effect,
            leases: true,
            refundable: false,
        };
        let charges = Charges { charges: [charge].into_iter().collect(), ..Charges::default() };
        for step in [0, 1, 30, 60, 6_000] {
            store.charge_all_now(&charges, NOW + Span::from_secs(step));
        }
    }
    assert!(block_on(store.penalized_clients(10, NOW)).is_ok_and(|listed| listed.len() <= 10));
    store.sweep(NOW + Span::from_secs(1));
    assert!(store.bytes() < usize::MAX / 2);
}
