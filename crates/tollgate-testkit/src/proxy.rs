//! A TCP proxy that can be told to misbehave, while connections are open.
//!
//! Three threads serve a connection (`proxy/connection.rs`): one takes requests from the client, one takes
//! replies from the server, one hands replies to the client. The last two are apart so that `Latency` delays each
//! reply by its own due time; a single thread sleeping between read and write would add up to twice the delay.
//!
//! A fault never does what a network cannot do. Bytes that were held back go on, in order, when the fault ends;
//! a connection whose bytes were lost or falsified is closed then, so that no later reply can be taken for that
//! of an earlier command. Requests that begin with `*` are RESP and forwarded command by command; with
//! anything else (TLS, SQL, HTTP) the proxy passes bytes as they come.

mod connection;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::port::listen;
use crate::resp::command_name;
use connection::Connection;

const CONNECT_DEADLINE: Duration = Duration::from_secs(5);

/// What is wrong with the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    #[default]
    None,
    /// Each reply arrives this much later. Replies overtake nothing and do not add up.
    Latency(Duration),
    /// Open connections are closed, new ones are accepted and closed at once.
    Drop,
    /// A connection is reset (`RST`) as soon as the client sends something, or closed when the server does.
    Reset,
    /// Nothing is forwarded either way, not even the end of a connection. What was held goes on afterwards.
    HalfOpen,
    /// Replies arrive byte by byte, with this pause after each.
    Trickle(Duration),
    /// Requests reach the server, replies are lost. Connections that lost some are closed afterwards.
    BlackHoleReplies,
    /// Requests reach the server, but what comes back is no RESP. Such connections are closed afterwards.
    Garbage,
    /// Every command is answered with these bytes and does not reach the server. See [`Fault::reply`].
    Reply(Vec<u8>),
    /// Commands of this name, in either case, are answered with these bytes; the others pass.
    ReplyTo(String, Vec<u8>),
}

impl Fault {
    /// Every command is answered with this line: `Fault::reply("-LOADING Redis is loading the dataset in memory")`.
    pub fn reply(line: impl AsRef<str>) -> Self {
        Self::Reply(ended(line.as_ref()))
    }

    /// Commands of this name are answered with this line; the others, a handshake for instance, pass.
    pub fn reply_to(command: &str, line: impl AsRef<str>) -> Self {
        Self::ReplyTo(command.to_owned(), ended(line.as_ref()))
    }

    /// The proxy's own answer to a command, if it does not reach the server.
    fn answer_to(&self, request: &[u8]) -> Option<&[u8]> {
        match self {
            Self::Reply(reply) => Some(reply),
            Self::ReplyTo(command, reply) => {
                command_name(request)?.eq_ignore_ascii_case(command.as_bytes()).then_some(reply)
            }
            _ => None,
        }
    }
}

fn ended(line: &str) -> Vec<u8> {
    format!("{}\r\n", line.trim_end()).into_bytes()
}

/// A proxy on a loopback port of its own, stopped on drop.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

impl FaultProxy {
    /// Starts a proxy that forwards to `server`, at first without a fault.
    ///
    /// # Panics
    ///
    /// If there is no port to listen on.
    pub fn in_front_of(server: SocketAddr) -> Self {
        // A port of our own: a test that drops its proxy must not find somebody else's server there.
        let listener = listen();
        let address = listener.local_addr().expect("a bound address");
        let shared = Arc::new(Shared::default());
        let acceptor = thread::spawn({
            let shared = Arc::clone(&shared);
            move || accept(&listener, server, &shared)
        });
        Self { address, shared, acceptor: Some(acceptor) }
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Switches the fault. What a client or the server sends after this returns meets the new one.
    pub fn set(&self, fault: Fault) {
        self.shared.set(fault);
    }

    /// Silences one connection for good, and no other: the oldest that is open and not silent on which a command of this
    /// name was sent. What either side says on it from now on is lost, and neither is told. Whether there was one.
    pub fn silence(&self, command: &str) -> bool {
        let state = self.shared.state();
        let open = state.connections.iter().filter_map(Weak::upgrade);
        open.into_iter().any(|connection| connection.silence(command))
    }

    /// How many connections clients have opened so far, including those closed at once.
    pub fn connections_opened(&self) -> usize {
        self.shared.opened.load(Ordering::SeqCst)
    }

    /// How many bytes went through so far, both ways together.
    pub fn bytes_forwarded(&self) -> u64 {
        self.shared.bytes_forwarded.load(Ordering::SeqCst)
    }

    /// How many commands reached the server so far.
    pub fn commands_forwarded(&self) -> u64 {
        self.shared.commands_forwarded.load(Ordering::SeqCst)
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        self.set(Fault::Drop);
        let _ = TcpStream::connect_timeout(&self.address, CONNECT_DEADLINE); // wakes the acceptor
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

fn accept(listener: &TcpListener, server: SocketAddr, shared: &Arc<Shared>) {
    for client in listener.incoming() {
        if shared.stopped.load(Ordering::SeqCst) {
            return;
        }
        let Ok(client) = client else { continue };
        shared.opened.fetch_add(1, Ordering::SeqCst);
        let shared = Arc::clone(shared);
        // Connecting to a server that is down or frozen must not keep the next client waiting.
        thread::spawn(move || serve(client, server, &shared));
    }
}

fn serve(client: TcpStream, server: SocketAddr, shared: &Arc<Shared>) {
    if shared.fault().0 == Fault::Drop {
        return;
    }
    // A server that is down closes the connection: the client has been accepted already.
    let Ok(server) = TcpStream::connect_timeout(&server, CONNECT_DEADLINE) else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let connection = Arc::new(Connection::new(client, server, Arc::clone(shared)));
    shared.admit(&connection);
    connection::run(connection);
}

/// What all connections of a proxy share.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    fault_changed: Condvar,
    stopped: AtomicBool,
    opened: AtomicUsize,
    bytes_forwarded: AtomicU64,
    commands_forwarded: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    fault: Fault,
    /// How often the fault was set: tells a waiting thread that it was, even to the same.
    changes: u64,
    /// Weak, for a connection is closed by its last user: only so can it end in a reset.
    connections: Vec<Weak<Connection>>,
}

impl Shared {
    fn set(&self, fault: Fault) {
        let mut state = self.state();
        let drops = fault == Fault::Drop;
        state.fault = fault;
        state.changes += 1;
        let open = state.connections.iter().filter_map(Weak::upgrade);
        open.filter(|connection| drops || connection.is_tainted()).for_each(|connection| connection.close());
        self.fault_changed.notify_all();
    }

    /// The fault, and how often it was set before.
    fn fault(&self) -> (Fault, u64) {
        let state = self.state();
        (state.fault.clone(), state.changes)
    }

    /// Waits until the fault is set again or the time has come; whether the fault was set.
    fn wait_for_change(&self, seen: u64, until: Option<Instant>) -> bool {
        let mut state = self.state();
        while state.changes == seen {
            let left = until
                .map_or(Duration::from_hours(1), |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return false;
            }
            state = self.fault_changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn admit(&self, connection: &Arc<Connection>) {
        let mut state = self.state();
        if state.fault == Fault::Drop {
            connection.close(); // set while we were connecting
        }
        state.connections.retain(|connection| connection.strong_count() > 0);
        state.connections.push(Arc::downgrade(connection));
    }

    /// Marks a connection as one to be closed with the next fault; not if that has come already.
    fn taint(&self, connection: &Connection, seen: u64) -> bool {
        let state = self.state();
        let in_time = state.changes == seen;
        if in_time {
            connection.taint();
        }
        in_time
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
