//! What every counter store must do, written once.
//!
//! A store's test file is one line:
//!
//! ```
//! tollgate::counters::conformance!(tollgate::MemoryCounters::default());
//! # fn main() {}
//! ```
//!
//! Each case becomes a test with a fresh store. A store that takes the caller's word for the time is driven by
//! [`ManualClock`], and every comparison is exact. A store with a clock of its own brings a [`Harness`] that says what
//! time it is, lets time pass by waiting, and admits by how much it may be off; `conformance!(harness = …)` then runs
//! the same cases with windows short enough to wait for. Subjects are random, so a store may be shared and old.

#![allow(clippy::missing_panics_doc, reason = "a case panics when the store is wrong: that is its answer")]

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use smallvec::SmallVec;

use super::{Charge, Charges, CounterAdmin, CounterId, CounterStore, Effect, PenaltyCharge, Verdicts};
use crate::algorithms::sliding_window_log::Log;
use crate::algorithms::{self, CounterState, Outcome, Verdict};
use crate::identity::{Client, Id, Seed, Subject};
use crate::limit::{Algorithm, Limit, Window};
use crate::penalties::PenaltyPolicy;
use crate::time::{Span, Timestamp};

/// A store under test and the clock it goes by.
pub trait Harness: Sync {
    /// The store.
    type Store: CounterStore + CounterAdmin;

    /// The store, fresh.
    fn store(&self) -> &Self::Store;

    /// What time the store takes it to be.
    fn now(&self) -> Timestamp;

    /// Lets at least this much time pass for the store.
    fn advance(&self, span: Span);

    /// How much time may pass for the store, unasked, while a case makes a few dozen calls. Nothing for a store that
    /// takes the caller's word for the time.
    fn drift(&self) -> Span {
        Span::ZERO
    }

    /// Runs a future to its end. A store that needs a runtime says how.
    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        block_on(future)
    }
}

/// The harness of a store that takes the caller's word for the time.
pub struct ManualClock<S> {
    store: S,
    now: AtomicU64,
}

impl<S> ManualClock<S> {
    /// The store, on the first day of 2026.
    pub fn new(store: S) -> Self {
        ManualClock { store, now: AtomicU64::new(Timestamp::from_secs(1_767_225_600).as_micros()) }
    }
}

impl<S: CounterStore + CounterAdmin> Harness for ManualClock<S> {
    type Store = S;

    fn store(&self) -> &S {
        &self.store
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.now.load(Ordering::Relaxed))
    }

    fn advance(&self, span: Span) {
        self.now.fetch_add(span.as_micros(), Ordering::Relaxed);
    }
}

/// Runs a future to its end on this thread, parked while there is nothing to do.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

/// Declares one test per case. The argument makes a fresh store, or after `harness =` a fresh [`Harness`]. With `cases`
/// instead, it is a list of all cases and their names, for a store whose servers take long to start.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance {
    (harness = $harness:expr) => {
        $crate::__conformance! { @ tests [$harness] }
    };
    (cases) => {
        $crate::__conformance! { @ list [] }
    };
    (@ $form:ident [$($argument:tt)*]) => {
        $crate::__conformance! { @ $form [$($argument)*]
            refusal_by_one_limit_charges_no_other
            verdicts_keep_the_order_of_the_charges
            two_callers_cannot_share_the_last_unit
            two_callers_cannot_split_a_pair_of_limits
            subjects_and_rules_do_not_share_counters
            burst_returns_after_idle_window
            waiting_as_long_as_told_is_enough
            cost_above_capacity_is_never
            limit_of_zero_refuses_for_ever
            peek_changes_nothing
            dry_run_changes_nothing
            what_is_not_charged_is_told_as_it_stands
            shadow_refusal_does_not_refuse
            shadow_is_charged_with_the_others_or_not_at_all
            cooldown_refuses_whatever_the_limits_say
            refusal_that_starts_a_cooldown_says_how_long
            one_episode_is_one_violation
            reset_gives_everything_back
            reset_spares_other_subjects
            limits_change_and_consumption_stays
            random_traces_equal_the_pure_functions
        }
    };
    (@ tests [$harness:expr] $($case:ident)+) => {
        $(
            #[test]
            fn $case() {
                $crate::counters::conformance::$case(&$harness);
            }
        )+
    };
    (@ list [] $($case:ident)+) => {
        [$((stringify!($case), $crate::counters::conformance::$case as fn(&_))),+]
    };
    ($store:expr) => {
        $crate::__conformance! { harness = $crate::counters::conformance::ManualClock::new($store) }
    };
}

/// Long enough that nothing comes back while a case runs.
const LONG: Span = Span::from_secs(86_400);

/// One limit of one subject.
struct Gauge {
    limit: Limit,
    subject: Subject,
    counter: CounterId,
    rule: &'static str,
    effect: Effect,
}

impl Gauge {
    fn new(algorithm: Algorithm, requests: u32, window: Span) -> Self {
        let limit = limit(algorithm, requests, window);
        let (subject, counter) = (Subject(random()), CounterId(random()));
        Gauge { limit, subject, counter, rule: "conformance", effect: Effect::Enforce }
    }

    fn long(algorithm: Algorithm, requests: u32) -> Self {
        Gauge::new(algorithm, requests, LONG)
    }

    fn shadow(self) -> Self {
        Gauge { effect: Effect::Shadow, ..self }
    }

    fn charge(&self, cost: u32) -> Charge<'_> {
        let Gauge { limit, subject, counter, rule, effect } = self;
        Charge { subject: *subject, counter: *counter, rule, limit, cost, effect: *effect, leases: true }
    }
}

fn limit(algorithm: Algorithm, requests: u32, window: Span) -> Limit {
    match Limit::new(algorithm, requests, Window::Length(window)) {
        Ok(limit) => limit,
        Err(error) => panic!("{error}"),
    }
}

fn random() -> u128 {
    u128::from_le_bytes(Seed::random().0)
}

/// All limits of one request, charged together.
fn charges<'a>(gauges: &[&'a Gauge], cost: u32) -> Charges<'a> {
    let charges: SmallVec<[Charge<'a>; 4]> = gauges.iter().map(|gauge| gauge.charge(cost)).collect();
    Charges { charges, ..Charges::default() }
}

fn ask<H: Harness>(harness: &H, charges: &Charges<'_>) -> Verdicts {
    match harness.block_on(harness.store().charge_all(charges, harness.now())) {
        Ok(verdicts) => verdicts,
        Err(error) => panic!("the store gave no verdicts: {error}"),
    }
}

fn charge<H: Harness>(harness: &H, gauge: &Gauge, cost: u32) -> Verdict {
    ask(harness, &charges(&[gauge], cost)).verdicts[0]
}

fn remaining<H: Harness>(harness: &H, gauge: &Gauge) -> u32 {
    charge(harness, gauge, 0).remaining
}

fn admits_all<H: Harness>(harness: &H, gauges: &[&Gauge], cost: u32) -> bool {
    let charges = charges(gauges, cost);
    ask(harness, &charges).admitted(&charges)
}

/// A window that a case can wait for.
fn short<H: Harness>(harness: &H) -> Span {
    if harness.drift().is_zero() { Span::from_secs(60) } else { Span::from_secs(2) }
}

/// What a case takes on a real clock at most, however slow the machine is.
const CASE_MAX: Span = Span::from_secs(30);

/// Not so near the end of an aligned window that it could end in the middle of a case.
fn settle<H: Harness>(harness: &H, window: Span) {
    if harness.drift().is_zero() {
        return;
    }
    let gone = harness.now().as_micros() % window.as_micros();
    let left = window.as_micros() - gone;
    if left <= (window.as_micros() / 2).min(CASE_MAX.as_micros()) {
        harness.advance(Span::from_micros(left));
    }
}

/// By how much a time that is told now may be off, if what it is compared with began then: by what a store is allowed, and
/// by what has passed since, which on a machine that stands still is more.
fn slack<H: Harness>(harness: &H, since: Timestamp) -> Span {
    let drift = harness.drift();
    if drift.is_zero() { drift } else { drift + harness.now().since(since) }
}

/// How often a round is tried on a machine that stands still in the middle of each.
const TRIES: usize = 5;

/// Until a round is over before its limits have given anything back: one that is not says nothing of the store.
fn try_in_time(algorithm: Algorithm, round: impl Fn() -> Option<()>) {
    assert!((0..TRIES).any(|_| round().is_some()), "{algorithm}: the machine is too slow for any round");
}

/// Something, if nothing of a limit with this window can have come back since.
fn in_time<H: Harness>(harness: &H, since: Timestamp, window: Span) -> Option<()> {
    (harness.now().since(since).as_micros() < window.as_micros() / 4).then_some(())
}

/// All or nothing: the limit that would have admitted is left as it was.
pub fn refusal_by_one_limit_charges_no_other<H: Harness>(harness: &H) {
    settle(harness, LONG);
    for algorithm in Algorithm::ALL {
        let (wide, narrow) = (Gauge::long(algorithm, 10), Gauge::long(Algorithm::FixedWindow, 1));
        assert!(admits_all(harness, &[&wide, &narrow], 1));
        for order in [[&wide, &narrow], [&narrow, &wide]] {
            assert!(!admits_all(harness, &order, 1), "{algorithm}");
        }
        assert_eq!(remaining(harness, &wide), 9, "{algorithm}");
    }
}

/// The first verdict belongs to the first charge.
pub fn verdicts_keep_the_order_of_the_charges<H: Harness>(harness: &H) {
    settle(harness, LONG);
    let gauges: Vec<Gauge> = (1..=16).map(|n| Gauge::long(Algorithm::FixedWindow, n * 10)).collect();
    let mut order: Vec<&Gauge> = gauges.iter().collect();
    for _ in 0..2 {
        order.reverse();
        let left: Vec<u32> = ask(harness, &charges(&order, 0)).verdicts.iter().map(|v| v.remaining).collect();
        assert_eq!(left, order.iter().map(|gauge| gauge.limit.requests()).collect::<Vec<_>>());
    }
}

/// Between a look and a write nobody else gets in.
pub fn two_callers_cannot_share_the_last_unit<H: Harness>(harness: &H) {
    settle(harness, LONG);
    for algorithm in Algorithm::ALL {
        let gauge = Gauge::long(algorithm, 20);
        let caller = || (0..25).filter(|_| charge(harness, &gauge, 1).admits()).count();
        let admitted: usize = thread::scope(|scope| {
            let callers = [(); 4].map(|()| scope.spawn(caller));
            callers.into_iter().map(|caller| caller.join().unwrap_or(usize::MAX)).sum()
        });
        assert_eq!(admitted, 20, "{algorithm}");
    }
}

/// Two limits in different orders from several callers: as much is taken of one as of the other.
pub fn two_callers_cannot_split_a_pair_of_limits<H: Harness>(harness: &H) {
    settle(harness, LONG);
    let (one, other) = (Gauge::long(Algorithm::TokenBucket, 30), Gauge::long(Algorithm::FixedWindow, 20));
    let caller = |order: [&Gauge; 2]| (0..25).filter(|_| admits_all(harness, &order, 1)).count();
    let admitted: usize = thread::scope(|scope| {
        let callers = [[&one, &other], [&other, &one]].map(|order| scope.spawn(move || caller(order)));
        callers.into_iter().map(|caller| caller.join().unwrap_or(usize::MAX)).sum()
    });
    assert_eq!((admitted, remaining(harness, &one), remaining(harness, &other)), (20, 10, 0));
}

/// Neither two subjects of a rule nor two rules of a subject.
pub fn subjects_and_rules_do_not_share_counters<H: Harness>(harness: &H) {
    settle(harness, LONG);
    for algorithm in Algorithm::ALL {
        let first = Gauge::long(algorithm, 1);
        let subject = Gauge { subject: Subject(random()), ..Gauge::long(algorithm, 1) };
        let subject = Gauge { counter: first.counter, ..subject };
        let rule = Gauge { subject: first.subject, rule: "conformance-2", ..Gauge::long(algorithm, 1) };
        assert!(charge(harness, &first, 1).admits() && !charge(harness, &first, 1).admits());
        assert!(charge(harness, &subject, 1).admits(), "{algorithm}: another subject");
        assert!(charge(harness, &rule, 1).admits(), "{algorithm}: another rule");
    }
}

/// After the time it announces, a limit is as good as new, and not better.
pub fn burst_returns_after_idle_window<H: Harness>(harness: &H) {
    let window = short(harness);
    let round = |algorithm| {
        let gauge = Gauge::new(algorithm, 3, window);
        settle(harness, window);
        let started = harness.now();
        let told = [(); 4].map(|()| charge(harness, &gauge, 1));
        in_time(harness, started, window)?;
        let Verdict { outcome: Outcome::Admit { .. }, remaining: 0, reset_after } = told[2] else {
            panic!("{algorithm}: {told:?}");
        };
        assert!(!told[3].admits(), "{algorithm}");
        harness.advance(reset_after);
        settle(harness, window);
        let started = harness.now();
        assert_eq!(remaining(harness, &gauge), 3, "{algorithm}");
        assert!(charge(harness, &gauge, 3).admits(), "{algorithm}");
        let fourth = charge(harness, &gauge, 1);
        in_time(harness, started, window)?;
        assert!(!fourth.admits(), "{algorithm}: a fourth of three");
        Some(())
    };
    for algorithm in Algorithm::ALL {
        try_in_time(algorithm, || round(algorithm));
    }
}

/// A refused client that waits exactly as long as it was told is admitted, and no sooner.
pub fn waiting_as_long_as_told_is_enough<H: Harness>(harness: &H) {
    let window = short(harness);
    let round = |algorithm| {
        let gauge = Gauge::new(algorithm, 3, window);
        settle(harness, window);
        let started = harness.now();
        assert!(charge(harness, &gauge, 3).admits());
        let told = charge(harness, &gauge, 2).outcome;
        in_time(harness, started, window)?;
        let Outcome::Refuse { retry_after } = told else { panic!("{algorithm}: {told:?}") };
        if harness.drift().is_zero() {
            harness.advance(Span::from_micros(retry_after.as_micros() - 1));
            assert!(!charge(harness, &gauge, 2).admits(), "{algorithm}: too early");
            harness.advance(Span::from_micros(1));
        } else {
            harness.advance(retry_after);
        }
        assert!(charge(harness, &gauge, 2).admits(), "{algorithm}");
        Some(())
    };
    for algorithm in Algorithm::ALL {
        try_in_time(algorithm, || round(algorithm));
    }
}

/// What never fits is told so; what just fits is served.
pub fn cost_above_capacity_is_never<H: Harness>(harness: &H) {
    settle(harness, LONG);
    for algorithm in Algorithm::ALL {
        let gauge = Gauge::long(algorithm, 5);
        let never = charge(harness, &gauge, 6);
        assert_eq!((never.outcome, never.remaining), (Outcome::Never, 5), "{algorithm}");
        assert!(charge(harness, &gauge, 5).admits(), "{algorithm}");
    }
}

/// A limit of zero is a way to close a door.
pub fn limit_of_zero_refuses_for_ever<H: Harness>(harness: &H) {
    for algorithm in Algorithm::ALL {
        for cost in [0, 1] {
            let verdict = charge(harness, &Gauge::long(algorithm, 0), cost);
            assert_eq!(
                verdict,
                Verdict { outcome: Outcome::Never, remaining: 0, reset_after: Span::ZERO },
                "{algorithm}"
            );
        }
    }
}

/// A cost of zero asks whether one would pass, and takes nothing.
pub fn peek_changes_nothing<H: Harness>(harness: &H) {
    settle(harness, LONG);
    for algorithm in Algorithm::ALL {
        let gauge = Gauge::long(algorithm, 2);
        for left in [2, 1, 0] {
            for _ in 0..3 {
                let peek = charge(harness, &gauge, 0);
                assert_eq!((peek.remaining, peek.admits()), (left, left > 0), "{algorithm}");
            }
            assert_eq!(charge(harness, &gauge, 1).admits(), left > 0, "{algorithm}");
        }
    }
}

/// A dry run is told what would be, and takes nothing; nor does its refusal count against the client.
pub fn dry_run_changes_nothing<H: Harness>(harness: &H) {
    settle(harness, LONG);
    let policy = PenaltyPolicy { violation_threshold: 1, ..PenaltyPolicy::default() };
    for algorithm in Algorithm::ALL {
        let (gauge, client) = (Gauge::long(algorithm, 2), Watched::new());
        let dry = |cost| Charges {
            dry_run: true,
            penalty: Some(client.penalty(&policy)),
            ..charges(&[&gauge], cost)
        };
        for _ in 0..3 {
            let verdict = ask(harness, &dry(2)).verdicts[0];
            assert_eq!((verdict.admits(), verdict.remaining), (true, 2), "{algorithm}");
        }
        assert!(charge(harness, &gauge, 2).admits(), "{algorithm}");
        for _ in 0..3 {
            let verdicts = ask(harness, &dry(1));
            assert!(verdicts.cooldown.is_none() && !verdicts.verdicts[0].admits(), "{algorithm}");
        }
    }
}

/// A dry run, and a refusal by another limit: what remains and until when is what a look finds, of the same moment.
pub fn what_is_not_charged_is_told_as_it_stands<H: Harness>(harness: &H) {
    settle(harness, LONG);
    for algorithm in Algorithm::ALL {
        let (gauge, closed) = (Gauge::long(algorithm, 5), Gauge::long(algorithm, 0));
        for used in 0..3 {
            let started = harness.now();
            let looked = charge(harness, &gauge, 0);
            assert_eq!(
                (looked.remaining, looked.reset_after.is_zero()),
                (5 - used, used == 0),
                "{algorithm}"
            );
            for cost in [1, 2] {
                let dry = ask(harness, &Charges { dry_run: true, ..charges(&[&gauge], cost) }).verdicts[0];
                let refused = ask(harness, &charges(&[&gauge, &closed], 1)).verdicts[0];
                let slack = slack(harness, started);
                for told in [dry, refused] {
                    let same = told.remaining == looked.remaining
                        && near(told.reset_after, looked.reset_after, slack);
                    assert!(told.admits() && same, "{algorithm}, {used} used: {told:?}, looked: {looked:?}");
                }
            }
            assert!(charge(harness, &gauge, 1).admits(), "{algorithm}");
        }
    }
}

/// A limit that only shadows never refuses the request, and is told as if it did.
pub fn shadow_refusal_does_not_refuse<H: Harness>(harness: &H) {
    settle(harness, LONG);
    for algorithm in Algorithm::ALL {
        let (enforced, shadow) = (Gauge::long(algorithm, 3), Gauge::long(algorithm, 1).shadow());
        for admitted_by_shadow in [true, false, false] {
            let both = charges(&[&shadow, &enforced], 1);
            let verdicts = ask(harness, &both);
            assert!(verdicts.admitted(&both), "{algorithm}");
            assert_eq!(verdicts.verdicts[0].admits(), admitted_by_shadow, "{algorithm}");
        }
        assert_eq!((remaining(harness, &enforced), remaining(harness, &shadow)), (0, 0), "{algorithm}");
    }
}

/// A shadow shows what would be if it were enforced, so a refused request does not count for it.
pub fn shadow_is_charged_with_the_others_or_not_at_all<H: Harness>(harness: &H) {
    settle(harness, LONG);
    for algorithm in Algorithm::ALL {
        let (enforced, shadow) = (Gauge::long(algorithm, 1), Gauge::long(algorithm, 5).shadow());
        assert!(admits_all(harness, &[&enforced, &shadow], 1));
        assert!(!admits_all(harness, &[&enforced, &shadow], 1), "{algorithm}");
        assert_eq!(remaining(harness, &shadow), 4, "{algorithm}");
    }
}

/// A client whose conduct is watched.
struct Watched {
    subject: Subject,
    name: String,
}

impl Watched {
    fn new() -> Self {
        Watched { subject: Subject(random()), name: format!("{:032x}", random()) }
    }

    fn client(&self) -> Client<'_> {
        match Id::parse(&self.name) {
            Ok(id) => Client::User(id),
            Err(error) => panic!("{error}"),
        }
    }

    fn penalty<'a>(&'a self, policy: &'a PenaltyPolicy) -> PenaltyCharge<'a> {
        PenaltyCharge { subject: self.subject, client: self.client(), policy, client_charges: u32::MAX }
    }

    fn ask<H: Harness>(&self, harness: &H, gauge: &Gauge, policy: &PenaltyPolicy) -> Verdicts {
        let charges = charges(&[gauge], 1);
        ask(harness, &Charges { penalty: Some(self.penalty(policy)), ..charges })
    }

    /// Violations on record and whether the client is kept out.
    fn record<H: Harness>(&self, harness: &H) -> Option<(usize, bool)> {
        let Ok(list) = harness.block_on(harness.store().penalized_clients(usize::MAX, harness.now())) else {
            panic!("the store gave no list");
        };
        let shown = self.client().to_string();
        let found = list.into_iter().find(|penalised| penalised.client == shown)?;
        Some((found.violations, found.cooldown_until.is_some()))
    }
}

fn strict(cooldown: Span) -> PenaltyPolicy {
    PenaltyPolicy { violation_threshold: 1, base_cooldown: cooldown, ..PenaltyPolicy::default() }
}

/// While a client is kept out its limits are at most looked at; afterwards they are charged again.
pub fn cooldown_refuses_whatever_the_limits_say<H: Harness>(harness: &H) {
    settle(harness, LONG);
    let policy = strict(short(harness));
    let (used_up, free, client) =
        (Gauge::long(Algorithm::FixedWindow, 1), Gauge::long(Algorithm::FixedWindow, 9), Watched::new());
    assert!(client.ask(harness, &used_up, &policy).verdicts[0].admits());
    assert!(!client.ask(harness, &used_up, &policy).verdicts[0].admits());
    let in_cooldown = client.ask(harness, &free, &policy);
    assert!(in_cooldown.in_cooldown, "{in_cooldown:?}");
    assert!(in_cooldown.verdicts.iter().all(|verdict| verdict.remaining == 9), "{in_cooldown:?}");
    let Some(left) = in_cooldown.cooldown else { panic!("no cooldown: {in_cooldown:?}") };
    assert!(left <= policy.base_cooldown);
    assert_eq!(remaining(harness, &free), 9);
    assert!(Watched::new().ask(harness, &free, &policy).verdicts[0].admits(), "another client");
    harness.advance(left);
    assert!(client.ask(harness, &free, &policy).verdicts[0].admits());
}

/// Whoever is told to come back when the limit allows it, and is then kept out, was told wrong.
pub fn refusal_that_starts_a_cooldown_says_how_long<H: Harness>(harness: &H) {
    settle(harness, LONG);
    let policy = PenaltyPolicy { violation_threshold: 2, ..strict(LONG) };
    let policy = PenaltyPolicy { cooldown_max: LONG, ..policy };
    let (first, second, client) = (
        Gauge::new(Algorithm::FixedWindow, 0, short(harness)),
        Gauge::new(Algorithm::TokenBucket, 1, short(harness)),
        Watched::new(),
    );
    assert_eq!(client.ask(harness, &first, &policy).cooldown, None, "what never fits is no violation");
    assert!(client.ask(harness, &second, &policy).verdicts[0].admits());
    assert_eq!(client.ask(harness, &second, &policy).cooldown, None, "the first violation is free");
    harness.advance(short(harness));
    assert!(client.ask(harness, &second, &policy).verdicts[0].admits());
    let refused = client.ask(harness, &second, &policy);
    assert!(matches!(refused.verdicts[0].outcome, Outcome::Refuse { .. }), "{refused:?}");
    assert_eq!(refused.cooldown, Some(LONG));
}

/// Retries of an impatient client do not escalate.
pub fn one_episode_is_one_violation<H: Harness>(harness: &H) {
    settle(harness, LONG);
    let (gauge, client, policy) =
        (Gauge::long(Algorithm::TokenBucket, 1), Watched::new(), PenaltyPolicy::default());
    assert!(client.ask(harness, &gauge, &policy).verdicts[0].admits());
    assert_eq!(client.record(harness), None);
    for _ in 0..10 {
        assert_eq!(client.ask(harness, &gauge, &policy).cooldown, None);
    }
    assert_eq!(client.record(harness), Some((1, false)));
}

fn reset<H: Harness>(harness: &H, charges: &Charges<'_>) -> usize {
    match harness.block_on(harness.store().reset(charges)) {
        Ok(count) => count,
        Err(error) => panic!("the store did not reset: {error}"),
    }
}

/// The counters and the record of a client start anew.
pub fn reset_gives_everything_back<H: Harness>(harness: &H) {
    settle(harness, LONG);
    let policy = strict(LONG);
    for algorithm in Algorithm::ALL {
        let (gauge, untouched, client) =
            (Gauge::long(algorithm, 2), Gauge::long(algorithm, 2), Watched::new());
        assert!(charge(harness, &gauge, 2).admits());
        assert!(!client.ask(harness, &gauge, &policy).verdicts[0].admits());
        assert!(client.record(harness).is_some());
        let all = Charges { penalty: Some(client.penalty(&policy)), ..charges(&[&gauge, &untouched], 1) };
        assert_eq!(reset(harness, &all), 1, "{algorithm}: one of two held something");
        assert_eq!(remaining(harness, &gauge), 2, "{algorithm}");
        assert_eq!(client.record(harness), None, "{algorithm}");
        assert!(client.ask(harness, &gauge, &policy).verdicts[0].admits(), "{algorithm}");
    }
}

/// Only what was named is forgotten.
pub fn reset_spares_other_subjects<H: Harness>(harness: &H) {
    settle(harness, LONG);
    for algorithm in Algorithm::ALL {
        let mine = Gauge::long(algorithm, 2);
        let theirs = Gauge { counter: mine.counter, ..Gauge::long(algorithm, 2) };
        assert!(charge(harness, &mine, 2).admits() && charge(harness, &theirs, 2).admits());
        reset(harness, &charges(&[&mine], 1));
        assert_eq!((remaining(harness, &mine), remaining(harness, &theirs)), (2, 0), "{algorithm}");
    }
}

/// Raised, a limit has the difference more; lowered, what was used still counts, and never less than nothing remains.
pub fn limits_change_and_consumption_stays<H: Harness>(harness: &H) {
    settle(harness, LONG);
    for algorithm in Algorithm::ALL {
        let mut gauge = Gauge::long(algorithm, 10);
        assert!(charge(harness, &gauge, 6).admits());
        for (requests, left) in [(100, 94), (8, 2), (10, 4), (6, 0), (3, 0), (10, 4)] {
            gauge.limit = limit(algorithm, requests, LONG);
            assert_eq!(remaining(harness, &gauge), left, "{algorithm} changed to {requests}");
        }
        gauge.limit = limit(algorithm, 20, LONG);
        assert!(charge(harness, &gauge, 10).admits());
        gauge.limit = limit(algorithm, 17, LONG);
        assert_eq!(remaining(harness, &gauge), 1, "{algorithm}");
    }
}

/// A counter as the pure functions keep it, asked by one caller at a time: what a store is compared with.
#[derive(Clone, Debug, Default)]
pub struct Reference {
    cell: Option<CounterState>,
    log: Log,
}

impl Reference {
    /// What a charge is told; it is taken if it is admitted.
    pub fn charge(&mut self, limit: &Limit, cost: u32, now: Timestamp) -> Verdict {
        if limit.algorithm() == Algorithm::SlidingWindowLog {
            let verdict = self.log.evaluate(limit, cost, now);
            if verdict.admits() && cost > 0 {
                self.log.record(limit, cost, now);
            }
            return verdict;
        }
        let judgement = algorithms::evaluate(limit, self.cell, cost, now);
        self.cell = judgement.next.map(|next| next.cell).or(self.cell);
        judgement.verdict
    }
}

fn near(a: Span, b: Span, slack: Span) -> bool {
    a.as_micros().abs_diff(b.as_micros()) <= slack.as_micros()
}

/// Whether the store's verdict is the expected one, as far as its clock lets one tell.
fn alike(told: Verdict, expected: Verdict, slack: Span) -> bool {
    let near = |a, b| near(a, b, slack);
    let outcome = match (told.outcome, expected.outcome) {
        (Outcome::Admit { delay: a }, Outcome::Admit { delay: b })
        | (Outcome::Refuse { retry_after: a }, Outcome::Refuse { retry_after: b }) => near(a, b),
        (Outcome::Never, Outcome::Never) => true,
        _ => false,
    };
    outcome && told.remaining == expected.remaining && near(told.reset_after, expected.reset_after)
}

/// The store decides what the algorithms decide, on any mixture of costs, instants and algorithms.
pub fn random_traces_equal_the_pure_functions<H: Harness>(harness: &H) {
    let drift = harness.drift();
    settle(harness, LONG);
    let mut seed = 1_u64;
    let mut next = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for trace in 0..60 {
        let algorithm = Algorithm::ALL[trace % Algorithm::ALL.len()];
        let requests = u32::try_from(next(12) + 1).unwrap_or(1);
        let window = if drift.is_zero() { Span::from_micros((next(100) + 1) * 1_000) } else { LONG };
        let gauge = Gauge::new(algorithm, requests, window);
        let (mut reference, started) = (Reference::default(), harness.now());
        for step in 0..30 {
            if drift.is_zero() {
                harness.advance(Span::from_micros(next(3) * next(window.as_micros())));
            }
            let cost = u32::try_from(next(4)).unwrap_or(0);
            let expected = reference.charge(&gauge.limit, cost, harness.now());
            let told = charge(harness, &gauge, cost);
            // Every answer of a trace tells of its first charge, which may have been late.
            assert!(
                alike(told, expected, slack(harness, started)),
                "step {step} of trace {trace}, {algorithm} {requests} per {window}, cost {cost}: {told:?} \
                 instead of {expected:?}"
            );
        }
    }
}
