//! Blocks of users, API keys, tenants, logins and networks.
//!
//! Targets are stored as hashes, networks too: an address is looked up once per prefix length in use.

use std::cmp::Ordering;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::hash_in;
use super::shards::Shards;
use super::table::Table;
use crate::identity::{InTenant, Seed, canonical_net, tag};
use crate::time::Timestamp;

/// What a block applies to.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum BlockTarget<'a> {
    /// A user.
    User(&'a str),
    /// An API key, by its id.
    ApiKey(&'a str),
    /// A tenant.
    Tenant(&'a str),
    /// A login name.
    Login(&'a str),
    /// An address or network. IPv6 addresses match exactly, not by the prefix that they are counted by.
    Ip(IpNet),
}

named_enum! {
    /// The kind of a block's target.
    pub enum BlockKind {
        /// A user.
        User = "user",
        /// An API key.
        ApiKey = "api_key",
        /// A tenant.
        Tenant = "tenant",
        /// A login name.
        Login = "login",
        /// An address or network.
        Ip = "ip",
    }
}

impl BlockKind {
    /// Parses [`as_str`](Self::as_str).
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// Whether blocks of this kind may belong to a tenant. Ids of API keys are unique, and a tenant is in no other.
    pub const fn is_within_tenant(self) -> bool {
        matches!(self, BlockKind::User | BlockKind::Login | BlockKind::Ip)
    }

    const fn tag(self) -> u8 {
        match self {
            BlockKind::User => tag::USER,
            BlockKind::ApiKey => tag::KNOWN_KEY,
            BlockKind::Tenant => tag::TENANT,
            BlockKind::Login => tag::LOGIN,
            BlockKind::Ip => tag::IP,
        }
    }
}

/// By name, as databases order them.
impl Ord for BlockKind {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl PartialOrd for BlockKind {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl BlockTarget<'_> {
    /// The kind of the target.
    pub fn kind(self) -> BlockKind {
        match self {
            BlockTarget::User(_) => BlockKind::User,
            BlockTarget::ApiKey(_) => BlockKind::ApiKey,
            BlockTarget::Tenant(_) => BlockKind::Tenant,
            BlockTarget::Login(_) => BlockKind::Login,
            BlockTarget::Ip(_) => BlockKind::Ip,
        }
    }
}

/// The hash of a target. Kinds that are in no tenant ignore it.
pub(super) fn hash_of_target(seed: Seed, target: InTenant<'_, BlockTarget<'_>>) -> u128 {
    let InTenant { tenant, id: target } = target;
    let kind = target.kind();
    let tenant = tenant.filter(|_| kind.is_within_tenant());
    match target {
        BlockTarget::User(id)
        | BlockTarget::ApiKey(id)
        | BlockTarget::Tenant(id)
        | BlockTarget::Login(id) => hash_in(tenant, seed, kind.tag(), id.as_bytes()),
        BlockTarget::Ip(net) => hash_of_network(seed, tenant, canonical_net(net.trunc())),
    }
}

fn hash_of_network(seed: Seed, tenant: Option<&str>, net: IpNet) -> u128 {
    let mut bytes = [0; 17];
    bytes[0] = net.prefix_len();
    let length = match net.network() {
        IpAddr::V4(v4) => {
            bytes[1..5].copy_from_slice(&v4.octets());
            5
        }
        IpAddr::V6(v6) => {
            bytes[1..].copy_from_slice(&v6.octets());
            17
        }
    };
    hash_in(tenant, seed, tag::IP, &bytes[..length])
}

/// A block in force.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Block<'a> {
    /// What is blocked.
    pub kind: BlockKind,
    /// The reason given when it was set.
    pub reason: &'a str,
    /// When it expires; never if `None`.
    pub until: Option<Timestamp>,
}

#[derive(Clone)]
pub(super) struct BlockRecord {
    pub(super) kind: BlockKind,
    /// For addresses: the family and prefix length of the network.
    pub(super) length: NetworkLength,
    pub(super) reason: Arc<str>,
    pub(super) until: Option<Timestamp>,
}

impl BlockRecord {
    fn is_in_force(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

/// Address family and prefix length.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NetworkLength {
    pub(super) is_v6: bool,
    pub(super) bits: u8,
}

impl NetworkLength {
    fn of(target: BlockTarget<'_>) -> Self {
        match target {
            BlockTarget::Ip(net) => {
                let net = canonical_net(net.trunc());
                NetworkLength { is_v6: net.network().is_ipv6(), bits: net.prefix_len() }
            }
            _ => NetworkLength::default(),
        }
    }
}

/// The position of a block in one generation of the accounts.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlockPosition {
    shard: u16,
    position: u32,
}

#[derive(Clone, Default)]
pub(super) struct Blocks {
    pub(super) table: Shards<Table<BlockRecord>>,
    /// Blocks per kind: kinds without blocks are not looked up.
    kinds: [usize; BlockKind::ALL.len()],
    /// Prefix lengths in use, with the number of networks of each.
    lengths: Vec<(NetworkLength, usize)>,
}

impl Blocks {
    pub(super) fn put(
        &mut self,
        hash: u128,
        target: BlockTarget<'_>,
        reason: &str,
        until: Option<Timestamp>,
    ) {
        let (kind, length) = (target.kind(), NetworkLength::of(target));
        self.put_hashed(hash, BlockRecord { kind, length, reason: reason.into(), until });
    }

    pub(super) fn put_hashed(&mut self, hash: u128, record: BlockRecord) {
        let (kind, length) = (record.kind, record.length);
        let before = self.table.change(hash, |shard| {
            let before = shard.put(hash, record);
            (isize::from(before.is_none()), before)
        });
        if let Some(before) = before {
            self.uncount(&before);
        }
        self.kinds[kind as usize] += 1;
        if kind == BlockKind::Ip {
            match self.lengths.binary_search_by_key(&length, |(known, _)| *known) {
                Ok(position) => self.lengths[position].1 += 1,
                Err(position) => self.lengths.insert(position, (length, 1)),
            }
        }
    }

    pub(super) fn remove(&mut self, hash: u128) {
        if self.table.of(hash).and_then(|shard| shard.find(hash)).is_none() {
            return;
        }
        let before = self.table.change(hash, |shard| {
            let before = shard.remove(hash);
            (-isize::from(before.is_some()), before)
        });
        if let Some(before) = before {
            self.uncount(&before);
        }
    }

    fn uncount(&mut self, removed: &BlockRecord) {
        self.kinds[removed.kind as usize] -= 1;
        if removed.kind == BlockKind::Ip
            && let Ok(position) = self.lengths.binary_search_by_key(&removed.length, |(known, _)| *known)
        {
            self.lengths[position].1 -= 1;
            if self.lengths[position].1 == 0 {
                self.lengths.remove(position);
            }
        }
    }

    /// The block of an id in force at `now`. `hash` is only called if there are blocks of this kind.
    pub(super) fn of_id(
        &self,
        kind: BlockKind,
        hash: impl FnOnce() -> u128,
        now: Timestamp,
    ) -> Option<BlockPosition> {
        if self.kinds[kind as usize] == 0 {
            return None;
        }
        self.find(hash(), now)
    }

    /// The block of an address in force at `now`. The widest network comes first.
    pub(super) fn of_ip(
        &self,
        seed: Seed,
        tenant: Option<&str>,
        ip: IpAddr,
        now: Timestamp,
    ) -> Option<BlockPosition> {
        let in_family = |(length, _): &&(NetworkLength, usize)| length.is_v6 == ip.is_ipv6();
        self.lengths.iter().filter(in_family).find_map(|(length, _)| {
            let net = IpNet::new(ip, length.bits).ok()?.trunc();
            self.find(hash_of_network(seed, tenant, net), now)
        })
    }

    fn find(&self, hash: u128, now: Timestamp) -> Option<BlockPosition> {
        let number = Shards::<Table<BlockRecord>>::number_of(hash);
        let shard = self.table.at(number)?;
        let position = shard.find(hash)?;
        shard.at(position).filter(|record| record.is_in_force(now))?;
        Some(BlockPosition { shard: u16::try_from(number).ok()?, position: u32::try_from(position).ok()? })
    }

    pub(super) fn exactly(&self, hash: u128, now: Timestamp) -> Option<Block<'_>> {
        self.at(self.find(hash, now)?)
    }

    pub(super) fn at(&self, at: BlockPosition) -> Option<Block<'_>> {
        let record = self.table.at(usize::from(at.shard))?.at(at.position as usize)?;
        Some(Block { kind: record.kind, reason: &record.reason, until: record.until })
    }
}
