//! What the counters of one client hold, whichever rule would apply to its next request.

use std::num::NonZeroU32;

use crate::algorithms::{Outcome, Verdict};
use crate::counters::fallback::share;
use crate::counters::{Charge, Charges, Verdicts};
use crate::identity::Dimension;
use crate::limit::Limit;
use crate::rules::MissingDimension;
use crate::time::{Span, Timestamp};

/// Which endpoints an inspection is about.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum EndpointScope {
    /// That of the request alone.
    Requested,
    /// All of them. Rules that count each endpoint for itself are skipped: which counter is meant is not said.
    All,
}

/// The counters of one client. Nothing was charged for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// One for each limit that counts the client, in the order of the rules.
    pub counters: Vec<InspectedCounter>,
    /// How long the client is kept out, if it is.
    pub cooldown: Option<Span>,
    /// Rules that count the client by something beside that the request does not say.
    pub skipped: Vec<SkippedRule>,
    /// Whether the shared counters could not be asked: then these are this node's own.
    pub degraded: bool,
    /// When it was looked.
    pub now: Timestamp,
}

/// A rule of whose counters it cannot be told which is the client's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkippedRule {
    /// The rule.
    pub rule: String,
    /// What it counts by and the request does not say.
    pub missing: Vec<Dimension>,
}

/// One counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InspectedCounter {
    /// The rule.
    pub rule: String,
    /// The numbers in force.
    pub limit: Limit,
    /// What the limit says to a request of cost one.
    pub verdict: Verdict,
}

impl InspectedCounter {
    /// What is used and not yet given back.
    pub fn used(&self) -> u32 {
        self.limit.capacity().saturating_sub(self.verdict.remaining)
    }

    /// How long a request has to wait, if it has to.
    pub fn retry_after(&self) -> Option<Span> {
        match self.verdict.outcome {
            Outcome::Refuse { retry_after } => Some(retry_after),
            _ => None,
        }
    }
}

impl Inspection {
    pub(crate) fn new(skipped: &[MissingDimension<'_>], now: Timestamp) -> Self {
        let owned = |MissingDimension { rule, by }: &MissingDimension<'_>| SkippedRule {
            rule: (*rule).to_owned(),
            missing: by.iter().map(|&dimension| dimension.clone()).collect(),
        };
        let skipped = skipped.iter().map(owned).collect();
        Inspection { counters: Vec::new(), cooldown: None, skipped, degraded: false, now }
    }

    /// Adds what was seen.
    pub(crate) fn add(&mut self, looked: &Charges<'_>, seen: &Verdicts) {
        self.add_by(looked, seen, Limit::clone);
    }

    /// Adds what was seen of the part of each limit that one of so many nodes may admit by itself.
    pub(crate) fn add_share(&mut self, looked: &Charges<'_>, seen: &Verdicts, nodes: NonZeroU32) {
        self.add_by(looked, seen, |limit| share(limit, nodes));
        self.degraded = true;
    }

    fn add_by(&mut self, looked: &Charges<'_>, seen: &Verdicts, numbers: impl Fn(&Limit) -> Limit) {
        let inspected = |(charge, verdict): (&Charge<'_>, &Verdict)| InspectedCounter {
            rule: charge.rule.to_owned(),
            limit: numbers(charge.limit),
            verdict: *verdict,
        };
        self.counters.extend(looked.charges.iter().zip(&seen.verdicts).map(inspected));
        self.cooldown = self.cooldown.or(seen.cooldown);
    }
}
