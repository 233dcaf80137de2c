//! Upgraded connections, such as WebSocket connections: bytes pass in both directions until one side closes or nothing passes for too long.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use tracing::debug;

use super::routes::RouteStats;
use super::upstream::InFlight;
use crate::listener::ConnectionInfo;

const BUFFER_BYTES: usize = 16 * 1024;

/// What an open tunnel holds.
pub(super) struct Tunnel {
    pub(super) client: OnUpgrade,
    pub(super) upstream: OnUpgrade,
    pub(super) idle_timeout: Duration,
    pub(super) stats: Arc<RouteStats>,
    pub(super) in_flight: InFlight,
    /// Keeps the connection counted as open.
    pub(super) connection: Arc<ConnectionInfo>,
}

impl Tunnel {
    /// Passes bytes in a task of its own.
    pub(super) fn spawn(self) {
        tokio::spawn(async move {
            self.stats.tunnels.fetch_add(1, Ordering::Relaxed);
            let stats = Arc::clone(&self.stats);
            if let Err(error) = self.pass().await {
                debug!(%error, "an upgraded connection failed");
            }
            stats.tunnels.fetch_sub(1, Ordering::Relaxed);
        });
    }

    async fn pass(self) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let Tunnel { client, upstream, idle_timeout, in_flight, connection, .. } = self;
        let _held = (in_flight, connection);
        let (client, upstream) = tokio::try_join!(client, upstream)?;
        let (client_read, client_write) = tokio::io::split(TokioIo::new(client));
        let (upstream_read, upstream_write) = tokio::io::split(TokioIo::new(upstream));
        let (progress, mut passed) = watch::channel(0_u64);
        let to_upstream = copy(client_read, upstream_write, &progress);
        let to_client = copy(upstream_read, client_write, &progress);
        let idle =
            async { while let Ok(Ok(())) = tokio::time::timeout(idle_timeout, passed.changed()).await {} };
        tokio::select! {
            both = async { tokio::try_join!(to_upstream, to_client) } => drop(both?),
            () = idle => debug!("an upgraded connection was idle for too long"),
        }
        Ok(())
    }
}

/// Copies until the end, and passes the end on.
async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    progress: &watch::Sender<u64>,
) -> std::io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..read]).await?;
        to.flush().await?;
        progress.send_modify(|total| *total = total.wrapping_add(read as u64));
    }
}
