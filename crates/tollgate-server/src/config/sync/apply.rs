//! Puts what the database holds in force.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tollgate::accounts::{Accounts, AccountsEditor};
use tollgate::identity::Normalization;
use tollgate::rules::overrides::Override;
use tollgate::{Endpoint, Id, Request, RuleSet, Timestamp};
use tollgate_stores::sql::{Database, DatabaseError, Item, ItemId, StoredItem};
use tracing::{error, info, warn};

use super::other_forms::read_as;
use super::snapshot::Configuration;
use super::{Rules, Source, items};
use crate::app::App;

/// Everything, at one version, for requests that are read so.
pub(super) async fn load(
    database: &Database,
    spelling: &Normalization,
) -> Result<Configuration, DatabaseError> {
    let mut loading = Loading {
        configuration: Configuration::default(),
        accounts: Accounts::with_normalization(spelling.ids).edit(),
        limits: HashMap::new(),
    };
    let mut spelled_otherwise = Vec::new();
    let version = database
        .load(|stored: StoredItem| {
            let id = stored.item.id();
            let read = if spelling.is_exact() { id.clone() } else { read_as(&id, spelling) };
            if read == id {
                loading.put(read, &stored);
            } else {
                spelled_otherwise.push((read, stored));
            }
        })
        .await?;
    // Behind all that are spelled as they are read, because those count.
    for (read, stored) in spelled_otherwise {
        let is_known = loading.knows(&read);
        if !is_known || matches!(read, ItemId::Block { .. }) {
            loading.put(read.clone(), &stored);
        }
        loading.configuration.other_forms.note(read, stored.item.id(), is_known);
    }
    Ok(loading.finish(version))
}

/// A configuration that is being read.
struct Loading {
    configuration: Configuration,
    accounts: AccountsEditor,
    /// Numbers of single users, by what user and endpoint are read as.
    limits: HashMap<ItemId, Override>,
}

impl Loading {
    fn put(&mut self, read: ItemId, stored: &StoredItem) {
        match &stored.item {
            Item::Rule(_) | Item::Tier(_) => drop(self.configuration.book.put(&stored.item)),
            Item::Limit(limit) => {
                if let Some(numbers) = items::override_of(limit, set_at(stored)) {
                    self.limits.insert(read, numbers);
                }
            }
            // Of two blocks of one client the longer one keeps it out.
            Item::Block(block) if items::lasts_longer(self.accounts.accounts(), block) => {}
            item => drop(items::put(&mut self.accounts, item)),
        }
    }

    /// Whether there is one already that is read so.
    fn knows(&self, read: &ItemId) -> bool {
        match read {
            ItemId::Quota(user) => self.accounts.accounts().user(user).is_some(),
            ItemId::Block { kind, subject } => items::is_blocked(self.accounts.accounts(), *kind, subject),
            read => self.limits.contains_key(read),
        }
    }

    fn finish(self, version: u64) -> Configuration {
        let Loading { configuration, accounts, limits } = self;
        let several = configuration.other_forms.several();
        if several > 0 {
            warn!(
                several,
                "items of the database are there in several spellings that are read as one (identity.normalize): of each the one \
                 counts that is spelled as it is read"
            );
        }
        Configuration {
            version,
            accounts: accounts.finish(),
            overrides: limits.into_values().collect(),
            ..configuration
        }
    }
}

fn set_at(stored: &StoredItem) -> Timestamp {
    Timestamp::from_micros(stored.updated_at_micros)
}

/// A whole configuration takes the place of what is in force.
pub(super) fn put_in_force(app: &App, configuration: Configuration, source: Source) {
    let Configuration { version, book, overrides, accounts, other_forms } = configuration;
    let catalog = app.config_sync();
    catalog.other_forms.store(Arc::new(other_forms));
    let (accounts, overrides) = (Arc::new(accounts), Arc::new(overrides));
    let mut rules = catalog.rules.lock();
    rules.book = book;
    let set = compile(app, &mut rules, true);
    if let Some(set) = &set {
        app.metrics().follow(set, app.now());
    }
    app.limiter().update_rules(|current| {
        let overrides = if catalog.keeps_limits { &overrides } else { current.overrides() };
        set.as_ref()
            .unwrap_or(current)
            .with_overrides(Arc::clone(overrides))
            .with_accounts(Arc::clone(&accounts))
    });
    drop(rules);
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
pub(super) async fn take_over(app: &App, version: u64, changed: &[(ItemId, Option<StoredItem>)]) {
    let catalog = app.config_sync();
    let before = app.limiter().rules();
    let mut accounts = before.accounts().edit();
    drop(before);
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
    forget_spellings(app, changed);
    if catalog.keeps_limits {
        take_over_limits(app, changed).await;
    }
    let of_rules = take_over_rules(app, changed);
    if of_rules && let Some(reload) = app.reload() {
        reload.retry_after_clash().await;
    }
    info!(version, changes = changed.len(), "changes of the configuration are in force");
    catalog.version.send_replace(version);
}

/// What is gone and comes back is spelled as it is read.
fn forget_spellings(app: &App, changed: &[(ItemId, Option<StoredItem>)]) {
    let gone: Vec<&ItemId> =
        changed.iter().filter(|(_, stored)| stored.is_none()).map(|(id, _)| id).collect();
    let (rules, others) = (app.limiter().rules(), &app.config_sync().other_forms);
    if let Some(next) = others.load().without(&gone, rules.normalization()) {
        others.store(Arc::new(next));
    }
}

/// Whether rules or tiers are among them.
fn take_over_rules(app: &App, changed: &[(ItemId, Option<StoredItem>)]) -> bool {
    let mut rules = app.config_sync().rules.lock();
    let mut of_rules = false;
    for (id, stored) in changed {
        of_rules |= match stored {
            Some(stored) => rules.book.put(&stored.item),
            None => rules.book.remove(id),
        };
    }
    let set = if of_rules { compile(app, &mut rules, false) } else { None };
    if let Some(set) = set {
        app.replace_rules(set);
    }
    of_rules
}

/// All at once: an import may bring thousands, and each would copy all there are.
async fn take_over_limits(app: &App, changed: &[(ItemId, Option<StoredItem>)]) {
    let (mut new, mut gone) = (Vec::new(), Vec::new());
    for (id, stored) in changed {
        let ItemId::Limit { user, endpoint } = id else { continue };
        match stored.as_ref().and_then(numbers_of) {
            Some(numbers) => new.push(numbers),
            None => gone.push((&**user, &**endpoint)),
        }
    }
    if new.is_empty() && gone.is_empty() {
        return;
    }
    let (limiter, now) = (app.limiter(), app.now());
    // What was used here under the rule is carried over; on shared counters whoever set the numbers has done so, and so has
    // this node if it is the one.
    let mut carried = Vec::new();
    if app.counters().memory().is_some() {
        for each in new.iter().filter(|each| !app.config_sync().is_being_set(&each.user, &each.endpoint)) {
            let Some(request) = request_of(each) else { continue };
            let used = limiter.consumed_before(&request, each, now).await;
            carried.push((request, each, used));
        }
    }
    limiter.update_overrides(|overrides| overrides.changed(&new, &gone));
    for (request, each, used) in carried {
        limiter.charge_consumed(&request, each, used, now).await;
    }
}

/// Puts the numbers of the database in force where this node's own came late. Whoever set them has carried over what was used.
pub(super) async fn compare(app: &App, database: &Database) -> Result<(), DatabaseError> {
    let catalog = app.config_sync();
    let to_compare = catalog.to_compare.lock().clone();
    for (whose, asked) in to_compare {
        let (user, endpoint) = (&*whose.0, &*whose.1);
        let id = ItemId::Limit { user: user.to_owned(), endpoint: endpoint.to_owned() };
        let stored = database.get(&id).await?;
        let wanted = stored.as_ref().and_then(numbers_of);
        let rules = app.limiter().rules();
        let in_force = rules.overrides().get(user, endpoint).map(|numbers| &numbers.limit);
        if in_force != wanted.as_ref().map(|numbers| &numbers.limit) {
            let gone = if wanted.is_none() { vec![(user, endpoint)] } else { Vec::new() };
            app.limiter().update_overrides(|now| now.changed(wanted.as_slice(), &gone));
        }
        // Who has set them meanwhile wants them compared after that.
        let mut left = catalog.to_compare.lock();
        if left.get(&whose) == Some(&asked) {
            left.remove(&whose);
        }
    }
    Ok(())
}

fn numbers_of(stored: &StoredItem) -> Option<Override> {
    match &stored.item {
        Item::Limit(limit) => items::override_of(limit, set_at(stored)),
        _ => None,
    }
}

/// A request that the numbers are about.
fn request_of(numbers: &Override) -> Option<Request<'_>> {
    let endpoint = Endpoint::parse(&numbers.endpoint).ok()?;
    Some(Request { user: Some(Id::parse(&numbers.user).ok()?), ..Request::new(endpoint) })
}

/// The set of the file and of the database. Nothing if they do not go together: then what was stays, or, at a start, all that
/// fits.
fn compile(app: &App, rules: &mut Rules, is_start: bool) -> Option<RuleSet> {
    let catalog = app.config_sync();
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
