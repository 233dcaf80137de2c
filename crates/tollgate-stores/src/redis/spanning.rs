//! Decisions whose counters are in several places: charged everywhere, or afterwards nowhere.
//!
//! If one place refuses, or gives no answer, the others take back what they charged, each only what it certainly still
//! counts: a window that ended has forgotten it, and a bucket that may have been empty since has been paid it by time.

use std::sync::atomic::Ordering;
use std::time::Instant;

use smallvec::SmallVec;
use tollgate::algorithms::{Outcome, Verdict};
use tollgate::counters::{Charge, Charges, Effect, PenaltyCharge, Verdicts};
use tollgate::limit::Algorithm;
use tollgate::{Span, Timestamp};

use super::Store;
use super::decide::Group;
use super::error::Fault;
use super::keys::{self, Tag};
use super::leases::Serving;
use super::script::{Answer, Arguments, Extra, Mode, Told};

impl Store {
    /// After calls in several places: if any refused, or gave no answer, the others take back what they charged; and a
    /// refusal is noted in the client's record, wherever that is.
    pub(super) async fn reconcile(
        &self,
        groups: &[Group],
        charges: &Charges<'_>,
        answers: &[Result<Answer, Fault>],
        verdicts: Result<Verdicts, Fault>,
        now: Timestamp,
        deadline: Instant,
    ) -> Result<Verdicts, Fault> {
        if charges.dry_run || verdicts.as_ref().is_ok_and(|verdicts| verdicts.admitted(charges)) {
            return verdicts;
        }
        let mut verdicts = verdicts;
        for (group, answer) in groups.iter().zip(answers) {
            let Ok(answer) = answer else { continue };
            let left = self.refund(group, charges, answer, now).await;
            let told = verdicts.as_mut().map(|verdicts| &mut verdicts.verdicts[..]).unwrap_or_default();
            for (position, Verdict { remaining, reset_after, .. }) in left {
                if let Some(verdict) = told.get_mut(position) {
                    *verdict = Verdict { remaining, reset_after, ..*verdict };
                }
            }
        }
        let mut verdicts = verdicts?;
        if let Some(penalty) = &charges.penalty
            && verdicts.cooldown.is_none()
        {
            verdicts.cooldown = self.note_refusal(penalty, charges, &verdicts, deadline).await;
        }
        Ok(verdicts)
    }

    /// Takes back what one place charged. How the counters stand then, by the position of the charge; nothing of those
    /// that are not known to have been given anything back.
    async fn refund(
        &self,
        group: &Group,
        charges: &Charges<'_>,
        answer: &Answer,
        now: Timestamp,
    ) -> SmallVec<[(usize, Verdict); 4]> {
        let mut arguments = Arguments::new(Mode { forced: true, dry_run: false }, None);
        let mut keys: SmallVec<[String; 4]> = SmallVec::new();
        let mut refunded: SmallVec<[(usize, u32); 4]> = SmallVec::new();
        // A place that refused itself has charged nothing.
        let told: SmallVec<[(usize, &Charge<'_>, &Told); 4]> = (group.positions.iter().zip(&answer.told))
            .map(|(position, told)| (*position, &charges.charges[*position], told))
            .collect();
        if told.iter().any(|(_, charge, told)| !told.verdict.admits() && charge.effect == Effect::Enforce) {
            return SmallVec::new();
        }
        for (position, charge, told) in told {
            let Some(grant) = told.grant.filter(|_| told.verdict.admits() && charge.cost > 0) else {
                continue;
            };
            let mark = match charge.limit.algorithm() {
                Algorithm::TokenBucket | Algorithm::Gcra | Algorithm::LeakyBucket => {
                    (answer.now + told.verdict.reset_after).as_micros()
                }
                _ => grant.mark,
            };
            let (back, refund) = (Charge { cost: 0, ..*charge }, Extra::Refund { mark, cost: charge.cost });
            if self.add(&back, false, refund, now, &mut keys, &mut arguments).is_err() {
                return SmallVec::new();
            }
            refunded.push((position, grant.granted));
        }
        if keys.is_empty() {
            return SmallVec::new();
        }
        self.refunds.fetch_add(keys.len() as u64, Ordering::Relaxed);
        let command = self.script.call(&keys, &arguments);
        // The request need not wait for it, and must not fail by it: what is not given back is only counted too much.
        let value = self.router.call(group.place, command, Instant::now() + self.timeout).await;
        let plain = std::iter::repeat_n(Extra::None, refunded.len());
        let told = value.and_then(|value| Answer::read(&value, plain)).map(|answer| answer.told);
        // A slice that was granted along with the charge stays here.
        let left = |((position, granted), told): ((usize, u32), Told)| {
            let remaining = told.verdict.remaining.saturating_add(granted);
            (position, Verdict { remaining, ..told.verdict })
        };
        refunded.into_iter().zip(told.unwrap_or_default()).map(left).collect()
    }

    /// Notes a refusal in a record that is kept elsewhere than the counter that refused.
    async fn note_refusal(
        &self,
        penalty: &PenaltyCharge<'_>,
        charges: &Charges<'_>,
        verdicts: &Verdicts,
        deadline: Instant,
    ) -> Option<Span> {
        let window = longest_refusing_window(penalty, charges, verdicts)?;
        let arguments = Arguments::note(penalty, window);
        let tag = Tag::new(penalty.subject);
        let command = self.script.call(&[keys::record(&tag)], &arguments);
        let value = self.router.call(self.router.place(&tag), command, deadline).await.ok()?;
        let answer = Answer::read(&value, std::iter::empty()).ok()?;
        if answer.noted {
            self.list_record(penalty, answer.now).await;
        }
        answer.cooldown
    }
}

/// The verdicts of all places in the order of the charges.
pub(super) fn merge(
    groups: &[Group],
    answers: &[Result<Answer, Fault>],
    charges: &Charges<'_>,
    servings: &[Serving],
) -> Result<Verdicts, Fault> {
    let leased = servings.iter().map(|serving| match serving {
        Serving::Leased(verdict, _) => Some(*verdict),
        _ => None,
    });
    let mut verdicts: SmallVec<[Option<Verdict>; 4]> = leased.collect();
    let mut cooldown = None;
    for (group, answer) in groups.iter().zip(answers) {
        let answer = answer.as_ref().map_err(Fault::clone)?;
        cooldown = cooldown.or(answer.cooldown);
        if group.watched && answer.cooldown.is_some() && answer.told.is_empty() {
            // Kept out since before: its limits do not matter.
            return Ok(Verdicts { verdicts: SmallVec::new(), cooldown });
        }
        for (position, told) in group.positions.iter().zip(&answer.told) {
            verdicts[*position] = Some(told.whole());
        }
    }
    debug_assert_eq!(verdicts.len(), charges.charges.len());
    Ok(Verdicts { verdicts: verdicts.into_iter().flatten().collect(), cooldown })
}

fn longest_refusing_window(
    penalty: &PenaltyCharge<'_>,
    charges: &Charges<'_>,
    verdicts: &Verdicts,
) -> Option<Span> {
    let refusing = |(position, (charge, verdict)): &(usize, (&Charge<'_>, &Verdict))| {
        charge.effect == Effect::Enforce
            && charge.cost > 0
            && penalty.blames(*position)
            && matches!(verdict.outcome, Outcome::Refuse { .. })
    };
    let judged = charges.charges.iter().zip(&verdicts.verdicts).enumerate();
    judged.filter(refusing).map(|(_, (charge, _))| charge.limit.window_length()).max()
}
