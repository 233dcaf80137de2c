//! The latest refusals: one entry for each client, rule, reason and endpoint, so that one busy client does not push out the others.

use std::cmp::Reverse;
use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// Refusals that are always kept.
const KEPT_MAX: usize = 512;

/// A refusal, and how often it repeated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecentRefusal {
    /// The last time, in microseconds.
    pub(crate) at_micros: u64,
    /// Refusals like this one, while the entry existed; at least.
    pub(crate) times: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tenant: Option<String>,
    pub(crate) identifier: String,
    pub(crate) endpoint: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rule: Option<String>,
    pub(crate) reason: String,
    /// Of the last time, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) retry_after: Option<u64>,
}

impl RecentRefusal {
    /// The refusals of several nodes, the latest first. Equal ones become one.
    pub(super) fn merge(refusals: impl IntoIterator<Item = RecentRefusal>) -> Vec<Self> {
        let mut merged: HashMap<_, Self> = HashMap::new();
        for refusal in refusals {
            let RecentRefusal { tenant, identifier, endpoint, rule, reason, .. } = refusal.clone();
            let entry = merged.entry((tenant, identifier, endpoint, rule, reason));
            entry
                .and_modify(|known| {
                    known.times += refusal.times;
                    if known.at_micros < refusal.at_micros {
                        (known.at_micros, known.retry_after) = (refusal.at_micros, refusal.retry_after);
                    }
                })
                .or_insert(refusal);
        }
        let mut merged: Vec<Self> = merged.into_values().collect();
        let order = |each: &Self| (Reverse(each.at_micros), each.identifier.clone(), each.endpoint.clone());
        merged.sort_by_cached_key(order);
        merged
    }
}

/// The latest refusals: at least [`KEPT_MAX`] of them, at most twice as many.
#[derive(Debug, Default)]
pub(super) struct RecentRefusals {
    /// By a keyed hash of what is equal in repeated refusals.
    kept: HashMap<u64, RecentRefusal>,
}

impl RecentRefusals {
    /// The entry of a refusal; `new` describes it if it is missing.
    pub(super) fn entry(&mut self, hash: u64, new: impl FnOnce() -> RecentRefusal) -> &mut RecentRefusal {
        if self.kept.len() >= 2 * KEPT_MAX && !self.kept.contains_key(&hash) {
            self.forget_oldest();
        }
        self.kept.entry(hash).or_insert_with(new)
    }

    pub(super) fn list(&self) -> Vec<RecentRefusal> {
        self.kept.values().cloned().collect()
    }

    /// Half at a time, so that few requests pay for it.
    fn forget_oldest(&mut self) {
        let mut times: Vec<u64> = self.kept.values().map(|each| each.at_micros).collect();
        let (_, newest_forgotten, _) = times.select_nth_unstable_by(KEPT_MAX, |one, other| other.cmp(one));
        self.kept.retain(|_, each| each.at_micros > *newest_forgotten);
    }
}
