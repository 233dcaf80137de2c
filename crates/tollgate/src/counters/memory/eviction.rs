//! Room in a shard: for whom there is some, how more is made, and where newcomers go for whom there is none.

use super::Key;
use super::fair_share::TenantSlot;
use super::shard::{Shard, log_bytes};
use crate::counters::{Charge, RetentionExtension};
use crate::time::Timestamp;

/// The subject that newcomers of a tenant share when there is no room for them.
const OVERFLOW: u128 = 0x6f76_6572_666c_6f77_6f76_6572_666c_6f77;

/// How many places a newcomer is worth a look at.
const PLACES_PER_NEWCOMER: usize = 64;

impl Shard {
    /// The key itself if it is known or there is room for it, else the key that newcomers share.
    pub(super) fn key_with_room(
        &mut self,
        key: Key,
        holder: TenantSlot,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> Key {
        if self.has_room(holder) || self.cells.contains(key) {
            return key;
        }
        self.make_room(now);
        if self.has_room(holder) {
            return key;
        }
        self.overflow_charges += 1;
        let shared = overflow_key(holder, charge);
        let has_place = self.cells.len() < self.keys_max || self.cells.contains(shared);
        if has_place { shared } else { overflow_key(TenantSlot::COMMON, charge) }
    }

    pub(super) fn log_key_with_room(
        &mut self,
        key: Key,
        holder: TenantSlot,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> Key {
        let bytes = log_bytes(charge);
        if self.has_room_for_log(holder, bytes) || self.has_log(key) {
            return key;
        }
        self.make_room(now);
        if self.has_room_for_log(holder, bytes) {
            return key;
        }
        self.overflow_charges += 1;
        let shared = overflow_key(holder, charge);
        let has_place = self.log_bytes + bytes <= self.log_bytes_max || self.has_log(shared);
        if has_place { shared } else { overflow_key(TenantSlot::COMMON, charge) }
    }

    fn has_room(&self, holder: TenantSlot) -> bool {
        self.held.cells.may_take(holder, 1, for_newcomers(self.keys_max).saturating_sub(self.cells.len()))
    }

    fn has_room_for_log(&self, holder: TenantSlot, bytes: usize) -> bool {
        let free = for_newcomers(self.log_bytes_max).saturating_sub(self.log_bytes);
        self.held.log_bytes.may_take(holder, bytes, free)
    }

    pub(super) fn has_log(&self, key: Key) -> bool {
        self.logs.find(key.hash(), |entry| entry.key == key).is_some()
    }

    /// Looks the shard through for what may be dropped, unless that is in vain. It takes long, and whoever invents clients would
    /// have it done for each of them: so each newcomer is worth a look at some places, which is saved up.
    fn make_room(&mut self, now: Timestamp) {
        self.newcomers += 1;
        if now >= self.next_restored_at && self.newcomers * PLACES_PER_NEWCOMER >= self.len() {
            self.drop_restored(now);
        }
    }

    /// Drops what is as good as new and gives back memory that is no longer needed.
    pub(super) fn sweep(&mut self, now: Timestamp) {
        self.drop_restored(now);
        self.drop_records(|entry| entry.expires_at <= now);
        self.cells.shrink();
        if self.logs.len() < self.logs.capacity() / 4 {
            self.logs.shrink_to(self.logs.len() * 2, |entry| entry.key.hash());
        }
    }

    /// Lets every counter last longer. Logs last as long as their window, whatever their limit.
    pub(super) fn extend_retention(&mut self, slower: &RetentionExtension) {
        self.cells.iter_mut().for_each(|entry| entry.extend_retention(slower));
    }

    /// Lets one counter last longer, if it is here.
    pub(super) fn extend_retention_of(&mut self, key: Key, slower: &RetentionExtension) {
        if let Some(entry) = self.cells.find_mut(key) {
            entry.extend_retention(slower);
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
        let held = &mut self.held;
        self.cells.retain(|entry| {
            let kept = keep(entry.restored_at());
            if !kept {
                held.cells.give_back(entry.holder(), 1);
            }
            kept
        });
        self.logs.retain(|entry| {
            let kept = keep(entry.restored_at);
            if !kept {
                self.log_bytes -= entry.reserved;
                held.log_bytes.give_back(entry.holder, entry.reserved);
            }
            kept
        });
        self.next_restored_at = next;
        self.newcomers = 0;
    }
}

/// Of what there is, the part that is for counters of newcomers' own; the rest is for those that newcomers share. Each has room
/// for one at least, as far as there is room for two.
fn for_newcomers(max: usize) -> usize {
    max.saturating_sub((max / 32).max(1)).max(1)
}

/// The counter that newcomers of a tenant have in common.
fn overflow_key(holder: TenantSlot, charge: &Charge<'_>) -> Key {
    Key::of(OVERFLOW ^ charge.counter.0 ^ u128::from(holder.number()) << 72)
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
        Charge { subject, counter, rule: "room", limit, cost: 1, effect: Effect::Enforce, leases: false }
    }

    fn key(number: u64) -> Key {
        let hash = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Key::of(u128::from(hash) << 64 | u128::from(hash.swap_bytes()))
    }

    #[test]
    fn t16_a_shard_is_not_looked_through_for_each_newcomer() {
        let mut shard = shard(640);
        let limit = Limit::new(Algorithm::TokenBucket, 1, Window::Length(Span::from_secs(2))).unwrap();
        let mut looks = 0;
        // One a millisecond: more than there is room for, and each of those that have some restored at its own time.
        for number in 0..10_000 {
            let before = shard.newcomers;
            shard.charge(key(number), None, &charge(&limit), NOW + Span::from_micros(number * 1_000));
            looks += usize::from(shard.newcomers <= before); // else there is one more
        }
        assert!((1..=10_000 * PLACES_PER_NEWCOMER / 500).contains(&looks), "{looks} looks");
    }

    #[derive(Clone, Debug)]
    enum Step {
        Charge { number: u64, holder: u64, log: bool },
        Refuse { number: u64, holder: u64 },
        Forget(u64),
        Pardon(u64),
        Pass(u64),
        Sweep,
    }

    fn step() -> impl Strategy<Value = Step> {
        let number = || 0..200_u64;
        prop_oneof![
            20 => (number(), 0..4_u64, any::<bool>())
                .prop_map(|(number, holder, log)| Step::Charge { number, holder, log }),
            5 => (number(), 0..4_u64).prop_map(|(number, holder)| Step::Refuse { number, holder }),
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
            Step::Charge { number, holder, log } => {
                let limit = seconds(if log { Algorithm::SlidingWindowLog } else { Algorithm::FixedWindow });
                let evaluated =
                    shard.evaluate(key(number), TenantSlot::numbered(holder), &charge(&limit), *now);
                shard.commit(&evaluated, &charge(&limit), *now);
            }
            Step::Refuse { number, holder } => {
                let client = Client::User(Id::parse("somebody").unwrap());
                let penalty =
                    PenaltyCharge { subject: Subject(0), client, policy: &policy, client_charges: u32::MAX };
                let window = Span::from_secs(2);
                shard.note_refusal(key(number), TenantSlot::numbered(holder), &penalty, window, *now);
            }
            Step::Forget(number) => drop(shard.remove(key(number))),
            Step::Pardon(number) => shard.pardon(key(number)),
            Step::Pass(micros) => *now = *now + Span::from_micros(micros),
            Step::Sweep => shard.sweep(*now),
        }
    }

    proptest! {
        #[test]
        fn what_holders_have_is_what_is_there(steps in prop::collection::vec(step(), 0..600)) {
            let (mut shard, mut now) = (shard(40), NOW);
            for step in &steps {
                apply(step, &mut shard, &mut now);
            }
            for number in 0..4 {
                let holder = TenantSlot::numbered(number);
                let cells = shard.cells.iter().filter(|entry| entry.holder() == holder).count();
                let logs = shard.logs.iter().filter(|entry| entry.holder == holder);
                let records = shard.penalties.iter().filter(|entry| entry.holder == holder).count();
                prop_assert_eq!(shard.held.cells.held(holder), cells);
                prop_assert_eq!(shard.held.log_bytes.held(holder), logs.map(|log| log.reserved).sum::<usize>());
                prop_assert_eq!(shard.held.penalties.held(holder), records);
            }
            let reserved: usize = shard.logs.iter().map(|entry| entry.reserved).sum();
            prop_assert_eq!(shard.log_bytes, reserved);
            prop_assert!(shard.cells.len() <= 41, "and the counter that all share, if tenants have taken its place");
        }
    }
}
