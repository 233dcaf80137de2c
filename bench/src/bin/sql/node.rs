//! A tollgate node with a database.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use tollgate_bench::http::{Answer, ask};
use tollgate_bench::process::{Server, free_address};

use crate::Plan;

pub const NODE_CORE: usize = 0;
const PATIENCE: Duration = Duration::from_secs(60);
/// The same on all nodes, so that they accept each other's keys.
const KEY_SECRET: &str = "bench-0123456789abcdef0123456789abcdef";

/// A limit that only keys with their own limits have.
const OWN_LIMIT: u32 = 100_000_000;

/// The folder and settings of a node; they outlive the node.
pub struct Place {
    folder: TempDir,
    tollgate: PathBuf,
    address: SocketAddr,
}

impl Place {
    /// Creates the folder of a node with this database; `None` is the embedded one. `more` is further TOML.
    pub fn new(plan: &Plan, database: Option<&str>, more: &str) -> Result<Self> {
        let folder = TempDir::new()?;
        let database = database.map(|url| format!("[database]\nurl = \"{url}\"\n")).unwrap_or_default();
        let auth = format!("[auth]\nkey_secret = \"{KEY_SECRET}\"\n");
        let rules = "default_limit = 1000000\ndefault_window = 60\n";
        fs::write(folder.path().join("tollgate.toml"), format!("{rules}{auth}{database}{more}"))?;
        Ok(Self { folder, tollgate: plan.tollgate.clone(), address: free_address()? })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn database(&self) -> PathBuf {
        self.path("data/tollgate.db")
    }

    /// Starts the node; returns when it listens.
    pub fn start(&self) -> Result<Node> {
        let text = |path: &Path| path.as_os_str().to_owned();
        let command = [
            text(&self.tollgate),
            "serve".into(),
            "--config".into(),
            text(&self.path("tollgate.toml")),
            "--listen".into(),
            self.address.to_string().into(),
            "--data-dir".into(),
            text(&self.path("data")),
        ];
        let server = Server::start(&command, NODE_CORE, self.address, self.folder.path())?;
        let key = fs::read_to_string(self.path("data/admin.key")).context("no admin.key")?;
        Ok(Node { server, admin_key: key.trim().into() })
    }
}

/// A running node.
pub struct Node {
    pub server: Server,
    admin_key: String,
}

impl Node {
    pub fn address(&self) -> SocketAddr {
        self.server.address
    }

    /// Calls an admin route.
    pub fn admin(&self, method: &str, path: &str, body: &Value) -> Result<Value> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let answer = ask(self.address(), method, path, &self.admin_key, &body)?;
        answer.json().with_context(|| format!("{method} {path}"))
    }

    /// Creates a key with its own limits. Returns its text and id.
    pub fn new_key(&self, name: &str) -> Result<(String, String)> {
        let body = json!({ "name": name, "user_id": name, "requests_per_hour": OWN_LIMIT });
        let made = self.admin("POST", "/v1/admin/keys", &body)?;
        let text = |field: &str| made[field].as_str().map(str::to_owned).context("no key in the answer");
        Ok((text("key")?, text("id")?))
    }

    /// The answer to a check by this key.
    pub fn check_key(&self, key: &str) -> Result<Answer> {
        let body = json!({ "api_key": key, "endpoint": "/api/v1/items" });
        ask(self.address(), "POST", "/v1/rate-limit/check", "", &body.to_string())
    }

    /// Whether a check by this key is decided by the key's own limits.
    pub fn knows(&self, key: &str) -> Result<bool> {
        let answer = self.check_key(key)?;
        Ok(answer.status == 200 && answer.json()?["limit"] == OWN_LIMIT)
    }
}

/// Polls until the condition holds. Returns the time since `since`.
pub fn until(since: Instant, what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<Duration> {
    while !holds()? {
        if since.elapsed() > PATIENCE {
            bail!("timed out waiting for {what}");
        }
        thread::sleep(Duration::from_millis(2));
    }
    Ok(since.elapsed())
}

/// The quantile of the values.
pub fn percentile(values: &mut [Duration], part: f64) -> Result<Duration> {
    ensure!(!values.is_empty(), "nothing was measured");
    values.sort_unstable();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a length")]
    let index = ((values.len() as f64 * part).ceil() as usize).clamp(1, values.len()) - 1;
    Ok(values[index])
}
