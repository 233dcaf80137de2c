//! The archive: rows leave the database only into verified files, and return as they were.

use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tollgate_stores::archive::{Archive, ArchiveError, ArchivePlace, ArchiveSettings, ArchivedTable};
use tollgate_stores::sql::Engine;
use tollgate_stores::sql::records::{
    ArchiveRun, ArchiveStep, DecisionKind, Order, RecordFilter, RecordReader, RecordsDatabase, Retention,
    TenantFilter,
};

use crate::harness::{NOW, TestDatabase};
use crate::records_harness::{NODE_A, NODE_B, decision, range, records_with_sources, rollup, window};

const DAY: u64 = 86_400_000_000;
/// Well after the retention of everything that the tests store.
pub(crate) const LATER: u64 = NOW + 200 * DAY;

pub(crate) const RETENTION: Retention = Retention {
    log: Duration::from_hours(90 * 24),
    windows: Duration::from_hours(30 * 24),
    rollups: Duration::from_hours(90 * 24),
    sqlite_bytes_max: Some(1),
    is_archived: true,
};

/// A folder that is an archive.
pub(crate) struct TestArchive {
    pub(crate) folder: TempDir,
    pub(crate) archive: Archive,
}

impl TestArchive {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let archive = Archive::open(&settings(folder.path())).unwrap();
        TestArchive { folder, archive }
    }

    /// The files with this ending.
    pub(crate) fn files(&self, ending: &str) -> Vec<std::path::PathBuf> {
        let mut folders = vec![self.folder.path().to_owned()];
        let mut files = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.to_string_lossy().ends_with(ending) {
                    files.push(path);
                }
            }
        }
        files
    }
}

fn settings(folder: &Path) -> ArchiveSettings {
    ArchiveSettings::new(ArchivePlace::parse(&format!("file://{}", folder.display())).unwrap())
}

pub(crate) async fn run(database: &RecordsDatabase, archive: &Archive) -> Result<ArchiveRun, ArchiveError> {
    database.archive(archive, "node-a", LATER, &RETENTION, &mut |_| {}).await
}

/// Stores rows of three months: texts of all kinds, absent values, several windows of a client.
pub(crate) async fn store_rows(database: &RecordsDatabase) {
    let mut decisions = Vec::new();
    for number in 0..300_u64 {
        let mut row =
            decision(&format!("ué{}", number % 7), DecisionKind::ALL[usize::try_from(number % 4).unwrap()]);
        row.at_micros = NOW + number * DAY / 4 + number * 1_234_567;
        row.request_id = (number % 3 > 0).then(|| format!("req_{number:016x}"));
        row.ip_address = Some(if number % 2 == 0 { "192.0.2.1" } else { "2001:db8::7" }.to_owned());
        row.tenant = (number % 5 == 0).then(|| "acme".to_owned());
        row.endpoint = if number == 9 { "/".repeat(700) } else { format!("/a/{}\t'\\", number % 11) };
        row.http_method = (number % 2 == 0).then(|| "GET".to_owned());
        row.retry_after_seconds = (number % 4 == 1).then_some(number);
        row.current_count = (number % 6 > 0).then_some(number);
        row.limit_value = (number % 8 > 0).then_some(i64::MAX.unsigned_abs());
        row.degraded = number % 9 == 0;
        decisions.push(row);
    }
    database.store_decisions(&range(NODE_A, 0, 300), &decisions).await.unwrap();
    for number in 0..30_u64 {
        let micros = NOW + number * 2 * DAY;
        let mut window = window(&format!("u{}", number % 3), "/", number, 1);
        window.start_micros = micros - micros % 60_000_000;
        window.limit_value = (number % 2 == 0).then_some(5);
        let mut rollup = rollup("node-a", "/", number, 1);
        rollup.start_micros = window.start_micros;
        rollup.user_id = (number % 2 == 0).then(|| "u".to_owned());
        let range = range(NODE_B, number, number + 1);
        database.store_aggregates(&range, &[window], &[rollup]).await.unwrap();
    }
}

/// Every column of every row of the three tables, as text.
pub(crate) async fn dump(from: &TestDatabase) -> Vec<String> {
    let mut rows = Vec::new();
    let mut client = from.client().await;
    let tables = [
        (
            "rate_limit_audit_logs",
            "timestamp, log_id",
            "log_id timestamp tenant identifier user_id api_key_id ip_address endpoint \
          http_method rule_id decision current_count limit_value remaining cost response_status retry_after_seconds region \
          server_id latency_us request_id degraded truncated",
        ),
        (
            "rate_limit_records",
            "window_start, key_hash",
            "tenant identifier window_type route_path request_count allowed refused \
          limit_value window_start window_end created_at updated_at HEX(key_hash)",
        ),
        (
            "rate_limit_metrics",
            "timestamp, key_hash",
            "timestamp granularity tenant user_id endpoint rule_id region server_id \
          total_requests allowed_requests throttled_requests blocked_requests latency_p50_us latency_p95_us latency_p99_us \
          latency_histogram cache_hits cache_misses created_at HEX(key_hash)",
        ),
    ];
    for (table, order, columns) in tables {
        let columns: Vec<String> = columns
            .split_ascii_whitespace()
            .map(|column| match from.engine() {
                Engine::Sqlite => format!("quote({column})"),
                _ => format!("COALESCE(CAST({column} AS CHAR), 'NULL')"),
            })
            .collect();
        let row = match from.engine() {
            Engine::Sqlite => columns.join(" || ' ' || "),
            Engine::Postgres => "CAST(t AS TEXT)".to_owned(),
            Engine::MySql => format!("CONCAT_WS('|', {})", columns.join(", ")),
        };
        rows.extend(client.texts(&format!("SELECT {row} FROM {table} t ORDER BY {order}")).await);
    }
    rows
}

pub(crate) async fn filled(empty: &TestDatabase) -> RecordsDatabase {
    let database = records_with_sources(empty).await;
    for week in 0..12 {
        database.maintain("node-a", NOW + week * 7 * DAY, &RETENTION).await.unwrap();
    }
    store_rows(&database).await;
    // Creates partitions, hours and days; removes nothing.
    let done = database.maintain("node-a", LATER, &RETENTION).await.unwrap();
    assert_eq!(
        (done.rows_removed, done.rows_removed_for_size, done.partitions_dropped),
        (0, 0, 0),
        "{done:?}"
    );
    database
}

/// Restores all files into a new database of the same kind.
pub(crate) async fn restored(archive: &Archive, into: &TestDatabase) -> Vec<String> {
    let database = records_with_sources(into).await;
    for file in archive.list().await.unwrap() {
        assert_eq!(database.restore(archive, &file, &mut |_| {}).await.unwrap(), file.rows);
    }
    dump(into).await
}

/// Another empty database on the same engine.
pub(crate) fn another(empty: &TestDatabase) -> TestDatabase {
    match empty.engine() {
        Engine::Sqlite => TestDatabase::sqlite(),
        Engine::Postgres => TestDatabase::postgres(),
        Engine::MySql => TestDatabase::mariadb(),
    }
}

pub(crate) async fn restored_rows_equal_the_original(empty: TestDatabase) {
    let (database, to) = (filled(&empty).await, TestArchive::new());
    let original = dump(&empty).await;
    let done = run(&database, &to.archive).await.unwrap();
    assert_eq!(done.rows, original.len() as u64);
    assert!(dump(&empty).await.is_empty());
    for file in to.archive.list().await.unwrap() {
        to.archive.verify(&file, &mut |_| {}).await.unwrap();
        assert!(file.is_removed, "{file:?}");
    }
    assert_eq!(restored(&to.archive, &another(&empty)).await, original);
    // Twice is the same as once, and the original database takes them too.
    for file in to.archive.list().await.unwrap() {
        database.restore_here(&to.archive, &file, "cli", &mut |_| {}).await.unwrap();
        database.restore_here(&to.archive, &file, "cli", &mut |_| {}).await.unwrap();
    }
    assert_eq!(dump(&empty).await, original);
    // They leave again without a second copy.
    database.maintain("node-a", LATER, &RETENTION).await.unwrap();
    assert_eq!(run(&database, &to.archive).await.unwrap(), ArchiveRun::default());
    assert!(dump(&empty).await.is_empty());
    assert_eq!(run(&database, &to.archive).await.unwrap(), ArchiveRun::default());
}

pub(crate) async fn late_rows_go_to_another_part(empty: TestDatabase) {
    let (database, to) = (filled(&empty).await, TestArchive::new());
    run(&database, &to.archive).await.unwrap();
    let mut late = decision("late", DecisionKind::Throttled);
    late.at_micros = NOW + DAY;
    database.store_decisions(&range(NODE_A, 300, 301), &[late]).await.unwrap();
    database.maintain("node-a", LATER, &RETENTION).await.unwrap();
    let rows = dump(&empty).await;
    assert_eq!(rows.len(), 1);
    // On MySQL the row is in the oldest partition that is left, which expires later.
    let later = LATER + 200 * DAY;
    database.maintain("node-a", later, &RETENTION).await.unwrap();
    let done = database.archive(&to.archive, "node-a", later, &RETENTION, &mut |_| {}).await.unwrap();
    assert_eq!(done.rows, 1);
    let files = to.archive.list().await.unwrap();
    let parts = |file: &&tollgate_stores::archive::ArchivedFile| {
        file.file.table == ArchivedTable::Log && file.times.0 == NOW + DAY
    };
    assert!(files.iter().any(|file| parts(&file) && file.rows == 1));
    assert!(restored(&to.archive, &another(&empty)).await.contains(&rows[0]));
}

/// A window that arrives after its minute was archived is a row of its own, with the same key.
pub(crate) async fn restore_overwrites_no_late_window(empty: TestDatabase) {
    let (database, to) = (filled(&empty).await, TestArchive::new());
    run(&database, &to.archive).await.unwrap();
    let mut late = window("u0", "/", 1_000, 0);
    late.start_micros = NOW - NOW % 60_000_000;
    database.store_aggregates(&range(NODE_B, 30, 31), &[late], &[]).await.unwrap();
    for file in to.archive.list().await.unwrap() {
        database.restore_here(&to.archive, &file, "cli", &mut |_| {}).await.unwrap();
    }
    let counts = "SELECT COUNT(*) FROM rate_limit_records WHERE request_count = 1000";
    assert_eq!(empty.client().await.number(counts).await, 1);
    // Nor does the next run remove it without a copy. On MySQL it is in the oldest partition that is left, which expires later.
    let later = LATER + 200 * DAY;
    database.maintain("node-a", later, &RETENTION).await.unwrap();
    let done = database.archive(&to.archive, "node-a", later, &RETENTION, &mut |_| {}).await.unwrap();
    assert_eq!(done.rows, 1);
    assert!(dump(&empty).await.is_empty());
}

/// Rows that are added between the copy and the removal.
pub(crate) async fn rows_added_meanwhile_are_not_dropped(empty: TestDatabase) {
    let (database, to) = (filled(&empty).await, TestArchive::new());
    let original = dump(&empty).await;
    let (added, handle) = (database.clone(), tokio::runtime::Handle::current());
    let mut number = 300;
    let mut report = |step: &ArchiveStep| {
        let ArchiveStep::Verified(file) = step else { return };
        if file.file.table == ArchivedTable::Log && number < 302 {
            let mut row = decision("meanwhile", DecisionKind::Throttled);
            row.at_micros = file.times.0 + 1;
            let store = async { added.store_decisions(&range(NODE_A, number, number + 1), &[row]).await };
            tokio::task::block_in_place(|| handle.block_on(store)).unwrap();
            number += 1;
        }
    };
    database.archive(&to.archive, "node-a", LATER, &RETENTION, &mut report).await.unwrap();
    assert_eq!(number, 302);
    assert!(dump(&empty).await.is_empty());
    let rows = restored(&to.archive, &another(&empty)).await;
    assert_eq!(rows.len(), original.len() + 2);
    assert!(original.iter().all(|row| rows.contains(row)));
}

pub(crate) async fn archive_of_another_database_is_rejected(empty: TestDatabase) {
    let (database, to) = (filled(&empty).await, TestArchive::new());
    run(&database, &to.archive).await.unwrap();
    let other = another(&empty);
    let second = filled(&other).await;
    let original = dump(&other).await;
    let error = run(&second, &to.archive).await.unwrap_err();
    assert!(matches!(error, ArchiveError::OtherDatabase { .. }), "{error}");
    assert!(error.to_string().contains("records.archive.url"), "{error}");
    assert_eq!(dump(&other).await, original);
}

pub(crate) async fn period_without_rows_makes_no_file(empty: TestDatabase) {
    let database = records_with_sources(&empty).await;
    // Creates partitions of three months and weeks.
    database.maintain("node-a", NOW, &RETENTION).await.unwrap();
    let mut row = decision("alice", DecisionKind::Throttled);
    row.at_micros = NOW + 40 * DAY;
    database.store_decisions(&range(NODE_A, 0, 1), &[row]).await.unwrap();
    let to = TestArchive::new();
    assert_eq!(run(&database, &to.archive).await.unwrap().files, 1);
    assert_eq!(to.files(".parquet").len(), 1);
    assert!(dump(&empty).await.is_empty());
    let partitions = match empty.engine() {
        Engine::Sqlite => return,
        Engine::Postgres => {
            "SELECT COUNT(*) FROM pg_inherits WHERE inhparent = to_regclass('rate_limit_audit_logs')"
        }
        Engine::MySql => {
            "SELECT COUNT(*) FROM information_schema.partitions WHERE table_schema = DATABASE() \
             AND table_name = 'rate_limit_audit_logs'"
        }
    };
    assert_eq!(empty.client().await.number(partitions).await, 1, "only that for all other rows is left");
}

#[tokio::test]
async fn damaged_manifest_is_an_error_with_its_name() {
    let empty = TestDatabase::sqlite();
    let (database, to) = (filled(&empty).await, TestArchive::new());
    run(&database, &to.archive).await.unwrap();
    let manifest = to.files(".json").into_iter().next().unwrap();
    std::fs::write(&manifest, "{}").unwrap();
    let error = to.archive.list().await.unwrap_err().to_string();
    assert!(error.contains(".json is damaged"), "{error}");
}

#[tokio::test]
async fn search_skips_other_times_and_clients() {
    let empty = TestDatabase::sqlite();
    let (database, to) = (filled(&empty).await, TestArchive::new());
    let reader = RecordReader::connect(&empty.settings()).await.unwrap();
    let filters = [
        RecordFilter::default(),
        RecordFilter { identifier: Some("user:ué3".to_owned()), ..RecordFilter::default() },
        RecordFilter { decision: Some(DecisionKind::Blocked), ..RecordFilter::default() },
        RecordFilter { tenant: TenantFilter::Named("acme".to_owned()), ..RecordFilter::default() },
        RecordFilter {
            from_micros: Some(NOW + 20 * DAY),
            to_micros: Some(NOW + 25 * DAY),
            tenant: TenantFilter::Without,
            ..RecordFilter::default()
        },
    ];
    let mut expected = Vec::new();
    for filter in &filters {
        expected.push(reader.decisions(filter, Order::NewestFirst, None, 40).await.unwrap());
    }
    run(&database, &to.archive).await.unwrap();
    for (filter, expected) in filters.iter().zip(expected) {
        assert!(!expected.is_empty(), "{filter:?}");
        assert_eq!(to.archive.search(filter, 40).await.unwrap().decisions, expected, "{filter:?}");
    }
    let unknown = RecordFilter { identifier: Some("user:uéx".to_owned()), ..RecordFilter::default() };
    let found = to.archive.search(&unknown, 40).await.unwrap();
    assert_eq!((found.decisions.len(), found.groups_read), (0, 0), "{found:?}");
    let few_days = to.archive.search(&filters[4], 40).await.unwrap();
    assert_eq!(few_days.groups_read, 1, "one month");
}
