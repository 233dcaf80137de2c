//! Items of the database as the library takes them.

use std::net::IpAddr;

use tollgate::accounts::{Accounts, AccountsEditor, BlockTarget, NewKey};
use tollgate::rules::overrides::Override;
use tollgate::{Algorithm, Endpoint, Id, Limit, Span, Timestamp, Window};
use tollgate_stores::sql::{BlockItem, BlockKind, Item, ItemId, KeyItem, QuotaItem, UserEndpointLimit};
use tracing::warn;

use crate::auth::scope::{Scope, Scopes};

/// Puts what an item says about users, keys and blocks into the accounts; whether it says anything about them.
pub(super) fn put(accounts: &mut AccountsEditor, item: &Item) -> bool {
    let put = match item {
        Item::Quota(quota) => put_quota(accounts, quota),
        Item::Key(key) => put_key(accounts, key),
        Item::Block(block) => put_block(accounts, block),
        Item::Rule(_) | Item::Tier(_) | Item::Limit(_) => return false,
    };
    if let Err(reason) = put {
        // The door lets in nothing like it: somebody wrote to the tables.
        warn!(item = %item.id(), reason, "what the database holds cannot be used, and is left out");
        remove(accounts, &item.id());
    }
    true
}

/// Takes an item out of the accounts; whether it could be in them.
pub(super) fn remove(accounts: &mut AccountsEditor, id: &ItemId) -> bool {
    match id {
        ItemId::Quota(user) => accounts.remove_user(user),
        ItemId::Key(id) => accounts.remove_key(id),
        ItemId::Block { kind, subject } => {
            if let Some(who) = blocked(*kind, subject) {
                accounts.remove_block(who);
            }
        }
        ItemId::Rule(_) | ItemId::Tier(_) | ItemId::Limit { .. } => return false,
    }
    true
}

fn put_quota(accounts: &mut AccountsEditor, quota: &QuotaItem) -> Result<(), String> {
    accounts.put_user(&quota.user, quota.tier.as_deref(), quota.limits).map_err(|error| error.to_string())
}

fn put_key(accounts: &mut AccountsEditor, key: &KeyItem) -> Result<(), String> {
    let until = key.previous_until_micros.map(Timestamp::from_micros);
    accounts
        .put_key(&NewKey {
            id: &key.id,
            verifier: key.hash,
            previous: key.previous_hash.zip(until),
            user: key.user.as_deref(),
            tenant: key.tenant.as_deref(),
            tier: key.tier.as_deref(),
            scopes: scopes(&key.scopes).bits(),
            limits: key.limits,
            expires_at: key.expires_at_micros.map(Timestamp::from_micros),
            is_revoked: key.revoked_at_micros.is_some(),
        })
        .map_err(|error| error.to_string())
}

/// A scope of a later version is none here.
fn scopes(names: &[String]) -> Scopes {
    names.iter().filter_map(|name| Scope::parse(name)).collect()
}

fn put_block(accounts: &mut AccountsEditor, block: &BlockItem) -> Result<(), String> {
    let who = blocked(block.kind, &block.subject).ok_or("it is no address")?;
    accounts.put_block(who, &block.reason, block.until_micros.map(Timestamp::from_micros));
    Ok(())
}

/// Whether a block of the same client is known that lasts longer.
pub(super) fn lasts_longer(accounts: &Accounts, than: &BlockItem) -> bool {
    // In force at the beginning of time: in force or over, whatever the time is.
    let known = blocked(than.kind, &than.subject).and_then(|who| accounts.block(who, Timestamp::default()));
    let until = |until: Option<Timestamp>| until.map_or(u64::MAX, Timestamp::as_micros);
    known.is_some_and(|known| until(known.until) > until(than.until_micros.map(Timestamp::from_micros)))
}

/// Whether there is a block of this client, in force or over.
pub(super) fn is_blocked(accounts: &Accounts, kind: BlockKind, subject: &str) -> bool {
    blocked(kind, subject).is_some_and(|who| accounts.block(who, Timestamp::default()).is_some())
}

fn blocked(kind: BlockKind, subject: &str) -> Option<BlockTarget<'_>> {
    Some(match kind {
        BlockKind::User => BlockTarget::User(subject),
        BlockKind::ApiKey => BlockTarget::ApiKey(subject),
        BlockKind::Tenant => BlockTarget::Tenant(subject),
        BlockKind::Login => BlockTarget::Login(subject),
        BlockKind::Ip => {
            let network = subject.parse().ok();
            BlockTarget::Ip(network.or_else(|| subject.parse::<IpAddr>().ok().map(Into::into))?)
        }
    })
}

/// Numbers for one user on one endpoint; nothing if they make no limit.
pub(super) fn override_of(stored: &UserEndpointLimit, set_at: Timestamp) -> Option<Override> {
    let window = Window::Length(Span::from_micros(stored.window_micros));
    let algorithm = Algorithm::parse(&stored.algorithm)?;
    let limit = Limit::with_options(algorithm, stored.requests, window, stored.burst, None).ok()?;
    let (user, endpoint) = (Id::parse(&stored.user).ok()?, Endpoint::parse(&stored.endpoint).ok()?);
    Some(Override::new(user, &endpoint, limit, set_at))
}

/// The same numbers, to be stored.
pub(crate) fn limit_of(numbers: &Override) -> UserEndpointLimit {
    let limit = &numbers.limit.limit;
    UserEndpointLimit {
        user: numbers.user.to_string(),
        endpoint: numbers.endpoint.to_string(),
        requests: limit.requests(),
        window_micros: limit.window_length().as_micros(),
        algorithm: limit.algorithm().as_str().to_owned(),
        burst: limit.burst(),
    }
}
