//! Locks of windows whose ranks do not all reach each other's words, as their origin takes them:
//! by load and store if that is enough, by asking the home otherwise. S-E1 S-E8 S-E13
use crate::engine::{Cause, On, Wait};
use crate::error::RmaError;
use crate::protocol::home;
use crate::protocol::lock::Mode;
use crate::protocol::message::{Head, Kind, Status};
use crate::rank::{Rank, WorldRank};
use crate::serve::lock::{how, look, unlock, what, word};
use crate::window::Window;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::SeqCst;

/// In the place of a target: all of them, whose lock rank 0 keeps.
const ALL: Rank = Rank::NULL;

impl Window {
    /// The word of a target's lock, where load and store reach it.
    fn lock_word(&self, target: Rank) -> Result<Option<&AtomicU64>, RmaError> {
        if target == self.rank() {
            return Ok(Some(word(self.part.block.get())));
        }
        if self.targets.near(target).is_none() {
            return Ok(None);
        }
        Ok(self.reach(target)?.block().map(word))
    }

    /// Takes the lock of `target`, waiting in line if need be.
    pub(crate) fn lock_at_home(&self, target: Rank, mode: Mode) -> Result<(), RmaError> {
        self.take_or_ask(target, mode, 0).map(drop)
    }

    /// As [`lock_at_home`](Self::lock_at_home), unless others have it or wait for it: false then.
    pub(crate) fn try_lock_at_home(&self, target: Rank, mode: Mode) -> Result<bool, RmaError> {
        self.take_or_ask(target, mode, how::TRIES)
    }

    /// Locks all parts, which others may share.
    pub(crate) fn lock_all_at_home(&self) -> Result<(), RmaError> {
        self.ask_home(ALL, 0).map(drop)
    }

    /// Gives back what [`lock_all_at_home`](Self::lock_all_at_home) took.
    pub(crate) fn unlock_all_at_home(&self) {
        self.give_back(ALL);
    }

    /// Gives the lock of `target` back, which this rank has; an error if the others were told that
    /// it has left with it.
    pub(crate) fn unlock_at_home(&self, target: Rank, mode: Mode) -> Result<(), RmaError> {
        if self.give_back(target) {
            return self.check_left();
        }
        let Some(word) = self.lock_word(target)? else { return self.check_left() };
        let mut seen = word.load(SeqCst);
        let left = loop {
            let left = home::give(seen, mode);
            match word.compare_exchange(seen, left, SeqCst, SeqCst) {
                Ok(_) => break left,
                Err(found) => seen = found,
            }
        };
        if home::must_tell(left, mode) {
            let world = self.part.comm.world_rank(target);
            self.engine().tell(world, &look(self.id()));
        }
        self.check_left()
    }

    fn take_or_ask(&self, target: Rank, mode: Mode, tries: u32) -> Result<bool, RmaError> {
        if let Some(word) = self.lock_word(target)? {
            let mut seen = word.load(SeqCst);
            while let Some(new) = home::take(seen, mode, self.rank().0) {
                match word.compare_exchange(seen, new, SeqCst, SeqCst) {
                    Ok(_) => return Ok(true),
                    Err(found) => seen = found,
                }
            }
        }
        let exclusive = if mode == Mode::Exclusive { how::EXCLUSIVE } else { 0 };
        let holds = if self.holds_a_lock() { how::HOLDS } else { 0 };
        self.ask_home(target, exclusive | holds | tries)
    }

    /// Who keeps the lock of a target, or of all, and what requests say that they want.
    fn home_of(&self, key: Rank) -> Option<(WorldRank, u64)> {
        let (home, about) = if key == ALL { (Rank(0), what::ALL) } else { (key, what::PART) };
        Some((self.group().world_rank(home)?, about))
    }

    /// Asks for a lock and waits until it is granted; false if it was only to be tried, and others
    /// have it.
    fn ask_home(&self, key: Rank, how: u32) -> Result<bool, RmaError> {
        let (home, about) = self.home_of(key).ok_or_else(|| self.no_such_rank(key))?;
        let engine = self.engine();
        let on = On::Holders(self.group(), Some(home));
        let wait = Wait { what: "a lock", on, recheck: None };
        let slot = engine.serving().lines.ask(home);
        let mut head = Head::new(Kind::Lock, self.id().0, how);
        (head.offset, head.slot) = (about.into(), slot.into());
        if let Err(error) = engine.send(home, &head, &[], wait) {
            engine.serving().lines.forget(slot);
            return Err(self.wait_failed(error));
        }
        // wait: lock
        let ended = engine.wait_until(wait, || engine.serving().lines.end_of(slot));
        let (status, by) = ended.map_err(|error| {
            if engine.gone(home).is_some() {
                engine.serving().lines.forget(slot);
            } else {
                engine.give_up_lock(slot, unlock(self.id(), about, slot));
            }
            self.wait_failed(error)
        })?;
        match status {
            Status::Ok => {
                self.far.add_granted(key, slot);
                Ok(true)
            }
            Status::Busy if how & how::TRIES != 0 => Ok(false),
            Status::HolderLeft => Err(self.wait_failed(engine.given_up(wait, Cause::PeerLeft(by)))),
            _ => {
                let target = self.group().rank_of(home).unwrap_or(key);
                Err(RmaError::Freed { window: self.id(), target })
            }
        }
    }

    /// Gives back what was granted by a message, if it was.
    fn give_back(&self, key: Rank) -> bool {
        let granted = self.far.take_granted(key).zip(self.home_of(key));
        if let Some((slot, (home, about))) = granted {
            self.engine().tell(home, &unlock(self.id(), about, slot));
        }
        granted.is_some()
    }
}
