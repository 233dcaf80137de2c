//! The data directory: what must survive a restart.
//!
//! `admin.key` (the key of the administrator), `keys.secret` (what API keys are hashed with), `counters.snap` (the counters),
//! `config.snap` (the last good configuration), `usage.spool` (what users have asked and the database does not know yet),
//! `fleet.seed` and `fleet.nodes` (what was last known of the nodes that share counters)
//! and `lock` (so that two processes do not overwrite each other's files). A file is replaced by a new one under its name, never written in place: a crash
//! or a full disk leaves the old one.

pub(crate) mod persistence_status;

use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tollgate::counters::memory::{MemoryBounds, SnapshotError};
use tollgate::{MemoryCounters, Seed, Timestamp};
use tracing::{info, warn};

use crate::auth::api_keys;
use crate::config::sync::snapshot::{self, Configuration};

const ADMIN_KEY: &str = "admin.key";
const COUNTERS: &str = "counters.snap";
const FLEET_SEED: &str = "fleet.seed";
const FLEET_NODES: &str = "fleet.nodes";
const KEY_SECRET: &str = "keys.secret";
const CONFIGURATION: &str = "config.snap";
const USAGE: &str = "usage.spool";
const LOCK: &str = "lock";
/// No key is longer; a larger file is not a key.
const KEY_BYTES_MAX: u64 = 4_096;
/// A shorter secret was not made by us.
const KEY_SECRET_BYTES_MIN: usize = 32;
/// 128 bits in base64: a shorter key of the administrator could be guessed.
const ADMIN_KEY_BYTES_MIN: usize = 22;

/// Why a data directory cannot be used.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// It cannot be made or entered: the path or its permissions are wrong.
    #[error("cannot use the data directory {path}: {source}", path = path.display())]
    Unusable {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another process has it: give each its own, or stop the other.
    #[error("the data directory {path} is in use by another process", path = path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// The key file cannot be read or written.
    #[error("cannot read or write {path}: {source}", path = path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file holds no secret. Without the old one the keys that were hashed with it are lost.
    #[error("{path} holds no secret: it must be one line of 32 or more printable ASCII characters; put the old one back, or \
        remove the file and make every API key anew", path = path.display())]
    NoSecret {
        /// The file.
        path: PathBuf,
    },
    /// The key file holds no key: remove it, and a key is made.
    #[error("{path} holds no key: it must be one line of printable ASCII; remove the file to have a key made",
        path = path.display())]
    NoKey {
        /// The file.
        path: PathBuf,
    },
    /// The key file holds a key that could be guessed, and it opens everything.
    #[error("the key in {path} is too short: it has {length} characters and must have {ADMIN_KEY_BYTES_MIN} or more, or it could \
        be guessed; remove the file to have a key made, or write one with `openssl rand -hex 32`", path = path.display())]
    WeakKey {
        /// The file.
        path: PathBuf,
        /// How long the key is.
        length: usize,
    },
}

/// The data directory, held by this process alone.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    /// Locked until dropped.
    _lock: File,
    /// Held while a file is replaced: two saves of the same one would write the same draft.
    replacing: Mutex<()>,
    /// Whether the configuration could not be saved the last time.
    configuration_fails: AtomicBool,
}

/// The key of the administrator.
#[derive(Clone, PartialEq, Eq)]
pub struct AdminKey {
    /// The key.
    pub key: String,
    /// Whether it was made just now: it is then shown once.
    pub is_new: bool,
}

impl fmt::Debug for AdminKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AdminKey(***, is_new: {})", self.is_new)
    }
}

impl DataDir {
    /// Makes the directory if need be, for its owner only, and takes hold of it.
    ///
    /// # Errors
    /// When it cannot be made, or another process has it.
    pub fn open(path: &Path) -> Result<Self, DataDirError> {
        let unusable = |source| DataDirError::Unusable { path: path.to_owned(), source };
        make_directory(path).map_err(unusable)?;
        let lock =
            owners_file().create(true).truncate(false).write(true).open(path.join(LOCK)).map_err(unusable)?;
        match lock.try_lock() {
            Ok(()) => Ok(DataDir {
                path: path.to_owned(),
                _lock: lock,
                replacing: Mutex::new(()),
                configuration_fails: AtomicBool::new(false),
            }),
            Err(TryLockError::WouldBlock) => Err(DataDirError::InUse { path: path.to_owned() }),
            Err(TryLockError::Error(source)) => Err(unusable(source)),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The administrator's key; made if there is none.
    ///
    /// # Errors
    /// When the file cannot be read or written, or holds no key, or one that could be guessed.
    pub fn admin_key(&self) -> Result<AdminKey, DataDirError> {
        let path = self.path.join(ADMIN_KEY);
        let failed = |source| DataDirError::Key { path: path.clone(), source };
        match File::open(&path) {
            Ok(file) => {
                warn_if_others_can_read(&file, &path);
                let mut text = String::new();
                file.take(KEY_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
                let key = text.trim().to_owned();
                let length = key.len();
                if length == 0 || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
                    return Err(DataDirError::NoKey { path });
                }
                if length < ADMIN_KEY_BYTES_MIN {
                    return Err(DataDirError::WeakKey { path, length });
                }
                Ok(AdminKey { key, is_new: false })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let key = new_key().map_err(failed)?;
                self.replace(ADMIN_KEY, |file| writeln!(file, "{key}")).map_err(failed)?;
                Ok(AdminKey { key, is_new: true })
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// What the hashes of API keys are keyed with; made if there is none.
    ///
    /// # Errors
    /// When the file cannot be read or written, or holds none.
    pub(crate) fn key_secret(&self) -> Result<String, DataDirError> {
        let path = self.path.join(KEY_SECRET);
        let failed = |source| DataDirError::Key { path: path.clone(), source };
        match File::open(&path) {
            Ok(file) => {
                warn_if_others_can_read(&file, &path);
                let mut text = String::new();
                file.take(KEY_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
                let secret = text.trim();
                let usable = secret.len() >= KEY_SECRET_BYTES_MIN
                    && secret.bytes().all(|byte| byte.is_ascii_graphic());
                // It is not made anew: keys that were hashed with the old one would be lost.
                if usable { Ok(secret.to_owned()) } else { Err(DataDirError::NoSecret { path }) }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let secret = api_keys::random_text().map_err(failed)?;
                self.replace(KEY_SECRET, |file| writeln!(file, "{secret}")).map_err(failed)?;
                Ok(secret)
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// The last good configuration of the database at `place`, if there is one that can be read. What cannot is put aside.
    pub(crate) fn load_configuration(&self, place: &str) -> Option<Configuration> {
        let path = self.path.join(CONFIGURATION);
        let read = match File::open(&path) {
            Ok(file) => snapshot::read(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => Err(error.into()),
        };
        match read {
            Ok((from, configuration)) if from == place => Some(configuration),
            Ok((from, _)) => {
                warn!(from, now = place, "the configuration on disk is of another database, and is not used");
                None
            }
            Err(error) => {
                let aside = self.path.join(format!("{CONFIGURATION}.damaged"));
                let kept = fs::rename(&path, &aside).is_ok();
                warn!(%error, file = %path.display(), kept_as = kept.then(|| aside.display().to_string()),
                    "the configuration on disk cannot be read");
                None
            }
        }
    }

    /// The version of the last good configuration of the database at `place`.
    pub(crate) fn configuration_version(&self, place: &str) -> Option<u64> {
        snapshot::read_version(File::open(self.path.join(CONFIGURATION)).ok()?, place)
    }

    /// Saves the configuration. A failure is logged, and the last one stays.
    pub(crate) fn save_configuration(
        &self,
        write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) -> io::Result<()> {
        let saved = self.replace(CONFIGURATION, write);
        let failed_before = self.configuration_fails.swap(saved.is_err(), Ordering::Relaxed);
        match &saved {
            // It is tried every other second: told once, when it begins.
            Err(error) if !failed_before => {
                warn!(%error, directory = %self.path.display(), "cannot save the configuration; the last one stays");
            }
            Ok(()) if failed_before => info!("the configuration is saved again"),
            _ => {}
        }
        saved
    }

    /// When the counters were saved, in microseconds since 1970.
    pub(crate) fn counters_saved_at(&self) -> Option<u64> {
        let saved = fs::metadata(self.path.join(COUNTERS)).ok()?.modified().ok()?;
        Some(Timestamp::from(saved).as_micros())
    }

    /// What users and keys have asked and the last process could not tell the database.
    pub(crate) fn usage(&self) -> Option<Vec<u8>> {
        fs::read(self.path.join(USAGE)).ok()
    }

    /// Keeps what the database could not be told, for the next process; nothing removes what was kept.
    pub(crate) fn keep_usage(&self, left: Option<&[u8]>) {
        let kept = match left {
            Some(left) => self.replace(USAGE, |file| file.write_all(left)),
            None => match fs::remove_file(self.path.join(USAGE)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            },
        };
        if let Err(error) = kept {
            warn!(%error, directory = %self.path.display(), "cannot keep what users and keys have asked");
        }
    }

    /// The counters as they were saved, and the seed of their subjects; empty ones if there are none, or if the file is
    /// damaged. A damaged file is put aside: a start with full allowances is better than none.
    pub fn load_counters(&self, bounds: MemoryBounds) -> (MemoryCounters, Seed) {
        let counters = MemoryCounters::new(bounds);
        let path = self.path.join(COUNTERS);
        let error = match File::open(&path).map(BufReader::new) {
            Ok(file) => match counters.restore(file) {
                Ok(seed) => {
                    info!(counters = counters.len(), "counters restored");
                    return (counters, seed);
                }
                Err(error) => error,
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => return (counters, Seed::random()),
            Err(error) => SnapshotError::Io(error),
        };
        let aside = self.path.join(format!("{COUNTERS}.damaged"));
        let kept = fs::rename(&path, &aside).is_ok();
        warn!(?error, file = %path.display(), kept_as = kept.then(|| aside.display().to_string()),
            "the snapshot of the counters cannot be read; starting with none");
        (MemoryCounters::new(bounds), Seed::random())
    }

    /// Saves the counters.
    ///
    /// # Errors
    /// When they cannot be written. The last save stays: decisions do not depend on it.
    pub fn save_counters(&self, counters: &MemoryCounters, seed: Seed, now: Timestamp) -> io::Result<()> {
        self.replace(COUNTERS, |file| counters.save(seed, now, file))
    }

    /// Where the counters are saved.
    pub(crate) fn counters_file(&self) -> PathBuf {
        self.path.join(COUNTERS)
    }

    /// The seed that this node and others agreed on when they last met.
    pub fn fleet_seed(&self) -> Option<Seed> {
        fs::read(self.path.join(FLEET_SEED)).ok()?.try_into().ok().map(Seed)
    }

    /// Keeps the seed, so that a start without the others hashes as they do.
    pub fn keep_fleet_seed(&self, seed: Seed) {
        if let Err(error) = self.replace(FLEET_SEED, |file| file.write_all(&seed.0)) {
            warn!(%error, directory = %self.path.display(), "cannot keep the seed of the fleet");
        }
    }

    /// How many nodes there were when this one last heard of them.
    pub fn fleet_nodes(&self) -> Option<NonZeroU32> {
        fs::read_to_string(self.path.join(FLEET_NODES)).ok()?.trim().parse().ok()
    }

    /// Keeps how many nodes there are, so that a start without the others admits no more than its share.
    pub fn keep_fleet_nodes(&self, nodes: NonZeroU32) {
        if let Err(error) = self.replace(FLEET_NODES, |file| writeln!(file, "{nodes}")) {
            warn!(%error, directory = %self.path.display(), "cannot keep the number of nodes");
        }
    }

    /// Writes a file beside the one of that name, makes sure it is on the disk, and puts it in its place.
    fn replace(
        &self,
        name: &str,
        write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) -> io::Result<()> {
        let _turn = self.replacing.lock();
        let draft = self.path.join(format!("{name}.tmp"));
        let written = write_draft(&draft, write).and_then(|()| fs::rename(&draft, self.path.join(name)));
        if written.is_err() {
            let _ = fs::remove_file(&draft); // a full disk needs the room
        }
        written?;
        // The name itself is on the disk only when the directory is.
        File::open(&self.path)?.sync_all()
    }
}

fn write_draft(draft: &Path, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> io::Result<()> {
    let file = owners_file().create(true).truncate(true).write(true).open(draft)?;
    let mut file = BufWriter::with_capacity(1 << 20, file);
    write(&mut file)?;
    file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
}

fn new_key() -> io::Result<String> {
    Ok(format!("tg_admin_{}", api_keys::random_text()?))
}

#[cfg(unix)]
fn make_directory(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

#[cfg(not(unix))]
fn make_directory(path: &Path) -> io::Result<()> {
    fs::create_dir_all(path)
}

/// A file that only its owner may read.
fn owners_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

fn warn_if_others_can_read(file: &File, path: &Path) {
    #[cfg(unix)]
    if let Ok(metadata) = file.metadata() {
        let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions());
        if mode & 0o077 != 0 {
            warn!(file = %path.display(), mode = format_args!("{:o}", mode & 0o777), "others can read this secret");
        }
    }
}

#[cfg(test)]
mod tests;
