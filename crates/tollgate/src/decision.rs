//! The decision about one request.

use smallvec::SmallVec;

use crate::accounts::{Block, BlockPosition};
use crate::algorithms::{Outcome, Verdict};
use crate::counters::{Charge, Effect, StoreError, Verdicts};
use crate::limit::{Algorithm, Window};
use crate::receipt::{self, Receipt, ReceiptCharges};
use crate::rules::{ChargePlan, EvaluationEnd, OnStoreFailure, Rule, RuleSet, Snapshot, namespace};
use crate::time::{Span, Timestamp};

/// The decision about one request, and what led to it.
#[derive(Debug)]
pub struct Decision {
    rules: Snapshot,
    /// Whether the request may pass.
    pub answer: Answer,
    /// One report per limit, in the order in which the rules were evaluated. For a client in cooldown, the
    /// [binding](Decision::binding) one reports nothing left until the cooldown ends.
    pub reports: SmallVec<[LimitReport; 2]>,
    /// The position of the report that decided.
    binding: Option<usize>,
    /// What decided, if no limit did.
    decided_by: Decider,
    /// The rest of a cooldown that started before this request.
    cooldown: Option<Span>,
    /// The time of the decision.
    pub now: Timestamp,
    /// Whether the shared counters were unreachable.
    pub degraded: bool,
    /// Whether a server shared with other nodes was asked. `false` for counters in memory, leased units and cached refusals.
    pub asked_server: bool,
    /// Whether the shared counters reject our calls: nothing is admitted until an operator fixes the configuration.
    pub misconfigured: bool,
    /// The charges that may be refunded. Absent for rules without refunds.
    receipt: Option<Box<ReceiptCharges>>,
}

/// Whether a request may pass.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The request may pass after `delay`, which is zero unless a limit delays requests.
    Admit {
        /// How long to delay the request.
        delay: Span,
    },
    /// The request exceeds a limit, or the client is in cooldown.
    Refuse {
        /// The reason.
        reason: Refusal,
        /// The same request, alone, is admitted after exactly this time; `None` if waiting does not help.
        retry_after: Option<Span>,
    },
    /// A rule blocks the request, or its user or API key is blocked ([`Decision::block`]).
    Block,
    /// The counters are unreachable and a matching rule has `on_store_failure = "closed"`.
    Unavailable,
}

named_enum! {
    /// Why a request is refused.
    pub enum Refusal {
        /// A limit is used up.
        OverLimit = "over_limit",
        /// The cost exceeds what the limit ever admits at once.
        CostExceedsLimit = "cost_exceeds_limit",
        /// The client is in cooldown after repeated violations.
        Cooldown = "cooldown",
    }
}

/// The verdict of one limit on one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitReport {
    /// The position of the rule in the set.
    rule: u32,
    /// Requests per window.
    pub requests: u32,
    /// The largest cost that can ever be admitted at once; during an outage, of this node's share.
    pub capacity: u32,
    /// The window.
    pub window: Window,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Whether a refusal by this limit refuses the request.
    pub effect: Effect,
    /// Whether it counts the address of a client that is only claimed: see
    /// [`Request::address_beside_client`](crate::Request::address_beside_client).
    pub by_address: bool,
    /// The verdict. It describes the counter after the request.
    pub verdict: Verdict,
}

impl LimitReport {
    /// What remains, as reported to clients: never more than `requests`.
    pub fn remaining(&self) -> u32 {
        self.verdict.remaining.min(self.requests)
    }

    /// The length of the window; nominal for a calendar window.
    pub fn window_length(&self) -> Span {
        self.window.length()
    }

    /// Whether the rule is at this position of the set.
    pub(crate) fn is_of(&self, rule: u32) -> bool {
        self.rule == rule
    }

    /// The name of the override that the report is of, if it replaces no rule.
    pub(crate) fn override_name(&self, rules: &[Rule]) -> Option<&'static str> {
        (self.rule as usize >= rules.len()).then(|| namespace(self.rule))
    }

    fn refuses(&self) -> bool {
        self.effect == Effect::Enforce && !self.verdict.admits()
    }
}

/// A decision without its rule set, which the plan still borrows.
pub(crate) struct Draft {
    answer: Answer,
    reports: SmallVec<[LimitReport; 2]>,
    binding: Option<usize>,
    decided_by: Decider,
    cooldown: Option<Span>,
    degraded: bool,
    asked_server: bool,
    misconfigured: bool,
    receipt: Option<Box<ReceiptCharges>>,
}

/// What decided a request, if no limit did.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Decider {
    /// A limit did, or nothing applied.
    Limits,
    /// The rule at this position of the set.
    Rule(u32),
    /// A block of the account.
    Block(BlockPosition),
}

impl Draft {
    /// Combines the verdicts.
    pub(crate) fn from_verdicts(plan: &ChargePlan<'_>, verdicts: &Verdicts) -> Self {
        let admitted = verdicts.admitted(&plan.charges);
        let reports = reports(plan, verdicts);
        if let Some(left) = verdicts.cooldown.filter(|_| verdicts.in_cooldown) {
            let asked_server = verdicts.shared;
            return Draft { asked_server, ..Draft::cooling_down(plan, reports, left) };
        }
        let (mut answer, binding) = if admitted { admit(&reports) } else { refuse(&reports) };
        if let (Answer::Refuse { retry_after: Some(wait), .. }, Some(cooldown)) =
            (&mut answer, verdicts.cooldown)
        {
            // This refusal starts a cooldown, which may end after the limit admits again.
            *wait = cooldown.max(*wait);
        }
        let decided_by = match plan.end {
            EvaluationEnd::Allowed(rule) if binding.is_none() => Decider::Rule(rule),
            _ => Decider::Limits,
        };
        let asked_server = verdicts.shared;
        let receipt = verdicts.marks.as_ref().and_then(|marks| receipt::of_store(plan, marks));
        Draft { reports, binding, asked_server, receipt, ..Draft::new(answer, decided_by) }
    }

    /// The decision about a client in cooldown: refused until the cooldown has ended and every limit admits.
    ///
    /// Of the two the later one binds: the limit with the longest wait, else the first limit that counts the client. Limits
    /// that the store did not read are reported as unused.
    fn cooling_down(plan: &ChargePlan<'_>, mut reports: SmallVec<[LimitReport; 2]>, left: Span) -> Self {
        let counts_client = |position: &usize| {
            plan.charges.charges[*position].effect == Effect::Enforce
                && plan.charges.penalty.is_some_and(|penalty| penalty.is_violation(*position))
        };
        let all = plan.charges.charges.iter().zip(&plan.sources);
        let rest = all
            .skip(reports.len())
            .map(|(charge, source)| report(charge, *source, Verdict::unused(charge.limit)));
        reports.extend(rest);
        let cooldown = |wait| Answer::Refuse { reason: Refusal::Cooldown, retry_after: Some(wait) };
        let (answer, binding) = match refuse(&reports) {
            (Answer::Refuse { retry_after: Some(wait), .. }, slowest) if wait > left => {
                (cooldown(wait), slowest)
            }
            (never @ Answer::Refuse { retry_after: None, .. }, Some(position)) => (never, Some(position)),
            _ => (cooldown(left), (0..plan.sources.len()).find(counts_client)),
        };
        if let Some(position) = binding {
            let outcome = match answer {
                Answer::Refuse { retry_after: Some(retry_after), .. } => Outcome::Refuse { retry_after },
                _ => Outcome::Never,
            };
            let verdict = &mut reports[position].verdict;
            *verdict = Verdict { outcome, remaining: 0, reset_after: verdict.reset_after.max(left) };
        }
        Draft { reports, binding, cooldown: Some(left), ..Draft::new(answer, Decider::Limits) }
    }

    /// The decision about a request that is blocked or that no limit applies to.
    pub(crate) fn without_counters(plan: &ChargePlan<'_>) -> Option<Self> {
        match plan.end {
            EvaluationEnd::Blocked(rule) => Some(Draft::new(Answer::Block, Decider::Rule(rule))),
            EvaluationEnd::BlockedPrincipal(block) => Some(Draft::new(Answer::Block, Decider::Block(block))),
            _ if plan.charges.charges.is_empty() => Some(Draft::from_verdicts(plan, &Verdicts::default())),
            _ => None,
        }
    }

    fn new(answer: Answer, decided_by: Decider) -> Self {
        Draft {
            answer,
            reports: SmallVec::new(),
            binding: None,
            decided_by,
            cooldown: None,
            degraded: false,
            asked_server: false,
            misconfigured: false,
            receipt: None,
        }
    }

    /// The decision of a rule that refuses while the counters are unreachable.
    pub(crate) fn unavailable(rule: u32, error: &StoreError) -> Self {
        let misconfigured = *error == StoreError::Misconfigured;
        Draft { degraded: true, misconfigured, ..Draft::new(Answer::Unavailable, Decider::Rule(rule)) }
    }

    /// Whether the client was in cooldown before this request. Then the binding report describes the cooldown, not its
    /// limit, and the store may not have read the others.
    pub(crate) fn is_in_cooldown(&self) -> bool {
        self.cooldown.is_some()
    }

    pub(crate) fn into_reports(self) -> SmallVec<[LimitReport; 2]> {
        self.reports
    }

    /// Reports these capacities, one for each limit.
    pub(crate) fn with_capacities(mut self, capacities: impl Iterator<Item = u32>) -> Self {
        for (report, capacity) in self.reports.iter_mut().zip(capacities) {
            report.capacity = capacity;
        }
        self
    }

    /// A decision of the fallback, with the charges that it can refund.
    pub(crate) fn degraded(self, receipt: Option<Box<ReceiptCharges>>) -> Self {
        Draft { degraded: true, receipt, ..self }
    }

    pub(crate) fn complete(self, rules: Snapshot, now: Timestamp) -> Decision {
        let mut decision = Decision {
            rules,
            answer: self.answer,
            reports: self.reports,
            binding: self.binding,
            decided_by: self.decided_by,
            cooldown: self.cooldown,
            now,
            degraded: self.degraded,
            asked_server: self.asked_server,
            misconfigured: self.misconfigured,
            receipt: self.receipt,
        };
        decision.raise_to_floor();
        decision
    }
}

/// The first rule of the plan that refuses while counters fail with `error`.
pub(crate) fn closed_rule(plan: &ChargePlan<'_>, rules: &RuleSet, error: &StoreError) -> Option<u32> {
    let closed = |(charge, source): &(&Charge<'_>, &u32)| {
        // A misconfigured store refuses whatever the rules say.
        charge.effect == Effect::Enforce
            && (*error == StoreError::Misconfigured
                || rules.on_store_failure(**source as usize) == OnStoreFailure::Closed)
    };
    plan.charges.charges.iter().zip(&plan.sources).find(closed).map(|(_, source)| *source)
}

fn reports(plan: &ChargePlan<'_>, verdicts: &Verdicts) -> SmallVec<[LimitReport; 2]> {
    let verdicts = plan.charges.charges.iter().zip(&verdicts.verdicts).zip(&plan.sources);
    let reports = verdicts.zip(0_u32..).map(|(((charge, verdict), source), position)| {
        let by_address = plan.address_charges.checked_shr(position).unwrap_or(0) & 1 == 1;
        LimitReport { by_address, ..report(charge, *source, *verdict) }
    });
    reports.collect()
}

fn report(charge: &Charge<'_>, rule: u32, verdict: Verdict) -> LimitReport {
    LimitReport {
        rule,
        by_address: false,
        requests: charge.limit.requests(),
        capacity: charge.limit.capacity(),
        window: charge.limit.window().clone(),
        algorithm: charge.limit.algorithm(),
        effect: charge.effect,
        verdict,
    }
}

/// The longest delay applies; the limit with the least left binds.
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

/// The limit with the longest wait binds; one that never admits comes first.
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

    /// Takes the receipt for charges that may be refunded once the response is known ([`Limiter::settle`]). `None` if no rule
    /// of the decision refunds, or the receipt was taken already.
    ///
    /// [`Limiter::settle`]: crate::Limiter::settle
    pub fn take_receipt(&mut self) -> Option<Receipt> {
        let charges = *self.receipt.take()?;
        Some(Receipt { rules: self.rules.to_arc(), charges })
    }

    /// The limit that decided: the refusing one with the longest wait, or, if all admit, the one with the least left.
    pub fn binding(&self) -> Option<&LimitReport> {
        self.binding.map(|position| &self.reports[position])
    }

    /// The rule that decided.
    pub fn rule(&self) -> Option<&Rule> {
        self.rules.rules().get(self.rule_position()?)
    }

    /// The position of the rule that decided in its set.
    pub fn rule_position(&self) -> Option<usize> {
        let position = match (self.binding(), self.decided_by) {
            (Some(report), _) => report.rule,
            (None, Decider::Rule(position)) => position,
            (None, _) => return None,
        };
        Some(position as usize).filter(|position| *position < self.rules.rules().len())
    }

    /// The block of the user or API key, if it decided. A blocked request is not charged.
    pub fn block(&self) -> Option<Block<'_>> {
        match self.decided_by {
            Decider::Block(at) => self.rules.accounts().block_at(at),
            _ => None,
        }
    }

    /// The name of the rule that decided, or of the override in its place (`@check`, `@config`, `@key`, `@quota`).
    pub fn rule_name(&self) -> Option<&str> {
        match self.binding() {
            Some(report) => Some(self.rule_name_of(report)),
            None => self.rule().map(|rule| &*rule.name),
        }
    }

    /// The name of the rule, or override, of a report.
    pub fn rule_name_of(&self, report: &LimitReport) -> &str {
        self.rules.rules().get(report.rule as usize).map_or_else(|| namespace(report.rule), |rule| &rule.name)
    }

    /// The position of a report's rule in its set; `None` for an override that replaces no rule.
    pub fn rule_position_of(&self, report: &LimitReport) -> Option<usize> {
        Some(report.rule as usize).filter(|position| *position < self.rules.rules().len())
    }

    /// The reports, those of each rule together.
    pub fn reports_by_rule(&self) -> impl Iterator<Item = &[LimitReport]> {
        self.reports.chunk_by(|one, next| one.rule == next.rule)
    }

    /// When the binding limit is restored in full, if no other request comes.
    pub fn reset_at(&self) -> Option<Timestamp> {
        self.binding().map(|report| self.now + report.verdict.reset_after)
    }

    /// The end of a cooldown that started before this request. [`Decision::retry_after`] may be later: the limits must
    /// admit the request too, and a rule may set `retry_after_floor`.
    pub fn cooldown_until(&self) -> Option<Timestamp> {
        self.cooldown.map(|left| self.now + left)
    }

    /// How long a refused client must wait; `None` if waiting does not help.
    pub const fn retry_after(&self) -> Option<Span> {
        match self.answer {
            Answer::Refuse { retry_after, .. } => retry_after,
            _ => None,
        }
    }

    /// The rule set of the decision.
    pub fn rules(&self) -> &Snapshot {
        &self.rules
    }

    /// Prepares the decision to be kept for long, such as while an upstream is asked. A new decision reads its rules through one of a
    /// few slots of its thread; while all are occupied, every check of the thread is slower.
    pub fn release_slot(&mut self) {
        self.rules.release_slot();
    }

    /// Raises `retry_after` to the rule's `retry_after_floor`.
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
