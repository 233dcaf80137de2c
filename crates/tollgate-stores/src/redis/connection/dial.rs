//! Opens connections and explains why one cannot be opened.
//!
//! The client library reports a connection that the server closes at once as a broken pipe and drops the server's reason.
//! Some servers send the reason before the first command, so it is read again on a plain socket.

use std::io;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, ErrorKind, RedisError, Value};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::error::Fault;

/// How long to wait for an unprompted error. A server with too many clients may be slow to send it; without it the failure
/// would be reported as a wrong password.
const GREETING_TIMEOUT: Duration = Duration::from_millis(500);
const GREETING_BYTES_MAX: usize = 256;

/// The settings to check when a server rejects the login.
pub(crate) const CHECK_LOGIN: &str = "check counters.user and counters.password";

/// Why there is no connection.
#[derive(Clone, Debug)]
pub(crate) struct DialError {
    pub(crate) fault: Fault,
    pub(crate) message: String,
}

/// Opens a connection. Also returns the round trip of a `PING`, unless the server replied that it is not ready.
pub(crate) async fn dial(
    client: &Client,
    connect_timeout: Duration,
    response_timeout: Duration,
) -> Result<(MultiplexedConnection, Option<Duration>), DialError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(connect_timeout))
        .set_response_timeout(Some(response_timeout));
    let ping = async {
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        // Without a password there is no handshake: a server that requires one, or has too many clients, replies with an
        // error here, and the connection is useless.
        let started = Instant::now();
        match connection.send_packed_command(&redis::cmd("PING")).await? {
            Value::ServerError(error) if matches!(error.code(), "NOAUTH" | "ERR" | "DENIED") => {
                Err(error.into())
            }
            Value::ServerError(_) => Ok((connection, None)),
            _ => Ok((connection, Some(started.elapsed()))),
        }
    };
    // A frozen server accepts connections and never replies.
    match timeout(connect_timeout.saturating_mul(2), ping).await {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(error)) => Err(explain(client, &error, CHECK_LOGIN).await),
        Err(_) => Err(DialError {
            fault: Fault::NotSent,
            message: "the server accepts connections but does not reply".to_owned(),
        }),
    }
}

/// Explains a failed connection. `check` names the settings of the login.
pub(crate) async fn explain(client: &Client, error: &RedisError, check: &str) -> DialError {
    let address = client.get_connection_info().addr();
    let is_closed = is_closed(error);
    if is_closed || error.kind() == ErrorKind::AuthenticationFailed {
        match greeting_error(address).await {
            Some(line) if line.starts_with("DENIED") => {
                let fault = Fault::from_line(&line);
                return DialError { message: fault.to_string(), fault };
            }
            Some(line) => return DialError { fault: Fault::NotSent, message: line },
            None => {}
        }
    }
    let fault = Fault::from_dial(error, client, check);
    let message = match (&fault, address) {
        (Fault::Misconfigured(_), _) => fault.to_string(),
        // A plain server waits for the end of the line that it takes the TLS handshake for.
        (_, ConnectionAddr::TcpTls { .. }) if is_closed || is_not_tls(error) || error.is_timeout() => {
            format!("{error} (does this server speak TLS? TLS is enabled here)")
        }
        (_, ConnectionAddr::Tcp(..)) if is_closed || error.kind() == ErrorKind::Parse => {
            format!("{error} (does this server speak TLS? TLS is not enabled here)")
        }
        _ => error.to_string(),
    };
    DialError { fault, message }
}

/// Whether the server closed the connection, as opposed to not listening.
fn is_closed(error: &RedisError) -> bool {
    if error.is_connection_refusal() {
        return false;
    }
    let kinds = [io::ErrorKind::BrokenPipe, io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset];
    error.is_connection_dropped() || Fault::io_cause(error).is_some_and(|cause| kinds.contains(&cause.kind()))
}

/// Whether the server's first bytes were not TLS.
fn is_not_tls(error: &RedisError) -> bool {
    let cause = Fault::io_cause(error).and_then(io::Error::get_ref);
    let cause = cause.and_then(|cause| cause.downcast_ref::<rustls::Error>());
    matches!(cause, Some(rustls::Error::InvalidMessage(_)))
}

/// The error that a server sends before any command: protected mode, or too many clients.
async fn greeting_error(address: &ConnectionAddr) -> Option<String> {
    let ConnectionAddr::Tcp(host, port) = address else { return None };
    let mut bytes = [0; GREETING_BYTES_MAX];
    let read = async {
        let mut stream = TcpStream::connect((host.as_str(), *port)).await.ok()?;
        stream.read(&mut bytes).await.ok()
    };
    let length = timeout(GREETING_TIMEOUT, read).await.ok().flatten()?;
    let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
    Some(text.strip_prefix('-')?.lines().next()?.to_owned())
}
