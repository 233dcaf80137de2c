//! Clients on record in a shard: who was refused, and who is kept out for it.

use super::Key;
use super::fair_share::TenantSlot;
use super::shard::{PenaltyEntry, Shard};
use crate::counters::{PenalizedClient, PenaltyCharge};
use crate::penalties::PenaltyState;
use crate::time::{Span, Timestamp};

impl Shard {
    pub(super) fn cooldown_remaining(
        &self,
        key: Key,
        penalty: &PenaltyCharge<'_>,
        now: Timestamp,
    ) -> Option<Span> {
        let entry = self.penalties.find(key.hash(), |entry| entry.key == key)?;
        entry.conduct.cooldown_remaining(penalty.policy, now)
    }

    /// Notes a refusal; how long the client is kept out for it, if it is.
    pub(super) fn note_refusal(
        &mut self,
        key: Key,
        holder: TenantSlot,
        penalty: &PenaltyCharge<'_>,
        window: Span,
        now: Timestamp,
    ) -> Option<Span> {
        if let Some(entry) = self.penalties.find_mut(key.hash(), |entry| entry.key == key) {
            entry.conduct.refused(penalty.policy, window, now);
            entry.expires_at = entry.conduct.expires_at(penalty.policy);
            return entry.conduct.cooldown_remaining(penalty.policy, now);
        }
        if !self.has_room_for_record(holder) {
            self.drop_records(|entry| entry.expires_at <= now);
        }
        if !self.has_room_for_record(holder) {
            return None;
        }
        let mut conduct = PenaltyState::default();
        conduct.refused(penalty.policy, window, now);
        let cooldown = conduct.cooldown_remaining(penalty.policy, now);
        let expires_at = conduct.expires_at(penalty.policy);
        let client = penalty.client.to_string().into_boxed_str();
        self.adopt_penalty(PenaltyEntry { key, holder, client, conduct, expires_at });
        cooldown
    }

    fn has_room_for_record(&self, holder: TenantSlot) -> bool {
        self.held.penalties.may_take(holder, 1, self.penalties_max.saturating_sub(self.penalties.len()))
    }

    /// Drops records. Whether there were such.
    pub(super) fn drop_records(&mut self, mut is_dropped: impl FnMut(&PenaltyEntry) -> bool) -> bool {
        let before = self.penalties.len();
        self.penalties.retain(|entry| {
            let dropped = is_dropped(entry);
            if dropped {
                self.held.penalties.give_back(entry.holder, 1);
            }
            !dropped
        });
        self.penalties.len() < before
    }

    pub(super) fn pardon(&mut self, key: Key) {
        if let Ok(found) = self.penalties.find_entry(key.hash(), |entry| entry.key == key) {
            let (entry, _) = found.remove();
            self.held.penalties.give_back(entry.holder, 1);
        }
    }

    pub(super) fn pardon_by_name(&mut self, client: &str) -> bool {
        self.drop_records(|entry| *entry.client == *client)
    }

    pub(super) fn penalized_clients(&self, now: Timestamp) -> Vec<PenalizedClient> {
        let on_record = self.penalties.iter().filter(|entry| entry.expires_at > now);
        on_record
            .map(|entry| PenalizedClient {
                client: entry.client.to_string(),
                violations: entry.conduct.violations.len(),
                cooldown_until: (entry.conduct.cooldown_until > now).then_some(entry.conduct.cooldown_until),
            })
            .collect()
    }

    /// Takes a record in that is new here, or saved.
    pub(super) fn adopt_penalty(&mut self, entry: PenaltyEntry) {
        self.held.penalties.take(entry.holder, 1);
        self.penalties.insert_unique(entry.key.hash(), entry, |entry| entry.key.hash());
    }
}
