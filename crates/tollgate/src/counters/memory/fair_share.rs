//! The share of a shard that each tenant may use.
//!
//! A tenant may use up to sixteen times what is still free. Alone it gets 16/17 of a shard, two get 16/33 each, and so
//! on. A tenant that floods the table with fake client ids therefore leaves space for the others. Requests without a
//! tenant count as one more tenant.

use super::SHARDS;
use crate::identity::Tenant;

/// How many times the free space one tenant may use.
const FAIR_SHARE_FACTOR: usize = 16;

/// The tenant that an entry is accounted to, by hash. There are as many slots as shards, so that the slot fits into the
/// bits of a key that select the shard.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(in crate::counters) struct TenantSlot(u8);

impl TenantSlot {
    const COUNT: u64 = SHARDS as u64;
    /// Requests without a tenant.
    pub(super) const NONE: TenantSlot = TenantSlot(0);

    #[expect(clippy::cast_possible_truncation, reason = "any bits of the hash will do")]
    pub(in crate::counters) fn of(tenant: Option<Tenant<'_>>) -> Self {
        let slot = |tenant: Tenant<'_>| Self::from_number(tenant.subject().0 as u64 % (Self::COUNT - 1) + 1);
        tenant.map_or(Self::NONE, slot)
    }

    /// The slot with this number, modulo the number of slots.
    #[expect(clippy::cast_possible_truncation, reason = "there are at most 256 slots")]
    pub(super) fn from_number(number: u64) -> Self {
        TenantSlot((number % Self::COUNT) as u8)
    }

    pub(super) fn number(self) -> u64 {
        self.0.into()
    }
}

/// How much each tenant uses, in entries or bytes. As long as the highest slot in use.
#[derive(Debug, Default)]
pub(super) struct TenantUsage(Vec<usize>);

impl TenantUsage {
    /// Whether the tenant may use `amount` more when `free` is left.
    pub(super) fn may_add(&self, tenant: TenantSlot, amount: usize, free: usize) -> bool {
        amount <= free && self.used(tenant) + amount <= free.saturating_mul(FAIR_SHARE_FACTOR)
    }

    pub(super) fn used(&self, tenant: TenantSlot) -> usize {
        self.0.get(usize::from(tenant.0)).copied().unwrap_or(0)
    }

    pub(super) fn add(&mut self, tenant: TenantSlot, amount: usize) {
        let position = usize::from(tenant.0);
        if self.0.len() <= position {
            self.0.resize(position + 1, 0);
        }
        self.0[position] += amount;
    }

    pub(super) fn subtract(&mut self, tenant: TenantSlot, amount: usize) {
        if let Some(used) = self.0.get_mut(usize::from(tenant.0)) {
            *used = used.saturating_sub(amount);
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.capacity() * size_of::<usize>()
    }
}
