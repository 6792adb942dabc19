//! The lock that a thread has asked for and goes on without, until it does what others may see or
//! wait for.
//!
//! A call that asks for a lock returns before that is granted. If the thread went on to wait for
//! others, they might wait for that lock, or be granted it first: ranks that take locks in an
//! order that they agree on would wait for each other. So [`wait`] comes before each further lock
//! and each call that synchronises: where a call that waits for its lock would have waited
//! earlier. Then a thread has one such lock at most. It is the thread's and not the rank's:
//! another thread may hold what the holder of this lock waits for.
use core::cell::{Cell, RefCell};
use core::time::Duration;
use std::sync::{Arc, Weak};

/// A lock that was asked for.
pub(crate) trait Grant: Send + Sync {
    /// Waits until it is granted, or cannot be; until then at most, which gives false. What came of
    /// it is for the users of the lock.
    fn come_by(&self, until: Option<Duration>) -> bool;
}

thread_local! {
    // Beside the lock itself, because a look at what has a destructor takes longer.
    static EXPECTS: Cell<bool> = const { Cell::new(false) };
    static EXPECTED: RefCell<Option<Weak<dyn Grant>>> = const { RefCell::new(None) };
}

/// Whether this thread goes on without a lock that it asked for.
#[inline(always)]
pub(crate) fn is_expected() -> bool {
    EXPECTS.with(Cell::get)
}

/// This thread goes on without that lock, having [waited](wait) for the one before.
pub(crate) fn expect(grant: &Arc<dyn Grant>) {
    let weak = Arc::downgrade(grant);
    match EXPECTED.try_with(|expected| expected.replace(Some(weak))) {
        Ok(_) => EXPECTS.set(true),
        // It is ending, and remembers nothing more.
        Err(_) => _ = grant.come_by(None),
    }
}

/// What came of that lock is known.
pub(crate) fn settle(grant: &Arc<dyn Grant>) {
    let same = |it: &Weak<dyn Grant>| it.as_ptr().addr() == Arc::as_ptr(grant).addr();
    if EXPECTED.try_with(|expected| expected.borrow().as_ref().is_some_and(same)) == Ok(true) {
        forget();
    }
}

/// Returns when no lock is on its way to this thread; false if one still is, then.
#[inline(always)]
pub(crate) fn wait(until: Option<Duration>) -> bool {
    !is_expected() || wait_cold(until)
}

#[cold]
#[inline(never)]
fn wait_cold(until: Option<Duration>) -> bool {
    let expected = EXPECTED.try_with(|it| it.borrow().as_ref().and_then(Weak::upgrade));
    let came = expected.ok().flatten().is_none_or(|grant| grant.come_by(until));
    if came {
        forget();
    }
    came
}

fn forget() {
    _ = EXPECTED.try_with(|expected| expected.take());
    EXPECTS.set(false);
}
