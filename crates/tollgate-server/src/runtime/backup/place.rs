//! Where backups are kept: a folder, or a prefix of a bucket.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use tollgate_stores::archive::{ArchivePlace, ArchiveSettings};
use tollgate_stores::backup::BackupBucket;

use super::manifest::{BackupFile, HashingWriter, MANIFEST, Manifest};
use super::{BackupError, in_file};
use crate::runtime::data_dir::private_file;

/// A folder or bucket with backups, or one backup in it.
#[derive(Clone, Debug)]
pub enum BackupPlace {
    /// A local folder.
    Folder(PathBuf),
    /// A prefix of a bucket. Credentials, region and endpoint are those of the environment (`AWS_ACCESS_KEY_ID`, …).
    Bucket(ArchiveSettings),
}

/// A backup that is being written. Removed on drop unless it was published.
pub(super) struct Draft {
    path: PathBuf,
    is_published: bool,
}

impl BackupPlace {
    /// Parses a folder or `s3://BUCKET/PREFIX`. `allow_http` permits an endpoint without TLS.
    ///
    /// # Errors
    /// When the text is neither.
    pub fn parse(text: &str, allow_http: bool) -> Result<Self, BackupError> {
        let invalid = |reason: String| BackupError::Place { text: text.to_owned(), reason };
        if !text.contains("://") {
            let path = std::path::absolute(text).map_err(|error| invalid(error.to_string()))?;
            return Ok(BackupPlace::Folder(path));
        }
        match ArchivePlace::parse(text).map_err(|error| invalid(error.to_string()))? {
            ArchivePlace::Folder(path) => Ok(BackupPlace::Folder(path)),
            place @ ArchivePlace::Bucket { .. } => {
                Ok(BackupPlace::Bucket(ArchiveSettings { allow_http, ..ArchiveSettings::new(place) }))
            }
        }
    }

    /// The names of the complete backups, oldest first.
    ///
    /// # Errors
    /// When the place cannot be read.
    pub async fn list(&self) -> Result<Vec<(String, Manifest)>, BackupError> {
        let mut names = match self {
            BackupPlace::Folder(path) => folder_names(path).map_err(in_file(path))?,
            BackupPlace::Bucket(settings) => {
                let objects = BackupBucket::open(settings)?.list().await?;
                let name =
                    |object: &String| Some(object.strip_suffix(MANIFEST)?.strip_suffix('/')?.to_owned());
                objects.iter().filter_map(name).filter(|name| !name.contains('/')).collect()
            }
        };
        names.sort();
        let mut backups = Vec::new();
        for name in names {
            let manifest = self.join(&name).manifest().await?;
            backups.push((name, manifest));
        }
        Ok(backups)
    }

    /// The manifest of this backup.
    pub(super) async fn manifest(&self) -> Result<Manifest, BackupError> {
        let missing = || BackupError::NoManifest { place: self.to_string() };
        match self {
            BackupPlace::Folder(path) => {
                let file = path.join(MANIFEST);
                match fs::read(&file) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Err(missing()),
                    read => Manifest::from_json(&read.map_err(in_file(&file))?),
                }
            }
            BackupPlace::Bucket(settings) => match BackupBucket::open(settings)?.read(MANIFEST).await {
                Err(error) if BackupBucket::is_missing(&error) => Err(missing()),
                read => Manifest::from_json(&read?),
            },
        }
    }

    /// Writes the contents of a file of this backup, and compares them with the manifest. `path` is what errors name.
    pub(super) async fn fetch(
        &self,
        file: &BackupFile,
        to: impl io::Write,
        path: &Path,
    ) -> Result<(), BackupError> {
        let mut to = HashingWriter::new(to);
        match self {
            BackupPlace::Folder(folder) => {
                let source = folder.join(&file.name);
                let mut from = match File::open(&source) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(missing(file)),
                    opened => opened.map_err(in_file(&source))?,
                };
                io::copy(&mut from, &mut to).map_err(in_file(path))?;
            }
            BackupPlace::Bucket(settings) => {
                match BackupBucket::open(settings)?.download(&file.name, &mut to).await {
                    Err(error) if BackupBucket::is_missing(&error) => return Err(missing(file)),
                    done => done?,
                }
            }
        }
        file.compare(&to.finish(&file.name).0)
    }

    /// A folder in which a backup is made: its own, or a temporary one for a bucket.
    pub(super) fn draft(&self, name: &str) -> Result<Draft, BackupError> {
        let folder = match self {
            BackupPlace::Folder(path) => {
                create_folder(path, true).map_err(in_file(path))?;
                path.join(name)
            }
            BackupPlace::Bucket(_) => {
                std::env::temp_dir().join(format!("tollgate-backup-{}-{name}", std::process::id()))
            }
        };
        create_folder(&folder, false).map_err(in_file(&folder))?;
        Ok(Draft { path: folder, is_published: false })
    }

    /// Makes a backup count.
    pub(super) async fn publish(
        &self,
        mut draft: Draft,
        name: &str,
        manifest: &Manifest,
    ) -> Result<(), BackupError> {
        let file = draft.path.join(MANIFEST);
        write_synced(&file, manifest.to_json().as_bytes()).map_err(in_file(&file))?;
        match self {
            BackupPlace::Folder(path) => {
                for folder in [&draft.path, path] {
                    File::open(folder).and_then(|folder| folder.sync_all()).map_err(in_file(folder))?;
                }
                draft.is_published = true;
            }
            BackupPlace::Bucket(settings) => {
                let bucket = BackupBucket::open(settings)?;
                let files = manifest.files.iter().map(|file| &*file.name);
                for file in files.chain([MANIFEST]) {
                    bucket.upload(&draft.path.join(file), &format!("{name}/{file}")).await?;
                }
            }
        }
        Ok(())
    }

    /// The backup with this name.
    #[must_use]
    pub fn join(&self, name: &str) -> Self {
        match self {
            BackupPlace::Folder(path) => BackupPlace::Folder(path.join(name)),
            BackupPlace::Bucket(settings) => {
                let mut settings = settings.clone();
                if let ArchivePlace::Bucket { prefix, .. } = &mut settings.place {
                    *prefix = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
                }
                BackupPlace::Bucket(settings)
            }
        }
    }
}

impl std::fmt::Display for BackupPlace {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BackupPlace::Folder(path) => write!(out, "{}", path.display()),
            BackupPlace::Bucket(settings) => write!(out, "{}", settings.place),
        }
    }
}

impl Draft {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.is_published {
            let _ = fs::remove_dir_all(&self.path); // what remains has no manifest
        }
    }
}

fn missing(file: &BackupFile) -> BackupError {
    BackupError::Damaged { file: file.name.clone(), reason: "it is missing".to_owned() }
}

/// Folders with a manifest. A folder that does not exist has none.
fn folder_names(path: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.path().join(MANIFEST).is_file() {
            names.extend(entry.file_name().into_string().ok());
        }
    }
    Ok(names)
}

/// Readable by its owner only: backups have hashes of API keys, and names and addresses of clients.
fn create_folder(path: &Path, recursive: bool) -> io::Result<()> {
    DirBuilder::new().recursive(recursive).mode(0o700).create(path)
}

/// Writes a new file with mode 0600.
pub(super) fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = private_file().create_new(true).write(true).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_is_a_folder_or_a_bucket() {
        let name = |text: &str| BackupPlace::parse(text, false).map(|place| place.join("n").to_string());
        assert_eq!(name("/backup").unwrap(), "/backup/n");
        assert_eq!(name("file:///backup").unwrap(), "/backup/n");
        assert!(name("backup").unwrap().starts_with('/'), "relative folders are those of the shell");
        assert_eq!(name("s3://b").unwrap(), "s3://b/n");
        assert_eq!(name("s3://b/eu/gate-1/").unwrap(), "s3://b/eu/gate-1/n");
        for invalid in ["gs://b", "s3://", "s3://key:secret@b"] {
            assert!(matches!(name(invalid), Err(BackupError::Place { .. })), "{invalid}");
        }
    }
}
