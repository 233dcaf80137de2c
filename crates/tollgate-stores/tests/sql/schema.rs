//! Constraints of the tables, and passwords in messages.

use tollgate_stores::sql::{Database, Engine, SqlSettings};

use crate::harness::{Client, TestDatabase};

const RULE: &str = "INSERT INTO rate_limit_rules \
                    (name, priority, conditions, per, algorithm, limits, action, response_status, enabled, \
                    created_by, created_at_micros, updated_at_micros, version) VALUES ";
const TIER: &str = "INSERT INTO tiers (name, description, limits, created_by, created_at_micros, updated_at_micros, version) VALUES ";
const QUOTA: &str = "INSERT INTO user_quotas \
                     (user_id, requests_per_hour, created_by, created_at_micros, updated_at_micros, version) VALUES ";
const KEY: &str = "INSERT INTO api_keys \
                   (id, name, hash, scopes, revoked_at_micros, revoked_by, created_by, created_at_micros, \
                   updated_at_micros, version) VALUES ";
const BLOCK: &str = "INSERT INTO blocks \
                     (kind, subject, reason, created_by, created_at_micros, updated_at_micros, version) VALUES ";
const USAGE: &str = "INSERT INTO api_key_usage (api_key_id, requests, last_used_at_micros) VALUES ";

pub(crate) async fn schema_rejects_invalid_rows(empty: TestDatabase) {
    empty.migrated().await;
    let mut client = empty.client().await;
    let hash = |byte: &str, count: usize| match empty.engine() {
        Engine::Postgres => format!("decode('{}', 'hex')", byte.repeat(count)),
        _ => format!("x'{}'", byte.repeat(count)),
    };
    for (table, row) in valid_rows(&hash) {
        client.execute(&format!("{table}{row}")).await;
    }
    for (table, row) in invalid_rows(&hash) {
        assert_rejected(&mut client, &format!("{table}{row}")).await;
    }
    assert_rejected(&mut client, "INSERT INTO config_version (id, version) VALUES (2, 0)").await;
    assert_rejected(&mut client, "UPDATE config_version SET version = -1").await;
}

async fn assert_rejected(client: &mut Client, sql: &str) {
    assert!(client.try_execute(sql).await.is_err(), "accepted: {sql}");
}

fn valid_rows(hash: &dyn Fn(&str, usize) -> String) -> Vec<(&'static str, String)> {
    vec![
        (RULE, "('bare', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'root', 0, 0, 1)".into()),
        (RULE, "('r', 0, '{}', '[\"user\"]', 'gcra', '[{}]', 'reject', NULL, 1, 'root', 0, 0, 1)".into()),
        (RULE, "('R', 0, '{}', '[]', 'gcra', '[]', 'block', 403, 0, 'root', 0, 0, 1)".into()),
        (TIER, "('free', '', '[]', 'root', 0, 0, 1), ('Free', '', '[]', 'root', 0, 0, 1)".into()),
        (TIER, "('free ', '', '[]', 'root', 0, 0, 1)".into()),
        (QUOTA, "('alice', 4294967295, 'root', 0, 0, 1), ('Alice', NULL, 'root', 0, 0, 1)".into()),
        (KEY, format!("('k1', '', {}, '[]', NULL, NULL, 'root', 0, 0, 1)", hash("ab", 32))),
        (KEY, format!("('K1', '', {}, '[\"check\"]', 5, 'root', 'root', 0, 0, 1)", hash("ac", 32))),
        (BLOCK, "('user', 'x', '', 'root', 0, 0, 1), ('ip', 'x', '', 'root', 0, 0, 1), ('user', 'X', '', 'root', 0, 0, 1)".into()),
        (USAGE, "('k1', 7, 0)".into()),
    ]
}

fn invalid_rows(hash: &dyn Fn(&str, usize) -> String) -> Vec<(&'static str, String)> {
    let rule = |name: &str, rest: &str| (RULE, format!("({name}, {rest}, 'root', 0, 0, 1)"));
    let key = |row: String| (KEY, format!("({row}, 'root', 0, 0, 1)"));
    let too_long = format!("'{}'", "x".repeat(257));
    vec![
        rule("'r'", "0, '{}', '[]', 'gcra', '[]', 'reject', NULL, 1"),
        rule("''", "0, '{}', '[]', 'gcra', '[]', 'reject', NULL, 1"),
        rule("NULL", "0, '{}', '[]', 'gcra', '[]', 'reject', NULL, 1"),
        rule(&too_long, "0, '{}', '[]', 'gcra', '[]', 'reject', NULL, 1"),
        rule("'x'", "-1, '{}', '[]', 'gcra', '[]', 'reject', NULL, 1"),
        rule("'x'", "1000001, '{}', '[]', 'gcra', '[]', 'reject', NULL, 1"),
        rule("'x'", "0, '{', '[]', 'gcra', '[]', 'reject', NULL, 1"),
        rule("'x'", "0, '[]', '[]', 'gcra', '[]', 'reject', NULL, 1"),
        rule("'x'", "0, '{}', '{}', 'gcra', '[]', 'reject', NULL, 1"),
        rule("'x'", "0, '{}', '[]', 'lottery', '[]', 'reject', NULL, 1"),
        rule("'x'", "0, '{}', '[]', 'gcra', '7', 'reject', NULL, 1"),
        rule("'x'", "0, '{}', '[]', 'gcra', '[]', 'REJECT', NULL, 1"),
        rule("'x'", "0, '{}', '[]', 'gcra', '[]', 'reject', 200, 1"),
        rule("'x'", "0, '{}', '[]', 'gcra', '[]', 'reject', NULL, 2"),
        (TIER, "('free', '', '[]', 'root', 0, 0, 1)".into()),
        (TIER, "('x', '', 'null', 'root', 0, 0, 1)".into()),
        (TIER, "('x', '', '[]', 'root', -1, 0, 1)".into()),
        (QUOTA, "('alice', 1, 'root', 0, 0, 1)".into()),
        (QUOTA, "('x', -1, 'root', 0, 0, 1)".into()),
        (QUOTA, "('x', 4294967296, 'root', 0, 0, 1)".into()),
        (QUOTA, format!("({too_long}, 1, 'root', 0, 0, 1)")),
        key(format!("'k1', '', {}, '[]', NULL, NULL", hash("ad", 32))),
        key(format!("'k2', '', {}, '[]', NULL, NULL", hash("ab", 32))),
        key(format!("'k2', '', {}, '[]', NULL, NULL", hash("ad", 33))),
        key(format!("'k2', '', {}, '[]', 5, NULL", hash("ad", 32))),
        key(format!("'k2', '', {}, '[]', NULL, 'root'", hash("ad", 32))),
        key(format!("'k2', '', {}, 'check', NULL, NULL", hash("ad", 32))),
        (BLOCK, "('user', 'x', '', 'root', 0, 0, 1)".into()),
        (BLOCK, "('planet', 'x', '', 'root', 0, 0, 1)".into()),
        (BLOCK, "('user', '', '', 'root', 0, 0, 1)".into()),
        (USAGE, "('nobody', 1, 0)".into()),
        (USAGE, "('K1', -1, 0)".into()),
    ]
}

pub(crate) async fn password_never_appears_in_messages(empty: TestDatabase) {
    let database = empty.migrated().await;
    let shown = format!("{database:?} {:?} {}", empty.settings(), empty.settings().describe());
    assert!(!shown.contains("canary"), "{shown}");
    if empty.engine() == Engine::Sqlite {
        return;
    }
    let (before, port_and_database) = empty.url.rsplit_once(':').unwrap();
    let (port, _) = port_and_database.split_once('/').unwrap();
    let wrong_urls = [
        empty.url.replace("canary", "canary-wrong"),
        format!("{before}:{port}/no_such_database"),
        format!("{before}:1/gate"),
    ];
    for url in wrong_urls {
        assert!(SqlSettings::from_url(&url).is_ok());
        let error = Database::open(&url).await.unwrap_err();
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("canary"), "{shown}");
        assert!(error.to_string().contains("127.0.0.1:"), "no address in {error}");
    }
}
