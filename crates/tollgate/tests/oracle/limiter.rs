//! The same comparison through a limiter: rules from TOML, several limits, one decision.

use std::fmt::Write;

use tollgate::algorithms::Outcome;
use tollgate::counters::Effect;
use tollgate::decision::{Answer, Refusal};
use tollgate::{Endpoint, Id, Limiter, MemoryCounters, Request, RuleSet, Timestamp};

use crate::compare::{uncharged, verdict_of};
use crate::model::{self, Evaluated, ModelLimit, ModelOutcome, State};
use crate::random::{Random, any_limit, span};

struct ModelCounter {
    numbers: ModelLimit,
    effect: Effect,
    state: Option<State>,
}

/// A rule set in which every rule applies, each in its own layer, and its limits in order.
fn any_rules(random: &mut Random) -> (String, Vec<ModelCounter>) {
    // A limiting rule for another user: without one, the built-in default would apply too.
    let mut text = "[[rules]]\nname = \"other\"\nwhen = { users = [\"bob\"] }\nper = [\"user\"]\n\
                    limits = [{ requests = 1, window = \"1s\" }]\n"
        .to_owned();
    let mut counters = Vec::new();
    for number in 0..random.between(1, 4) {
        let (numbers, _) = any_limit(random);
        let throttled = numbers.max_delay.is_some();
        let shadow = !throttled && random.chance(1, 4);
        let action = if throttled { "throttle" } else { ["reject", "log_only"][usize::from(shadow)] };
        let ModelLimit { algorithm, requests, window, burst, max_delay } = &numbers;
        let burst = burst.map(|burst| format!(", burst = {burst}")).unwrap_or_default();
        let delay = max_delay.map(|delay| format!("max_delay = \"{delay}us\"\n")).unwrap_or_default();
        writeln!(
            text,
            "[[rules]]\nname = \"r{number}\"\nlayer = \"l{number}\"\npriority = {number}\nper = [\"user\"]\n\
             algorithm = \"{algorithm}\"\naction = \"{action}\"\n{delay}\
             limits = [{{ requests = {requests}, window = \"{window}us\"{burst} }}]"
        )
        .unwrap();
        let effect = if shadow { Effect::Shadow } else { Effect::Enforce };
        counters.push(ModelCounter { numbers, effect, state: None });
    }
    (text, counters)
}

/// The combined verdict: semantics 2.9.
fn answer(counters: &[ModelCounter], evaluated: &[Evaluated]) -> Answer {
    let enforced = || counters.iter().zip(evaluated).filter(|(counter, _)| counter.effect == Effect::Enforce);
    let outcomes = || enforced().map(|(_, evaluated)| evaluated.verdict.outcome);
    if outcomes().any(|outcome| outcome == ModelOutcome::Never) {
        return Answer::Refuse { reason: Refusal::CostExceedsLimit, retry_after: None };
    }
    let longest = |wait: fn(ModelOutcome) -> Option<i128>| outcomes().filter_map(wait).max();
    let refused =
        longest(
            |outcome| {
                if let ModelOutcome::Refuse { retry_after } = outcome { Some(retry_after) } else { None }
            },
        );
    if let Some(wait) = refused {
        return Answer::Refuse { reason: Refusal::OverLimit, retry_after: Some(span(wait)) };
    }
    let delay =
        longest(|outcome| if let ModelOutcome::Admit { delay } = outcome { Some(delay) } else { None });
    Answer::Admit { delay: span(delay.unwrap_or(0)) }
}

fn compare_one(
    limiter: &Limiter<MemoryCounters>,
    counters: &mut [ModelCounter],
    cost: u32,
    now: i128,
) -> Result<(), String> {
    let user = Some(Id::parse("alice").unwrap());
    let request = Request { user, cost, ..Request::new(Endpoint::parse("/").unwrap()) };
    let evaluated: Vec<Evaluated> = (counters.iter())
        .map(|counter| model::evaluate(&counter.numbers, counter.state.as_ref(), i128::from(cost), now))
        .collect();
    let decision = limiter.check_now(&request, Timestamp::from_micros(u64::try_from(now).unwrap()));
    let expected = answer(counters, &evaluated);
    if decision.answer != expected {
        return Err(format!("{:?} instead of {expected:?}", decision.answer));
    }
    for ((report, evaluated), counter) in decision.reports.iter().zip(&evaluated).zip(&*counters) {
        let mut verdict = verdict_of(&evaluated.verdict, now);
        if !decision.admits() {
            verdict = uncharged(verdict, &counter.numbers, counter.state.as_ref(), now);
        }
        if report.verdict != verdict {
            return Err(format!("{:?} instead of {verdict:?}", report.verdict));
        }
        let silent = matches!(verdict.outcome, Outcome::Admit { .. }) && report.remaining() > report.requests;
        if silent {
            return Err("more remains than the limit".to_owned());
        }
    }
    for (counter, evaluated) in counters.iter_mut().zip(evaluated) {
        let next =
            if decision.admits() { evaluated.charged.or(evaluated.repaired) } else { evaluated.repaired };
        counter.state = next.or(counter.state.take());
    }
    Ok(())
}

#[test]
fn every_decision_equals_the_exact_model() {
    let mut decisions = 0;
    for seed in 0..1_000 {
        let mut random = Random::new(seed);
        let (text, mut counters) = any_rules(&mut random);
        let rules = RuleSet::from_toml(&text).unwrap_or_else(|problems| panic!("{problems}\n{text}"));
        let limiter = Limiter::new(rules, MemoryCounters::default());
        let mut now = 1_700_000_000_000_000;
        for _ in 0..40 {
            let numbers = &counters[usize::try_from(random.next() % counters.len() as u64).unwrap()].numbers;
            let window = numbers.window;
            now += match random.between(0, 5) {
                0..=2 => 0,
                3 => random.between(0, 2 * window / numbers.requests.max(1)),
                4 => random.between(0, 2 * window),
                _ => -random.between(0, window.min(1_000_000)),
            };
            let cost = random.pick(&[0, 1, 1, 1, 2, 5, 100, 10_000]);
            let compared = compare_one(&limiter, &mut counters, cost, now);
            compared.unwrap_or_else(|error| panic!("seed {seed}, cost {cost} at {now}: {error}\n{text}"));
            decisions += 1;
        }
    }
    assert_eq!(decisions, 40_000);
}
