//! Locks of windows whose ranks do not all reach each other's words, as their origin takes them: by
//! load and store if that is enough, by asking the home otherwise.
use crate::engine::grant::{self, Grant};
use crate::engine::{Cause, Engine, On, Wait, WaitError};
use crate::error::RmaError;
use crate::protocol::home;
use crate::protocol::lock::Mode;
use crate::protocol::message::{Head, Kind, Status};
use crate::rank::{Rank, WorldRank};
use crate::serve::lock::{how, look, unlock, what, word};
use crate::window::{LockEnd, Part, Ungranted, Window};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::SeqCst;
use core::time::Duration;
use std::sync::Arc;

/// In the place of a target: all of them, whose lock rank 0 keeps.
const ALL: Rank = Rank::NULL;

/// As errors name it.
const LOCK: &str = "a lock";

impl Grant for Ungranted {
    fn come_by(&self, until: Option<Duration>) -> bool {
        let Some(part) = self.part.upgrade() else { return true };
        let engine = &*part.comm.inner.engine;
        if engine.transport.members.is_fork() {
            return true;
        }
        let on = On::Holders(part.comm.group(), Some(part.comm.world_rank(self.target)));
        let wait = Wait { until, ..Wait::new(LOCK, on).about(part.comm.inner.about()) };
        // wait: grant
        let Err(error) = engine.wait_until(wait, || self.look(engine)) else { return true };
        let sleep = &engine.transport.sleep;
        if error.cause == Cause::Timeout && until.is_some_and(|until| sleep.now() >= until) {
            return false;
        }
        let mut gave_up = false;
        self.end_or(|| {
            gave_up = true;
            Some(LockEnd::Failed(error))
        });
        if gave_up {
            leave_line(&part, self.target, self.slot);
            // Other threads may wait for the same.
            sleep.ring(engine.transport.job.rank);
        }
        true
    }
}

impl Ungranted {
    /// Whether nothing is waited for any more: it is granted, or cannot be. Makes some progress.
    pub(crate) fn test(&self) -> bool {
        let Some(part) = self.part.upgrade() else { return true };
        let engine = &*part.comm.inner.engine;
        let on = On::Holders(part.comm.group(), Some(part.comm.world_rank(self.target)));
        let wait = Wait::new(LOCK, on).about(part.comm.inner.about());
        let look = || self.look(engine).is_some();
        look() || {
            let trouble = engine.progress_or_trouble(wait);
            look() || trouble.is_some()
        }
    }

    /// What came of it, once that is known.
    fn look(&self, engine: &Engine) -> Option<LockEnd> {
        self.end_or(|| {
            let (status, by) = engine.serving().lines.end_of(self.slot)?;
            Some(match status {
                Status::Ok => LockEnd::Granted,
                Status::HolderLeft => {
                    LockEnd::Failed(WaitError { what: LOCK, cause: Cause::PeerLeft(by) })
                }
                _ => LockEnd::Freed,
            })
        })
    }
}

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

    /// Takes the lock of `target`, waiting in line if need be, and until then at most. That of a
    /// far target, if no time is given, is only asked for: what is done under it waits. Loads and
    /// stores, the owner's too, do not. S-E1 S-E4 S-E13
    pub(crate) fn lock_at_home(
        &self,
        target: Rank,
        mode: Mode,
        until: Option<Duration>,
    ) -> Result<(), RmaError> {
        let Some(slot) = self.take_or_send(target, mode, 0, until)? else { return Ok(()) };
        let far = target != self.rank() && self.targets.near(target).is_none();
        if until.is_some() || !far {
            return self.wait_for_answer(target, slot, (0, until)).map(drop);
        }
        let ungranted = Arc::new(Ungranted::new(Arc::downgrade(&self.part), target, slot));
        self.far.add_ungranted(ungranted.clone());
        grant::expect(&(ungranted as Arc<dyn Grant>));
        Ok(())
    }

    /// Does not wait for the grant of a lock whose guard goes in a panic: its holder may wait for
    /// this thread.
    pub(crate) fn give_up_ungranted(&self, target: Rank) {
        let Some(ungranted) = self.far.ungranted(target) else { return };
        let mut waited_for = false;
        ungranted.end_or(|| {
            waited_for = true;
            Some(LockEnd::Failed(WaitError { what: LOCK, cause: Cause::Left }))
        });
        if waited_for {
            self.leave_line(target, ungranted.slot);
        }
    }

    /// As [`lock_at_home`](Self::lock_at_home), unless others have it or wait for it: false then.
    pub(crate) fn try_lock_at_home(&self, target: Rank, mode: Mode) -> Result<bool, RmaError> {
        self.take_or_request(target, mode, how::TRIES, None)
    }

    /// Locks all parts, which others may share. S-E8
    pub(crate) fn lock_all_at_home(&self) -> Result<(), RmaError> {
        let slot = self.send_request(ALL, 0, None)?;
        self.wait_for_home(ALL, slot)
    }

    /// Gives back what [`lock_all_at_home`](Self::lock_all_at_home) took.
    pub(crate) fn unlock_all_at_home(&self) {
        self.give_back(ALL);
    }

    /// Gives the lock of `target` back, which this rank has; an error if the others were told that
    /// it has left with it.
    pub(crate) fn unlock_at_home(&self, target: Rank, mode: Mode) -> Result<(), RmaError> {
        if self.give_back(target) || self.far.take_ungranted(target).is_some() {
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

    fn take_or_request(
        &self,
        target: Rank,
        mode: Mode,
        tries: u32,
        until: Option<Duration>,
    ) -> Result<bool, RmaError> {
        match self.take_or_send(target, mode, tries, until)? {
            Some(slot) => self.wait_for_answer(target, slot, (tries, until)),
            None => Ok(true),
        }
    }

    /// Asks for the lock of `target` without waiting for it; `None` if that was not needed, and it
    /// is taken. What follows is [`test_home`](Self::test_home), until that is over, or
    /// [`wait_for_home`](Self::wait_for_home) or [`leave_line`](Self::leave_line).
    pub(crate) fn request_at_home(
        &self,
        target: Rank,
        mode: Mode,
    ) -> Result<Option<u64>, RmaError> {
        self.take_or_send(target, mode, 0, None)
    }

    fn take_or_send(
        &self,
        target: Rank,
        mode: Mode,
        tries: u32,
        until: Option<Duration>,
    ) -> Result<Option<u64>, RmaError> {
        if let Some(word) = self.lock_word(target)? {
            let mut seen = word.load(SeqCst);
            while let Some(new) = home::take(seen, mode, self.rank().0) {
                match word.compare_exchange(seen, new, SeqCst, SeqCst) {
                    Ok(_) => return Ok(None),
                    Err(found) => seen = found,
                }
            }
        }
        let exclusive = if mode == Mode::Exclusive { how::EXCLUSIVE } else { 0 };
        let holds = if self.holds_a_lock() { how::HOLDS } else { 0 };
        self.send_request(target, exclusive | holds | tries, until).map(Some)
    }

    fn home_of(&self, key: Rank) -> Option<(WorldRank, u64)> {
        home_of(&self.part, key)
    }

    /// The home of a lock that was asked for, and a wait for it.
    fn wait_for_lock_at(
        &self,
        key: Rank,
        until: Option<Duration>,
    ) -> Result<(WorldRank, u64, Wait<'_>), RmaError> {
        let (home, about) = self.home_of(key).ok_or_else(|| self.no_such_rank(key))?;
        let on = On::Holders(self.group(), Some(home));
        Ok((home, about, Wait { until, ..self.wait_on(LOCK, on) }))
    }

    /// Asks for a lock; answers with the slot of the request.
    fn send_request(&self, key: Rank, how: u32, until: Option<Duration>) -> Result<u64, RmaError> {
        let (home, about, wait) = self.wait_for_lock_at(key, until)?;
        let engine = self.engine();
        let slot = engine.serving().lines.begin(home);
        let mut head = Head::new(Kind::Lock, self.id().0, how);
        (head.offset, head.slot) = (about.into(), slot.into());
        engine.send(home, &head, &[], wait).map(|()| slot).map_err(|error| {
            engine.serving().lines.forget(slot);
            self.wait_failed(error)
        })
    }

    /// Waits until a lock that was asked for is granted.
    pub(crate) fn wait_for_home(&self, key: Rank, slot: u64) -> Result<(), RmaError> {
        self.wait_for_answer(key, slot, (0, None)).map(drop)
    }

    /// As [`wait_for_home`](Self::wait_for_home), until then at most; false if it was only to be
    /// tried, and others have it.
    fn wait_for_answer(
        &self,
        key: Rank,
        slot: u64,
        (tries, until): (u32, Option<Duration>),
    ) -> Result<bool, RmaError> {
        let (_, _, wait) = self.wait_for_lock_at(key, until)?;
        let engine = self.engine();
        // wait: lock
        match engine.wait_until(wait, || engine.serving().lines.end_of(slot)) {
            Ok(end) => self.ended(key, slot, tries, end),
            Err(error) => {
                self.leave_line(key, slot);
                Err(self.wait_failed(error))
            }
        }
    }

    /// As [`wait_for_home`](Self::wait_for_home) if that needs no waiting, or would fail; false
    /// otherwise, after some progress.
    pub(crate) fn test_home(&self, key: Rank, slot: u64) -> Result<bool, RmaError> {
        let (_, _, wait) = self.wait_for_lock_at(key, None)?;
        let engine = self.engine();
        let trouble = engine.progress_or_trouble(wait);
        match (engine.serving().lines.end_of(slot), trouble) {
            (Some(end), _) => self.ended(key, slot, 0, end),
            (None, Some(cause)) => Err(self.wait_failed(engine.given_up(wait, cause))),
            (None, None) => Ok(false),
        }
    }

    /// Does not wait any more for a lock that was asked for.
    pub(crate) fn leave_line(&self, key: Rank, slot: u64) {
        leave_line(&self.part, key, slot);
    }

    /// What came of a request: whether it was granted.
    fn ended(
        &self,
        key: Rank,
        slot: u64,
        tries: u32,
        (status, by): (Status, WorldRank),
    ) -> Result<bool, RmaError> {
        match status {
            Status::Ok => {
                self.far.add_granted(key, slot);
                Ok(true)
            }
            Status::Busy if tries != 0 => Ok(false),
            Status::HolderLeft => {
                let (_, _, wait) = self.wait_for_lock_at(key, None)?;
                Err(self.wait_failed(self.engine().given_up(wait, Cause::PeerLeft(by))))
            }
            _ => {
                let target = if key == ALL { Rank(0) } else { key };
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

/// The home of the lock of a target, or of all, and what requests say that they want.
fn home_of(part: &Part, key: Rank) -> Option<(WorldRank, u64)> {
    let (home, about) = if key == ALL { (Rank(0), what::ALL) } else { (key, what::PART) };
    Some((part.comm.group().world_rank(home)?, about))
}

fn leave_line(part: &Part, key: Rank, slot: u64) {
    let engine = &part.comm.inner.engine;
    match home_of(part, key).filter(|(home, _)| engine.gone(*home).is_none()) {
        Some((_, about)) => engine.give_up_lock(slot, unlock(part.id, about, slot)),
        None => engine.serving().lines.forget(slot),
    }
}
