//! The first signal asks for an orderly end, the second does not ask.

use std::io;

use tracing::warn;

/// What a shell reports for a process ended by an interrupt.
const EXIT_INTERRUPTED: i32 = 130;

/// SIGTERM and SIGINT, or what the system has of them.
#[cfg(unix)]
pub(super) struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    /// From here on the signals no longer end the process by themselves.
    pub(super) fn new() -> io::Result<Self> {
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
pub(super) struct Signals;

#[cfg(not(unix))]
impl Signals {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Signals)
    }

    async fn next(&mut self) {
        let _ = tokio::signal::ctrl_c().await;
    }
}

impl Signals {
    /// Waits for the first signal. From then on a second one ends the process.
    pub(super) async fn asked_to_end(mut self) {
        self.next().await;
        tokio::spawn(async move {
            self.next().await;
            warn!("a second signal: ending at once");
            std::process::exit(EXIT_INTERRUPTED);
        });
    }
}
