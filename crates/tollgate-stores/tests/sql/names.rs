//! Names are opaque: every byte counts, and none does anything.

use tollgate_stores::sql::{DatabaseError, ValueProblem};

use crate::harness::{TestDatabase, limit};

/// Names that some collation, some comparison or some normal form takes for one.
const TWINS: [&str; 26] = [
    "alice",
    "Alice",
    "ALICE",
    "alice ",
    " alice",
    "alice  ",
    "alice\t",
    "alice\n",
    "alicé",
    "alice\u{301}",
    "ａlice",
    "al\u{ad}ice",
    "alice\u{200b}",
    "strasse",
    "straße",
    "ı",
    "i",
    "I",
    "İ",
    "ſ",
    "s",
    "K",
    "\u{212a}",
    "1",
    "01",
    "1.0",
];

/// What breaks texts that are pasted together.
const HOSTILE: [&str; 24] = [
    "'",
    "\"",
    "`",
    "\\",
    "\\'",
    "''",
    "'; DROP TABLE user_endpoint_limits; --",
    "' OR '1'='1",
    "\" OR \"\"=\"",
    "') ON CONFLICT DO NOTHING; --",
    "1; SELECT pg_sleep(10)",
    "' UNION SELECT version, 1, 1, 1, 1, 1, 1 FROM config_version --",
    "admin'--",
    "admin'#",
    "admin'/*",
    "/*!50000 OR 1=1 */",
    "$1",
    "?",
    "%",
    "_",
    "{{7*7}}",
    "\u{1b}[31m",
    "\r\nSET x 1",
    "🦀\u{feff}\u{202e}\u{10ffff}",
];

pub(crate) async fn names_are_compared_byte_by_byte(empty: TestDatabase) {
    let database = empty.migrated().await;
    let longest = ["x".repeat(256), format!("{}y", "x".repeat(255)), "é".repeat(128)];
    let users: Vec<&str> = TWINS.into_iter().chain(longest.iter().map(String::as_str)).collect();
    let mut all = Vec::new();
    for (number, user) in (0..).zip(&users) {
        let endpoint = format!("/{user}");
        all.push(limit(user, &endpoint, number));
        database.put_limit("root", &all[number as usize]).await.unwrap();
    }
    let ends = ["a", "A"].map(|end| limit("alice", &format!("/{}{end}", "x".repeat(2046)), 1));
    for limit in ends {
        database.put_limit("root", &limit).await.unwrap();
        all.push(limit);
    }
    all.sort_by(|one, next| (&one.user, &one.endpoint).cmp(&(&next.user, &next.endpoint)));
    let (_, stored) = database.limits().await.unwrap();
    assert_eq!(stored, all, "in the order of their bytes, on every engine");

    assert_eq!(database.delete_limit("root", "ALICE ", "/alice", 1).await.unwrap(), None);
    database.delete_limit("root", "alice ", "/alice ", 1).await.unwrap().expect("was there");
    all.retain(|limit| limit.user != "alice ");
    assert_eq!(database.limits().await.unwrap().1, all, "no twin went with it");
}

pub(crate) async fn names_that_cannot_be_kept_are_refused(empty: TestDatabase) {
    let database = empty.migrated().await;
    let (long_user, long_endpoint) = ("é".repeat(129), "x".repeat(2049));
    let refusals = [
        ("root", "", "/", "user", ValueProblem::Empty),
        ("root", &long_user, "/", "user", ValueProblem::TooLong { max: 256 }),
        ("root", "a\0b", "/", "user", ValueProblem::HoldsNul),
        ("root", "alice", "", "endpoint", ValueProblem::Empty),
        ("root", "alice", &long_endpoint, "endpoint", ValueProblem::TooLong { max: 2048 }),
        ("root", "alice", "/\0", "endpoint", ValueProblem::HoldsNul),
        ("", "alice", "/", "by", ValueProblem::Empty),
        (&long_user, "alice", "/", "by", ValueProblem::TooLong { max: 256 }),
        ("ro\0ot", "alice", "/", "by", ValueProblem::HoldsNul),
    ];
    for (by, user, endpoint, field, problem) in refusals {
        let put = database.put_limit(by, &limit(user, endpoint, 1)).await.unwrap_err();
        let delete = database.delete_limit(by, user, endpoint, 1).await.unwrap_err();
        for error in [put, delete] {
            assert_eq!(error.to_string(), format!("{field} {problem}"));
            assert!(matches!(error, DatabaseError::Value { .. }));
        }
    }
    assert_eq!(database.version().await.unwrap(), 0);
}

pub(crate) async fn hostile_names_are_plain_data(empty: TestDatabase) {
    let database = empty.migrated().await;
    for (number, name) in (0..).zip(HOSTILE) {
        database.put_limit(name, &limit(name, name, number)).await.unwrap();
    }
    let (version, limits) = database.limits().await.unwrap();
    assert_eq!((version, limits.len()), (HOSTILE.len() as u64, HOSTILE.len()));
    for entry in database.audit(0, 1000).await.unwrap() {
        let name = HOSTILE[usize::try_from(entry.version).unwrap() - 1];
        assert_eq!(entry.by, name);
        assert_eq!(entry.subject, serde_json::to_string(&(name, name)).unwrap());
        let limit = limits.iter().find(|limit| limit.user == name && limit.endpoint == name).expect(name);
        assert_eq!(entry.after, Some(serde_json::to_string(limit).unwrap()));
    }
    for name in HOSTILE {
        assert!(database.delete_limit(name, name, name, 1).await.unwrap().is_some(), "{name}");
    }
    assert_eq!(database.limits().await.unwrap().1, []);
}
