//! Large puts, as state machines without I/O: an origin asks, the target grants bytes, the origin
//! sends them in fragments, the target says when all have arrived.
//!
//! Credit bounds what one origin has on its way; with many origins at one target that is not
//! enough. So the target has a budget for the bytes of large puts from all origins together:
//! granted and not yet arrived. It grants in the order of asking, as much at once as the budget
//! has, so that a transfer that asked first streams at full speed and none waits for ever.
//!
//! A grant comes back when its bytes arrive, when the origin cancels, when the origin is gone, or
//! when the window is. Messages may overtake each other: a cancel that comes before its ask is
//! ignored, and the origin answers the grant that follows by another cancel.
use super::credit::Credit;
use crate::rank::WorldRank;
use core::ops::Range;
use std::collections::{BTreeMap, VecDeque};

/// The origin's side of one transfer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sender {
    total: u64,
    granted: u64,
    sent: u64,
}

impl Sender {
    /// Of a transfer that is about to be asked for.
    pub(crate) fn new(total: u64) -> Self {
        Self { total, granted: 0, sent: 0 }
    }

    /// Takes a grant; false if it is nothing or more than was asked for.
    pub(crate) fn handle_grant(&mut self, bytes: u64) -> bool {
        let fits = bytes > 0 && bytes <= self.total - self.granted;
        self.granted += if fits { bytes } else { 0 };
        fits
    }

    /// The bytes to be sent next, at most `max`; `None` if more must be granted first.
    pub(crate) fn poll_fragment(&mut self, max: u64) -> Option<Range<u64>> {
        let len = (self.granted - self.sent).min(max);
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

/// What an origin asks to put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) window: u64,
    /// Where the first byte goes; the range was checked.
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

#[derive(Debug)]
struct LargePut {
    ask: Ask,
    granted: u64,
    arrived: u64,
    /// Some of what arrived found no memory.
    lost: bool,
}

/// Where a fragment's bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fragment {
    pub(crate) offset: u64,
    /// Its transfer is complete with it.
    pub(crate) last: bool,
    /// Earlier fragments of the transfer [were lost](Grants::handle_lost).
    pub(crate) lost: bool,
}

/// What the target shall tell an origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GrantTell {
    /// That so many more bytes may come.
    Grant { key: Key, window: u64, bytes: u64 },
    /// That the window is gone.
    Freed { key: Key, window: u64 },
}

/// The target's side of all transfers: a few dozen bytes for each that was asked for.
#[derive(Debug)]
pub(crate) struct Grants {
    /// Not granted, or arrived again.
    available: u64,
    /// Smaller parts of a transfer are not worth a message.
    quantum: u64,
    transfers: BTreeMap<Key, LargePut>,
    /// Those that are not fully granted, in the order of asking.
    waiting: VecDeque<Key>,
    /// Transfers of windows that are gone.
    freed: Vec<(Key, u64)>,
    asks: Credit,
}

impl Grants {
    /// With a budget of so many bytes, granted in quarters of it, or in messages if these are
    /// larger.
    pub(crate) fn new(budget: u64, message: u64) -> Self {
        let available = budget.max(1);
        Self {
            available,
            quantum: (available / 4).max(message).clamp(1, available),
            transfers: BTreeMap::new(),
            waiting: VecDeque::new(),
            freed: Vec::new(),
            asks: Credit::default(),
        }
    }

    /// Takes a wish; false if it is empty, a repetition, or one too many of this origin.
    pub(crate) fn handle_ask(&mut self, key: Key, ask: Ask) -> bool {
        if ask.length == 0 || self.transfers.contains_key(&key) || !self.asks.take(key.origin) {
            return false;
        }
        self.transfers.insert(key, LargePut { ask, granted: 0, arrived: 0, lost: false });
        self.waiting.push_back(key);
        true
    }

    /// Takes `len` bytes that belong at `offset` of a transfer; `None` if they were not granted.
    pub(crate) fn handle_fragment(
        &mut self,
        key: Key,
        window: u64,
        offset: u64,
        len: u64,
    ) -> Option<Fragment> {
        let transfer = self.transfers.get_mut(&key)?;
        let inside = offset.checked_add(len).is_some_and(|end| end <= transfer.granted);
        // Each byte is granted once: more in all were sent twice.
        let outstanding = transfer.granted - transfer.arrived;
        if transfer.ask.window != window || !inside || len == 0 || len > outstanding {
            return None;
        }
        transfer.arrived += len;
        self.available += len;
        let last = transfer.arrived == transfer.ask.length;
        // Inside the range of the ask, which was checked.
        let (offset, lost) = (transfer.ask.offset + offset, transfer.lost);
        if last {
            self.remove(key);
        }
        Some(Fragment { offset, last, lost })
    }

    /// A fragment found no memory: so the transfer has failed when it ends.
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
            (transfer.ask.window == window).then_some((*key, window))
        };
        let ended: Vec<_> = self.transfers.iter().filter_map(of_window).collect();
        for (key, _) in &ended {
            self.remove(*key);
        }
        self.freed.extend(ended);
    }

    /// What to tell next.
    pub(crate) fn poll(&mut self) -> Option<GrantTell> {
        if let Some((key, window)) = self.freed.pop() {
            return Some(GrantTell::Freed { key, window });
        }
        let key = *self.waiting.front()?;
        let transfer = self.transfers.get_mut(&key)?;
        let wanted = transfer.ask.length - transfer.granted;
        if self.available < wanted.min(self.quantum) {
            return None;
        }
        let bytes = wanted.min(self.available);
        transfer.granted += bytes;
        self.available -= bytes;
        if bytes == wanted {
            self.waiting.pop_front();
        }
        Some(GrantTell::Grant { key, window: transfer.ask.window, bytes })
    }

    /// Whether there is nothing to be told, now or later.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.freed.is_empty()
    }

    /// Those whose bytes somebody waits for, after [`poll`](Self::poll) has told all it has. They
    /// are few: a grant is at least a quantum, or all of a transfer.
    pub(crate) fn holders(&self) -> impl Iterator<Item = Key> {
        let holds = |transfer: &LargePut| transfer.granted > transfer.arrived;
        let all = self.transfers.iter().filter(|_| !self.waiting.is_empty());
        all.filter(move |(_, transfer)| holds(transfer)).map(|(key, _)| *key)
    }

    fn remove(&mut self, key: Key) -> Option<LargePut> {
        let transfer = self.transfers.remove(&key)?;
        // Bytes that are still on their way are dropped when they come.
        self.available += transfer.granted - transfer.arrived;
        self.asks.give_back(key.origin);
        if transfer.granted < transfer.ask.length {
            self.waiting.retain(|waiting| *waiting != key);
        }
        Some(transfer)
    }
}
