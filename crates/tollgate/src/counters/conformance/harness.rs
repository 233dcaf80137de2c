//! The store under test and its clock.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use crate::counters::{CounterAdmin, CounterStore};
use crate::time::{Span, Timestamp};

/// A store under test and its clock.
pub trait Harness: Sync {
    /// The type of the store.
    type Store: CounterStore + CounterAdmin;

    /// The store.
    fn store(&self) -> &Self::Store;

    /// The time of the store's clock.
    fn now(&self) -> Timestamp;

    /// Lets at least `span` pass on the store's clock.
    fn advance(&self, span: Span);

    /// How far the store's clock may advance by itself during a few dozen calls; zero if it uses the caller's clock.
    fn drift(&self) -> Span {
        Span::ZERO
    }

    /// Runs a future to completion. A store that needs a runtime overrides it.
    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        block_on(future)
    }
}

/// The harness of a store that uses the caller's clock.
pub struct ManualClock<S> {
    store: S,
    now: AtomicU64,
}

impl<S> ManualClock<S> {
    /// Starts the clock on the first day of 2026.
    pub fn new(store: S) -> Self {
        ManualClock { store, now: AtomicU64::new(Timestamp::from_secs(1_767_225_600).as_micros()) }
    }
}

impl<S: CounterStore + CounterAdmin> Harness for ManualClock<S> {
    type Store = S;

    fn store(&self) -> &S {
        &self.store
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.now.load(Ordering::Relaxed))
    }

    fn advance(&self, span: Span) {
        self.now.fetch_add(span.as_micros(), Ordering::Relaxed);
    }
}

/// Runs a future to completion on this thread.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}
