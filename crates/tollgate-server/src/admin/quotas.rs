//! `/v1/admin/quotas`: tier, limits and usage of single users.

use std::collections::HashMap;

use serde::Serialize;
use tollgate::accounts::BlockTarget;
use tollgate::identity::InTenant;
use tollgate_stores::sql::{Item, ItemId, ItemKind, QuotaItem, StoredItem, UserUsage};
use utoipa::ToSchema;

use super::crud::{AdminResource, Operations, ParseItem, Writable};
use super::list_query::{self, ListFilter};
use super::view::{self, Revision};
use super::{change, parse};
use crate::http::Call;
use crate::http::error::ApiError;

const MICROS_PER_DAY: u64 = 86_400_000_000;

/// Limits and tier of a user.
#[derive(Serialize, ToSchema)]
pub(crate) struct QuotaInput {
    /// The user; may be omitted where the path contains it.
    user_id: Option<String>,
    /// Tenant of the user. The quota applies to requests with this tenant; without one, to requests without a tenant.
    tenant: Option<String>,
    /// Tier of the user.
    tier: Option<String>,
    /// Requests per hour; overrides the rules.
    requests_per_hour: Option<u32>,
    /// Requests per day; overrides the rules.
    requests_per_day: Option<u32>,
    /// Bucket capacity of these limits.
    burst: Option<u32>,
}

impl From<&QuotaItem> for QuotaInput {
    fn from(quota: &QuotaItem) -> Self {
        QuotaInput {
            user_id: Some(quota.user.clone()),
            tenant: quota.tenant.clone(),
            tier: quota.tier.clone(),
            requests_per_hour: quota.limits.requests_per_hour,
            requests_per_day: quota.limits.requests_per_day,
            burst: quota.limits.burst,
        }
    }
}

/// Tier, limits and usage of a user.
#[derive(Serialize, ToSchema)]
pub(crate) struct QuotaView {
    #[serde(flatten)]
    quota: QuotaInput,
    /// Whether the user is blocked; see `/v1/admin/blocks`.
    blocked: bool,
    /// Reason of the block.
    block_reason: Option<String>,
    /// End of the block, RFC 3339; null if permanent or not blocked.
    blocked_until: Option<String>,
    /// Requests on the current UTC day.
    requests_today: u64,
    /// Requests in the current UTC month.
    requests_month: u64,
    /// Time of the last request, RFC 3339.
    last_request_at: Option<String>,
    /// Requests refused because a limit was exceeded.
    exceeded_count: u64,
    /// When `requests_today` starts again at 0, RFC 3339: the next midnight UTC. `requests_month` does on the first of a month.
    quota_reset_at: String,
    #[serde(flatten)]
    revision: Revision,
}

pub(crate) struct Quotas;

impl AdminResource for Quotas {
    const KIND: ItemKind = ItemKind::Quota;
    const ID_FIELD: &'static str = "user_id";
    const FILTERS: &'static [ListFilter] = &[
        list_query::PREFIX,
        list_query::TENANT,
        list_query::TIER,
        list_query::BLOCKED,
        list_query::LAST_REQUEST_AFTER,
        list_query::LAST_REQUEST_BEFORE,
    ];
    const IN_TENANT: bool = true;
    const OPERATIONS: Operations = Operations {
        noun: "quota",
        id: "The user.",
        create: "Creates the quota of a user.",
        put: "Creates or replaces the quota of a user.",
        delete: "Deletes the quota and the usage totals of a user. The rules apply again.",
        create_conflict: "The user already has a quota.",
        put_creates: true,
    };

    type Input = QuotaInput;
    type View = QuotaView;
    type Usage = HashMap<ItemId, UserUsage>;

    async fn usage(call: &Call, stored: &[StoredItem]) -> Result<Self::Usage, ApiError> {
        let quotas = stored.iter().filter_map(|stored| match &stored.item {
            Item::Quota(quota) => Some(InTenant::new(quota.tenant.as_deref(), &*quota.user)),
            _ => None,
        });
        let users: Vec<InTenant<'_, &str>> = quotas.collect();
        let usage = change::database(call)?.users_usage(&users).await?;
        let id = |usage: &UserUsage| ItemId::Quota { tenant: usage.tenant.clone(), user: usage.user.clone() };
        Ok(usage.into_iter().map(|usage| (id(&usage), usage)).collect())
    }

    fn view(call: &Call, stored: &StoredItem, usage: &Self::Usage) -> Option<QuotaView> {
        let Item::Quota(quota) = &stored.item else { return None };
        let now = call.app.now();
        let day = u32::try_from(now.as_micros() / MICROS_PER_DAY).unwrap_or(u32::MAX);
        let usage = usage.get(&stored.item.id());
        let rules = call.app.limiter().rules();
        let block = rules
            .accounts()
            .block(InTenant::new(quota.tenant.as_deref(), BlockTarget::User(&quota.user)), now);
        Some(QuotaView {
            quota: quota.into(),
            blocked: block.is_some(),
            block_reason: block.map(|block| block.reason.to_owned()),
            blocked_until: block
                .and_then(|block| block.until)
                .map(|until| view::timestamp(until.as_micros())),
            requests_today: usage.map_or(0, |usage| usage.requests_on(day)),
            requests_month: usage.map_or(0, |usage| usage.requests_in_month_of(day)),
            last_request_at: usage.map(|usage| view::timestamp(usage.last_request_at_micros)),
            exceeded_count: usage.map_or(0, |usage| usage.exceeded_count),
            quota_reset_at: view::timestamp((u64::from(day) + 1) * MICROS_PER_DAY),
            revision: Revision::of(stored),
        })
    }
}

impl Writable for Quotas {
    const PARSE: ParseItem = parse::quota;
}
