//! Encoded rows of the decision log that wait for the flusher.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::spool::split_row;

/// Threads write to different shards.
pub(crate) const SHARDS: usize = 8;
/// Rows that wait at most, in all shards together.
pub(crate) const ROWS_MAX: u32 = 8 * SHARD_ROWS_MAX;
const SHARD_ROWS_MAX: u32 = 8_192;
/// Bytes of a shard, so that long paths cannot fill the memory.
const SHARD_BYTES_MAX: usize = 8 << 20;

/// Rows that wait, each preceded by its length in four bytes: the form of a frame of the spool.
#[derive(Default)]
pub(crate) struct RowBuffer {
    shards: [Mutex<Rows>; SHARDS],
    /// Rows that did not fit.
    dropped: AtomicU64,
}

#[derive(Default)]
pub(crate) struct Rows {
    pub(crate) bytes: Vec<u8>,
    pub(crate) count: u32,
}

impl RowBuffer {
    /// Adds the row that `encode` appends, or counts it as dropped. Returns whether the flusher should come soon.
    pub(crate) fn push(&self, encode: impl FnOnce(&mut Vec<u8>)) -> bool {
        let mut rows = self.shards[shard_of_thread() % SHARDS].lock();
        if rows.count >= SHARD_ROWS_MAX || rows.bytes.len() >= SHARD_BYTES_MAX {
            drop(rows);
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return true;
        }
        rows.push(encode);
        rows.count == SHARD_ROWS_MAX / 2 || rows.bytes.len() >= SHARD_BYTES_MAX / 2
    }

    /// Exchanges the rows of a shard with `empty`, which keeps its memory.
    pub(crate) fn swap(&self, shard: usize, empty: &mut Rows) {
        std::mem::swap(&mut *self.shards[shard].lock(), empty);
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl Rows {
    /// Adds the row that `encode` appends.
    pub(crate) fn push(&mut self, encode: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        encode(&mut self.bytes);
        let length = u32::try_from(self.bytes.len() - start - 4).unwrap_or(0);
        self.bytes[start..start + 4].copy_from_slice(&length.to_le_bytes());
        self.count += 1;
    }

    /// The row at `start`.
    pub(crate) fn at(&self, start: u32) -> &[u8] {
        split_row(&self.bytes[start as usize..]).map_or(&[], |(row, _)| row)
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.count = 0;
    }
}

/// A number of the calling thread: threads that record at the same time seldom share a shard.
pub(crate) fn shard_of_thread() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = THREADS.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_past_the_bound_are_counted() {
        let buffer = RowBuffer::default();
        for _ in 0..SHARD_ROWS_MAX + 10 {
            buffer.push(|out| out.push(7));
        }
        assert_eq!(buffer.dropped(), 10);
        let mut count = 0;
        let mut rows = Rows::default();
        for shard in 0..SHARDS {
            buffer.swap(shard, &mut rows);
            assert_eq!(rows.bytes.len(), rows.count as usize * 5);
            count += rows.count;
            rows.clear();
        }
        assert_eq!(count, SHARD_ROWS_MAX);
    }

    #[test]
    fn full_shard_asks_for_the_flusher_once_half_way() {
        let buffer = RowBuffer::default();
        let asked = (0..SHARD_ROWS_MAX).filter(|_| buffer.push(|out| out.push(7))).count();
        assert_eq!(asked, 1);
    }
}
