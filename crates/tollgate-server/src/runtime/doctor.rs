//! Checks the surroundings of a node: data directory, database, key secret, Redis, clocks and versions. Changes nothing.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tollgate::Timestamp;
use tollgate_stores::redis::{self, ServerReport};
use tollgate_stores::sql::{Database, DatabaseError, KeySecretCheck};

use crate::auth::api_keys::KeySecret;
use crate::config::reload::EXPIRY_WARNING_SECONDS;
use crate::config::settings::{CounterSettings, ServerCertificate, Settings};
use crate::runtime::clock::Clock;
use crate::runtime::data_dir;

/// A clock further off than this is reported: headers and calendar windows would be wrong.
const CLOCK_OFFSET_MAX_MICROS: u64 = 1_000_000;
const NEARLY_FULL_PERCENT: u64 = 70;
const DISK_FREE_MIN: u64 = 256 << 20;
const REDIS_MIN: (u32, u32) = (6, 2);

/// How bad a finding is.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// As it should be.
    Ok,
    /// The node works, but something needs attention.
    Warn,
    /// The node cannot work, or not as configured.
    Fail,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was checked: `database`, `redis 10.0.0.5:6379`.
    pub check: String,
    /// How bad it is.
    pub severity: Severity,
    /// What was found.
    pub found: String,
    /// What to do; empty if nothing.
    pub advice: String,
}

/// Runs all checks.
pub async fn examine(settings: &Settings) -> Vec<Finding> {
    let mut findings = vec![check_data_dir(&settings.data_dir)];
    let certificates = settings.certificates().into_iter();
    findings.extend(certificates.map(|certificate| check_certificate(certificate, Clock::start().now())));
    findings.extend(check_database(settings).await);
    findings.extend(check_redis(settings).await);
    findings
}

impl Finding {
    fn ok(check: impl Into<String>, found: impl Into<String>) -> Self {
        Finding { check: check.into(), severity: Severity::Ok, found: found.into(), advice: String::new() }
    }

    fn warn(check: impl Into<String>, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Finding { severity: Severity::Warn, advice: advice.into(), ..Finding::ok(check, found) }
    }

    fn fail(check: impl Into<String>, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Finding { severity: Severity::Fail, ..Finding::warn(check, found, advice) }
    }
}

fn check_data_dir(path: &Path) -> Finding {
    const CHECK: &str = "data directory";
    let shown = path.display();
    let mode = match fs::metadata(path) {
        Ok(found) if found.is_dir() => found.permissions().mode() & 0o777,
        Ok(_) => return Finding::fail(CHECK, format!("{shown} is not a directory"), "set server.data_dir"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Finding::ok(CHECK, format!("{shown} does not exist yet; `serve` creates it"));
        }
        Err(error) => return Finding::fail(CHECK, format!("{shown}: {error}"), "check its permissions"),
    };
    if let Err(error) = tempfile_in(path) {
        let advice = "run as its owner, or free disk space";
        return Finding::fail(CHECK, format!("{shown} cannot be written: {error}"), advice);
    }
    if mode & 0o077 != 0 {
        let found = format!("{shown} is accessible by other users (mode {mode:03o}); it contains keys");
        return Finding::warn(CHECK, found, format!("run `chmod 700 {shown}`"));
    }
    let free = rustix::fs::statvfs(path).map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize));
    if free < DISK_FREE_MIN {
        let found = format!("{shown}: only {} MB free on its disk", free >> 20);
        return Finding::warn(
            CHECK,
            found,
            "free disk space: counters and usage cannot be saved on a full disk",
        );
    }
    Finding::ok(CHECK, format!("{shown} is writable"))
}

fn check_certificate(certificate: &ServerCertificate, now: Timestamp) -> Finding {
    const ADVICE: &str = "renew it; a running node loads the new files within a second";
    let check = format!("certificate {}", certificate.certificate_file.display());
    let (expires_in, days) = (certificate.expires_in(now), certificate.expires_in(now) / 86_400);
    if expires_in < 0 {
        Finding::fail(check, "has expired", ADVICE)
    } else if !certificate.has_begun(now) {
        Finding::fail(check, "is not valid yet", "check the clock of this machine, or issue it again")
    } else if expires_in < EXPIRY_WARNING_SECONDS {
        Finding::warn(check, format!("expires in {days} days"), ADVICE)
    } else {
        Finding::ok(check, format!("is valid for {days} days"))
    }
}

/// Creates and removes a file.
fn tempfile_in(path: &Path) -> io::Result<()> {
    let file = path.join(format!(".doctor-{}", std::process::id()));
    fs::write(&file, b"x")?;
    fs::remove_file(&file)
}

async fn check_database(settings: &Settings) -> Vec<Finding> {
    let sql = settings.database.sql(&settings.data_dir);
    let place = sql.describe();
    // Connecting would create the file.
    if settings.database.is_local()
        && place.strip_prefix("SQLite database ").is_some_and(|file| !Path::new(file).exists())
    {
        return vec![Finding::ok("database", format!("{place} does not exist yet; `serve` creates it"))];
    }
    let database = match Database::connect(sql).await {
        Ok(database) => database,
        Err(error) => {
            let advice = "check database.url, and that the server accepts connections from this host";
            return vec![Finding::fail("database", error.to_string(), advice)];
        }
    };
    let mut findings = vec![check_schema(&database, &place).await];
    if findings.iter().all(|finding| finding.severity == Severity::Ok) {
        findings.push(check_key_secret(settings, &database).await);
    }
    if settings.database.is_local() && matches!(settings.counters, CounterSettings::Redis(_)) {
        let found = format!("{place} is local, while counters are shared through Redis");
        let advice = "nodes of one fleet need one database: set database.url to PostgreSQL, MySQL or MariaDB";
        findings.push(Finding::warn("database", found, advice));
    }
    database.close().await;
    findings
}

async fn check_schema(database: &Database, place: &str) -> Finding {
    match database.pending_migrations().await {
        Ok(pending) if pending.is_empty() => {
            Finding::ok("database", format!("{place} is reachable, its schema is current"))
        }
        Ok(pending) => {
            let found = format!("{place} is reachable; pending migrations: {}", pending.len());
            Finding::warn(
                "database",
                found,
                "run `tollgate migrate`, or start `tollgate serve`, which does the same",
            )
        }
        Err(error @ DatabaseError::SchemaTooNew { .. }) => {
            Finding::fail("database", error.to_string(), "upgrade this node to the version of the others")
        }
        Err(error) => {
            Finding::fail("database", error.to_string(), "check the permissions of the database user")
        }
    }
}

async fn check_key_secret(settings: &Settings, database: &Database) -> Finding {
    const CHECK: &str = "key secret";
    let secret = match &settings.auth.key_secret {
        Some(written) => KeySecret::new(&written.secret.0),
        None => match data_dir::read_key_secret(&settings.data_dir) {
            Ok(Some(secret)) => KeySecret::new(&secret),
            Ok(None) => {
                return Finding::ok(CHECK, "none yet; `serve` generates keys.secret in the data directory");
            }
            Err(error) => {
                let found = format!("keys.secret cannot be read: {error}");
                return Finding::fail(CHECK, found, "run as the owner of the data directory");
            }
        },
    };
    match database.compare_key_secret(&secret.fingerprint()).await {
        Ok(Some(KeySecretCheck::Matches)) => Finding::ok(CHECK, "matches the fingerprint in the database"),
        Ok(None) => Finding::ok(CHECK, "no node has used the database yet"),
        Ok(Some(KeySecretCheck::Differs)) => {
            let found = "differs from that of the other nodes: this node refuses their API keys";
            Finding::fail(
                CHECK,
                found,
                "copy keys.secret of another node, or set auth.key_secret_file on all nodes",
            )
        }
        Err(error) => Finding::fail(CHECK, error.to_string(), "check the permissions of the database user"),
    }
}

async fn check_redis(settings: &Settings) -> Vec<Finding> {
    let CounterSettings::Redis(counters) = &settings.counters else {
        return vec![Finding::ok("counters", "in memory of this node")];
    };
    let mut findings = Vec::new();
    let mut versions: Vec<String> = Vec::new();
    for probe in redis::probe(&counters.redis).await {
        let check = format!("redis {}", probe.server);
        match probe.report {
            Ok(report) => {
                findings.extend(judge_server(&check, &report));
                versions.extend(report.node_versions);
            }
            Err(reason) => {
                let advice = "check counters.url, user, password and tls, and that the server is running";
                findings.push(Finding::fail(check, reason, advice));
            }
        }
    }
    findings.push(judge_versions(&versions));
    findings
}

fn judge_server(check: &str, report: &ServerReport) -> Vec<Finding> {
    let mut findings = Vec::new();
    let millis = report.round_trip.as_secs_f64() * 1e3;
    if version_of(&report.version) < REDIS_MIN {
        let found = format!("version {} is too old", report.version);
        findings.push(Finding::fail(check, found, "upgrade to Redis 6.2 or later, or to Valkey"));
    }
    if !report.maxmemory_policy.is_empty() && report.maxmemory_policy != "noeviction" {
        let found = format!("maxmemory-policy is {}: a full server drops counters", report.maxmemory_policy);
        findings.push(Finding::warn(check, found, "set maxmemory-policy to noeviction"));
    }
    if report.maxmemory > 0
        && report.used_memory.saturating_mul(100) >= report.maxmemory.saturating_mul(NEARLY_FULL_PERCENT)
    {
        let found = format!("uses {} of {} MB of memory", report.used_memory >> 20, report.maxmemory >> 20);
        findings.push(Finding::warn(check, found, "raise maxmemory, or move other data off this server"));
    }
    if report.clock_offset_micros.unsigned_abs() > CLOCK_OFFSET_MAX_MICROS {
        let seconds = report.clock_offset_micros / 1_000_000;
        let found = format!("its clock differs from this host's by {seconds} s");
        findings.push(Finding::warn(check, found, "synchronize both clocks with NTP"));
    }
    if findings.is_empty() {
        findings.push(Finding::ok(
            check,
            format!("version {}, answers in {millis:.1} ms, clock in sync", report.version),
        ));
    }
    findings
}

fn judge_versions(versions: &[String]) -> Finding {
    const CHECK: &str = "nodes";
    let own = env!("CARGO_PKG_VERSION");
    let others: Vec<&String> = versions.iter().filter(|version| *version != own).collect();
    match (versions.len(), others.as_slice()) {
        (0, _) => Finding::ok(CHECK, "none is running"),
        (count, []) => Finding::ok(CHECK, format!("{count} running, all with version {own}")),
        (count, others) => {
            let mut found: Vec<&str> = others.iter().map(|version| version.as_str()).collect();
            found.sort_unstable();
            found.dedup();
            let found = format!(
                "{count} running; {} with other versions than {own}: {}",
                others.len(),
                found.join(", ")
            );
            Finding::warn(CHECK, found, "finish the upgrade: all nodes should have one version")
        }
    }
}

/// `7.0.15` as (7, 0).
fn version_of(text: &str) -> (u32, u32) {
    let mut numbers = text.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn report() -> ServerReport {
        ServerReport {
            version: "7.0.15".to_owned(),
            maxmemory_policy: "noeviction".to_owned(),
            round_trip: Duration::from_micros(300),
            ..ServerReport::default()
        }
    }

    #[test]
    fn problems_of_a_server_are_reported_with_advice() {
        assert_eq!(judge_server("redis a:1", &report())[0].severity, Severity::Ok);
        for (changed, word) in [
            (ServerReport { version: "6.0.9".to_owned(), ..report() }, "too old"),
            (ServerReport { maxmemory_policy: "allkeys-lru".to_owned(), ..report() }, "allkeys-lru"),
            (ServerReport { maxmemory: 100 << 20, used_memory: 70 << 20, ..report() }, "70 of 100 MB"),
            (ServerReport { clock_offset_micros: -7_000_000, ..report() }, "by -7 s"),
        ] {
            let findings = judge_server("redis a:1", &changed);
            assert_eq!(findings.len(), 1, "{word}");
            assert!(findings[0].found.contains(word) && !findings[0].advice.is_empty(), "{:?}", findings[0]);
            assert!(findings[0].severity > Severity::Ok);
        }
    }

    #[test]
    fn nodes_with_another_version_are_reported() {
        let own = env!("CARGO_PKG_VERSION").to_owned();
        assert_eq!(judge_versions(&[]).severity, Severity::Ok);
        assert_eq!(judge_versions(&[own.clone(), own.clone()]).severity, Severity::Ok);
        let mixed = judge_versions(&[own, "0.0.9".to_owned()]);
        assert_eq!(mixed.severity, Severity::Warn);
        assert!(mixed.found.contains("0.0.9"), "{}", mixed.found);
    }

    #[test]
    fn unusable_data_directory_is_a_failure() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(check_data_dir(folder.path()).severity, Severity::Ok);
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(check_data_dir(folder.path()).severity, Severity::Warn);
        let file = folder.path().join("file");
        fs::write(&file, b"").unwrap();
        assert_eq!(check_data_dir(&file).severity, Severity::Fail);
        assert_eq!(check_data_dir(&folder.path().join("missing")).severity, Severity::Ok);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left behind");
    }
}
