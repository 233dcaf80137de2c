//! The slot map of a cluster: which master owns which slot.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{FromRedisValue, Value};

use crate::redis::connection::error::Fault;
use crate::redis::connection::server::Server;
use crate::redis::script::keys::SLOTS;
use crate::redis::topology::LeaseAction;

const QUERY_TIMEOUT: Duration = Duration::from_millis(500);
const UNASSIGNED: u16 = u16::MAX;

/// Which master owns which slot.
pub(super) struct SlotMap {
    pub(super) masters: Vec<Arc<Server>>,
    /// Per slot an index into `masters`, or `UNASSIGNED`.
    owner: Box<[u16]>,
    /// The reply that the map was built from.
    pub(super) ranges: Vec<SlotRange>,
}

/// One range of `CLUSTER SLOTS` and its master.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SlotRange {
    first: u16,
    last: u16,
    address: String,
}

impl SlotMap {
    pub(super) fn empty() -> Self {
        SlotMap { masters: Vec::new(), owner: vec![UNASSIGNED; SLOTS.into()].into(), ranges: Vec::new() }
    }

    pub(super) fn new(ranges: Vec<SlotRange>, server: impl Fn(&str) -> Option<Arc<Server>>) -> Self {
        let mut map = SlotMap::empty();
        for SlotRange { first, last, address } in &ranges {
            let Some(server) = server(address) else { continue };
            let index = map.index_of(server);
            for slot in *first..=(*last).min(SLOTS - 1) {
                map.owner[usize::from(slot)] = index;
            }
        }
        map.ranges = ranges;
        map
    }

    pub(super) fn owner(&self, slot: u32) -> Option<Arc<Server>> {
        let owner = self.owner.get(slot as usize)?;
        self.masters.get(usize::from(*owner)).cloned()
    }

    /// Slots that the next map assigns differently. If the old owner is still a master, it migrated the slot; otherwise a
    /// replica was promoted.
    pub(super) fn changes(&self, next: &SlotMap) -> Vec<(u32, LeaseAction)> {
        let action = |old: u16, new: u16| match (self.name(old), next.name(new)) {
            (old, new) if old == new => LeaseAction::Keep,
            (Some(old), Some(_)) if next.masters.iter().any(|master| master.name() == old) => {
                LeaseAction::Return
            }
            _ => LeaseAction::Revoke,
        };
        let actions = self.owner.iter().zip(&next.owner).map(|(old, new)| action(*old, *new));
        (0..).zip(actions).filter(|(_, action)| *action != LeaseAction::Keep).collect()
    }

    pub(super) fn unassigned(&self) -> usize {
        self.owner.iter().filter(|owner| **owner == UNASSIGNED).count()
    }

    fn name(&self, owner: u16) -> Option<&str> {
        self.masters.get(usize::from(owner)).map(|server| server.name())
    }

    fn index_of(&mut self, server: Arc<Server>) -> u16 {
        let known = self.masters.iter().position(|master| Arc::ptr_eq(master, &server));
        let index = known.unwrap_or_else(|| {
            self.masters.push(server);
            self.masters.len() - 1
        });
        u16::try_from(index).unwrap_or(UNASSIGNED)
    }
}

impl FromRedisValue for SlotRange {
    fn from_redis_value(value: Value) -> Result<Self, redis::ParsingError> {
        let invalid = || redis::ParsingError::from("not a range of slots".to_owned());
        let Value::Array(items) = value else { return Err(invalid()) };
        let mut items = items.into_iter();
        let mut next = || items.next().ok_or_else(invalid);
        let (first, last) = (u16::from_redis_value(next()?)?, u16::from_redis_value(next()?)?);
        let Value::Array(master) = next()? else { return Err(invalid()) };
        let mut master = master.into_iter();
        let host =
            Option::<String>::from_redis_value(master.next().ok_or_else(invalid)?)?.unwrap_or_default();
        let port = u16::from_redis_value(master.next().ok_or_else(invalid)?)?;
        Ok(SlotRange { first, last, address: format!("{host}:{port}") })
    }
}

/// The slot map as one server sees it, sorted so that maps of different servers compare equal.
pub(super) async fn fetch_ranges(server: &Server) -> Result<Vec<SlotRange>, Fault> {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    let reply = match server.call(command, false, Instant::now() + QUERY_TIMEOUT).await {
        Err(fault @ Fault::Misconfigured(_)) if fault.to_string().contains("cluster support disabled") => {
            let hint = "the server is not part of a cluster; set counters.topology = \"single\"";
            return Err(Fault::misconfigured(format!("{fault}: {hint}")));
        }
        reply => reply?,
    };
    let ranges = Vec::<SlotRange>::from_redis_value(reply);
    let mut ranges = ranges.map_err(|_| Fault::misconfigured("unexpected reply to CLUSTER SLOTS"))?;
    for range in &mut ranges {
        range.address = complete_address(&range.address, server);
    }
    ranges.sort_unstable();
    Ok(ranges)
}

/// An address without a host is on the host of the server that named it.
pub(super) fn complete_address(address: &str, from: &Server) -> String {
    let host = || from.name().rsplit_once(':').map_or("", |(host, _)| host);
    if address.starts_with(':') { format!("{}{address}", host()) } else { address.to_owned() }
}
