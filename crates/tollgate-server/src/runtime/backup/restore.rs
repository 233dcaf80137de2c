//! Restores a backup into an empty data directory.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use super::manifest::{Manifest, SETTINGS};
use super::place::{BackupPlace, write_synced};
use super::{BackupError, in_file};
use crate::runtime::data_dir::{DataDir, LOCK, private_file};

/// Files on their way into the data directory.
const STAGING: &str = "restore.tmp";

/// Where a backup is restored to.
#[derive(Clone, Debug)]
pub struct RestoreOptions {
    /// The data directory.
    pub data_dir: PathBuf,
    /// The settings file to write, if any.
    pub config_out: Option<PathBuf>,
    /// Whether files in the data directory are moved aside.
    pub force: bool,
}

/// What was restored.
#[derive(Clone, Debug)]
pub struct Restored {
    /// The manifest of the backup.
    pub manifest: Manifest,
    /// Where the files are that were in the data directory.
    pub moved_to: Option<PathBuf>,
}

/// Reads a backup as a whole and compares it with its manifest. Changes nothing.
///
/// # Errors
/// When the backup is incomplete, damaged or cannot be read.
pub async fn verify(place: &BackupPlace) -> Result<Manifest, BackupError> {
    let manifest = place.manifest().await?;
    for file in &manifest.files {
        place.fetch(file, io::sink(), Path::new(&file.name)).await?;
    }
    Ok(manifest)
}

/// Restores a backup. All files are complete and verified before the first one takes its place.
///
/// # Errors
/// When the backup is incomplete or damaged, or the data directory is in use, not empty or cannot be written. Nothing was
/// changed then, except by an error in the last step: moving files within the data directory.
pub async fn restore(place: &BackupPlace, options: &RestoreOptions) -> Result<Restored, BackupError> {
    let manifest = place.manifest().await?;
    if let Some(path) = &options.config_out {
        if path.exists() {
            return Err(BackupError::ConfigExists { path: path.clone() });
        }
        if !manifest.has(SETTINGS) {
            return Err(BackupError::NoConfig);
        }
    }
    let is_new = !options.data_dir.exists();
    let lock = DataDir::open(&options.data_dir)?;
    if let Err(error) = stage(place, &manifest, options).await {
        let _ = fs::remove_dir_all(options.data_dir.join(STAGING));
        if is_new {
            let _ = fs::remove_file(options.data_dir.join(LOCK));
            let _ = fs::remove_dir(&options.data_dir);
        }
        return Err(error);
    }
    let moved_to = put_in_place(&manifest, options)?;
    drop(lock);
    Ok(Restored { manifest, moved_to })
}

/// Copies all files into a folder in the data directory.
async fn stage(
    place: &BackupPlace,
    manifest: &Manifest,
    options: &RestoreOptions,
) -> Result<(), BackupError> {
    let data_dir = &options.data_dir;
    if !options.force && !entries(data_dir).map_err(in_file(data_dir))?.is_empty() {
        return Err(BackupError::NotEmpty { path: data_dir.clone() });
    }
    let staging = data_dir.join(STAGING);
    // An interrupted restore may have left it.
    let _ = fs::remove_dir_all(&staging);
    DirBuilder::new().mode(0o700).create(&staging).map_err(in_file(&staging))?;
    for file in &manifest.files {
        let path = staging.join(&file.name);
        let to = private_file().create_new(true).write(true).open(&path).map_err(in_file(&path))?;
        place.fetch(file, &to, &path).await?;
        to.sync_all().map_err(in_file(&path))?;
    }
    if let Some(path) = &options.config_out {
        let text = fs::read(staging.join(SETTINGS)).map_err(in_file(&staging))?;
        write_synced(path, &text).map_err(in_file(path))?;
    }
    Ok(())
}

/// Moves the old files aside and the staged ones into their place.
fn put_in_place(manifest: &Manifest, options: &RestoreOptions) -> Result<Option<PathBuf>, BackupError> {
    let data_dir = &options.data_dir;
    let old = entries(data_dir).map_err(in_file(data_dir))?;
    let now = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ");
    let aside = (!old.is_empty()).then(|| data_dir.join(format!("replaced-{now}")));
    if let Some(aside) = &aside {
        DirBuilder::new().mode(0o700).create(aside).map_err(in_file(aside))?;
        for path in &old {
            let name = path.file_name().unwrap_or_default();
            fs::rename(path, aside.join(name)).map_err(in_file(path))?;
        }
    }
    let staging = data_dir.join(STAGING);
    for file in manifest.files.iter().filter(|file| file.name != SETTINGS) {
        let to = data_dir.join(&file.name);
        fs::rename(staging.join(&file.name), &to).map_err(in_file(&to))?;
    }
    fs::remove_dir_all(&staging).map_err(in_file(&staging))?;
    File::open(data_dir).and_then(|folder| folder.sync_all()).map_err(in_file(data_dir))?;
    Ok(aside)
}

/// What is in a data directory, except the lock, files of a restore, and what earlier ones moved aside.
fn entries(data_dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(data_dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_replaced = name.to_string_lossy().starts_with("replaced-");
        if name != LOCK && name != STAGING && !is_replaced {
            found.push(entry.path());
        }
    }
    Ok(found)
}
