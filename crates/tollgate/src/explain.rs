//! Why a decision is what it is: every rule that was looked at, and what its limits say.

use smallvec::SmallVec;

use crate::accounts::{BlockKind, ResolvedRequest};
use crate::algorithms::Outcome;
use crate::counters::Effect;
use crate::decision::{Decision, LimitReport};
use crate::identity::{Request, Scratch};
use crate::rules::{Rule, RuleOutcome};
use crate::time::{Span, Timestamp};

/// A decision with the whole walk behind it. Nothing was charged for it.
#[derive(Debug)]
pub struct Explanation {
    /// What the request would be told now.
    pub decision: Decision,
    steps: Vec<RuleOutcome>,
    /// What the limits of a client that is kept out say, though none of them decides.
    behind_cooldown: Option<SmallVec<[LimitReport; 2]>>,
}

/// What became of one rule.
#[derive(Debug)]
pub struct RuleExplanation<'a> {
    /// The rule.
    pub rule: &'a Rule,
    /// Whether the request meets its conditions.
    pub matched: bool,
    /// What became of it, in words.
    pub reason: String,
    /// What its limits say, if they apply.
    pub reports: Vec<&'a LimitReport>,
}

impl Explanation {
    pub(crate) fn new(
        decision: Decision,
        steps: Vec<RuleOutcome>,
        behind_cooldown: Option<SmallVec<[LimitReport; 2]>>,
    ) -> Self {
        Explanation { decision, steps, behind_cooldown }
    }

    /// Until when the client is kept out for running into its limits, if it is.
    pub fn cooldown_until(&self) -> Option<Timestamp> {
        self.decision.cooldown_until()
    }

    /// What each limit says, in the order of the walk: as its counter stands, also of a client that is kept out.
    pub fn reports(&self) -> &[LimitReport] {
        self.behind_cooldown.as_ref().unwrap_or(&self.decision.reports)
    }

    /// The earliest instant at which the request is admitted, if no one else comes; nothing if that is never.
    pub fn next_allowed_at(&self) -> Option<Timestamp> {
        let decision = &self.decision;
        if decision.admits() {
            return Some(decision.now);
        }
        decision.retry_after()?;
        // Not what is told: a rule may ask clients to stay away for longer. When a cooldown ends, a limit may still be in
        // the way.
        let mut wait = self.cooldown_until().map_or(Span::ZERO, |until| until.since(decision.now));
        for report in self.reports().iter().filter(|report| report.effect == Effect::Enforce) {
            match report.verdict.outcome {
                Outcome::Refuse { retry_after } => wait = wait.max(retry_after),
                Outcome::Never => return None,
                Outcome::Admit { .. } => {}
            }
        }
        Some(decision.now + wait)
    }

    /// The request with what is known of its key and its user.
    pub fn resolved<'a>(
        &'a self,
        request: &'a Request<'a>,
        scratch: &'a mut Scratch<'a>,
    ) -> ResolvedRequest<'a> {
        self.decision.rules().resolve(request, scratch)
    }

    /// The numbers that apply in place of a rule's: `@check` for the check's own, `@config` for those set for user and
    /// endpoint, `@key` for the key's own, `@quota` for the user's.
    pub fn override_source(&self, request: &Request<'_>) -> Option<&'static str> {
        let rules = self.decision.rules();
        let mut scratch = Scratch::default();
        rules.namespace_of(&rules.resolve(request, &mut scratch))
    }

    /// Every rule in the order of the walk, with what became of it.
    pub fn rules<'a>(&'a self, request: &Request<'_>) -> Vec<RuleExplanation<'a>> {
        let barred = self.decision.block().map(|block| block.kind);
        let mut scratch = Scratch::default();
        let resolved = self.decision.rules().resolve(request, &mut scratch);
        let rules = self.decision.rules().rules();
        let each = (0u32..).zip(rules.iter().zip(&self.steps));
        each.map(|(position, (rule, step))| RuleExplanation {
            rule,
            matched: matches!(
                step,
                RuleOutcome::Collected
                    | RuleOutcome::Allowed
                    | RuleOutcome::Blocked
                    | RuleOutcome::LayerTaken
                    | RuleOutcome::TooMany
            ),
            reason: match step {
                RuleOutcome::Collected if self.behind_cooldown.is_some() => {
                    "matches, but the client is in cooldown: its limits are not charged until that ends"
                        .to_owned()
                }
                step => reason(rule, *step, &resolved.request, barred),
            },
            reports: self.reports().iter().filter(|report| report.is_of(position)).collect(),
        })
        .collect()
    }
}

fn reason(rule: &Rule, step: RuleOutcome, request: &Request<'_>, barred: Option<BlockKind>) -> String {
    match step {
        RuleOutcome::NotReached if let Some(kind) = barred => {
            format!("not reached: the {} is blocked", kind.as_str())
        }
        RuleOutcome::Collected => "matches: its limits apply".to_owned(),
        RuleOutcome::Allowed => "matches: admits and ends the walk".to_owned(),
        RuleOutcome::Blocked => "matches: refuses and ends the walk".to_owned(),
        RuleOutcome::Disabled => "switched off".to_owned(),
        RuleOutcome::LayerTaken => format!("matches, but an earlier rule has the layer {:?}", &*rule.layer),
        RuleOutcome::NotReached => "not reached: an earlier rule ended the walk".to_owned(),
        RuleOutcome::TooMany => {
            "matches, but the request already has as many limits as one can have".to_owned()
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
