//! Commands that a server rejects for want of permission, until they succeed again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use redis::Value;
use tracing::warn;

use crate::redis::connection::error::{Cause, Fault};

/// How long a rejected decision is reported. Bounded, because a node taken out of rotation for it sees no further
/// decisions and could not learn that the problem is fixed.
const DECISION_REPORTED_FOR: Duration = Duration::from_secs(5);
/// The same for other commands, some of which run only every few seconds.
const ADMIN_REPORTED_FOR: Duration = Duration::from_secs(20);
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// What a server has rejected lately.
#[derive(Default)]
pub(super) struct Rejections {
    decision: ArcSwapOption<Rejected>,
    admin: ArcSwapOption<Rejected>,
    logged_at: Mutex<Option<Instant>>,
}

struct Rejected {
    fault: Fault,
    /// The command, unless it was a decision.
    command: Option<Box<[u8]>>,
    at: Instant,
}

impl Rejected {
    /// Whether success of this command ends the rejection. A cluster server addressed as a single one serves its own slots
    /// and redirects the others, so success proves nothing there.
    fn ends_with(&self, command: Option<&[u8]>) -> bool {
        self.command.as_deref() == command && self.fault.cause() != Some(Cause::Topology)
    }
}

impl Rejections {
    pub(super) fn recent_decision(&self) -> Option<Arc<Fault>> {
        recent(&self.decision, DECISION_REPORTED_FOR)
    }

    pub(super) fn recent_admin(&self) -> Option<Arc<Fault>> {
        recent(&self.admin, ADMIN_REPORTED_FOR)
    }

    pub(super) fn reject_decisions(&self, fault: &Fault) {
        self.decision.store(Some(Arc::new(Rejected {
            fault: fault.clone(),
            command: None,
            at: Instant::now(),
        })));
    }

    /// Records the outcome of a command; `None` stands for a decision.
    pub(super) fn record(&self, server: &str, outcome: &Result<Value, Fault>, command: Option<Box<[u8]>>) {
        let last = if command.is_some() { &self.admin } else { &self.decision };
        match outcome {
            Err(fault) if fault.is_permission() => {
                if command.is_none() {
                    self.log(server, fault);
                }
                last.store(Some(Arc::new(Rejected { fault: fault.clone(), command, at: Instant::now() })));
            }
            Ok(_) if last.load().as_ref().is_some_and(|last| last.ends_with(command.as_deref())) => {
                last.store(None);
            }
            _ => {}
        }
    }

    fn log(&self, server: &str, fault: &Fault) {
        let now = Instant::now();
        let mut logged_at = self.logged_at.lock();
        if logged_at.is_none_or(|at| now.duration_since(at) >= LOG_INTERVAL) {
            *logged_at = Some(now);
            warn!(%server, reason = %fault, "redis: server rejects decisions");
        }
    }
}

fn recent(last: &ArcSwapOption<Rejected>, reported_for: Duration) -> Option<Arc<Fault>> {
    let rejected = last.load_full().filter(|rejected| rejected.at.elapsed() < reported_for)?;
    Some(Arc::new(rejected.fault.clone()))
}
