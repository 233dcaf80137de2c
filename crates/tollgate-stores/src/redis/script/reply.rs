//! The reply of the script.

use redis::Value;
use smallvec::SmallVec;
use tollgate::algorithms::{Outcome, Verdict};
use tollgate::{Span, Timestamp};

use super::call::Extra;

/// The reply of one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    /// The server's clock.
    pub(crate) now: Timestamp,
    /// How long the client stays in cooldown.
    pub(crate) cooldown: Option<Span>,
    /// Whether the call added a violation to the client's record.
    pub(crate) violation_added: bool,
    /// Whether the client was in cooldown before: nothing was charged.
    pub(crate) in_cooldown: bool,
    /// One per charge.
    pub(crate) charges: SmallVec<[ChargeReply; 4]>,
}

/// The reply for one charge.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChargeReply {
    pub(crate) verdict: Verdict,
    pub(crate) grant: Option<Grant>,
    /// Whether the refund was applied, if it was one.
    pub(crate) refunded: bool,
}

/// Leased units, or the mark for a refund.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) granted: u32,
    pub(crate) valid: Span,
    /// The generation of the counter.
    pub(crate) born: u64,
    /// The window, epoch or log entry.
    pub(crate) mark: u64,
    /// The number of the charge in its bucket, and what had been refunded before it, for a refund after the response.
    pub(crate) order: u64,
    pub(crate) refunded_before: u64,
    /// Units of the settled lease that came back too late to be returned.
    pub(crate) lost: u32,
}

/// The script returned something other than its documented reply.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct InvalidReply;

impl ChargeReply {
    /// The verdict with leased units counted as remaining: this node can still use them.
    pub(crate) fn with_granted(&self) -> Verdict {
        let granted = self.grant.map_or(0, |grant| grant.granted);
        Verdict { remaining: self.verdict.remaining.saturating_add(granted), ..self.verdict }
    }

    fn read(
        next: &mut impl FnMut() -> Result<i64, InvalidReply>,
        extra: Extra,
    ) -> Result<Self, InvalidReply> {
        let outcome = next()?;
        let remaining = narrow(next()?);
        let wait = Span::from_micros(unsigned(next()?));
        let reset_after = Span::from_micros(unsigned(next()?));
        let outcome = match outcome {
            0 => Outcome::Refuse { retry_after: wait },
            1 => Outcome::Admit { delay: wait },
            _ => Outcome::Never,
        };
        let is_later = extra == Extra::RefundableLater;
        let is_lease = matches!(extra, Extra::Lease(_));
        let grant = match extra {
            Extra::Lease(_) | Extra::Refundable | Extra::RefundableLater => Some(Grant {
                granted: narrow(next()?),
                valid: Span::from_micros(unsigned(next()?)),
                born: unsigned(next()?),
                mark: unsigned(next()?),
                order: if is_later { unsigned(next()?) } else { 0 },
                refunded_before: if is_later { unsigned(next()?) } else { 0 },
                lost: if is_lease { narrow(next()?) } else { 0 },
            }),
            Extra::None | Extra::Refund { .. } => None,
        };
        let refunded = matches!(extra, Extra::Refund { .. }) && next()? == 1;
        Ok(ChargeReply { verdict: Verdict { outcome, remaining, reset_after }, grant, refunded })
    }
}

impl Reply {
    /// Reads a reply to a call whose charges had these extras.
    pub(crate) fn read(value: &Value, extras: impl Iterator<Item = Extra>) -> Result<Reply, InvalidReply> {
        let Value::Array(items) = value else { return Err(InvalidReply) };
        let mut numbers = items.iter().map(|item| match item {
            Value::Int(number) => Some(*number),
            _ => None,
        });
        let mut next = || numbers.next().flatten().ok_or(InvalidReply);
        let now = Timestamp::from_micros(unsigned(next()?));
        let cooldown = u64::try_from(next()?).ok().map(Span::from_micros);
        let record = next()?;
        let charges = extras.map(|extra| ChargeReply::read(&mut next, extra)).collect::<Result<_, _>>()?;
        Ok(Reply { now, cooldown, violation_added: record == 1, in_cooldown: record == 2, charges })
    }
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

    fn read(numbers: &[i64], charges: usize) -> Result<Reply, InvalidReply> {
        let items = numbers.iter().map(|number| Value::Int(*number)).collect();
        Reply::read(&Value::Array(items), std::iter::repeat_n(Extra::None, charges))
    }

    #[test]
    fn reply_with_missing_charges_is_invalid() {
        assert_eq!(read(&[1, 5, 2], 1), Err(InvalidReply), "in cooldown or not");
        assert_eq!(read(&[1, -1, 0], 1), Err(InvalidReply));
        assert_eq!(read(&[1, -1, 0, 1, 9, 0, 0], 2), Err(InvalidReply));
        assert!(read(&[1, -1, 0], 0).is_ok());
    }

    #[test]
    fn out_of_range_numbers_are_clamped() {
        let reply = read(&[i64::MIN, i64::MAX, 7, i64::MIN, i64::MAX, i64::MIN, i64::MAX], 1).unwrap();
        assert_eq!(reply.charges[0].verdict.outcome, Outcome::Never);
        assert_eq!(reply.charges[0].verdict.remaining, u32::MAX);
    }
}
