//! Damaged, incomplete and impossible backups: a clear error, and nothing is changed.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tollgate_testkit::ObjectStoreServer;

use crate::commands::{backup, backup_args, bucket_environment, list, restore, run, tool};
use crate::deployment::{put_quota, put_rule, rules, scaled};
use crate::harness::{Service, wait_for};
use crate::small_disk::SmallDisk;

/// A node with a rule, and a backup of it.
fn backed_up() -> (Service, TempDir, PathBuf) {
    let folder = TempDir::new().unwrap();
    let service = Service::with_config("default_limit = 10\ndefault_window = 60\n");
    put_rule(&service, "search", 3);
    let (place, _) = backup(&service, folder.path().to_str().unwrap(), &[], &[]);
    (service, folder, PathBuf::from(place))
}

/// The names and contents of a folder.
fn snapshot(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.clone(), fs::read(&path).unwrap_or_default()))
        .collect();
    files.sort();
    files
}

#[track_caller]
fn assert_refused(backup: &Path, reason: &str) {
    let target = TempDir::new().unwrap();
    let done = restore(backup.to_str().unwrap(), target.path(), &[], &[]);
    assert_eq!(done.code, 2, "{reason}");
    assert!(done.messages.contains(reason), "{reason}: {}", done.messages);
    assert!(snapshot(target.path()).is_empty(), "{reason}");
    let verified = run(&["restore", backup.to_str().unwrap(), "--dry-run"], &[]);
    assert!(verified.code == 2 && verified.messages.contains(reason), "{}", verified.messages);
}

#[test]
fn damaged_backups_restore_nothing() {
    let (_service, folder, place) = backed_up();
    let (database, manifest) = (place.join("tollgate.db"), place.join("manifest.json"));
    let bytes = fs::read(&database).unwrap();
    let mut changed = bytes.clone();
    let middle = changed.len() / 2;
    changed[middle] ^= 1;
    fs::write(&database, &changed).unwrap();
    assert_refused(&place, "tollgate.db of the backup is damaged: its SHA-256 differs");
    fs::write(&database, &bytes[..100]).unwrap();
    assert_refused(&place, "it has 100 bytes instead of");
    fs::remove_file(&database).unwrap();
    assert_refused(&place, "tollgate.db of the backup is damaged: it is missing");
    fs::write(&database, &bytes).unwrap();
    let json = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, json.replace("tollgate.db", "../tollgate.db")).unwrap();
    assert_refused(&place, "upgrade tollgate");
    fs::write(&manifest, &json[..json.len() / 2]).unwrap();
    assert_refused(&place, "manifest.json of the backup is damaged");
    fs::remove_file(&manifest).unwrap();
    assert_refused(&place, "has no manifest.json");
    assert_eq!(list(folder.path().to_str().unwrap()), Vec::<String>::new());
    assert_refused(&folder.path().join("missing"), "has no manifest.json");
    fs::write(&manifest, json).unwrap();
    let target = TempDir::new().unwrap();
    assert_eq!(restore(place.to_str().unwrap(), target.path(), &[], &[]).code, 0);
}

#[test]
fn killed_backups_never_count() {
    let folder = TempDir::new().unwrap();
    let to = folder.path().to_str().unwrap();
    let service = Service::with_config("default_limit = 10\ndefault_window = 60\n");
    for number in 0..scaled(20) {
        put_quota(&service, &format!("user-{number}"), 100);
    }
    let mut complete = Vec::new();
    for milliseconds in [0, 3, 6, 10, 15, 20, 30, 50, 100] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(backup_args(&service, to)).stdout(Stdio::null()).stderr(Stdio::null());
        let mut killed = command.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(milliseconds));
        killed.kill().unwrap();
        killed.wait().unwrap();
        for name in list(to) {
            let place = folder.path().join(&name);
            assert_eq!(run(&["restore", place.to_str().unwrap(), "--dry-run"], &[]).code, 0, "{name}");
            complete.push(name);
        }
        // Backups are named by the second, and an incomplete one is not replaced.
        for entry in fs::read_dir(folder.path()).unwrap() {
            fs::remove_dir_all(entry.unwrap().path()).unwrap();
        }
    }
    assert!(complete.len() < 9, "no backup was killed in time");
}

#[test]
fn wrong_credentials_leave_nothing_behind() {
    let store = ObjectStoreServer::start(&tool("rclone"), "backups");
    let (staging, endpoint) = (TempDir::new().unwrap(), store.endpoint());
    let mut environment = bucket_environment(&endpoint, "wrong-secret").to_vec();
    environment.push(("TMPDIR", staging.path().to_str().unwrap()));
    let service = Service::with_config("default_limit = 10\ndefault_window = 60\n");
    let args = backup_args(&service, "s3://backups/gate-1");
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = run(&args, &environment);
    assert_eq!(done.code, 2);
    assert!(
        done.messages.contains("s3://backups/gate-1: access denied; check the credentials"),
        "{}",
        done.messages
    );
    assert!(!done.messages.contains("wrong-secret"), "{}", done.messages);
    assert!(snapshot(staging.path()).is_empty());
    let target = TempDir::new().unwrap();
    let done = restore("s3://backups/gate-1/20270131T120000Z", target.path(), &[], &environment);
    assert!(done.code == 2 && done.messages.contains("access denied"), "{}", done.messages);
    assert!(snapshot(target.path()).is_empty());
    environment[1].1 = ObjectStoreServer::SECRET_ACCESS_KEY;
    let done = restore("s3://backups/gate-1/20270131T120000Z", target.path(), &[], &environment);
    assert!(done.code == 2 && done.messages.contains("has no manifest.json"), "{}", done.messages);
    let done = run(&[&args[..2], &["s3://missing"][..], &args[3..]].concat(), &environment);
    assert!(done.code == 2 && done.messages.contains("NoSuchBucket"), "{}", done.messages);
}

#[test]
fn full_disk_leaves_no_backup_and_no_restore() {
    let (service, folder, place) = backed_up();
    let small = TempDir::new().unwrap();
    let disk = SmallDisk::mount(small.path().join("disk"), "64k");
    let args = backup_args(&service, disk.0.to_str().unwrap());
    let done = run(&args.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
    assert_eq!(done.code, 2);
    assert!(done.messages.contains("full") || done.messages.contains("No space left"), "{}", done.messages);
    assert!(snapshot(&disk.0).is_empty());
    let done = restore(place.to_str().unwrap(), &disk.0, &[], &[]);
    assert_eq!(done.code, 2);
    assert!(done.messages.contains("No space left"), "{}", done.messages);
    assert!(snapshot(&disk.0).is_empty());
    assert_eq!(rules(&service), ["search"]);
    drop(folder);
}

#[test]
fn data_directory_in_use_is_not_touched() {
    let (service, _folder, place) = backed_up();
    put_rule(&service, "later", 3);
    let place = place.to_str().unwrap();
    let data_dir = service.data_dir();
    let data_dir = data_dir.to_str().unwrap();
    let into = ["restore", place, "--data-dir", data_dir];
    for more in [&[][..], &["--force"][..]] {
        let done = run(&[&into[..], more].concat(), &[]);
        assert_eq!(done.code, 2);
        assert!(done.messages.contains("is in use by another process"), "{}", done.messages);
    }
    assert_eq!(rules(&service), ["later", "search"]);
    service.signal("-TERM");
    let (_, folder) = service.ended();
    let before = snapshot(Path::new(data_dir));
    let done = run(&into, &[]);
    assert!(
        done.code == 2 && done.messages.contains("pass --force to move its files aside"),
        "{}",
        done.messages
    );
    assert_eq!(snapshot(Path::new(data_dir)), before);
    let config = folder.path().join("tollgate.toml");
    let out = ["--force", "--config-out", config.to_str().unwrap()];
    let done = run(&[&into[..], &out[..]].concat(), &[]);
    assert!(done.code == 2 && done.messages.contains("exists; choose another name"), "{}", done.messages);
    assert_eq!(snapshot(Path::new(data_dir)), before);

    let done = run(&["restore", place, "--data-dir", data_dir, "--force"], &[]);
    assert_eq!(done.code, 0, "{}", done.messages);
    let aside = PathBuf::from(done.json["moved_to"].as_str().unwrap());
    let kept: Vec<_> = snapshot(&aside).into_iter().map(|(_, bytes)| bytes).collect();
    let expected = before.into_iter().filter(|(path, _)| !path.ends_with("lock")).map(|(_, bytes)| bytes);
    assert_eq!(kept, expected.collect::<Vec<_>>());
    let service = Service::start(folder, Some(&config), &[]);
    wait_for("the database", || (rules(&service) == ["search"]).then_some(()));
}

#[test]
fn backups_are_readable_by_their_owner_only() {
    let (_service, _folder, place) = backed_up();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&place), 0o700);
    for entry in fs::read_dir(&place).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
}

#[test]
fn missing_data_directory_is_an_error() {
    let folder = TempDir::new().unwrap();
    let missing = folder.path().join("missing");
    let to = folder.path().join("backups");
    let args = ["backup", "--to", to.to_str().unwrap(), "--data-dir", missing.to_str().unwrap()];
    let done = run(&args, &[]);
    assert!(
        done.code == 2 && done.messages.contains("does not exist; pass the --config"),
        "{}",
        done.messages
    );
    assert!(!to.exists() && !missing.exists());
    let done = run(&["backup", "--to", "gs://bucket"], &[]);
    assert!(done.messages.contains("neither a folder nor s3://BUCKET/PREFIX"), "{}", done.messages);
}
