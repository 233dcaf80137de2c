//! The same comparison through the whole way of a request: rules from TOML, several limits, one decision.

use std::fmt::Write;

use tollgate::algorithms::Outcome;
use tollgate::counters::Effect;
use tollgate::decision::{Answer, Refusal};
use tollgate::{Endpoint, Id, Limiter, MemoryCounters, Request, RuleSet, Timestamp};

use crate::compare::{uncharged, verdict_of};
use crate::model::{self, Evaluated, Numbers, State, Told};
use crate::random::{Random, any_limit, span};

struct Gauge {
    numbers: Numbers,
    effect: Effect,
    state: Option<State>,
}

/// A rule set in which every rule applies, each in a layer of its own, and the limits it is made of, in order.
fn any_rules(random: &mut Random) -> (String, Vec<Gauge>) {
    let mut text = String::new();
    let mut gauges = Vec::new();
    for number in 0..random.between(1, 4) {
        let (numbers, _) = any_limit(random);
        let throttled = numbers.max_delay.is_some();
        let shadow = !throttled && random.chance(1, 4);
        let action = if throttled { "throttle" } else { ["reject", "log_only"][usize::from(shadow)] };
        let Numbers { algorithm, requests, window, burst, max_delay } = &numbers;
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
        gauges.push(Gauge { numbers, effect, state: None });
    }
    (text, gauges)
}

/// What the verdicts add up to: semantics 2.9.
fn answer(gauges: &[Gauge], evaluated: &[Evaluated]) -> Answer {
    let enforced = || gauges.iter().zip(evaluated).filter(|(gauge, _)| gauge.effect == Effect::Enforce);
    let told = || enforced().map(|(_, evaluated)| evaluated.answer.told);
    if told().any(|told| told == Told::Never) {
        return Answer::Refuse { reason: Refusal::CostExceedsLimit, retry_after: None };
    }
    let longest = |wait: fn(Told) -> Option<i128>| told().filter_map(wait).max();
    let refused =
        longest(|told| if let Told::Refuse { retry_after } = told { Some(retry_after) } else { None });
    if let Some(wait) = refused {
        return Answer::Refuse { reason: Refusal::OverLimit, retry_after: Some(span(wait)) };
    }
    let delay = longest(|told| if let Told::Admit { delay } = told { Some(delay) } else { None });
    Answer::Admit { delay: span(delay.unwrap_or(0)) }
}

fn compare_one(
    limiter: &Limiter<MemoryCounters>,
    gauges: &mut [Gauge],
    cost: u32,
    now: i128,
) -> Result<(), String> {
    let user = Some(Id::parse("alice").unwrap());
    let request = Request { user, cost, ..Request::new(Endpoint::parse("/").unwrap()) };
    let evaluated: Vec<Evaluated> = (gauges.iter())
        .map(|gauge| model::evaluate(&gauge.numbers, gauge.state.as_ref(), i128::from(cost), now))
        .collect();
    let decision = limiter.check_now(&request, Timestamp::from_micros(u64::try_from(now).unwrap()));
    let expected = answer(gauges, &evaluated);
    if decision.answer != expected {
        return Err(format!("{:?} instead of {expected:?}", decision.answer));
    }
    for ((report, evaluated), gauge) in decision.reports.iter().zip(&evaluated).zip(&*gauges) {
        let mut verdict = verdict_of(&evaluated.answer, now);
        if !decision.admits() {
            verdict = uncharged(verdict, &gauge.numbers, gauge.state.as_ref(), now);
        }
        if report.verdict != verdict {
            return Err(format!("{:?} instead of {verdict:?}", report.verdict));
        }
        let silent = matches!(verdict.outcome, Outcome::Admit { .. }) && report.remaining() > report.requests;
        if silent {
            return Err("more remains than the limit".to_owned());
        }
    }
    for (gauge, evaluated) in gauges.iter_mut().zip(evaluated) {
        let next = if decision.admits() { evaluated.charged.or(evaluated.healed) } else { evaluated.healed };
        gauge.state = next.or(gauge.state.take());
    }
    Ok(())
}

#[test]
fn every_decision_of_a_limiter_equals_the_exact_model() {
    let mut decisions = 0;
    for seed in 0..1_000 {
        let mut random = Random::new(seed);
        let (text, mut gauges) = any_rules(&mut random);
        let rules = RuleSet::from_toml(&text).unwrap_or_else(|problems| panic!("{problems}\n{text}"));
        let limiter = Limiter::new(rules, MemoryCounters::default());
        let mut now = 1_700_000_000_000_000;
        for _ in 0..40 {
            let numbers = &gauges[usize::try_from(random.next() % gauges.len() as u64).unwrap()].numbers;
            let window = numbers.window;
            now += match random.between(0, 5) {
                0..=2 => 0,
                3 => random.between(0, 2 * window / numbers.requests.max(1)),
                4 => random.between(0, 2 * window),
                _ => -random.between(0, window.min(1_000_000)),
            };
            let cost = random.pick(&[0, 1, 1, 1, 2, 5, 100, 10_000]);
            let told = compare_one(&limiter, &mut gauges, cost, now);
            told.unwrap_or_else(|error| panic!("seed {seed}, cost {cost} at {now}: {error}\n{text}"));
            decisions += 1;
        }
    }
    assert_eq!(decisions, 40_000);
}
