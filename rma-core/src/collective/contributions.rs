//! Payloads of collective operations, put together from the messages they came in.
//!
//! What may come is known: a payload belongs to a communicator of this rank, comes from a member,
//! and is of an operation that this rank has begun or that the sender may be in already. A small
//! one always has room. A larger one comes in parts, each by rendezvous: the receiver clears it
//! while all that it has not taken yet stays within a budget. So a rank that is far ahead waits.
//!
//! # No rank waits for ever
//!
//! What a rank waits for, or will as soon as what it sends at the same step is gone, is
//! [awaited](Contributions::expect): its next part is cleared whatever the budget says, one part
//! for each communicator. Of several ranks that may come first, the first that asks is awaited. So
//! to send is at worst to wait until the receiver comes to the step at which it receives, and an
//! operation is without deadlock if it is with a send that waits for its receiver. Each of them is:
//! of the ranks that are in the earliest step of the earliest operation, each sends to one that
//! awaits just that, or has passed it.
use super::AHEAD_MAX;
use super::abandon::{AbandonPlace, News, read_abandon, read_one_operation};
use crate::error::CollectiveError;
use crate::group::Group;
use crate::object::RUNTIME;
use crate::protocol::message::{Head, Kind};
use crate::rank::{Rank, WorldRank};
use core::mem;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a rank keeps of another in one operation, at most: the lengths that allgatherv sends first,
/// a part, and the question for the next one.
const EACH_MAX: usize = 3;
/// Payloads of so many bytes always have room: most of those of the runtime itself are no longer.
/// How many there are is bounded by the operations that senders can be in.
pub(crate) const SMALL: u64 = 4096;
/// No payload of the runtime's own is longer: a few bytes from each rank.
const RUNTIME_MAX: u64 = 1 << 32;
/// Bytes of a payload that are asked for at a time. They stay in a cache until they are taken, and
/// the next ones use their memory again.
pub(crate) const PART: u64 = 256 << 10;
/// Bits of a tag that number the payloads of one operation.
const ROUND_BITS: u32 = 8;

/// Tags between two times at which what is stale is forgotten: far fewer than there are.
const FORGET_EVERY: u32 = 1 << 24;

/// Which payload: communicator, tag, sender; or the receiver, of one that is sent.
pub(crate) type ContributionKey = (u64, u32, WorldRank);
/// Ranks, and what to tell each.
pub(crate) type CtsHeads = Vec<(WorldRank, Head)>;

/// What a message of a collective says: a piece of a part, with `offset` in the part; or the RTS
/// or the CTS of a part. In all of them `slot` is the number of the part, and
/// `length` what there is of the payload from this part on. Or that the sender has
/// [given up](super::abandon). Or where in memory the payload comes, which is as long as `length`
/// says ([`LaneOffer`](super::lanes::LaneOffer)): there is no other part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum CollectiveKind {
    Piece = 0,
    Rts = 1,
    Cts = 2,
    Abandon = 3,
    Offer = 4,
}

/// How far a rank is on a communicator.
#[derive(Debug, Clone, Default)]
pub(crate) struct Current(Arc<Progress>);

#[derive(Debug, Default)]
struct Progress {
    /// Number of the last operation that the rank has begun.
    ///
    /// Relaxed, because a rank that is ahead was let go by a barrier that this one had begun:
    /// the thread that handles its message has seen that number.
    operation: AtomicU32,
    /// Number of the barrier by flags that it has begun last.
    barrier: AtomicU64,
    news: News,
}

impl Current {
    /// Begins another operation, of the thread whose turn it is: no other changes the number. Its
    /// tag, whose lowest bits are the operation's own.
    fn next_tag(&self) -> u32 {
        let number = self.0.operation.load(Relaxed).wrapping_add(1);
        self.0.operation.store(number, Relaxed);
        number << ROUND_BITS
    }

    /// Begins a barrier by flags, perhaps again.
    pub(crate) fn begin_barrier(&self, number: u64) {
        self.0.barrier.store(number, Relaxed);
    }

    /// Where the rank is.
    pub(crate) fn place(&self) -> AbandonPlace {
        let tag = self.0.operation.load(Relaxed) << ROUND_BITS;
        AbandonPlace { tag, barrier: self.0.barrier.load(Relaxed) }
    }

    pub(crate) fn news(&self) -> &News {
        &self.0.news
    }

    /// Whether a sender can be in the operation of that tag. It may be at the barrier that comes
    /// after as many operations as one may be ahead.
    fn expects(&self, tag: u32) -> bool {
        let ahead = tag.wrapping_sub(self.0.operation.load(Relaxed) << ROUND_BITS) >> ROUND_BITS;
        ahead <= AHEAD_MAX + 1
    }
}

/// A payload of so many bytes is longer than any that this rank takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoRoom {
    pub(crate) bytes: u64,
    pub(crate) limit: u64,
}

impl NoRoom {
    /// As the error of an operation in which `from` wants to send that.
    pub(crate) fn of(self, what: &'static str, from: Rank) -> CollectiveError {
        let Self { bytes, limit } = self;
        CollectiveError::NoRoom { what, from, bytes, limit }
    }
}

/// A whole part.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PayloadPart {
    pub(crate) bytes: Vec<u8>,
    /// Bytes of the payload from this part on.
    pub(crate) rest: u64,
    /// The bytes are those of an offer, and not of the payload.
    pub(crate) is_offer: bool,
}

#[derive(Debug)]
pub(crate) struct Contributions {
    /// The longest payload.
    payload_max: u64,
    /// Of all payloads, in bytes.
    budget: u64,
    table: Mutex<InboundTable>,
}

#[derive(Debug, Default)]
struct InboundTable {
    /// By communicator.
    of: FxHashMap<u64, Inbound>,
    /// Bytes of the parts in all of them.
    held: u64,
    /// Parts that are asked for and not cleared, in the order of their RTS.
    waiting: VecDeque<(ContributionKey, u64)>,
    /// Parts that this rank sent an RTS of; whether they were cleared.
    requested: FxHashMap<ContributionKey, (u64, bool)>,
}

/// What has come for a communicator and was not taken.
#[derive(Debug)]
struct Inbound {
    members: Group,
    current: Current,
    /// What is received next whatever the budget says.
    awaited: Vec<(u32, WorldRank)>,
    /// By operation and sender.
    contributions: FxHashMap<(u32, WorldRank), Vec<Contribution>>,
}

#[derive(Debug)]
struct Contribution {
    tag: u32,
    /// Which part.
    number: u64,
    /// Bytes of the payload from this part on.
    rest: u64,
    state: ContributionState,
}

#[derive(Debug)]
enum ContributionState {
    Waiting,
    Arriving { bytes: Vec<u8>, left: u64 },
    Offered(Vec<u8>),
    Refused(NoRoom),
}

/// Bytes of a part.
fn part_len(rest: u64) -> u64 {
    rest.min(PART)
}

impl Contribution {
    fn held(&self) -> u64 {
        match &self.state {
            ContributionState::Arriving { bytes, .. } | ContributionState::Offered(bytes) => {
                bytes.len() as u64
            }
            ContributionState::Waiting | ContributionState::Refused(_) => 0,
        }
    }

    fn begin(&mut self) {
        let len = part_len(self.rest);
        self.state = ContributionState::Arriving { bytes: vec![0; len as usize], left: len };
    }

    /// Takes one piece that ends inside of the part; false if it does not fit what came before.
    fn add(&mut self, rest: u64, offset: u64, piece: &[u8]) -> bool {
        match &mut self.state {
            ContributionState::Arriving { bytes, left }
                if self.rest == rest && *left >= piece.len() as u64 =>
            {
                // Both ends are below the length of the part, which is that of a vector.
                bytes[offset as usize..][..piece.len()].copy_from_slice(piece);
                *left -= piece.len() as u64;
                true
            }
            _ => false,
        }
    }
}

impl Inbound {
    fn held(&self) -> u64 {
        self.contributions.values().flatten().map(Contribution::held).sum()
    }

    /// Whether members may send what that tag is of.
    fn expects(&self, tag: u32, from: WorldRank) -> bool {
        self.current.expects(tag) && self.members.rank_of(from).is_some()
    }
}

impl InboundTable {
    /// Forgets payloads of operations that ended without taking them, because they failed.
    fn forget_stale(&mut self) {
        for inbound in self.of.values_mut() {
            let current = &inbound.current;
            inbound.contributions.retain(|(operation, _), _| current.expects(*operation));
        }
        self.held = self.of.values().map(Inbound::held).sum();
    }

    /// Clears what there is room for, and what is awaited.
    fn clear(&mut self, budget: u64) -> CtsHeads {
        let mut cts = CtsHeads::new();
        if self.waiting.is_empty() {
            return cts;
        }
        let mut left = VecDeque::new();
        for (key, number) in mem::take(&mut self.waiting) {
            let Some(rest) = self.rest_of(&key, number) else { continue };
            let fits = |held: u64| held.saturating_add(part_len(rest)) <= budget;
            if !fits(self.held) {
                self.forget_stale();
            }
            let fits = fits(self.held);
            match self.clear_one(&key, number, fits) {
                Some(head) => cts.push((key.2, head)),
                None => left.push_back((key, number)),
            }
        }
        self.waiting = left;
        cts
    }

    /// What is asked for there, if it still is.
    fn rest_of(&self, key: &ContributionKey, number: u64) -> Option<u64> {
        let (id, tag, from) = *key;
        let contributions = self.of.get(&id)?.contributions.get(&(operation(tag), from))?;
        let asked = |contribution: &&Contribution| {
            (contribution.tag, contribution.number) == (tag, number)
                && matches!(contribution.state, ContributionState::Waiting)
        };
        contributions.iter().find(asked).map(|contribution| contribution.rest)
    }

    fn clear_one(&mut self, key: &ContributionKey, number: u64, fits: bool) -> Option<Head> {
        let (id, tag, from) = *key;
        let inbound = self.of.get_mut(&id)?;
        let awaited = inbound.awaited.contains(&(tag, from));
        let contributions = inbound.contributions.get_mut(&(operation(tag), from))?;
        // A part at a time of each payload.
        let busy = contributions
            .iter()
            .any(|contribution| contribution.tag == tag && contribution.number != number);
        if busy || !(fits || awaited) {
            return None;
        }
        let is_it = |contribution: &&mut Contribution| {
            (contribution.tag, contribution.number) == (tag, number)
        };
        let contribution = contributions.iter_mut().find(is_it)?;
        if !fits {
            // One part at most is beyond the budget.
            inbound.awaited.retain(|other| *other == (tag, from));
        }
        contribution.begin();
        self.held = self.held.saturating_add(part_len(contribution.rest));
        Some(step_head(id, tag, CollectiveKind::Cts, number, contribution.rest))
    }
}

/// A tag without the bits that are the operation's own.
fn operation(tag: u32) -> u32 {
    tag >> ROUND_BITS << ROUND_BITS
}

/// The head of a message about a part.
pub(crate) fn step_head(id: u64, tag: u32, step: CollectiveKind, number: u64, rest: u64) -> Head {
    let mut head = Head::new(Kind::Collective, id, tag);
    head.op = step as u8;
    (head.slot, head.length) = (number.into(), rest.into());
    head
}

impl Contributions {
    /// Payloads of `payload_max` bytes at most, and of `budget` bytes together.
    pub(crate) fn new(payload_max: u64, budget: u64) -> Self {
        Self { payload_max, budget, table: Mutex::default() }
    }

    /// The longest payload that can arrive for a communicator. What the runtime tells itself has
    /// no limit of the user's.
    pub(crate) fn payload_max(&self, id: u64) -> u64 {
        if id & RUNTIME == 0 { self.payload_max } else { self.payload_max.max(RUNTIME_MAX) }
    }

    /// A thread that comes here waits until the value is dropped.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> impl Drop + '_ {
        self.table()
    }

    fn table(&self) -> MutexGuard<'_, InboundTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins another operation of a communicator: its tag. Tags repeat, so now and then what was
    /// left by operations that failed is forgotten, long before one of them has the same again.
    pub(crate) fn begin(&self, current: &Current) -> u32 {
        let tag = current.next_tag();
        if tag.is_multiple_of(FORGET_EVERY) {
            self.table().forget_stale();
            current.news().forget_passed(current.place());
        }
        tag
    }

    /// From now on, messages of that communicator are expected.
    pub(crate) fn open(&self, id: u64, members: Group) -> Current {
        let current = Current::default();
        let (contributions, awaited) = (FxHashMap::default(), Vec::new());
        let inbound = Inbound { members, current: current.clone(), awaited, contributions };
        self.table().of.insert(id, inbound);
        current
    }

    /// No more messages of that communicator are expected.
    #[must_use]
    pub(crate) fn close(&self, id: u64) -> CtsHeads {
        let mut table = self.table();
        let held = table.of.remove(&id).map_or(0, |inbound| inbound.held());
        table.held -= held;
        table.clear(self.budget)
    }

    /// From now on, and until others are, one of these payloads of a communicator is awaited.
    #[must_use]
    pub(crate) fn expect(&self, keys: &[ContributionKey]) -> CtsHeads {
        let mut table = self.table();
        if let Some(inbound) = keys.first().and_then(|(id, ..)| table.of.get_mut(id)) {
            inbound.awaited.clear();
            inbound.awaited.extend(keys.iter().map(|(_, tag, from)| (*tag, *from)));
        }
        table.clear(self.budget)
    }

    /// Handles a message; `None` if no call can expect it, or if it does not fit what came before
    /// it.
    pub(crate) fn deliver(&self, from: WorldRank, head: &Head, piece: &[u8]) -> Option<CtsHeads> {
        let handled = match head.op {
            op if op == CollectiveKind::Piece as u8 => self.deliver_piece(from, head, piece),
            op if op == CollectiveKind::Rts as u8 && piece.is_empty() => {
                let asked = self.deliver_rts(from, head);
                return asked.or_else(|| self.is_left_over(from, head).then(CtsHeads::new));
            }
            op if op == CollectiveKind::Cts as u8 => self.deliver_cts(from, head),
            op if op == CollectiveKind::Abandon as u8 => self.deliver_abandon(from, head),
            op if op == CollectiveKind::Offer as u8 => self.deliver_offer(from, head, piece),
            _ => false,
        };
        (handled || self.is_left_over(from, head)).then(CtsHeads::new)
    }

    /// Whether a message is of an operation that is over here, or about to be, because a rank gave
    /// it up.
    fn is_left_over(&self, from: WorldRank, head: &Head) -> bool {
        let table = self.table();
        let Some(inbound) = table.of.get(&head.object.get()) else { return false };
        let behind = inbound.current.place().tag.wrapping_sub(head.tag.get()) <= u32::MAX / 2;
        let cts = head.op == CollectiveKind::Cts as u8;
        let is_member = inbound.members.rank_of(from).is_some();
        is_member && (behind || cts) && inbound.current.news().leaves_messages()
    }

    fn deliver_piece(&self, from: WorldRank, head: &Head, piece: &[u8]) -> bool {
        let (rest, number, offset) = (head.length.get(), head.slot.get(), head.offset.get());
        let end = offset.checked_add(piece.len() as u64);
        let too_long = rest > self.payload_max(head.object.get())
            || end.is_none_or(|end| end > part_len(rest));
        if too_long || (piece.is_empty() && rest > 0) {
            return false;
        }
        let (id, tag) = (head.object.get(), head.tag.get());
        let mut table = self.table();
        let InboundTable { of, held, .. } = &mut *table;
        let Some(inbound) = of.get_mut(&id).filter(|it| it.expects(tag, from)) else {
            return false;
        };
        let contributions = inbound.contributions.entry((operation(tag), from)).or_default();
        let is_it = |contribution: &&mut Contribution| {
            (contribution.tag, contribution.number) == (tag, number)
        };
        if let Some(contribution) = contributions.iter_mut().find(is_it) {
            return contribution.add(rest, offset, piece);
        }
        // What is larger was not asked for.
        if contributions.len() == EACH_MAX || number > 0 || rest > SMALL {
            return false;
        }
        let mut contribution =
            Contribution { tag, number, rest, state: ContributionState::Waiting };
        contribution.begin();
        contribution.add(rest, offset, piece);
        contributions.push(contribution);
        *held = held.saturating_add(rest);
        true
    }

    fn deliver_rts(&self, from: WorldRank, head: &Head) -> Option<CtsHeads> {
        let (rest, number) = (head.length.get(), head.slot.get());
        let (id, tag) = (head.object.get(), head.tag.get());
        let mut table = self.table();
        let inbound = table.of.get_mut(&id).filter(|it| it.expects(tag, from))?;
        let contributions = inbound.contributions.entry((operation(tag), from)).or_default();
        let is_it =
            |contribution: &Contribution| (contribution.tag, contribution.number) == (tag, number);
        if contributions.len() == EACH_MAX || contributions.iter().any(is_it) {
            return None;
        }
        let refused = NoRoom { bytes: rest, limit: self.payload_max(head.object.get()) };
        let takes = rest <= refused.limit;
        let state =
            if takes { ContributionState::Waiting } else { ContributionState::Refused(refused) };
        contributions.push(Contribution { tag, number, rest, state });
        if takes {
            table.waiting.push_back(((id, tag, from), number));
        }
        Some(table.clear(self.budget))
    }

    fn deliver_offer(&self, from: WorldRank, head: &Head, offer: &[u8]) -> bool {
        let (id, tag, bytes) = (head.object.get(), head.tag.get(), head.length.get());
        if head.slot.get() != 0 || offer.len() as u64 > SMALL {
            return false;
        }
        let mut table = self.table();
        let InboundTable { of, held, .. } = &mut *table;
        let Some(inbound) = of.get_mut(&id).filter(|it| it.expects(tag, from)) else {
            return false;
        };
        let contributions = inbound.contributions.entry((operation(tag), from)).or_default();
        if contributions.len() == EACH_MAX || contributions.iter().any(|other| other.tag == tag) {
            return false;
        }
        let refused = NoRoom { bytes, limit: self.payload_max(id) };
        let state = match bytes <= refused.limit {
            true => ContributionState::Offered(offer.to_vec()),
            false => ContributionState::Refused(refused),
        };
        let contribution = Contribution { tag, number: 0, rest: bytes, state };
        *held = held.saturating_add(contribution.held());
        contributions.push(contribution);
        true
    }

    fn deliver_cts(&self, from: WorldRank, head: &Head) -> bool {
        let (key, number) = ((head.object.get(), head.tag.get(), from), head.slot.get());
        match self.table().requested.get_mut(&key) {
            Some((asked, cleared)) if *asked == number => {
                *cleared = true;
                true
            }
            _ => false,
        }
    }

    fn deliver_abandon(&self, from: WorldRank, head: &Head) -> bool {
        let table = self.table();
        let Some(inbound) = table.of.get(&head.object.get()) else { return false };
        let is_member = |world| inbound.members.rank_of(world).is_some();
        let current = &inbound.current;
        if let Some(one) = read_one_operation(head) {
            // Each rank tells so of itself.
            let heard = is_member(from) && from == one.1;
            if heard {
                current.news().hear_of_one(one, current.place());
            }
            return heard;
        }
        let Some((whom, news)) = read_abandon(head) else { return false };
        let are_members = is_member(from) && is_member(whom);
        if are_members {
            current.news().hear(news);
        }
        are_members
    }

    /// This rank asks for a part, until it does not any more.
    pub(crate) fn request(&self, key: ContributionKey, number: u64) {
        self.table().requested.insert(key, (number, false));
    }

    pub(crate) fn is_cleared(&self, key: &ContributionKey) -> bool {
        self.table().requested.get(key).is_some_and(|(_, cleared)| *cleared)
    }

    pub(crate) fn withdraw(&self, key: &ContributionKey) {
        self.table().requested.remove(key);
    }

    /// A member that has sent something of the operation of that tag, and the bytes of its payload.
    pub(crate) fn sender_of(&self, id: u64, tag: u32) -> Option<(WorldRank, u64)> {
        let table = self.table();
        let contributions = &table.of.get(&id)?.contributions;
        let found = contributions.iter().find(|((other, _), _)| *other == operation(tag));
        found.and_then(|((_, from), parts)| Some((*from, parts.first()?.rest)))
    }

    /// The part, if all of it is there, or that it was refused.
    pub(crate) fn take(
        &self,
        key: &ContributionKey,
        number: u64,
    ) -> Option<(Result<PayloadPart, NoRoom>, CtsHeads)> {
        let (id, tag, from) = *key;
        let mut table = self.table();
        let inbound = table.of.get_mut(&id)?;
        let contributions = inbound.contributions.get_mut(&(operation(tag), from))?;
        let at = contributions.iter().position(|it| (it.tag, it.number) == (tag, number))?;
        let (bytes, is_offer) = match &mut contributions[at].state {
            ContributionState::Waiting | ContributionState::Arriving { left: 1.., .. } => {
                return None;
            }
            // It stays until the operation is over.
            ContributionState::Refused(no_room) => return Some((Err(*no_room), CtsHeads::new())),
            ContributionState::Arriving { bytes, .. } => (mem::take(bytes), false),
            ContributionState::Offered(offer) => (mem::take(offer), true),
        };
        let rest = contributions.swap_remove(at).rest;
        if contributions.is_empty() {
            inbound.contributions.remove(&(operation(tag), from));
        }
        table.held -= bytes.len() as u64;
        Some((Ok(PayloadPart { bytes, rest, is_offer }), table.clear(self.budget)))
    }
}

#[cfg(test)]
#[path = "contributions_tests.rs"]
mod tests;
