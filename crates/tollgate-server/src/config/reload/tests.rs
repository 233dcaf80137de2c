use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::config::settings::Flags;

const VALID: &str = "default_limit = 100\ndefault_window = \"1m\"\n\n[server]\nlisten = \"127.0.0.1:8080\"\n\n\
    [[rules]]\nname = \"a\"\nper = [\"ip\"]\nlimits = [{ requests = 5, window = \"1s\" }]\n";

/// Records the settings that are applied.
struct Service {
    _dir: tempfile::TempDir,
    file: std::path::PathBuf,
    applied: Arc<Mutex<Vec<String>>>,
    handle: ReloadHandle,
}

fn service(text: &str) -> Service {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tollgate.toml");
    fs::write(&file, text).unwrap();
    let flags = Flags { config: Some(file.clone()), ..Flags::default() };
    let settings = Settings::load(&flags, std::iter::empty()).unwrap();
    let applied = Arc::new(Mutex::new(Vec::new()));
    let apply: Apply = Box::new({
        let applied = Arc::clone(&applied);
        move |settings: &Settings| {
            applied.lock().push(settings.to_toml());
            Ok(13)
        }
    });
    let handle = ReloadHandle::new(settings, Clock::start(), apply);
    Service { _dir: dir, file, applied, handle }
}

#[test]
fn new_settings_are_applied_and_counted() {
    let service = service("default_limit = 1");
    fs::write(&service.file, "default_limit = 2\n[server]\nlisten = \"127.0.0.1:9\"").unwrap();
    let report = service.handle.reload().unwrap();
    assert_eq!((report.generation, report.file_rules, report.rules_in_force), (2, 1, 13));
    assert_eq!(report.needs_restart, ["server.listen"]);
    assert!(service.applied.lock()[0].contains("requests = 2"));
}

#[test]
fn invalid_file_changes_nothing_and_is_reported() {
    let service = service("default_limit = 1");
    fs::write(&service.file, "default_limit = -1\n[sever]").unwrap();
    let error = service.handle.reload().unwrap_err();
    assert_eq!(error.lines().len(), 2);
    let status = service.handle.status();
    assert_eq!((status.generation, status.last_error), (1, Some(error.to_string())));
    assert!(service.applied.lock().is_empty());
    fs::write(&service.file, "default_limit = 3").unwrap();
    assert!(service.handle.reload().is_ok());
    assert_eq!(service.handle.status().last_error, None);
}

#[test]
fn empty_or_missing_file_keeps_the_settings() {
    let service = service("default_limit = 1");
    for text in ["", " \n\t\n"] {
        fs::write(&service.file, text).unwrap();
        let error = service.handle.reload().unwrap_err();
        assert!(error.to_string().ends_with("tollgate.toml: the file is empty"), "{error}");
    }
    fs::remove_file(&service.file).unwrap();
    assert!(matches!(service.handle.reload(), Err(SettingsError::Unreadable { .. })));
    assert!(service.applied.lock().is_empty());
}

/// Mutations of a valid file: truncated, a changed byte, a removed or repeated part.
fn mutation() -> impl Strategy<Value = Vec<u8>> {
    let position = 0..VALID.len();
    prop_oneof![
        position.clone().prop_map(|end| VALID.as_bytes()[..end].to_vec()),
        (position.clone(), any::<u8>()).prop_map(|(at, byte)| {
            let mut bytes = VALID.as_bytes().to_vec();
            bytes[at] = byte;
            bytes
        }),
        (position.clone(), position).prop_map(|(a, b)| {
            let (start, end) = (a.min(b), a.max(b));
            [&VALID.as_bytes()[..start], &VALID.as_bytes()[end..]].concat()
        }),
        (0..VALID.len(), 0..VALID.len())
            .prop_map(|(a, b)| { [&VALID.as_bytes()[..a.max(b)], &VALID.as_bytes()[a.min(b)..]].concat() }),
    ]
}

#[test]
fn mutated_file_applies_completely_or_not_at_all() {
    let service = service(VALID);
    let applied_count = AtomicU32::new(0);
    let mut runner = TestRunner::new(Config { cases: 1_000, failure_persistence: None, ..Config::default() });
    let property = |bytes: Vec<u8>| {
        let before = service.applied.lock().len();
        fs::write(&service.file, &bytes).unwrap();
        let result = service.handle.reload();
        let applied = service.applied.lock();
        if result.is_ok() {
            // The same settings as after a start with that file.
            applied_count.fetch_add(1, Ordering::Relaxed);
            let flags = Flags { config: Some(service.file.clone()), ..Flags::default() };
            let fresh = Settings::load(&flags, std::iter::empty()).unwrap();
            prop_assert_eq!(applied.len(), before + 1);
            prop_assert_eq!(applied.last(), Some(&fresh.to_toml()));
        } else {
            prop_assert_eq!(applied.len(), before);
        }
        Ok(())
    };
    runner.run(&mutation(), property).unwrap();
    let count = applied_count.into_inner();
    assert!(count > 0 && count < 1_000, "only one outcome: {count}");
}

#[test]
fn concurrent_reloads_are_serialized() {
    let service = service("default_limit = 1");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..10).for_each(|_| assert!(service.handle.reload().is_ok())));
        }
    });
    assert_eq!(service.handle.status().generation, 41);
    assert_eq!(service.applied.lock().len(), 40);
}

async fn applied(service: &Service, count: usize) -> bool {
    for _ in 0..100 {
        if service.applied.lock().len() >= count {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    false
}

const EVERY: Duration = Duration::from_millis(20);

#[tokio::test]
async fn written_or_replaced_file_is_noticed() {
    let service = service("default_limit = 1");
    let watch = tokio::spawn(service.handle.clone().watch(EVERY));
    tokio::time::sleep(EVERY * 3).await;
    fs::write(&service.file, "default_limit = 22").unwrap();
    assert!(applied(&service, 1).await, "after writing in place");
    let other = service.file.with_extension("new");
    fs::write(&other, "default_limit = 33").unwrap();
    fs::rename(&other, &service.file).unwrap();
    assert!(applied(&service, 2).await, "after replacing");
    watch.abort();
}

#[tokio::test]
async fn swapped_symlink_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    for (version, limit) in [("v1", 1), ("v2", 2)] {
        fs::create_dir(dir.path().join(version)).unwrap();
        fs::write(dir.path().join(version).join("tollgate.toml"), format!("default_limit = {limit}"))
            .unwrap();
    }
    let link = |target: &str| {
        std::os::unix::fs::symlink(target, dir.path().join("..tmp")).unwrap();
        fs::rename(dir.path().join("..tmp"), dir.path().join("..data")).unwrap();
    };
    link("v1");
    let file = dir.path().join("tollgate.toml");
    std::os::unix::fs::symlink("..data/tollgate.toml", &file).unwrap();
    let mut service = service("default_limit = 1");
    let flags = Flags { config: Some(file), ..Flags::default() };
    let applied_to = Arc::clone(&service.applied);
    let apply: Apply = Box::new(move |settings: &Settings| {
        applied_to.lock().push(settings.to_toml());
        Ok(13)
    });
    service.handle =
        ReloadHandle::new(Settings::load(&flags, std::iter::empty()).unwrap(), Clock::start(), apply);
    let watch = tokio::spawn(service.handle.clone().watch(EVERY));
    tokio::time::sleep(EVERY * 3).await;
    link("v2");
    assert!(applied(&service, 1).await);
    assert!(service.applied.lock()[0].contains("requests = 2"));
    watch.abort();
}

#[tokio::test]
async fn unchanged_file_is_not_reloaded() {
    let service = service("default_limit = 1");
    let watch = tokio::spawn(service.handle.clone().watch(EVERY));
    tokio::time::sleep(EVERY * 10).await;
    assert_eq!(service.handle.status().generation, 1);
    watch.abort();
}
