//! The drain against real databases.

use tollgate_stores::sql::SqlSettings;
use tollgate_testkit::PostgresServer;

use super::*;
use crate::records::codec::RowWriter;
use crate::records::drain::database::{AggregateSink, DecisionSink, RecordsConnection};

const MINUTE: u64 = 1_700_000_040_000_000;
const DEADLINE: Duration = Duration::from_secs(30);

/// A row of the decision log.
fn decision(number: u64, count: u64) -> Vec<u8> {
    let mut row = Vec::new();
    RowWriter::decision(&mut row)
        .number(MINUTE + number)
        .byte(1)
        .byte(0)
        .number(429)
        .number(1)
        .number(12)
        .maybe_number(Some(count))
        .maybe_number(Some(100))
        .maybe_number(Some(0))
        .maybe_number(None)
        .text(&format!("user:u{number}"))
        .maybe_text(None)
        .maybe_text(Some("u"))
        .maybe_text(None)
        .maybe_text(Some("192.0.2.1"))
        .text("/projects")
        .maybe_text(Some("GET"))
        .maybe_text(Some("per-user"))
        .maybe_text(None)
        .text("eu")
        .text("node-a");
    row
}

/// Two requests of a client, one of them refused.
fn window(client: u64) -> Vec<u8> {
    let mut row = Vec::new();
    RowWriter::window(&mut row)
        .number(MINUTE)
        .number(1)
        .number(1)
        .maybe_number(Some(100))
        .text(&format!("user:u{client}"))
        .maybe_text(None)
        .text("/projects");
    row
}

fn append_rows(writer: &mut SpoolWriter, rows: impl IntoIterator<Item = Vec<u8>>) {
    let (mut payload, mut count) = (Vec::new(), 0);
    for row in rows {
        payload.extend_from_slice(&u32::try_from(row.len()).unwrap().to_le_bytes());
        payload.extend_from_slice(&row);
        count += 1;
    }
    writer.append(count, &payload);
}

/// A spool that is drained to a database.
struct Draining {
    writer: SpoolWriter,
    task: JoinHandle<()>,
    stats: Arc<DrainStats>,
}

impl Draining {
    fn start<S: BatchSink>(sink: S, setup: &Setup, name: &str) -> Self {
        let (writer, reader, _) = spool::open(&setup.dir.path().join(name), 1 << 30).unwrap();
        let quarantine = Arc::new(Quarantine::new(setup.quarantine()));
        let drain = Drain::new(sink, reader, DrainSettings { rows_max: 500, ..QUICK }, quarantine);
        let stats = Arc::clone(drain.stats());
        Draining { writer, task: tokio::spawn(drain.run()), stats }
    }

    /// Stores what is left.
    async fn finish(self) -> Arc<DrainStats> {
        self.writer.close();
        self.task.await.unwrap();
        self.stats
    }
}

fn connection(url: &str) -> Arc<RecordsConnection> {
    Arc::new(RecordsConnection::new(SqlSettings::from_url(url).unwrap()))
}

#[tokio::test]
async fn sqlite_stores_all_but_rejected_rows() {
    let setup = Setup::new();
    let connection = connection(&format!("sqlite://{}/records.db", setup.dir.path().display()));
    let mut log = Draining::start(DecisionSink(Arc::clone(&connection)), &setup, "log");
    let mut aggregates = Draining::start(AggregateSink(Arc::clone(&connection)), &setup, "aggregates");
    // A count that no column can hold, and a row of another kind.
    append_rows(&mut log.writer, (0..1_200).map(|row| decision(row, if row == 777 { 1 << 63 } else { 1 })));
    append_rows(&mut log.writer, [window(1), decision(1_201, 1)]);
    append_rows(&mut aggregates.writer, (0..1_000).map(|row| window(row % 10)));
    let (log, aggregates) = (log.finish().await, aggregates.finish().await);
    assert_eq!((log.rows_stored.get(), log.rows_quarantined.get()), (1_200, 2));
    assert_eq!((aggregates.rows_stored.get(), aggregates.rows_quarantined.get()), (1_000, 0));
    assert!(connection.get().is_some());
    assert_eq!(std::fs::read_to_string(setup.quarantine()).unwrap().lines().count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_postgres_loses_and_repeats_no_row() {
    let setup = Setup::new();
    let server = PostgresServer::start();
    let connection = connection(&server.create_database());
    server.kill9();
    let mut log = Draining::start(DecisionSink(Arc::clone(&connection)), &setup, "log");
    let mut aggregates = Draining::start(AggregateSink(connection), &setup, "aggregates");
    append_rows(&mut log.writer, (0..5_000).map(|row| decision(row, 1)));
    append_rows(&mut aggregates.writer, (0..5_000).map(|row| window(row % 100)));
    wait_until(|| log.stats.last_error().is_some() && aggregates.stats.last_error().is_some()).await;
    for kill in 1..=3 {
        server.restart();
        wait_until(|| log.stats.rows_stored.get() >= kill * 1_000).await;
        server.kill9();
        append_rows(&mut log.writer, (0..1_000).map(|row| decision(kill * 10_000 + row, 1)));
        append_rows(&mut aggregates.writer, (0..1_000).map(|row| window(row % 100)));
    }
    server.restart();
    let (log, aggregates) = (log.finish().await, aggregates.finish().await);
    assert_eq!((log.rows_stored.get(), aggregates.rows_stored.get()), (8_000, 8_000));
    let count =
        "SELECT COUNT(*), COUNT(DISTINCT identifier), COUNT(DISTINCT log_id) FROM rate_limit_audit_logs";
    assert_eq!(server.execute("test_0", count).trim(), "8000|8000|8000");
    let sums = "SELECT COUNT(*), SUM(allowed), SUM(refused) FROM rate_limit_records";
    assert_eq!(server.execute("test_0", sums).trim(), "100|8000|8000");
}

#[tokio::test(flavor = "multi_thread")]
async fn locked_table_delays_rows_and_loses_none() {
    let setup = Setup::new();
    let server = PostgresServer::start();
    let mut sql = SqlSettings::from_url(&server.create_database()).unwrap();
    sql.statement_timeout = Duration::from_millis(200);
    let mut log = Draining::start(DecisionSink(Arc::new(RecordsConnection::new(sql))), &setup, "log");
    append_rows(&mut log.writer, [decision(0, 1)]);
    wait_until(|| log.stats.rows_stored.get() == 1).await;
    std::thread::scope(|scope| {
        let lock = "BEGIN; LOCK TABLE rate_limit_audit_logs; SELECT pg_sleep(2); COMMIT";
        scope.spawn(|| server.execute("test_0", lock));
        let count = "SELECT COUNT(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND granted \
                     AND relation = 'rate_limit_audit_logs'::regclass";
        assert!(tollgate_testkit::wait_until(DEADLINE, || server.execute("test_0", count).trim() == "1"));
        append_rows(&mut log.writer, (1..400).map(|row| decision(row, 1)));
        let error = tollgate_testkit::eventually(DEADLINE, || log.stats.last_error());
        assert!(error.is_some_and(|error| error.contains("statement timeout")));
    });
    let log = log.finish().await;
    assert_eq!((log.rows_stored.get(), log.rows_quarantined.get()), (400, 0));
    assert!(log.last_error().is_none());
}
