//! Decisions whose counters are in several shards_seen: charged everywhere, or afterwards nowhere.
//!
//! If one shard refuses, or gives no answer, the others take back what they charged, each only what it certainly still
//! counts: a window that ended has forgotten it, and a bucket that may have been empty since has been paid it by time.

use std::sync::atomic::Ordering;
use std::time::Instant;

use smallvec::SmallVec;
use tokio::sync::oneshot;
use tokio::time::timeout_at;
use tollgate::algorithms::Verdict;
use tollgate::counters::{Charge, Charges, Effect, PenaltyCharge, Verdicts};
use tollgate::limit::Algorithm;
use tollgate::{Span, Timestamp};

use crate::redis::Store;
use crate::redis::connection::error::Fault;
use crate::redis::decide::Group;
use crate::redis::fleet::penalty_records::listing;
use crate::redis::lease::Serving;
use crate::redis::script::keys::{self, Tag};
use crate::redis::script::{Answer, Arguments, Extra, Mode, Told};

impl Store {
    /// After calls in several shards_seen: if any refused, or gave no answer, the others take back what they charged. The
    /// request must not fail by it: what is not given back is only counted too much.
    pub(crate) fn refund_unless_admitted(
        &self,
        groups: &[Group],
        charges: &Charges<'_>,
        answers: &[Result<Answer, Fault>],
        verdicts: &Result<Verdicts, Fault>,
        now: Timestamp,
    ) -> SmallVec<[Refund; 4]> {
        if charges.dry_run || verdicts.as_ref().is_ok_and(|verdicts| verdicts.admitted(charges)) {
            return SmallVec::new();
        }
        let answered =
            groups.iter().zip(answers).filter_map(|(group, answer)| Some((group, answer.as_ref().ok()?)));
        answered.filter_map(|(group, answer)| self.refund(group, charges, answer, now)).collect()
    }

    /// After calls in several shards_seen: a refusal is noted in the client's record, wherever that is.
    pub(crate) async fn note_refusal_elsewhere(
        &self,
        charges: &Charges<'_>,
        verdicts: Result<Verdicts, Fault>,
        decided_at: Timestamp,
        deadline: Instant,
    ) -> Result<Verdicts, Fault> {
        let mut verdicts = verdicts?;
        if let Some(penalty) = &charges.penalty
            && verdicts.cooldown.is_none()
            && !charges.dry_run
            && !verdicts.admitted(charges)
        {
            verdicts.cooldown = match verdicts.episode(charges) {
                Some(episode) => self.note_refusal(penalty, episode, decided_at, deadline).await,
                None => None,
            };
        }
        Ok(verdicts)
    }

    /// Takes back what one shard charged, if it charged anything.
    fn refund(
        &self,
        group: &Group,
        charges: &Charges<'_>,
        answer: &Answer,
        now: Timestamp,
    ) -> Option<Refund> {
        let mut arguments = Arguments::new(Mode { forced: true, dry_run: false }, None);
        let mut keys: SmallVec<[String; 4]> = SmallVec::new();
        let mut taken: SmallVec<[(usize, u32); 4]> = SmallVec::new();
        // A shard that refused itself has charged nothing, nor one that keeps the client out.
        if answer.in_cooldown {
            return None;
        }
        let told: SmallVec<[(usize, &Charge<'_>, &Told); 4]> = (group.positions.iter().zip(&answer.told))
            .map(|(position, told)| (*position, &charges.charges[*position], told))
            .collect();
        if told.iter().any(|(_, charge, told)| !told.verdict.admits() && charge.effect == Effect::Enforce) {
            return None;
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
            self.add(&back, false, refund, now, &mut keys, &mut arguments).ok()?;
            taken.push((position, grant.granted));
        }
        if keys.is_empty() {
            return None;
        }
        let (tell, told) = oneshot::channel();
        let (background, shard) = (self.background.clone(), group.shard);
        let (command, count) = (self.script.call(&keys, &arguments), keys.len());
        let begun = self.background.run(async move {
            let plain = std::iter::repeat_n(Extra::None, count);
            let answer = background.call(shard, command).await.and_then(|value| Answer::read(&value, plain));
            // Nobody may wait for it any more.
            let _ = tell.send(answer.map(|answer| answer.told).unwrap_or_default());
        });
        if begun {
            self.refunds.fetch_add(count as u64, Ordering::Relaxed);
        }
        Some(Refund { taken, told })
    }

    /// Notes a refusal in a record that is kept elsewhere than the counter that refused. For how long the client is kept
    /// out is told if that is known in time; it is noted all the same.
    async fn note_refusal(
        &self,
        penalty: &PenaltyCharge<'_>,
        episode: Span,
        decided_at: Timestamp,
        deadline: Instant,
    ) -> Option<Span> {
        let tag = Tag::new(penalty.subject);
        let command = self.script.call(&[keys::record(&tag)], &Arguments::note(penalty, episode));
        let (shard, home, listing) = (self.shards.shard(&tag), self.home(), listing(penalty, decided_at));
        let (tell, told) = oneshot::channel();
        let background = self.background.clone();
        self.background.run(async move {
            let Ok(value) = background.call(shard, command).await else { return };
            let Ok(answer) = Answer::read(&value, std::iter::empty()) else { return };
            if answer.noted {
                for command in listing {
                    background.send(home, command);
                }
            }
            // Nobody may wait for it any more.
            let _ = tell.send(answer.cooldown);
        });
        timeout_at(deadline.into(), told).await.ok()?.ok()?
    }
}

/// Charges that are being taken back in one shard.
pub(crate) struct Refund {
    /// Their positions, and what was granted along with each: a slice stays here.
    taken: SmallVec<[(usize, u32); 4]>,
    told: oneshot::Receiver<SmallVec<[Told; 4]>>,
}

/// The verdicts, with counters as they stand without what is taken back. Where that is not known in time, they are told
/// as they stood with it.
pub(crate) async fn without_refunded(
    refunds: SmallVec<[Refund; 4]>,
    verdicts: Result<Verdicts, Fault>,
    deadline: Instant,
) -> Result<Verdicts, Fault> {
    let mut verdicts = verdicts?;
    for Refund { taken, told } in refunds {
        let Ok(Ok(told)) = timeout_at(deadline.into(), told).await else { continue };
        for ((position, granted), told) in taken.into_iter().zip(told) {
            if let Some(verdict) = verdicts.verdicts.get_mut(position) {
                verdict.remaining = told.verdict.remaining.saturating_add(granted);
                verdict.reset_after = told.verdict.reset_after;
            }
        }
    }
    Ok(verdicts)
}

/// The verdicts of all shards_seen in the order of the charges. Who is refused by one is refused, whatever another says that
/// gives no answer: those would have no limit at all whose others are counted where nobody can be asked.
pub(crate) fn merge(
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
    let (mut cooldown, mut in_cooldown, mut fault) = (None, false, None);
    for (group, answer) in groups.iter().zip(answers) {
        match answer {
            Err(error) => fault = fault.or(Some(error)),
            Ok(answer) => {
                cooldown = cooldown.or(answer.cooldown);
                in_cooldown |= answer.in_cooldown;
                for (position, told) in group.positions.iter().zip(&answer.told) {
                    verdicts[*position] = Some(told.whole());
                }
            }
        }
    }
    debug_assert_eq!(verdicts.len(), charges.charges.len());
    let told = charges.charges.iter().zip(verdicts);
    let told = told.map(|(charge, verdict)| verdict.unwrap_or_else(|| Verdict::unused(charge.limit)));
    let verdicts = Verdicts { verdicts: told.collect(), cooldown, in_cooldown };
    match fault {
        Some(fault) if verdicts.admitted(charges) => Err(fault.clone()),
        _ => Ok(verdicts),
    }
}
