//! Clients on record: what is kept of their conduct, and the list by which people find them.
//!
//! A record lives beside the client's counters. The list of those on record is one sorted set, written by the node that
//! saw the violation; the request does not wait for that.

use futures_util::future::join_all;
use redis::{Cmd, FromRedisValue, Value};
use tollgate::Timestamp;
use tollgate::counters::{PenalizedClient, PenaltyCharge};
use tollgate::identity::Subject;

use crate::redis::Store;
use crate::redis::connection::error::Fault;
use crate::redis::fleet::resets::Listed;
use crate::redis::script::keys::{self, Tag};

/// The list of clients on record.
const LIST: &str = "penalised";
/// So many are on it at most: those whose last violation is the longest ago are struck off. Their records stay.
const LISTED_MAX: isize = 100_000;
/// Of so many with the latest violations people are told.
const LOOKED_AT_MAX: usize = 10_000;
/// Members that are read at once, and records that are asked for at once.
const PAGE: usize = 10_000;
const AT_ONCE: usize = 128;

/// A member of the list: whose record it is, and the client as people know it.
struct Member {
    tag: Tag,
    client: String,
}

impl Member {
    fn parse(text: &str) -> Option<Self> {
        let (tag, client) = text.split_once(':')?;
        Some(Member { tag: Tag::parse(tag)?, client: client.to_owned() })
    }

    fn text(&self) -> String {
        format!("{}:{}", self.tag.as_str(), self.client)
    }
}

impl Store {
    /// Puts a client on the list until nothing can be held against it any more. Once per violation; if it fails the
    /// penalty holds all the same, and the client is listed with its next violation.
    pub(crate) fn list_record(&self, penalty: &PenaltyCharge<'_>, now: Timestamp) {
        let home = self.home();
        for command in listing(penalty, now) {
            self.background.send(home, command);
        }
    }

    /// Forgets a client's record.
    pub(crate) async fn forget_record(&self, subject: Subject, client: &str) -> Result<bool, Fault> {
        self.forget_member(&Member { tag: Tag::new(subject), client: client.to_owned() }).await
    }

    async fn forget_member(&self, member: &Member) -> Result<bool, Fault> {
        let mut delete = redis::cmd("DEL");
        delete.arg(keys::record(&member.tag));
        let gone = self.admin(self.shards.shard(&member.tag), delete).await?;
        let list = keys::shared(LIST);
        let mut strike = redis::cmd("ZREM");
        strike.arg(&list).arg(member.text());
        self.admin(self.home(), strike).await?;
        Ok(gone == Value::Int(1))
    }

    /// Clears the record of the client that prints so.
    pub(crate) async fn pardon(&self, client: &str) -> Result<bool, Fault> {
        let mut pardoned = false;
        for first in (0..).step_by(PAGE) {
            let page = self.members(first, PAGE).await?;
            for member in page.iter().filter(|member| member.client == client) {
                pardoned |= self.forget_member(member).await?;
                self.forget_everywhere(&[Listed::nowhere(member.tag.subject().0)]).await;
            }
            if page.is_empty() {
                break;
            }
        }
        Ok(pardoned)
    }

    /// Clients on record, the longest kept out first: of those with the latest violations.
    pub(crate) async fn penalized_clients(
        &self,
        count_max: usize,
        now: Timestamp,
    ) -> Result<Vec<PenalizedClient>, Fault> {
        let members = self.members(0, LOOKED_AT_MAX).await?;
        let mut found = Vec::new();
        for some in members.chunks(AT_ONCE) {
            let records = join_all(some.iter().map(|member| self.record(member))).await;
            for (member, record) in some.iter().zip(records) {
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
        let mut get = redis::cmd("GET");
        get.arg(keys::record(&member.tag));
        let value = self.admin(self.shards.shard(&member.tag), get).await?;
        Ok(Record::read(&value))
    }

    /// Members of the list, those with the latest violations first.
    async fn members(&self, first: usize, count: usize) -> Result<Vec<Member>, Fault> {
        self.background.settled().await;
        let list = keys::shared(LIST);
        let mut range = redis::cmd("ZRANGE");
        range.arg(&list).arg(first).arg(first + count - 1).arg("REV");
        let value = self.admin(self.home(), range).await?;
        let texts = Vec::<String>::from_redis_value(value).unwrap_or_default();
        Ok(texts.iter().filter_map(|text| Member::parse(text)).collect())
    }
}

/// The commands that put a client on the list, and take those off it against whom nothing can be held any more.
pub(crate) fn listing(penalty: &PenaltyCharge<'_>, now: Timestamp) -> [Cmd; 3] {
    let policy = penalty.policy;
    let forgotten = now + policy.detection_window + policy.cooldown_max;
    let member = Member { tag: Tag::new(penalty.subject), client: penalty.client.to_string() };
    let list = keys::shared(LIST);
    let mut add = redis::cmd("ZADD");
    add.arg(&list).arg(forgotten.as_micros()).arg(member.text());
    let mut tidy = redis::cmd("ZREMRANGEBYSCORE");
    tidy.arg(&list).arg("-inf").arg(now.as_micros());
    let mut bound = redis::cmd("ZREMRANGEBYRANK");
    bound.arg(&list).arg(0).arg(-LISTED_MAX - 1);
    [add, tidy, bound]
}

/// A record as the script writes it.
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
