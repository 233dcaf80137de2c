use tollgate::counters::Effect;
use tollgate::limit::{Algorithm, Window};

use super::leasable::SCARCE_FOR;
use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn limit() -> Limit {
    Limit::new(Algorithm::FixedWindow, 1_000, Window::Length(Span::from_secs(60))).unwrap()
}

fn charge(limit: &Limit) -> Charge<'_> {
    let (subject, counter, effect) = (Subject(1), CounterId(2), Effect::Enforce);
    Charge { subject, counter, rule: "r", limit, cost: 1, effect, leases: true, refundable: false }
}

fn admitted(remaining: u32) -> Verdict {
    Verdict { outcome: Outcome::Admit { delay: Span::ZERO }, remaining, reset_after: Span::ZERO }
}

/// Takes units until a lease is requested.
fn request(leases: &LeaseTable, charge: &Charge<'_>, now: Instant) -> (LeaseRequest, Ticket) {
    let request = (0..200).find_map(|_| match leases.take(charge, false, now) {
        ServedBy::NewLease(request, ticket) => Some((request, ticket)),
        _ => None,
    });
    request.unwrap()
}

fn grant(
    leases: &LeaseTable,
    charge: &Charge<'_>,
    request: &(LeaseRequest, Ticket),
    mark: u64,
    now: Instant,
) {
    let grant = Grant { granted: 10, valid: Span::from_secs(2), born: 1, mark, ..Grant::default() };
    leases.grant(charge, (&request.0, request.1), admitted(500), grant, now);
}

fn units(leases: &LeaseTable, now: Instant) -> u64 {
    leases.outstanding(now).1
}

fn take(leases: &LeaseTable, charge: &Charge<'_>, now: Instant) -> Ticket {
    leased(leases.take(charge, false, now))
}

fn hold(leases: &LeaseTable, charge: &Charge<'_>, now: Instant) -> Ticket {
    leased(leases.take(charge, true, now))
}

fn leased(served_by: ServedBy) -> Ticket {
    match served_by {
        ServedBy::Lease(_, ticket) => ticket,
        other => panic!("{other:?}"),
    }
}

#[test]
fn first_lease_of_a_bucket_is_small() {
    let now = Instant::now();
    let ask = |algorithm| {
        let limit = Limit::new(algorithm, 10_000, Window::Length(Span::from_secs(60))).unwrap();
        let (leases, charge) = (LeaseTable::new(1, now), charge(&limit));
        let (first, ticket) = request(&leases, &charge, now);
        let grant =
            Grant { granted: first.want, valid: Span::from_secs(2), born: 1, mark: 1, ..Grant::default() };
        leases.grant(&charge, (&first, ticket), admitted(500), grant, now);
        let later = now + SECOND / 4;
        (0..first.want).for_each(|_| _ = take(&leases, &charge, later));
        let (next, _) = request(&leases, &charge, later);
        (first.want, next.want)
    };
    // Twenty within RATE_PERIOD_MIN: 400 a second.
    assert_eq!(ask(Algorithm::TokenBucket), (200, 1_600));
    assert_eq!(ask(Algorithm::Gcra).0, 200);
    assert_eq!(ask(Algorithm::FixedWindow).0, 800);
}

#[test]
fn short_leases_at_window_end_keep_the_rate() {
    let (limit, now) = (limit(), Instant::now());
    let (leases, charge) = (LeaseTable::new(1, now), charge(&limit));
    let (mut asked, millisecond) = (request(&leases, &charge, now), SECOND / 1_000);
    let at_first = asked.0.want;
    // Two are granted for the last ten milliseconds; one is used, or both are.
    for used in [1, 2, 1] {
        let grant = Grant { granted: 2, valid: Span::from_millis(10), born: 1, mark: 1, ..Grant::default() };
        leases.grant(&charge, (&asked.0, asked.1), admitted(500), grant, now);
        (0..used).for_each(|_| _ = take(&leases, &charge, now + millisecond));
        asked = request(&leases, &charge, now + 10 * millisecond);
        assert_eq!(asked.0.want, at_first);
    }
}

/// A request that another limit may still refuse holds units. Until it is decided the lease is not settled.
#[test]
fn refused_request_returns_units_of_a_replaced_lease() {
    let (limit, now) = (limit(), Instant::now());
    let (leases, charge) = (LeaseTable::new(1, now), charge(&limit));
    let first = request(&leases, &charge, now);
    grant(&leases, &charge, &first, 1, now);
    let taken: Vec<Ticket> = (0..5).map(|_| hold(&leases, &charge, now)).collect();
    // The window ends, and the next lease is of the next window.
    let later = now + 3 * SECOND;
    assert!(leases.take_expired(later).is_empty(), "units are held");
    let second = request(&leases, &charge, later);
    assert_eq!(second.0.settle, None);
    grant(&leases, &charge, &second, 2, later);
    let ticket = hold(&leases, &charge, later);
    leases.decided(&charge, ticket, true);
    for (at, ticket) in taken.into_iter().enumerate() {
        assert!(leases.take_expired(later).is_empty(), "units are held");
        leases.decided(&charge, ticket, at > 0);
    }
    assert_eq!(units(&leases, later), 9, "of ten, one is used");
    let returned = leases.take_expired(later).pop().map(|lease| lease.settlement);
    let returned = returned.map(|settlement| (settlement.id, settlement.granted, settlement.unspent));
    assert_eq!(returned, Some((first.0.id, 10, 6)), "of ten, four are used");
}

#[test]
fn units_held_while_a_slot_moves_return() {
    let (limit, now) = (limit(), Instant::now());
    let (leases, charge) = (LeaseTable::new(1, now), charge(&limit));
    let first = request(&leases, &charge, now);
    grant(&leases, &charge, &first, 1, now);
    let ticket = hold(&leases, &charge, now);
    assert!(leases.apply_changes(|_| LeaseAction::Return).is_empty(), "a unit is held");
    leases.decided(&charge, ticket, false);
    let returned: Vec<u32> = leases.take_all().iter().map(|lease| lease.settlement.unspent).collect();
    assert_eq!(returned, [10]);
}

/// The lease may be of the counter after the reset; the server ignores one from before.
#[test]
fn lease_revoked_by_a_reset_is_returned() {
    let (limit, now) = (limit(), Instant::now());
    let (leases, charge) = (LeaseTable::new(1, now), charge(&limit));
    let first = request(&leases, &charge, now);
    grant(&leases, &charge, &first, 1, now);
    leases.revoke(counter_key(&charge));
    assert_eq!(units(&leases, now), 0);
    assert_eq!(leases.take_all().len(), 1);
}

#[test]
fn unused_lease_is_returned_after_half_a_second() {
    let (limit, now) = (limit(), Instant::now());
    let (leases, charge) = (LeaseTable::new(1, now), charge(&limit));
    let first = request(&leases, &charge, now);
    grant(&leases, &charge, &first, 1, now);
    let used_at = now + SECOND / 4;
    take(&leases, &charge, used_at);
    assert!(leases.take_expired(now + SECOND * 74 / 100).is_empty());
    let returned = leases.take_expired(now + 3 * SECOND / 4).pop().unwrap();
    assert_eq!((returned.settlement.unspent, returned.settlement.used_at), (9, Some(used_at)));
}

#[test]
fn limits_that_are_restored_at_once_are_not_leased() {
    let limit = |algorithm, requests, burst, millis| {
        let window = Window::Length(Span::from_millis(millis));
        Limit::with_options(algorithm, requests, window, burst, None).unwrap()
    };
    let leased = |limit: &Limit| can_be_leased(&Charge { limit, ..charge(limit) });
    assert!(!leased(&limit(Algorithm::TokenBucket, 40_000, Some(1_000), 1_000)));
    assert!(!leased(&limit(Algorithm::SlidingWindowCounter, 1_000, None, 100)));
    assert!(leased(&limit(Algorithm::FixedWindow, 1_000, None, 1_000)));
    let bucket = limit(Algorithm::Gcra, 1_000, Some(2_000), 1_000);
    assert!(leased(&bucket));
    assert_eq!(pause(&bucket), Duration::from_millis(40));
    assert_eq!(pause(&limit(Algorithm::FixedWindow, 1_000, None, 60_000)), SCARCE_FOR);
}

#[test]
fn lease_granted_before_a_reset_is_ignored() {
    let (limit, now) = (limit(), Instant::now());
    let (leases, charge) = (LeaseTable::new(1, now), charge(&limit));
    let before = request(&leases, &charge, now);
    leases.revoke(counter_key(&charge));
    let after = request(&leases, &charge, now);
    grant(&leases, &charge, &before, 1, now);
    assert_eq!(units(&leases, now), 0);
    leases.abandon(&charge, &before.0, before.1);
    grant(&leases, &charge, &after, 1, now);
    assert_eq!(units(&leases, now), 10);
    leases.abandon(&charge, &before.0, before.1);
    assert_eq!(units(&leases, now), 10, "the first failure does not affect the second lease");
}

#[test]
fn unsent_call_leaves_the_lease_unsettled() {
    let (limit, now) = (limit(), Instant::now());
    let (leases, charge) = (LeaseTable::new(1, now), charge(&limit));
    let first = request(&leases, &charge, now);
    grant(&leases, &charge, &first, 1, now);
    let (request, ticket) = request(&leases, &charge, now + 3 * SECOND);
    leases.withdraw(&charge, &request, ticket);
    let ended = leases.take_expired(now + 3 * SECOND);
    assert_eq!(ended.len(), 1);
    assert_eq!(Some(ended[0].settlement), request.settle);
}

#[test]
fn first_refusal_comes_from_the_server() {
    let (limit, now) = (limit(), Instant::now());
    let (leases, charge) = (LeaseTable::new(1, now), charge(&limit));
    leases.set_nodes(3);
    let (request, ticket) = request(&leases, &charge, now);
    leases.grant(&charge, (&request, ticket), admitted(0), Grant::default(), now);
    assert!(matches!(leases.take(&charge, false, now), ServedBy::NewLease(..)));
    let refused = Verdict { outcome: Outcome::Refuse { retry_after: Span::from_secs(9) }, ..admitted(0) };
    let (request, ticket) = match leases.take(&charge, false, now) {
        ServedBy::Server => (request, Ticket(ticket.0 + 1)),
        other => panic!("{other:?}"),
    };
    leases.grant(&charge, (&request, ticket), refused, Grant::default(), now);
    let ServedBy::Exhausted(Verdict { outcome: Outcome::Refuse { retry_after }, .. }) =
        leases.take(&charge, false, now)
    else {
        panic!("the server was asked again")
    };
    assert!(retry_after > Span::from_secs(8));
    let dearer = Charge { cost: 2, ..charge };
    assert!(
        matches!(leases.take(&dearer, false, now), ServedBy::NewLease(..)),
        "another cost has another wait"
    );
}

#[test]
fn unknown_outcome_returns_both_leases() {
    let (limit, now) = (limit(), Instant::now());
    let (leases, charge) = (LeaseTable::new(1, now), charge(&limit));
    let first = request(&leases, &charge, now);
    grant(&leases, &charge, &first, 1, now);
    (0..9).for_each(|_| _ = take(&leases, &charge, now));
    let ServedBy::NewLease(second, ticket) = leases.take(&Charge { cost: 2, ..charge }, false, now) else {
        panic!("two of one unit")
    };
    leases.abandon(&charge, &second, ticket);
    let returns: Vec<(LeaseId, u32, u32)> = (leases.take_expired(now).into_iter())
        .map(|lease| lease.settlement)
        .map(|settlement| (settlement.id, settlement.granted, settlement.unspent))
        .collect();
    assert_eq!(returns, [(first.0.id, 10, 1), (second.id, u32::MAX, u32::MAX)]);
    assert!(leases.take_expired(now).is_empty(), "each is returned once");
}

#[test]
fn return_is_repeated_until_the_outcome_is_known() {
    let (limit, now) = (limit(), Instant::now());
    let (leases, charge) = (LeaseTable::new(1, now), charge(&limit));
    let lost = || {
        let (request, ticket) = request(&leases, &charge, now);
        leases.abandon(&charge, &request, ticket);
        leases.take_all().pop().unwrap()
    };
    assert!(lost().after(Some(true)).is_none(), "it is returned");
    let mut pending = lost().after(None);
    let mut asked = 0;
    while let Some(lease) = pending {
        pending = lease.after(Some(false));
        asked += 1;
    }
    assert_eq!(asked, 9, "the server may grant the lease late, but not for ever");
    let first = request(&leases, &charge, now);
    grant(&leases, &charge, &first, 1, now);
    let settled = leases.take_all().pop().unwrap().after(None).unwrap();
    assert!(settled.after(Some(false)).is_none(), "an earlier attempt was executed");
}

#[test]
fn failover_drops_pending_returns() {
    let (limit, now) = (limit(), Instant::now());
    let (leases, charge) = (LeaseTable::new(1, now), charge(&limit));
    for (action, kept) in [(LeaseAction::Keep, 1), (LeaseAction::Return, 1), (LeaseAction::Revoke, 0)] {
        let (request, ticket) = request(&leases, &charge, now);
        leases.abandon(&charge, &request, ticket);
        assert!(leases.apply_changes(|_| action).is_empty());
        assert_eq!(leases.take_all().len(), kept, "{action:?}");
    }
}
