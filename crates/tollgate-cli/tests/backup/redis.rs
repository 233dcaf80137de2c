//! Counters on Redis: lost with their server, restored on another.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;
use tollgate_testkit::{ObjectStoreServer, RedisOptions, RedisServer};

use crate::commands::tool;
use crate::deployment::{admitted, scaled};
use crate::harness::{Service, wait_for};
use crate::scripts::{Scripts, fail, search_path, succeed};

const PASSWORD: &str = "canary-redis";

/// A node that counts on this server. Leases would make the numbers inexact.
fn node_on(redis: &RedisServer) -> Service {
    let service = Service::with_config(&format!(
        "[counters]\nstore = \"redis\"\nurl = \"{}\"\ntimeout = \"10s\"\nleases = false\n[[rules]]\nname = \"by-user\"\n\
         per = [\"user\"]\nlimits = [{{ requests = 10, window = \"30d\" }}]\n",
        redis.url()
    ));
    wait_for("Redis", || (service.get("/readyz").json()["status"] == "ready").then_some(()));
    service
}

fn server(args: &[&str]) -> RedisServer {
    let password = Some(PASSWORD.to_owned());
    RedisServer::start_with(&RedisOptions { password, ..RedisOptions::with_args(args) })
}

fn script(scripts: &Scripts, name: &str, redis: &RedisServer, folder: &Path) -> Command {
    let mut command = Command::new(scripts.path(name));
    command.env("BACKUP_FOLDER", folder).env("REDIS_PORT", redis.port().to_string());
    command.env("REDISCLI_AUTH", PASSWORD).env("PATH", search_path());
    command
}

/// Clients who have used up their limit, or a part of it.
fn use_limits(service: &Service) {
    assert_eq!(admitted(service, "alice", "/x", 12), 10);
    assert_eq!(admitted(service, "bob", "/x", 4), 4);
    let others = (0..scaled(50)).map(|number| admitted(service, &format!("client-{number}"), "/x", 1));
    assert_eq!(others.sum::<usize>(), scaled(50));
}

/// What was counted before the backup is counted; what came after it is forgotten.
fn assert_limits_continue(redis: &RedisServer) {
    let service = node_on(redis);
    assert_eq!(admitted(&service, "alice", "/x", 3), 0);
    assert_eq!(admitted(&service, "bob", "/x", 12), 6);
    assert_eq!(admitted(&service, "carol", "/x", 12), 10, "her requests came after the backup");
    let last = format!("client-{}", scaled(50) - 1);
    assert_eq!(admitted(&service, &last, "/x", 12), 9);
}

#[test]
fn redis_snapshot_restores_the_counters() {
    let (scripts, folder, redis) = (Scripts::install(), TempDir::new().unwrap(), server(&[]));
    let service = node_on(&redis);
    use_limits(&service);
    let store = ObjectStoreServer::start(&tool("rclone"), "backups");
    let remote = |command: &mut Command| {
        command.env("RCLONE_CONFIG", folder.path().join("none")).env("BACKUP_REMOTE", "s3:backups/redis");
        command.env("RCLONE_CONFIG_S3_TYPE", "s3").env("RCLONE_CONFIG_S3_PROVIDER", "Rclone");
        command.env("RCLONE_CONFIG_S3_ENDPOINT", store.endpoint());
        command.env("RCLONE_CONFIG_S3_ACCESS_KEY_ID", ObjectStoreServer::ACCESS_KEY_ID);
        command.env("RCLONE_CONFIG_S3_SECRET_ACCESS_KEY", ObjectStoreServer::SECRET_ACCESS_KEY);
    };
    let mut backup = script(&scripts, "redis-rdb.sh", &redis, folder.path());
    remote(&mut backup);
    let file = succeed(&mut backup);
    assert_eq!(admitted(&service, "carol", "/x", 5), 5);
    drop((service, redis));

    // The copy in the bucket is enough.
    fs::remove_file(&file).unwrap();
    let restored = server(&["--appendonly", "no"]);
    restored.kill9();
    let name = Path::new(&file).file_name().unwrap().to_str().unwrap();
    let mut fetch = Command::new(tool("rclone"));
    fetch.args(["copyto", &format!("s3:backups/redis/{name}")]).arg(restored.folder().join("dump.rdb"));
    remote(&mut fetch);
    succeed(&mut fetch);
    restored.restart();
    assert_eq!(restored.cli(&["CONFIG", "SET", "appendonly", "yes"]), "OK");
    assert_limits_continue(&restored);
}

#[test]
fn redis_append_only_files_restore_the_counters() {
    let persistent = ["--appendonly", "yes", "--appendfsync", "always"];
    let (scripts, folder, redis) = (Scripts::install(), TempDir::new().unwrap(), server(&persistent));
    let service = node_on(&redis);
    use_limits(&service);
    let file = succeed(&mut script(&scripts, "redis-aof.sh", &redis, folder.path()));
    assert_eq!(redis.cli(&["CONFIG", "GET", "auto-aof-rewrite-percentage"]).lines().last(), Some("100"));
    assert_eq!(admitted(&service, "carol", "/x", 5), 5);
    drop((service, redis));

    let restored = server(&persistent);
    restored.kill9();
    fs::remove_dir_all(restored.folder().join("appendonlydir")).unwrap();
    succeed(Command::new("tar").arg("-xzf").arg(&file).arg("-C").arg(restored.folder()));
    restored.restart();
    assert_limits_continue(&restored);
}

#[test]
fn failed_redis_backup_leaves_no_file() {
    let (scripts, folder, redis) = (Scripts::install(), TempDir::new().unwrap(), server(&[]));
    for name in ["redis-rdb.sh", "redis-aof.sh"] {
        let mut backup = script(&scripts, name, &redis, folder.path());
        let error = fail(backup.env("REDISCLI_AUTH", "wrong"));
        assert!(!error.is_empty(), "{name}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{name}: {error}");
    }
    let error = fail(&mut script(&scripts, "redis-aof.sh", &redis, folder.path()));
    assert!(error.contains("appendonly is off; use redis-rdb.sh"), "{error}");
}
