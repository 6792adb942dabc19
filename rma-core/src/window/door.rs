//! Which threads serve messages into this rank's part, and whether any may.
//!
//! Messages come when they come: that of an operation whose wait failed may be served long after
//! its origin gave up, whatever the ranks have agreed on since. So it is the target that keeps its
//! part to itself: a sealed part, and one that was given back, has its door shut.
#[cfg(not(loom))]
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
#[cfg(loom)]
use loom::sync::atomic::AtomicU64;

/// Set while no thread may enter. The bits below count those inside.
const SHUT: u64 = 1 << 63;

/// Of one part.
#[derive(Debug)]
pub(crate) struct Door(AtomicU64);

/// A thread that is inside, until dropped.
pub(crate) struct Entered<'d>(&'d Door);

impl Door {
    /// Open.
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Enters, unless the door is shut.
    pub(crate) fn enter(&self) -> Option<Entered<'_>> {
        // pairs with the Release in `open`: what the owner did alone is seen.
        let seen = self.0.fetch_add(1, Acquire);
        let entered = Entered(self);
        (seen & SHUT == 0).then_some(entered)
    }

    /// No thread enters any more; those inside go on, until [`is_empty`](Self::is_empty).
    pub(crate) fn shut(&self) {
        self.0.fetch_or(SHUT, Relaxed);
    }

    /// Whether no thread is inside.
    pub(crate) fn is_empty(&self) -> bool {
        // pairs with the Release in the drop of `Entered`: what was done inside is seen.
        self.0.load(Acquire) & !SHUT == 0
    }

    /// Takes [`shut`](Self::shut) back.
    pub(crate) fn open(&self) {
        // pairs with the Acquire in `enter`.
        self.0.fetch_and(!SHUT, Release);
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        // pairs with the Acquire in `is_empty`.
        self.0.0.fetch_sub(1, Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_shut_door_lets_no_message_in_and_those_inside_finish() {
        let door = Door::new();
        let inside = door.enter().unwrap();
        door.shut();
        assert!(door.enter().is_none());
        assert!(!door.is_empty(), "a refusal takes back itself only");
        drop(inside);
        assert!(door.is_empty());
        door.open();
        assert!(door.enter().is_some());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    /// What is inside is touched by one side at a time: threads that serve while the door is open,
    /// the owner from when none is inside until it opens the door again.
    #[test]
    fn loom_those_inside_and_the_owner_exclude_each_other() {
        loom::model(|| {
            let shared = Arc::new((Door::new(), UnsafeCell::new(0)));
            let server = shared.clone();
            let serves = thread::spawn(move || {
                for _ in 0..2 {
                    if let Some(_inside) = server.0.enter() {
                        // Loom tells if it is not exclusive.
                        server.1.with_mut(|_| ());
                    }
                }
            });
            let (door, inside) = &*shared;
            door.shut();
            while !door.is_empty() {
                thread::yield_now();
            }
            inside.with_mut(|_| ());
            door.open();
            serves.join().unwrap();
        });
    }
}
