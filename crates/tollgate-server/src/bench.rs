//! Entry points for benchmarks.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tollgate::Timestamp;
use tollgate_stores::sql::SqlSettings;

use crate::auth::jwt::JwtVerifier;
use crate::config::settings::{Settings, SettingsError};
use crate::records::codec::RowWriter;
use crate::records::drain::{DecisionSink, Drain, DrainSettings, Quarantine, RecordsConnection};
use crate::records::spool::{self, SpoolReader, SpoolWriter};

/// A spool of records.
pub struct Spool {
    writer: SpoolWriter,
    reader: SpoolReader,
}

impl Spool {
    /// Opens the spool in a directory.
    ///
    /// # Errors
    /// When the directory cannot be used.
    pub fn open(dir: &Path, bytes_max: u64) -> io::Result<Self> {
        let (writer, reader, _) = spool::open(dir, bytes_max)?;
        Ok(Spool { writer, reader })
    }

    /// Appends a frame. Returns whether it was written.
    pub fn append(&mut self, rows: u32, payload: &[u8]) -> bool {
        let before = self.writer.stats().rows_appended.get();
        self.writer.append(rows, payload);
        self.writer.stats().rows_appended.get() > before
    }

    /// Makes all frames durable. Returns whether that succeeded.
    pub fn sync(&mut self) -> bool {
        self.writer.sync()
    }

    /// Reads and releases a batch. Returns its rows; 0 if all were read.
    ///
    /// # Errors
    /// When a segment cannot be read.
    pub fn take(&mut self, rows_max: usize) -> io::Result<u64> {
        let Some(batch) = self.reader.next(rows_max, usize::MAX)? else { return Ok(0) };
        self.reader.release(&batch.range);
        Ok(batch.rows().count() as u64)
    }

    /// Drains all rows to the database of records at a URL. Returns how many were stored.
    ///
    /// # Errors
    /// When the URL is invalid.
    pub async fn drain(self, url: &str, quarantine: &Path) -> Result<u64, tollgate_stores::sql::UrlError> {
        let connection = Arc::new(RecordsConnection::new(SqlSettings::from_url(url)?));
        let quarantine = Arc::new(Quarantine::new(quarantine.to_owned()));
        let settings =
            DrainSettings { shutdown_max: std::time::Duration::from_hours(1), ..DrainSettings::LOG };
        let drain = Drain::new(DecisionSink(connection), self.reader, settings, quarantine);
        let stats = Arc::clone(drain.stats());
        self.writer.close();
        drain.run().await;
        Ok(stats.rows_stored.get())
    }
}

/// Verifies tokens.
pub struct TokenVerifier(JwtVerifier);

impl TokenVerifier {
    /// A verifier with the issuers of a settings file. `None` without any.
    ///
    /// # Errors
    /// Every error in the settings.
    pub fn new(settings: &str) -> Result<Option<Self>, SettingsError> {
        let settings = Settings::from_toml(settings)?;
        Ok(JwtVerifier::new(&settings.jwt.issuers, &Arc::default(), None).map(TokenVerifier))
    }

    /// Whether a token is accepted at this time, which the cache may know.
    pub fn accepts(&self, token: &str, now_secs: u64) -> bool {
        self.0.verify(token, Timestamp::from_secs(now_secs)).is_ok()
    }

    /// As [`TokenVerifier::accepts`], without the cache.
    pub fn accepts_anew(&self, token: &str, now_secs: u64) -> bool {
        self.0.verify_uncached(token, Timestamp::from_secs(now_secs)).is_ok()
    }
}

/// Appends a row of the decision log to the payload of a frame.
pub fn push_decision(payload: &mut Vec<u8>, at_micros: u64, user: u64) {
    let start = payload.len();
    payload.extend_from_slice(&[0; 4]);
    RowWriter::decision(payload)
        .number(at_micros)
        .byte(1)
        .byte(0)
        .number(429)
        .number(1)
        .number(12)
        .maybe_number(Some(101))
        .maybe_number(Some(100))
        .maybe_number(Some(0))
        .maybe_number(Some(30))
        .display(format_args!("user:customer-{user}"))
        .maybe_text(None)
        .display(format_args!("customer-{user}"))
        .maybe_text(None)
        .maybe_text(Some("192.0.2.17"))
        .text("/v1/projects/42/members")
        .maybe_text(Some("GET"))
        .maybe_text(Some("per-user"))
        .maybe_text(None)
        .text("eu-1")
        .text("node-a");
    let length = u32::try_from(payload.len() - start - 4).unwrap_or(0);
    payload[start..start + 4].copy_from_slice(&length.to_le_bytes());
}
