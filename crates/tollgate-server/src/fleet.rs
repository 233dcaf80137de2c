//! This node among others that share counters on Redis.

pub(crate) mod membership;
pub(crate) mod reconcile;
pub(crate) mod top;
