//! The query of docs/archive.md in `DuckDB`, on the files as they were written. The hour is a text: Python needs another package for
//! times with a time zone.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

const SCRIPT: &str = r#"
import duckdb, sys, time
folder, client = sys.argv[1:]
query = f"""
SELECT rule_id, date_trunc('hour', timestamp)::VARCHAR AS hour, count(*) AS refused
FROM read_parquet('{folder}/table=rate_limit_audit_logs/*/*.parquet')
WHERE identifier = '{client}' AND decision <> 'allowed'
GROUP BY ALL ORDER BY hour
"""
for run in range(3):
    started = time.time()
    rows = duckdb.sql(query).fetchall()
    print(f"{time.time() - started:.3f}", sum(row[2] for row in rows), len(rows))
"#;

pub fn run(folder: &Path, (client, refused): &(String, u64)) -> Result<()> {
    let python = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/tools/python/bin/python");
    let output = Command::new(python).args(["-c", SCRIPT]).arg(folder).arg(client).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    println!("DuckDB, refusals per rule and hour of the busiest client:");
    for line in text.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        ensure!(fields.get(1) == Some(&refused.to_string().as_str()), "{line} instead of {refused} refusals");
        println!("  {} s, {} refusals in {} rows", fields[0], fields[1], fields[2]);
    }
    println!();
    Ok(())
}
