//! As many file descriptors as the process may have.
//!
//! Systems start processes with a soft limit of 1,024, for programs that use `select`, and let them raise it. Left at that, as
//! many connections as one address may open would leave no descriptor for anybody else.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::{debug, warn};

/// For what is not a connection of a client: the database, counters on Redis, files.
const RESERVE: u64 = 64;

/// Raises the soft limit to the hard one, and tells if that is too little for so many connections.
pub(super) fn raise(connections_max: usize) {
    let before = getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: before.maximum, maximum: before.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, wanted) {
        debug!(%error, "cannot raise the limit of file descriptors");
    }
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    if descriptors < RESERVE.saturating_add(connections_max as u64) {
        warn!(
            descriptors,
            connections_max, "fewer file descriptors than connections: raise the hard limit (ulimit -Hn)"
        );
    }
}
