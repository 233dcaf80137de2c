//! Reports that nodes publish for each other. A report expires soon after its node stops publishing.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::{Cmd, FromRedisValue, SetExpiry, SetOptions};

use super::membership::{id_of, list_nodes};
use crate::redis::connection::error::Fault;
use crate::redis::script::keys;
use crate::redis::topology::ShardMap;

/// Reports of the other nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeReports {
    /// One for each node that published a report.
    pub reports: Vec<Vec<u8>>,
    /// Other nodes without a report.
    pub missing: usize,
}

/// Publishes the report of this node, and reads those of the others.
pub(super) struct ReportBoard {
    shards: Arc<ShardMap>,
    /// As registered.
    node: String,
}

impl ReportBoard {
    pub(super) fn new(shards: Arc<ShardMap>, node: &str) -> Self {
        ReportBoard { shards, node: node.to_owned() }
    }

    pub(super) async fn publish(&self, report: &[u8], ttl: Duration) -> Result<(), Fault> {
        let expiry = SetExpiry::PX(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
        let options = SetOptions::default().with_expiration(expiry);
        let set = Cmd::set_options(key(&self.node), report, options);
        self.shards.admin(self.shards.home(), set).await.map(drop)
    }

    pub(super) async fn read_others(&self) -> Result<NodeReports, Fault> {
        let home = self.shards.home();
        let nodes = self.shards.admin(home, list_nodes()).await?;
        let mut nodes: Vec<String> = Vec::from_redis_value(nodes).unwrap_or_default();
        nodes.retain(|node| *node != self.node);
        // One reply each, so that no reply is as large as all reports.
        let reports = join_all(nodes.iter().map(|node| self.shards.admin(home, Cmd::get(key(node))))).await;
        let mut read = NodeReports::default();
        for report in reports {
            match Option::<Vec<u8>>::from_redis_value(report?) {
                Ok(Some(report)) => read.reports.push(report),
                _ => read.missing += 1,
            }
        }
        Ok(read)
    }
}

fn key(node: &str) -> String {
    keys::shared(&format!("report:{}", id_of(node)))
}
