//! Version numbers of the shared configuration that reveal lost data.
//!
//! A version has three parts: a random epoch, drawn when the server has none; a count of changes in that epoch; and random
//! bits drawn with each change. Equal versions therefore mean equal state: a server restored from an older snapshot and
//! changed since does not reach a version that existed before. A node that sees a version go back starts a new epoch, so
//! that every node notices the loss.

use crate::redis::connection::random::bytes;

const RANDOM_BITS: u32 = 20;
/// Position of the epoch; the count of changes is between.
const EPOCH_SHIFT: u32 = 40;

/// Whether data was lost between two versions. Zero stands for none seen.
pub(super) fn data_lost_between(before: u64, after: u64) -> bool {
    before != 0 && after != 0 && before >> EPOCH_SHIFT != after >> EPOCH_SHIFT
}

/// Whether `after` is older than `before` in the same epoch, or was reached by other changes.
pub(super) fn goes_back(before: u64, after: u64) -> bool {
    let changes = |version: u64| version >> RANDOM_BITS;
    let same_epoch = before >> EPOCH_SHIFT == after >> EPOCH_SHIFT;
    same_epoch && (changes(after) < changes(before) || changes(after) == changes(before) && after != before)
}

/// The version after one more change. A full count starts a new epoch, after which nodes only restore what they know.
pub(super) fn next(version: u64) -> u64 {
    let changes = (version >> RANDOM_BITS) + 1;
    if changes >> (EPOCH_SHIFT - RANDOM_BITS) != version >> EPOCH_SHIFT {
        return new_epoch();
    }
    changes << RANDOM_BITS | random() & ((1 << RANDOM_BITS) - 1)
}

/// The first version of a new epoch; never zero.
pub(super) fn new_epoch() -> u64 {
    ((random() >> 1 >> EPOCH_SHIFT) | 1) << EPOCH_SHIFT | random() & ((1 << RANDOM_BITS) - 1)
}

fn random() -> u64 {
    u64::from_be_bytes(bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_never_reached_in_two_ways() {
        let first = new_epoch();
        let (one, other) = (next(first), next(first));
        assert!(!goes_back(first, one) && !data_lost_between(first, one));
        assert!(goes_back(one, first));
        assert!(one == other || goes_back(one, other) && goes_back(other, one));
        assert!(!goes_back(one, one));
        assert!(!goes_back(one, next(next(first))));
    }

    #[test]
    fn another_epoch_is_a_loss() {
        let version = new_epoch();
        assert!(data_lost_between(version, version ^ 1 << 50));
        assert!(!data_lost_between(0, version) && !goes_back(0, version));
        let last = version | ((1 << EPOCH_SHIFT) - 1);
        assert!(data_lost_between(last, next(last)) || goes_back(last, next(last)));
    }
}
