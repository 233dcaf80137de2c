//! What a decision has to do with leases: what it takes from them, what it asks for them, and what goes back.

use std::time::{Instant, SystemTime};

use futures_util::stream::{self, StreamExt};
use smallvec::SmallVec;
use tollgate::Timestamp;
use tollgate::counters::{Charge, Charges, Effect, Verdicts};

use crate::redis::Store;
use crate::redis::connection::error::Fault;
use crate::redis::decide::Group;
use crate::redis::lease::{LeaseTable, Owner, Serving};
use crate::redis::script::{Answer, Arguments, Extra, LeaseRequest, Mode, Settle};

/// How many slices are on their way back at a time.
const GIVEN_BACK_AT_ONCE: usize = 64;

/// What a decision took from leases and what it asks for. When it is dropped, because the request is refused or nobody
/// waits for it any more, what was taken goes back and what was asked for is given up.
pub(crate) struct Taken<'a, 'c> {
    leases: &'a LeaseTable,
    charges: &'a Charges<'c>,
    /// How each charge is served.
    pub(crate) servings: SmallVec<[Serving; 4]>,
}

impl<'a, 'c> Taken<'a, 'c> {
    pub(crate) fn new(store: &'a Store, charges: &'a Charges<'c>, now: Instant) -> Self {
        let leases = &store.leases;
        if !store.leasing || charges.dry_run || store.cooldowns.keep_out(charges, now) {
            let servings = SmallVec::from_elem(Serving::Ask, charges.charges.len());
            return Taken { leases, charges, servings };
        }
        let watched = |position| charges.penalty.is_some_and(|penalty| penalty.is_violation(position));
        let serve = |(position, charge)| match leases.take(charge, now) {
            // Whose refusals are counted is refused by the server, which counts them.
            Serving::Scarce(_) if watched(position) => Serving::Ask,
            serving => serving,
        };
        let servings = charges.charges.iter().enumerate().map(serve).collect();
        Taken { leases, charges, servings }
    }

    /// The verdicts of a decision for which no server need be asked.
    pub(crate) fn verdicts(&mut self) -> Option<Verdicts> {
        // Whoever asks for a client's record alone is told of it.
        if self.servings.is_empty() {
            return None;
        }
        if self.servings.iter().any(|serving| matches!(serving, Serving::Scarce(_))) {
            return self.refusal();
        }
        let leased = self.servings.iter().map(|serving| match serving {
            Serving::Leased(verdict, _) => Some(*verdict),
            _ => None,
        });
        let verdicts = leased.collect::<Option<SmallVec<[_; 4]>>>()?;
        self.use_up();
        Some(Verdicts { verdicts, ..Verdicts::default() })
    }

    /// A refusal by what is known to be scarce, if all that the other limits say is known too: the longest wait may be
    /// theirs. If it is not, the server is asked about those that are scarce as well.
    fn refusal(&mut self) -> Option<Verdicts> {
        let known = self.servings.iter().map(|serving| match serving {
            Serving::Scarce(verdict) | Serving::Leased(verdict, _) => Some(*verdict),
            Serving::Ask | Serving::AskFor(..) => None,
        });
        if let Some(verdicts) = known.collect::<Option<SmallVec<[_; 4]>>>() {
            let mut verdicts = Verdicts { verdicts, ..Verdicts::default() };
            self.tell_as_put_back(&mut verdicts);
            return Some(verdicts);
        }
        for serving in &mut self.servings {
            if matches!(serving, Serving::Scarce(_)) {
                *serving = Serving::Ask;
            }
        }
        None
    }

    /// The request is refused: what was taken from leases is about to be put back.
    pub(crate) fn tell_as_put_back(&self, verdicts: &mut Verdicts) {
        let told = self.servings.iter().zip(&self.charges.charges).zip(&mut verdicts.verdicts);
        for ((serving, charge), verdict) in told {
            if let Serving::Leased(..) = serving {
                verdict.remaining =
                    verdict.remaining.saturating_add(charge.cost).min(charge.limit.capacity());
            }
        }
    }

    /// The request is admitted: what was taken is used.
    pub(crate) fn use_up(&mut self) {
        self.servings.clear();
    }
}

impl Drop for Taken<'_, '_> {
    fn drop(&mut self) {
        for (charge, serving) in self.charges.charges.iter().zip(&self.servings) {
            match serving {
                Serving::Leased(_, ticket) => self.leases.put_back(charge, *ticket),
                Serving::AskFor(_, ticket) => self.leases.failed(charge, *ticket),
                Serving::Scarce(_) | Serving::Ask => {}
            }
        }
    }
}

impl Store {
    /// Puts slices that were granted to use.
    pub(crate) fn take_grants(
        &self,
        groups: &[Group],
        charges: &Charges<'_>,
        servings: &[Serving],
        answers: &[Result<Answer, Fault>],
        asked_at: Instant,
    ) {
        for (group, answer) in groups.iter().zip(answers) {
            for (turn, position) in group.positions.iter().enumerate() {
                let Serving::AskFor(request, ticket) = &servings[*position] else { continue };
                let charge = &charges.charges[*position];
                let told =
                    answer.as_ref().map(|answer| answer.told.get(turn).filter(|_| !answer.in_cooldown));
                match told.map(|told| told.and_then(|told| Some((told.verdict, told.grant?)))) {
                    Ok(Some((verdict, grant))) => {
                        self.leases.granted(charge, (request, *ticket), verdict, grant, asked_at);
                    }
                    // A client that is kept out: its counters were only looked at.
                    Ok(None) => self.leases.withdrawn(charge, request, *ticket),
                    Err(fault) if fault.did_nothing() => self.leases.withdrawn(charge, request, *ticket),
                    Err(_) => self.leases.failed(charge, *ticket),
                }
            }
        }
    }

    /// Gives back what was leased and not used. A bucket is told even if all was: until then it is not paid back.
    pub(crate) async fn settle(&self, ended: Vec<(Owner, Settle)>) {
        let matters = |(owner, settle): &&(Owner, Settle)| settle.unspent > 0 || owner.is_bucket();
        let slices = stream::iter(ended.iter().filter(matters));
        slices
            .for_each_concurrent(GIVEN_BACK_AT_ONCE, async |(owner, settle)| {
                self.give_back(owner, *settle).await;
            })
            .await;
    }

    /// Gives back the slice of a lease that nobody renewed.
    async fn give_back(&self, owner: &Owner, settle: Settle) {
        let charge = Charge {
            subject: owner.subject,
            counter: owner.counter,
            rule: &owner.rule,
            limit: &owner.limit,
            cost: 0,
            effect: Effect::Enforce,
            leases: true,
        };
        let extra = Extra::Lease(LeaseRequest { want: 0, nodes: 1, settle: Some(settle) });
        let (mut arguments, mut keys) = (Arguments::new(Mode::default(), None), SmallVec::new());
        let now = Timestamp::from(SystemTime::now());
        if self.add(&charge, false, extra, now, &mut keys, &mut arguments).is_err() {
            return;
        }
        let command = self.script.call(&keys, &arguments);
        let _ = self.shards.call(self.shard(charge.subject), command, Instant::now() + self.timeout).await;
    }
}
