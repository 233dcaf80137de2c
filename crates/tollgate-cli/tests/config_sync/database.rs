//! Helpers: changes the database directly, as the admin API would.

use std::time::{SystemTime, UNIX_EPOCH};

use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Map, Value, json};
use sha2::Sha256;
use tempfile::TempDir;
use tollgate_stores::sql::{
    AccountLimits, BlockItem, BlockKind, Database, Item, ItemEdit, ItemId, ItemWrite, KeyItem, Precondition,
    QuotaItem, RuleItem,
};

use crate::harness::{Service, wait_for};

/// The key secret of every service under test.
pub(crate) const KEY_SECRET: &str = "test-only-key-secret-0123456789abcdef";

/// The settings of a node on this database.
pub(crate) fn config(url: &str, more: &str) -> String {
    format!(
        "[auth]\nkey_secret = \"{KEY_SECRET}\"\n[database]\nurl = \"{url}\"\npoll_every = \"500ms\"\n{more}"
    )
}

/// A node on this database.
pub(crate) fn node(url: &str, more: &str) -> Service {
    on_its_database(Service::with_config(&config(url, more)))
}

/// A node in a folder that was used before.
pub(crate) fn node_again(folder: TempDir) -> Service {
    on_its_database(node_again_without_database(folder))
}

/// The same while its database is down.
pub(crate) fn node_again_without_database(folder: TempDir) -> Service {
    let file = folder.path().join("tollgate.toml");
    Service::start(folder, Some(&file), &[])
}

/// Waits until it has read the database. On a busy machine it may start without it.
pub(crate) fn on_its_database(service: Service) -> Service {
    let is_read = || service.admin("GET", "/v1/admin/audit", "").status == 200;
    wait_for("the database to be read", || is_read().then_some(()));
    service
}

/// Stops a node gracefully.
pub(crate) fn stop(service: Service) -> TempDir {
    service.signal("-TERM");
    let (status, folder) = service.ended();
    assert!(status.success());
    folder
}

/// A node with a database of its own in its folder, and that database.
pub(crate) fn alone(more: &str) -> (Service, Store) {
    let folder = TempDir::new().unwrap();
    let url = format!("sqlite://{}", folder.path().join("gate.db").display());
    let file = folder.path().join("tollgate.toml");
    std::fs::write(&file, config(&url, more)).unwrap();
    let service = on_its_database(Service::start(folder, Some(&file), &[]));
    let store = Store::open(&url);
    (service, store)
}

/// The database of some nodes, migrated by them.
pub(crate) struct Store {
    runtime: tokio::runtime::Runtime,
    database: Database,
}

pub(crate) struct NewKey {
    pub(crate) id: &'static str,
    pub(crate) text: String,
    pub(crate) item: KeyItem,
}

/// A key with this id, not stored yet.
pub(crate) fn key(id: &'static str) -> NewKey {
    let text = format!("tg_{id}_{}", "s3cretCanary".repeat(4).get(..43).unwrap());
    let item = KeyItem {
        id: id.to_owned(),
        hash: hash(&text),
        previous_hash: None,
        previous_until_micros: None,
        name: "test".to_owned(),
        user: None,
        tenant: None,
        tier: None,
        scopes: Vec::new(),
        limits: AccountLimits::default(),
        expires_at_micros: None,
        revoked_at_micros: None,
        revoked_by: None,
    };
    NewKey { id, text, item }
}

pub(crate) fn hash(text: &str) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(KEY_SECRET.as_bytes()).unwrap();
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().into()
}

pub(crate) fn rule(name: &str, requests: u32) -> Item {
    let body = json!({ "per": ["user"], "limits": [{ "requests": requests, "window": "1h" }] });
    let body: Map<String, Value> = body.as_object().unwrap().clone();
    Item::Rule(RuleItem { name: name.to_owned(), body })
}

pub(crate) fn quota(user: &str, limits: AccountLimits) -> Item {
    Item::Quota(QuotaItem { tenant: None, user: user.to_owned(), tier: None, limits })
}

pub(crate) fn block(user: &str) -> Item {
    let (subject, reason) = (user.to_owned(), "abuse".to_owned());
    Item::Block(BlockItem { tenant: None, kind: BlockKind::User, subject, reason, until_micros: None })
}

impl Store {
    pub(crate) fn open(url: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let database = runtime.block_on(async {
            let database = Database::open(url).await.unwrap();
            database.migrate().await.unwrap();
            database
        });
        Store { runtime, database }
    }

    /// Runs a query.
    pub(crate) fn ask<T>(&self, ask: impl AsyncFnOnce(&Database) -> T) -> T {
        self.runtime.block_on(ask(&self.database))
    }

    /// Stores one item and returns the version.
    pub(crate) fn write(&self, write: ItemWrite) -> u64 {
        let edit = ItemEdit { write, precondition: Precondition::None };
        self.ask(async |database| database.change("test", now_micros(), &[edit]).await.unwrap().version)
    }

    pub(crate) fn put(&self, item: Item) -> u64 {
        self.write(ItemWrite::Put(item))
    }

    pub(crate) fn delete(&self, id: ItemId) -> u64 {
        self.write(ItemWrite::Delete(id))
    }
}

pub(crate) fn now_micros() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap()
}

/// Waits until this version is in force on a node.
pub(crate) fn wait_for_version(node: &Service, version: u64) {
    wait_for("the version", || (version_of(node) >= version).then_some(()));
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "versions under test are small")]
pub(crate) fn version_of(node: &Service) -> u64 {
    node.metric("tollgate_config_version").unwrap_or(0.0) as u64
}

/// A check with a limited client's key.
pub(crate) fn check_with(node: &Service, key: &str) -> crate::harness::Answer {
    node.post("/v1/rate-limit/check", &format!(r#"{{"api_key":"{key}","endpoint":"/x"}}"#))
}
