//! `/v1/admin/blocks`: clients whose requests are refused regardless of limits.

use serde::Serialize;
use tollgate_stores::sql::{BlockItem, Item, ItemFilter, ItemId, ItemKind, StoredItem};
use utoipa::ToSchema;

use super::crud::{AdminResource, Operations, ParseItem, Writable};
use super::list_query::{self, ListFilter};
use super::parse;
use super::view::{self, Revision};
use crate::http::Call;
use crate::http::error::{ApiError, Code};

/// A blocked client, as an import accepts it: without `for`, which would start over with each import.
#[derive(Serialize, ToSchema)]
pub(crate) struct BlockProperties {
    /// `user:alice`, `api_key:<id>`, `tenant:acme`, `login:bob` or `ip:192.0.2.0/24`; may be omitted where the path contains it.
    client: Option<String>,
    /// Tenant of a user, login or address. An address without a tenant is blocked in every tenant; other clients only without one.
    tenant: Option<String>,
    /// Reason, shown to the client; at most 1024 bytes.
    reason: Option<String>,
    /// End of the block, RFC 3339; permanent if it has none.
    until: Option<String>,
}

impl From<&BlockItem> for BlockProperties {
    fn from(block: &BlockItem) -> Self {
        BlockProperties {
            client: Some(format!("{}:{}", block.kind.as_str(), block.subject)),
            tenant: block.tenant.clone(),
            reason: Some(block.reason.clone()),
            until: block.until_micros.map(view::timestamp),
        }
    }
}

/// A client to block.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what the parser accepts")]
pub(crate) struct BlockInput {
    #[serde(flatten)]
    properties: BlockProperties,
    /// Duration of the block: `"1h"`.
    r#for: Option<String>,
}

/// A blocked client.
#[derive(Serialize, ToSchema)]
pub(crate) struct BlockView {
    #[serde(flatten)]
    properties: BlockProperties,
    /// Whether the block is in force.
    active: bool,
    #[serde(flatten)]
    revision: Revision,
}

pub(crate) struct Blocks;

impl AdminResource for Blocks {
    const KIND: ItemKind = ItemKind::Block;
    const ID_FIELD: &'static str = "client";
    const FILTERS: &'static [ListFilter] =
        &[list_query::PREFIX, list_query::TENANT, list_query::BLOCK_KIND, list_query::ACTIVE_BLOCKS];
    const IN_TENANT: bool = true;
    const OPERATIONS: Operations = Operations {
        noun: "block",
        id: "The client: `user:alice`.",
        create: "Blocks a client.",
        put: "Blocks a client, or replaces its block.",
        delete: "Unblocks a client.",
        create_conflict: "The client is already blocked.",
        put_creates: true,
    };

    type Input = BlockInput;
    type View = BlockView;
    type Usage = ();

    fn parse_id(text: &str, tenant: Option<&str>) -> Result<ItemId, ApiError> {
        let (kind, subject) = parse::parse_client(text)
            .map_err(|reason| ApiError::field(Code::InvalidInput, Self::ID_FIELD, reason))?;
        Ok(ItemId::Block { tenant: tenant.map(str::to_owned), kind, subject })
    }

    fn matches(stored: &StoredItem, filter: &ItemFilter) -> bool {
        let Item::Block(block) = &stored.item else { return false };
        filter.prefix.as_ref().is_none_or(|prefix| block.subject.starts_with(&**prefix))
            && (filter.tenants.is_empty()
                || block.tenant.as_ref().is_some_and(|own| filter.tenants.contains(own)))
            && filter.block_kind.is_none_or(|kind| block.kind == kind)
            && filter.active_at_micros.is_none_or(|now| block.until_micros.is_none_or(|until| now < until))
    }

    fn view(call: &Call, stored: &StoredItem, (): &()) -> Option<BlockView> {
        let Item::Block(block) = &stored.item else { return None };
        let now = call.app.now().as_micros();
        Some(BlockView {
            properties: block.into(),
            active: block.until_micros.is_none_or(|until| now < until),
            revision: Revision::of(stored),
        })
    }
}

impl Writable for Blocks {
    const PARSE: ParseItem = parse::block;
}
