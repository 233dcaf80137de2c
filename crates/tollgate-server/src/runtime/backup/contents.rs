//! Copies what belongs to a node into a folder.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use tollgate_stores::sql::{SqlSettings, copy_sqlite};

use super::manifest::{
    ADMIN_KEY, BackupFile, DATA_FILES, DATABASE, HashingWriter, KEY_SECRET, Manifest, RECORDS, SETTINGS,
};
use super::place::write_synced;
use super::{BackupError, in_file};
use crate::config::settings::{CounterSettings, Settings, masked_url};
use crate::runtime::data_dir::private_file;

/// Settings whose values are secrets. Passwords in URLs are found by their form.
const SECRET_KEYS: [&str; 5] = ["key_secret", "password", "secret", "secret_access_key", "sentinel_password"];

/// The copy of a node in a folder.
struct Contents<'a> {
    settings: &'a Settings,
    folder: &'a Path,
    manifest: Manifest,
}

/// Copies everything of a node into a folder and describes it.
pub(super) async fn copy(
    settings: &Settings,
    folder: &Path,
    now: Timestamp,
    include_secrets: bool,
) -> Result<Manifest, BackupError> {
    let created_at = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let engine = settings.database.sql(&settings.data_dir).engine().as_str();
    let manifest = Manifest::new(created_at, &settings.server.id, engine, include_secrets);
    let mut contents = Contents { settings, folder, manifest };
    contents.copy_settings()?;
    contents.copy_databases().await?;
    for name in DATA_FILES {
        contents.copy_file(&settings.data_dir.join(name), name)?;
    }
    contents.copy_secrets()?;
    contents.note_losses();
    Ok(contents.manifest)
}

impl Contents<'_> {
    /// As written. A file with passwords is a secret.
    fn copy_settings(&mut self) -> Result<(), BackupError> {
        let Some(path) = &self.settings.config_file else { return Ok(()) };
        let text = fs::read_to_string(path).map_err(in_file(path))?;
        let secrets = secrets_in(&text);
        if !self.manifest.has_secrets && !secrets.is_empty() {
            self.not_included(format!(
                "the settings file {}, because it has secrets ({}): move them to files or environment variables, or pass \
                 --include-secrets",
                path.display(),
                secrets.join(", ")
            ));
            return Ok(());
        }
        self.write(SETTINGS, text.as_bytes())
    }

    async fn copy_databases(&mut self) -> Result<(), BackupError> {
        let settings = self.settings;
        let database = settings.database.sql(&settings.data_dir);
        self.copy_database(&database, DATABASE, "configuration").await?;
        let records = settings.records.sql(&settings.data_dir).filter(|_| settings.records.enabled);
        let Some(records) = records else { return Ok(()) };
        let is_shared = records.sqlite_file().is_some() && records.sqlite_file() == database.sqlite_file();
        if !is_shared {
            self.copy_database(&records, RECORDS, "records").await?;
        }
        Ok(())
    }

    async fn copy_database(
        &mut self,
        sql: &SqlSettings,
        name: &str,
        content: &str,
    ) -> Result<(), BackupError> {
        let Some(path) = sql.sqlite_file() else {
            self.not_included(format!("{content}: in the {}; back it up with its own tools", sql.describe()));
            return Ok(());
        };
        if !path.exists() {
            return Ok(());
        }
        let copy = self.folder.join(name);
        let failed = |source| BackupError::Database { path: path.to_owned(), source };
        copy_sqlite(path, &copy).await.map_err(failed)?;
        if path != self.settings.data_dir.join(name) {
            self.not_included(format!("the location of {name}: the settings name {}", path.display()));
        }
        self.describe(&copy, name)
    }

    /// Copies a file of the data directory, which is replaced atomically. One that does not exist is not needed.
    fn copy_file(&mut self, path: &Path, name: &str) -> Result<(), BackupError> {
        let mut from = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened.map_err(in_file(path))?,
        };
        let copy = self.folder.join(name);
        let to = private_file().create_new(true).write(true).open(&copy).map_err(in_file(&copy))?;
        let mut to = HashingWriter::new(to);
        io::copy(&mut from, &mut to).map_err(in_file(&copy))?;
        let (file, to) = to.finish(name);
        to.sync_all().map_err(in_file(&copy))?;
        self.manifest.files.push(file);
        Ok(())
    }

    fn copy_secrets(&mut self) -> Result<(), BackupError> {
        let (data_dir, configured) = (&self.settings.data_dir, &self.settings.auth.key_secret);
        if !self.manifest.has_secrets {
            let secret = match configured.as_ref().map(|secret| secret.file.as_ref()) {
                None => data_dir.join(KEY_SECRET).display().to_string(),
                Some(Some(file)) => file.display().to_string(),
                Some(None) => "auth.key_secret".to_owned(),
            };
            self.not_included(format!(
                "the key secret ({secret}): without it no API key is valid after a restore. Keep a copy in another place, or pass \
                 --include-secrets"
            ));
            self.not_included("admin.key: the next start creates another".to_owned());
            return Ok(());
        }
        self.copy_file(&data_dir.join(ADMIN_KEY), ADMIN_KEY)?;
        match configured {
            Some(secret) => self.write(KEY_SECRET, format!("{}\n", secret.secret.0).as_bytes()),
            None => self.copy_file(&data_dir.join(KEY_SECRET), KEY_SECRET),
        }
    }

    fn note_losses(&mut self) {
        self.not_included(match &self.settings.counters {
            CounterSettings::Memory { save_every, .. } => {
                format!("requests counted since the counters were saved, at most {save_every:?} ago")
            }
            CounterSettings::Redis(_) => "counters: on Redis; back it up with its own tools".to_owned(),
        });
        if self.settings.records.enabled {
            self.not_included("records of the last seconds that were not in their database yet".to_owned());
        }
        let others = "environment variables, certificates and other files that the settings name";
        self.not_included(others.to_owned());
    }

    fn not_included(&mut self, what: String) {
        self.manifest.not_included.push(what);
    }

    fn write(&mut self, name: &str, bytes: &[u8]) -> Result<(), BackupError> {
        let path = self.folder.join(name);
        write_synced(&path, bytes).map_err(in_file(&path))?;
        self.describe(&path, name)
    }

    /// Adds a complete file to the manifest.
    fn describe(&mut self, path: &Path, name: &str) -> Result<(), BackupError> {
        let file = describe(path, name).map_err(in_file(path))?;
        self.manifest.files.push(file);
        Ok(())
    }
}

fn describe(path: &Path, name: &str) -> io::Result<BackupFile> {
    let mut file = File::open(path)?;
    file.sync_all()?;
    let mut hashed = HashingWriter::new(io::sink());
    io::copy(&mut file, &mut hashed)?;
    Ok(hashed.finish(name).0)
}

/// The keys of a settings file whose values are secrets.
fn secrets_in(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    // Settings that were loaded are valid TOML.
    if let Ok(table) = text.parse::<toml::Table>() {
        find_secrets(&toml::Value::Table(table), &mut PathBuf::new(), &mut found);
    }
    found
}

fn find_secrets(value: &toml::Value, path: &mut PathBuf, found: &mut Vec<String>) {
    match value {
        toml::Value::Table(table) => {
            for (key, value) in table {
                path.push(key);
                find_secrets(value, path, found);
                path.pop();
            }
        }
        toml::Value::Array(values) => values.iter().for_each(|value| find_secrets(value, path, found)),
        toml::Value::String(text) => {
            let is_secret = path.file_name().is_some_and(|key| SECRET_KEYS.iter().any(|name| key == *name));
            let has_password = text.contains("://") && masked_url(text) != *text;
            if is_secret || has_password {
                found.push(path.display().to_string().replace('/', "."));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_a_settings_file_are_found() {
        let text = "[auth]\nkey_secret = \"x\"\nkey_secret_file = \"/etc/s\"\n[database]\n\
            url = \"postgres://u:p@db/gate\"\n[counters]\nurl = \"redis://:p@db:1\"\nnodes = [\"a:1\"]\n\
            [records]\nurl = \"postgres://u@db/gate\"\n[[identity.jwt]]\nsecret = \"x\"\n[[rules]]\nname = \"a@b:c\"";
        let mut found = secrets_in(text);
        found.sort();
        assert_eq!(found, ["auth.key_secret", "counters.url", "database.url", "identity.jwt.secret"]);
        assert!(secrets_in("default_limit = 10\n[auth]\nkey_secret_file = \"/etc/s\"").is_empty());
    }
}
