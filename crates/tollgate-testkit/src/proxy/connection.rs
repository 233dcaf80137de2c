//! One connection through the proxy: forwards requests and replies, subject to the current fault.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::{Fault, Shared};
use crate::resp::{command_name, frame_length};

const CHUNK_BYTES_MAX: usize = 16 * 1024;
const CHUNKS_QUEUED_MAX: usize = 256;

// Starts with no RESP type and is not UTF-8. Ends with a line break for clients that read whole lines.
const GARBAGE: &[u8] = b"\x00\xff\x16\x03\xfe\x80\xc1\x07\xed\xa0\x80garbage\x00\xf5\r\n";

#[derive(Debug)]
pub(super) struct Connection {
    client: TcpStream,
    server: TcpStream,
    shared: Arc<Shared>,
    /// Forwarded commands without a reply yet: replies of the proxy must queue behind theirs.
    awaited: Mutex<u64>,
    none_awaited: Condvar,
    /// Bytes were lost or replaced: to be closed when the fault ends.
    tainted: AtomicBool,
    /// To be dropped without shutdown: closing a socket with unread bytes sends a reset.
    resetting: AtomicBool,
    /// Discards everything in both directions.
    silent: AtomicBool,
    /// Names of the commands sent on this connection.
    commands: Mutex<BTreeSet<Vec<u8>>>,
}

/// A reply on its way to the client.
enum Chunk {
    Bytes(Instant, Vec<u8>),
    /// The server has closed the connection.
    End,
}

/// Serves until either side closes.
pub(super) fn run(connection: Arc<Connection>) {
    let (chunks, queue) = sync_channel(CHUNKS_QUEUED_MAX);
    let (replies, delivery) = (Arc::clone(&connection), Arc::clone(&connection));
    let answers = chunks.clone();
    thread::spawn(move || replies.collect_replies(&chunks));
    thread::spawn(move || delivery.deliver_replies(&queue));
    Requests { connection, answers, pending: Vec::new(), is_resp: None }.run();
}

impl Connection {
    pub(super) fn new(client: TcpStream, server: TcpStream, shared: Arc<Shared>) -> Self {
        Self {
            client,
            server,
            shared,
            awaited: Mutex::new(0),
            none_awaited: Condvar::new(),
            tainted: AtomicBool::new(false),
            resetting: AtomicBool::new(false),
            silent: AtomicBool::new(false),
            commands: Mutex::default(),
        }
    }

    /// Silences the connection if it has sent this command and is not silent yet; returns whether it did.
    pub(super) fn silence(&self, command: &str) -> bool {
        let name = command.to_ascii_uppercase().into_bytes();
        self.commands().contains(&name) && !self.silent.swap(true, Ordering::SeqCst)
    }

    fn is_silent(&self) -> bool {
        self.silent.load(Ordering::SeqCst)
    }

    fn commands(&self) -> MutexGuard<'_, BTreeSet<Vec<u8>>> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn close(&self) {
        let _ = (self.client.shutdown(Shutdown::Both), self.server.shutdown(Shutdown::Both));
    }

    pub(super) fn is_tainted(&self) -> bool {
        self.tainted.load(Ordering::SeqCst)
    }

    pub(super) fn taint(&self) {
        self.tainted.store(true, Ordering::SeqCst);
    }

    fn collect_replies(&self, chunks: &SyncSender<Chunk>) {
        let mut counter = ReplyCounter::default();
        let mut buffer = vec![0; CHUNK_BYTES_MAX];
        while let Ok(length @ 1..) = (&self.server).read(&mut buffer) {
            let bytes = buffer[..length].to_vec();
            let replies = counter.count(&bytes);
            if chunks.send(Chunk::Bytes(Instant::now(), bytes)).is_err() {
                break;
            }
            self.settle(replies); // after queueing: the proxy's own replies must not overtake
        }
        let _ = chunks.send(Chunk::End);
        self.settle(u64::MAX);
    }

    fn settle(&self, replies: u64) {
        let mut awaited = self.awaited();
        *awaited = awaited.saturating_sub(replies);
        if *awaited == 0 {
            self.none_awaited.notify_all();
        }
    }

    fn awaited(&self) -> MutexGuard<'_, u64> {
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn deliver_replies(&self, queue: &Receiver<Chunk>) {
        while let Ok(Chunk::Bytes(read_at, bytes)) = queue.recv() {
            if self.deliver(&bytes, read_at).is_err() {
                break;
            }
        }
        while let (Fault::HalfOpen | Fault::BlackHoleReplies, seen) = self.shared.fault() {
            self.shared.wait_for_change(seen, None);
        }
        if !self.resetting.load(Ordering::SeqCst) {
            self.close();
        }
    }

    fn deliver(&self, mut bytes: &[u8], read_at: Instant) -> io::Result<()> {
        while !bytes.is_empty() && !self.is_silent() {
            let (fault, seen) = self.shared.fault();
            match fault {
                Fault::None | Fault::Reply(_) | Fault::ReplyTo(..) => self.write_all(&mut bytes)?,
                Fault::Latency(delay) => {
                    if !self.shared.wait_for_change(seen, Some(read_at + delay)) {
                        self.write_all(&mut bytes)?;
                    }
                }
                Fault::Trickle(pause) => self.write_one(&mut bytes, seen, pause)?,
                Fault::HalfOpen => {
                    self.shared.wait_for_change(seen, None);
                }
                Fault::BlackHoleReplies => self.replace(&mut bytes, b"", seen)?,
                Fault::Garbage => self.replace(&mut bytes, GARBAGE, seen)?,
                Fault::Drop | Fault::Reset => return Err(io::ErrorKind::ConnectionReset.into()),
            }
        }
        Ok(())
    }

    fn write_all(&self, bytes: &mut &[u8]) -> io::Result<()> {
        (&self.client).write_all(bytes)?;
        *bytes = b"";
        Ok(())
    }

    fn write_one(&self, bytes: &mut &[u8], seen: u64, pause: Duration) -> io::Result<()> {
        let (mut first, rest) = bytes.split_at(1);
        self.write_all(&mut first)?;
        *bytes = rest;
        self.shared.wait_for_change(seen, Some(Instant::now() + pause));
        Ok(())
    }

    fn replace(&self, bytes: &mut &[u8], replacement: &[u8], seen: u64) -> io::Result<()> {
        if self.shared.taint(self, seen) {
            *bytes = b"";
            (&self.client).write_all(replacement)?;
        }
        Ok(())
    }
}

/// The direction from client to server.
struct Requests {
    connection: Arc<Connection>,
    answers: SyncSender<Chunk>,
    /// An incomplete command.
    pending: Vec<u8>,
    /// `None` until the first byte.
    is_resp: Option<bool>,
}

impl Requests {
    fn run(mut self) {
        let mut buffer = vec![0; CHUNK_BYTES_MAX];
        // Peek before reading: under `HalfOpen` unread bytes fill the sender's window, as on a dead link; under `Reset` they
        // make the kernel send RST.
        while let Ok(1..) = self.connection.client.peek(&mut [0]) {
            let (fault, seen) = self.connection.shared.fault();
            match fault {
                Fault::HalfOpen => {
                    self.connection.shared.wait_for_change(seen, None);
                    continue;
                }
                Fault::Reset => return self.reset(),
                Fault::Drop => break,
                _ => {}
            }
            let Ok(length @ 1..) = (&self.connection.client).read(&mut buffer) else { break };
            if self.connection.is_silent() {
                continue;
            }
            self.pending.extend_from_slice(&buffer[..length]);
            if self.take(&fault).is_err() {
                break;
            }
        }
        self.end();
    }

    fn reset(&self) {
        self.connection.resetting.store(true, Ordering::SeqCst);
        let _ = self.connection.server.shutdown(Shutdown::Both); // wakes the other threads, which then drop the client
    }

    fn end(&self) {
        while let (Fault::HalfOpen, seen) = self.connection.shared.fault() {
            self.connection.shared.wait_for_change(seen, None);
        }
        let _ = self.connection.server.shutdown(Shutdown::Write); // pending replies may still arrive
    }

    /// Forwards or answers complete commands.
    fn take(&mut self, fault: &Fault) -> io::Result<()> {
        if *self.is_resp.get_or_insert(self.pending[0] == b'*') {
            self.take_commands(fault)
        } else {
            self.take_bytes(fault)
        }
    }

    fn take_commands(&mut self, fault: &Fault) -> io::Result<()> {
        let pending = std::mem::take(&mut self.pending);
        let (mut sent, mut at, mut commands) = (0, 0, 0);
        while let Ok(Some(length)) = frame_length(&pending[at..]) {
            let start = at;
            at += length;
            if let Some(name) = command_name(&pending[start..at]) {
                self.connection.commands().insert(name.to_ascii_uppercase());
            }
            match fault.answer_to(&pending[start..at]) {
                None => commands += 1,
                Some(answer) => {
                    self.forward(&pending[sent..start], std::mem::take(&mut commands))?;
                    self.answer(answer)?;
                    sent = at;
                }
            }
        }
        self.forward(&pending[sent..at], commands)?;
        self.pending = pending[at..].to_vec();
        if frame_length(&self.pending).is_err() {
            self.is_resp = Some(false); // let the server report the error
            return self.take_bytes(fault);
        }
        Ok(())
    }

    fn take_bytes(&mut self, fault: &Fault) -> io::Result<()> {
        let pending = std::mem::take(&mut self.pending);
        match fault {
            Fault::Reply(answer) => self.answer(answer),
            _ => self.forward(&pending, 0),
        }
    }

    fn forward(&self, bytes: &[u8], commands: u64) -> io::Result<()> {
        *self.connection.awaited() += commands;
        // Counted before sending: a client that has the reply must find its command counted.
        self.connection.shared.commands_forwarded.fetch_add(commands, Ordering::SeqCst);
        (&self.connection.server).write_all(bytes)
    }

    fn answer(&self, answer: &[u8]) -> io::Result<()> {
        let condition = &self.connection.none_awaited;
        let none_awaited = condition.wait_while(self.connection.awaited(), |awaited| *awaited > 0);
        drop(none_awaited);
        let chunk = Chunk::Bytes(Instant::now(), answer.to_vec());
        self.answers.send(chunk).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

/// Counts the replies in a stream. Push messages are not replies.
#[derive(Default)]
struct ReplyCounter {
    incomplete: Vec<u8>,
    is_lost: bool,
}

impl ReplyCounter {
    fn count(&mut self, bytes: &[u8]) -> u64 {
        if self.is_lost {
            return u64::MAX;
        }
        self.incomplete.extend_from_slice(bytes);
        let (mut at, mut replies) = (0, 0);
        loop {
            match frame_length(&self.incomplete[at..]) {
                Ok(Some(length)) => {
                    replies += u64::from(self.incomplete[at] != b'>');
                    at += length;
                }
                Ok(None) => break,
                Err(_) => {
                    self.is_lost = true;
                    return u64::MAX; // replies cannot be counted any more, so nothing waits for them
                }
            }
        }
        self.incomplete.drain(..at);
        replies
    }
}
