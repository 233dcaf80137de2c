//! A TCP proxy that injects faults into open connections.
//!
//! Three threads serve a connection (`proxy/connection.rs`): one forwards requests, one reads replies, one writes replies.
//! The last two are separate so that `Latency` delays each reply by the same time; a single thread that sleeps between read
//! and write would delay up to twice as long.
//!
//! Faults are those of real networks. Bytes that a fault holds back are delivered in order when it ends. A connection whose
//! bytes were lost or replaced is closed then, so that no later reply can be taken for that of an earlier command. Requests
//! that start with `*` are parsed as RESP and forwarded command by command; other protocols are forwarded as bytes.

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

/// A network or server fault.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// No fault.
    #[default]
    None,
    /// Delays each reply by this time. Order is kept; delays of pipelined replies do not add up.
    Latency(Duration),
    /// Closes open connections, and new ones as soon as they are accepted.
    Drop,
    /// Resets a connection (`RST`) when the client sends something; closes it when the server does.
    Reset,
    /// Forwards nothing in either direction, not even the end of a connection, until the fault ends.
    HalfOpen,
    /// Sends replies byte by byte, with this pause after each.
    Trickle(Duration),
    /// Forwards requests and discards replies. Affected connections are closed afterwards.
    BlackHoleReplies,
    /// Forwards requests and replaces replies by bytes that are not RESP. Affected connections are closed afterwards.
    Garbage,
    /// Answers every command with these bytes instead of forwarding it. See [`Fault::reply`].
    Reply(Vec<u8>),
    /// Answers commands of this name, in any case, with these bytes; forwards the others.
    ReplyTo(String, Vec<u8>),
}

impl Fault {
    /// Answers every command with this line: `Fault::reply("-LOADING Redis is loading the dataset in memory")`.
    pub fn reply(line: impl AsRef<str>) -> Self {
        Self::Reply(line_bytes(line.as_ref()))
    }

    /// Answers commands of this name with this line; forwards the others, such as a handshake.
    pub fn reply_to(command: &str, line: impl AsRef<str>) -> Self {
        Self::ReplyTo(command.to_owned(), line_bytes(line.as_ref()))
    }

    /// The proxy's reply to a command that is not forwarded.
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

fn line_bytes(line: &str) -> Vec<u8> {
    format!("{}\r\n", line.trim_end()).into_bytes()
}

/// A proxy on a loopback port, stopped on drop.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

impl FaultProxy {
    /// Starts a proxy that forwards to `server`, without a fault.
    pub fn in_front_of(server: SocketAddr) -> Self {
        // Never reused in this process: a test that drops its proxy must not find another server there.
        let listener = listen();
        let address = listener.local_addr().expect("a bound address");
        let shared = Arc::new(Shared::default());
        let acceptor = thread::spawn({
            let shared = Arc::clone(&shared);
            move || accept(&listener, server, &shared)
        });
        Self { address, shared, acceptor: Some(acceptor) }
    }

    /// The address for clients.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the fault. It applies to everything that client or server send after this call.
    pub fn set(&self, fault: Fault) {
        self.shared.set(fault);
    }

    /// Silently discards all further bytes, in both directions, on the oldest open connection that has sent this command and is
    /// not silent yet. Returns whether there was one.
    pub fn silence(&self, command: &str) -> bool {
        let state = self.shared.state();
        let open = state.connections.iter().filter_map(Weak::upgrade);
        open.into_iter().any(|connection| connection.silence(command))
    }

    /// Connections accepted so far, including those closed at once.
    pub fn connections_opened(&self) -> usize {
        self.shared.opened.load(Ordering::SeqCst)
    }

    /// Commands forwarded to the server so far.
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
        // Connecting to a server that is down or frozen must not block the next client.
        thread::spawn(move || serve(client, server, &shared));
    }
}

fn serve(client: TcpStream, server: SocketAddr, shared: &Arc<Shared>) {
    if shared.fault().0 == Fault::Drop {
        return;
    }
    // If the server is down, the connection closes: the client has already been accepted.
    let Ok(server) = TcpStream::connect_timeout(&server, CONNECT_DEADLINE) else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let connection = Arc::new(Connection::new(client, server, Arc::clone(shared)));
    shared.admit(&connection);
    connection::run(connection);
}

/// State shared by all connections of a proxy.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    fault_changed: Condvar,
    stopped: AtomicBool,
    opened: AtomicUsize,
    commands_forwarded: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    fault: Fault,
    /// Incremented by every `set`, so that waiting threads also notice when the same fault is set again.
    changes: u64,
    /// Weak: a connection must be closed by its last user to end in a reset.
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

    /// The fault and its change number.
    fn fault(&self) -> (Fault, u64) {
        let state = self.state();
        (state.fault.clone(), state.changes)
    }

    /// Waits until the fault is set again or `until`; returns whether it was set.
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
            connection.close(); // set during connect
        }
        state.connections.retain(|connection| connection.strong_count() > 0);
        state.connections.push(Arc::downgrade(connection));
    }

    /// Marks a connection to be closed at the next change of the fault, unless that has already happened.
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
