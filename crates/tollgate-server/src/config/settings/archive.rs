//! `[records.archive]`: where records go after their retention.

use std::io::Read as _;
use std::path::PathBuf;
use std::time::Duration;

use tollgate::config::values::{boolean, text};
use tollgate::config::{TableReader, Value};
use tollgate_stores::archive::{ArchiveCredentials, ArchivePlace, ArchiveSettings};
use tollgate_stores::redis::Secret;

use super::read::duration;

const DAY: Duration = Duration::from_hours(24);
const SECRET_BYTES_MAX: u64 = 4_096;
/// Seven years.
pub(super) const KEEP: Duration = DAY.saturating_mul(2_557);

/// Where records go after their retention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveSection {
    /// How the archive is reached.
    pub archive: ArchiveSettings,
    /// How long files are kept at least. Only `tollgate archive prune` deletes them.
    pub keep: Duration,
    /// The file that the secret access key was read from, if any.
    pub secret_file: Option<PathBuf>,
}

/// Reads the section.
pub(super) fn read(fields: &mut TableReader<'_, '_>) -> Option<ArchiveSection> {
    let keep = fields.read("keep", duration(DAY, DAY * 36_500)).unwrap_or(KEEP);
    let (archive, secret_file) = read_store(fields)?;
    Some(ArchiveSection { archive, keep, secret_file })
}

/// Parses the URL of a folder or bucket.
pub(super) fn place(value: &Value) -> Result<ArchivePlace, String> {
    ArchivePlace::parse(&text(value)?).map_err(|error| error.to_string())
}

/// Reads the keys that say how files are reached, and the file of the secret, if any.
pub(super) fn read_store(fields: &mut TableReader<'_, '_>) -> Option<(ArchiveSettings, Option<PathBuf>)> {
    let place = fields.read("url", place);
    let allow_http = fields.read("allow_http", boolean).unwrap_or(false);
    let endpoint = fields.read("endpoint", |value| endpoint(text(value)?, allow_http));
    let region = fields.read("region", text);
    let id = fields.read("access_key_id", text);
    let inline = fields.read("secret_access_key", text);
    let from_file = fields.read("secret_access_key_file", |value| {
        let path = PathBuf::from(text(value)?);
        let unreadable = |error: std::io::Error| format!("cannot read {}: {error}", path.display());
        let mut secret = String::new();
        let file = std::fs::File::open(&path).map_err(unreadable)?;
        file.take(SECRET_BYTES_MAX).read_to_string(&mut secret).map_err(unreadable)?;
        Ok((secret.trim().to_owned(), path))
    });
    if fields.has("secret_access_key") && fields.has("secret_access_key_file") {
        let reason = "set either secret_access_key or secret_access_key_file, not both";
        fields.report("secret_access_key_file", reason.to_owned());
    }
    let has_secret = fields.has("secret_access_key") || fields.has("secret_access_key_file");
    if fields.has("access_key_id") != has_secret {
        let key = if has_secret { "secret_access_key" } else { "access_key_id" };
        fields.report(key, "access_key_id and secret_access_key must be set together".to_owned());
    }
    if !fields.has("url") {
        fields.report("url", "is missing".to_owned());
    }
    let (secret, secret_file) = match (inline, from_file) {
        (Some(secret), _) => (Some(secret), None),
        (None, Some((secret, path))) => (Some(secret), Some(path)),
        (None, None) => (None, None),
    };
    let credentials = id.zip(secret).map(|(access_key_id, secret)| ArchiveCredentials {
        access_key_id,
        secret_access_key: Secret(secret),
    });
    Some((ArchiveSettings { place: place?, endpoint, region, credentials, allow_http }, secret_file))
}

/// Requests are signed, but records would be readable on the way.
fn endpoint(url: String, allow_http: bool) -> Result<String, String> {
    let parsed: http::Uri =
        url.parse().map_err(|_| "must be a URL such as https://minio.internal:9000".to_owned())?;
    if parsed.authority().is_none_or(|authority| authority.as_str().contains('@')) {
        return Err("must have a host and no credentials; use access_key_id and secret_access_key".to_owned());
    }
    match parsed.scheme_str().unwrap_or_default() {
        "https" => Ok(url),
        "http" if allow_http => Ok(url),
        "http" => {
            Err("is not encrypted: use https://, or set allow_http = true on a trusted network".to_owned())
        }
        _ => Err("must start with https://".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Settings;
    use super::*;

    fn read(keys: &str) -> Result<ArchiveSection, String> {
        let text = format!("[records.archive]\n{keys}");
        let settings = Settings::from_toml(&text).map_err(|error| format!("{error} {error:?}"))?;
        settings.records.archive.ok_or_else(|| "no archive".to_owned())
    }

    #[test]
    fn every_key_is_used() {
        let folder = read("url = \"file:///var/archive\"").unwrap();
        assert_eq!(folder.archive, ArchiveSettings::new(ArchivePlace::Folder("/var/archive".into())));
        assert_eq!((folder.keep, folder.secret_file), (KEEP, None));
        let bucket = read(
            "url = \"s3://records/eu\"\nkeep = \"400d\"\nendpoint = \"http://minio:9000\"\nallow_http = true\n\
             region = \"eu-1\"\naccess_key_id = \"id\"\nsecret_access_key = \"canary\"",
        )
        .unwrap();
        assert_eq!(bucket.archive.place.to_string(), "s3://records/eu");
        assert_eq!(bucket.archive.endpoint.as_deref(), Some("http://minio:9000"));
        assert_eq!(bucket.archive.region.as_deref(), Some("eu-1"));
        assert!(bucket.archive.allow_http && bucket.keep == DAY * 400);
        let credentials = bucket.archive.credentials.clone().unwrap();
        assert_eq!((credentials.access_key_id.as_str(), &*credentials.secret_access_key.0), ("id", "canary"));
        assert!(!format!("{bucket:?}").contains("canary"));
    }

    #[test]
    fn mistakes_are_explained() {
        let url = "url = \"s3://b\"\n";
        for (keys, reason) in [
            ("", "records.archive.url: is missing"),
            ("url = \"/var/archive\"", "must be file:///FOLDER or s3://BUCKET/PREFIX"),
            (&format!("{url}endpoint = \"http://minio:9000\""), "set allow_http = true"),
            (&format!("{url}endpoint = \"https://k:s@minio\""), "no credentials"),
            (&format!("{url}access_key_id = \"id\""), "must be set together"),
            (&format!("{url}secret_access_key = \"x\""), "must be set together"),
            (
                &format!("{url}secret_access_key_file = \"/nonexistent\"\naccess_key_id = \"i\""),
                "cannot read",
            ),
        ] {
            let error = read(keys).unwrap_err();
            assert!(error.contains(reason), "{keys}: {error}");
        }
    }
}
