//! Request ids: the caller's `X-Request-Id`, or a generated one.

use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderMap, HeaderName, HeaderValue};
use tollgate::Seed;

use crate::auth::api_keys::contains_key;

/// Longer ids of callers are replaced.
const BYTES_MAX: usize = 128;

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The id of one request, as it is returned and logged.
#[derive(Clone)]
pub(crate) struct RequestId(HeaderValue);

impl RequestId {
    pub(crate) fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or("")
    }

    pub(crate) fn header(&self) -> HeaderValue {
        self.0.clone()
    }
}

/// Generates request ids. Ids are public, so they have a random start of their own and reveal nothing of the seed of the counters.
pub(crate) struct RequestIds {
    base: u64,
    next: AtomicU64,
}

impl RequestIds {
    pub(crate) fn new(seed: Seed) -> Self {
        let base = seed.0.iter().fold(0u64, |base, byte| base.rotate_left(8) ^ u64::from(*byte));
        RequestIds { base, next: AtomicU64::new(0) }
    }

    /// The id that the caller sent, if it is short printable ASCII, otherwise a new one.
    pub(crate) fn of(&self, headers: &HeaderMap) -> RequestId {
        let is_usable = |value: &&HeaderValue| {
            let bytes = value.as_bytes();
            !bytes.is_empty() && bytes.len() <= BYTES_MAX && bytes.iter().all(u8::is_ascii_graphic)
                // The id is logged.
                && !value.to_str().is_ok_and(contains_key)
        };
        let sent = headers.get(REQUEST_ID).filter(is_usable).cloned();
        RequestId(sent.unwrap_or_else(|| {
            let text = format_id(self.generate());
            HeaderValue::from_bytes(&text).unwrap_or_else(|_| HeaderValue::from_static("req_0"))
        }))
    }

    /// Unique in this process, and unlikely to repeat across restarts.
    fn generate(&self) -> u64 {
        // Multiplying by an odd constant permutes all numbers: consecutive ids look unrelated.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.base.wrapping_add(number).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

/// `req_` and sixteen hexadecimal digits.
fn format_id(number: u64) -> [u8; 20] {
    let mut text = *b"req_0000000000000000";
    for (digit, shift) in text[4..].iter_mut().zip((0..16).rev()) {
        *digit = b"0123456789abcdef"[usize::try_from(number >> (4 * shift) & 15).unwrap_or(0)];
    }
    text
}
