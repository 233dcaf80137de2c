//! Overrides that this node is setting, and those to be compared with the database afterwards.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;

/// The user and endpoint of an override.
pub(super) type OverrideKey = (Box<str>, Box<str>);

/// Resolves races between a request that sets an override and the sync task that applies the same change.
#[derive(Default)]
pub(super) struct OverrideTracker {
    /// Being set by this node right now.
    in_progress: Mutex<HashSet<OverrideKey>>,
    /// Applied by this node and not yet compared with the database; how often that was requested.
    unverified: Mutex<HashMap<OverrideKey, u64>>,
}

impl OverrideTracker {
    pub(super) fn begin(&self, user: &str, endpoint: &str) -> OverrideGuard<'_> {
        let key: OverrideKey = (user.into(), endpoint.into());
        self.in_progress.lock().insert(key.clone());
        OverrideGuard { tracker: self, key }
    }

    pub(super) fn is_in_progress(&self, user: &str, endpoint: &str) -> bool {
        // At most a few entries.
        self.in_progress.lock().iter().any(|(of, on)| **of == *user && **on == *endpoint)
    }

    pub(super) fn verify_later(&self, user: &str, endpoint: &str) {
        *self.unverified.lock().entry((user.into(), endpoint.into())).or_default() += 1;
    }

    pub(super) fn unverified(&self) -> HashMap<OverrideKey, u64> {
        self.unverified.lock().clone()
    }

    /// Removes an override that was verified, unless verification was requested again since.
    pub(super) fn verified(&self, key: &OverrideKey, requested: u64) {
        let mut unverified = self.unverified.lock();
        if unverified.get(key) == Some(&requested) {
            unverified.remove(key);
        }
    }
}

/// An override that this node is setting.
pub(crate) struct OverrideGuard<'a> {
    tracker: &'a OverrideTracker,
    key: OverrideKey,
}

impl Drop for OverrideGuard<'_> {
    fn drop(&mut self) {
        self.tracker.in_progress.lock().remove(&self.key);
    }
}
