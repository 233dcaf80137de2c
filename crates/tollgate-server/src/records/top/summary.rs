//! The busiest clients, rules and endpoints of one node as lists, and how the lists of several nodes are merged.

use std::cmp::Reverse;
use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::recent::RecentRefusal;
use crate::auth::api_keys::contains_key;

/// What one node, or all of them, counted in about the last minute.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct TopSummary {
    /// Seconds since the first second that is counted.
    pub(crate) window_seconds: u64,
    pub(crate) requests: u64,
    pub(crate) refused: u64,
    /// Clients by requests.
    pub(crate) clients: TopList,
    /// Clients by refused requests.
    pub(crate) refused_clients: TopList,
    /// Deciding rules by requests: of all requests without a tenant, and again of each tenant.
    pub(crate) rules: TopList,
    /// Endpoints by requests: of all requests without a tenant, and again of each tenant.
    pub(crate) endpoints: TopList,
    /// The latest refusals of each client, the latest first.
    pub(crate) recent: Vec<RecentRefusal>,
}

/// The largest counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TopList {
    /// The largest first.
    pub(crate) entries: Vec<TopEntry>,
    /// The largest count that a key without an entry may have.
    pub(crate) absent_max: u64,
}

/// A key and its count: `count - error <= true count <= count`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TopEntry {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tenant: Option<String>,
    pub(crate) name: String,
    pub(crate) count: u64,
    pub(crate) error: u64,
    /// Refused requests: at least this many, at most `error` more.
    pub(crate) refused: u64,
}

/// Sums over the lists that have a key.
#[derive(Default)]
struct Sum {
    count: u64,
    error: u64,
    refused: u64,
    /// Of the lists that have the key.
    absent_max: u64,
    last_list: Option<usize>,
}

impl TopList {
    /// Adds the counts of lists that may have the same keys. A list without a key may have counted it up to its `absent_max` times.
    pub(crate) fn merge(lists: impl IntoIterator<Item = TopList>) -> Self {
        let mut sums: HashMap<(Option<String>, String), Sum> = HashMap::new();
        let mut absent_max = 0;
        for (number, list) in lists.into_iter().enumerate() {
            absent_max += list.absent_max;
            for entry in list.entries {
                let sum = sums.entry((entry.tenant, entry.name)).or_default();
                sum.count += entry.count;
                sum.error += entry.error;
                sum.refused += entry.refused;
                // Names with a secret are hidden, so that a list may have two entries of the same name.
                if sum.last_list.replace(number) != Some(number) {
                    sum.absent_max += list.absent_max;
                }
            }
        }
        let entry = |((tenant, name), sum): ((Option<String>, String), Sum)| {
            let absent = absent_max.saturating_sub(sum.absent_max);
            TopEntry {
                tenant,
                name,
                count: sum.count + absent,
                error: sum.error + absent,
                refused: sum.refused,
            }
        };
        TopList { entries: sums.into_iter().map(entry).collect(), absent_max }.sorted()
    }

    /// The first entries.
    pub(crate) fn shortened(mut self, entries_max: usize) -> Self {
        if let Some(first_cut) = self.entries.get(entries_max) {
            self.absent_max = self.absent_max.max(first_cut.count);
        }
        self.entries.truncate(entries_max);
        self
    }

    fn sorted(mut self) -> Self {
        self.entries.sort_by(|one, other| {
            let key = |entry: &TopEntry| (Reverse(entry.count), entry.error);
            key(one)
                .cmp(&key(other))
                .then_with(|| (&one.name, &one.tenant).cmp(&(&other.name, &other.tenant)))
        });
        self
    }
}

impl TopSummary {
    /// What several nodes counted together.
    pub(crate) fn merge(nodes: &[TopSummary]) -> Self {
        let total = |of: fn(&TopSummary) -> u64| nodes.iter().map(of).sum();
        let list =
            |of: fn(&TopSummary) -> &TopList| TopList::merge(nodes.iter().map(|node| of(node).clone()));
        TopSummary {
            window_seconds: nodes.iter().map(|node| node.window_seconds).max().unwrap_or(0),
            requests: total(|node| node.requests),
            refused: total(|node| node.refused),
            clients: list(|node| &node.clients),
            refused_clients: list(|node| &node.refused_clients),
            rules: list(|node| &node.rules),
            endpoints: list(|node| &node.endpoints),
            recent: RecentRefusal::merge(nodes.iter().flat_map(|node| node.recent.iter().cloned())),
        }
    }

    /// The summary with at most this many entries in each list.
    pub(crate) fn shortened(self, entries_max: usize, recent_max: usize) -> Self {
        let mut recent = self.recent;
        recent.truncate(recent_max);
        TopSummary {
            clients: self.clients.shortened(entries_max),
            refused_clients: self.refused_clients.shortened(entries_max),
            rules: self.rules.shortened(entries_max),
            endpoints: self.endpoints.shortened(entries_max),
            recent,
            ..self
        }
    }

    /// Replaces names with an API key in them.
    pub(super) fn hide_secrets(&mut self) {
        let lists = [&mut self.clients, &mut self.refused_clients, &mut self.rules, &mut self.endpoints];
        let names = lists.into_iter().flat_map(|list| list.entries.iter_mut().map(|entry| &mut entry.name));
        let recent =
            self.recent.iter_mut().flat_map(|refusal| [&mut refusal.identifier, &mut refusal.endpoint]);
        names.chain(recent).filter(|name| contains_key(name)).for_each(|name| "***".clone_into(name));
    }
}
