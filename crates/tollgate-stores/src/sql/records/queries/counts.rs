//! Counts of requests.

/// How many requests were admitted and refused.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// Requests admitted.
    pub allowed: u64,
    /// Requests refused or blocked.
    pub refused: u64,
}

impl RequestCounts {
    /// All requests.
    pub const fn requests(self) -> u64 {
        self.allowed.saturating_add(self.refused)
    }
}
