//! What a drill creates before the backup and looks for after the restore.

use serde_json::{Value, json};

use crate::harness::{Answer, Service, wait_for};

/// The key secret of nodes with a database server.
pub(crate) const KEY_SECRET: &str = "test-only-key-secret-0123456789abcdef";

/// More in `./scripts/test --long`.
pub(crate) fn scaled(count: usize) -> usize {
    if std::env::var_os("LONG_TESTS").is_some() { count * 50 } else { count }
}

/// Settings of a node whose configuration and records are in this database.
pub(crate) fn config(url: &str) -> String {
    format!(
        "[auth]\nkey_secret = \"{KEY_SECRET}\"\n[database]\nurl = \"{url}\"\n\
         [records]\nurl = \"{url}\"\nsample_allowed = \"all\"\n"
    )
}

/// A node on this database, once it has read it.
pub(crate) fn node_on(url: &str) -> Service {
    let service = Service::with_config(&config(url));
    wait_for("the database", || (service.admin("GET", "/v1/admin/audit", "").status == 200).then_some(()));
    service
}

/// An API key, and its id.
pub(crate) struct Key {
    pub(crate) id: String,
    pub(crate) text: String,
}

fn change(service: &Service, method: &str, path: &str, body: &Value) -> Answer {
    let answer = service.admin(method, path, &if body.is_null() { String::new() } else { body.to_string() });
    assert!(answer.status < 300, "{method} {path}: {}", answer.text);
    answer
}

/// A rule that admits so many requests of each user to `/NAME` in an hour.
pub(crate) fn put_rule(service: &Service, name: &str, requests: u32) {
    let body = json!({
        "name": name,
        "per": ["user"],
        "when": { "endpoints": [format!("/{name}")] },
        "limits": [{ "requests": requests, "window": "1h" }],
    });
    change(service, "PUT", &format!("/v1/admin/rules/{name}"), &body);
}

pub(crate) fn delete_rule(service: &Service, name: &str) {
    change(service, "DELETE", &format!("/v1/admin/rules/{name}"), &Value::Null);
}

pub(crate) fn put_quota(service: &Service, user: &str, per_hour: u32) {
    change(service, "PUT", &format!("/v1/admin/quotas/{user}"), &json!({ "requests_per_hour": per_hour }));
}

pub(crate) fn delete_quota(service: &Service, user: &str) {
    change(service, "DELETE", &format!("/v1/admin/quotas/{user}"), &Value::Null);
}

pub(crate) fn create_key(service: &Service, name: &str) -> Key {
    let made = change(service, "POST", "/v1/admin/keys", &json!({ "name": name })).json();
    let text = |field: &str| made[field].as_str().unwrap().to_owned();
    Key { id: text("id"), text: text("key") }
}

pub(crate) fn revoke_key(service: &Service, key: &Key) {
    change(service, "POST", &format!("/v1/admin/keys/{}/revoke", key.id), &Value::Null);
}

/// The limit per hour of a user's quota, if there is one.
pub(crate) fn quota(service: &Service, user: &str) -> Option<u64> {
    service.admin("GET", &format!("/v1/admin/quotas/{user}"), "").json()["requests_per_hour"].as_u64()
}

/// The names of the rules in the database.
pub(crate) fn rules(service: &Service) -> Vec<String> {
    let list = service.admin("GET", "/v1/admin/rules?source=database", "").json();
    let names =
        list["rules"].as_array().unwrap().iter().map(|rule| rule["name"].as_str().unwrap().to_owned());
    names.collect()
}

/// `200`, or the reason why the key is refused.
pub(crate) fn key_state(service: &Service, key: &Key) -> String {
    let body = json!({ "api_key": key.text, "endpoint": "/keys" }).to_string();
    let answer = service.post("/v1/rate-limit/check", &body);
    answer.json()["reason"].as_str().map_or_else(|| answer.status.to_string(), str::to_owned)
}

/// How many of these checks are admitted.
pub(crate) fn admitted(service: &Service, user: &str, endpoint: &str, checks: usize) -> usize {
    (0..checks).filter(|_| service.check(user, endpoint).status == 200).count()
}

/// The number of decisions in the log about a user.
pub(crate) fn logged(url: &str, user: &str) -> i64 {
    let sql = format!("SELECT COUNT(*) FROM rate_limit_audit_logs WHERE identifier = 'user:{user}'");
    crate::stored::number(url, &sql)
}

pub(crate) fn wait_until_logged(url: &str, user: &str, count: i64) {
    // The table may not exist yet.
    let found = || std::panic::catch_unwind(|| logged(url, user)).unwrap_or(0);
    wait_for("the decision log", || (found() == count).then_some(()));
}

/// The changes around a moment that a database server is restored to.
pub(crate) struct PointInTime {
    keys: Vec<Key>,
}

impl PointInTime {
    /// What is in the backup itself.
    pub(crate) fn before_backup(service: &Service, url: &str) -> Self {
        put_rule(service, "first", 5);
        put_quota(service, "alice", 70);
        let keys = vec![create_key(service, "first")];
        service.check("alice", "/first");
        wait_until_logged(url, "alice", 1);
        PointInTime { keys }
    }

    /// What only the log of changes has.
    pub(crate) fn before_moment(&mut self, service: &Service, url: &str) {
        put_rule(service, "second", 5);
        for number in 0..scaled(20) {
            put_quota(service, &format!("user-{number}"), 100);
        }
        self.keys.push(create_key(service, "second"));
        service.check("bob", "/second");
        wait_until_logged(url, "bob", 1);
    }

    /// What is lost.
    pub(crate) fn after_moment(&self, service: &Service, url: &str) {
        delete_rule(service, "first");
        delete_quota(service, "alice");
        revoke_key(service, &self.keys[1]);
        service.check("carol", "/second");
        wait_until_logged(url, "carol", 1);
    }

    /// A new node finds the state of the moment, and can change it.
    pub(crate) fn assert_restored(&self, url: &str) {
        let service = node_on(url);
        assert_eq!(rules(&service), ["first", "second"]);
        let last = format!("user-{}", scaled(20) - 1);
        assert_eq!((quota(&service, "alice"), quota(&service, &last)), (Some(70), Some(100)));
        let states: Vec<String> = self.keys.iter().map(|key| key_state(&service, key)).collect();
        assert_eq!(states, ["200", "200"], "the second key was revoked later");
        assert_eq!(["alice", "bob", "carol"].map(|user| logged(url, user)), [1, 1, 0]);
        put_rule(&service, "third", 5);
        service.check("carol", "/third");
        wait_until_logged(url, "carol", 1);
    }
}
