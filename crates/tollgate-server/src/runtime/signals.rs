//! SIGTERM and SIGINT: the first starts a graceful shutdown, a later second one exits at once.
//!
//! `timeout` and supervisors signal a process and then its group, so one request arrives as two signals within a millisecond.
//! Signals shortly after the first are therefore ignored.

use std::io;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::{debug, warn};

/// Signals within this time of the first are ignored.
const REPEAT_WINDOW: Duration = Duration::from_millis(500);

/// The exit code of an interrupted process.
const EXIT_INTERRUPTED: i32 = 130;

/// SIGTERM and SIGINT.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Installs the handlers: the signals no longer end the process by default.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the first signal. A later second one exits the process.
    pub(crate) async fn shutdown_requested(mut self) {
        self.next().await;
        let requested = Instant::now();
        tokio::spawn(async move {
            self.next().await;
            while requested.elapsed() < REPEAT_WINDOW {
                debug!("ignoring a signal right after the first");
                self.next().await;
            }
            warn!("second signal: exiting at once");
            std::process::exit(EXIT_INTERRUPTED);
        });
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
