//! One decision: its charges grouped by place, one call for each, and what was taken given back if any refuses.

use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime};

use futures_util::future::join_all;
use smallvec::{SmallVec, smallvec};
use tollgate::algorithms::{Outcome, Verdict};
use tollgate::counters::{Charge, Charges, Effect, PenaltyCharge, Verdicts};
use tollgate::{Span, Timestamp};

use super::Store;
use super::error::Fault;
use super::keys::{self, Tag};
use super::leases::{Owner, Serving};
use super::refusals::refused_by;
use super::router::Place;
use super::script::{Answer, Arguments, Bits, Extra, LeaseRequest, Mode, Settle, Told};

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
        self.charges.fetch_add(charges.charges.len() as u64, Ordering::Relaxed);
        let refusals = self.refusals.as_ref().filter(|_| !charges.dry_run);
        if let Some(verdicts) = refusals.and_then(|refusals| refusals.answer(charges, started)) {
            return Ok((verdicts, None));
        }
        let servings = self.serve(charges, started);
        if let Some(verdicts) = self.settled(charges, &servings) {
            return Ok((verdicts, None));
        }
        let asked = self.ask_servers(charges, &servings, now, started).await;
        let admitted = asked.as_ref().is_ok_and(|(verdicts, _)| verdicts.admitted(charges));
        if !admitted {
            self.put_back(charges, &servings);
        }
        let (mut verdicts, decided_at) = asked?;
        if charges.dry_run {
            self.add_leased(charges, &mut verdicts, started);
        }
        match refusals {
            Some(refusals) if admitted => refusals.outdate(charges),
            Some(refusals) => refusals.remember(charges, &verdicts, started),
            None => {}
        }
        Ok((verdicts, Some(decided_at)))
    }

    /// How each charge is served.
    fn serve(&self, charges: &Charges<'_>, now: Instant) -> SmallVec<[Serving; 4]> {
        if !self.leasing || charges.dry_run {
            return SmallVec::from_elem(Serving::Ask, charges.charges.len());
        }
        let watched = |position| charges.penalty.is_some_and(|penalty| penalty.blames(position));
        let serve = |(position, charge)| match self.leases.take(charge, now) {
            // Whose refusals are counted is refused by the server, which counts them.
            Serving::Scarce(_) if watched(position) => Serving::Ask,
            serving => serving,
        };
        charges.charges.iter().enumerate().map(serve).collect()
    }

    /// The verdicts of a decision for which no server need be asked.
    fn settled(&self, charges: &Charges<'_>, servings: &[Serving]) -> Option<Verdicts> {
        // Whoever asks for a client's record alone is told of it.
        if servings.is_empty() {
            return None;
        }
        let scarce = servings.iter().enumerate().find_map(|(position, serving)| match serving {
            Serving::Scarce(verdict) => Some((position, *verdict)),
            _ => None,
        });
        if let Some((position, verdict)) = scarce {
            self.put_back(charges, servings);
            for (charge, serving) in charges.charges.iter().zip(servings) {
                if let Serving::AskFor(_) = serving {
                    self.leases.failed(charge);
                }
            }
            return Some(refused_by(charges, position, verdict));
        }
        let leased = servings.iter().map(|serving| match serving {
            Serving::Leased(verdict) => Some(*verdict),
            _ => None,
        });
        let verdicts = leased.collect::<Option<SmallVec<[_; 4]>>>()?;
        Some(Verdicts { verdicts, cooldown: None })
    }

    /// To whoever only looks, what this node holds of a counter is as good as there.
    fn add_leased(&self, charges: &Charges<'_>, verdicts: &mut Verdicts, now: Instant) {
        for (charge, verdict) in charges.charges.iter().zip(&mut verdicts.verdicts) {
            let left = self.leases.left(charge, now);
            verdict.remaining = verdict.remaining.saturating_add(left);
            if left >= charge.cost.max(1) && matches!(verdict.outcome, Outcome::Refuse { .. }) {
                verdict.outcome = Outcome::Admit { delay: Span::ZERO };
                verdict.remaining = verdict.remaining.saturating_sub(charge.cost);
            }
        }
    }

    /// Gives back to leases what a decision took from them and did not use.
    fn put_back(&self, charges: &Charges<'_>, servings: &[Serving]) {
        for (charge, serving) in charges.charges.iter().zip(servings) {
            if let Serving::Leased(_) = serving {
                self.leases.put_back(charge);
            }
        }
    }

    /// Asks for everything that is not leased.
    async fn ask_servers(
        &self,
        charges: &Charges<'_>,
        servings: &[Serving],
        now: Timestamp,
        started: Instant,
    ) -> Result<(Verdicts, Timestamp), Fault> {
        let deadline = started + self.timeout;
        let groups = self.groups(charges, servings);
        let plain = if groups.len() > 1 { Extra::Refundable } else { Extra::None };
        let extras: SmallVec<[Extra; 4]> = servings
            .iter()
            .map(|serving| match serving {
                Serving::AskFor(request) => Extra::Lease(*request),
                _ => plain,
            })
            .collect();
        let calls = groups.iter().map(|group| self.ask(group, charges, &extras, now, deadline));
        let answers: SmallVec<[Result<Answer, Fault>; 2]> = match groups.as_slice() {
            [group] => smallvec![self.ask(group, charges, &extras, now, deadline).await],
            _ => join_all(calls).await.into(),
        };
        self.take_grants(&groups, charges, &extras, &answers, started);
        let mut verdicts = merge(&groups, &answers, charges, servings);
        if groups.len() > 1 {
            verdicts = self.reconcile(&groups, charges, &answers, verdicts, now, deadline).await;
        }
        let decided_at = answers.iter().flatten().map(|answer| answer.now).max().unwrap_or(now);
        if let Some(penalty) = &charges.penalty
            && answers.iter().flatten().any(|answer| answer.noted)
        {
            self.list_record(penalty, decided_at).await;
        }
        Ok((verdicts?, decided_at))
    }

    /// Puts slices that were granted to use.
    fn take_grants(
        &self,
        groups: &[Group],
        charges: &Charges<'_>,
        extras: &[Extra],
        answers: &[Result<Answer, Fault>],
        asked_at: Instant,
    ) {
        for (group, answer) in groups.iter().zip(answers) {
            for (turn, position) in group.positions.iter().enumerate() {
                let Extra::Lease(request) = &extras[*position] else { continue };
                let charge = &charges.charges[*position];
                let told = answer.as_ref().ok().and_then(|answer| answer.told.get(turn));
                match told.and_then(|told| Some((told.verdict, told.grant?))) {
                    Some((verdict, grant)) => self.leases.granted(charge, request, verdict, grant, asked_at),
                    None => self.leases.failed(charge),
                }
            }
        }
    }

    /// Gives back the slice of a lease that nobody renewed.
    pub(super) async fn give_back(&self, owner: &Owner, settle: Settle) {
        let charge = Charge {
            subject: owner.subject,
            counter: owner.counter,
            rule: &owner.rule,
            limit: &owner.limit,
            cost: 0,
            effect: Effect::Enforce,
            leases: true,
        };
        let request = LeaseRequest { want: 0, nodes: 1, settle: Some(settle) };
        let mut arguments = Arguments::new(Mode::default(), None);
        arguments.push(&charge, Bits::default(), Extra::Lease(request), Timestamp::from(SystemTime::now()));
        let Ok(key) = self.counter_key(&charge) else { return };
        let command = self.script.call(&[key], &arguments);
        let place = self.place(charge.subject);
        let _ = self.router.call(place, command, Instant::now() + self.timeout).await;
    }

    /// The charges that are not leased, by place.
    fn groups(&self, charges: &Charges<'_>, servings: &[Serving]) -> SmallVec<[Group; 2]> {
        let mut groups: SmallVec<[Group; 2]> = SmallVec::new();
        let mut group_at = |place: Place| -> usize {
            groups.iter().position(|group| group.place == place).unwrap_or_else(|| {
                groups.push(Group { place, positions: SmallVec::new(), watched: false, apart: false });
                groups.len() - 1
            })
        };
        let record = charges.penalty.as_ref().map(|penalty| group_at(self.place(penalty.subject)));
        let asked = charges.charges.iter().zip(servings).enumerate();
        let asked = asked.filter(|(_, (_, serving))| !matches!(serving, Serving::Leased(_)));
        let places: SmallVec<[(usize, usize); 4]> =
            asked.map(|(position, (charge, _))| (position, group_at(self.place(charge.subject)))).collect();
        for (position, group) in places {
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
        keys.extend(penalty.map(|penalty| keys::record(&Tag::new(penalty.subject))));
        for position in &group.positions {
            let charge = &charges.charges[*position];
            let blamed = !group.apart && penalty.is_some_and(|penalty| penalty.blames(*position));
            keys.push(self.counter_key(charge)?);
            let before = self.schema.before(charge, now);
            keys.extend(before.map(|before| keys::counter(before, &Tag::new(charge.subject), charge)));
            arguments.push(charge, Bits { blamed, renamed: before.is_some() }, extras[*position], now);
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

    /// After calls in several places: if any refused, or gave no answer, the others take back what they charged; and a
    /// refusal is noted in the client's record, wherever that is.
    async fn reconcile(
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
        for (group, answer) in groups.iter().zip(answers) {
            if let Ok(answer) = answer {
                self.refund(group, charges, answer, now).await;
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
                arguments.push(
                    &back,
                    Bits::default(),
                    Extra::Refund { mark: grant.mark, cost: charge.cost },
                    now,
                );
                keys.extend(self.counter_key(charge));
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

    /// Adds what was counted elsewhere, one call per place.
    pub(super) async fn carry(&self, charges: &Charges<'_>, now: Timestamp) -> Result<(), Fault> {
        let deadline = Instant::now() + self.timeout;
        let asked: SmallVec<[Serving; 4]> = SmallVec::from_elem(Serving::Ask, charges.charges.len());
        let groups = self.groups(charges, &asked);
        let calls = groups.iter().map(async |group| {
            let mut arguments = Arguments::new(Mode { forced: true, dry_run: false }, None);
            let mut keys: SmallVec<[String; 4]> = SmallVec::new();
            for charge in group.positions.iter().map(|position| &charges.charges[*position]) {
                arguments.push(charge, Bits::default(), Extra::None, now);
                keys.push(self.counter_key(charge)?);
            }
            self.router.call(group.place, self.script.call(&keys, &arguments), deadline).await
        });
        join_all(calls).await.into_iter().find_map(Result::err).map_or(Ok(()), Err)
    }

    /// Whether every place of the charges can be asked.
    pub(super) fn reaches(&self, charges: &Charges<'_>) -> bool {
        charges.charges.iter().all(|charge| self.router.reaches(self.place(charge.subject)))
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
fn merge(
    groups: &[Group],
    answers: &[Result<Answer, Fault>],
    charges: &Charges<'_>,
    servings: &[Serving],
) -> Result<Verdicts, Fault> {
    let leased = servings.iter().map(|serving| match serving {
        Serving::Leased(verdict) => Some(*verdict),
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
