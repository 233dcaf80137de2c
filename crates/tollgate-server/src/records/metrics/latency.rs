//! A histogram of durations with classic and native buckets, recorded without a lock.
//!
//! Both kinds of buckets are sums of finer ones, the cells, whose bounds are the bounds of both kinds. A duration is counted in one cell,
//! so that both kinds always agree on the number of observations, as Prometheus requires.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use prometheus_client::encoding::{
    EncodeMetric, MetricEncoder, NativeHistogram, NativeHistogramBuckets, NoLabelSet,
};
use prometheus_client::metrics::{MetricType, TypedMetric};

/// Upper bounds of the classic buckets, in nanoseconds: 1 µs is a decision in memory, 15 ms the default timeout of Redis.
const CLASSIC: [u64; 18] = [
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    1_000_000_000,
    10_000_000_000,
];

/// The schema of the native buckets: their bounds are the powers of `2^(1/8)`, so each is 9 % above the previous one.
const SCHEMA: i32 = 3;
/// The bound of the zero bucket is `2^(FIRST / 8)` s, 60 ns. No decision is that fast.
const FIRST: i32 = -24 * 8;
/// The bound of the last native bucket is `2^(LAST / 8)` s, 128 s. Longer durations are counted in it.
const LAST: i32 = 7 * 8;

/// Threads record into different shards, so that they do not contend for cache lines.
const SHARDS: usize = 8;

/// A histogram of durations. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct DurationHistogram(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// The upper bounds of the cells in nanoseconds, ascending.
    bounds: Box<[u64]>,
    shards: [Shard; SHARDS],
    created: SystemTime,
}

#[derive(Debug)]
#[repr(align(128))]
struct Shard {
    cells: Box<[AtomicU64]>,
    nanoseconds: AtomicU64,
}

impl Default for DurationHistogram {
    fn default() -> Self {
        let mut bounds: Vec<u64> = CLASSIC.into_iter().chain((FIRST..=LAST).map(native_bound)).collect();
        bounds.sort_unstable();
        bounds.dedup();
        let cells = bounds.len();
        let shard = || Shard {
            cells: (0..cells).map(|_| AtomicU64::new(0)).collect(),
            nanoseconds: AtomicU64::new(0),
        };
        DurationHistogram(Arc::new(Inner {
            bounds: bounds.into(),
            shards: std::array::from_fn(|_| shard()),
            created: SystemTime::now(),
        }))
    }
}

/// The upper bound of a native bucket: the largest whole number of nanoseconds that belongs to it.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 59 ns and 128 s")]
fn native_bound(index: i32) -> u64 {
    ((f64::from(index) / 8.0).exp2() * 1e9).floor() as u64
}

/// The shard of this thread.
fn shard() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static SHARD: Cell<usize> = Cell::new(THREADS.fetch_add(1, Ordering::Relaxed) % SHARDS));
    SHARD.with(Cell::get)
}

impl DurationHistogram {
    pub(crate) fn observe(&self, duration: Duration) {
        let Inner { bounds, shards, .. } = &*self.0;
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        // The last cell also has what is beyond its bound.
        let cell = bounds.partition_point(|bound| *bound < nanoseconds).min(bounds.len() - 1);
        let shard = &shards[shard()];
        shard.cells[cell].fetch_add(1, Ordering::Relaxed);
        shard.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// The cells of all shards, with their bounds.
    fn cells(&self) -> Vec<(u64, u64)> {
        let Inner { bounds, shards, .. } = &*self.0;
        let count = |cell: usize| shards.iter().map(|shard| shard.cells[cell].load(Ordering::Relaxed)).sum();
        bounds.iter().enumerate().map(|(cell, bound)| (*bound, count(cell))).collect()
    }
}

/// The sum of the cells above one bound, up to another.
fn between(cells: &[(u64, u64)], above: Option<u64>, up_to: u64) -> u64 {
    let within = |(bound, _): &&(u64, u64)| above.is_none_or(|above| *bound > above) && *bound <= up_to;
    cells.iter().filter(within).map(|(_, count)| count).sum()
}

#[allow(
    clippy::cast_precision_loss,
    reason = "below 2^53 ns for bounds; a sum loses nanoseconds after 104 days"
)]
fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

/// The counts of the classic buckets, the last of which has no bound.
fn classic_buckets(cells: &[(u64, u64)]) -> Vec<(f64, u64)> {
    let mut below = None;
    let mut bucket = |bound: u64| between(cells, below.replace(bound), bound);
    let mut buckets: Vec<(f64, u64)> =
        CLASSIC.iter().map(|bound| (seconds(*bound), bucket(*bound))).collect();
    buckets.push((f64::INFINITY, bucket(u64::MAX)));
    buckets
}

/// The native buckets from the first to the last that is not empty: the index of the first, and how each differs from the one before.
fn native_buckets(cells: &[(u64, u64)]) -> (i32, Vec<i64>) {
    let count = |index: i32| between(cells, Some(native_bound(index - 1)), native_bound(index));
    let counts: Vec<(i32, u64)> = (FIRST + 1..=LAST).map(|index| (index, count(index))).collect();
    let is_used = |(_, count): &(i32, u64)| *count > 0;
    let (Some(first), Some(last)) = (counts.iter().position(is_used), counts.iter().rposition(is_used))
    else {
        return (0, Vec::new());
    };
    let mut before = 0;
    let delta = |(_, count): &(i32, u64)| {
        let count = i64::try_from(*count).unwrap_or(i64::MAX);
        count - std::mem::replace(&mut before, count)
    };
    (counts[first].0, counts[first..=last].iter().map(delta).collect())
}

impl TypedMetric for DurationHistogram {
    const TYPE: MetricType = MetricType::Histogram;
}

impl EncodeMetric for DurationHistogram {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        let sum = self.0.shards.iter().map(|shard| shard.nanoseconds.load(Ordering::Relaxed)).sum();
        let cells = self.cells();
        let count = cells.iter().map(|(_, count)| count).sum();
        let (first, deltas) = native_buckets(&cells);
        let span = [(first, u32::try_from(deltas.len()).unwrap_or(0))];
        let spans = if deltas.is_empty() { [].as_slice() } else { &span };
        let native = NativeHistogram {
            schema: SCHEMA,
            zero_threshold: (f64::from(FIRST) / 8.0).exp2(),
            zero_count: between(&cells, None, native_bound(FIRST)),
            negative: NativeHistogramBuckets { spans: &[], deltas: &[] },
            positive: NativeHistogramBuckets { spans, deltas: &deltas },
            created: Some(self.0.created),
        };
        let classic = classic_buckets(&cells);
        encoder.encode_histogram_with_native::<NoLabelSet>(seconds(sum), count, &classic, None, native)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(durations: &[u64]) -> Vec<(u64, u64)> {
        let histogram = DurationHistogram::default();
        for nanoseconds in durations {
            histogram.observe(Duration::from_nanos(*nanoseconds));
        }
        histogram.cells()
    }

    #[test]
    fn bounds_belong_to_the_bucket_below() {
        let cells = observed(&[999, 1_000, 1_001, 2_500, 15_000_000]);
        let classic = classic_buckets(&cells);
        let used: Vec<_> = classic.into_iter().filter(|(_, count)| *count > 0).collect();
        assert_eq!(used, [(1e-6, 2), (2.5e-6, 2), (0.025, 1)]);
    }

    #[test]
    fn native_buckets_grow_by_an_eighth_of_an_octave() {
        // 2^-3 s ends bucket -24, and 2^-2 s bucket -16.
        let (first, deltas) =
            native_buckets(&observed(&[125_000_000, 125_000_001, 125_000_002, 250_000_000]));
        assert_eq!((first, deltas), (-24, vec![1, 1, -2, 0, 0, 0, 0, 0, 1]));
    }

    #[test]
    fn both_kinds_of_buckets_have_every_observation() {
        let durations: Vec<u64> = (0..64).map(|power| 1_u64 << power).collect();
        let cells = observed(&durations);
        let classic: u64 = classic_buckets(&cells).iter().map(|(_, count)| count).sum();
        let (_, deltas) = native_buckets(&cells);
        let mut bucket = 0;
        let native: i64 = deltas
            .iter()
            .map(|delta| {
                bucket += delta;
                bucket
            })
            .sum();
        let zero = i64::try_from(between(&cells, None, native_bound(FIRST))).unwrap();
        assert_eq!((classic, native + zero), (64, 64));
    }

    #[test]
    fn threads_add_up() {
        let histogram = DurationHistogram::default();
        std::thread::scope(|scope| {
            for _ in 0..2 * SHARDS {
                scope.spawn(|| (0..1_000).for_each(|_| histogram.observe(Duration::from_micros(3))));
            }
        });
        assert_eq!(classic_buckets(&histogram.cells())[2].1, 2 * SHARDS as u64 * 1_000);
    }
}
