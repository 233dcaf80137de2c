//! What is in Parquet files, read with `DuckDB`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::load::Answered;

/// A program that `scripts/install-tools test` installs.
pub(crate) fn tool(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/python/bin").join(name);
    assert!(path.exists(), "{name} is missing: run scripts/install-tools test");
    path
}

/// The rows of all files in a folder.
#[derive(Debug, Deserialize)]
pub(crate) struct ParquetRows {
    /// Request ids and decisions of the log, in order.
    pub(crate) log: Vec<(String, String)>,
    /// Requests, allowed and refused in window records.
    pub(crate) windows: (i64, i64, i64),
    /// Requests in rollups.
    pub(crate) rollups: i64,
    /// Rows whose time is not in the hour of their folder.
    misplaced: i64,
}

const SCRIPT: &str = r#"
import duckdb, glob, json, sys
db = duckdb.connect()
def rows(table, query):
    files = f"{sys.argv[1]}/table={table}/*/*/*.parquet"
    if not glob.glob(files):
        return None
    return db.execute(query.replace("FILES", f"read_parquet('{files}', hive_partitioning = true)")).fetchall()
log = rows("rate_limit_audit_logs", "SELECT request_id, decision FROM FILES ORDER BY request_id")
windows = rows("rate_limit_records", "SELECT sum(request_count), sum(allowed), sum(refused) FROM FILES")
rollups = rows("rate_limit_metrics", "SELECT sum(total_requests) FROM FILES WHERE granularity = 'minute'")
place = "strftime(make_timestamp(epoch_us({0})), '%Y-%m-%d %H') <> CAST(date AS VARCHAR) || ' ' || lpad(CAST(hour AS VARCHAR), 2, '0')"
misplaced = 0
for table, time in [("rate_limit_audit_logs", "timestamp"), ("rate_limit_records", "window_start"), ("rate_limit_metrics", "timestamp")]:
    found = rows(table, f"SELECT count(*) FROM FILES WHERE {place.format(time)}")
    misplaced += found[0][0] if found else 0
print(json.dumps({
    "log": log or [],
    "windows": [int(sum) for sum in windows[0]] if windows else [0, 0, 0],
    "rollups": int(rollups[0][0]) if rollups else 0,
    "misplaced": misplaced,
}))
"#;

impl ParquetRows {
    pub(crate) fn read(folder: &Path) -> Self {
        let output = Command::new(tool("python")).args(["-c", SCRIPT]).arg(folder).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let rows: ParquetRows = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(rows.misplaced, 0);
        rows
    }

    pub(crate) fn ids(&self) -> Vec<String> {
        self.log.iter().map(|(id, _)| id.clone()).collect()
    }

    /// Everything that was answered is in the log, in window records and in rollups, once.
    pub(crate) fn assert_complete(&self, answered: &Answered) {
        let decisions: BTreeMap<&String, &String> =
            self.log.iter().map(|(id, decision)| (id, decision)).collect();
        assert_eq!(decisions.len(), self.log.len(), "duplicates in the log");
        let missing = answered.by_id.keys().filter(|id| !decisions.contains_key(id)).count();
        assert_eq!(missing, 0, "answered but not in the log");
        for (id, (_, status)) in &answered.by_id {
            let expected = if *status == 200 { "allowed" } else { "throttled" };
            assert_eq!(decisions[id], expected);
        }
        let decided = i64::try_from(self.log.len()).unwrap();
        let (requests, allowed, refused) = self.windows;
        assert_eq!((requests, allowed + refused, self.rollups), (decided, decided, decided));
        assert_eq!(allowed, self.log.iter().filter(|(_, decision)| decision == "allowed").count() as i64);
    }
}
