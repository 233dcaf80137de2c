//! A node with embedded storage: backed up under load, lost, restored.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use tempfile::TempDir;
use tollgate_testkit::ObjectStoreServer;

use crate::commands::{backup, bucket_environment, list, restore, run, tool};
use crate::deployment::{
    Key, admitted, create_key, delete_rule, key_state, logged, put_quota, put_rule, quota, revoke_key, rules,
    scaled, wait_until_logged,
};
use crate::harness::{Service, wait_for};
use crate::load::Load;

const CONFIG: &str = "# kept as written\ndefault_limit = 1000000\ndefault_window = 3600\n\
    [counters]\nsave_every = \"1s\"\n[records]\nsample_allowed = \"all\"\n";

fn records(data_dir: &Path) -> String {
    format!("sqlite://{}", data_dir.join("records.db").display())
}

/// Waits until what was counted so far is in the snapshot.
pub(crate) fn wait_for_snapshot(service: &Service) {
    let (now, snapshot) = (SystemTime::now(), service.data_dir().join("counters.snap"));
    wait_for("a snapshot of the counters", || {
        let saved = fs::metadata(&snapshot).and_then(|file| file.modified()).ok()?;
        // A save that had begun before may lack the last requests.
        (saved > now + Duration::from_millis(1_500)).then_some(())
    });
}

/// A node with rules, quotas, a key, a client over its limit, and its records.
fn deployed() -> (Service, Key) {
    let service = Service::with_config(CONFIG);
    put_rule(&service, "search", 3);
    for number in 0..scaled(20) {
        put_quota(&service, &format!("quota-{number}"), 100);
    }
    let key = create_key(&service, "app");
    assert_eq!(key_state(&service, &key), "200");
    assert_eq!(admitted(&service, "alice", "/search", 4), 3);
    wait_for("the records", || service.data_dir().join("records.db").exists().then_some(()));
    wait_until_logged(&records(&service.data_dir()), "alice", 4);
    wait_for_snapshot(&service);
    (service, key)
}

/// Backs up under load, changes the configuration, and loses the node.
fn back_up_and_lose(
    service: Service,
    key: &Key,
    to: &str,
    more: &[&str],
    environment: &[(&str, &str)],
) -> (String, String) {
    let load = Load::start(&service, "load");
    std::thread::sleep(Duration::from_millis(300));
    let (place, done) = backup(&service, to, more, environment);
    delete_rule(&service, "search");
    revoke_key(&service, key);
    assert!(load.stop().by_id.len() > 100, "the node did not serve meanwhile");
    service.signal("-KILL");
    drop(service.ended());
    (place, done.messages)
}

fn start_restored(folder: TempDir) -> Service {
    let file = folder.path().join("tollgate.toml");
    assert_eq!(fs::read_to_string(&file).unwrap(), CONFIG);
    Service::start(folder, Some(&file), &[])
}

/// Rules, quotas, counters and records are those of the backup.
fn assert_restored(service: &Service) {
    assert_eq!(rules(service), ["search"], "it was deleted after the backup");
    assert_eq!(quota(service, &format!("quota-{}", scaled(20) - 1)), Some(100));
    assert_eq!(admitted(service, "alice", "/search", 2), 0, "the limit stays used up");
    assert_eq!(admitted(service, "bob", "/search", 4), 3);
    assert!(logged(&records(&service.data_dir()), "alice") >= 4);
}

#[test]
fn node_is_restored_from_a_folder_with_its_keys() {
    let (folder, target) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (service, key) = deployed();
    let admin_key = service.admin_key();
    let to = folder.path().join("backups");
    let (place, messages) =
        back_up_and_lose(service, &key, to.to_str().unwrap(), &["--include-secrets"], &[]);
    assert!(!messages.contains("key secret"), "{messages}");
    assert_eq!(list(to.to_str().unwrap()).len(), 1);
    let verified = run(&["restore", &place, "--dry-run"], &[]);
    assert_eq!(verified.code, 0, "{}", verified.messages);
    let done = restore(&place, target.path(), &[], &[]);
    assert_eq!(done.code, 0, "{}", done.messages);
    let service = start_restored(target);
    assert_restored(&service);
    assert_eq!(key_state(&service, &key), "200", "it was revoked after the backup");
    assert_eq!(service.admin_key(), admin_key);
}

#[test]
fn node_is_restored_from_a_bucket_and_keys_with_their_secret() {
    let (staging, target) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let store = ObjectStoreServer::start(&tool("rclone"), "backups");
    let endpoint = store.endpoint();
    let mut environment = bucket_environment(&endpoint, ObjectStoreServer::SECRET_ACCESS_KEY).to_vec();
    environment.push(("TMPDIR", staging.path().to_str().unwrap()));
    let (service, key) = deployed();
    let secret = fs::read(service.data_dir().join("keys.secret")).unwrap();
    let (place, messages) = back_up_and_lose(service, &key, "s3://backups/gate-1", &[], &environment);
    assert!(messages.contains("the key secret") && messages.contains("keys.secret"), "{messages}");
    assert_eq!(fs::read_dir(staging.path()).unwrap().count(), 0, "temporary files are removed");
    let listed = run(&["backup", "--list", "--to", "s3://backups/gate-1"], &environment);
    assert!(place.ends_with(listed.json["backups"][0]["name"].as_str().unwrap()), "{}", listed.json);
    assert_eq!(run(&["restore", &place, "--dry-run"], &environment).code, 0);
    let done = restore(&place, target.path(), &[], &environment);
    assert_eq!(done.code, 0, "{}", done.messages);

    let service = start_restored(target);
    assert_restored(&service);
    assert_eq!(key_state(&service, &key), "api_key_unknown", "the secret is not in the backup");
    let ready = service.get("/readyz");
    assert_eq!((ready.status, &ready.json()["status"]), (503, &"misconfigured".into()), "{}", ready.text);
    service.signal("-TERM");
    let (_, target) = service.ended();
    fs::write(target.path().join("data/keys.secret"), secret).unwrap();
    let service = start_restored(target);
    assert_eq!(key_state(&service, &key), "200");
    assert_eq!(service.get("/readyz").status, 200);
}

/// Everything in the backup of a node with a database server is its own; the rest is named.
#[test]
fn backup_names_what_belongs_to_servers() {
    let folder = TempDir::new().unwrap();
    let config = "[auth]\nkey_secret = \"canary-key-secret-0123456789abcdef\"\n\
        [database]\nurl = \"postgres://tollgate:canary@127.0.0.1:1/gate\"\nconnect_timeout = \"100ms\"\n\
        [counters]\nstore = \"redis\"\nurl = \"redis://127.0.0.1:1\"\n";
    let service = Service::with_config(config);
    let (place, done) = backup(&service, folder.path().to_str().unwrap(), &[], &[]);
    for part in [
        "configuration: in the PostgreSQL database gate at 127.0.0.1:1; back it up with its own tools",
        "because it has secrets (auth.key_secret, database.url)",
        "the key secret (auth.key_secret)",
        "counters: on Redis",
    ] {
        assert!(done.messages.contains(part), "{part}: {}", done.messages);
    }
    assert_eq!(done.json["engine"], "postgres");
    for file in fs::read_dir(&place).unwrap() {
        let bytes = fs::read(file.unwrap().path()).unwrap();
        assert!(!String::from_utf8_lossy(&bytes).contains("canary"), "a secret is in the backup");
    }
    let (place, _) = {
        std::thread::sleep(Duration::from_millis(1_100)); // backups are named by the second
        backup(&service, folder.path().to_str().unwrap(), &["--include-secrets"], &[])
    };
    let secret = fs::read_to_string(Path::new(&place).join("keys.secret")).unwrap();
    assert_eq!(secret.trim(), "canary-key-secret-0123456789abcdef");
    assert_eq!(fs::read_to_string(Path::new(&place).join("settings.toml")).unwrap(), config);
}
