//! Puts rows into the records database of a service, as its drain does.

use std::path::Path;

use tollgate_stores::sql::SqlSettings;
use tollgate_stores::sql::records::{
    DecisionKind, DecisionRow, LatencyHistogram, RecordsDatabase, RollupRow, RowRange, SourceId, WindowRow,
};

/// Rows to be stored.
#[derive(Default)]
pub(crate) struct RecordRows {
    pub(crate) decisions: Vec<DecisionRow>,
    pub(crate) windows: Vec<WindowRow>,
    pub(crate) rollups: Vec<RollupRow>,
}

/// Now, in microseconds since 1970.
pub(crate) fn now_micros() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(now.as_micros()).unwrap()
}

impl RecordRows {
    /// A decision, its window and its rollup, at a time and in a tenant.
    pub(crate) fn add(&mut self, user: &str, tenant: Option<&str>, at_micros: u64, decision: DecisionKind) {
        let tenant = tenant.map(str::to_owned);
        let is_allowed = decision == DecisionKind::Allowed;
        let (allowed, refused) = (u64::from(is_allowed), u64::from(!is_allowed));
        let start_micros = at_micros - at_micros % 60_000_000;
        let mut latency = LatencyHistogram::default();
        latency.record(40);
        self.decisions.push(DecisionRow {
            at_micros,
            identifier: format!("user:{user}"),
            tenant: tenant.clone(),
            user_id: Some(user.to_owned()),
            api_key_id: None,
            ip_address: Some("192.0.2.1".to_owned()),
            endpoint: "/api/search".to_owned(),
            http_method: Some("GET".to_owned()),
            rule: Some(format!("rule-of-{user}")),
            decision,
            current_count: Some(3),
            limit_value: Some(100),
            remaining: Some(97),
            cost: 1,
            response_status: if is_allowed { 200 } else { 429 },
            retry_after_seconds: (!is_allowed).then_some(30),
            latency_micros: 40,
            request_id: None,
            degraded: false,
            region: "eu-1".to_owned(),
            server_id: "node-a".to_owned(),
        });
        self.windows.push(WindowRow {
            start_micros,
            identifier: format!("user:{user}"),
            tenant: tenant.clone(),
            route: format!("/of/{user}"),
            allowed,
            refused,
            limit_value: Some(100),
        });
        self.rollups.push(RollupRow {
            start_micros,
            tenant,
            user_id: None,
            endpoint: format!("/of/{user}"),
            rule: Some(format!("rule-of-{user}")),
            region: "eu-1".to_owned(),
            server_id: "node-a".to_owned(),
            allowed,
            throttled: refused,
            blocked: 0,
            cache_hits: 1,
            cache_misses: 0,
            latency,
        });
    }

    /// Stores the rows in the default database of a data directory.
    pub(crate) fn store(&self, data_dir: &Path) {
        let settings = SqlSettings::sqlite(data_dir.join("records.db"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let database = RecordsDatabase::connect(settings).await.unwrap();
            database.migrate().await.unwrap();
            for (number, count) in [(1, self.decisions.len()), (2, self.windows.len())] {
                let source = SourceId([number; 16]);
                let first = database.position(&source).await.unwrap();
                let range = RowRange { source, first, end: first + count as u64 };
                if number == 1 {
                    database.store_decisions(&range, &self.decisions).await.unwrap();
                } else {
                    database.store_aggregates(&range, &self.windows, &self.rollups).await.unwrap();
                }
            }
            database.close().await;
        });
    }
}
