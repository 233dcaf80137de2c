//! The units that one decision takes from leases and the leases that it requests.

use std::time::Instant;

use smallvec::SmallVec;
use tollgate::counters::{Charges, Verdicts};

use super::ShardCharges;
use crate::redis::connection::error::Fault;
use crate::redis::lease::{LeaseTable, ServedBy};
use crate::redis::script::reply::Reply;

/// What a decision takes from leases. Dropped unconfirmed, because the request was refused or canceled, it puts units back
/// and abandons requested leases.
pub(crate) struct LeaseUse<'a, 'c> {
    leases: &'a LeaseTable,
    charges: &'a Charges<'c>,
    /// How each charge is served; empty once confirmed.
    pub(crate) served_by: SmallVec<[ServedBy; 4]>,
}

impl<'a, 'c> LeaseUse<'a, 'c> {
    /// Takes the charges from leases if `leasing`, else leaves all to the server.
    pub(crate) fn take(
        leases: &'a LeaseTable,
        charges: &'a Charges<'c>,
        leasing: bool,
        now: Instant,
    ) -> Self {
        if !leasing {
            let served_by = SmallVec::from_elem(ServedBy::Server, charges.charges.len());
            return LeaseUse { leases, charges, served_by };
        }
        let is_violation = |position| charges.penalty.is_some_and(|penalty| penalty.is_violation(position));
        // Units of a single charge are used at once: nothing else can refuse it.
        let held = charges.charges.len() > 1;
        let serve = |(position, charge)| match leases.take(charge, held, now) {
            // Only the server records violations.
            ServedBy::Exhausted(_) if is_violation(position) => ServedBy::Server,
            served_by => served_by,
        };
        let served_by = charges.charges.iter().enumerate().map(serve).collect();
        LeaseUse { leases, charges, served_by }
    }

    /// The verdicts if no server is needed.
    pub(crate) fn verdicts(&mut self) -> Option<Verdicts> {
        // Without charges the client's penalty record is wanted.
        if self.served_by.is_empty() {
            return None;
        }
        if self.served_by.iter().any(|served_by| matches!(served_by, ServedBy::Exhausted(_))) {
            return self.refusal();
        }
        let leased = self.served_by.iter().map(|served_by| match served_by {
            ServedBy::Lease(verdict, _) => Some(*verdict),
            _ => None,
        });
        let verdicts = leased.collect::<Option<SmallVec<[_; 4]>>>()?;
        self.confirm();
        Some(Verdicts { verdicts, ..Verdicts::default() })
    }

    /// A refusal by an exhausted counter, if all other verdicts are known too: one of them may have the longest wait.
    /// Otherwise the server is asked about exhausted counters as well.
    fn refusal(&mut self) -> Option<Verdicts> {
        let known = self.served_by.iter().map(|served_by| match served_by {
            ServedBy::Exhausted(verdict) | ServedBy::Lease(verdict, _) => Some(*verdict),
            ServedBy::Server | ServedBy::NewLease(..) => None,
        });
        if let Some(verdicts) = known.collect::<Option<SmallVec<[_; 4]>>>() {
            let mut verdicts = Verdicts { verdicts, ..Verdicts::default() };
            self.add_put_back(&mut verdicts);
            return Some(verdicts);
        }
        for served_by in &mut self.served_by {
            if matches!(served_by, ServedBy::Exhausted(_)) {
                *served_by = ServedBy::Server;
            }
        }
        None
    }

    /// Applies the replies to lease requests.
    pub(crate) fn apply_grants(
        &mut self,
        groups: &[ShardCharges],
        replies: &[Result<Reply, Fault>],
        sent_at: Instant,
    ) {
        for (group, reply) in groups.iter().zip(replies) {
            for (index, position) in group.positions.iter().enumerate() {
                let ServedBy::NewLease(request, ticket) = self.served_by[*position] else { continue };
                // The request is answered, so dropping this no longer abandons it.
                self.served_by[*position] = ServedBy::Server;
                let charge = &self.charges.charges[*position];
                match reply {
                    // The counters of a client in cooldown were only read.
                    Ok(reply) if reply.in_cooldown => self.leases.withdraw(charge, &request, ticket),
                    Ok(reply) => {
                        match reply.charges.get(index).and_then(|reply| Some((reply.verdict, reply.grant?))) {
                            Some((verdict, grant)) => {
                                self.leases.grant(charge, (&request, ticket), verdict, grant, sent_at);
                            }
                            None => self.leases.withdraw(charge, &request, ticket),
                        }
                    }
                    Err(fault) if fault.charged_nothing() => self.leases.withdraw(charge, &request, ticket),
                    Err(_) => self.leases.abandon(charge, &request, ticket),
                }
            }
        }
    }

    /// Counts units that are about to be put back as remaining.
    pub(crate) fn add_put_back(&self, verdicts: &mut Verdicts) {
        let verdicts = self.served_by.iter().zip(&self.charges.charges).zip(&mut verdicts.verdicts);
        for ((served_by, charge), verdict) in verdicts {
            if let ServedBy::Lease(..) = served_by {
                verdict.remaining =
                    verdict.remaining.saturating_add(charge.cost).min(charge.limit.capacity());
            }
        }
    }

    /// The request is admitted: the units are used.
    pub(crate) fn confirm(&mut self) {
        self.decided(true);
        self.served_by.clear();
    }

    fn decided(&self, used: bool) {
        // A single charge is not held.
        if self.served_by.len() < 2 {
            return;
        }
        for (charge, served_by) in self.charges.charges.iter().zip(&self.served_by) {
            if let ServedBy::Lease(_, ticket) = served_by {
                self.leases.decided(charge, *ticket, used);
            }
        }
    }
}

impl Drop for LeaseUse<'_, '_> {
    fn drop(&mut self) {
        self.decided(false);
        for (charge, served_by) in self.charges.charges.iter().zip(&self.served_by) {
            if let ServedBy::NewLease(request, ticket) = served_by {
                self.leases.abandon(charge, request, *ticket);
            }
        }
    }
}
