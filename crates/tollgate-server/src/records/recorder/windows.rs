//! Counts requests by client and route.
//!
//! With many clients, the entry of the next one is in no cache, and a request would wait for memory. Requests are kept until there
//! are a few of one shard: added one after another, the processor waits for several entries at a time.

use parking_lot::Mutex;
use tollgate_stores::sql::records::DecisionKind;

use super::counts::{WindowCounts, WindowDelta};
use super::key::write_window_fields;
use crate::records::delta_table::{DeltaKey, DeltaTable, Fingerprint, Spare};

const SHARDS: usize = 8;
/// Clients × routes per second. Requests of others are counted as dropped.
const WINDOWS_MAX: usize = 262_144;
/// Threads keep their requests apart.
const THREAD_SHARDS: usize = 8;
/// Requests that are added together.
const PENDING_MAX: usize = 16;

/// The windows since the last flush.
pub(in crate::records) struct WindowTable {
    table: DeltaTable<WindowDelta>,
    /// By thread and shard.
    pending: Box<[Mutex<Pending>]>,
}

/// Requests of one shard that are not in the table yet.
#[derive(Default)]
struct Pending {
    requests: Vec<PendingRequest>,
    /// Their keys.
    keys: Vec<u8>,
}

struct PendingRequest {
    fingerprint: Fingerprint,
    /// Where the key begins.
    key: usize,
    counted: CountedRequest,
}

/// What is counted of a request.
#[derive(Copy, Clone)]
pub(super) struct CountedRequest {
    pub(super) minute: u64,
    pub(super) kind: DecisionKind,
    pub(super) limit: Option<u32>,
}

impl WindowTable {
    pub(super) fn new() -> Self {
        WindowTable {
            table: DeltaTable::new(SHARDS, WINDOWS_MAX / SHARDS),
            pending: (0..THREAD_SHARDS * SHARDS).map(|_| Mutex::default()).collect(),
        }
    }

    pub(in crate::records) fn shards(&self) -> usize {
        self.table.shards()
    }

    /// Requests that were not counted because the table was full.
    pub(in crate::records) fn dropped(&self) -> u64 {
        self.table.dropped()
    }

    /// Counts a request of a window. `thread` is the number of the calling thread.
    pub(super) fn count(&self, thread: usize, fingerprint: Fingerprint, key: &[u8], counted: CountedRequest) {
        let shard = usize::try_from(fingerprint >> 96).unwrap_or(0) % SHARDS;
        let mut pending = self.pending[thread % THREAD_SHARDS * SHARDS + shard].lock();
        let start = pending.keys.len();
        pending.keys.extend_from_slice(key);
        pending.requests.push(PendingRequest { fingerprint, key: start, counted });
        if pending.requests.len() >= PENDING_MAX {
            pending.move_to(&self.table, shard);
        }
    }

    /// Takes the counts of a shard: passes minute, fields and counts to `each`.
    pub(in crate::records) fn take(
        &self,
        shard: usize,
        spare: &mut Spare<WindowDelta>,
        each: impl FnMut(u64, &[u8], &WindowCounts),
    ) {
        for pending in self.pending.iter().skip(shard).step_by(SHARDS) {
            pending.lock().move_to(&self.table, shard);
        }
        self.table.take(shard, spare, each);
    }
}

impl Pending {
    fn move_to(&mut self, table: &DeltaTable<WindowDelta>, shard: usize) {
        let Pending { requests, keys } = self;
        table.add_all(shard, |shard| {
            for PendingRequest { fingerprint, key, counted } in requests.drain(..) {
                let key = DeltaKey {
                    fingerprint,
                    has_fields: |_: &[u8]| true,
                    write_fields: |out: &mut Vec<u8>| write_window_fields(&keys[key..], out),
                };
                shard.add(key, counted.minute, |counts| counts.add(counted.kind, counted.limit));
            }
        });
        keys.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: CountedRequest = CountedRequest { minute: 7, kind: DecisionKind::Allowed, limit: Some(5) };

    #[test]
    fn pending_requests_of_all_threads_are_taken() {
        let (table, mut spare) = (WindowTable::new(), Spare::default());
        let requests = 10 * PENDING_MAX as u128 + 3;
        for number in 0..requests {
            // Seven clients in each shard.
            let fingerprint = ((number % SHARDS as u128) << 96) | (number % 7);
            table.count(usize::try_from(number).unwrap(), fingerprint, &[], REQUEST);
        }
        let mut taken = 0;
        for shard in 0..table.shards() {
            table.take(shard, &mut spare, |minute, _, counts| {
                assert_eq!((minute, counts.limit), (7, Some(5)));
                taken += counts.allowed;
            });
        }
        assert_eq!((u128::from(taken), table.dropped()), (requests, 0));
        assert!(table.pending.iter().all(|pending| pending.lock().requests.is_empty()));
    }

    #[test]
    fn requests_beyond_the_largest_table_are_dropped() {
        let (table, mut spare) = (WindowTable::new(), Spare::default());
        let (full, more) = (WINDOWS_MAX as u128 / SHARDS as u128, 3 * PENDING_MAX as u128);
        for number in 0..full + more {
            table.count(0, number, &[], REQUEST);
        }
        let mut taken = 0;
        table.take(0, &mut spare, |_, _, counts| taken += u128::from(counts.allowed));
        assert_eq!((taken, u128::from(table.dropped())), (full, more));
    }
}
