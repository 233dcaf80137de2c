//! MariaDB: dump and binary logs, restored to a moment between two changes.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use tollgate_testkit::MariaDbServer;

use crate::deployment::{PointInTime, node_on};
use crate::scripts::{Scripts, fail, succeed};

/// The option file of the scripts.
fn defaults(server: &MariaDbServer, folder: &Path) -> PathBuf {
    let path = folder.join(format!("{}.cnf", server.port()));
    let password = MariaDbServer::PASSWORD;
    let text =
        format!("[client]\nuser=tollgate\npassword={password}\nhost=127.0.0.1\nport={}\n", server.port());
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    path
}

struct Backups {
    scripts: Scripts,
    folder: TempDir,
}

impl Backups {
    fn script(&self, name: &str, server: &MariaDbServer) -> Command {
        let mut command = Command::new(self.scripts.path(name));
        command.env("BACKUP_FOLDER", self.folder.path()).env("MARIADB_DATABASE", "test_0");
        command.env("MARIADB_DEFAULTS", defaults(server, self.folder.path()));
        command
    }

    fn copy_binary_logs(&self, server: &MariaDbServer) {
        let folder = self.folder.path().join("binlog");
        succeed(self.script("mariadb-binlog.sh", server).env("BACKUP_FOLDER", folder));
    }

    fn restore(&self, server: &MariaDbServer, dump: &str, time: &str) -> Command {
        let mut command = self.script("mariadb-restore.sh", server);
        command.arg(dump).arg(self.folder.path().join("binlog")).arg(time);
        command
    }
}

#[test]
fn mariadb_is_restored_to_a_point_in_time() {
    let backups = Backups { scripts: Scripts::install(), folder: TempDir::new().unwrap() };
    let server = MariaDbServer::with(&["--log-bin=binlog", "--server-id=1"]);
    let url = server.create_database();
    let service = node_on(&url);
    let mut drill = PointInTime::before_backup(&service, &url);
    let dump = succeed(&mut backups.script("mariadb-dump.sh", &server));

    drill.before_moment(&service, &url);
    backups.copy_binary_logs(&server);
    // Binary logs have whole seconds, and the time itself is not applied.
    std::thread::sleep(Duration::from_millis(1_100));
    let moment = server.execute("test_0", "SELECT UTC_TIMESTAMP()").trim().to_owned();
    std::thread::sleep(Duration::from_millis(1_100));

    drill.after_moment(&service, &url);
    backups.copy_binary_logs(&server);
    drop((service, server));

    let restored = MariaDbServer::start();
    succeed(&mut backups.restore(&restored, &dump, &moment));
    let error = fail(&mut backups.restore(&restored, &dump, &moment));
    assert!(error.contains("is not empty; drop it first"), "{error}");
    let password = MariaDbServer::PASSWORD;
    let url = format!("mysql://tollgate:{password}@127.0.0.1:{}/test_0", restored.port());
    drill.assert_restored(&url);
}

#[test]
fn failed_mariadb_dump_leaves_no_file() {
    let backups = Backups { scripts: Scripts::install(), folder: TempDir::new().unwrap() };
    let server = MariaDbServer::start();
    let dumps = backups.folder.path().join("dumps");
    let mut dump = backups.script("mariadb-dump.sh", &server);
    let error = fail(dump.env("BACKUP_FOLDER", &dumps).env("MARIADB_DATABASE", "missing"));
    assert!(error.contains("missing"), "{error}");
    assert!(!error.contains(MariaDbServer::PASSWORD), "{error}");
    assert_eq!(fs::read_dir(&dumps).unwrap().count(), 0);
}
