//! The explanation of a decision: the outcome of every rule, and what its limits hold.

use smallvec::SmallVec;

use crate::accounts::{BlockKind, ResolvedRequest};
use crate::algorithms::Outcome;
use crate::counters::Effect;
use crate::decision::{Decision, LimitReport};
use crate::identity::{Request, Scratch};
use crate::rules::overrides::{CHECK_NAMESPACE, CONFIG_NAMESPACE, KEY_NAMESPACE};
use crate::rules::{Rule, RuleOutcome};
use crate::time::{Span, Timestamp};

/// A decision with the outcome of every rule. Nothing was charged.
#[derive(Debug)]
pub struct Explanation {
    /// The decision that a check would return now.
    pub decision: Decision,
    outcomes: Vec<RuleOutcome>,
    /// The reports without the cooldown, if the client is in one.
    without_cooldown: Option<SmallVec<[LimitReport; 2]>>,
}

/// The outcome of one rule.
#[derive(Debug)]
pub struct RuleExplanation<'a> {
    /// The rule.
    pub rule: &'a Rule,
    /// Whether the request matches its conditions.
    pub matched: bool,
    /// What happened to the rule, as text.
    pub reason: String,
    /// The reports of its limits, if they apply.
    pub reports: Vec<&'a LimitReport>,
}

impl Explanation {
    pub(crate) fn new(
        decision: Decision,
        outcomes: Vec<RuleOutcome>,
        without_cooldown: Option<SmallVec<[LimitReport; 2]>>,
    ) -> Self {
        Explanation { decision, outcomes, without_cooldown }
    }

    /// The end of the client's cooldown, if it is in one.
    pub fn cooldown_until(&self) -> Option<Timestamp> {
        self.decision.cooldown_until()
    }

    /// One report per limit, as its counter stands, whether or not the client is in cooldown.
    pub fn reports(&self) -> &[LimitReport] {
        self.without_cooldown.as_ref().unwrap_or(&self.decision.reports)
    }

    /// When the request is admitted, if no other request comes; `None` if never.
    ///
    /// Exact for counters on the caller's clock. Shared counters report the [wait](Self::wait) as of their own decision,
    /// which is later than [`Decision::now`].
    pub fn next_allowed_at(&self) -> Option<Timestamp> {
        Some(self.decision.now + self.wait()?)
    }

    /// How long until the request is admitted, if no other request comes; `None` if never.
    pub fn wait(&self) -> Option<Span> {
        let decision = &self.decision;
        if decision.admits() {
            return Some(Span::ZERO);
        }
        decision.retry_after()?;
        // Not `retry_after` itself, which a rule's `retry_after_floor` may have raised.
        let mut wait = self.cooldown_until().map_or(Span::ZERO, |until| until.since(decision.now));
        for report in self.reports().iter().filter(|report| report.effect == Effect::Enforce) {
            match report.verdict.outcome {
                Outcome::Refuse { retry_after } => wait = wait.max(retry_after),
                Outcome::Never => return None,
                Outcome::Admit { .. } => {}
            }
        }
        Some(wait)
    }

    /// The request, completed from its account and normalized.
    pub fn resolved<'a>(
        &'a self,
        request: &'a Request<'a>,
        scratch: &'a mut Scratch<'a>,
    ) -> ResolvedRequest<'a> {
        self.decision.rules().resolve(request, scratch)
    }

    /// The override that applies in place of a rule's limit: `@check` sent with the check, `@config` set for the user and
    /// endpoint, `@key` of the API key, `@quota` of the user.
    pub fn override_source(&self, request: &Request<'_>) -> Option<&'static str> {
        let rules = self.decision.rules();
        let mut scratch = Scratch::default();
        rules.namespace_of(&rules.resolve(request, &mut scratch))
    }

    /// The name and the reports of an override that replaces no rule.
    pub fn override_beside_rules(&self) -> Option<(&'static str, Vec<&LimitReport>)> {
        let rules = self.decision.rules().rules();
        let reports: Vec<&LimitReport> =
            self.reports().iter().filter(|report| report.override_name(rules).is_some()).collect();
        let name = reports.first()?.override_name(rules)?;
        Some((name, reports))
    }

    /// Every rule in evaluation order, with its outcome.
    pub fn rules<'a>(&'a self, request: &Request<'_>) -> Vec<RuleExplanation<'a>> {
        let blocked = self.decision.block().map(|block| block.kind);
        let mut scratch = Scratch::default();
        let resolved = self.decision.rules().resolve(request, &mut scratch);
        let rules = self.decision.rules().rules();
        let each = (0u32..).zip(rules.iter().zip(&self.outcomes));
        each.map(|(position, (rule, outcome))| {
            let reports: Vec<&LimitReport> =
                self.reports().iter().filter(|report| report.is_of(position)).collect();
            let too_expensive = || describe_excess(&reports, rule.cost.of(&resolved.request));
            let reason = match outcome {
                RuleOutcome::Collected if let Some(excess) = too_expensive() => format!("matches, and {excess}"),
                RuleOutcome::Replaced(_) if let Some(excess) = too_expensive() => {
                    format!("{}, and {excess}", reason(rule, *outcome, &resolved.request, blocked))
                }
                RuleOutcome::Collected if self.without_cooldown.is_some() => {
                    "matches, but the client is in cooldown: its limits are not charged until the cooldown ends"
                        .to_owned()
                }
                outcome => reason(rule, *outcome, &resolved.request, blocked),
            };
            RuleExplanation { rule, matched: outcome.is_match(), reason, reports }
        })
        .collect()
    }
}

/// Why a request of this cost can never pass: `refuses: the cost 200 exceeds …`. `None` if it can.
pub fn describe_excess(reports: &[&LimitReport], cost: u32) -> Option<String> {
    let report = reports.iter().find(|report| report.verdict.outcome == Outcome::Never)?;
    let verb = if report.effect == Effect::Enforce { "refuses" } else { "would refuse" };
    let (capacity, requests, window) = (report.capacity, report.requests, report.window.describe());
    let burst = if capacity == requests { "" } else { " at once" };
    Some(format!(
        "{verb}: the cost {cost} exceeds the {capacity} that {requests} per {window} admits{burst}, so the request can never pass"
    ))
}

/// An override by its name, for messages.
pub fn describe_override(name: &str) -> String {
    let what = match name {
        CHECK_NAMESPACE => "the limit sent with the check",
        CONFIG_NAMESPACE => "the limit set for this user and endpoint",
        KEY_NAMESPACE => "the API key's own limit",
        _ => "the user's quota",
    };
    format!("{what} ({name})")
}

fn reason(rule: &Rule, outcome: RuleOutcome, request: &Request<'_>, blocked: Option<BlockKind>) -> String {
    match outcome {
        RuleOutcome::NotReached if let Some(kind) = blocked => {
            format!("not evaluated: the {} is blocked", kind.as_str())
        }
        RuleOutcome::Collected => "matches: its limits apply".to_owned(),
        RuleOutcome::Replaced(namespace) => {
            format!("matches, but {} takes its place", describe_override(namespace))
        }
        RuleOutcome::Allowed => "matches: allows the request, later rules are not evaluated".to_owned(),
        RuleOutcome::Blocked => "matches: blocks the request, later rules are not evaluated".to_owned(),
        RuleOutcome::Disabled => "disabled".to_owned(),
        RuleOutcome::SwitchedOff => "not evaluated: enabled = false switches all limits off".to_owned(),
        RuleOutcome::LayerTaken => format!("matches, but an earlier rule took the layer {:?}", &*rule.layer),
        RuleOutcome::NotReached => "not evaluated: an earlier rule ended the evaluation".to_owned(),
        RuleOutcome::TooMany => {
            "matches, but the request already has the maximum number of limits".to_owned()
        }
        RuleOutcome::Mismatch => {
            let mismatch = rule.when.mismatch(request);
            mismatch.map_or_else(|| "does not match".to_owned(), |mismatch| mismatch.to_string())
        }
        RuleOutcome::NoSubject(position) => {
            format!("counts by {}, which the request lacks", rule.per[position])
        }
    }
}
