//! Connections that break during a commit.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tollgate_stores::sql::records::{RecordsDatabase, Stored};
use tollgate_stores::sql::{DatabaseError, SqlSettings};
use tollgate_testkit::{Fault, FaultProxy};

use crate::harness::TestDatabase;
use crate::records_harness::{NODE_A, decisions, range, records_with_sources, rollup, window};

/// The database through a proxy, and a raw view of the position of [`NODE_A`].
struct Proxied {
    direct: TestDatabase,
    proxy: FaultProxy,
    database: RecordsDatabase,
}

impl Proxied {
    async fn new(direct: TestDatabase) -> Self {
        records_with_sources(&direct).await.close().await;
        let (_, after) = direct.url.rsplit_once('@').unwrap();
        let server: SocketAddr = after.split_once('/').unwrap().0.parse().unwrap();
        let proxy = FaultProxy::in_front_of(server);
        let url = direct.url.replace(&server.to_string(), &proxy.address().to_string());
        let mut settings = SqlSettings::from_url(&url).unwrap();
        settings.connections_max = 1;
        let database = RecordsDatabase::connect(settings).await.unwrap();
        database.position(&NODE_A).await.unwrap(); // an open connection
        Proxied { direct, proxy, database }
    }

    /// Cuts the connection after the server has committed a position and before the client learns of it.
    async fn cut_after_commit(&self, position: i64) {
        self.proxy.set(Fault::Latency(Duration::from_millis(500)));
        let mut client = self.direct.client().await;
        let deadline = Instant::now() + Duration::from_mins(1);
        while client.number("SELECT MAX(position) FROM record_sources").await < position {
            assert!(Instant::now() < deadline, "nothing was committed");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        self.proxy.set(Fault::Drop);
    }
}

async fn unknown_commit_is_stored_once(empty: TestDatabase) {
    let proxied = Proxied::new(empty).await;
    let database = &proxied.database;
    let rows = decisions(10);
    let range_of_rows = range(NODE_A, 0, 10);
    let (stored, ()) =
        tokio::join!(database.store_decisions(&range_of_rows, &rows), proxied.cut_after_commit(10));
    assert!(matches!(stored, Err(DatabaseError::OutcomeUnknown { .. })), "{stored:?}");
    assert!(!stored.unwrap_err().is_rejected_row());
    proxied.proxy.set(Fault::None);
    assert_eq!(database.store_decisions(&range_of_rows, &rows).await.unwrap(), Stored::Before);

    let (windows, rollups) = ([window("alice", "/", 3, 0)], [rollup("node-a", "/", 3, 0)]);
    let deltas = range(NODE_A, 10, 12);
    let (stored, ()) =
        tokio::join!(database.store_aggregates(&deltas, &windows, &rollups), proxied.cut_after_commit(12));
    assert!(matches!(stored, Err(DatabaseError::OutcomeUnknown { .. })), "{stored:?}");
    proxied.proxy.set(Fault::None);
    assert_eq!(database.store_aggregates(&deltas, &windows, &rollups).await.unwrap(), Stored::Before);

    let mut client = proxied.direct.client().await;
    assert_eq!(client.number("SELECT COUNT(*) FROM rate_limit_audit_logs").await, 10);
    assert_eq!(client.number("SELECT COUNT(*) FROM rate_limit_records WHERE request_count = 3").await, 1);
    assert_eq!(client.number("SELECT COUNT(*) FROM rate_limit_metrics WHERE total_requests = 3").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_commit_with_unknown_outcome_is_stored_once() {
    unknown_commit_is_stored_once(TestDatabase::postgres()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mariadb_commit_with_unknown_outcome_is_stored_once() {
    unknown_commit_is_stored_once(TestDatabase::mariadb()).await;
}

/// A connection that breaks before the commit stores nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_copy_stores_nothing() {
    let proxied = Proxied::new(TestDatabase::postgres()).await;
    let rows = decisions(1_000);
    proxied.proxy.set(Fault::Reset);
    let error = proxied.database.store_decisions(&range(NODE_A, 0, 1_000), &rows).await.unwrap_err();
    assert!(error.is_unreachable() && !error.is_rejected_row(), "{error:?}");
    proxied.proxy.set(Fault::None);
    assert_eq!(proxied.database.position(&NODE_A).await.unwrap(), 0);
    let stored = proxied.database.store_decisions(&range(NODE_A, 0, 1_000), &rows).await.unwrap();
    assert_eq!(stored, Stored::Now);
    let mut client = proxied.direct.client().await;
    assert_eq!(client.number("SELECT COUNT(*) FROM rate_limit_audit_logs").await, 1_000);
}
