//! Parquet files in a folder and on an object store: every decision once, whatever fails.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tollgate_testkit::{Fault, FaultProxy, ObjectStoreServer};

use crate::crashes::{Killed, account, kill_under_load};
use crate::harness::{Service, wait_for};
use crate::load::{Load, checks};
use crate::parquet_rows::{ParquetRows, tool};
use crate::small_disk::SmallDisk;
use crate::stored;

const BUCKET: &str = "records";

/// A node that records every decision in Parquet files. A few of its users exceed their limits.
fn config(records: &str, parquet: &str) -> String {
    format!(
        "default_limit = 200\ndefault_window = 3600\n[records]\nsample_allowed = \"all\"\n{records}\n\
         [records.parquet]\nevery = \"1s\"\n{parquet}"
    )
}

fn folder_config(folder: &Path) -> String {
    config("url = \"none\"", &format!("url = \"file://{}\"", folder.display()))
}

/// An object store behind a proxy that can fail.
struct Store {
    server: ObjectStoreServer,
    proxy: FaultProxy,
}

impl Store {
    fn start() -> Self {
        let server = ObjectStoreServer::start(&tool("rclone"), BUCKET);
        Store { proxy: FaultProxy::in_front_of(server.address()), server }
    }

    fn parquet(&self, bucket: &str, secret: &str) -> String {
        format!(
            "url = \"s3://{bucket}/eu/1\"\nendpoint = \"http://{}\"\nallow_http = true\nregion = \"us-east-1\"\n\
             access_key_id = \"{}\"\nsecret_access_key = \"{secret}\"",
            self.proxy.address(),
            ObjectStoreServer::ACCESS_KEY_ID
        )
    }

    fn config(&self) -> String {
        config("url = \"none\"", &self.parquet(BUCKET, ObjectStoreServer::SECRET_ACCESS_KEY))
    }

    fn rows(&self) -> ParquetRows {
        ParquetRows::read(&self.server.folder(BUCKET).join("eu/1"))
    }
}

fn backlog(service: &Service) -> f64 {
    service.metric("tollgate_record_backlog_rows{spool=\"parquet_log\"}").unwrap_or_default()
}

/// Waits until so many decisions have left the memory of this process, and no row is left in its spools.
fn wait_for_files(service: &Service, decisions: usize) {
    let metric = |name: &str| service.metric(name).unwrap_or_default();
    wait_for("the files", || {
        let log = metric("tollgate_record_rows_total{spool=\"parquet_log\"}");
        let counted = metric("tollgate_record_window_requests_total");
        let rows = service.metric("tollgate_record_backlog_rows{spool=\"parquet_aggregates\"}");
        let is_spooled = log.min(counted) >= decisions as f64;
        (is_spooled && backlog(service) < 0.5 && rows == Some(0.0)).then_some(())
    });
}

fn wait_for_error(service: &Service, part: &str) {
    wait_for(part, || {
        let answer = service.get("/readyz");
        assert_eq!(answer.status, 200, "records do not decide whether a node is ready");
        let error = answer.json()["records_error"].as_str().unwrap_or_default().to_owned();
        error.contains(part).then_some(())
    });
}

fn stop(service: Service) -> TempDir {
    service.signal("-TERM");
    let (status, folder) = service.ended();
    assert!(status.success());
    folder
}

fn restart(folder: TempDir, config: &str) -> Service {
    let file = folder.path().join("tollgate.toml");
    std::fs::write(&file, config).unwrap();
    Service::start(folder, Some(&file), &[])
}

#[test]
fn sigterm_under_load_loses_nothing_in_parquet_files() {
    let store = Store::start();
    let service = Service::with_config(&store.config());
    let load = Load::start(&service, "a");
    std::thread::sleep(Duration::from_secs(3));
    service.signal("-TERM");
    let answered = load.answered();
    assert!(service.ended().0.success());
    assert!(answered.count(200) > 100 && answered.count(429) > 100, "a mix of decisions");
    store.rows().assert_complete(&answered);
}

#[test]
fn node_without_sql_names_the_parquet_files() {
    let folder = TempDir::new().unwrap();
    let files = folder.path().join("files");
    let service = Service::with_config(&folder_config(&files));
    let answered = checks(&service, "a", 300);
    wait_for_files(&service, 300);
    ParquetRows::read(&files).assert_complete(&answered);
    let answer = service.admin("GET", "/v1/admin/decisions", "");
    assert_eq!(answer.status, 409, "{answer:?}");
    assert!(answer.text.contains(&format!("Parquet files in file://{}", files.display())), "{answer:?}");
    let metric = |name: &str| service.metric(name).unwrap();
    assert!(metric("tollgate_record_parquet_rows_total{spool=\"parquet_log\"}") - 300.0 < 0.5);
    assert!(metric("tollgate_record_parquet_bytes_total{spool=\"parquet_log\"}") > 300.0);
    assert!(metric("tollgate_record_parquet_up") > 0.5);
    let data = stop(service);
    assert!(!data.path().join("data/records.db").exists() && !data.path().join("data/records/log").exists());
}

#[test]
fn database_and_parquet_files_hold_the_same_rows() {
    let folder = TempDir::new().unwrap();
    let (files, url) =
        (folder.path().join("files"), format!("sqlite://{}", folder.path().join("r.db").display()));
    let config = config(&format!("url = \"{url}\""), &format!("url = \"file://{}\"", files.display()));
    let service = Service::with_config(&config);
    let load = Load::start(&service, "a");
    std::thread::sleep(Duration::from_secs(3));
    let answered = load.stop();
    stop(service);
    let rows = ParquetRows::read(&files);
    rows.assert_complete(&answered);
    let in_sql: BTreeSet<_> = stored::decisions(&url).into_iter().collect();
    assert_eq!(in_sql, rows.log.iter().cloned().collect());
    assert_eq!((stored::windows(&url), stored::rollups(&url)), (rows.windows, rows.rollups));
}

#[test]
fn unreachable_object_store_gets_everything_later() {
    let store = Store::start();
    let folder = TempDir::new().unwrap();
    let url = format!("sqlite://{}", folder.path().join("r.db").display());
    let parquet = store.parquet(BUCKET, ObjectStoreServer::SECRET_ACCESS_KEY);
    let service = Service::with_config(&config(&format!("url = \"{url}\""), &parquet));
    let mut answered = checks(&service, "before", 100);
    wait_for_files(&service, 100);
    store.proxy.set(Fault::Drop);
    answered.merge(checks(&service, "down", 2_000));
    wait_for_error(&service, "records wait in the spool: Parquet files in s3://records/eu/1");
    assert!(backlog(&service) > 1_000.0);
    wait_for("the database, which is not affected", || {
        (service.metric("tollgate_record_rows_stored_total{spool=\"log\"}") == Some(2_100.0)).then_some(())
    });
    assert!(service.log().contains("cannot write Parquet files"), "{}", service.log());
    store.proxy.set(Fault::None);
    wait_for_files(&service, 2_100);
    assert!(service.log().matches("records are written to Parquet files").count() >= 2, "{}", service.log());
    answered.merge(checks(&service, "after", 100));
    stop(service);
    store.rows().assert_complete(&answered);
}

#[test]
fn lost_answers_of_the_object_store_write_rows_once() {
    let store = Store::start();
    let service = Service::with_config(&store.config());
    let load = Load::start(&service, "a");
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(700));
        store.proxy.set(Fault::BlackHoleReplies);
        std::thread::sleep(Duration::from_millis(1_500));
        store.proxy.set(Fault::None);
    }
    let answered = load.stop();
    wait_for_files(&service, answered.by_id.len());
    stop(service);
    store.rows().assert_complete(&answered);
}

#[test]
fn wrong_secret_and_missing_bucket_are_reported() {
    let store = Store::start();
    let wrong = config("url = \"none\"", &store.parquet(BUCKET, "wrong-secret"));
    let service = Service::with_config(&wrong);
    let mut answered = checks(&service, "a", 200);
    wait_for_error(&service, "access denied; check the credentials");
    assert!(!service.log().contains("wrong-secret"), "{}", service.log());
    let missing = store.parquet("other", ObjectStoreServer::SECRET_ACCESS_KEY);
    let service = restart(stop(service), &config("url = \"none\"", &missing));
    answered.merge(checks(&service, "b", 100));
    wait_for_error(&service, "NoSuchBucket");
    let service = restart(stop(service), &store.config());
    wait_for_files(&service, 0);
    stop(service);
    store.rows().assert_complete(&answered);
}

#[test]
fn full_folder_keeps_rows_in_the_spool() {
    let folder = TempDir::new().unwrap();
    let disk = SmallDisk::mount(folder.path().join("disk"), "2m");
    let (files, filler) = (disk.0.join("files"), disk.0.join("filler"));
    let service = Service::with_config(&folder_config(&files));
    // Fails when the disk is full.
    let _ = std::fs::write(&filler, vec![0_u8; 4 << 20]);
    let answered = checks(&service, "a", 2_000);
    wait_for_error(&service, "No space left");
    std::fs::remove_file(&filler).unwrap();
    wait_for_files(&service, 2_000);
    stop(service);
    ParquetRows::read(&files).assert_complete(&answered);
}

#[test]
fn kills_write_every_row_to_parquet_files_once() {
    let store = Store::start();
    let faults = [Fault::None, Fault::Drop, Fault::BlackHoleReplies];
    let (killed, folder): (Vec<Killed>, _) = kill_under_load(&store.config(), 12, |round| {
        store.proxy.set(faults[round % 3].clone());
    });
    store.proxy.set(Fault::None);
    let last = restart(folder, &store.config());
    let lost_max = wait_for("the crash to be noticed", || {
        last.metric("tollgate_records_lost_in_crash").filter(|rows| *rows > 0.0)
    });
    stop(last);
    let rows = store.rows();
    account(&rows.ids(), rows.windows.0, &killed, lost_max);
}

/// The SQL blocks of docs/parquet.md, run by `DuckDB` for every hour with files.
const DOCUMENTED: &str = r#"
import duckdb, glob, json, re, sys
page = open(sys.argv[2]).read()
refused, windows = re.findall(r"```sql no-run\n(.*?)```", page, re.S)
db = duckdb.connect()
here = lambda query: query.replace("/var/lib/tollgate/parquet", sys.argv[1])
answers = []
for folder in glob.glob(f"{sys.argv[1]}/table=rate_limit_records/*/*"):
    date, hour = re.search(r"date=([0-9-]+)/hour=(\d+)", folder).groups()
    assert "date = '2026-11-18' AND hour = 7" in windows
    query = windows.replace("date = '2026-11-18' AND hour = 7", f"date = '{date}' AND hour = {int(hour)}")
    answers += [[name, int(requests), int(refused)] for name, requests, refused in db.execute(here(query)).fetchall()]
first = min(re.search(r"date=([0-9-]+)", folder)[1] for folder in glob.glob(f"{sys.argv[1]}/*/*"))
refused = db.execute(here(refused).replace("2026-11-18", first)).fetchall()
print(json.dumps([sum(int(count) for _, count in refused), answers]))
"#;

#[test]
fn documented_queries_answer_what_was_decided() {
    let folder = TempDir::new().unwrap();
    let files = folder.path().join("files");
    let service = Service::with_config(&folder_config(&files));
    for _ in 0..205 {
        service.check("alice", "/projects");
    }
    stop(service);
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/parquet.md");
    let mut python = std::process::Command::new(tool("python"));
    let output = python.args(["-c", DOCUMENTED]).arg(&files).arg(page).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (refused, windows): (i64, Vec<(String, i64, i64)>) = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(refused, 5);
    assert!(windows.iter().all(|(client, ..)| client == "user:alice"), "{windows:?}");
    let sum = |of: fn(&(String, i64, i64)) -> i64| windows.iter().map(of).sum::<i64>();
    assert_eq!((sum(|row| row.1), sum(|row| row.2)), (205, 5));
}
