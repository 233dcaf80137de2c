//! What happens when a shard is full.
//!
//! Counters that are restored in full are evicted first, which loses nothing. Without such counters, new counters of a
//! tenant share one overflow counter per limit until there is space.

use super::Key;
use super::fair_share::TenantSlot;
use super::shard::{Shard, is_log, log_bytes};
use crate::counters::Charge;
use crate::time::Timestamp;

/// The subject of overflow counters.
const OVERFLOW: u128 = 0x6f76_6572_666c_6f77_6f76_6572_666c_6f77;

/// How many entries may be scanned per new counter.
const ENTRIES_PER_NEWCOMER: usize = 64;

impl Shard {
    /// The key itself if its counter exists or fits, else the key of an overflow counter.
    pub(super) fn key_with_capacity(
        &mut self,
        key: Key,
        tenant: TenantSlot,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> Key {
        if self.has_capacity(tenant, charge) || self.holds(key, charge) {
            return key;
        }
        self.evict_if_due(now);
        if self.has_capacity(tenant, charge) {
            return key;
        }
        self.overflow_charges += 1;
        let shared = overflow_key(tenant, charge);
        let fits = self.has_overflow_capacity(charge) || self.holds(shared, charge);
        if fits { shared } else { overflow_key(TenantSlot::NONE, charge) }
    }

    /// Whether a new counter of the tenant fits into what is not reserved for overflow counters.
    fn has_capacity(&self, tenant: TenantSlot, charge: &Charge<'_>) -> bool {
        if is_log(charge) {
            let free = without_overflow_reserve(self.log_bytes_max).saturating_sub(self.log_bytes);
            return self.usage.log_bytes.may_add(tenant, log_bytes(charge), free);
        }
        let free = without_overflow_reserve(self.keys_max).saturating_sub(self.counters.len());
        self.usage.counters.may_add(tenant, 1, free)
    }

    fn has_overflow_capacity(&self, charge: &Charge<'_>) -> bool {
        if is_log(charge) {
            self.log_bytes + log_bytes(charge) <= self.log_bytes_max
        } else {
            self.counters.len() < self.keys_max
        }
    }

    fn holds(&self, key: Key, charge: &Charge<'_>) -> bool {
        if is_log(charge) { self.has_log(key) } else { self.counters.contains(key) }
    }

    pub(super) fn has_log(&self, key: Key) -> bool {
        self.logs.find(key.hash(), |entry| entry.key == key).is_some()
    }

    /// Scans the shard for restored counters if there can be any. A scan is slow, so a flood of fake client ids must not
    /// cause one per request: each new counter earns a fixed number of scanned entries.
    fn evict_if_due(&mut self, now: Timestamp) {
        self.newcomers += 1;
        if now >= self.next_restored_at && self.newcomers * ENTRIES_PER_NEWCOMER >= self.len() {
            self.drop_restored(now);
        }
    }

    /// Drops restored counters and expired penalty records, and releases unused memory.
    pub(super) fn sweep(&mut self, now: Timestamp) {
        self.drop_restored(now);
        self.ledger.sweep(now);
        self.penalties.drop_expired(now);
        self.counters.shrink();
        if self.logs.len() < self.logs.capacity() / 4 {
            self.logs.shrink_to(self.logs.len() * 2, |entry| entry.key.hash());
        }
    }

    fn drop_restored(&mut self, now: Timestamp) {
        let mut next = Timestamp::MAX;
        let mut keep = |restored_at: Timestamp| {
            if restored_at > now {
                next = next.min(restored_at);
            }
            restored_at > now
        };
        let usage = &mut self.usage;
        self.counters.retain(|entry| {
            let kept = keep(entry.restored_at());
            if !kept {
                usage.counters.subtract(entry.tenant(), 1);
            }
            kept
        });
        self.logs.retain(|entry| {
            let kept = keep(entry.restored_at);
            if !kept {
                self.log_bytes -= entry.reserved;
                usage.log_bytes.subtract(entry.tenant, entry.reserved);
            }
            kept
        });
        self.next_restored_at = next;
        self.newcomers = 0;
    }
}

/// The part of a bound that ordinary counters may use. The rest, at least one, is reserved for overflow counters.
fn without_overflow_reserve(max: usize) -> usize {
    max.saturating_sub((max / 32).max(1)).max(1)
}

/// The overflow counter of a tenant and limit.
fn overflow_key(tenant: TenantSlot, charge: &Charge<'_>) -> Key {
    Key::of(OVERFLOW ^ charge.counter.0 ^ u128::from(tenant.number()) << 72)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use proptest::prelude::*;

    use super::*;
    use crate::counters::memory::MemoryBounds;
    use crate::counters::{CounterId, Effect, PenaltyCharge};
    use crate::identity::{Client, Id, Subject};
    use crate::limit::{Algorithm, Limit, Window};
    use crate::penalties::PenaltyPolicy;
    use crate::time::Span;

    const NOW: Timestamp = Timestamp::from_secs(1_000_000);

    fn shard(keys_max: usize) -> Shard {
        let keys_max = NonZeroUsize::new(keys_max).unwrap();
        Shard::new(MemoryBounds { keys_max, log_bytes_max: 4_096, penalties_max: 20 }, 0, 1)
    }

    fn charge(limit: &Limit) -> Charge<'_> {
        let (subject, counter) = (Subject(0), CounterId(0));
        Charge {
            subject,
            counter,
            rule: "eviction",
            limit,
            cost: 1,
            effect: Effect::Enforce,
            leases: false,
            refundable: false,
        }
    }

    fn key(number: u64) -> Key {
        let hash = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Key::of(u128::from(hash) << 64 | u128::from(hash.swap_bytes()))
    }

    #[test]
    fn full_shard_is_not_scanned_per_newcomer() {
        let mut shard = shard(640);
        let limit = Limit::new(Algorithm::TokenBucket, 1, Window::Length(Span::from_secs(2))).unwrap();
        let mut scans = 0;
        // One per millisecond: more than fit, each restored at its own time.
        for number in 0..10_000 {
            let before = shard.newcomers;
            shard.charge(key(number), None, &charge(&limit), NOW + Span::from_micros(number * 1_000));
            scans += usize::from(shard.newcomers <= before);
        }
        assert!((1..=10_000 * ENTRIES_PER_NEWCOMER / 500).contains(&scans), "{scans} scans");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Charge { number: u64, tenant: u64, log: bool },
        Refuse { number: u64, tenant: u64 },
        Forget(u64),
        Pardon(u64),
        Pass(u64),
        Sweep,
    }

    fn step() -> impl Strategy<Value = Step> {
        let number = || 0..200_u64;
        prop_oneof![
            20 => (number(), 0..4_u64, any::<bool>())
                .prop_map(|(number, tenant, log)| Step::Charge { number, tenant, log }),
            5 => (number(), 0..4_u64).prop_map(|(number, tenant)| Step::Refuse { number, tenant }),
            5 => number().prop_map(Step::Forget),
            2 => number().prop_map(Step::Pardon),
            2 => (0..3_000_000_u64).prop_map(Step::Pass),
            1 => Just(Step::Sweep),
        ]
    }

    fn apply(step: &Step, shard: &mut Shard, now: &mut Timestamp) {
        let seconds = |algorithm| Limit::new(algorithm, 3, Window::Length(Span::from_secs(2))).unwrap();
        let policy = PenaltyPolicy { detection_window: Span::from_secs(2), ..PenaltyPolicy::default() };
        match *step {
            Step::Charge { number, tenant, log } => {
                let limit = seconds(if log { Algorithm::SlidingWindowLog } else { Algorithm::FixedWindow });
                let evaluated =
                    shard.evaluate(key(number), TenantSlot::from_number(tenant), &charge(&limit), *now);
                shard.commit(&evaluated, &charge(&limit), *now);
            }
            Step::Refuse { number, tenant } => {
                let client = Client::User(Id::parse("somebody").unwrap());
                let penalty = PenaltyCharge {
                    subject: Subject(0),
                    client: client.into(),
                    policy: &policy,
                    client_charges: u32::MAX,
                };
                let window = Span::from_secs(2);
                shard.penalties.record_refusal(
                    key(number),
                    TenantSlot::from_number(tenant),
                    &penalty,
                    window,
                    *now,
                );
            }
            Step::Forget(number) => drop(shard.remove(key(number))),
            Step::Pardon(number) => shard.penalties.remove(key(number)),
            Step::Pass(micros) => *now = *now + Span::from_micros(micros),
            Step::Sweep => shard.sweep(*now),
        }
    }

    proptest! {
        #[test]
        fn tenant_usage_equals_the_entries(steps in prop::collection::vec(step(), 0..600)) {
            let (mut shard, mut now) = (shard(40), NOW);
            for step in &steps {
                apply(step, &mut shard, &mut now);
            }
            for number in 0..4 {
                let tenant = TenantSlot::from_number(number);
                let cells = shard.counters.iter().filter(|entry| entry.tenant() == tenant).count();
                let logs = shard.logs.iter().filter(|entry| entry.tenant == tenant);
                let records = shard.penalties.iter().filter(|entry| entry.tenant == tenant).count();
                prop_assert_eq!(shard.usage.counters.used(tenant), cells);
                prop_assert_eq!(shard.usage.log_bytes.used(tenant), logs.map(|log| log.reserved).sum::<usize>());
                prop_assert_eq!(shard.penalties.used_by(tenant), records);
            }
            let reserved: usize = shard.logs.iter().map(|entry| entry.reserved).sum();
            prop_assert_eq!(shard.log_bytes, reserved);
            prop_assert!(shard.counters.len() <= 41, "at most one overflow counter more");
        }
    }
}
