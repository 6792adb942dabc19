//! The order of the collective operations of one communicator: its threads take turns.
//!
//! One word says whether a thread has the turn, and whether others wait for it. The thread that
//! gives the turn back learns that from the same exchange, so that a turn for which no thread waits
//! costs two exchanges and no fence.
use super::timed::Underway;
use crate::collective::Inner;
use crate::word::Word;
use core::ops::Deref;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use core::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// A thread may wait for it; perhaps none does any more.
const AWAITED: u32 = 2;

/// Takes the turn if it is free.
#[inline]
fn try_take(word: &impl Word<Value = u32>) -> bool {
    // pairs with the exchange in `give_back`: this thread sees what the one before did.
    word.compare_exchange(FREE, TAKEN, Acquire, Relaxed).is_ok()
}

/// Takes the turn if it is free. Otherwise the thread that has it knows that another waits, and
/// rings when it gives it back: a thread that arms its bell before may sleep after.
fn take_or_await(word: &impl Word<Value = u32>) -> bool {
    // This thread cannot know whether it is the last that waits, so it says that another does.
    // pairs with the exchange in `give_back`, both ways: Acquire as in `try_take`, Release because
    // the bell was armed.
    word.swap(AWAITED, AcqRel) == FREE
}

/// Gives the turn back; whether threads are to be woken. All of them: each that finds the turn
/// taken says again that it waits.
#[inline]
fn give_back(word: &impl Word<Value = u32>) -> bool {
    // pairs with the exchanges above: Release is for the next thread, Acquire for the bells of
    // those that wait.
    word.swap(FREE, AcqRel) == AWAITED
}

/// Where a communicator is in the order of its operations. What the word does not say is read and
/// written by the thread whose turn it is.
#[derive(Debug, Default)]
pub(crate) struct Sequence {
    word: AtomicU32,
    /// Operations since ranks last waited for all others.
    pub(crate) one_sided: AtomicU32,
    /// Barriers in shared memory that were passed, and exchanges by the collective block: what
    /// ranks agreed on, and offers.
    pub(crate) barriers: AtomicU64,
    pub(crate) shares: AtomicU64,
    pub(crate) offers: AtomicU64,
    underway: Mutex<Option<Underway>>,
}

impl Sequence {
    /// The barrier whose own deadline passed.
    pub(crate) fn underway(&self) -> MutexGuard<'_, Option<Underway>> {
        self.underway.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The turn of one operation; the next is another thread's when it is dropped.
pub(crate) struct Turn<'a> {
    inner: &'a Inner,
    /// Another value has it, and gives it back.
    is_lent: bool,
}

impl<'a> Turn<'a> {
    /// A value of it gives the turn back, so there is none where it was not taken.
    #[inline]
    fn taken(inner: &'a Inner) -> Self {
        Self { inner, is_lent: false }
    }

    #[inline]
    pub(super) fn try_take(inner: &'a Inner) -> Option<Self> {
        try_take(&inner.sequence.word).then(|| Self::taken(inner))
    }

    /// As [`try_take`](Self::try_take), in a wait that ends when this rank's bell rings.
    pub(super) fn take_or_await(inner: &'a Inner) -> Option<Self> {
        take_or_await(&inner.sequence.word).then(|| Self::taken(inner))
    }

    /// For one of several operations between which no other thread has the turn.
    pub(super) fn lend(&self) -> Turn<'_> {
        Turn { inner: self.inner, is_lent: true }
    }
}

impl Deref for Turn<'_> {
    type Target = Sequence;

    #[inline]
    fn deref(&self) -> &Sequence {
        &self.inner.sequence
    }
}

impl Drop for Turn<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.is_lent && give_back(&self.inner.sequence.word) {
            let transport = &self.inner.engine.transport;
            transport.sleep.ring(transport.job.rank);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Turn;
    use crate::config::Config;
    use crate::window::accumulate_tests::with_universe;

    #[test]
    fn a_turn_is_given_back_by_the_one_that_took_it() {
        with_universe(Config::default(), |universe| {
            let world = universe.world();
            let turn = world.turn("a test").unwrap();
            drop(turn.lend());
            // A caller that does not get it gives none back.
            for _ in 0..2 {
                assert!(Turn::try_take(&world.inner).is_none());
                assert!(Turn::take_or_await(&world.inner).is_none());
            }
            drop(turn);
            assert!(Turn::try_take(&world.inner).is_some());
        });
    }
}

#[cfg(all(test, loom))]
#[path = "turn_loom_tests.rs"]
mod loom_tests;
