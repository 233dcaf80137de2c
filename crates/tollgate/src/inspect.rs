//! The counters of one client, for every rule that counts it.

use std::num::NonZeroU32;

use crate::algorithms::{Outcome, Verdict};
use crate::counters::fallback::share;
use crate::counters::{Charge, Charges, Verdicts};
use crate::identity::Dimension;
use crate::limit::Limit;
use crate::time::{Span, Timestamp};

/// The endpoints that an inspection covers.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum EndpointScope {
    /// The endpoint of the request.
    Requested,
    /// All endpoints. Rules that count per endpoint are skipped, because their counter cannot be identified.
    All,
}

/// The counters of one client. Nothing was charged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// One entry per limit that counts the client, in rule order.
    pub counters: Vec<InspectedCounter>,
    /// The remaining cooldown, if the client is in one.
    pub cooldown: Option<Span>,
    /// Rules whose counter cannot be identified, because the request lacks a dimension they count by.
    pub skipped: Vec<SkippedRule>,
    /// Whether the shared counters were unreachable and these are this node's fallback counters.
    pub degraded: bool,
    /// The time of the inspection.
    pub now: Timestamp,
}

/// A rule whose counter cannot be identified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkippedRule {
    /// The rule.
    pub rule: String,
    /// The dimensions that the request lacks.
    pub missing: Vec<Dimension>,
}

/// One counter of the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InspectedCounter {
    /// The rule.
    pub rule: String,
    /// The limit in force.
    pub limit: Limit,
    /// The verdict on a request of cost one.
    pub verdict: Verdict,
}

impl InspectedCounter {
    /// What is used and not restored yet.
    pub fn used(&self) -> u32 {
        self.limit.capacity().saturating_sub(self.verdict.remaining)
    }

    /// How long a request must wait, if the limit is used up.
    pub fn retry_after(&self) -> Option<Span> {
        match self.verdict.outcome {
            Outcome::Refuse { retry_after } => Some(retry_after),
            _ => None,
        }
    }
}

impl Inspection {
    /// Adds the counters of these charges; with `nodes`, fallback counters that hold the share of one of that many nodes.
    pub(crate) fn add(&mut self, charges: &Charges<'_>, verdicts: &Verdicts, nodes: Option<NonZeroU32>) {
        let inspected = |(charge, verdict): (&Charge<'_>, &Verdict)| InspectedCounter {
            rule: charge.rule.to_owned(),
            limit: nodes.map_or_else(|| charge.limit.clone(), |nodes| share(charge.limit, nodes)),
            verdict: *verdict,
        };
        self.counters.extend(charges.charges.iter().zip(&verdicts.verdicts).map(inspected));
        self.cooldown = self.cooldown.or(verdicts.cooldown);
        self.degraded |= nodes.is_some();
    }
}
