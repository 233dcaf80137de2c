use std::os::unix::fs::PermissionsExt;

use tollgate::{Endpoint, Id, Limiter, Request, RuleSet};

use super::*;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn open() -> (tempfile::TempDir, DataDir) {
    let parent = tempfile::tempdir().unwrap();
    let data_dir = DataDir::open(&parent.path().join("a/b")).unwrap();
    (parent, data_dir)
}

#[test]
fn files_are_readable_by_the_owner_only() {
    let (_parent, data_dir) = open();
    let _ = data_dir.admin_key().unwrap();
    assert_eq!(mode(&data_dir.path), 0o700);
    assert_eq!(mode(&data_dir.path.join("admin.key")), 0o600);
}

#[test]
fn two_processes_cannot_share_a_directory() {
    let (_parent, data_dir) = open();
    let second = DataDir::open(&data_dir.path).unwrap_err();
    assert!(matches!(second, DataDirError::InUse { .. }));
    assert!(second.to_string().contains("a/b is in use by another process"));
    let path = data_dir.path.clone();
    drop(data_dir);
    assert!(DataDir::open(&path).is_ok());
}

#[test]
fn admin_key_is_generated_once() {
    let (_parent, data_dir) = open();
    let first = data_dir.admin_key().unwrap();
    let key = &first.key.0;
    assert!(first.is_new && key.starts_with("tg_admin_") && key.len() == 9 + 43, "{key}");
    let second = data_dir.admin_key().unwrap();
    assert_eq!((second.is_new, second.key), (false, first.key));
    assert_ne!(generate_admin_key().unwrap(), generate_admin_key().unwrap());
}

#[test]
fn debug_hides_the_admin_key() {
    let (_parent, data_dir) = open();
    let key = data_dir.admin_key().unwrap();
    assert!(!format!("{key:?}").contains("tg_admin"));
}

#[test]
fn operator_may_provide_the_admin_key() {
    let (_parent, data_dir) = open();
    let path = data_dir.path.join("admin.key");
    let own = "my-own-key-of-22-chars";
    fs::write(&path, format!("  {own}\r\n")).unwrap();
    assert_eq!(data_dir.admin_key().unwrap().key.0, own);
    for wrong in ["", " \n", "two\nlines", "h\u{e9}"] {
        fs::write(&path, wrong).unwrap();
        let error = data_dir.admin_key().unwrap_err();
        assert!(matches!(error, DataDirError::InvalidKey { .. }), "{wrong:?}: {error}");
    }
}

#[test]
fn short_admin_key_is_rejected_and_not_printed() {
    let (_parent, data_dir) = open();
    for short in ["short", "my-own-key-of-21-char"] {
        fs::write(data_dir.path.join("admin.key"), short).unwrap();
        let error = data_dir.admin_key().unwrap_err();
        assert!(matches!(error, DataDirError::WeakKey { length, .. } if length == short.len()), "{error}");
        assert!(!error.to_string().contains(&format!(" {short} ")), "{error}");
    }
}

fn limiter(counters: MemoryCounters, seed: Seed) -> Limiter<MemoryCounters> {
    let rules = RuleSet::from_toml("default_limit = 1\ndefault_window = \"1h\"").unwrap();
    Limiter::with_records(rules, counters, tollgate::record::NoRecords, seed)
}

fn admits(limiter: &Limiter<MemoryCounters>, now: Timestamp) -> bool {
    let request = Request {
        user: Some(Id::parse("alice").unwrap()),
        ..Request::new(Endpoint::parse("/search").unwrap())
    };
    limiter.check_now(&request, now).admits()
}

#[test]
fn restart_does_not_refill_allowances() {
    let (_parent, data_dir) = open();
    let now = Timestamp::from_secs(1_000_000);
    let (counters, seed) = data_dir.load_counters(MemoryBounds::default());
    let before = limiter(counters, seed);
    assert!(admits(&before, now));
    data_dir.save_counters(before.counters(), seed, now).unwrap();
    let (counters, seed) = data_dir.load_counters(MemoryBounds::default());
    assert!(!admits(&limiter(counters, seed), now));
}

#[test]
fn damaged_snapshot_is_renamed_and_the_start_continues() {
    let (_parent, data_dir) = open();
    let now = Timestamp::from_secs(1_000_000);
    let (counters, seed) = data_dir.load_counters(MemoryBounds::default());
    let before = limiter(counters, seed);
    assert!(admits(&before, now));
    data_dir.save_counters(before.counters(), seed, now).unwrap();
    let path = data_dir.path.join("counters.snap");
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let (counters, _) = data_dir.load_counters(MemoryBounds::default());
    assert!(counters.is_empty());
    assert!(!path.exists());
    assert_eq!(fs::read(data_dir.path.join("counters.snap.damaged")).unwrap(), bytes);
}

#[test]
fn failed_save_keeps_the_last_snapshot() {
    let (_parent, data_dir) = open();
    let now = Timestamp::from_secs(1_000_000);
    let (counters, seed) = data_dir.load_counters(MemoryBounds::default());
    data_dir.save_counters(&counters, seed, now).unwrap();
    let path = data_dir.path.join("counters.snap");
    let saved = fs::read(&path).unwrap();
    // A directory in place of the draft fails like a full disk, for root as well.
    fs::create_dir(data_dir.path.join("counters.snap.tmp")).unwrap();
    assert!(data_dir.save_counters(&counters, seed, now).is_err());
    assert_eq!(fs::read(&path).unwrap(), saved);
    fs::remove_dir(data_dir.path.join("counters.snap.tmp")).unwrap();
    assert!(data_dir.save_counters(&counters, seed, now).is_ok(), "the next time it works");
}

#[test]
fn full_disk_during_a_write_keeps_the_last_file() {
    let (_parent, data_dir) = open();
    data_dir.replace("x", |file| file.write_all(b"old")).unwrap();
    let full = || io::Error::from(io::ErrorKind::StorageFull);
    let result = data_dir.replace("x", |file| file.write_all(b"half").and_then(|()| Err(full())));
    assert_eq!(result.unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!(fs::read(data_dir.path.join("x")).unwrap(), b"old");
    assert!(!data_dir.path.join("x.tmp").exists());
}
