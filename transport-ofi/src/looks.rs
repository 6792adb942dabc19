//! Which queues the watcher leaves to threads (ADR 100).

use crate::port::lock;
use crate::watcher::TICK;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// Looks of threads at one queue.
#[derive(Default)]
pub(crate) struct Looks {
    /// A thread of the rank, or its agent, has looked since the watcher asked, or will soon.
    looked: AtomicBool,
    /// When the watcher has seen that, the last time.
    left_at: Mutex<Option<Instant>>,
}

impl Looks {
    /// A thread looks, or will soon.
    pub(crate) fn note(&self) {
        self.looked.store(true, Relaxed);
    }

    /// Threads do something else.
    pub(crate) fn forget(&self) {
        self.looked.store(false, Relaxed);
        *lock(&self.left_at) = None;
    }

    /// Whether the watcher leaves the queue to a thread that looks: for a while from when it has
    /// seen that. What the watcher reads meanwhile would be room that the thread finds without a
    /// look.
    pub(crate) fn is_left(&self, now: Instant) -> bool {
        let mut left_at = lock(&self.left_at);
        if self.looked.swap(false, Relaxed) {
            *left_at = Some(now);
        }
        left_at.is_some_and(|at| now.saturating_duration_since(at) < TICK)
    }
}
