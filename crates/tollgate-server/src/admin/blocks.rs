//! `/v1/admin/blocks`: clients whose requests are refused regardless of limits.

use serde::Serialize;
use serde_json::{Map, Value as Json};
use tollgate::Timestamp;
use tollgate::config::TableReader;
use tollgate_stores::sql::{BlockItem, Item, ItemId, ItemKind, StoredItem};
use utoipa::ToSchema;

use super::crud::{AdminResource, Operations, Writable};
use super::list_query::{self, ListFilter};
use super::parse;
use super::schema::BlockInput;
use super::view::{self, Revision};
use crate::http::Call;
use crate::http::error::{ApiError, Code};

/// A blocked client.
#[derive(Serialize, ToSchema)]
pub(crate) struct BlockView {
    /// The client: `user:alice`.
    client: String,
    /// Reason, shown to the client.
    reason: String,
    /// End of the block, RFC 3339; null if permanent.
    until: Option<String>,
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
        &[list_query::PREFIX, list_query::BLOCK_KIND, list_query::ACTIVE_BLOCKS];
    const OPERATIONS: Operations = Operations {
        noun: "block",
        id: "The client: `user:alice`.",
        list: "Lists blocks, in force or expired, by kind and client.",
        create: "Blocks a client.",
        read: "Returns the block of a client.",
        put: "Blocks a client, or replaces its block.",
        delete: "Unblocks a client.",
        create_conflict: "The client is already blocked.",
        put_creates: true,
    };

    type Item = BlockItem;
    type Input = BlockInput;
    type View = BlockView;
    type Usage = ();

    fn parse_id(text: String) -> Result<ItemId, ApiError> {
        let (kind, subject) = parse::parse_client(&text)
            .map_err(|reason| ApiError::field(Code::InvalidInput, Self::ID_FIELD, reason))?;
        Ok(ItemId::Block { kind, subject })
    }

    fn item(item: &Item) -> Option<&BlockItem> {
        if let Item::Block(block) = item { Some(block) } else { None }
    }

    fn view(call: &Call, stored: &StoredItem, block: &BlockItem, (): &()) -> BlockView {
        let now = call.app.now().as_micros();
        BlockView {
            client: view::client(block),
            reason: block.reason.clone(),
            until: block.until_micros.map(view::timestamp),
            active: block.until_micros.is_none_or(|until| now < until),
            revision: Revision::of(stored),
        }
    }
}

impl Writable for Blocks {
    fn parse(fields: &mut TableReader<'_, '_>, _: &Map<String, Json>, now: Timestamp) -> Option<Item> {
        parse::block(fields, now)
    }
}
