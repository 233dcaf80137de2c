//! A histogram of latencies that can be merged and stored as text.

use std::fmt::{self, Write as _};
use std::str::FromStr;

/// Buckets per power of two: a quantile is at most 25 % too high.
const PER_OCTAVE: u32 = 4;
/// Everything from 2²⁵ µs (33 seconds) on is in the last bucket.
const BUCKETS: usize = 96;

/// Counts of latencies in microseconds. Merging histograms loses nothing.
#[derive(Clone, PartialEq, Eq)]
pub struct LatencyHistogram {
    counts: [u32; BUCKETS],
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        LatencyHistogram { counts: [0; BUCKETS] }
    }
}

impl LatencyHistogram {
    /// Counts one latency.
    pub fn record(&mut self, micros: u64) {
        let count = &mut self.counts[bucket_of(micros)];
        *count = count.saturating_add(1);
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &LatencyHistogram) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count = count.saturating_add(*more);
        }
    }

    /// How many latencies were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|count| u64::from(*count)).sum()
    }

    /// An upper bound of the latency that a share of all do not exceed, in microseconds; `None` if nothing was counted.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        #[expect(clippy::cast_precision_loss, reason = "a rank needs no exact count")]
        let rank = count as f64 * share;
        let mut below = 0.0;
        let found = self.counts.iter().position(|count| {
            below += f64::from(*count);
            below >= rank && below > 0.0
        });
        Some(bucket_end(found.unwrap_or(BUCKETS - 1)))
    }

    /// The buckets that are not empty, with their counts.
    pub fn buckets(&self) -> impl Iterator<Item = (u8, u32)> {
        let numbered = (0_u8..).zip(self.counts.iter().copied());
        numbered.filter(|(_, count)| *count > 0)
    }

    /// Adds a count to a bucket. Returns whether there is such a bucket.
    pub fn add_bucket(&mut self, bucket: u8, more: u32) -> bool {
        let Some(count) = self.counts.get_mut(usize::from(bucket)) else { return false };
        *count = count.saturating_add(more);
        true
    }
}

/// The number of the bucket: exact up to 7 µs, then four for each power of two.
fn bucket_of(micros: u64) -> usize {
    let micros = micros.min((1 << 25) - 1);
    if micros < u64::from(PER_OCTAVE) {
        return usize::try_from(micros).unwrap_or(0);
    }
    let octave = micros.ilog2();
    let quarter = (micros >> (octave - 2)) & 3;
    let bucket = u64::from(octave - 1) * u64::from(PER_OCTAVE) + quarter;
    usize::try_from(bucket).unwrap_or(BUCKETS - 1).min(BUCKETS - 1)
}

/// The largest latency of a bucket.
fn bucket_end(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < u64::from(PER_OCTAVE) {
        return bucket;
    }
    let (octave, quarter) = (bucket / u64::from(PER_OCTAVE) + 1, bucket % u64::from(PER_OCTAVE));
    ((4 + quarter + 1) << (octave - 2)) - 1
}

impl fmt::Display for LatencyHistogram {
    /// `bucket:count` for every bucket that is not empty, separated by spaces.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, (bucket, count)) in self.buckets().enumerate() {
            if position > 0 {
                out.write_char(' ')?;
            }
            write!(out, "{bucket}:{count}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for LatencyHistogram {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "LatencyHistogram({self})")
    }
}

/// The text is not a histogram.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a latency histogram")]
pub struct InvalidHistogram;

impl FromStr for LatencyHistogram {
    type Err = InvalidHistogram;

    fn from_str(text: &str) -> Result<Self, InvalidHistogram> {
        let mut histogram = LatencyHistogram::default();
        for pair in text.split_ascii_whitespace() {
            let (bucket, count) = pair.split_once(':').ok_or(InvalidHistogram)?;
            let bucket = bucket.parse().map_err(|_| InvalidHistogram)?;
            if !histogram.add_bucket(bucket, count.parse().map_err(|_| InvalidHistogram)?) {
                return Err(InvalidHistogram);
            }
        }
        Ok(histogram)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_cover_all_latencies_in_order() {
        let mut last = 0;
        for micros in (0..100_000).chain((17..40).map(|power| 1 << power)) {
            let bucket = bucket_of(micros);
            assert!(bucket == last || bucket == last + 1 || micros >= 100_000, "{micros}: {last} → {bucket}");
            assert!(bucket >= last);
            assert!(micros >= 1 << 25 || bucket_end(bucket) >= micros, "{micros}");
            assert!(bucket_end(bucket) <= micros + micros / 4 || micros >= 1 << 25, "{micros}");
            last = bucket;
        }
        assert_eq!(last, BUCKETS - 1);
    }

    #[test]
    fn quantiles_of_merged_histograms() {
        let (mut fast, mut slow) = (LatencyHistogram::default(), LatencyHistogram::default());
        (0..98).for_each(|_| fast.record(5));
        (0..2).for_each(|_| slow.record(1_000));
        assert_eq!(LatencyHistogram::default().quantile(0.5), None);
        fast.merge(&slow);
        assert_eq!((fast.count(), fast.quantile(0.5), fast.quantile(0.95)), (100, Some(5), Some(5)));
        let p99 = fast.quantile(0.99).unwrap();
        assert!((1_000..=1_250).contains(&p99), "{p99}");
    }

    #[test]
    fn text_restores_the_histogram() {
        let mut histogram = LatencyHistogram::default();
        for micros in [0, 3, 3, 90, 12_345, u64::MAX] {
            histogram.record(micros);
        }
        assert_eq!(histogram.to_string().parse(), Ok(histogram));
        assert_eq!("".parse(), Ok(LatencyHistogram::default()));
        for invalid in ["1", "1:", "x:1", "200:1", "1:-1"] {
            assert_eq!(invalid.parse::<LatencyHistogram>(), Err(InvalidHistogram), "{invalid}");
        }
    }
}
