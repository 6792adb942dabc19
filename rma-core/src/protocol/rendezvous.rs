//! Large puts by rendezvous, as state machines without I/O: an origin sends an RTS (request to
//! send), the target answers by CTS (clear to send) of so many bytes, the origin sends these as
//! data, the target says when all have arrived.
//!
//! Credit bounds what one origin has on its way; with many origins at one target that is not
//! enough. So the target has a budget for the bytes of large puts from all origins together:
//! cleared and not yet arrived. It clears in the order of the RTS, as much at once as the budget
//! has, so that the first transfer streams at full speed and none waits for ever.
//!
//! A CTS is used up when its bytes arrive, when the origin cancels, when the origin is gone, or
//! when the window is. Messages may overtake each other: a cancel that comes before its RTS is
//! ignored, and the origin answers the CTS that follows by another cancel.
use super::credit::Credit;
use crate::rank::WorldRank;
use core::ops::Range;
use std::collections::{BTreeMap, VecDeque};

/// The origin's side of one transfer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sender {
    total: u64,
    cleared: u64,
    sent: u64,
}

impl Sender {
    /// Of a transfer whose RTS is about to go.
    pub(crate) fn new(total: u64) -> Self {
        Self { total, cleared: 0, sent: 0 }
    }

    /// Takes a CTS; false if it is of nothing, or of more than is left.
    pub(crate) fn handle_cts(&mut self, bytes: u64) -> bool {
        let fits = bytes > 0 && bytes <= self.total - self.cleared;
        self.cleared += if fits { bytes } else { 0 };
        fits
    }

    /// The bytes to be sent next, at most `max`; `None` if more must be cleared first.
    pub(crate) fn poll_data(&mut self, max: u64) -> Option<Range<u64>> {
        let len = (self.cleared - self.sent).min(max);
        let start = self.sent;
        self.sent += len;
        (len > 0).then_some(start..self.sent)
    }

    /// Whether all bytes were handed out.
    pub(crate) fn is_sent(&self) -> bool {
        self.sent == self.total
    }
}

/// Names a transfer at its target: the origin and its slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) origin: WorldRank,
    pub(crate) slot: u64,
}

/// What an origin wants to put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rts {
    pub(crate) window: u64,
    /// Where the first byte goes; the range was checked.
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

#[derive(Debug)]
struct LargePut {
    rts: Rts,
    cleared: u64,
    arrived: u64,
    /// Some of what arrived found no memory.
    lost: bool,
}

/// Where the bytes of a message of data go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Data {
    pub(crate) offset: u64,
    /// Its transfer is complete with it.
    pub(crate) last: bool,
    /// Earlier data of the transfer [were lost](Receiver::handle_lost).
    pub(crate) lost: bool,
}

/// What the target shall tell an origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reply {
    /// That so many more bytes may come.
    Cts { key: Key, window: u64, bytes: u64 },
    /// That the window is gone.
    Freed { key: Key, window: u64 },
}

/// The target's side of all transfers: a few dozen bytes for each.
#[derive(Debug)]
pub(crate) struct Receiver {
    /// Not cleared, or arrived again.
    available: u64,
    /// Smaller parts of a transfer are not worth a message.
    quantum: u64,
    transfers: BTreeMap<Key, LargePut>,
    /// Those that are not fully cleared, in the order of their RTS.
    waiting: VecDeque<Key>,
    /// Transfers of windows that are gone.
    freed: Vec<(Key, u64)>,
    rts_credit: Credit,
}

impl Receiver {
    /// With a budget of so many bytes, cleared in quarters of it, or in messages if these are
    /// larger.
    pub(crate) fn new(budget: u64, message: u64) -> Self {
        let available = budget.max(1);
        Self {
            available,
            quantum: (available / 4).max(message).clamp(1, available),
            transfers: BTreeMap::new(),
            waiting: VecDeque::new(),
            freed: Vec::new(),
            rts_credit: Credit::default(),
        }
    }

    /// Takes an RTS; false if it is empty, a repetition, or one too many of this origin.
    pub(crate) fn handle_rts(&mut self, key: Key, rts: Rts) -> bool {
        if rts.length == 0 || self.transfers.contains_key(&key) || !self.rts_credit.take(key.origin)
        {
            return false;
        }
        self.transfers.insert(key, LargePut { rts, cleared: 0, arrived: 0, lost: false });
        self.waiting.push_back(key);
        true
    }

    /// Takes `len` bytes that belong at `offset` of a transfer; `None` if they were not cleared.
    pub(crate) fn handle_data(
        &mut self,
        key: Key,
        window: u64,
        offset: u64,
        len: u64,
    ) -> Option<Data> {
        let transfer = self.transfers.get_mut(&key)?;
        let inside = offset.checked_add(len).is_some_and(|end| end <= transfer.cleared);
        // Each byte is cleared once: more in all were sent twice.
        let outstanding = transfer.cleared - transfer.arrived;
        if transfer.rts.window != window || !inside || len == 0 || len > outstanding {
            return None;
        }
        transfer.arrived += len;
        self.available += len;
        let last = transfer.arrived == transfer.rts.length;
        // Inside the range of the RTS, which was checked.
        let (offset, lost) = (transfer.rts.offset + offset, transfer.lost);
        if last {
            self.remove(key);
        }
        Some(Data { offset, last, lost })
    }

    /// Data found no memory: so the transfer has failed when it ends.
    pub(crate) fn handle_lost(&mut self, key: Key) {
        if let Some(transfer) = self.transfers.get_mut(&key) {
            transfer.lost = true;
        }
    }

    /// The origin gave up, or is gone; false if there is no such transfer.
    pub(crate) fn handle_cancel(&mut self, key: Key) -> bool {
        self.remove(key).is_some()
    }

    /// A window is gone: its transfers end, as [`poll`](Self::poll) tells their origins.
    pub(crate) fn handle_freed(&mut self, window: u64) {
        let of_window = |(key, transfer): (&Key, &LargePut)| {
            (transfer.rts.window == window).then_some((*key, window))
        };
        let ended: Vec<_> = self.transfers.iter().filter_map(of_window).collect();
        for (key, _) in &ended {
            self.remove(*key);
        }
        self.freed.extend(ended);
    }

    /// What to tell next.
    pub(crate) fn poll(&mut self) -> Option<Reply> {
        if let Some((key, window)) = self.freed.pop() {
            return Some(Reply::Freed { key, window });
        }
        let key = *self.waiting.front()?;
        let transfer = self.transfers.get_mut(&key)?;
        let wanted = transfer.rts.length - transfer.cleared;
        if self.available < wanted.min(self.quantum) {
            return None;
        }
        let bytes = wanted.min(self.available);
        transfer.cleared += bytes;
        self.available -= bytes;
        if bytes == wanted {
            self.waiting.pop_front();
        }
        Some(Reply::Cts { key, window: transfer.rts.window, bytes })
    }

    /// Whether there is nothing to be told, now or later.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.freed.is_empty()
    }

    /// Those whose bytes another transfer waits for, after [`poll`](Self::poll) has told all it
    /// has. They are few: a CTS is at least a quantum, or all of a transfer.
    pub(crate) fn holders(&self) -> impl Iterator<Item = Key> {
        let holds = |transfer: &LargePut| transfer.cleared > transfer.arrived;
        let all = self.transfers.iter().filter(|_| !self.waiting.is_empty());
        all.filter(move |(_, transfer)| holds(transfer)).map(|(key, _)| *key)
    }

    fn remove(&mut self, key: Key) -> Option<LargePut> {
        let transfer = self.transfers.remove(&key)?;
        // Bytes that are still on their way are dropped when they come.
        self.available += transfer.cleared - transfer.arrived;
        self.rts_credit.give_back(key.origin);
        if transfer.cleared < transfer.rts.length {
            self.waiting.retain(|waiting| *waiting != key);
        }
        Some(transfer)
    }
}
