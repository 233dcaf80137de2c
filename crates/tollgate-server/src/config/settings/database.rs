//! `[database]`: where rules, keys and the rest of what people configure are kept.

use std::path::Path;
use std::time::Duration;

use tollgate::Span;
use tollgate::config::values::{integer, text};
use tollgate::config::{TableReader, Value};
use tollgate_stores::redis::Secret;
use tollgate_stores::sql::{Engine, SqlSettings};

use super::read::duration;
use super::to_toml::Toml;

/// The database in the data directory, if no other is said.
const FILE: &str = "tollgate.db";
const CONNECTIONS_MAX: u32 = 64;

/// Where what people configure is kept, and how it is followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseSettings {
    /// The database; a SQLite file in the data directory if it is not said.
    pub url: Option<Secret>,
    /// How often this node looks whether anything has changed, if it hears nothing.
    pub poll_every: Duration,
    /// How long making a connection may take.
    pub connect_timeout: Duration,
    /// How long a statement may take.
    pub statement_timeout: Duration,
    /// The most connections.
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
        // What is no URL did not become settings.
        let written = self.url.as_ref().and_then(|url| SqlSettings::from_url(&url.0).ok());
        let mut sql = written.unwrap_or_else(in_data_dir);
        sql.connections_max = self.connections;
        sql.connect_timeout = self.connect_timeout;
        sql.statement_timeout = self.statement_timeout;
        sql
    }

    /// Whether it is a file of this machine, which no other node follows.
    pub fn is_of_this_node(&self) -> bool {
        let written = self.url.as_ref().and_then(|url| SqlSettings::from_url(&url.0).ok());
        written.is_none_or(|settings| settings.engine() == Engine::Sqlite)
    }

    pub(super) fn show(&self, out: &mut Toml) {
        out.section("database");
        if let Some(url) = &self.url {
            out.text("url", masked(&url.0));
        }
        out.text("poll_every", Span::from(self.poll_every));
        out.text("connect_timeout", Span::from(self.connect_timeout));
        out.text("statement_timeout", Span::from(self.statement_timeout));
        out.plain("connections", self.connections);
    }
}

/// Reads the section; what is wrong, the fields know.
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

/// The message repeats nothing of the text: there may be a password in it.
fn url(value: &Value) -> Result<Secret, String> {
    let text = text(value)?;
    SqlSettings::from_url(&text).map_err(|error| error.to_string())?;
    Ok(Secret(text))
}

/// The URL without its password.
fn masked(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return "***".to_owned() };
    // In front of the path stands the login, and a password may have an @ in it.
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
    fn without_a_url_the_database_is_in_the_data_directory() {
        let settings = read("");
        assert_eq!(settings, DatabaseSettings::default());
        assert_eq!(settings.sql(Path::new("/data")).describe(), "SQLite database /data/tollgate.db");
        assert!(settings.is_of_this_node());
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
        assert!(!settings.is_of_this_node());
    }

    #[test]
    fn the_environment_says_it_too() {
        let variable = ("TOLLGATE_DATABASE__URL".to_owned(), "postgres://u:p@db.example/gate".to_owned());
        let settings = Settings::load(&Flags::default(), [variable].into_iter()).unwrap();
        let place = settings.database.sql(Path::new("/data")).describe();
        assert_eq!(place, "PostgreSQL database gate at db.example:5432");
    }

    #[test]
    fn shown_settings_give_the_same_settings() {
        for keys in [
            "",
            "url = \"sqlite:///var/lib/gate.db\"",
            "url = \"postgres://u:p%40q@[::1]:5433/gate?sslmode=require\"\npoll_every = \"1s\"",
        ] {
            let shown = Settings::from_toml(&format!("[database]\n{keys}")).unwrap().show();
            let again = Settings::from_toml(&shown).unwrap_or_else(|error| panic!("{error}\n{shown}"));
            assert_eq!(again.show(), shown);
        }
    }

    #[test]
    fn t56_the_password_is_neither_shown_nor_debugged_nor_repeated_in_complaints() {
        for url in ["postgres://u:canary@host/gate", "mysql://u:can@ary:canary@host:1/gate"] {
            let Ok(settings) = Settings::from_toml(&format!("[database]\nurl = \"{url}\"")) else { continue };
            for text in [settings.show(), format!("{settings:?}"), format!("{settings:#?}")] {
                assert!(!text.contains("canary") && !text.contains("can@"), "{text}");
            }
        }
        for wrong in
            ["postgres://u:canary@host:port/gate", "pg://u:canary@host/gate", "postgres://u:canary@host"]
        {
            let error = Settings::from_toml(&format!("[database]\nurl = \"{wrong}\"")).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("canary"), "{error:?}");
        }
    }
}
