//! Makes a connection, and finds out in words why there is none.
//!
//! The client library tells a connection that is closed on arrival as a broken pipe, and keeps the server's words about a
//! login to itself. Some servers say why before anything is asked of them: that is listened for once more, in silence.

use std::io;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, ErrorKind, RedisError, Value};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::redis::connection::error::Fault;

/// How long a server is listened to that may have something to say before it is asked. One that has too many clients may well be
/// slow to say so, and if it is not heard its refusal is taken for one of our password.
const LISTEN: Duration = Duration::from_millis(500);
/// As much of it as is heard.
const HEARD_MAX: usize = 256;

/// Why there is no connection.
#[derive(Clone, Debug)]
pub(crate) struct NoConnection {
    pub(crate) fault: Fault,
    /// For people.
    pub(crate) words: String,
}

/// Makes a connection; and how long the server took to answer on it, if it is ready.
pub(crate) async fn dial(
    client: &Client,
    connect_timeout: Duration,
    silence_max: Duration,
) -> Result<(MultiplexedConnection, Option<Duration>), NoConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(connect_timeout))
        .set_response_timeout(Some(silence_max));
    let greeted = async {
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        // Without a password there is no handshake, and a server that wants one, or has too many clients, says so
        // here: such a connection stays useless even if the server thinks better of it.
        let asked = Instant::now();
        match connection.send_packed_command(&redis::cmd("PING")).await? {
            Value::ServerError(error) if matches!(error.code(), "NOAUTH" | "ERR" | "DENIED") => {
                Err(error.into())
            }
            Value::ServerError(_) => Ok((connection, None)),
            _ => Ok((connection, Some(asked.elapsed()))),
        }
    };
    // A frozen server accepts connections and says nothing.
    match timeout(connect_timeout.saturating_mul(2), greeted).await {
        Ok(Ok(greeted)) => Ok(greeted),
        Ok(Err(error)) => Err(explain(client, &error).await),
        Err(_) => Err(NoConnection {
            fault: Fault::NotSent,
            words: "it takes connections and says nothing".to_owned(),
        }),
    }
}

/// Why a connection could not be made, or was of no use.
pub(crate) async fn explain(client: &Client, error: &RedisError) -> NoConnection {
    let address = client.get_connection_info().addr();
    let is_closed = is_closed(error);
    if is_closed || error.kind() == ErrorKind::AuthenticationFailed {
        match hear(address).await {
            Some(line) if line.starts_with("DENIED") => {
                let fault = Fault::from_line(&line);
                return NoConnection { words: fault.words(), fault };
            }
            Some(line) => return NoConnection { fault: Fault::NotSent, words: line },
            None => {}
        }
    }
    let fault = Fault::from_dial(error);
    let words = match (&fault, address) {
        (Fault::Misconfigured(words), _) => words.clone(),
        // A server that does not waits for the end of what it takes for a line.
        (_, ConnectionAddr::TcpTls { .. }) if is_closed || is_no_tls(error) || error.is_timeout() => {
            format!("{error} (does this server speak TLS? We do)")
        }
        (_, ConnectionAddr::Tcp(..)) if is_closed || error.kind() == ErrorKind::Parse => {
            format!("{error} (does this server speak TLS? We do not)")
        }
        _ => error.to_string(),
    };
    NoConnection { fault, words }
}

/// Whether the other side hung up. Where nobody listens there is none.
fn is_closed(error: &RedisError) -> bool {
    if error.is_connection_refusal() {
        return false;
    }
    let kinds = [io::ErrorKind::BrokenPipe, io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset];
    error.is_connection_dropped() || Fault::cause(error).is_some_and(|cause| kinds.contains(&cause.kind()))
}

/// Whether what came back was no TLS.
fn is_no_tls(error: &RedisError) -> bool {
    let cause = Fault::cause(error).and_then(io::Error::get_ref);
    let cause = cause.and_then(|cause| cause.downcast_ref::<rustls::Error>());
    matches!(cause, Some(rustls::Error::InvalidMessage(_)))
}

/// What a server says to somebody who says nothing: that it takes nobody from here, or nobody more.
async fn hear(address: &ConnectionAddr) -> Option<String> {
    let ConnectionAddr::Tcp(host, port) = address else { return None };
    let mut heard = [0; HEARD_MAX];
    let listen = async {
        let mut stream = TcpStream::connect((host.as_str(), *port)).await.ok()?;
        stream.read(&mut heard).await.ok()
    };
    let length = timeout(LISTEN, listen).await.ok().flatten()?;
    let text = String::from_utf8_lossy(&heard[..length]).into_owned();
    Some(text.strip_prefix('-')?.lines().next()?.to_owned())
}
