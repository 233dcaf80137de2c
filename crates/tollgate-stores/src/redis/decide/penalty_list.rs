//! The list of clients with a penalty record, for operators.
//!
//! A record is stored beside the client's counters. The list is one sorted set, written in the background by the node that
//! saw the violation.

use std::sync::Arc;

use futures_util::future::join_all;
use redis::{Cmd, FromRedisValue, Value};
use tollgate::Timestamp;
use tollgate::counters::{PenalizedClient, PenaltyCharge};
use tollgate::identity::Subject;

use crate::redis::connection::error::Fault;
use crate::redis::script::keys::{self, Tag};
use crate::redis::topology::ShardMap;
use crate::redis::topology::background::BackgroundCalls;

const LIST: &str = "penalised";
/// Clients on the list. Beyond it those with the oldest violations are removed; their records stay.
const LISTED_MAX: isize = 100_000;
/// Clients with the latest violations that a listing considers.
const CONSIDERED_MAX: usize = 10_000;
/// Members read at once, and records read at once.
const PAGE: usize = 10_000;
const CONCURRENT_READS_MAX: usize = 128;

/// The list of clients with a penalty record.
pub(crate) struct PenaltyList {
    shards: Arc<ShardMap>,
    background: BackgroundCalls,
}

/// A member of the list.
pub(crate) struct Member {
    tag: Tag,
    /// The client as printed.
    client: String,
}

impl Member {
    pub(crate) fn new(penalty: &PenaltyCharge<'_>) -> Self {
        Member { tag: Tag::new(penalty.subject), client: penalty.client.to_string() }
    }

    pub(crate) fn subject(&self) -> Subject {
        self.tag.subject()
    }

    fn parse(text: &str) -> Option<Self> {
        let (tag, client) = text.split_once(':')?;
        Some(Member { tag: Tag::parse(tag)?, client: client.to_owned() })
    }

    fn text(&self) -> String {
        format!("{}:{}", self.tag.as_str(), self.client)
    }
}

impl PenaltyList {
    pub(crate) fn new(shards: Arc<ShardMap>, background: BackgroundCalls) -> Self {
        PenaltyList { shards, background }
    }

    /// Lists a client after a violation. If this fails, the next violation lists it; the penalty holds in any case.
    pub(crate) fn add(&self, penalty: &PenaltyCharge<'_>, now: Timestamp) {
        let home = self.shards.home();
        for command in add_commands(penalty, now) {
            self.background.send(home, command);
        }
    }

    /// Deletes a client's record. Returns whether there was one.
    pub(crate) async fn delete(&self, member: &Member) -> Result<bool, Fault> {
        let delete = Cmd::del(keys::record(&member.tag));
        let deleted = self.shards.admin(self.shards.shard_of(member.subject()), delete).await?;
        let remove = Cmd::zrem(keys::shared(LIST), member.text());
        self.shards.admin(self.shards.home(), remove).await?;
        Ok(deleted == Value::Int(1))
    }

    /// The members that print as `client`.
    pub(crate) async fn find(&self, client: &str) -> Result<Vec<Member>, Fault> {
        let mut found = Vec::new();
        for first in (0..).step_by(PAGE) {
            let page = self.members(first, PAGE).await?;
            if page.is_empty() {
                break;
            }
            found.extend(page.into_iter().filter(|member| member.client == client));
        }
        Ok(found)
    }

    /// Clients with a record among those with the latest violations, the longest cooldown first.
    pub(crate) async fn list(&self, count_max: usize, now: Timestamp) -> Result<Vec<PenalizedClient>, Fault> {
        let members = self.members(0, CONSIDERED_MAX).await?;
        let mut found = Vec::new();
        for members in members.chunks(CONCURRENT_READS_MAX) {
            let records = join_all(members.iter().map(|member| self.record(member))).await;
            for (member, record) in members.iter().zip(records) {
                let Some(record) = record? else { continue };
                let in_cooldown = record.cooldown_until > now;
                found.push(PenalizedClient {
                    client: member.client.clone(),
                    violations: record.violations,
                    cooldown_until: in_cooldown.then_some(record.cooldown_until),
                });
            }
        }
        found.sort_unstable_by(|a, b| {
            b.cooldown_until.cmp(&a.cooldown_until).then_with(|| a.client.cmp(&b.client))
        });
        found.truncate(count_max);
        Ok(found)
    }

    async fn record(&self, member: &Member) -> Result<Option<Record>, Fault> {
        let get = Cmd::get(keys::record(&member.tag));
        let reply = self.shards.admin(self.shards.shard_of(member.subject()), get).await?;
        Ok(Record::read(&reply))
    }

    /// Members, those with the latest violations first.
    async fn members(&self, first: usize, count: usize) -> Result<Vec<Member>, Fault> {
        self.background.drain().await;
        let mut range = redis::cmd("ZRANGE");
        range.arg(keys::shared(LIST)).arg(first).arg(first + count - 1).arg("REV");
        let reply = self.shards.admin(self.shards.home(), range).await?;
        let members = Vec::<String>::from_redis_value(reply).unwrap_or_default();
        Ok(members.iter().filter_map(|text| Member::parse(text)).collect())
    }
}

/// Adds a client to the list until its record expires, and removes expired and excess members.
pub(crate) fn add_commands(penalty: &PenaltyCharge<'_>, now: Timestamp) -> [Cmd; 3] {
    let expires = now + penalty.policy.detection_window + penalty.policy.cooldown_max;
    let list = keys::shared(LIST);
    [
        Cmd::zadd(&list, Member::new(penalty).text(), expires.as_micros()),
        Cmd::zrembyscore(&list, "-inf", now.as_micros()),
        Cmd::zremrangebyrank(&list, 0, -LISTED_MAX - 1),
    ]
}

/// A penalty record as the script stores it.
struct Record {
    violations: usize,
    cooldown_until: Timestamp,
}

impl Record {
    fn read(value: &Value) -> Option<Self> {
        let Value::BulkString(bytes) = value else { return None };
        let violations = usize::from(*bytes.first()?);
        let mut until = [0; 8];
        until[1..].copy_from_slice(bytes.get(8..15)?);
        Some(Record { violations, cooldown_until: Timestamp::from_micros(u64::from_be_bytes(until)) })
    }
}
