//! What this rank knows of the locks of a window: `sync` takes them, `serve` runs those of homes.
use super::Part;
use crate::engine::WaitError;
use crate::operation::{Contiguous, OwnedOperation};
use crate::protocol::global_lock::Told;
use crate::protocol::home::{Home, Passes};
use crate::rank::Rank;
use core::sync::atomic::{AtomicU32, AtomicU64};
use std::collections::VecDeque;
use std::collections::vec_deque::IntoIter;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError, Weak};

/// This rank's queue nodes. Their phase words say which are in use.
#[derive(Debug, Default)]
pub(crate) struct NodePool {
    /// When this rank first went past those in line since it used a node; 0 if it did not. Threads
    /// may overwrite each other's, which are about the same.
    pub(crate) passing_since_ns: AtomicU64,
}

/// What this rank knows of the global lock.
#[derive(Debug, Default)]
pub(crate) struct GlobalLock {
    pub(crate) told: Told,
    /// Exclusive locks that passed it since this rank last made it unwatched.
    pub(crate) passed: AtomicU32,
}

/// A lock of a far target whose guard is there, and which may not be granted yet: what uses it
/// waits for that.
pub(crate) struct Ungranted {
    /// Of this rank.
    pub(crate) part: Weak<Part>,
    pub(crate) target: Rank,
    /// Of the request.
    pub(crate) slot: u64,
    end: Mutex<Option<LockEnd>>,
    /// What waits for the grant, in order; `None` once a thread has waited for it.
    queue: Mutex<Option<WaitingOperations>>,
}

#[derive(Default)]
struct WaitingOperations {
    operations: VecDeque<OwnedOperation>,
    /// What they take of memory, in bytes.
    footprint: u64,
}

/// What came of a lock that was asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LockEnd {
    Granted,
    /// The window is gone.
    Freed,
    /// It is not waited for any more.
    Failed(WaitError),
}

impl Ungranted {
    pub(crate) fn new(part: Weak<Part>, target: Rank, slot: u64) -> Self {
        Self {
            part,
            target,
            slot,
            end: Mutex::default(),
            queue: Mutex::new(Some(WaitingOperations::default())),
        }
    }

    /// Has a copy of an operation wait for the grant; false if there is no room for it in so many
    /// bytes, or it is known what came of the lock.
    pub(crate) fn queue(&self, operation: Contiguous<'_>, room: u64) -> bool {
        if self.end_or(|| None).is_some() {
            return false;
        }
        let queue = if operation.tries() { self.try_lock() } else { Some(self.lock()) };
        let Some(mut queue) = queue else { return false };
        let Some(queue) = queue.as_mut() else { return false };
        let footprint = queue.footprint.saturating_add(operation.footprint());
        if footprint > room {
            return false;
        }
        queue.footprint = footprint;
        queue.operations.push_back(operation.to_owned());
        true
    }

    /// Hands what has waited to `perform`, while other threads of the guard wait, and lets no more
    /// wait.
    pub(crate) fn close<R>(&self, perform: impl FnOnce(IntoIter<OwnedOperation>) -> R) -> R {
        let mut queue = self.lock();
        perform(queue.take().unwrap_or_default().operations.into_iter())
    }

    /// Hands what has waited to `perform`, one after the other, until that could not; says whether
    /// nothing is left. Does nothing if another thread is at it.
    pub(crate) fn advance(&self, mut perform: impl FnMut(&OwnedOperation) -> bool) -> bool {
        let Some(mut queue) = self.try_lock() else { return false };
        let Some(queue) = queue.as_mut() else { return true };
        while let Some(first) = queue.operations.front() {
            if !perform(first) {
                return false;
            }
            queue.footprint = queue.footprint.saturating_sub(first.footprint());
            queue.operations.pop_front();
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, Option<WaitingOperations>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`lock`](Self::lock), unless another thread performs what waits.
    fn try_lock(&self) -> Option<MutexGuard<'_, Option<WaitingOperations>>> {
        match self.queue.try_lock() {
            Ok(queue) => Some(queue),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Its end, which `find` finds; of several threads, one finds it for all.
    pub(crate) fn end_or(&self, find: impl FnOnce() -> Option<LockEnd>) -> Option<LockEnd> {
        let mut end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        if end.is_none() {
            *end = find();
        }
        *end
    }
}

/// The lock of a part, and what rank 0 keeps for all of them.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    home: Mutex<Home>,
    passes: Mutex<Passes>,
}

impl Locks {
    pub(crate) fn home(&self) -> MutexGuard<'_, Home> {
        self.home.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn passes(&self) -> MutexGuard<'_, Passes> {
        self.passes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::target::Permit;
    use crate::operation::{Action, Operation, Side};

    fn put(origin: &[u8]) -> Operation<'_> {
        let (target, side) = (Rank(1), Side::dense(origin.len()));
        Operation {
            what: "a put",
            action: Action::Put,
            permit: Permit::All,
            target,
            disp: 3,
            there: side,
            origin,
            from: side,
            tries: false,
        }
    }

    fn queue(ungranted: &Ungranted, origin: &[u8], room: u64) -> bool {
        ungranted.queue(Contiguous::of(&put(origin)).unwrap(), room)
    }

    #[test]
    fn operations_wait_in_order_as_far_as_there_is_room() {
        let ungranted = Ungranted::new(Weak::new(), Rank(1), 7);
        let room = Contiguous::of(&put(&[0; 8])).unwrap().footprint() * 2;
        let queued = [[1; 8], [2; 8], [3; 8]].map(|bytes| queue(&ungranted, &bytes, room));
        assert_eq!(queued, [true, true, false]);
        let first =
            |queued: OwnedOperation| (queued.operation().disp, queued.operation().origin[0]);
        let waited = ungranted.close(|queued| queued.map(first).collect::<Vec<_>>());
        assert_eq!(waited, [(3, 1), (3, 2)]);
        assert!(!queue(&ungranted, &[4; 8], room), "it would never be performed");
    }

    #[test]
    fn what_waits_is_performed_as_far_as_there_is_room() {
        let ungranted = Ungranted::new(Weak::new(), Rank(1), 7);
        let room = Contiguous::of(&put(&[0; 8])).unwrap().footprint() * 2;
        let queued = [[1; 8], [2; 8]].map(|bytes| queue(&ungranted, &bytes, room));
        assert_eq!(queued, [true, true]);
        let mut performed = Vec::new();
        let mut perform = |queued: &OwnedOperation| {
            let first = queued.operation().origin[0];
            let has_room = first == 1 || performed.len() >= 2;
            performed.push(first);
            has_room
        };
        assert!(!ungranted.advance(&mut perform), "no room for the second");
        assert!(queue(&ungranted, &[3; 8], room), "in the place of the first");
        assert!(ungranted.advance(&mut perform));
        assert_eq!(performed, [1, 2, 2, 3]);
        assert!(queue(&ungranted, &[4; 8], room) && queue(&ungranted, &[5; 8], room));
    }

    #[test]
    fn nothing_waits_for_what_is_known() {
        let ungranted = Ungranted::new(Weak::new(), Rank(1), 7);
        ungranted.end_or(|| Some(LockEnd::Granted));
        assert!(!queue(&ungranted, &[1], u64::MAX));
    }

    #[test]
    fn what_fetches_does_not_wait() {
        let get = Operation { action: Action::Get, ..put(&[1]) };
        assert!(Contiguous::of(&get).is_none());
    }
}
