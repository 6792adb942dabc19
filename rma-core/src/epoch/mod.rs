//! Epochs: a guard is the proof that one is open.
//!
//! With nothing open, everything may be asked for. Otherwise (`transitions.rs`):
//!
//! | open on this rank | fence | start | post | lock own | lock other | lock_all | free | seal |
//! | --- | --- | --- | --- | --- | --- | --- | --- | --- |
//! | `Fence` | yes | no | no | no | no | no | no | no |
//! | `Start` | no | no | yes | no | no | no | no | no |
//! | `Exposure` | no | yes | no | no | yes | no | no | no |
//! | `Lock` own | no | no | no | no | yes | no | no | no |
//! | `Lock` other | no | no | yes | yes | yes | no | no | no |
//! | `LockAll` | no | no | no | no | no | no | no | no |
//!
//! A refusal is [`RmaError::EpochOpen`], or [`RmaError::AlreadyLocked`] for a second lock of the
//! same part, own or other. A fence in a fence epoch ends that and opens the next. At most one
//! access epoch and one exposure epoch are open, and a part is never locked by its rank while
//! exposed; that others lock an exposed part is their mistake, and not noticed.
//!
//! Guards borrow their window, so `free` and `seal` are refused by the compiler while one is in
//! scope; at run time only after a guard was forgotten.
mod access;
mod accumulate;
mod fence;
mod lock;
mod lock_all;
mod lock_request;
mod pscw;
mod request;
mod scope;
mod shaped;
mod transitions;

pub use access::Access;
pub use fence::{Assert, Fence};
pub use lock::{Lock, LockKind};
pub use lock_all::LockAll;
pub use lock_request::LockRequest;
pub use pscw::{Exposure, Start};
pub use request::{OriginBuffer, Request};
pub use scope::Ops;
pub use transitions::{EpochCall, EpochKind};

use crate::error::RmaError;
use crate::memory::stores;
use crate::memory::target::{Target, held};
use crate::rank::Rank;
use crate::window::Window;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Acquire, Ordering::SeqCst, fence};
use pscw::Partners;

/// Set in [`EpochState::word`] while a [`LockAll`] is open.
const LOCK_ALL: u32 = 1 << 31;
/// Set with [`LOCK_ALL`] if it takes no locks, with [`START`] if operations do not wait for posts.
const NO_CHECK: u32 = 1 << 30;
/// Set while a [`Start`] is open.
const START: u32 = 1 << 29;
/// Set while an [`Exposure`] is open.
const EXPOSED: u32 = 1 << 28;
/// The other bits count [`Fence`] guards.
const FENCES: u32 = EXPOSED - 1;

/// Which epochs are open on this rank.
#[derive(Debug, Default)]
pub(crate) struct EpochState {
    word: AtomicU32,
    /// This rank has left, or is about to.
    left: AtomicBool,
    partners: Partners,
}

impl EpochState {
    /// Whether a [`LockAll`] is open that takes locks.
    pub(crate) fn is_lock_all(&self) -> bool {
        // Sequentially consistent, see `set_left`.
        self.word.load(SeqCst) & (LOCK_ALL | NO_CHECK) == LOCK_ALL
    }

    /// From now on, this rank takes nothing that peers may wait for. Whoever takes such a thing
    /// marks it first and then asks [`has_left`](Self::has_left); who calls this looks for marks
    /// afterwards. All of that is sequentially consistent: one of the two sees the other.
    pub(crate) fn set_left(&self) {
        self.left.store(true, SeqCst);
    }

    #[inline(always)]
    pub(crate) fn has_left(&self) -> bool {
        self.left.load(SeqCst)
    }
}

impl Window {
    /// Fails unless `call` is allowed with what is open on this rank. Otherwise gives the state,
    /// for [`open`](Self::open).
    pub(crate) fn check(&self, call: EpochCall) -> Result<u32, RmaError> {
        // pairs with the AcqRel changes of the word.
        let word = self.part.epoch.word.load(Acquire);
        let refuses = |kind: &EpochKind| !call.allowed_in(*kind) && self.is_open_in(*kind, word);
        match EpochKind::ALL.into_iter().find(refuses) {
            None => Ok(word),
            Some(open) => {
                let (asked, open) = (call.name(), open.name());
                Err(RmaError::EpochOpen { window: self.id(), asked, open })
            }
        }
    }

    /// Opens an epoch, if it is allowed, by adding its bits: those of an epoch of which one may be
    /// open are not set then.
    fn open(&self, call: EpochCall, bits: u32) -> Result<(), RmaError> {
        loop {
            let word = self.check(call)?;
            // pairs with the Acquire load in `check`; sequentially consistent for `set_left`.
            if self.part.epoch.word.compare_exchange(word, word + bits, SeqCst, Acquire).is_ok() {
                return Ok(());
            }
        }
    }

    /// Fails once this rank has left; asked after what is taken was marked.
    pub(crate) fn check_left(&self) -> Result<(), RmaError> {
        if self.part.epoch.has_left() { Err(RmaError::Left { window: self.id() }) } else { Ok(()) }
    }

    fn is_open(&self, kind: EpochKind) -> bool {
        // pairs with the AcqRel changes of the word.
        self.is_open_in(kind, self.part.epoch.word.load(Acquire))
    }

    fn is_open_in(&self, kind: EpochKind, word: u32) -> bool {
        match kind {
            EpochKind::Fence => word & FENCES != 0,
            EpochKind::Start => word & START != 0,
            EpochKind::Exposure => word & EXPOSED != 0,
            EpochKind::LockAll => word & LOCK_ALL != 0,
            EpochKind::LockOwn => held::is_open(self.held(self.rank())),
            EpochKind::LockOther => self.any_locked_but(self.rank()),
        }
    }

    fn any_locked_but(&self, own: Rank) -> bool {
        let own_place = self.targets.place(own);
        let locked =
            |(place, entry): (usize, &Target)| held::is_open(entry.held()) && place != own_place;
        self.targets.iter().enumerate().any(locked)
            || (!self.together && self.far.any_locked_but(own))
    }

    pub(crate) fn held(&self, target: Rank) -> u32 {
        self.targets.near(target).map_or_else(|| self.far.held(target), |entry| entry.held())
    }

    fn set_held(&self, target: Rank, how: u32) {
        match self.targets.near(target) {
            Some(entry) => entry.set_held(how),
            None => self.far.set_held(target, how),
        }
    }

    /// Sets how the target is held, unless it is already.
    fn claim(&self, target: Rank, how: u32) -> bool {
        match self.targets.near(target) {
            Some(entry) => entry.claim(how),
            None => self.far.claim(target, how),
        }
    }

    /// Returns when every operation of this rank to `target` is complete there.
    #[inline]
    pub(crate) fn flush(&self, target: Rank) -> Result<(), RmaError> {
        if self.targets.get(target).is_some_and(Target::is_loadable) {
            stores::complete();
            return Ok(());
        }
        self.flush_cold(target)
    }

    #[cold]
    #[inline(never)]
    fn flush_cold(&self, target: Rank) -> Result<(), RmaError> {
        // The system's copies to and from other processes are no fences.
        fence(SeqCst);
        self.flush_far_cold(target)
    }

    pub(crate) fn flush_all(&self) -> Result<(), RmaError> {
        if self.all_loaded {
            stores::complete();
            return Ok(());
        }
        fence(SeqCst);
        self.flush_far_all()
    }

    /// Fails if there is no such target; that is all, because operations are locally complete when
    /// they return.
    pub(crate) fn flush_local(&self, target: Rank) -> Result<(), RmaError> {
        let exists = target.0 < self.ranks() || target == Rank::NULL;
        if exists { Ok(()) } else { Err(self.no_such_rank(target)) }
    }
}
