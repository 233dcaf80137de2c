//! Statements on records that take too long.

use std::time::Duration;

use tollgate_stores::sql::records::{Order, RecordFilter, RecordReader, RecordsDatabase, Stored};

use crate::harness::TestDatabase;
use crate::records_harness::{NODE_A, decisions, range, records_with_sources};

/// A lock of another session on the log. A timeout must be reported as such, and leave no connection in use.
async fn locked_log_times_out(empty: TestDatabase, lock: &str, unlock: &str) {
    records_with_sources(&empty).await.close().await;
    let mut settings = empty.settings();
    (settings.statement_timeout, settings.connections_max) = (Duration::from_secs(1), 1);
    let reader = RecordReader::connect(&settings).await.unwrap();
    let writer = RecordsDatabase::connect(settings).await.unwrap();
    let mut client = empty.client().await;
    client.execute(lock).await;
    let all = RecordFilter::default();
    for _ in 0..2 {
        let error = reader.decisions(&all, Order::OldestFirst, None, 10).await.unwrap_err();
        assert!(error.is_timeout() && !error.is_rejected_row(), "{error:?}");
        let error = writer.store_decisions(&range(NODE_A, 0, 10), &decisions(10)).await.unwrap_err();
        assert!(error.is_timeout() && !error.is_rejected_row(), "{error:?}");
        assert_eq!(writer.position(&NODE_A).await.unwrap(), 0, "other tables are not locked");
    }
    client.execute(unlock).await;
    assert_eq!(writer.store_decisions(&range(NODE_A, 0, 10), &decisions(10)).await.unwrap(), Stored::Now);
    assert_eq!(reader.decisions(&all, Order::OldestFirst, None, 99).await.unwrap().len(), 10);
}

#[tokio::test]
async fn locked_log_times_out_on_postgresql() {
    let lock = "BEGIN; LOCK TABLE rate_limit_audit_logs IN ACCESS EXCLUSIVE MODE";
    locked_log_times_out(TestDatabase::postgres(), lock, "COMMIT").await;
}

#[tokio::test]
async fn locked_log_times_out_on_mariadb() {
    let lock = "LOCK TABLES rate_limit_audit_logs WRITE";
    locked_log_times_out(TestDatabase::mariadb(), lock, "UNLOCK TABLES").await;
}
