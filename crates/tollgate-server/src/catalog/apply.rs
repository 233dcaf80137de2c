//! Puts what the database holds in force.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tollgate::accounts::Accounts;
use tollgate::rules::overrides::Override;
use tollgate::{Endpoint, Id, Request, RuleSet, Timestamp};
use tollgate_stores::sql::{Database, DatabaseError, Item, ItemId, Stored};
use tracing::{error, info};

use super::snapshot::Configuration;
use super::{Rules, Source, items};
use crate::app::App;

/// Everything, at one version.
pub(super) async fn load(database: &Database) -> Result<Configuration, DatabaseError> {
    let mut configuration = Configuration::default();
    let mut accounts = Accounts::default().edit();
    let mut overrides = Vec::new();
    let version = database
        .load(|stored: Stored| match &stored.item {
            Item::Rule(_) | Item::Tier(_) => drop(configuration.book.put(&stored.item)),
            Item::Limit(limit) => overrides.extend(items::override_of(limit, set_at(&stored))),
            item => drop(items::put(&mut accounts, item)),
        })
        .await?;
    configuration.version = version;
    configuration.accounts = accounts.finish();
    configuration.overrides = overrides.into_iter().collect();
    Ok(configuration)
}

fn set_at(stored: &Stored) -> Timestamp {
    Timestamp::from_micros(stored.updated_at_micros)
}

/// A whole configuration takes the place of what is in force.
pub(super) fn put_in_force(app: &App, configuration: Configuration, source: Source) {
    let Configuration { version, book, overrides, accounts } = configuration;
    let catalog = app.catalog();
    let set = {
        let mut rules = catalog.rules.lock();
        rules.book = book;
        compile(app, &mut rules, true)
    };
    if let Some(set) = &set {
        app.metrics().follow(set);
    }
    let (accounts, overrides) = (Arc::new(accounts), Arc::new(overrides));
    app.limiter().update_rules(|current| {
        let overrides = if catalog.keeps_limits { &overrides } else { current.overrides() };
        set.as_ref()
            .unwrap_or(current)
            .with_overrides(Arc::clone(overrides))
            .with_accounts(Arc::clone(&accounts))
    });
    catalog.has_keys.store(true, Ordering::Relaxed);
    catalog.update_state(|state| {
        state.source = source;
        if source == Source::Database {
            state.database_error = None;
        }
    });
    catalog.version.send_replace(version);
}

/// Single items take the place of what they were.
pub(super) async fn take_over(app: &App, version: u64, changed: &[(ItemId, Option<Stored>)]) {
    let catalog = app.catalog();
    let before = app.limiter().rules();
    let mut accounts = before.accounts().edit();
    drop(before);
    let mut of_rules = false;
    let set = {
        let mut rules = catalog.rules.lock();
        for (id, stored) in changed {
            of_rules |= match stored {
                Some(stored) => rules.book.put(&stored.item),
                None => rules.book.remove(id),
            };
        }
        if of_rules { compile(app, &mut rules, false) } else { None }
    };
    let mut of_accounts = false;
    for (id, stored) in changed {
        of_accounts |= match stored {
            Some(stored) => items::put(&mut accounts, &stored.item),
            None => items::remove(&mut accounts, id),
        };
    }
    if of_accounts {
        let accounts = accounts.finish();
        app.limiter().update_accounts(|_| accounts.clone());
    }
    if catalog.keeps_limits {
        for (id, stored) in changed {
            take_over_limit(app, id, stored.as_ref()).await;
        }
    }
    if let Some(set) = set {
        app.replace_rules(set);
    }
    if of_rules && let Some(reload) = app.reload() {
        reload.retry_after_clash().await;
    }
    info!(version, changes = changed.len(), "changes of the configuration are in force");
    catalog.version.send_replace(version);
}

async fn take_over_limit(app: &App, id: &ItemId, stored: Option<&Stored>) {
    let ItemId::Limit { user, endpoint } = id else { return };
    let new = stored.and_then(|stored| match &stored.item {
        Item::Limit(limit) => items::override_of(limit, set_at(stored)),
        _ => None,
    });
    let Some(new) = new else {
        app.limiter().update_overrides(|now| now.without(user, endpoint).unwrap_or_else(|| now.clone()));
        return;
    };
    // What was used here under the rule is carried over; on shared counters whoever set the numbers has done so, and so has
    // this node if it is the one.
    if app.counters().memory().is_some() && !app.catalog().is_being_set(user, endpoint) {
        carry_over(app, new).await;
    } else {
        app.limiter().update_overrides(|now| now.with(new.clone()));
    }
}

async fn carry_over(app: &App, new: Override) {
    let (user, endpoint) = (new.user.clone(), new.endpoint.clone());
    let (Ok(user), Ok(endpoint)) = (Id::parse(&user), Endpoint::parse(&endpoint)) else { return };
    let request = Request { user: Some(user), ..Request::new(endpoint) };
    let agreed = std::future::ready(Ok::<(), std::convert::Infallible>(()));
    let Ok(()) = app.limiter().set_override(&request, new, app.now(), agreed).await;
}

/// The set of the file and of the database. Nothing if they do not go together: then what was stays, or, at a start, all that
/// fits.
fn compile(app: &App, rules: &mut Rules, is_start: bool) -> Option<RuleSet> {
    let catalog = app.catalog();
    match rules.book.compile(&rules.file) {
        Ok(set) => {
            rules.good = rules.book.clone();
            if catalog.state.load().rules_error.is_some() {
                info!("the rules of the database and of the file go together again");
            }
            catalog.update_state(|state| state.rules_error = None);
            Some(set)
        }
        Err(problems) => {
            for problem in &problems.0 {
                error!(problem = %problem, "the rules of the database are not in force; what was stays");
            }
            let told = problems.to_string().replace('\n', "; ");
            catalog.update_state(|state| state.rules_error = Some(told.clone()));
            if !is_start || catalog.version() > 0 {
                return None;
            }
            rules.good = rules.book.what_fits(&rules.file);
            rules.good.compile(&rules.file).ok()
        }
    }
}
