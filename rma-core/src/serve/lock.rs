//! Requests for locks, as their homes serve them.
use crate::engine::Engine;
use crate::memory::control_block::ControlBlock;
use crate::object::WindowId;
use crate::protocol::home::{End, Home, HomeRequest, Passes, Tell};
use crate::protocol::lock::{self, Mode};
use crate::protocol::message::{Head, Kind, Status};
use crate::rank::{Rank, WorldRank};
use crate::transport::Moment;
use crate::window::Part;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU64, AtomicUsize};
use rustc_hash::FxHashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What a [`Kind::Lock`] is about, as its offset says.
pub(crate) mod what {
    /// The part of the receiver.
    pub(crate) const PART: u64 = 0;
    /// All parts; the receiver is rank 0.
    pub(crate) const ALL: u64 = 1;
}

/// Bits of the tag of a [`Kind::Lock`].
pub(crate) mod how {
    pub(crate) const EXCLUSIVE: u32 = 1;
    /// The sender holds locks of the window.
    pub(crate) const HOLDS: u32 = 2;
    /// It does not wait.
    pub(crate) const TRIES: u32 = 4;
}

/// Steps of a pass: the tag of a [`Kind::Pass`]. The offset is its number.
mod pass {
    pub(super) const REQUEST: u32 = 0;
    pub(super) const REQUEST_HOLDING: u32 = 1;
    pub(super) const RETURN: u32 = 2;
    pub(super) const GIVE: u32 = 3;
    pub(super) const RECALL: u32 = 4;
    pub(super) const WAIT: u32 = 5;
}

/// Locks of homes that wait for something, of all windows of a rank, and its own requests.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    /// Homes and passes that are waited for.
    waited_for: AtomicUsize,
    /// By slot.
    pending: Mutex<FxHashMap<u64, PendingLock>>,
    /// Requests so far.
    requests: AtomicU64,
}

/// A request of this rank that its home has not answered, or that no thread has seen answered.
#[derive(Debug)]
struct PendingLock {
    home: WorldRank,
    /// What gives it back, if no thread waits for it any more.
    unwanted: Option<Head>,
    /// How it ended, and which rank left if that is why.
    end: Option<(Status, WorldRank)>,
}

impl Lines {
    /// Whether a rank waits here for a lock.
    pub(crate) fn are_waited_for(&self) -> bool {
        // A thread that makes it 1 from 0 does so within `poll`, and looks at everything then.
        self.waited_for.load(Relaxed) > 0
    }

    fn pending(&self) -> MutexGuard<'_, FxHashMap<u64, PendingLock>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a request, before it is sent; answers with its slot. Later ones have higher slots.
    pub(crate) fn begin(&self, home: WorldRank) -> u64 {
        let slot = self.requests.fetch_add(1, Relaxed) + 1;
        self.pending().insert(slot, PendingLock { home, unwanted: None, end: None });
        slot
    }

    /// How a request ended, once it has; then it is over.
    pub(crate) fn end_of(&self, slot: u64) -> Option<(Status, WorldRank)> {
        let mut pending = self.pending();
        let end = pending.get(&slot)?.end?;
        pending.remove(&slot);
        Some(end)
    }

    /// Forgets a request that was not sent, or whose home is gone.
    pub(crate) fn forget(&self, slot: u64) {
        self.pending().remove(&slot);
    }

    /// Homes of locks that may yet be granted to this rank, which has to give them back.
    pub(crate) fn coming_from(&self) -> Vec<WorldRank> {
        self.pending().values().filter(|it| it.unwanted.is_some()).map(|it| it.home).collect()
    }

    fn count(&self, before: bool, after: bool) {
        match (before, after) {
            (false, true) => _ = self.waited_for.fetch_add(1, Relaxed),
            (true, false) => _ = self.waited_for.fetch_sub(1, Relaxed),
            _ => {}
        }
    }
}

/// The word of the lock of that block's owner.
pub(crate) fn word(block: ControlBlock<'_>) -> &AtomicU64 {
    block.word(lock::part(0).word)
}

impl Part {
    fn request(&self, from: WorldRank, head: &Head) -> Option<HomeRequest> {
        let rank = self.comm.group().rank_of(from)?.0;
        let tag = head.tag.get();
        let mode = if tag & how::EXCLUSIVE == 0 { Mode::Shared } else { Mode::Exclusive };
        let (holds, tries) = (tag & how::HOLDS != 0, tag & how::TRIES != 0);
        Some(HomeRequest { from, rank, slot: head.slot.get(), mode, holds, tries })
    }

    /// Whether rank 0 of the window is that process.
    fn is_first(&self, rank: WorldRank) -> bool {
        self.comm.world_rank(Rank(0)) == rank
    }
}

impl Engine {
    /// Changes what a home keeps, and tells what comes of it. S-E1 S-E13
    fn at_home<R>(&self, part: &Part, act: impl FnOnce(&mut Home, &AtomicU64) -> R) -> R {
        let mut home = part.locks.home();
        let before = home.is_waited_for();
        let result = act(&mut home, word(part.block.get()));
        self.serving().lines.count(before, home.is_waited_for());
        let tells: Vec<Tell> = core::iter::from_fn(|| home.poll()).collect();
        drop(home);
        if tells.iter().any(|tell| matches!(tell, Tell::Answer { end: End::Granted, .. })) {
            part.advise(Moment::LockGranted);
        }
        self.tell_all(part, &tells);
        result
    }

    /// As [`at_home`](Self::at_home), of what rank 0 keeps. S-E8
    fn at_first<R>(&self, part: &Part, act: impl FnOnce(&mut Passes) -> R) -> R {
        let mut passes = part.locks.passes();
        let before = passes.is_waited_for();
        let result = act(&mut passes);
        self.serving().lines.count(before, passes.is_waited_for());
        let tells: Vec<Tell> = core::iter::from_fn(|| passes.poll()).collect();
        drop(passes);
        self.tell_all(part, &tells);
        result
    }

    fn tell_all(&self, part: &Part, tells: &[Tell]) {
        let first = part.comm.world_rank(Rank(0));
        let pass = |to, step, number: u32| {
            let mut head = Head::new(Kind::Pass, part.id.0, step);
            head.offset = u64::from(number).into();
            self.tell(to, &head);
        };
        for tell in tells {
            match *tell {
                Tell::Answer { to, slot, end } => {
                    let status = match end {
                        End::Granted => Status::Ok,
                        End::Busy => Status::Busy,
                        End::Left(_) => Status::HolderLeft,
                        End::Freed => Status::Freed,
                    };
                    let left = if let End::Left(peer) = end { peer.0 } else { 0 };
                    self.tell(to, &granted(part.id.0, slot, status, left));
                }
                Tell::Request { number, holds: false } => pass(first, pass::REQUEST, number),
                Tell::Request { number, holds: true } => pass(first, pass::REQUEST_HOLDING, number),
                Tell::Return { number } => pass(first, pass::RETURN, number),
                Tell::Pass { to, number } => pass(to, pass::GIVE, number),
                Tell::Recall { to, number } => pass(to, pass::RECALL, number),
                Tell::Wait { to, number } => pass(to, pass::WAIT, number),
            }
        }
    }

    /// Takes a request for a lock; false if it makes no sense.
    pub(crate) fn take_request(&self, from: WorldRank, head: &Head, body: &[u8]) -> bool {
        let (object, slot) = (head.object.get(), head.slot.get());
        let Some(part) = self.own_windows().get(object) else {
            self.tell(from, &granted(object, slot, Status::Freed, 0));
            return body.is_empty();
        };
        let own = self.transport.job.rank;
        let known = |request: &HomeRequest| match head.offset.get() {
            what::PART => !part.is_together(),
            what::ALL => part.is_first(own) && request.mode == Mode::Shared,
            _ => false,
        };
        let request = part.request(from, head).filter(|_| body.is_empty()).filter(known);
        let Some(request) = request else {
            self.tell(from, &granted(object, slot, Status::Malformed, 0));
            return false;
        };
        if head.offset.get() == what::ALL {
            self.at_first(&part, |passes| passes.handle_request(&request));
        } else {
            part.advise(Moment::LockRequested);
            self.at_home(&part, |home, word| home.handle_request(word, request));
        }
        true
    }

    /// Takes the end of a request of this rank; false if it sent none like that.
    pub(crate) fn take_granted(&self, from: WorldRank, head: &Head, body: &[u8]) -> bool {
        let (slot, Some(status)) = (head.slot.get(), head.status()) else { return false };
        let left = WorldRank(u32::try_from(head.offset.get()).unwrap_or(from.0));
        let mut pending = self.serving().lines.pending();
        let known = |it: &&mut PendingLock| it.home == from && it.end.is_none() && body.is_empty();
        let Some(it) = pending.get_mut(&slot).filter(known) else { return false };
        let Some(unlock) = it.unwanted else {
            it.end = Some((status, left));
            return true;
        };
        drop(pending);
        if status == Status::Ok {
            self.tell(from, &unlock);
        }
        // Not before: a thread that leaves the job looks for what is still to be given back.
        self.serving().lines.forget(slot);
        true
    }

    /// Takes a lock back, or looks because of one that was given back without a message; false if
    /// the message makes no sense.
    pub(crate) fn take_unlock(&self, from: WorldRank, head: &Head, body: &[u8]) -> bool {
        // One that is freed has no use for what was on its way.
        let Some(part) = self.own_windows().get(head.object.get()) else { return body.is_empty() };
        if !body.is_empty() {
            return false;
        }
        let slot = head.slot.get();
        match head.offset.get() {
            what::ALL => self.at_first(&part, |passes| passes.handle_unlock(from, slot)),
            what::PART if slot == 0 => self.at_home(&part, |home, word| home.look(word)),
            what::PART => self.at_home(&part, |home, word| home.handle_unlock(word, from, slot)),
            _ => return false,
        }
        true
    }

    /// Takes a step of a pass, between a home and rank 0; false if it makes no sense.
    pub(crate) fn take_pass(&self, from: WorldRank, head: &Head, body: &[u8]) -> bool {
        // One that is freed has no use for what was on its way.
        let Some(part) = self.own_windows().get(head.object.get()) else { return body.is_empty() };
        if !body.is_empty() {
            return false;
        }
        let Ok(number) = u32::try_from(head.offset.get()) else { return false };
        let (step, own) = (head.tag.get(), self.transport.job.rank);
        if part.is_together() || part.comm.group().rank_of(from).is_none() {
            return false;
        }
        match step {
            pass::REQUEST | pass::REQUEST_HOLDING if part.is_first(own) => {
                let holds = step == pass::REQUEST_HOLDING;
                self.at_first(&part, |passes| passes.handle_pass_request(from, number, holds));
            }
            pass::RETURN if part.is_first(own) => {
                self.at_first(&part, |passes| passes.handle_return(from, number));
            }
            pass::GIVE if part.is_first(from) => {
                self.at_home(&part, |home, word| home.handle_pass(word, number));
            }
            pass::WAIT if part.is_first(from) => {
                self.at_home(&part, |home, word| home.handle_wait(word, number));
            }
            pass::RECALL if part.is_first(from) => {
                self.at_home(&part, |home, word| home.handle_recall(word, number));
            }
            _ => return false,
        }
        true
    }

    /// Ends what waits at this rank for those that have left; looks again besides, because a rank
    /// that gave a lock back may be gone before it could say so. Returns 1 if something came of it.
    pub(crate) fn look_after_lines(&self) -> usize {
        if !self.serving().lines.are_waited_for() {
            return 0;
        }
        let mut worked = false;
        for part in self.own_windows().all() {
            let first = part.comm.world_rank(Rank(0));
            let keepers: Vec<WorldRank> = part.locks.passes().keepers().collect();
            for home in keepers.into_iter().filter(|home| self.is_all_heard(*home)) {
                self.at_first(&part, |passes| passes.handle_loss(home));
                worked = true;
            }
            if !part.locks.home().is_waited_for() {
                continue;
            }
            let lost = part.locks.home().is_requesting() && self.is_all_heard(first);
            self.at_home(&part, |home, word| match lost {
                true => home.handle_loss(word, first),
                false => home.look(word),
            });
            worked |= lost;
        }
        usize::from(worked)
    }

    /// Ends the lines of a part, whose window is freed or whose owner leaves.
    pub(crate) fn close_lines(&self, part: &Part, why: Option<WorldRank>) {
        if part.is_together() {
            return;
        }
        let end = why.map_or(End::Freed, End::Left);
        self.at_home(part, |home, word| home.handle_close(word, end));
        self.at_first(part, |passes| passes.handle_close(end));
    }

    /// Does not wait for a request any more: it leaves the line, or what it was granted goes back.
    pub(crate) fn give_up_lock(&self, slot: u64, unlock: Head) {
        let mut pending = self.serving().lines.pending();
        let Some(it) = pending.get_mut(&slot) else { return };
        let (home, end) = (it.home, it.end);
        if end.is_none() {
            // If this comes to the home before the request, or crosses the grant.
            it.unwanted = Some(unlock);
        } else {
            pending.remove(&slot);
        }
        drop(pending);
        if end.is_none_or(|(status, _)| status == Status::Ok) {
            self.tell(home, &unlock);
        }
    }
}

fn granted(window: u64, slot: u64, status: Status, left: u32) -> Head {
    let mut head = Head::new(Kind::Granted, window, 0).reply(Kind::Granted, status);
    (head.slot, head.offset) = (slot.into(), u64::from(left).into());
    head
}

/// Gives back what the request with that slot was granted.
pub(crate) fn unlock(window: WindowId, what: u64, slot: u64) -> Head {
    let mut head = Head::new(Kind::Unlock, window.0, 0);
    (head.offset, head.slot) = (what.into(), slot.into());
    head
}

/// The word of the receiver's lock has changed: it shall look.
pub(crate) fn look(window: WindowId) -> Head {
    unlock(window, what::PART, 0)
}
