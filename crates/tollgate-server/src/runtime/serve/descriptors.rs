//! Raises the soft limit on file descriptors, which is often 1,024: fewer than the connections that one address may open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{debug, warn};

/// Descriptors for the database, Redis and files.
const RESERVE: u64 = 64;

/// Raises the soft limit to the hard one, and warns if that is below `connections_max`.
pub(super) fn raise(connections_max: usize) {
    let before = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: before.maximum, maximum: before.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, wanted) {
        debug!(%error, "cannot raise the file descriptor limit");
    }
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if descriptors < RESERVE.saturating_add(connections_max as u64) {
        warn!(
            descriptors,
            connections_max,
            "file descriptor limit is below connections_max: raise the hard limit (ulimit -Hn)"
        );
    }
}
