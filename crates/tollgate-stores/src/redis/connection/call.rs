//! A call on its way to a server, and whether it has left.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::{Cmd, Value};
use tokio::sync::oneshot;

use crate::redis::connection::error::Fault;

/// A call under way.
pub(crate) struct Call {
    pub(crate) command: Cmd,
    /// Whether the key is on its way to this server.
    pub(crate) asking: bool,
    pub(crate) answer: oneshot::Sender<Result<Value, Fault>>,
    pub(crate) departure: Departure,
}

impl Call {
    /// Has it leave, unless nobody waits for it any more.
    pub(crate) fn leaves(&self) -> bool {
        !self.answer.is_closed() && self.departure.decide()
    }
}

/// Whether a call leaves or is given up. Whoever is first decides: what was given up before it left has charged nothing.
#[derive(Clone, Default)]
pub(crate) struct Departure(Arc<AtomicBool>);

impl Departure {
    /// Whether it was not decided before.
    pub(crate) fn decide(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}
