//! The script's two sides: what it is sent, and what it answers.
//!
//! Arguments are one packed string, because parsing a dozen decimal numbers costs a server more than the decision.

pub(crate) mod keys;

use redis::{Cmd, Script, Value};
use smallvec::SmallVec;
use tollgate::algorithms::{Outcome, Verdict};
use tollgate::counters::{Charge, Effect, PenaltyCharge};
use tollgate::limit::{Algorithm, Limit, Window};
use tollgate::{Span, Timestamp};

use crate::redis::connection::error::Fault;

/// How long a lease is valid, unless its window ends before. The script says the same.
pub(crate) const LEASE: Span = Span::from_secs(2);

const SOURCE: &str = include_str!("script/charge_all.lua");

/// The script, once.
pub(crate) struct ChargeScript {
    script: Script,
}

impl ChargeScript {
    pub(crate) fn new() -> Self {
        ChargeScript { script: Script::new(SOURCE) }
    }

    /// The command that makes the script known to a server.
    pub(crate) fn load() -> Cmd {
        let mut command = redis::cmd("SCRIPT");
        command.arg("LOAD").arg(SOURCE);
        command
    }

    /// The command of one call.
    pub(crate) fn call(&self, keys: &[String], arguments: &Arguments) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(self.script.get_hash()).arg(keys.len());
        for key in keys {
            command.arg(key.as_bytes());
        }
        command.arg(arguments.packed.as_slice());
        if let Some((policy, client)) = &arguments.watched {
            command.arg(policy.as_slice()).arg(client.as_bytes());
        }
        command
    }

    /// The command that puts a value under a key in the place of another, if that is still there.
    pub(crate) fn replace(&self, key: &str, value: u64, then: u64) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(self.script.get_hash()).arg(1).arg(key);
        command.arg([flag::REPLACE].as_slice()).arg(value).arg(then);
        command
    }
}

/// The commands that a line of the script calls, counted from one.
pub(crate) fn commands_at(line: usize) -> Vec<&'static str> {
    let line = line.checked_sub(1).and_then(|line| SOURCE.lines().nth(line)).unwrap_or_default();
    let calls = line.split("call('").skip(1);
    calls.filter_map(|call| call.split('\'').next()).collect()
}

/// What a call is about, beside the charges.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mode {
    /// Only look.
    pub(crate) dry_run: bool,
    /// Charge whatever the limits say, as when what was counted elsewhere is brought in.
    pub(crate) forced: bool,
}

/// What goes without saying for most charges.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bits {
    /// A refusal is held against the client.
    pub(crate) blamed: bool,
    /// The counter is where the version before has it, which is the next of the keys, until this instant, and may be
    /// there after.
    pub(crate) renamed: Option<Timestamp>,
}

/// What a charge asks for beside being charged.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Extra {
    /// Nothing.
    #[default]
    None,
    /// To be told what it takes to take the charge back.
    Refundable,
    /// To take back what was charged under this mark: its window or its entry, and of a bucket the instant by which it
    /// would be paid back.
    Refund { mark: u64, cost: u32 },
    /// A slice for later, and what became of the one before.
    Lease(LeaseRequest),
}

/// A wish for a slice.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeaseRequest {
    /// How much would be used while it is valid.
    pub(crate) want: u32,
    /// How many nodes share the limit.
    pub(crate) nodes: u16,
    /// The slice before, if it is not settled.
    pub(crate) settle: Option<Settle>,
}

/// What became of a slice.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settle {
    /// Which life of the counter granted it.
    pub(crate) born: u64,
    /// Which window or epoch granted it.
    pub(crate) mark: u64,
    /// How much was granted.
    pub(crate) granted: u32,
    /// How much of it was not used.
    pub(crate) unspent: u32,
}

/// The packed arguments of a call.
pub(crate) struct Arguments {
    packed: SmallVec<[u8; 64]>,
    watched: Option<(SmallVec<[u8; 64]>, String)>,
}

mod flag {
    pub(crate) const DRY_RUN: u8 = 1;
    pub(crate) const WATCHED: u8 = 2;
    pub(crate) const FORCED: u8 = 4;
    pub(crate) const NOTE: u8 = 8;
    /// No charges at all.
    pub(crate) const REPLACE: u8 = 16;
}

mod bit {
    pub(crate) const SHADOW: u8 = 1;
    pub(crate) const BLAMED: u8 = 2;
    pub(crate) const LEASE: u8 = 4;
    pub(crate) const REFUND: u8 = 8;
    pub(crate) const REFUNDABLE: u8 = 16;
    pub(crate) const RENAMED: u8 = 32;
}

impl Arguments {
    /// Of a call without charges yet.
    pub(crate) fn new(mode: Mode, penalty: Option<&PenaltyCharge<'_>>) -> Self {
        let mut flags = 0;
        flags |= if mode.dry_run { flag::DRY_RUN } else { 0 };
        flags |= if mode.forced { flag::FORCED } else { 0 };
        flags |= if penalty.is_some() { flag::WATCHED } else { 0 };
        let watched = penalty.map(|penalty| (policy(penalty), penalty.client.to_string()));
        let mut packed = SmallVec::new();
        packed.push(flags);
        Arguments { packed, watched }
    }

    /// Of a call that only notes a refusal by a limit of that window.
    pub(crate) fn note(penalty: &PenaltyCharge<'_>, window: Span) -> Self {
        let mut arguments = Arguments::new(Mode::default(), Some(penalty));
        arguments.packed[0] |= flag::NOTE;
        arguments.number::<7>(window.as_micros());
        arguments
    }

    /// Adds a charge. `now` is only for calendars, whose windows have no formula.
    pub(crate) fn push(&mut self, charge: &Charge<'_>, about: Bits, extra: Extra, now: Timestamp) {
        let limit = charge.limit;
        let kind = Kind::of(limit);
        let mut bits = 0;
        bits |= if charge.effect == Effect::Shadow { bit::SHADOW } else { 0 };
        bits |= if about.blamed { bit::BLAMED } else { 0 };
        bits |= if about.renamed.is_some() { bit::RENAMED } else { 0 };
        bits |= match extra {
            Extra::None => 0,
            Extra::Refundable => bit::REFUNDABLE,
            Extra::Refund { .. } => bit::REFUND,
            Extra::Lease(_) => bit::LEASE,
        };
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
            Extra::Lease(lease) => self.lease(&lease),
            Extra::Refund { mark, cost } => {
                self.number::<7>(mark);
                self.number::<4>(u64::from(cost));
            }
            Extra::None | Extra::Refundable => {}
        }
        if let Some(at) = about.renamed {
            self.number::<7>(at.as_micros());
        }
    }

    fn lease(&mut self, lease: &LeaseRequest) {
        let settle = lease.settle.unwrap_or_default();
        self.number::<4>(u64::from(lease.want));
        self.number::<2>(u64::from(lease.nodes.max(1)));
        self.number::<7>(settle.born);
        self.number::<7>(settle.mark);
        self.number::<4>(u64::from(settle.granted));
        self.number::<4>(u64::from(settle.unspent));
    }

    /// The low `BYTES` bytes, most significant first.
    fn number<const BYTES: usize>(&mut self, number: u64) {
        put::<BYTES>(&mut self.packed, number);
    }
}

fn put<const BYTES: usize>(packed: &mut SmallVec<[u8; 64]>, number: u64) {
    packed.extend_from_slice(&number.to_be_bytes()[8 - BYTES..]);
}

/// How the script counts a limit.
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

/// The boundaries of the window of `now` and of its neighbours: the server's clock may be in any of the three.
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

/// What the script answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    /// The server's clock.
    pub(crate) now: Timestamp,
    /// How long the client is kept out.
    pub(crate) cooldown: Option<Span>,
    /// Whether the client's record grew.
    pub(crate) noted: bool,
    /// Whether the client was kept out before: then nothing was charged.
    pub(crate) in_cooldown: bool,
    /// One per charge.
    pub(crate) told: SmallVec<[Told; 4]>,
}

/// What one limit said.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) verdict: Verdict,
    pub(crate) grant: Option<Grant>,
}

impl Told {
    /// The verdict with what was granted still counted as there: it is, only here.
    pub(crate) fn whole(&self) -> Verdict {
        let granted = self.grant.map_or(0, |grant| grant.granted);
        Verdict { remaining: self.verdict.remaining.saturating_add(granted), ..self.verdict }
    }
}

/// What goes with a charge that asked for more.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Grant {
    /// How much may be used later.
    pub(crate) granted: u32,
    /// For how long.
    pub(crate) valid: Span,
    /// Which life of the counter it is of.
    pub(crate) born: u64,
    /// Which window, epoch or entry.
    pub(crate) mark: u64,
}

impl Answer {
    /// Reads an answer to charges of which those in `extras` asked for more.
    pub(crate) fn read(value: &Value, extras: impl Iterator<Item = Extra>) -> Result<Answer, Fault> {
        let strange = || Fault::Misconfigured("the script answered something else than expected".to_owned());
        let Value::Array(items) = value else { return Err(strange()) };
        let mut numbers = items.iter().map(|item| match item {
            Value::Int(number) => Some(*number),
            _ => None,
        });
        let mut next = || numbers.next().flatten().ok_or_else(strange);
        let now = Timestamp::from_micros(unsigned(next()?));
        let cooldown = u64::try_from(next()?).ok().map(Span::from_micros);
        let record = next()?;
        let told = extras.map(|extra| read_told(&mut next, extra)).collect::<Result<_, _>>()?;
        Ok(Answer { now, cooldown, noted: record == 1, in_cooldown: record == 2, told })
    }
}

fn read_told(next: &mut impl FnMut() -> Result<i64, Fault>, extra: Extra) -> Result<Told, Fault> {
    let outcome = next()?;
    let remaining = narrow(next()?);
    let wait = Span::from_micros(unsigned(next()?));
    let reset_after = Span::from_micros(unsigned(next()?));
    let outcome = match outcome {
        0 => Outcome::Refuse { retry_after: wait },
        1 => Outcome::Admit { delay: wait },
        _ => Outcome::Never,
    };
    let grant = match extra {
        Extra::Lease(_) | Extra::Refundable => Some(Grant {
            granted: narrow(next()?),
            valid: Span::from_micros(unsigned(next()?)),
            born: unsigned(next()?),
            mark: unsigned(next()?),
        }),
        Extra::None | Extra::Refund { .. } => None,
    };
    Ok(Told { verdict: Verdict { outcome, remaining, reset_after }, grant })
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

fn narrow(number: i64) -> u32 {
    u32::try_from(number.max(0)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(numbers: &[i64], charges: usize) -> Result<Answer, Fault> {
        let items = numbers.iter().map(|number| Value::Int(*number)).collect();
        Answer::read(&Value::Array(items), std::iter::repeat_n(Extra::None, charges))
    }

    #[test]
    fn an_answer_that_leaves_charges_out_admits_nobody() {
        assert!(matches!(read(&[1, 5, 2], 1), Err(Fault::Misconfigured(_))), "kept out or not");
        assert!(matches!(read(&[1, -1, 0], 1), Err(Fault::Misconfigured(_))));
        assert!(matches!(read(&[1, -1, 0, 1, 9, 0, 0], 2), Err(Fault::Misconfigured(_))));
        assert!(read(&[1, -1, 0], 0).is_ok());
    }

    #[test]
    fn numbers_that_no_script_answers_are_read_without_harm() {
        let answer = read(&[i64::MIN, i64::MAX, 7, i64::MIN, i64::MAX, i64::MIN, i64::MAX], 1).unwrap();
        assert_eq!(answer.told[0].verdict.outcome, Outcome::Never);
        assert_eq!(answer.told[0].verdict.remaining, u32::MAX);
    }
}
