//! The latest refusals: one entry for each client, rule, reason and endpoint, so that one busy client does not push out the others.

use std::cmp::Reverse;
use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use tollgate::Timestamp;

use super::sketch::{KeyText, SketchKey};

/// A refusal, and how often it repeated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecentRefusal {
    /// The last time, in microseconds.
    pub(crate) at_micros: u64,
    /// Refusals like this one, while the entry existed.
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
        merged.sort_by(|one, other| {
            (Reverse(one.at_micros), &one.identifier).cmp(&(Reverse(other.at_micros), &other.identifier))
        });
        merged
    }
}

/// A refusal as it happens.
pub(super) struct NewRefusal<'a, C> {
    /// Of client, rule, reason and endpoint.
    pub(super) hash: u64,
    pub(super) at: Timestamp,
    pub(super) client: &'a C,
    pub(super) endpoint: &'a str,
    pub(super) rule: Option<&'a str>,
    pub(super) reason: &'static str,
    pub(super) retry_after: Option<u64>,
}

/// A bounded number of refusals; a new one replaces the oldest.
#[derive(Debug)]
pub(super) struct RecentRefusals {
    kept_max: usize,
    kept: Vec<KeptRefusal>,
}

#[derive(Debug, Default)]
struct KeptRefusal {
    hash: u64,
    at: Timestamp,
    times: u64,
    client: KeyText,
    endpoint: String,
    rule: String,
    reason: &'static str,
    retry_after: Option<u64>,
}

impl RecentRefusals {
    pub(super) const fn new(kept_max: usize) -> Self {
        RecentRefusals { kept_max, kept: Vec::new() }
    }

    pub(super) fn add<C: SketchKey>(&mut self, new: &NewRefusal<'_, C>) {
        let is_same = |kept: &KeptRefusal| kept.hash == new.hash && new.client.is(&kept.client);
        let kept = if let Some(known) = self.kept.iter().position(is_same) {
            &mut self.kept[known]
        } else {
            let kept = self.take_entry();
            (kept.hash, kept.times, kept.reason) = (new.hash, 0, new.reason);
            new.client.write(&mut kept.client);
            overwrite(&mut kept.endpoint, new.endpoint);
            overwrite(&mut kept.rule, new.rule.unwrap_or_default());
            kept
        };
        (kept.at, kept.retry_after) = (new.at, new.retry_after);
        kept.times += 1;
    }

    /// An unused entry, or the oldest.
    fn take_entry(&mut self) -> &mut KeptRefusal {
        if self.kept.len() < self.kept_max {
            self.kept.push(KeptRefusal::default());
        }
        let oldest = (0..self.kept.len()).min_by_key(|position| self.kept[*position].at);
        // There is at least the entry pushed above.
        &mut self.kept[oldest.unwrap_or(0)]
    }

    pub(super) fn list(&self) -> impl Iterator<Item = RecentRefusal> {
        let some = |text: &String| Some(text).filter(|text| !text.is_empty()).cloned();
        self.kept.iter().map(move |kept| RecentRefusal {
            at_micros: kept.at.as_micros(),
            times: kept.times,
            tenant: some(&kept.client.tenant),
            identifier: kept.client.name.clone(),
            endpoint: kept.endpoint.clone(),
            rule: some(&kept.rule),
            reason: kept.reason.to_owned(),
            retry_after: kept.retry_after,
        })
    }
}

/// Reuses the buffer.
pub(super) fn overwrite(buffer: &mut String, text: &str) {
    buffer.clear();
    buffer.push_str(text);
}
