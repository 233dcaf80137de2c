//! The first signal asks for an orderly end, the second does not ask.
//!
//! `timeout` and supervisors signal a process and then its group, so one request to end arrives as two signals a fraction of
//! a millisecond apart. Only a signal that comes some time after the first is a person who has waited long enough.

use std::io;
use std::time::{Duration, Instant};

use tracing::{debug, warn};

/// Signals that come within this time of the first are the same request.
const ONE_REQUEST: Duration = Duration::from_millis(500);

/// What a shell reports for a process ended by an interrupt.
const EXIT_INTERRUPTED: i32 = 130;

/// SIGTERM and SIGINT, or what the system has of them.
#[cfg(unix)]
pub(crate) struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    /// From here on the signals no longer end the process by themselves.
    pub(crate) fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// SIGTERM and SIGINT, or what the system has of them.
#[cfg(not(unix))]
pub(crate) struct Signals;

#[cfg(not(unix))]
impl Signals {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Signals)
    }

    async fn next(&mut self) {
        let _ = tokio::signal::ctrl_c().await;
    }
}

impl Signals {
    /// Waits for the first signal. From a moment later on a second one ends the process.
    pub(crate) async fn asked_to_end(mut self) {
        self.next().await;
        let asked = Instant::now();
        tokio::spawn(async move {
            self.next().await;
            while asked.elapsed() < ONE_REQUEST {
                debug!("another signal right after the first: taken as one with it");
                self.next().await;
            }
            warn!("a second signal: ending at once");
            std::process::exit(EXIT_INTERRUPTED);
        });
    }
}
