//! The penalty records of a shard.

use hashbrown::HashTable;

use super::Key;
use super::fair_share::{TenantSlot, TenantUsage};
use crate::counters::{PenalizedClient, PenaltyCharge};
use crate::penalties::PenaltyState;
use crate::time::{Span, Timestamp};

/// One penalty record.
pub(super) struct PenaltyEntry {
    pub(super) key: Key,
    pub(super) tenant: TenantSlot,
    pub(super) client: Box<str>,
    pub(super) state: PenaltyState,
    pub(super) expires_at: Timestamp,
}

/// The penalty records of a shard, bounded in total and per tenant.
pub(super) struct PenaltyTable {
    entries: HashTable<PenaltyEntry>,
    entries_max: usize,
    usage: TenantUsage,
}

impl PenaltyTable {
    pub(super) fn new(entries_max: usize) -> Self {
        PenaltyTable { entries: HashTable::new(), entries_max, usage: TenantUsage::default() }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &PenaltyEntry> {
        self.entries.iter()
    }

    pub(super) fn bytes(&self) -> usize {
        let outside = |entry: &PenaltyEntry| entry.client.len() + entry.state.violations.capacity() * 8;
        let outside: usize = self.entries.iter().map(outside).sum();
        self.entries.allocation_size() + outside + self.usage.bytes()
    }

    pub(super) fn cooldown_remaining(
        &self,
        key: Key,
        penalty: &PenaltyCharge<'_>,
        now: Timestamp,
    ) -> Option<Span> {
        let entry = self.entries.find(key.hash(), |entry| entry.key == key)?;
        entry.state.cooldown_remaining(penalty.policy, now)
    }

    /// Records a refusal. Returns the cooldown, if it starts one. A new client is not recorded when the table is full.
    pub(super) fn record_refusal(
        &mut self,
        key: Key,
        tenant: TenantSlot,
        penalty: &PenaltyCharge<'_>,
        window: Span,
        now: Timestamp,
    ) -> Option<Span> {
        if let Some(entry) = self.entries.find_mut(key.hash(), |entry| entry.key == key) {
            entry.state.record_refusal(penalty.policy, window, now);
            entry.expires_at = entry.state.expires_at(penalty.policy);
            return entry.state.cooldown_remaining(penalty.policy, now);
        }
        if !self.has_capacity(tenant) {
            self.drop_expired(now);
        }
        if !self.has_capacity(tenant) {
            return None;
        }
        let mut state = PenaltyState::default();
        state.record_refusal(penalty.policy, window, now);
        let cooldown = state.cooldown_remaining(penalty.policy, now);
        let expires_at = state.expires_at(penalty.policy);
        let client = penalty.client.to_string().into_boxed_str();
        self.insert(PenaltyEntry { key, tenant, client, state, expires_at });
        cooldown
    }

    fn has_capacity(&self, tenant: TenantSlot) -> bool {
        self.usage.may_add(tenant, 1, self.entries_max.saturating_sub(self.entries.len()))
    }

    /// Adds a record that is new or was read from a snapshot.
    pub(super) fn insert(&mut self, entry: PenaltyEntry) {
        self.usage.add(entry.tenant, 1);
        self.entries.insert_unique(entry.key.hash(), entry, |entry| entry.key.hash());
    }

    pub(super) fn remove(&mut self, key: Key) {
        if let Ok(found) = self.entries.find_entry(key.hash(), |entry| entry.key == key) {
            let (entry, _) = found.remove();
            self.usage.subtract(entry.tenant, 1);
        }
    }

    /// Removes the records of a client by its displayed name. Returns whether there were any.
    pub(super) fn remove_client(&mut self, client: &str) -> bool {
        self.drop_where(|entry| *entry.client == *client)
    }

    pub(super) fn drop_expired(&mut self, now: Timestamp) {
        self.drop_where(|entry| entry.expires_at <= now);
    }

    fn drop_where(&mut self, mut is_dropped: impl FnMut(&PenaltyEntry) -> bool) -> bool {
        let before = self.entries.len();
        self.entries.retain(|entry| {
            let dropped = is_dropped(entry);
            if dropped {
                self.usage.subtract(entry.tenant, 1);
            }
            !dropped
        });
        self.entries.len() < before
    }

    pub(super) fn penalized_clients(&self, now: Timestamp) -> Vec<PenalizedClient> {
        let active = self.entries.iter().filter(|entry| entry.expires_at > now);
        let listed = active.map(|entry| PenalizedClient {
            client: entry.client.to_string(),
            violations: entry.state.violations.len(),
            cooldown_until: (entry.state.cooldown_until > now).then_some(entry.state.cooldown_until),
        });
        listed.collect()
    }

    #[cfg(test)]
    pub(super) fn used_by(&self, tenant: TenantSlot) -> usize {
        self.usage.used(tenant)
    }
}
