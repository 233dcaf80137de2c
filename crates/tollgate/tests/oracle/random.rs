//! Random numbers from a seed, so that a failure can be reproduced by its seed.

use tollgate::{Algorithm, Limit, LimitError, Span, Window};

use crate::model::ModelLimit;

/// `SplitMix64`.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn wide(&mut self) -> u128 {
        u128::from(self.next()) << 64 | u128::from(self.next())
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: i128, high: i128) -> i128 {
        low + i128::from(self.next()) % (high - low + 1).max(1)
    }

    /// True in `part` of `whole` cases.
    pub(crate) fn chance(&mut self, part: u64, whole: u64) -> bool {
        self.next() % whole < part
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.next() % from.len() as u64).unwrap()]
    }
}

const WINDOWS: [i128; 10] = [
    1_000,
    7_000,
    10_007,
    1_000_000,
    1_000_003,
    60_000_000,
    3_600_000_000,
    86_400_000_000,
    2_592_000_000_000,
    31_536_000_000_000,
];

/// Any valid limit, and the library's form of it.
pub(crate) fn any_limit(random: &mut Random) -> (ModelLimit, Limit) {
    let algorithm = random.pick(&Algorithm::ALL);
    let window = random.pick(&WINDOWS);
    loop {
        if let Some(found) = other_numbers(random, algorithm, window) {
            return found;
        }
    }
}

/// Other values for the same counter; `None` if the library rejects them as too large, too.
pub(crate) fn other_numbers(
    random: &mut Random,
    algorithm: Algorithm,
    window: i128,
) -> Option<(ModelLimit, Limit)> {
    let bucket = !matches!(
        algorithm,
        Algorithm::SlidingWindowCounter | Algorithm::SlidingWindowLog | Algorithm::FixedWindow
    );
    let count = |random: &mut Random| match random.between(0, 9) {
        0 => 1,
        1..=5 => random.between(1, 12),
        6 | 7 => random.between(1, 1_000),
        8 => random.between(1, 1_000_000),
        _ => random.between(1, i128::from(u32::MAX)),
    };
    let mut requests = if random.chance(1, 40) { 0 } else { count(random) };
    if algorithm == Algorithm::SlidingWindowLog {
        requests = requests.min(10_000);
    }
    let burst = (bucket && random.chance(2, 5)).then(|| count(random));
    let max_delay = (bucket && random.chance(1, 3)).then(|| match random.between(0, 2) {
        0 => random.between(0, 5) * window / requests.max(1),
        1 => random.between(0, window),
        _ => random.between(0, 3) * window,
    });
    let numbers = ModelLimit { algorithm, requests, window, burst, max_delay };
    let limit = Limit::with_options(
        algorithm,
        narrow(requests),
        Window::Length(span(window)),
        burst.map(narrow),
        max_delay.map(span),
    );
    match limit {
        Ok(limit) => Some((numbers, limit)),
        Err(error) => {
            assert_eq!((error, numbers.tick()), (LimitError::TooLarge, None), "{numbers:?}");
            None
        }
    }
}

pub(crate) fn narrow(number: i128) -> u32 {
    u32::try_from(number).unwrap()
}

pub(crate) fn span(micros: i128) -> Span {
    Span::from_micros(u64::try_from(micros).unwrap())
}
