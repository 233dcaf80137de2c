//! The answer to one request.

use smallvec::SmallVec;

use crate::accounts::{Block, BlockPosition};
use crate::algorithms::{Outcome, Verdict};
use crate::counters::{Charge, Effect, StoreError, Verdicts};
use crate::identity::Client;
use crate::limit::Algorithm;
use crate::rules::{ChargePlan, EvaluationEnd, OnStoreFailure, Rule, Snapshot, namespace};
use crate::time::{Span, Timestamp};

/// What was decided about one request, and why.
#[derive(Debug)]
pub struct Decision {
    /// The rule set that was seen.
    rules: Snapshot,
    /// The answer.
    pub answer: Answer,
    /// What each limit said, in the order of the walk. Of a client that is kept out the one that [binds](Decision::binding)
    /// has nothing left until it may come back.
    pub reports: SmallVec<[LimitReport; 2]>,
    /// Which report decided.
    binding: Option<usize>,
    /// What decided, where no limit did.
    decided_by: Decider,
    /// How long the client is kept out since before, if it is.
    in_cooldown: Option<Span>,
    /// When it was decided.
    pub now: Timestamp,
    /// Whether it was decided without the shared counters.
    pub degraded: bool,
    /// Whether the shared counters refuse us: nothing is admitted until an operator acts.
    pub misconfigured: bool,
}

/// The answer itself.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The request may pass, after `delay` (zero but for shaping limits).
    Admit {
        /// How long to hold it.
        delay: Span,
    },
    /// The request is over a limit.
    Refuse {
        /// Why.
        reason: Refusal,
        /// After exactly this long the same request alone is admitted; nothing if waiting does not help.
        retry_after: Option<Span>,
    },
    /// A rule blocks the request, or somebody whom it names is blocked ([`Decision::block`]), whatever its counters say.
    Block,
    /// The counters cannot be reached and a rule that applies admits nothing without them.
    Unavailable,
}

/// Why a request is refused.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A limit is used up.
    OverLimit,
    /// The cost exceeds what the limit ever admits at once.
    CostExceedsLimit,
    /// The client is kept out for running into its limits again and again.
    Cooldown,
}

impl Refusal {
    /// The word for it in answers and records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Refusal::OverLimit => "over_limit",
            Refusal::CostExceedsLimit => "cost_exceeds_limit",
            Refusal::Cooldown => "cooldown",
        }
    }
}

/// What one limit said to one request.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct LimitReport {
    /// The rule, as a position in the set.
    rule: u32,
    /// Requests per window.
    pub requests: u32,
    /// The largest cost that can ever be admitted at once.
    pub capacity: u32,
    /// The length of the window; of a calendar's as people say it.
    pub window: Span,
    /// How it counts.
    pub algorithm: Algorithm,
    /// Whether its refusal counts.
    pub effect: Effect,
    /// What it said. What remains, and until when, is as the counter stands after the request.
    pub verdict: Verdict,
}

impl LimitReport {
    /// What would pass now, as clients are told: never more than the limit.
    pub fn remaining(&self) -> u32 {
        self.verdict.remaining.min(self.requests)
    }

    /// Whether it is of the rule at this position of the set.
    pub(crate) fn is_of(&self, rule: u32) -> bool {
        self.rule == rule
    }

    fn refuses(&self) -> bool {
        self.effect == Effect::Enforce && !self.verdict.admits()
    }
}

/// Everything of a decision but the rule set, which the plan still borrows while this is made.
pub(crate) struct Draft {
    answer: Answer,
    reports: SmallVec<[LimitReport; 2]>,
    binding: Option<usize>,
    decided_by: Decider,
    /// How long the client is kept out since before, if it is.
    in_cooldown: Option<Span>,
    degraded: bool,
    misconfigured: bool,
}

/// What decided about a request, beside its limits.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Decider {
    /// Nothing else did.
    Limits,
    /// The rule at this position of the set.
    Rule(u32),
    /// A block in the accounts.
    Block(BlockPosition),
}

impl Draft {
    /// The decision that the verdicts add up to.
    pub(crate) fn from_verdicts(plan: &ChargePlan<'_>, verdicts: &Verdicts) -> Self {
        let admitted = verdicts.admitted(&plan.charges);
        let reports = reports(plan, verdicts);
        if let Some(left) = verdicts.cooldown.filter(|_| verdicts.in_cooldown) {
            return Draft::cooling_down(plan, reports, left);
        }
        let (mut answer, binding) = if admitted { admit(&reports) } else { refuse(&reports) };
        if let (Answer::Refuse { retry_after: Some(wait), .. }, Some(cooldown)) =
            (&mut answer, verdicts.cooldown)
        {
            // This refusal starts a penalty: coming back when the limit allows it would be too early.
            *wait = cooldown.max(*wait);
        }
        let decided_by = match plan.end {
            EvaluationEnd::Allowed(rule) if binding.is_none() => Decider::Rule(rule),
            _ => Decider::Limits,
        };
        Draft {
            answer,
            reports,
            binding,
            decided_by,
            in_cooldown: None,
            degraded: false,
            misconfigured: false,
        }
    }

    /// The decision about a client that is kept out, and what its limits say as far as they were looked at. Nothing passes
    /// until the cooldown ends and the last of them admits. If that is later it decides, else the first limit that is the
    /// client's own. All are told of: a cooldown changes nothing about which limits a client has.
    fn cooling_down(plan: &ChargePlan<'_>, looked: SmallVec<[LimitReport; 2]>, left: Span) -> Self {
        let own = |position: &usize| {
            plan.charges.charges[*position].effect == Effect::Enforce
                && plan.charges.penalty.is_some_and(|penalty| penalty.is_violation(*position))
        };
        let mut reports = looked;
        let all = plan.charges.charges.iter().zip(&plan.sources);
        let rest = all
            .skip(reports.len())
            .map(|(charge, source)| report(charge, *source, Verdict::unused(charge.limit)));
        reports.extend(rest);
        let cooldown = |wait| Answer::Refuse { reason: Refusal::Cooldown, retry_after: Some(wait) };
        let (answer, told) = match refuse(&reports) {
            (Answer::Refuse { retry_after: Some(wait), .. }, slowest) if wait > left => {
                (cooldown(wait), slowest)
            }
            (never @ Answer::Refuse { retry_after: None, .. }, Some(position)) => (never, Some(position)),
            _ => (cooldown(left), (0..plan.sources.len()).find(own)),
        };
        if let Some(position) = told {
            let outcome = match answer {
                Answer::Refuse { retry_after: Some(retry_after), .. } => Outcome::Refuse { retry_after },
                _ => Outcome::Never,
            };
            let verdict = &mut reports[position].verdict;
            *verdict = Verdict { outcome, remaining: 0, reset_after: verdict.reset_after.max(left) };
        }
        Draft {
            answer,
            reports,
            binding: told,
            decided_by: Decider::Limits,
            in_cooldown: Some(left),
            degraded: false,
            misconfigured: false,
        }
    }

    /// The decision of a rule that blocks.
    pub(crate) fn blocked_by_rule(rule: u32) -> Self {
        Draft::refused_by(Decider::Rule(rule))
    }

    /// The decision about somebody who is blocked.
    pub(crate) fn blocked(block: BlockPosition) -> Self {
        Draft::refused_by(Decider::Block(block))
    }

    fn refused_by(decided_by: Decider) -> Self {
        Draft {
            answer: Answer::Block,
            reports: SmallVec::new(),
            binding: None,
            decided_by,
            in_cooldown: None,
            degraded: false,
            misconfigured: false,
        }
    }

    /// The decision when no counters can be had and some rule admits nothing without them.
    pub(crate) fn unavailable(rule: Option<u32>, error: &StoreError) -> Self {
        Draft {
            answer: Answer::Unavailable,
            reports: SmallVec::new(),
            binding: None,
            decided_by: rule.map_or(Decider::Limits, Decider::Rule),
            in_cooldown: None,
            degraded: true,
            misconfigured: *error == StoreError::Misconfigured,
        }
    }

    /// Whether the client is kept out since before: then the report that decides is of that and not of its limit, and
    /// the others may not have been looked at.
    pub(crate) fn is_in_cooldown(&self) -> bool {
        self.in_cooldown.is_some()
    }

    /// What each limit said.
    pub(crate) fn into_reports(self) -> SmallVec<[LimitReport; 2]> {
        self.reports
    }

    pub(crate) fn degraded(self) -> Self {
        Draft { degraded: true, ..self }
    }

    pub(crate) fn complete(self, rules: Snapshot, now: Timestamp) -> Decision {
        let Draft { answer, reports, binding, decided_by, in_cooldown, degraded, misconfigured } = self;
        let mut decision = Decision {
            rules,
            answer,
            reports,
            binding,
            decided_by,
            in_cooldown,
            now,
            degraded,
            misconfigured,
        };
        decision.raise_to_floor();
        decision
    }
}

/// The rule that refuses everything when counters fail with `error`, if one of the plan's does.
pub(crate) fn closed_rule(plan: &ChargePlan<'_>, rules: &[Rule], error: &StoreError) -> Option<u32> {
    let closed = |(charge, source): &(&Charge<'_>, &u32)| {
        let rule = rules.get(**source as usize);
        // A misconfigured store never opens the gate: an operator must act.
        charge.effect == Effect::Enforce
            && (*error == StoreError::Misconfigured
                || rule.is_some_and(|rule| rule.on_store_failure == OnStoreFailure::Closed))
    };
    plan.charges.charges.iter().zip(&plan.sources).find(closed).map(|(_, source)| *source)
}

fn reports(plan: &ChargePlan<'_>, verdicts: &Verdicts) -> SmallVec<[LimitReport; 2]> {
    let judged = plan.charges.charges.iter().zip(&verdicts.verdicts).zip(&plan.sources);
    judged.map(|((charge, verdict), source)| report(charge, *source, *verdict)).collect()
}

fn report(charge: &Charge<'_>, rule: u32, verdict: Verdict) -> LimitReport {
    LimitReport {
        rule,
        requests: charge.limit.requests(),
        capacity: charge.limit.capacity(),
        window: charge.limit.window_length(),
        algorithm: charge.limit.algorithm(),
        effect: charge.effect,
        verdict,
    }
}

/// Admitted: the limit with the least left is the one to tell of.
fn admit(reports: &[LimitReport]) -> (Answer, Option<usize>) {
    let enforced = || reports.iter().enumerate().filter(|(_, report)| report.effect == Effect::Enforce);
    let delay = |report: &LimitReport| match report.verdict.outcome {
        Outcome::Admit { delay } => delay,
        _ => Span::ZERO,
    };
    let longest = enforced().map(|(_, report)| delay(report)).max().unwrap_or_default();
    let binding = enforced().min_by_key(|(_, report)| report.remaining()).map(|(position, _)| position);
    (Answer::Admit { delay: longest }, binding)
}

/// Refused: the limit that keeps the request waiting longest decides, before all one that always will.
fn refuse(reports: &[LimitReport]) -> (Answer, Option<usize>) {
    let wait = |report: &LimitReport| match report.verdict.outcome {
        Outcome::Refuse { retry_after } => Some(retry_after),
        _ => None,
    };
    let refusing = reports.iter().enumerate().filter(|(_, report)| report.refuses());
    let binding = refusing.max_by_key(|(position, report)| {
        (wait(report).is_none(), wait(report), std::cmp::Reverse(*position))
    });
    let retry_after = binding.and_then(|(_, report)| wait(report));
    let reason = if retry_after.is_some() { Refusal::OverLimit } else { Refusal::CostExceedsLimit };
    (Answer::Refuse { reason, retry_after }, binding.map(|(position, _)| position))
}

impl Decision {
    /// Whether the request may pass.
    pub const fn admits(&self) -> bool {
        matches!(self.answer, Answer::Admit { .. })
    }

    /// The limit that decided: of those that admit the one with the least left, of those that refuse the one that
    /// keeps the request waiting longest.
    pub fn binding(&self) -> Option<&LimitReport> {
        self.binding.map(|position| &self.reports[position])
    }

    /// The rule that decided.
    pub fn rule(&self) -> Option<&Rule> {
        self.rules.rules().get(self.rule_position()?)
    }

    /// The position in its set of the rule that decided.
    pub fn rule_position(&self) -> Option<usize> {
        let position = match (self.binding(), self.decided_by) {
            (Some(report), _) => report.rule,
            (None, Decider::Rule(position)) => position,
            (None, _) => return None,
        };
        Some(position as usize).filter(|position| *position < self.rules.rules().len())
    }

    /// The block that decided, if one did: whoever is blocked is not charged anything.
    pub fn block(&self) -> Option<Block<'_>> {
        match self.decided_by {
            Decider::Block(at) => self.rules.accounts().block_at(at),
            _ => None,
        }
    }

    /// The name of the rule that decided, or of the numbers that stood in the place of one.
    pub fn rule_name(&self) -> Option<&str> {
        match self.binding() {
            Some(report) => Some(self.rule_name_of(report)),
            None => self.rule().map(|rule| &*rule.name),
        }
    }

    /// The rule behind a report, by name.
    pub fn rule_name_of(&self, report: &LimitReport) -> &str {
        self.rules.rules().get(report.rule as usize).map_or_else(|| namespace(report.rule), |rule| &rule.name)
    }

    /// When the binding limit is as good as new, if no one else comes.
    pub fn reset_at(&self) -> Option<Timestamp> {
        self.binding().map(|report| self.now + report.verdict.reset_after)
    }

    /// Until when the client is kept out for running into its limits, if it was before this request. What it is told to
    /// wait may be longer: the limits behind it must admit the request too, and a rule may ask for more.
    pub fn cooldown_until(&self) -> Option<Timestamp> {
        self.in_cooldown.map(|left| self.now + left)
    }

    /// How long a refused client should wait, if waiting helps.
    pub const fn retry_after(&self) -> Option<Span> {
        match self.answer {
            Answer::Refuse { retry_after, .. } => retry_after,
            _ => None,
        }
    }

    /// What the first limit that counts this client said.
    fn report_on(&self, client: Client<'_>) -> Option<&LimitReport> {
        let counts = |report: &&LimitReport| {
            let rule = self.rules.rules().get(report.rule as usize);
            report.effect == Effect::Enforce
                && rule.is_none_or(|rule| rule.per.iter().any(|dimension| dimension.is_id_of(client)))
        };
        self.reports.iter().find(counts)
    }

    /// What this client has used of the first limit that counts it.
    pub(crate) fn used_by(&self, client: Client<'_>) -> u32 {
        self.report_on(client).map_or(0, |report| report.capacity.saturating_sub(report.verdict.remaining))
    }

    /// The rule set that was seen.
    pub fn rules(&self) -> &Snapshot {
        &self.rules
    }

    /// A rule may ask clients never to come back sooner than some time.
    fn raise_to_floor(&mut self) {
        if self.retry_after().is_none() {
            return;
        }
        let floor = self.rule().map_or(Span::ZERO, |rule| rule.response.retry_after_floor);
        if let Answer::Refuse { retry_after: Some(wait), .. } = &mut self.answer {
            *wait = floor.max(*wait);
        }
    }
}
