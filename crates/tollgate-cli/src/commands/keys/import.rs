//! `tollgate keys import`: keys of another system, one JSON object per line.

use std::fs;
use std::io::{self, Read as _};

use clap::Args;
use http::StatusCode;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::super::items::{DryRunArg, Items};
use crate::client::ClientError;
use crate::output::escape;
use crate::output::format::plural;
use crate::{CliError, Exit, secret};

/// The code of a key that was imported before.
const CONFLICT: &str = "CONFLICT";

#[derive(Args)]
pub(crate) struct Import {
    /// File with one JSON object per line; - for standard input
    #[arg(value_name = "FILE")]
    file: String,
    #[command(flatten)]
    dry: DryRunArg,
}

/// What became of the lines.
#[derive(Default)]
struct Outcome {
    imported: usize,
    existing: usize,
    /// The number of the line, and what is wrong with it.
    failed: Vec<(usize, String)>,
}

pub(super) fn run(import: &Import, items: &Items<'_>) -> Result<Exit, CliError> {
    let text = read(&import.file)?;
    let mut outcome = Outcome::default();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        match import_line(line, items, &import.dry) {
            Ok(true) => outcome.imported += 1,
            Ok(false) => outcome.existing += 1,
            Err(LineError::Invalid(reason)) => outcome.failed.push((number, reason)),
            // The server is unreachable or rejects the caller: the other lines would fail alike.
            Err(LineError::Client(error)) => {
                outcome.report(items, &import.dry)?;
                return Err(error.into());
            }
        }
    }
    outcome.report(items, &import.dry)
}

fn read(file: &str) -> Result<String, CliError> {
    let mut text = String::new();
    let read = if file == "-" {
        io::stdin().read_to_string(&mut text).map(drop)
    } else {
        fs::read_to_string(file).map(|found| text = found)
    };
    read.map_err(|source| CliError::Read { path: file.to_owned(), source })?;
    Ok(text)
}

/// Why a line was not imported.
enum LineError {
    Invalid(String),
    Client(ClientError),
}

/// Imports one key. False if it was imported before.
fn import_line(line: &str, items: &Items<'_>, dry: &DryRunArg) -> Result<bool, LineError> {
    let body = body(line).map_err(LineError::Invalid)?;
    match items.create(&body, dry) {
        Ok(_) => Ok(true),
        Err(CliError::Client(ClientError::Api(error))) => match error.code() {
            CONFLICT if error.message().contains("imported before") => Ok(false),
            _ if error.status == StatusCode::BAD_REQUEST => {
                Err(LineError::Invalid(error.message().to_owned()))
            }
            _ => Err(LineError::Client(ClientError::Api(error))),
        },
        Err(CliError::Client(error)) => Err(LineError::Client(error)),
        Err(other) => Err(LineError::Invalid(other.to_string())),
    }
}

/// The body of the request. The key itself is not sent, only its SHA-256.
fn body(line: &str) -> Result<Map<String, Value>, String> {
    let mut body: Map<String, Value> =
        serde_json::from_str(line).map_err(|error| format!("is not a JSON object: {error}"))?;
    match body.remove("key") {
        Some(Value::String(key)) if secret::contains_key(&key) => {
            return Err(
                "key must not contain an API key of tollgate: such keys are created, not imported".to_owned()
            );
        }
        Some(Value::String(key)) if key.len() >= 16 => {
            body.insert("key_sha256".to_owned(), hex(&Sha256::digest(key.as_bytes())).into());
        }
        Some(_) => return Err("key must be a string of at least 16 characters".to_owned()),
        None if !body.contains_key("key_sha256") => {
            return Err("has neither key nor key_sha256; `keys create` generates keys".to_owned());
        }
        None => {}
    }
    Ok(body)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

impl Outcome {
    fn report(&self, items: &Items<'_>, dry: &DryRunArg) -> Result<Exit, CliError> {
        let json = || {
            let failed = self.failed.iter().map(|(line, reason)| json!({ "line": line, "reason": reason }));
            json!({ "imported": self.imported, "existing": self.existing, "failed": failed.collect::<Vec<_>>() })
        };
        let text = || {
            let done = if dry.dry_run { "would be imported" } else { "imported" };
            let before = if self.existing > 0 {
                format!(", {} imported before", self.existing)
            } else {
                String::new()
            };
            let failed =
                self.failed.iter().map(|(line, reason)| format!("line {line}: {}\n", escape(reason)));
            format!(
                "{} {done}{before}\n{}",
                plural(self.imported, "key"),
                failed.collect::<Vec<_>>().concat()
            )
        };
        items.output.result(json, text)?;
        Ok(if self.failed.is_empty() { Exit::Ok } else { Exit::Error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_is_sent_as_its_hash() {
        let sent = body(r#"{"name": "shop", "key": "0123456789abcdef", "user_id": "u"}"#).unwrap();
        let hash = "9f9f5111f7b27a781f1f1ddde5ebc2dd2b796bfc7365c9c28b548e564176929f";
        assert_eq!(Value::Object(sent), json!({ "name": "shop", "user_id": "u", "key_sha256": hash }));
        for wrong in ["[]", "{}", r#"{"key": 5}"#, r#"{"key": "short"}"#, "not json"] {
            assert!(body(wrong).is_err(), "{wrong}");
        }
    }
}
