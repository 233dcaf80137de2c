//! The mutex of the memory counters; in loom tests, that of loom.

#[cfg(not(loom))]
use std::sync::Mutex;
#[cfg(not(loom))]
pub(crate) use std::sync::MutexGuard;

#[cfg(loom)]
use loom::sync::Mutex;
#[cfg(loom)]
pub(crate) use loom::sync::MutexGuard;

/// A mutex on cache lines of its own, to avoid false sharing.
#[repr(align(128))]
pub(crate) struct PaddedMutex<T>(Mutex<T>);

impl<T> PaddedMutex<T> {
    pub(crate) fn new(value: T) -> Self {
        PaddedMutex(Mutex::new(value))
    }

    /// Locks, ignoring poison: no code panics while it holds a lock.
    #[inline]
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
