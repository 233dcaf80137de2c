//! A full disk: decisions continue, what is lost is counted, and recording resumes by itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::accounting::config;
use crate::harness::{Service, wait_for};
use crate::load::checks;
use crate::stored;

/// A small file system of its own, unmounted on drop.
pub(crate) struct SmallDisk(PathBuf);

impl SmallDisk {
    pub(crate) fn mount(path: PathBuf, size: &str) -> Self {
        fs::create_dir_all(&path).unwrap();
        let options = format!("size={size}");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tollgate"]).arg(&path).status();
        assert!(mounted.unwrap().success(), "mounting a tmpfs needs root");
        SmallDisk(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn full_disk_drops_and_counts_until_there_is_room() {
    let (folder, database) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let url = format!("sqlite://{}", database.path().join("r.db").display());
    let disk = SmallDisk::mount(folder.path().join("data/records"), "4m");
    let filler = disk.0.join("filler");
    fs::write(folder.path().join("tollgate.toml"), config(&url)).unwrap();
    let file = folder.path().join("tollgate.toml");
    let service = Service::start(folder, Some(&file), &[]);
    checks(&service, "before", 100);
    wait_for("the first rows", || {
        (service.metric("tollgate_record_rows_stored_total{spool=\"log\"}") == Some(100.0)).then_some(())
    });
    // Fails when the disk is full.
    let _ = fs::write(&filler, vec![0_u8; 8 << 20]);
    let dropped =
        || service.metric("tollgate_record_rows_dropped_total{spool=\"log\",reason=\"disk\"}").unwrap();
    let mut sent = 100_u32;
    while dropped() < 1.0 {
        checks(&service, &format!("full-{sent}"), 500);
        sent += 500;
        assert!(sent < 100_000, "the disk is not full");
    }
    assert!(service.log().contains("cannot write to the record spool"), "{}", service.log());
    fs::remove_file(&filler).unwrap();
    let before = service.metric("tollgate_record_rows_stored_total{spool=\"log\"}").unwrap();
    wait_for("recording to resume", || {
        checks(&service, &format!("after-{sent}"), 10);
        sent += 10;
        (service.metric("tollgate_record_rows_stored_total{spool=\"log\"}").unwrap() > before + 5.0)
            .then_some(())
    });
    assert!(service.log().contains("records are written to the spool again"), "{}", service.log());
    // Nothing more is lost once the disk has room.
    let lost = dropped();
    service.signal("-TERM");
    let (status, _folder) = service.ended();
    assert!(status.success());
    let stored = stored::request_ids(&url).len();
    assert_eq!(stored as f64 + lost, f64::from(sent), "produced = stored + dropped");
}
