//! What an endpoint has under way, and what of that is to be tried again (ADR 69).

use crate::queue::Lent;
use crate::sys::{Combining, Direction, Far};
use rma_core::transport::WorldRank;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Errors of a transfer whose connection has ended. A provider that refuses a key by closing the
/// connection gives them to the transfer that it refused, and to those behind it.
pub(crate) const CUT: [i32; 6] = [
    libc::ECANCELED,
    libc::ECONNRESET,
    libc::ECONNABORTED,
    libc::ENOTCONN,
    libc::EPIPE,
    libc::ESHUTDOWN,
];

/// Those of [`CUT`] that say that the connection was over before.
pub(crate) const UNSENT: [i32; 3] = [libc::ENOTCONN, libc::EPIPE, libc::ESHUTDOWN];

/// Each time that a transfer was cut off so often, its target is asked whether it has the key: the
/// first time something else may have been refused, from the second on it was alone.
const CUTS: u32 = 2;

/// So often a transfer is cut off at most whose key is there, as its target says.
const CUTS_MOST: u32 = 32;

/// So often a transfer is tried again for which there is no connection.
const UNSENT_MOST: u32 = 1000;

/// So long after something was cancelled nothing of that peer is tried again: the provider may not
/// have seen yet that the connection is over.
const PAUSE: Duration = Duration::from_millis(1);

/// So long a target has to say whether it has a key before it is asked again: what it was asked, or
/// has answered, may be lost.
const QUERY_AGAIN: Duration = Duration::from_secs(1);

/// The transfers of an endpoint, with handles of its slots.
pub(crate) struct Flights<S> {
    /// By slot.
    under_way: Box<[Option<UnderWay>]>,
    /// What was cancelled with something else: of each peer in the order in which it was posted.
    /// It is tried again one by one, so that what is refused takes nothing else with it.
    again: VecDeque<(S, UnderWay)>,
    /// When something of a peer was cancelled, the last time.
    cancelled_at: FxHashMap<WorldRank, Instant>,
    /// When a peer was asked for a key, the last time.
    queried_at: FxHashMap<WorldRank, Instant>,
}

/// What a transfer does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Move(Direction),
    Combine(Combining),
}

/// A transfer that is not complete.
pub(crate) struct UnderWay {
    pub(crate) peer: WorldRank,
    /// Its place among those of the peer.
    pub(crate) posted: u64,
    /// By which the core knows it, unless that was told already.
    pub(crate) id: Option<u64>,
    pub(crate) work: Work,
    /// Memory of a direct transfer, or where the bytes that a slot gets go; otherwise of no use.
    pub(crate) local: Lent,
    pub(crate) far: Far,
    /// Where the memory of that key begins, as the provider counts.
    pub(crate) start: u64,
    /// How often the connection ended while it was under way, from the second time on with nothing
    /// else of its peer beside it; and how often there was none.
    pub(crate) cuts: u32,
    pub(crate) unsent: u32,
    /// Since when it waits for its target to say whether that has the key.
    pub(crate) queries: Option<Instant>,
    /// Its peer was cut off: the core does not hear of it.
    pub(crate) is_cut: bool,
}

impl UnderWay {
    /// Whether its target has not said for so long whether it has the key.
    pub(crate) fn is_unanswered(&self, now: Instant, patience: Duration) -> bool {
        self.queries.is_some_and(|from| now.saturating_duration_since(from) >= patience)
    }

    /// Whether it goes alone: it was cancelled before, and is of interest still.
    fn is_alone(&self) -> bool {
        self.cuts + self.unsent > 0 && !self.is_cut
    }

    /// What its target calls the memory.
    pub(crate) fn key(&self) -> Key {
        key_of(self.far.key, self.start)
    }
}

/// A key as ranks tell each other.
pub(crate) type Key = [u8; 16];

/// That of the provider, and where the memory begins.
pub(crate) fn key_of(key: u64, start: u64) -> Key {
    ((u128::from(start) << 64) | u128::from(key)).to_le_bytes()
}

impl<S> Flights<S> {
    /// For so many slots.
    pub(crate) fn new(slots: usize) -> Self {
        let under_way = (0..slots).map(|_| None).collect();
        Self {
            under_way,
            again: VecDeque::new(),
            cancelled_at: FxHashMap::default(),
            queried_at: FxHashMap::default(),
        }
    }

    /// How many there can be.
    pub(crate) fn slots(&self) -> usize {
        self.under_way.len()
    }

    /// The transfer with that slot has begun.
    pub(crate) fn begin(&mut self, slot: usize, under_way: UnderWay) {
        self.under_way[slot] = Some(under_way);
    }

    /// It is over.
    pub(crate) fn take(&mut self, slot: usize) -> Option<UnderWay> {
        self.under_way[slot].take()
    }

    /// Whether something to or from that peer is tried again: nothing is posted beside it.
    pub(crate) fn owes(&self, peer: WorldRank) -> bool {
        // Nothing of it was cancelled so far, most often.
        self.cancelled_at.contains_key(&peer)
            && (self.again.iter().any(|(_, waiting)| waiting.peer == peer)
                || self.under_way.iter().flatten().any(|it| it.peer == peer && it.is_alone()))
    }

    /// Lets a transfer wait that failed with that error, or gives it back if it is not to be tried
    /// again. Says whether the target is to be asked for its key first.
    pub(crate) fn fail(
        &mut self,
        (slot, mut failed): (S, UnderWay),
        code: i32,
        now: Instant,
    ) -> Result<bool, Box<(S, UnderWay)>> {
        let is_unsent = UNSENT.contains(&code);
        // What may have been combined already is not combined twice.
        let may_be_twice = is_unsent || matches!(failed.work, Work::Move(_));
        let (count, most) = match is_unsent {
            true => (&mut failed.unsent, UNSENT_MOST),
            false => (&mut failed.cuts, CUTS_MOST),
        };
        if failed.is_cut || !CUT.contains(&code) || !may_be_twice || *count == most {
            return Err(Box::new((slot, failed)));
        }
        *count += 1;
        let queries = !is_unsent && count.is_multiple_of(CUTS);
        failed.queries = queries.then_some(now);
        if queries {
            self.queried_at.insert(failed.peer, now);
        }
        self.cancelled_at.insert(failed.peer, now);
        let is_later =
            |(_, other): &(S, UnderWay)| other.peer == failed.peer && other.posted > failed.posted;
        let place = self.again.iter().position(is_later).unwrap_or(self.again.len());
        self.again.insert(place, (slot, failed));
        Ok(queries)
    }

    /// All that was given to an endpoint that has ended, which keeps its slots, and with slots what
    /// was to be tried again: none of it is told by the provider.
    pub(crate) fn take_all(&mut self) -> (Vec<UnderWay>, Vec<(S, UnderWay)>) {
        let under_way = self.under_way.iter_mut().filter_map(Option::take).collect();
        (under_way, self.again.drain(..).collect())
    }

    /// Whether anything is to be tried again.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.again.is_empty()
    }

    /// A target says that it has a key: what waits for that is tried again.
    pub(crate) fn has_key(&mut self, peer: WorldRank, key: &Key) {
        let meant = self.again.iter_mut().filter(|(_, it)| it.peer == peer && it.key() == *key);
        meant.for_each(|(_, waiting)| waiting.queries = None);
    }

    /// Targets and their keys that nothing was heard of for a while before `now`: they are to be
    /// asked again.
    pub(crate) fn unheard(&mut self, now: Instant) -> Vec<(WorldRank, Key)> {
        let Self { again, queried_at, .. } = self;
        let is_late = |peer: &WorldRank| {
            let since = queried_at.get(peer);
            since.is_none_or(|since| now.saturating_duration_since(*since) >= QUERY_AGAIN)
        };
        let waiting = again.iter().map(|(_, waiting)| waiting);
        let waiting = waiting.filter(|it| it.queries.is_some() && is_late(&it.peer));
        let unheard: Vec<_> = waiting.map(|it| (it.peer, it.key())).collect();
        queried_at.extend(unheard.iter().map(|(peer, _)| (*peer, now)));
        unheard
    }

    /// Takes out one that waits and is meant.
    pub(crate) fn take_waiting(
        &mut self,
        is_meant: impl Fn(&UnderWay) -> bool,
    ) -> Option<(S, UnderWay)> {
        let place = self.again.iter().position(|(_, waiting)| is_meant(waiting))?;
        self.again.remove(place)
    }

    /// Takes out the next from `place` on that is to be tried again now: the first of a peer of
    /// which nothing else is under way that is of interest, and nothing was cancelled since a while
    /// before `now`.
    pub(crate) fn next_again(&mut self, place: &mut usize, now: Instant) -> Option<(S, UnderWay)> {
        let is_fresh = |at: &Instant| now.saturating_duration_since(*at) < PAUSE;
        loop {
            let UnderWay { peer, queries, .. } = self.again.get(*place)?.1;
            let rests = self.cancelled_at.get(&peer).is_some_and(is_fresh);
            let mut earlier = self.again.iter().take(*place).map(|(_, waiting)| waiting);
            // Of what was cut off the core does not hear whether it was refused.
            let mut under_way = self.under_way.iter().flatten().filter(|it| !it.is_cut);
            let is_of_others = |it: &UnderWay| it.peer != peer;
            if !rests
                && queries.is_none()
                && earlier.all(is_of_others)
                && under_way.all(is_of_others)
            {
                return self.again.remove(*place);
            }
            *place += 1;
        }
    }

    /// There is no room for it now: it is the next of its peer later.
    pub(crate) fn wait_longer(&mut self, place: &mut usize, waiting: (S, UnderWay)) {
        self.again.insert(*place, waiting);
        *place += 1;
    }

    /// The core does not hear of what is under way to that peer, and what is to be tried again is
    /// not: the slots of that.
    pub(crate) fn cut_off(&mut self, peer: WorldRank) -> Vec<S> {
        for under_way in self.under_way.iter_mut().flatten().filter(|it| it.peer == peer) {
            under_way.is_cut = true;
        }
        let again = std::mem::take(&mut self.again).into_iter();
        let (cut, kept) = again.partition::<VecDeque<_>, _>(|(_, waiting)| waiting.peer == peer);
        self.again = kept;
        cut.into_iter().map(|(slot, _)| slot).collect()
    }
}

#[cfg(test)]
#[path = "flights_tests.rs"]
mod tests;
