//! Counts requests by client and route.

use tollgate_stores::sql::records::DecisionKind;

use super::batch::{BatchedDecision, CountedDecision};
use super::counts::{WindowCounts, WindowDelta};
use super::key::{KeyHashing, write_window_fields, write_window_key};
use crate::records::delta_table::{DeltaKey, DeltaTable, Fingerprint, Spare};

const SHARDS: usize = 8;
/// Clients × routes per second. Requests of others are counted as dropped.
const WINDOWS_MAX: usize = 262_144;

/// The windows since the last flush.
pub(in crate::records) struct WindowTable {
    table: DeltaTable<WindowDelta>,
}

/// Requests that are counted together, with the keys of their windows.
#[derive(Default)]
pub(super) struct WindowRequests {
    requests: Vec<WindowRequest>,
    /// One after another.
    keys: Vec<u8>,
}

struct WindowRequest {
    fingerprint: Fingerprint,
    /// Where the key begins.
    key: usize,
    minute: u64,
    kind: DecisionKind,
    limit: Option<u32>,
}

impl WindowRequest {
    fn shard(&self) -> usize {
        usize::try_from(self.fingerprint >> 96).unwrap_or(0) % SHARDS
    }
}

impl WindowTable {
    pub(super) fn new() -> Self {
        WindowTable { table: DeltaTable::new(SHARDS, WINDOWS_MAX / SHARDS) }
    }

    pub(in crate::records) fn shards(&self) -> usize {
        self.table.shards()
    }

    /// Requests that were not counted because the table was full.
    pub(in crate::records) fn dropped(&self) -> u64 {
        self.table.dropped()
    }

    /// Counts requests.
    pub(super) fn count(&self, WindowRequests { requests, keys }: &WindowRequests) {
        for shard in 0..SHARDS {
            let of_shard = requests.iter().filter(|request| request.shard() == shard);
            if of_shard.clone().next().is_none() {
                continue;
            }
            self.table.add_all(shard, |table| {
                // With many clients, their entries are in no cache.
                table.prefetch(of_shard.clone().map(|request| (request.fingerprint, request.minute)));
                for WindowRequest { fingerprint, key, minute, kind, limit } in of_shard {
                    let key = DeltaKey {
                        fingerprint: *fingerprint,
                        has_fields: |_: &[u8]| true,
                        write_fields: |out: &mut Vec<u8>| write_window_fields(&keys[*key..], out),
                    };
                    if !table.add(key, *minute, |counts| counts.add(*kind, *limit)) {
                        table.count_dropped();
                    }
                }
            });
        }
    }

    /// Takes the counts of a shard: passes minute, fields and counts to `each`.
    pub(in crate::records) fn take(
        &self,
        shard: usize,
        spare: &mut Spare<WindowDelta>,
        each: impl FnMut(u64, &[u8], &WindowCounts),
    ) {
        self.table.take(shard, spare, each);
    }
}

impl WindowRequests {
    pub(super) fn push(&mut self, hashing: &KeyHashing, decision: &BatchedDecision<'_>, route: &str) {
        let BatchedDecision { counted, client, prefixes, tenant, .. } = *decision;
        let key = self.keys.len();
        write_window_key(&mut self.keys, client, prefixes, tenant, route);
        let fingerprint = hashing.window(&self.keys[key..]);
        let CountedDecision { minute, kind, limit, .. } = counted;
        self.requests.push(WindowRequest { fingerprint, key, minute, kind, limit });
    }

    pub(super) fn clear(&mut self) {
        self.requests.clear();
        self.keys.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(fingerprints: impl Iterator<Item = u128>) -> WindowRequests {
        let request = |fingerprint| WindowRequest {
            fingerprint,
            key: 0,
            minute: 7,
            kind: DecisionKind::Allowed,
            limit: Some(5),
        };
        WindowRequests { requests: fingerprints.map(request).collect(), keys: Vec::new() }
    }

    #[test]
    fn requests_of_all_shards_are_taken() {
        let (table, mut spare) = (WindowTable::new(), Spare::default());
        let count = 163;
        // Seven clients in each shard.
        table.count(&requests((0..count).map(|number| ((number % SHARDS as u128) << 96) | (number % 7))));
        let mut taken = 0;
        for shard in 0..table.shards() {
            table.take(shard, &mut spare, |minute, _, counts| {
                assert_eq!((minute, counts.limit), (7, Some(5)));
                taken += counts.allowed;
            });
        }
        assert_eq!((u128::from(taken), table.dropped()), (count, 0));
    }

    #[test]
    fn requests_beyond_the_largest_table_are_dropped() {
        let (table, mut spare) = (WindowTable::new(), Spare::default());
        let (full, more) = (WINDOWS_MAX as u128 / SHARDS as u128, 48);
        table.count(&requests(0..full + more));
        let mut taken = 0;
        table.take(0, &mut spare, |_, _, counts| taken += u128::from(counts.allowed));
        assert_eq!((taken, u128::from(table.dropped())), (full, more));
    }
}
