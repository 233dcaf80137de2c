//! Who holds how much of a shard, and whether they may have more.
//!
//! Nobody's part is fixed: a tenant may hold sixteen times what is still free. Alone it gets 16/17 of a shard, two get
//! 16/33 each, and so on; whoever fills the table with invented clients leaves some of it to the others. Requests without
//! a tenant are together like one more.

use super::SHARDS;
use crate::identity::Tenant;

/// How many times what is free one of them may hold.
const FAIR_SHARE_FACTOR: usize = 16;

/// Who holds a counter: requests without a tenant, or tenants by their hash. As many as there are shards, so that it fits where
/// a key says which shard it is of.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(in crate::counters) struct TenantSlot(u8);

impl TenantSlot {
    const COUNT: u64 = SHARDS as u64;
    /// Requests without a tenant.
    pub(super) const COMMON: TenantSlot = TenantSlot(0);

    #[expect(clippy::cast_possible_truncation, reason = "any bits of a hash are as good as others")]
    pub(in crate::counters) fn of(tenant: Option<Tenant<'_>>) -> Self {
        let named = |tenant: Tenant<'_>| Self::numbered(tenant.subject().0 as u64 % (Self::COUNT - 1) + 1);
        tenant.map_or(Self::COMMON, named)
    }

    /// The holder with this number; higher ones go around.
    #[expect(clippy::cast_possible_truncation, reason = "there are at most 256")]
    pub(super) fn numbered(number: u64) -> Self {
        TenantSlot((number % Self::COUNT) as u8)
    }

    pub(super) fn number(self) -> u64 {
        self.0.into()
    }
}

/// What each holder has, in whatever unit is scarce. As long as the highest of them needs: where nobody names a tenant, one.
#[derive(Debug, Default)]
pub(super) struct TenantUsage(Vec<usize>);

impl TenantUsage {
    /// Whether the holder may have so much more, when so much is free in all.
    pub(super) fn may_take(&self, holder: TenantSlot, amount: usize, free: usize) -> bool {
        amount <= free && self.held(holder) + amount <= free.saturating_mul(FAIR_SHARE_FACTOR)
    }

    pub(super) fn held(&self, holder: TenantSlot) -> usize {
        self.0.get(usize::from(holder.0)).copied().unwrap_or(0)
    }

    pub(super) fn take(&mut self, holder: TenantSlot, amount: usize) {
        let position = usize::from(holder.0);
        if self.0.len() <= position {
            self.0.resize(position + 1, 0);
        }
        self.0[position] += amount;
    }

    pub(super) fn give_back(&mut self, holder: TenantSlot, amount: usize) {
        if let Some(held) = self.0.get_mut(usize::from(holder.0)) {
            *held = held.saturating_sub(amount);
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.capacity() * size_of::<usize>()
    }
}
