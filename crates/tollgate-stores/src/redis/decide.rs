//! One decision: its charges grouped by place, one call for each, and what was taken given back if any refuses.

use std::sync::atomic::Ordering;
use std::time::Instant;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tollgate::algorithms::Outcome;
use tollgate::counters::{Charge, Charges, Effect, PenaltyCharge, Verdicts};
use tollgate::{Span, Timestamp};

use super::Store;
use super::error::Fault;
use super::keys::{self, Tag};
use super::router::Place;
use super::script::{Answer, Arguments, Extra, Mode, Told};

/// The charges of one decision that share a place.
struct Group {
    place: Place,
    /// Which charges.
    positions: SmallVec<[usize; 4]>,
    /// Whether the client's record is here too.
    watched: bool,
    /// Whether other charges are elsewhere: then a refusal is noted when all are known, by the longest of the windows.
    apart: bool,
}

impl Store {
    /// Decides, at whatever places the counters are; and by which instant of a server.
    pub(super) async fn decide(
        &self,
        charges: &Charges<'_>,
        now: Timestamp,
    ) -> Result<(Verdicts, Option<Timestamp>), Fault> {
        let started = Instant::now();
        let refusals = self.refusals.as_ref().filter(|_| !charges.dry_run);
        if let Some(verdicts) = refusals.and_then(|refusals| refusals.answer(charges, started)) {
            return Ok((verdicts, None));
        }
        let deadline = started + self.timeout;
        let groups = self.groups(charges);
        let (verdicts, decided_at) = match groups.as_slice() {
            [group] => {
                let extras = vec![Extra::None; charges.charges.len()];
                let answer = self.ask(group, charges, &extras, now, deadline).await?;
                let decided_at = answer.now;
                (self.conclude(charges, answer).await, decided_at)
            }
            _ => self.decide_apart(&groups, charges, now, deadline).await?,
        };
        match refusals {
            Some(refusals) if verdicts.admitted(charges) => refusals.outdate(charges),
            Some(refusals) => refusals.remember(charges, &verdicts, started),
            None => {}
        }
        Ok((verdicts, Some(decided_at)))
    }

    fn groups(&self, charges: &Charges<'_>) -> SmallVec<[Group; 2]> {
        let mut groups: SmallVec<[Group; 2]> = SmallVec::new();
        let mut group_at = |place: Place| -> usize {
            groups.iter().position(|group| group.place == place).unwrap_or_else(|| {
                groups.push(Group { place, positions: SmallVec::new(), watched: false, apart: false });
                groups.len() - 1
            })
        };
        let record = charges.penalty.as_ref().map(|penalty| group_at(self.place(penalty.subject)));
        let places: SmallVec<[usize; 4]> =
            charges.charges.iter().map(|charge| group_at(self.place(charge.subject))).collect();
        for (position, group) in places.into_iter().enumerate() {
            groups[group].positions.push(position);
        }
        if let Some(record) = record {
            groups[record].watched = true;
        }
        let apart = groups.len() > 1;
        groups.iter_mut().for_each(|group| group.apart = apart);
        groups
    }

    fn place(&self, subject: tollgate::identity::Subject) -> Place {
        self.router.place(&Tag::new(subject))
    }

    /// One call for one group. `extras` are those of all charges of the decision.
    async fn ask(
        &self,
        group: &Group,
        charges: &Charges<'_>,
        extras: &[Extra],
        now: Timestamp,
        deadline: Instant,
    ) -> Result<Answer, Fault> {
        let penalty = charges.penalty.as_ref().filter(|_| group.watched);
        let mode = Mode { dry_run: charges.dry_run, ..Mode::default() };
        let mut arguments = Arguments::new(mode, penalty);
        let mut keys: SmallVec<[String; 4]> = SmallVec::new();
        keys.extend(penalty.map(|penalty| keys::record(self.schema, &Tag::new(penalty.subject))));
        for position in &group.positions {
            let charge = &charges.charges[*position];
            let blamed = !group.apart && penalty.is_some_and(|penalty| penalty.blames(*position));
            arguments.push(charge, blamed, extras[*position], now);
            keys.push(self.counter_key(charge));
        }
        let command = self.script.call(&keys, &arguments);
        let value = self.router.call(group.place, command, deadline).await?;
        let answer = Answer::read(&value, group.positions.iter().map(|position| extras[*position]))?;
        self.note_clock(answer.now, now);
        Ok(answer)
    }

    fn note_clock(&self, theirs: Timestamp, ours: Timestamp) {
        let offset =
            i64::try_from(theirs.as_micros()).unwrap_or(0) - i64::try_from(ours.as_micros()).unwrap_or(0);
        self.clock_offset.store(offset, Ordering::Relaxed);
    }

    /// The verdicts of a decision that was made in one place.
    async fn conclude(&self, charges: &Charges<'_>, answer: Answer) -> Verdicts {
        if let Some(penalty) = charges.penalty.as_ref().filter(|_| answer.noted) {
            self.list_record(penalty, answer.now).await;
        }
        Verdicts {
            verdicts: answer.told.iter().map(|told| told.verdict).collect(),
            cooldown: answer.cooldown,
        }
    }

    /// One call per place, all at once. If any refuses, or gives no answer, the others take back what they charged.
    async fn decide_apart(
        &self,
        groups: &[Group],
        charges: &Charges<'_>,
        now: Timestamp,
        deadline: Instant,
    ) -> Result<(Verdicts, Timestamp), Fault> {
        let extras = vec![Extra::Refundable; charges.charges.len()];
        let calls = groups.iter().map(|group| self.ask(group, charges, &extras, now, deadline));
        let answers: Vec<Result<Answer, Fault>> = join_all(calls).await;
        let verdicts = merge(groups, &answers, charges);
        let admitted = verdicts.as_ref().is_ok_and(|verdicts| verdicts.admitted(charges));
        if !admitted && !charges.dry_run {
            for (group, answer) in groups.iter().zip(&answers) {
                if let Ok(answer) = answer {
                    self.refund(group, charges, answer, now).await;
                }
            }
        }
        let mut verdicts = verdicts?;
        let decided_at = answers.iter().flatten().map(|answer| answer.now).max().unwrap_or(now);
        if let Some(penalty) = &charges.penalty
            && !admitted
            && !charges.dry_run
            && verdicts.cooldown.is_none()
        {
            verdicts.cooldown = self.note_refusal(penalty, charges, &verdicts, now, deadline).await;
        }
        Ok((verdicts, decided_at))
    }

    /// Takes back what one place charged.
    async fn refund(&self, group: &Group, charges: &Charges<'_>, answer: &Answer, now: Timestamp) {
        let mut arguments = Arguments::new(Mode { forced: true, dry_run: false }, None);
        let mut keys: SmallVec<[String; 4]> = SmallVec::new();
        // A place that refused itself has charged nothing.
        let told: SmallVec<[(&Charge<'_>, &Told); 4]> =
            group.positions.iter().map(|position| &charges.charges[*position]).zip(&answer.told).collect();
        if told.iter().any(|(charge, told)| !told.verdict.admits() && charge.effect == Effect::Enforce) {
            return;
        }
        for (charge, told) in told {
            if let Some(grant) = told.grant.filter(|_| told.verdict.admits() && charge.cost > 0) {
                let back = Charge { cost: 0, ..*charge };
                arguments.push(&back, false, Extra::Refund { mark: grant.mark, cost: charge.cost }, now);
                keys.push(self.counter_key(charge));
            }
        }
        if keys.is_empty() {
            return;
        }
        self.refunds.fetch_add(keys.len() as u64, Ordering::Relaxed);
        let command = self.script.call(&keys, &arguments);
        // The request need not wait for it, and must not fail by it: what is not given back is only counted too much.
        let _ = self.router.call(group.place, command, Instant::now() + self.timeout).await;
    }

    /// Notes a refusal in a record that is kept elsewhere than the counter that refused.
    async fn note_refusal(
        &self,
        penalty: &PenaltyCharge<'_>,
        charges: &Charges<'_>,
        verdicts: &Verdicts,
        now: Timestamp,
        deadline: Instant,
    ) -> Option<Span> {
        let window = longest_refusing_window(penalty, charges, verdicts)?;
        let arguments = Arguments::note(penalty, window);
        let tag = Tag::new(penalty.subject);
        let command = self.script.call(&[keys::record(self.schema, &tag)], &arguments);
        let value = self.router.call(self.router.place(&tag), command, deadline).await.ok()?;
        let answer = Answer::read(&value, std::iter::empty()).ok()?;
        self.note_clock(answer.now, now);
        if answer.noted {
            self.list_record(penalty, answer.now).await;
        }
        answer.cooldown
    }
}

/// The verdicts of all places in the order of the charges.
fn merge(
    groups: &[Group],
    answers: &[Result<Answer, Fault>],
    charges: &Charges<'_>,
) -> Result<Verdicts, Fault> {
    let mut verdicts: SmallVec<[Option<Told>; 4]> = SmallVec::from_elem(None, charges.charges.len());
    let mut cooldown = None;
    for (group, answer) in groups.iter().zip(answers) {
        let answer = answer.as_ref().map_err(Fault::clone)?;
        cooldown = cooldown.or(answer.cooldown);
        if group.watched && answer.cooldown.is_some() && answer.told.len() < group.positions.len().max(1) {
            // Kept out since before: its limits do not matter.
            return Ok(Verdicts { verdicts: SmallVec::new(), cooldown });
        }
        for (position, told) in group.positions.iter().zip(&answer.told) {
            verdicts[*position] = Some(*told);
        }
    }
    let verdicts = verdicts.into_iter().flatten().map(|told| told.verdict).collect();
    Ok(Verdicts { verdicts, cooldown })
}

fn longest_refusing_window(
    penalty: &PenaltyCharge<'_>,
    charges: &Charges<'_>,
    verdicts: &Verdicts,
) -> Option<Span> {
    let refusing =
        |(position, (charge, verdict)): &(usize, (&Charge<'_>, &tollgate::algorithms::Verdict))| {
            charge.effect == Effect::Enforce
                && charge.cost > 0
                && penalty.blames(*position)
                && matches!(verdict.outcome, Outcome::Refuse { .. })
        };
    let judged = charges.charges.iter().zip(&verdicts.verdicts).enumerate();
    judged.filter(refusing).map(|(_, (charge, _))| charge.limit.window_length()).max()
}
