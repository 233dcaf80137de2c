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

/// A bucket that does not exist, or no longer.
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
        "import duckdb\n\
         db = duckdb.connect()\n\
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
    let output = Command::new(tool("python")).args(["-c", &script]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut lines = text.lines();
    assert_eq!(lines.next().unwrap(), rows.to_string());
    assert_eq!(lines.collect::<Vec<_>>(), expected);
}
