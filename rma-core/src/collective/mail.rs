//! Payloads of collective operations, put together from the messages they came in.
//!
//! What may come is known: a payload belongs to a communicator of this rank, comes from a member,
//! and is of an operation that this rank has begun or that the sender may be in already. All of
//! them together have a budget.
use super::AHEAD_MAX;
use crate::error::CollectiveError;
use crate::group::Group;
use crate::protocol::message::Head;
use crate::rank::Rank;
use crate::transport::WorldRank;
use core::mem;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Payloads that a rank sends another in one operation, at most: allgatherv sends lengths first.
const EACH_MAX: usize = 2;
/// Payloads of so many bytes always have room, because those of the runtime itself are no longer.
/// How many there are is bounded by the operations that senders can be in.
const SMALL: u64 = 4096;
/// Bits of a tag that number the payloads of one operation.
const ROUND_BITS: u32 = 8;

/// Which payload: communicator, tag, sender.
pub(crate) type Key = (u64, u32, WorldRank);

/// Number of the last operation that a rank has begun on a communicator.
///
/// Relaxed, because a rank that is ahead was let go by a barrier that this one had begun: whoever
/// handles its message has seen that number.
#[derive(Debug, Clone, Default)]
pub(crate) struct Current(Arc<AtomicU32>);

impl Current {
    /// Begins another operation; its tag, whose lowest bits are the operation's own.
    pub(crate) fn next_tag(&self) -> u32 {
        self.0.fetch_add(1, Relaxed).wrapping_add(1) << ROUND_BITS
    }

    /// Whether a sender can be in the operation of that tag. It may be at the barrier that comes
    /// after as many operations as one may be ahead.
    fn expects(&self, tag: u32) -> bool {
        let ahead = tag.wrapping_sub(self.0.load(Relaxed) << ROUND_BITS) >> ROUND_BITS;
        ahead <= AHEAD_MAX + 1
    }
}

/// The budget has no room for a payload of so many bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoRoom {
    pub(crate) bytes: u64,
    pub(crate) limit: u64,
}

impl NoRoom {
    /// As the error of an operation in which `from` had sent that.
    pub(crate) fn of(self, what: &'static str, from: Rank) -> CollectiveError {
        let Self { bytes, limit } = self;
        CollectiveError::NoRoom { what, from, bytes, limit }
    }
}

#[derive(Debug)]
pub(crate) struct Mail {
    /// The longest payload.
    payload_max: u64,
    /// Of all payloads, in bytes.
    budget: u64,
    boxes: Mutex<Boxes>,
}

#[derive(Debug, Default)]
struct Boxes {
    /// By communicator.
    of: HashMap<u64, Letterbox>,
    /// Bytes of the payloads in all of them.
    held: u64,
}

/// What has come for a communicator and was not taken.
#[derive(Debug)]
struct Letterbox {
    members: Group,
    current: Current,
    payloads: HashMap<(u32, WorldRank), Vec<(u32, Payload)>>,
}

#[derive(Debug)]
enum Payload {
    Arriving { bytes: Vec<u8>, left: u64 },
    Refused(NoRoom),
}

impl Payload {
    fn held(&self) -> u64 {
        match self {
            Self::Arriving { bytes, .. } => bytes.len() as u64,
            Self::Refused(_) => 0,
        }
    }

    /// Takes one piece that ends inside of `total`; false if it does not fit what came before.
    fn add(&mut self, total: u64, offset: u64, piece: &[u8]) -> bool {
        match self {
            Self::Refused(NoRoom { bytes, .. }) => *bytes == total,
            Self::Arriving { bytes, left }
                if bytes.len() as u64 == total && *left >= piece.len() as u64 =>
            {
                // Both ends are below `total`, which is the length of a vector.
                bytes[offset as usize..][..piece.len()].copy_from_slice(piece);
                *left -= piece.len() as u64;
                true
            }
            Self::Arriving { .. } => false,
        }
    }
}

impl Letterbox {
    fn held(&self) -> u64 {
        self.payloads.values().flatten().map(|(_, payload)| payload.held()).sum()
    }
}

impl Boxes {
    /// Forgets payloads of operations that ended without taking them, because they failed.
    fn forget_stale(&mut self) {
        for letters in self.of.values_mut() {
            let current = &letters.current;
            letters.payloads.retain(|(operation, _), _| current.expects(*operation));
        }
        self.held = self.of.values().map(Letterbox::held).sum();
    }

    /// Room for a payload, or that there is none.
    fn admit(&mut self, total: u64, budget: u64) -> Payload {
        let sum = |held: u64| held.checked_add(total);
        let fits = |held| total <= SMALL || sum(held).is_some_and(|sum| sum <= budget);
        if !fits(self.held) {
            self.forget_stale();
        }
        if !fits(self.held) {
            return Payload::Refused(NoRoom { bytes: total, limit: budget });
        }
        self.held += total;
        Payload::Arriving { bytes: vec![0; total as usize], left: total }
    }
}

/// A tag without the bits that are the operation's own.
fn operation(tag: u32) -> u32 {
    tag >> ROUND_BITS << ROUND_BITS
}

impl Mail {
    /// Payloads of `payload_max` bytes at most, and of `budget` bytes together.
    pub(crate) fn new(payload_max: u64, budget: u64) -> Self {
        Self { payload_max, budget, boxes: Mutex::default() }
    }

    /// The longest payload that can arrive.
    pub(crate) fn payload_max(&self) -> u64 {
        self.payload_max.min(self.budget.max(SMALL))
    }

    fn boxes(&self) -> MutexGuard<'_, Boxes> {
        self.boxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on, messages of that communicator are expected.
    pub(crate) fn open(&self, id: u64, members: Group) -> Current {
        let current = Current::default();
        let letters = Letterbox { members, current: current.clone(), payloads: HashMap::default() };
        self.boxes().of.insert(id, letters);
        current
    }

    /// No more messages of that communicator are expected.
    pub(crate) fn close(&self, id: u64) {
        let mut boxes = self.boxes();
        let held = boxes.of.remove(&id).map_or(0, |letters| letters.held());
        boxes.held -= held;
    }

    /// Takes one piece; false if nobody can expect it, or if it does not fit what came before it.
    pub(crate) fn deliver(&self, from: WorldRank, head: &Head, piece: &[u8]) -> bool {
        let (total, offset) = (head.length.get(), head.offset.get());
        let end = offset.checked_add(piece.len() as u64);
        let too_long = total > self.payload_max() || end.is_none_or(|end| end > total);
        if too_long || (piece.is_empty() && total > 0) {
            return false;
        }
        let (id, tag) = (head.object.get(), head.tag.get());
        let key = (operation(tag), from);
        let mut boxes = self.boxes();
        let Some(letters) = boxes.of.get_mut(&id) else { return false };
        if !letters.current.expects(tag) || letters.members.rank_of(from).is_none() {
            return false;
        }
        let of_sender = letters.payloads.entry(key).or_default();
        if let Some((_, payload)) = of_sender.iter_mut().find(|(known, _)| *known == tag) {
            return payload.add(total, offset, piece);
        }
        if of_sender.len() == EACH_MAX {
            return false;
        }
        let mut payload = boxes.admit(total, self.budget);
        payload.add(total, offset, piece);
        let letters = boxes.of.get_mut(&id);
        // Stale payloads may have been forgotten meanwhile.
        let of_sender = letters.map(|letters| letters.payloads.entry(key).or_default());
        of_sender.map(|payloads| payloads.push((tag, payload))).is_some()
    }

    /// The payload, if all of it is there, or that it was refused.
    pub(crate) fn take(&self, key: &Key) -> Option<Result<Vec<u8>, NoRoom>> {
        let (id, tag, from) = *key;
        let mut boxes = self.boxes();
        let letters = boxes.of.get_mut(&id)?;
        let of_sender = letters.payloads.get_mut(&(operation(tag), from))?;
        let at = of_sender.iter().position(|(known, _)| *known == tag)?;
        let bytes = match &mut of_sender[at].1 {
            Payload::Arriving { left: 1.., .. } => return None,
            // It stays until the operation is over, for the rest of it to be refused, too.
            Payload::Refused(no_room) => return Some(Err(*no_room)),
            Payload::Arriving { bytes, .. } => mem::take(bytes),
        };
        of_sender.swap_remove(at);
        if of_sender.is_empty() {
            letters.payloads.remove(&(operation(tag), from));
        }
        boxes.held -= bytes.len() as u64;
        Some(Ok(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::message::Kind;

    const ID: u64 = 5;
    const FIRST: u32 = 1 << ROUND_BITS;
    const SENDER: WorldRank = WorldRank(2);

    /// For three ranks, in their first operation.
    fn mail(payload_max: u64, budget: u64) -> (Mail, Current) {
        let mail = Mail::new(payload_max, budget);
        let current = mail.open(ID, Group::world(3));
        assert_eq!(current.next_tag(), FIRST);
        (mail, current)
    }

    fn piece_of(tag: u32, offset: u64, total: u64) -> Head {
        let mut head = Head::new(Kind::Collective, ID, tag);
        head.offset = offset.into();
        head.length = total.into();
        head
    }

    fn piece(offset: u64, total: u64) -> Head {
        piece_of(FIRST, offset, total)
    }

    /// Delivers a whole payload of that many bytes.
    fn send(mail: &Mail, tag: u32, bytes: usize) -> bool {
        mail.deliver(SENDER, &piece_of(tag, 0, bytes as u64), &vec![7; bytes])
    }

    #[test]
    fn pieces_in_any_order_make_a_payload() {
        let (mail, _) = mail(100, 100);
        let key = (ID, FIRST, SENDER);
        assert!(mail.deliver(SENDER, &piece(2, 3), b"c"));
        assert_eq!(mail.take(&key), None);
        assert!(mail.deliver(SENDER, &piece(0, 3), b"ab"));
        assert_eq!(mail.take(&key), Some(Ok(b"abc".to_vec())));
        assert_eq!(mail.take(&key), None);
    }

    #[test]
    fn pieces_that_lie_are_refused() {
        let (mail, _) = mail(100, 1000);
        assert!(!mail.deliver(SENDER, &piece(2, 3), b"cd"), "past the end");
        assert!(!mail.deliver(SENDER, &piece(u64::MAX, 3), b"c"), "overflow");
        assert!(!mail.deliver(SENDER, &piece(0, 101), b"c"), "beyond the limit");
        assert!(mail.deliver(SENDER, &piece(0, 3), b"ab"));
        assert!(!mail.deliver(SENDER, &piece(0, 4), b"ab"), "another length");
        assert!(!mail.deliver(SENDER, &piece(1, 3), b"ab"), "more than is left");
    }

    #[test]
    fn empty_payloads_arrive() {
        let (mail, _) = mail(100, 0);
        assert!(mail.deliver(SENDER, &piece(0, 0), b""));
        assert_eq!(mail.take(&(ID, FIRST, SENDER)), Some(Ok(Vec::new())));
    }

    #[test]
    fn nobody_expects_strangers() {
        let (mail, _) = mail(100, 100);
        assert!(!mail.deliver(WorldRank(3), &piece(0, 1), b"a"), "no member");
        let mut head = piece(0, 1);
        head.object = (ID + 1).into();
        assert!(!mail.deliver(SENDER, &head, b"a"), "no communicator");
        mail.close(ID);
        assert!(!mail.deliver(SENDER, &piece(0, 1), b"a"), "none any more");
    }

    #[test]
    fn operations_that_no_rank_can_be_in_are_not_expected() {
        let (mail, current) = mail(100, 100);
        let tag = |operation: u32| operation << ROUND_BITS;
        assert!(!send(&mail, tag(0), 1), "before the present one");
        assert!(send(&mail, tag(AHEAD_MAX + 2), 1), "the barrier of one that is ahead");
        assert!(!send(&mail, tag(AHEAD_MAX + 3), 1), "beyond it");
        assert!(!send(&mail, 1 << 31, 1), "far away");
        // Also where tags begin again.
        let last = u32::MAX >> ROUND_BITS;
        current.0.store(last, Relaxed);
        assert!(send(&mail, tag(last), 1) && send(&mail, tag(last.wrapping_add(1)), 1));
        assert!(!send(&mail, tag(last - 1), 1));
    }

    #[test]
    fn a_sender_has_few_payloads_in_each_operation() {
        let (mail, _) = mail(100, 100);
        assert!(send(&mail, FIRST, 1) && send(&mail, FIRST | 32, 1));
        assert!(!send(&mail, FIRST | 33, 1));
        assert!(mail.deliver(WorldRank(1), &piece_of(FIRST | 33, 0, 1), b"a"), "by another");
        assert_eq!(mail.take(&(ID, FIRST, SENDER)), Some(Ok(vec![7])));
    }

    #[test]
    fn the_budget_holds_and_comes_back() {
        let (mail, current) = mail(60_000, 100_000);
        let second = FIRST << 1;
        let limit = NoRoom { bytes: 41_000, limit: 100_000 };
        assert!(send(&mail, FIRST, 60_000));
        assert!(send(&mail, FIRST | 1, 41_000), "known to have come");
        assert_eq!(mail.boxes().held, 60_000);
        assert_eq!(mail.take(&(ID, FIRST | 1, SENDER)), Some(Err(limit)));
        assert!(send(&mail, second, 40_000));
        assert_eq!(mail.take(&(ID, FIRST, SENDER)), Some(Ok(vec![7; 60_000])));
        assert!(send(&mail, second | 1, 60_000));
        assert_eq!(mail.boxes().held, 100_000);
        // Nobody takes what is of an operation that is over.
        assert_eq!((current.next_tag(), current.next_tag()), (second, 3 * FIRST));
        assert!(send(&mail, 3 * FIRST, 50_000));
        assert_eq!(mail.boxes().held, 50_000);
        mail.close(ID);
        assert_eq!(mail.boxes().held, 0);
    }

    #[test]
    fn what_is_refused_is_refused_to_its_last_piece() {
        let (mail, _) = mail(60_000, 60_000);
        let key = (ID, FIRST | 1, SENDER);
        let half = vec![1; 5_000];
        assert!(send(&mail, FIRST, 60_000));
        assert!(mail.deliver(SENDER, &piece_of(FIRST | 1, 0, 10_000), &half));
        let no_room = NoRoom { bytes: 10_000, limit: 60_000 };
        assert_eq!(mail.take(&key), Some(Err(no_room)));
        assert_eq!(mail.take(&(ID, FIRST, SENDER)), Some(Ok(vec![7; 60_000])));
        assert!(mail.deliver(SENDER, &piece_of(FIRST | 1, 5_000, 10_000), &half));
        assert_eq!(mail.take(&key), Some(Err(no_room)));
        assert_eq!(mail.boxes().held, 0);
    }

    #[test]
    fn small_payloads_always_have_room() {
        let (mail, _) = mail(60_000, 60_000);
        assert!(send(&mail, FIRST, 60_000) && send(&mail, FIRST | 1, 8));
        assert_eq!(mail.take(&(ID, FIRST | 1, SENDER)), Some(Ok(vec![7; 8])));
    }

    #[test]
    fn a_budget_below_the_longest_payload_limits_it() {
        let (mail, _) = mail(100_000, 10_000);
        assert_eq!(mail.payload_max(), 10_000);
        assert!(send(&mail, FIRST, 10_000) && !send(&mail, FIRST | 1, 10_001));
    }
}
