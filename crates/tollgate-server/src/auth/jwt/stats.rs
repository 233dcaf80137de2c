//! Counters of tokens and key set fetches, kept across reloads.

use std::sync::atomic::{AtomicU64, Ordering};

use super::JwtError;

/// Counters since the start of the process.
#[derive(Debug, Default)]
pub(crate) struct JwtStats {
    accepted: AtomicU64,
    /// By the index of the reason.
    refused: [AtomicU64; JwtError::REASONS.len()],
    pub(super) fetches: AtomicU64,
    pub(super) fetch_failures: AtomicU64,
}

impl JwtStats {
    pub(super) fn count_accepted(&self) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_refused(&self, error: &JwtError) {
        self.refused[error.index()].fetch_add(1, Ordering::Relaxed);
    }

    /// Verified tokens.
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Refused tokens by reason.
    pub(crate) fn refused(&self) -> impl Iterator<Item = (&'static str, u64)> {
        JwtError::REASONS.into_iter().zip(self.refused.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// Attempts to fetch a key set.
    pub(crate) fn fetches(&self) -> u64 {
        self.fetches.load(Ordering::Relaxed)
    }

    /// Attempts that failed.
    pub(crate) fn fetch_failures(&self) -> u64 {
        self.fetch_failures.load(Ordering::Relaxed)
    }
}
