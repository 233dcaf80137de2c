//! Where the archive is: a folder, or a bucket of an S3-compatible store.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::prefix::PrefixStore;
use object_store::{BackoffConfig, ClientOptions, ObjectStore, RetryConfig};

use super::error::{ArchiveError, ArchiveSettingsError};
use crate::redis::Secret;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// For one request: a part of 8 MB on a slow line.
const REQUEST_TIMEOUT: Duration = Duration::from_mins(1);
const RETRIES: usize = 3;
/// A run that fails is repeated by the maintenance, so it does not wait long.
const RETRY_TIMEOUT: Duration = Duration::from_secs(20);

/// How the archive is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveSettings {
    /// The folder or bucket.
    pub place: ArchivePlace,
    /// The address of an S3-compatible store; by default that of AWS.
    pub endpoint: Option<String>,
    /// The region of the bucket.
    pub region: Option<String>,
    /// Credentials; by default those of the environment (`AWS_ACCESS_KEY_ID`, …) or of the machine.
    pub credentials: Option<ArchiveCredentials>,
    /// Whether the endpoint may be reached without TLS.
    pub allow_http: bool,
}

/// A folder or bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArchivePlace {
    /// `file:///FOLDER`.
    Folder(PathBuf),
    /// `s3://BUCKET/PREFIX`.
    Bucket {
        /// The name of the bucket.
        bucket: String,
        /// Start of all names in it, without slashes at its ends. May be empty.
        prefix: String,
    },
}

/// An access key of an object store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArchiveCredentials {
    /// The id of the key.
    pub access_key_id: String,
    /// The key.
    pub secret_access_key: Secret,
}

impl ArchivePlace {
    /// Parses `file:///FOLDER` or `s3://BUCKET/PREFIX`.
    ///
    /// # Errors
    /// When the text is neither.
    pub fn parse(url: &str) -> Result<Self, ArchiveSettingsError> {
        if let Some(path) = url.strip_prefix("file://") {
            let path = PathBuf::from(path);
            let is_plain = path.components().all(|part| !matches!(part, std::path::Component::ParentDir));
            return (path.is_absolute() && is_plain)
                .then_some(ArchivePlace::Folder(path))
                .ok_or(ArchiveSettingsError::RelativePath);
        }
        let rest = url.strip_prefix("s3://").ok_or(ArchiveSettingsError::Url)?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if rest.contains(['@', ':']) {
            return Err(ArchiveSettingsError::Credentials);
        }
        let is_name =
            |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "-.".contains(letter);
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        let is_prefix = !prefix.starts_with('/')
            && object_store::path::Path::parse(prefix).is_ok()
            && !prefix.contains(['?', '#', '*']);
        if bucket.is_empty() || !bucket.chars().all(is_name) || !is_prefix {
            return Err(ArchiveSettingsError::Url);
        }
        Ok(ArchivePlace::Bucket { bucket: bucket.to_owned(), prefix: prefix.to_owned() })
    }
}

impl std::fmt::Display for ArchivePlace {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ArchivePlace::Folder(path) => write!(out, "file://{}", path.display()),
            ArchivePlace::Bucket { bucket, prefix } if prefix.is_empty() => write!(out, "s3://{bucket}"),
            ArchivePlace::Bucket { bucket, prefix } => write!(out, "s3://{bucket}/{prefix}"),
        }
    }
}

impl ArchiveSettings {
    /// An archive with default settings.
    pub fn new(place: ArchivePlace) -> Self {
        ArchiveSettings { place, endpoint: None, region: None, credentials: None, allow_http: false }
    }

    /// The archive in messages: its URL, and the address of its store if it has one.
    pub(super) fn name(&self) -> String {
        match &self.endpoint {
            Some(endpoint) => format!("archive {} at {endpoint}", self.place),
            None => format!("archive {}", self.place),
        }
    }

    /// Opens the store. Creates a missing folder; does not connect to a bucket. `name` begins the errors.
    pub(crate) fn open(&self, name: &str) -> Result<Arc<dyn ObjectStore>, ArchiveError> {
        match &self.place {
            ArchivePlace::Folder(path) => {
                let failed =
                    |cause: object_store::Error| ArchiveError::Store { archive: name.to_owned(), cause };
                create_folder(path).map_err(|error| {
                    let source = format!("cannot create the folder: {error}").into();
                    failed(object_store::Error::Generic { store: "folder", source })
                })?;
                let store = LocalFileSystem::new_with_prefix(path).map_err(failed)?;
                // Rows are removed from the database once they are here.
                Ok(Arc::new(store.with_fsync(true)))
            }
            ArchivePlace::Bucket { bucket, prefix } => {
                let store = self.bucket(bucket).build();
                let store = store.map_err(|error| ArchiveSettingsError::Client(error.to_string()))?;
                Ok(Arc::new(PrefixStore::new(store, prefix.as_str())))
            }
        }
    }

    fn bucket(&self, name: &str) -> AmazonS3Builder {
        let client = ClientOptions::new().with_connect_timeout(CONNECT_TIMEOUT).with_timeout(REQUEST_TIMEOUT);
        let mut builder = AmazonS3Builder::from_env()
            .with_bucket_name(name)
            .with_client_options(client.with_allow_http(self.allow_http))
            .with_retry(RetryConfig {
                backoff: BackoffConfig::default(),
                max_retries: RETRIES,
                retry_timeout: RETRY_TIMEOUT,
            });
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        if let Some(region) = &self.region {
            builder = builder.with_region(region);
        }
        if let Some(credentials) = &self.credentials {
            builder = builder
                .with_access_key_id(&credentials.access_key_id)
                .with_secret_access_key(&credentials.secret_access_key.0);
        }
        builder
    }
}

/// Readable by its owner only: records name clients and their addresses.
fn create_folder(path: &std::path::Path) -> std::io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_a_folder_or_a_bucket() {
        let bucket = |bucket: &str, prefix: &str| {
            Ok(ArchivePlace::Bucket { bucket: bucket.to_owned(), prefix: prefix.to_owned() })
        };
        assert_eq!(ArchivePlace::parse("file:///var/a"), Ok(ArchivePlace::Folder("/var/a".into())));
        assert_eq!(ArchivePlace::parse("s3://records"), bucket("records", ""));
        assert_eq!(ArchivePlace::parse("s3://records/eu/1/"), bucket("records", "eu/1"));
        for (url, error) in [
            ("/var/a", ArchiveSettingsError::Url),
            ("gs://bucket", ArchiveSettingsError::Url),
            ("s3://", ArchiveSettingsError::Url),
            ("s3://Bucket", ArchiveSettingsError::Url),
            ("s3://b/../c", ArchiveSettingsError::Url),
            ("s3://b//c", ArchiveSettingsError::Url),
            ("s3://key:secret@b/c", ArchiveSettingsError::Credentials),
            ("file://a/b", ArchiveSettingsError::RelativePath),
            ("file:///a/../b", ArchiveSettingsError::RelativePath),
        ] {
            assert_eq!(ArchivePlace::parse(url), Err(error), "{url}");
        }
    }

    #[test]
    fn credentials_are_not_printed() {
        let mut settings = ArchiveSettings::new(ArchivePlace::parse("s3://b").unwrap());
        let secret_access_key = Secret("canary".to_owned());
        settings.credentials = Some(ArchiveCredentials { access_key_id: "id".to_owned(), secret_access_key });
        assert!(!format!("{settings:?}").contains("canary"));
    }
}
