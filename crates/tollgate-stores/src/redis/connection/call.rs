//! A queued call, and whether it has been sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::{Cmd, Value};
use tokio::sync::oneshot;

use super::error::Fault;

/// A command in the queue of a connection.
pub(crate) struct Call {
    pub(crate) command: Cmd,
    /// Whether `ASKING` precedes the command: the key is being migrated to this server.
    pub(crate) asking: bool,
    pub(crate) reply: oneshot::Sender<Result<Value, Fault>>,
    pub(crate) fate: SendOrCancel,
}

impl Call {
    /// Marks the call as sent. False if the caller has stopped waiting: then it must not be sent.
    pub(crate) fn start(&self) -> bool {
        !self.reply.is_closed() && self.fate.decide()
    }
}

/// Decides between sending a call and canceling it. A call that is canceled first was certainly not charged.
#[derive(Clone, Default)]
pub(crate) struct SendOrCancel(Arc<AtomicBool>);

impl SendOrCancel {
    /// True for the first of the two sides.
    pub(crate) fn decide(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}
