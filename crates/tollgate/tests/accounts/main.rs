//! Users, API keys and blocks.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod blocks;
mod edits;
mod overrides;
mod resolution;
mod size;
mod snapshot;
mod tenants;

use tollgate::accounts::{AccountLimits, AccountsEditor, Key};
use tollgate::counters::conformance::block_on;
use tollgate::{
    Accounts, ApiKey, Client, Decision, Endpoint, Id, Limiter, MemoryCounters, Request, RuleSet, Timestamp,
};

const NOW: Timestamp = Timestamp::from_secs(1_767_225_600);

fn limiter(toml: &str) -> Limiter<MemoryCounters> {
    let rules = RuleSet::from_toml(toml).unwrap_or_else(|problems| panic!("{problems}\n{toml}"));
    Limiter::new(rules, MemoryCounters::default())
}

/// Changes the accounts of a limiter.
fn edit(limiter: &Limiter<MemoryCounters>, change: impl Fn(&mut AccountsEditor)) {
    limiter.update_accounts(|accounts| edited(accounts, &change));
}

fn edited(accounts: &Accounts, change: impl Fn(&mut AccountsEditor)) -> Accounts {
    let mut editor = accounts.edit();
    change(&mut editor);
    editor.finish()
}

fn id(text: &str) -> Option<Id<'_>> {
    Id::parse(text).ok()
}

fn at(path: &str) -> Request<'_> {
    Request::new(Endpoint::parse(path).unwrap())
}

fn by_user(user: &str) -> Request<'_> {
    Request { user: id(user), ..at("/") }
}

/// A key id as a verified key.
fn known(client: &str) -> Option<ApiKey<'_>> {
    match Client::parse(client) {
        Some(Client::ApiKey(key)) => Some(key),
        _ => None,
    }
}

fn by_key(client: &str) -> Request<'_> {
    Request { api_key: known(client), ..at("/") }
}

fn new_key(id: &str) -> Key<'_> {
    Key::new(id, [7; 32])
}

fn per_hour(requests: u32) -> AccountLimits {
    AccountLimits { requests_per_hour: Some(requests), ..AccountLimits::default() }
}

fn admitted(limiter: &Limiter<MemoryCounters>, request: &Request<'_>) -> usize {
    (0..1_000).take_while(|_| limiter.check_now(request, NOW).admits()).count()
}

/// The decision of a dry run. The index and the full evaluation must agree.
fn look(limiter: &Limiter<MemoryCounters>, request: &Request<'_>) -> Decision {
    let peeked = block_on(limiter.snapshot().peek(request, NOW));
    let explained = block_on(limiter.snapshot().explain(request, NOW)).decision;
    assert_eq!((peeked.answer, &peeked.reports), (explained.answer, &explained.reports));
    assert_eq!((peeked.rule_name(), peeked.block()), (explained.rule_name(), explained.block()));
    peeked
}

/// The rules whose limits were charged, in order.
fn asked(decision: &Decision) -> Vec<&str> {
    decision.reports.iter().map(|report| decision.rule_name_of(report)).collect()
}
