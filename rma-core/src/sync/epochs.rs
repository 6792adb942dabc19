//! Opening and ending epochs, and which go together.
use super::{EpochCall, EpochKind};
use crate::error::RmaError;
use crate::memory::target::{Target, held};
use crate::rank::Rank;
use crate::window::Window;
use crate::window::epochs::{EXPOSED, FENCES, LOCK_ALL, START};
use core::sync::atomic::Ordering::{Acquire, SeqCst};

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
                let (requested, open) = (call.name(), open.name());
                Err(RmaError::EpochOpen { window: self.id(), requested, open })
            }
        }
    }

    /// Opens an epoch, if it is allowed, by adding its bits: those of an epoch of which one may be
    /// open are not set then.
    pub(crate) fn open(&self, call: EpochCall, bits: u32) -> Result<(), RmaError> {
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

    pub(crate) fn is_open(&self, kind: EpochKind) -> bool {
        // pairs with the AcqRel changes of the word.
        self.is_open_in(kind, self.part.epoch.word.load(Acquire))
    }

    pub(crate) fn is_open_in(&self, kind: EpochKind, word: u32) -> bool {
        match kind {
            EpochKind::Fence => word & FENCES != 0,
            EpochKind::Start => word & START != 0,
            EpochKind::Exposure => word & EXPOSED != 0,
            EpochKind::LockAll => word & LOCK_ALL != 0,
            EpochKind::LockOwn => held::is_open(self.held(self.rank())),
            EpochKind::LockOther => self.any_locked_but(self.rank()),
        }
    }

    pub(crate) fn any_locked_but(&self, own: Rank) -> bool {
        let own_place = self.targets.place(own);
        let locked =
            |(place, entry): (usize, &Target)| held::is_open(entry.held()) && place != own_place;
        self.targets.iter().enumerate().any(locked)
            || (!self.together && self.far.any_locked_but(own))
    }

    pub(crate) fn held(&self, target: Rank) -> u16 {
        self.targets.near(target).map_or_else(|| self.far.held(target), |entry| entry.held())
    }

    pub(crate) fn set_held(&self, target: Rank, how: u16) {
        match self.targets.near(target) {
            Some(entry) => entry.set_held(how),
            None => self.far.set_held(target, how),
        }
    }

    /// Sets how the target is held, unless it is already.
    pub(crate) fn claim(&self, target: Rank, how: u16) -> bool {
        match self.targets.near(target) {
            Some(entry) => entry.claim(how),
            None => self.far.claim(target, how),
        }
    }

    /// Whether this rank has locked a part.
    pub(crate) fn holds_a_lock(&self) -> bool {
        self.is_open(EpochKind::LockOwn) || self.is_open(EpochKind::LockOther)
    }
}
