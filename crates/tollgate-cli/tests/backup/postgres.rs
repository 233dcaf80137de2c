//! PostgreSQL: base backup and archived WAL, restored to a moment between two changes.

use std::path::Path;
use std::process::Command;

use tollgate_testkit::{PostgresServer, SqlInstance};

use crate::deployment::{PointInTime, node_on};
use crate::harness::wait_for;
use crate::scripts::{Scripts, fail, succeed};

fn archiving(scripts: &Scripts, wal: &Path) -> PostgresServer {
    let script = scripts.path("postgres-archive-wal.sh");
    let command = format!("archive_command={} %p {}/%f", script.display(), wal.display());
    PostgresServer::with(&["-c", "archive_mode=on", "-c", &command])
}

/// Runs `postgres-base.sh` as the user of the server; returns the backup.
fn base_backup(scripts: &Scripts, server: &PostgresServer, folder: &Path) -> String {
    let mut script = server.instance().command(scripts.path("postgres-base.sh"));
    script.env("BACKUP_FOLDER", folder).env("PGHOST", "127.0.0.1").env("PGPORT", server.port().to_string());
    succeed(script.env("PGUSER", "tollgate").env("PGPASSWORD", PostgresServer::PASSWORD))
}

fn restore(scripts: &Scripts, instance: &SqlInstance, base: &str, wal: &Path, time: &str) -> Command {
    let mut script = instance.command(scripts.path("postgres-restore.sh"));
    script.arg(base).arg(wal).arg(instance.path("data")).arg(time);
    script
}

#[test]
fn postgres_is_restored_to_a_point_in_time() {
    let scripts = Scripts::install();
    // Outlives the server, as a backup should.
    let backups = tempfile::tempdir().unwrap();
    succeed(Command::new("chmod").arg("777").arg(backups.path()));
    let wal = backups.path().join("wal");
    let server = archiving(&scripts, &wal);
    let url = server.create_database();
    let service = node_on(&url);
    let mut drill = PointInTime::before_backup(&service, &url);
    let base = base_backup(&scripts, &server, backups.path());

    drill.before_moment(&service, &url);
    let moment = server.execute("test_0", "SELECT now()").trim().to_owned();

    drill.after_moment(&service, &url);
    let last = server.execute("test_0", "SELECT pg_walfile_name(pg_switch_wal())").trim().to_owned();
    wait_for("the last WAL file", || wal.join(&last).exists().then_some(()));
    drop((service, server));

    let restored = PostgresServer::from_backup(|instance| {
        succeed(&mut restore(&scripts, instance, &base, &wal, &moment));
        let error = fail(&mut restore(&scripts, instance, &base, &wal, &moment));
        assert!(error.contains("is not empty"), "{error}");
    });
    let url =
        format!("postgres://tollgate:{}@127.0.0.1:{}/test_0", PostgresServer::PASSWORD, restored.port());
    drill.assert_restored(&url);
}

#[test]
fn archived_wal_is_never_replaced() {
    let (scripts, folder) = (Scripts::install(), tempfile::tempdir().unwrap());
    let (wal, archived) = (folder.path().join("wal"), folder.path().join("archive/000000010000000000000001"));
    let archive = || {
        let mut command = Command::new(scripts.path("postgres-archive-wal.sh"));
        command.arg(&wal).arg(&archived);
        command
    };
    std::fs::write(&wal, "first").unwrap();
    succeed(&mut archive());
    succeed(&mut archive());
    std::fs::write(&wal, "other").unwrap();
    assert!(fail(&mut archive()).contains("exists and differs"));
    assert_eq!(std::fs::read_to_string(&archived).unwrap(), "first");
}
