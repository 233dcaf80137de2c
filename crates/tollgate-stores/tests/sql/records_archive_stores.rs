//! The archive on an object store and on a full disk, and its files in `DuckDB`.

use std::path::{Path, PathBuf};
use std::process::Command;

use tollgate_stores::archive::{Archive, ArchiveCredentials, ArchiveError, ArchivePlace, ArchiveSettings};
use tollgate_stores::redis::Secret;
use tollgate_stores::sql::records::ArchiveStep;
use tollgate_testkit::ObjectStoreServer;

use crate::harness::TestDatabase;
use crate::records_archive::{LATER, RETENTION, TestArchive, dump, filled, restored, run};

fn tool(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/python/bin").join(name);
    assert!(path.exists(), "{name} is missing: run scripts/install-tools test");
    path
}

fn bucket(server: &ObjectStoreServer, secret: &str) -> ArchiveSettings {
    let mut settings = ArchiveSettings::new(ArchivePlace::parse("s3://records/eu/1").unwrap());
    settings.endpoint = Some(server.endpoint());
    settings.region = Some("us-east-1".to_owned());
    settings.allow_http = true;
    settings.credentials = Some(ArchiveCredentials {
        access_key_id: ObjectStoreServer::ACCESS_KEY_ID.to_owned(),
        secret_access_key: Secret(secret.to_owned()),
    });
    settings
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn object_store_holds_and_returns_every_row() {
    let server = ObjectStoreServer::start(&tool("rclone"), "records");
    let empty = TestDatabase::sqlite();
    let database = filled(&empty).await;
    let original = dump(&empty).await;
    let wrong = Archive::open(&bucket(&server, "wrong-secret")).unwrap();
    let error = run(&database, &wrong).await.unwrap_err();
    assert!(error.to_string().contains("access denied"), "{error}");
    assert!(!error.to_string().contains("wrong-secret"), "{error}");
    assert_eq!(dump(&empty).await, original);
    let archive = Archive::open(&bucket(&server, ObjectStoreServer::SECRET_ACCESS_KEY)).unwrap();
    assert_eq!(run(&database, &archive).await.unwrap().rows, original.len() as u64);
    assert!(dump(&empty).await.is_empty());
    assert_eq!(restored(&archive, &TestDatabase::sqlite()).await, original);
    let files = archive.list().await.unwrap();
    archive.delete(&files[0]).await.unwrap();
    assert_eq!(archive.list().await.unwrap(), files[1..]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn object_store_that_dies_loses_nothing() {
    let mut server = ObjectStoreServer::start(&tool("rclone"), "records");
    let empty = TestDatabase::sqlite();
    let database = filled(&empty).await;
    let original = dump(&empty).await;
    let archive = Archive::open(&bucket(&server, ObjectStoreServer::SECRET_ACCESS_KEY)).unwrap();
    let mut left = 2;
    let mut report = |step: &ArchiveStep| {
        if matches!(step, ArchiveStep::Verified(_)) {
            left -= 1;
            if left == 0 {
                server.kill();
            }
        }
    };
    let error = database.archive(&archive, "node-a", LATER, &RETENTION, &mut report).await.unwrap_err();
    assert!(matches!(error, ArchiveError::Store { .. }), "{error}");
    server.restart(&tool("rclone"));
    let archive = Archive::open(&bucket(&server, ObjectStoreServer::SECRET_ACCESS_KEY)).unwrap();
    run(&database, &archive).await.unwrap();
    assert!(dump(&empty).await.is_empty());
    assert_eq!(restored(&archive, &TestDatabase::sqlite()).await, original);
}

/// A bucket that somebody deletes while the archive is at work, and restores from a copy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bucket_gone_mid_way_loses_nothing() {
    let server = ObjectStoreServer::start(&tool("rclone"), "records");
    let empty = TestDatabase::sqlite();
    let database = filled(&empty).await;
    let original = dump(&empty).await;
    let archive = Archive::open(&bucket(&server, ObjectStoreServer::SECRET_ACCESS_KEY)).unwrap();
    // Before steps that read: rclone creates a missing bucket when something is written to it.
    for gone_after in ["Written", "Verified"] {
        let mut is_there = true;
        let mut report = |step: &ArchiveStep| {
            if is_there && format!("{step:?}").starts_with(gone_after) {
                server.take_bucket_away("records");
                is_there = false;
            }
        };
        let error = database.archive(&archive, "node-a", LATER, &RETENTION, &mut report).await.unwrap_err();
        assert!(matches!(error, ArchiveError::Store { .. }), "{gone_after}: {error}");
        server.bring_bucket_back("records");
    }
    run(&database, &archive).await.unwrap();
    assert!(dump(&empty).await.is_empty());
    assert_eq!(restored(&archive, &TestDatabase::sqlite()).await, original);
}

/// A bucket that does not exist.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_bucket_removes_nothing() {
    let server = ObjectStoreServer::start(&tool("rclone"), "other");
    let empty = TestDatabase::sqlite();
    let database = filled(&empty).await;
    let original = dump(&empty).await;
    let archive = Archive::open(&bucket(&server, ObjectStoreServer::SECRET_ACCESS_KEY)).unwrap();
    let error = run(&database, &archive).await.unwrap_err();
    assert!(error.to_string().contains("NoSuchBucket"), "{error}");
    assert_eq!(dump(&empty).await, original);
}

/// A file system that is soon full.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount(bytes: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = format!("size={bytes}");
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", &options, "tollgate"]).arg(folder.path()).status();
        assert!(mounted.unwrap().success(), "mounting a tmpfs needs root");
        SmallDisk(folder)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_disk_removes_nothing() {
    let disk = SmallDisk::mount(1024 * 1024);
    let filler = disk.0.path().join("filler");
    let empty = TestDatabase::sqlite();
    let database = filled(&empty).await;
    let original = dump(&empty).await;
    std::fs::write(&filler, vec![1; 980 * 1024]).unwrap();
    let place = ArchivePlace::parse(&format!("file://{}/archive", disk.0.path().display())).unwrap();
    let archive = Archive::open(&ArchiveSettings::new(place)).unwrap();
    let error = run(&database, &archive).await.unwrap_err();
    assert!(error.to_string().contains("No space left"), "{error}");
    let archived: u64 = archive.list().await.unwrap().iter().map(|file| file.rows).sum();
    assert!(archived < original.len() as u64);
    assert!(archived + dump(&empty).await.len() as u64 >= original.len() as u64);
    std::fs::remove_file(&filler).unwrap();
    run(&database, &archive).await.unwrap();
    assert!(dump(&empty).await.is_empty());
    assert_eq!(restored(&archive, &TestDatabase::sqlite()).await, original);
}

/// Runs a script with `duckdb` imported; returns what it prints.
fn duckdb(script: &str) -> String {
    let output =
        Command::new(tool("python")).args(["-c", &format!("import duckdb\n{script}")]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Files of a tollgate without one of the columns, and of one with a column more. The column without values stands for the
/// one that was added later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_of_other_versions_are_restored() {
    let empty = TestDatabase::sqlite();
    let (database, to) = (filled(&empty).await, TestArchive::new());
    let original = dump(&empty).await;
    run(&database, &to.archive).await.unwrap();
    let logs = to.files(".parquet").into_iter().filter(|file| file.to_string_lossy().contains("audit_logs"));
    let mut logs: Vec<PathBuf> = logs.collect();
    logs.sort();
    for (file, columns) in logs.iter().zip(["* EXCLUDE (api_key_id)", "*, 7 AS added_later"]) {
        let file = file.display();
        duckdb(&format!(
            "duckdb.sql(\"COPY (SELECT {columns} FROM read_parquet('{file}', hive_partitioning = false)) \
             TO '{file}.new' (FORMAT parquet, COMPRESSION zstd)\")\n\
             import os\n\
             os.rename('{file}.new', '{file}')\n"
        ));
    }
    for file in to.archive.list().await.unwrap() {
        to.archive.verify(&file, &mut |_| {}).await.unwrap();
    }
    assert_eq!(restored(&to.archive, &TestDatabase::sqlite()).await, original);
    let rows = duckdb(&format!(
        "print(duckdb.sql(\"SELECT count(*), count(api_key_id), sum(added_later) > 0 FROM \
         read_parquet('{}/table=rate_limit_audit_logs/*/*.parquet', union_by_name = true)\").fetchall()[0])",
        to.folder.path().display()
    ));
    assert_eq!(rows.trim(), "(300, 0, True)");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duckdb_reads_the_files_as_written() {
    let empty = TestDatabase::sqlite();
    let (database, to) = (filled(&empty).await, TestArchive::new());
    let mut client = empty.client().await;
    let expected = client
        .texts(
            "SELECT rule_id || ' ' || substr(timestamp, 1, 13) || ' ' || COUNT(*) FROM rate_limit_audit_logs \
             WHERE identifier = 'user:ué3' AND decision <> 'allowed' GROUP BY rule_id, substr(timestamp, 1, 13) ORDER BY 1",
        )
        .await;
    let rows = client.number("SELECT COUNT(*) FROM rate_limit_audit_logs").await;
    run(&database, &to.archive).await.unwrap();
    let script = format!(
        "db = duckdb.connect()\n\
         log = \"read_parquet('{0}/table=rate_limit_audit_logs/*/*.parquet')\"\n\
         print(db.execute(f'SELECT count(*) FROM {{log}}').fetchone()[0])\n\
         for name, kind in [('timestamp', 'TIMESTAMP WITH TIME ZONE'), ('identifier', 'VARCHAR'), ('log_id', 'BIGINT'), ('degraded', 'BOOLEAN')]:\n\
         \x20   found = db.execute(f'SELECT typeof({{name}}) FROM {{log}} LIMIT 1').fetchone()[0]\n\
         \x20   assert found == kind, (name, found)\n\
         for row in db.execute(f\"\"\"SELECT rule_id || ' ' || strftime(make_timestamp(epoch_us(timestamp)), '%Y-%m-%d %H') || ' ' || count(*) FROM {{log}}\n\
         WHERE identifier = 'user:ué3' AND decision <> 'allowed' GROUP BY rule_id, strftime(make_timestamp(epoch_us(timestamp)), '%Y-%m-%d %H') ORDER BY 1\"\"\").fetchall():\n\
         \x20   print(row[0])\n\
         for table in ['rate_limit_records', 'rate_limit_metrics']:\n\
         \x20   assert db.execute(f\"SELECT count(*) FROM read_parquet('{0}/table={{table}}/*/*.parquet')\").fetchone()[0] > 0\n",
        to.folder.path().display()
    );
    let text = duckdb(&script);
    let mut lines = text.lines();
    assert_eq!(lines.next().unwrap(), rows.to_string());
    assert_eq!(lines.collect::<Vec<_>>(), expected);
}
