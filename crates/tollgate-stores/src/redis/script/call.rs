//! One call of the script: its keys and its packed arguments.

use std::time::{Duration, Instant};

use redis::Cmd;
use smallvec::SmallVec;
use tollgate::counters::{Charge, Effect, PenaltyCharge};
use tollgate::limit::{Algorithm, Limit, Window};
use tollgate::{Span, Timestamp};

use super::evalsha;
use super::keys::{self, Tag};

/// How the script treats the charges of a call.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Charges all limits, or none if one refuses.
    Charge,
    /// Judges and writes nothing.
    DryRun,
    /// Charges whatever the limits say: reconciliation and refunds.
    Forced,
}

/// What a charge asks for in addition.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Extra {
    #[default]
    None,
    /// The reply contains the mark that a refund of the same decision needs.
    Refundable,
    /// The reply contains the mark that a refund after the response needs.
    RefundableLater,
    /// Refunds a charge. `mark` identifies its window or log entry; for a bucket it is the instant at which the charge
    /// would be paid back.
    Refund { mark: u64, cost: u32, later: Option<LaterRefund> },
    /// Requests a lease and settles the previous one.
    Lease(LeaseRequest),
}

/// What a refund after the response needs in addition.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct LaterRefund {
    /// The generation of the counter.
    pub(crate) born: u64,
    /// The number of the charge in its bucket.
    pub(crate) order: u32,
    /// What had been refunded to the bucket before the charge.
    pub(crate) refunded: u64,
}

/// A request for leased units.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeaseRequest {
    /// Units that the node expects to use while the lease is valid; zero only settles.
    pub(crate) want: u32,
    /// Nodes that share the limit.
    pub(crate) nodes: u16,
    /// The lease that is requested.
    pub(crate) id: LeaseId,
    /// The previous lease, if it is not settled yet.
    pub(crate) settle: Option<Settlement>,
}

/// The end of a lease: what was granted and what is returned.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settlement {
    pub(crate) id: LeaseId,
    pub(crate) granted: u32,
    pub(crate) unspent: u32,
    /// When the last unit was used. A bucket is settled as of then: what was used refills since.
    pub(crate) used_at: Option<Instant>,
}

impl Settlement {
    /// Returns all units of a lease that the server may have granted, but whose reply was lost at `now`.
    pub(crate) const fn unused(id: LeaseId, now: Instant) -> Self {
        Settlement { id, granted: u32::MAX, unspent: u32::MAX, used_at: Some(now) }
    }

    /// How long ago the last unit was used at least, in microseconds.
    fn idle_micros(&self) -> u64 {
        let idle = self.used_at.map_or(Duration::ZERO, |used_at| used_at.elapsed());
        u32::try_from(idle.as_micros()).unwrap_or(u32::MAX).into()
    }
}

/// Identifies a lease on the server. Unique among all nodes.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeaseId(pub(crate) u128);

impl LeaseId {
    /// The hash field of its record. Longer than those of counters.
    fn field(self) -> [u8; 17] {
        let mut field = [b'L'; 17];
        field[1..].copy_from_slice(&self.0.to_be_bytes());
        field
    }
}

pub(super) mod flag {
    pub(super) const DRY_RUN: u8 = 1;
    pub(super) const PENALTY: u8 = 2;
    pub(super) const FORCED: u8 = 4;
    pub(super) const RECORD_REFUSAL: u8 = 8;
    pub(in crate::redis::script) const COMPARE_AND_SET: u8 = 16;
}

mod bit {
    pub(super) const SHADOW: u8 = 1;
    pub(super) const VIOLATION: u8 = 2;
    pub(super) const LEASE: u8 = 4;
    pub(super) const REFUND: u8 = 8;
    pub(super) const REFUNDABLE: u8 = 16;
    pub(super) const LATER: u8 = 32;
}

/// One call of the script.
pub(crate) struct ScriptCall {
    keys: SmallVec<[String; 4]>,
    packed: SmallVec<[u8; 64]>,
    /// The packed penalty policy and the client's printed name.
    penalty: Option<(SmallVec<[u8; 64]>, String)>,
}

impl ScriptCall {
    /// A call without charges yet. With a penalty, the client's record is the first key.
    pub(crate) fn new(mode: Mode, penalty: Option<&PenaltyCharge<'_>>) -> Self {
        let mode = match mode {
            Mode::Charge => 0,
            Mode::DryRun => flag::DRY_RUN,
            Mode::Forced => flag::FORCED,
        };
        let penalty_flag = if penalty.is_some() { flag::PENALTY } else { 0 };
        let mut packed = SmallVec::new();
        packed.push(mode | penalty_flag);
        ScriptCall {
            keys: penalty.map(|penalty| keys::record(&Tag::new(penalty.subject))).into_iter().collect(),
            packed,
            penalty: penalty.map(|penalty| (policy(penalty), penalty.client.to_string())),
        }
    }

    /// A call that only records a refusal by a limit with this window.
    pub(crate) fn record_refusal(penalty: &PenaltyCharge<'_>, window: Span) -> Self {
        let mut call = ScriptCall::new(Mode::Charge, Some(penalty));
        call.packed[0] |= flag::RECORD_REFUSAL;
        call.number::<7>(window.as_micros());
        call
    }

    /// Adds a charge. `violation` says whether a refusal counts against the client. `now` only selects calendar windows.
    pub(crate) fn push(&mut self, charge: &Charge<'_>, violation: bool, extra: Extra, now: Timestamp) {
        let limit = charge.limit;
        let kind = Kind::of(limit);
        let mut bits = match extra {
            Extra::None => 0,
            Extra::Refundable => bit::REFUNDABLE,
            Extra::RefundableLater => bit::REFUNDABLE | bit::LATER,
            Extra::Refund { later: None, .. } => bit::REFUND,
            Extra::Refund { later: Some(_), .. } => bit::REFUND | bit::LATER,
            Extra::Lease(_) => bit::LEASE,
        };
        bits |= if charge.effect == Effect::Shadow { bit::SHADOW } else { 0 };
        bits |= if violation { bit::VIOLATION } else { 0 };
        let by_length = matches!(kind, Kind::Fixed | Kind::Calendar | Kind::Log);
        let (tick, window) = if by_length {
            (1, limit.window_longest().as_micros())
        } else {
            (limit.tick().micros(), limit.window_ticks())
        };
        self.packed.extend_from_slice(&[kind as u8, bits]);
        self.number::<3>(tick);
        self.number::<4>(u64::from(charge.cost));
        self.number::<4>(u64::from(limit.requests()));
        self.number::<7>(window);
        self.number::<7>(limit.debt_units_max());
        self.packed.extend_from_slice(&keys::field(charge.subject));
        match kind {
            Kind::DelayingBucket => self.number::<7>(limit.capacity_units()),
            Kind::Calendar => boundaries(limit, now).into_iter().for_each(|at| self.number::<7>(at)),
            _ => {}
        }
        match extra {
            Extra::Lease(request) => self.lease(&request),
            Extra::Refund { mark, cost, later } => self.refund(mark, cost, later),
            Extra::None | Extra::Refundable | Extra::RefundableLater => {}
        }
        self.keys.push(keys::counter(charge).name);
    }

    pub(crate) fn command(&self) -> Cmd {
        let mut command = evalsha(self.keys.len());
        for key in &self.keys {
            command.arg(key.as_bytes());
        }
        command.arg(self.packed.as_slice());
        if let Some((policy, client)) = &self.penalty {
            command.arg(policy.as_slice()).arg(client.as_bytes());
        }
        command
    }

    fn refund(&mut self, mark: u64, cost: u32, later: Option<LaterRefund>) {
        self.number::<7>(mark);
        self.number::<4>(u64::from(cost));
        if let Some(LaterRefund { born, order, refunded }) = later {
            self.number::<7>(born);
            self.number::<4>(u64::from(order));
            self.number::<7>(refunded);
        }
    }

    fn lease(&mut self, lease: &LeaseRequest) {
        let settle = lease.settle.unwrap_or_default();
        self.number::<4>(u64::from(lease.want));
        self.number::<2>(u64::from(lease.nodes.max(1)));
        self.number::<4>(u64::from(settle.granted));
        self.number::<4>(u64::from(settle.unspent));
        self.number::<4>(settle.idle_micros());
        self.packed.extend_from_slice(&settle.id.field());
        self.packed.extend_from_slice(&lease.id.field());
    }

    fn number<const BYTES: usize>(&mut self, number: u64) {
        put::<BYTES>(&mut self.packed, number);
    }
}

/// Appends the low `BYTES` bytes, most significant first.
fn put<const BYTES: usize>(packed: &mut SmallVec<[u8; 64]>, number: u64) {
    packed.extend_from_slice(&number.to_be_bytes()[8 - BYTES..]);
}

/// The script's number for an algorithm.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Bucket = 1,
    DelayingBucket = 2,
    Shaper = 3,
    Fixed = 4,
    Calendar = 5,
    Sliding = 6,
    Log = 7,
}

impl Kind {
    fn of(limit: &Limit) -> Self {
        match (limit.algorithm(), limit.window()) {
            (Algorithm::LeakyBucket, _) => Kind::Shaper,
            (Algorithm::TokenBucket | Algorithm::Gcra, _) if limit.max_delay().is_some() => {
                Kind::DelayingBucket
            }
            (Algorithm::TokenBucket | Algorithm::Gcra, _) => Kind::Bucket,
            (Algorithm::FixedWindow, Window::Calendar(_)) => Kind::Calendar,
            (Algorithm::FixedWindow, Window::Length(_)) => Kind::Fixed,
            (Algorithm::SlidingWindowCounter, _) => Kind::Sliding,
            (Algorithm::SlidingWindowLog, _) => Kind::Log,
        }
    }
}

/// Boundaries of the calendar window around `now` and of its neighbours: the server's clock may be in any of the three.
fn boundaries(limit: &Limit, now: Timestamp) -> [u64; 4] {
    let Window::Calendar(calendar) = limit.window() else { return [0; 4] };
    let (start, end) = calendar.bounds(now);
    let (before, _) = calendar.bounds(start - Span::from_micros(1));
    let (_, after) = calendar.bounds(end);
    [before, start, end, after].map(Timestamp::as_micros)
}

fn policy(penalty: &PenaltyCharge<'_>) -> SmallVec<[u8; 64]> {
    let policy = penalty.policy;
    let threshold = policy.violation_threshold as usize;
    let cooldowns = (0..policy.multipliers.len()).filter_map(|level| policy.cooldown(threshold + level));
    let cooldowns: SmallVec<[Span; 8]> = cooldowns.collect();
    let mut packed = SmallVec::new();
    put::<7>(&mut packed, policy.detection_window.as_micros());
    put::<4>(&mut packed, u64::from(policy.violation_threshold));
    put::<1>(&mut packed, policy.violations_max() as u64);
    put::<7>(&mut packed, policy.cooldown_plausible_max().as_micros());
    put::<1>(&mut packed, cooldowns.len() as u64);
    cooldowns.iter().for_each(|cooldown| put::<7>(&mut packed, cooldown.as_micros()));
    packed
}
