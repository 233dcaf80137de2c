//! `[database]`: the configuration database.

use std::path::Path;
use std::time::Duration;

use tollgate::config::values::{integer, text};
use tollgate::config::{TableReader, Value};
use tollgate_stores::redis::Secret;
use tollgate_stores::sql::{Engine, SqlSettings};

use super::read::duration;

/// The default database in the data directory.
const FILE: &str = "tollgate.db";
const CONNECTIONS_MAX: u32 = 64;

/// The configuration database and how it is polled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseSettings {
    /// The database; by default a SQLite file in the data directory.
    pub url: Option<Secret>,
    /// The interval between polls for changes, besides notifications.
    pub poll_every: Duration,
    /// Timeout for establishing a connection.
    pub connect_timeout: Duration,
    /// Timeout of a statement.
    pub statement_timeout: Duration,
    /// Maximum number of connections.
    pub connections: u32,
}

impl Default for DatabaseSettings {
    fn default() -> Self {
        DatabaseSettings {
            url: None,
            poll_every: Duration::from_secs(2),
            connect_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(30),
            connections: 4,
        }
    }
}

impl DatabaseSettings {
    /// How the database is reached.
    pub fn sql(&self, data_dir: &Path) -> SqlSettings {
        let in_data_dir = || SqlSettings::sqlite(data_dir.join(FILE));
        // Invalid URLs are rejected when the settings are read.
        let written = self.url.as_ref().and_then(|url| SqlSettings::from_url(&url.0).ok());
        let mut sql = written.unwrap_or_else(in_data_dir);
        sql.connections_max = self.connections;
        sql.connect_timeout = self.connect_timeout;
        sql.statement_timeout = self.statement_timeout;
        sql
    }

    /// Whether it is a local file, which other nodes do not share.
    pub fn is_local(&self) -> bool {
        let written = self.url.as_ref().and_then(|url| SqlSettings::from_url(&url.0).ok());
        written.is_none_or(|settings| settings.engine() == Engine::Sqlite)
    }
}

/// Reads the section.
pub(super) fn read(fields: &mut TableReader<'_, '_>) -> DatabaseSettings {
    let default = DatabaseSettings::default();
    let (tenth, second, minute) =
        (Duration::from_millis(100), Duration::from_secs(1), Duration::from_mins(1));
    DatabaseSettings {
        url: fields.read("url", url),
        poll_every: (fields.read("poll_every", duration(tenth, Duration::from_secs(5))))
            .unwrap_or(default.poll_every),
        connect_timeout: (fields.read("connect_timeout", duration(tenth, minute)))
            .unwrap_or(default.connect_timeout),
        statement_timeout: (fields.read("statement_timeout", duration(second, minute * 10)))
            .unwrap_or(default.statement_timeout),
        connections: (fields.read("connections", integer(2..=CONNECTIONS_MAX)))
            .unwrap_or(default.connections),
    }
}

/// The message does not quote the URL, which may contain a password.
pub(super) fn url(value: &Value) -> Result<Secret, String> {
    let text = text(value)?;
    SqlSettings::from_url(&text).map_err(|error| error.to_string())?;
    Ok(Secret(text))
}

/// The URL without its password.
pub(crate) fn masked(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return "***".to_owned() };
    // The credentials precede the path, and a password may contain an @.
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let Some((login, host)) = authority.rsplit_once('@') else { return url.to_owned() };
    match login.split_once(':') {
        Some((user, _)) => format!("{scheme}://{user}:***@{host}{path}"),
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Flags, Settings};
    use super::*;

    fn read(keys: &str) -> DatabaseSettings {
        let text = format!("[database]\n{keys}");
        Settings::from_toml(&text).unwrap_or_else(|error| panic!("{error}\n{text}")).database
    }

    #[test]
    fn default_database_is_in_the_data_directory() {
        let settings = read("");
        assert_eq!(settings, DatabaseSettings::default());
        assert_eq!(settings.sql(Path::new("/data")).describe(), "SQLite database /data/tollgate.db");
        assert!(settings.is_local());
    }

    #[test]
    fn every_key_is_used() {
        let settings = read(
            "url = \"mysql://u:p@db.example/gate\"\npoll_every = \"500ms\"\nconnect_timeout = \"2s\"\n\
             statement_timeout = \"9s\"\nconnections = 7",
        );
        let sql = settings.sql(Path::new("/data"));
        assert_eq!(sql.describe(), "MySQL database gate at db.example:3306");
        assert_eq!((sql.connections_max, sql.connect_timeout), (7, Duration::from_secs(2)));
        assert_eq!(
            (sql.statement_timeout, settings.poll_every),
            (Duration::from_secs(9), Duration::from_millis(500))
        );
        assert!(!settings.is_local());
    }

    #[test]
    fn environment_sets_the_url() {
        let variable = ("TOLLGATE_DATABASE__URL".to_owned(), "postgres://u:p@db.example/gate".to_owned());
        let settings = Settings::load(&Flags::default(), [variable].into_iter()).unwrap();
        let database = settings.database.sql(Path::new("/data")).describe();
        assert_eq!(database, "PostgreSQL database gate at db.example:5432");
    }

    #[test]
    fn database_settings_survive_a_round_trip() {
        for keys in [
            "",
            "url = \"sqlite:///var/lib/gate.db\"",
            "url = \"postgres://u:p%40q@[::1]:5433/gate?sslmode=require\"\npoll_every = \"1s\"",
        ] {
            let shown = Settings::from_toml(&format!("[database]\n{keys}")).unwrap().to_toml();
            let again = Settings::from_toml(&shown).unwrap_or_else(|error| panic!("{error}\n{shown}"));
            assert_eq!(again.to_toml(), shown);
        }
    }

    #[test]
    fn database_password_never_appears_in_output() {
        for url in ["postgres://u:canary@host/gate", "mysql://u:can@ary:canary@host:1/gate"] {
            let Ok(settings) = Settings::from_toml(&format!("[database]\nurl = \"{url}\"")) else { continue };
            for text in [settings.to_toml(), format!("{settings:?}"), format!("{settings:#?}")] {
                assert!(!text.contains("canary") && !text.contains("can@"), "{text}");
            }
        }
        for invalid in
            ["postgres://u:canary@host:port/gate", "pg://u:canary@host/gate", "postgres://u:canary@host"]
        {
            let error = Settings::from_toml(&format!("[database]\nurl = \"{invalid}\"")).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("canary"), "{error:?}");
        }
    }
}
