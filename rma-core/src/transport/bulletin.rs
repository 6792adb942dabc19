//! What a rank tells its launcher while it runs: what it waits for, and counts of what it did, in
//! words that both map. A rank that is asleep or stopped cannot be asked, so it writes before it
//! sleeps.
use super::WorldRank;
use crate::group::SomeRanks;
use crate::object::WindowId;
use core::fmt;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU64, fence};
use core::time::Duration;

/// Says that a rank of this version writes here; changes with the layout of the words.
const MARK: u64 = u64::from_be_bytes(*b"rma-bul1");
/// Where [`MARK`] is.
const MARK_AT: usize = 0;
/// Where the number of windows is.
const WINDOWS_AT: usize = 1;
/// Where the counts are, in the order of [`Count`].
const COUNTS_AT: usize = 2;
/// Where the slots of waits begin.
const SLOTS_AT: usize = 16;
/// Words of a slot.
const SLOT: usize = 12;
/// Words of the text of a wait, the last ones of its slot.
const TEXT: usize = 5;
/// Threads of a rank whose waits can be told of at a time; those of more are not told.
const SLOTS: usize = 4;

/// Words of a slot, by their place in it.
const STATE: usize = 0;
const SINCE: usize = 1;
const KINDS: usize = 2;
const PEER: usize = 3;
const RUN: usize = 4;
const SIZES: usize = 5;
const OBJECT: usize = 6;
const WHAT: usize = 7;

/// What the two lowest bits of a slot's state say; those above count its uses, so that two looks
/// know whether they saw the same wait.
const PHASE: u64 = 3;
const FREE: u64 = 0;
const WRITING: u64 = 1;
const TOLD: u64 = 2;

/// No rank has this number.
const UNKNOWN: u64 = u64::MAX;

/// What a rank counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Count {
    Operations,
    Sent,
    Received,
    Dropped,
    Parked,
    ServedByAgent,
    Transfers,
}

impl Count {
    /// How many there are.
    pub(crate) const ALL: usize = Self::Transfers as usize + 1;
}

/// The words of one rank.
#[derive(Debug, Clone, Copy)]
pub struct Bulletin(&'static [AtomicU64; Bulletin::WORDS]);

/// What a wait is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum About {
    /// The rank as a whole.
    Rank,
    /// A window, by its [number](crate::WindowId).
    Window(u64),
    /// A communicator, by its number; 0 is the world.
    Communicator(u64),
}

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Rank => f.write_str("the rank"),
            Self::Window(id) => write!(f, "window {}", WindowId(id)),
            Self::Communicator(0) => f.write_str("the world"),
            // Numbered as windows are, and along with them.
            Self::Communicator(id) => write!(f, "communicator {}", WindowId(id)),
        }
    }
}

/// The processes that a wait is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Whom {
    /// That process.
    Rank(u32),
    /// Whichever process holds or owes what is waited for, which was not known.
    Unknown,
    /// Every process of a group.
    All(SomeRanks),
    /// Those processes of a group that hold a lock; of the part of that one, if the lock is far.
    Holders(SomeRanks, Option<u32>),
    /// Any process of a group.
    Any(SomeRanks),
}

/// A wait of a thread of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToldWait {
    /// What for, as errors say it; cut after 40 bytes.
    pub what: String,
    /// Of which object.
    pub about: About,
    /// On which processes.
    pub whom: Whom,
    /// Since when, by the transport's clock: `CLOCK_MONOTONIC` of the machine, in shared memory.
    pub since: Duration,
}

/// What a rank has told.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ToldRank {
    /// Waits of its threads that are asleep in one.
    pub waits: Vec<ToldWait>,
    /// Its windows.
    pub windows: u64,
    /// Operations on windows that the calling thread did not perform by load and store alone;
    /// those, too, where the hint `rma_count` asks for it.
    pub operations: u64,
    /// Messages sent.
    pub sent: u64,
    /// Messages received.
    pub received: u64,
    /// Times that a thread went to sleep in a wait.
    pub parked: u64,
}

impl Bulletin {
    /// Words of a rank.
    pub const WORDS: usize = SLOTS_AT + SLOTS * SLOT;

    /// In these words, which the launcher reads; they are 0 before.
    pub fn new(words: &'static [AtomicU64; Self::WORDS]) -> Self {
        // pairs with the Acquire of a launcher, if any maps them: what stands there besides is 0.
        words[MARK_AT].store(MARK, Release);
        Self(words)
    }

    /// Counts something.
    #[inline]
    pub(crate) fn count(&self, count: Count) -> &AtomicU64 {
        &self.0[COUNTS_AT + count as usize]
    }

    /// A window was made, or (`by` is -1) freed.
    pub(crate) fn count_windows(&self, by: i64) {
        self.0[WINDOWS_AT].fetch_add(by.cast_unsigned(), Relaxed);
    }

    /// Tells of a wait that begins to sleep, until that is dropped; `None` if there is no slot for
    /// it.
    pub(crate) fn tell(
        &self,
        what: &str,
        about: About,
        whom: Whom,
        since: Duration,
    ) -> Option<Telling> {
        let slots = self.0[SLOTS_AT..].chunks_exact(SLOT);
        let (slot, uses) = slots.into_iter().find_map(|slot| {
            let seen = slot[STATE].load(Relaxed);
            let writing = seen | WRITING;
            // pairs with the Release of the thread that had the slot before.
            let taken = seen & PHASE == FREE
                && slot[STATE].compare_exchange(seen, writing, Acquire, Relaxed).is_ok();
            taken.then_some((slot, seen))
        })?;
        // A reader that sees one of the words below sees that the slot is being written.
        fence(Release);
        let len = what.floor_char_boundary(TEXT * 8);
        let (kind, peer, some) = match whom {
            Whom::Rank(rank) => (0, u64::from(rank), None),
            Whom::Unknown => (0, UNKNOWN, None),
            Whom::All(some) => (1, UNKNOWN, Some(some)),
            Whom::Holders(some, home) => (2, home.map_or(UNKNOWN, u64::from), Some(some)),
            Whom::Any(some) => (3, UNKNOWN, Some(some)),
        };
        let (about, object) = match about {
            About::Rank => (0, 0),
            About::Window(id) => (1, id),
            About::Communicator(id) => (2, id),
        };
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let (run, sizes) = some.map_or((0, 0), |SomeRanks { first, stride, count, size }| {
            (pair(first, stride.cast_unsigned()), pair(count, size))
        });
        slot[SINCE].store(since.as_nanos() as u64, Relaxed);
        slot[KINDS].store(kind | about << 8 | (len as u64) << 16, Relaxed);
        slot[PEER].store(peer, Relaxed);
        slot[RUN].store(run, Relaxed);
        slot[SIZES].store(sizes, Relaxed);
        slot[OBJECT].store(object, Relaxed);
        let mut words = what.as_bytes()[..len].chunks(8);
        for word in &slot[WHAT..] {
            let mut bytes = [0; 8];
            let text = words.next().unwrap_or_default();
            bytes[..text.len()].copy_from_slice(text);
            word.store(u64::from_le_bytes(bytes), Relaxed);
        }
        // pairs with the fences between the looks of a reader.
        slot[STATE].store(uses | TOLD, Release);
        Some(Telling(slot))
    }

    /// What stands in these words: three copies, made one behind the other. `None` if no rank of
    /// this version wrote there.
    pub fn read(copies: [&[u64; Self::WORDS]; 3]) -> Option<ToldRank> {
        let [first, words, last] = copies;
        if words[MARK_AT] != MARK {
            return None;
        }
        // The words of a slot that is the same before and after belong together.
        let slots = (SLOTS_AT..Self::WORDS).step_by(SLOT);
        let slots = slots.filter(|at| first[*at] & PHASE == TOLD && first[*at] == last[*at]);
        let count = |count: Count| words[COUNTS_AT + count as usize];
        Some(ToldRank {
            waits: slots.filter_map(|at| wait_in(&words[at..at + SLOT])).collect(),
            windows: words[WINDOWS_AT],
            operations: count(Count::Operations),
            sent: count(Count::Sent),
            received: count(Count::Received),
            parked: count(Count::Parked),
        })
    }
}

/// The wait of a slot; `None` if a rank wrote what it must not.
fn wait_in(slot: &[u64]) -> Option<ToldWait> {
    let kinds = slot[KINDS];
    let halves = |word: u64| (word as u32, (word >> 32) as u32);
    let ((first, stride), (count, size)) = (halves(slot[RUN]), halves(slot[SIZES]));
    let some = SomeRanks { first, stride: stride.cast_signed(), count, size };
    let peer = u32::try_from(slot[PEER]).ok();
    let whom = match kinds & 0xff {
        0 => peer.map_or(Whom::Unknown, Whom::Rank),
        1 => Whom::All(some),
        2 => Whom::Holders(some, peer),
        3 => Whom::Any(some),
        _ => return None,
    };
    let about = match kinds >> 8 & 0xff {
        0 => About::Rank,
        1 => About::Window(slot[OBJECT]),
        2 => About::Communicator(slot[OBJECT]),
        _ => return None,
    };
    let text: Vec<u8> = slot[WHAT..].iter().flat_map(|word| word.to_le_bytes()).collect();
    let text = text.get(..usize::try_from(kinds >> 16).ok()?)?;
    let what = String::from_utf8_lossy(text).into_owned();
    Some(ToldWait { what, about, whom, since: Duration::from_nanos(slot[SINCE]) })
}

/// A wait that is told of, until this is dropped.
#[derive(Debug)]
pub(crate) struct Telling(&'static [AtomicU64]);

impl Telling {
    /// Another process holds or owes what is waited for by now, perhaps.
    pub(crate) fn set_peer(&self, peer: Option<WorldRank>) {
        self.0[PEER].store(peer.map_or(UNKNOWN, |peer| peer.0.into()), Relaxed);
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        let uses = (self.0[STATE].load(Relaxed) | PHASE) + 1;
        // pairs with the Acquire of the next thread that takes the slot.
        self.0[STATE].store(uses, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicBool;
    use core::sync::atomic::Ordering::SeqCst;

    type Words = [AtomicU64; Bulletin::WORDS];

    /// Words that stay, as those of a mapping that is never undone.
    fn words() -> &'static Words {
        static ROOM: [Words; 8] = [const { [const { AtomicU64::new(0) }; Bulletin::WORDS] }; 8];
        static NEXT: AtomicU64 = AtomicU64::new(0);
        &ROOM[NEXT.fetch_add(1, Relaxed) as usize]
    }

    fn copy(words: &Words) -> [u64; Bulletin::WORDS] {
        fence(SeqCst);
        words.each_ref().map(|word| word.load(Acquire))
    }

    fn read(words: &Words) -> Option<ToldRank> {
        let copies = [(); 3].map(|()| copy(words));
        Bulletin::read(copies.each_ref())
    }

    fn some(size: u32) -> SomeRanks {
        SomeRanks { first: 7, stride: -2, count: 3, size }
    }

    #[test]
    fn what_is_told_is_read() {
        let words = words();
        assert_eq!(read(words), None, "no rank has written there");
        let bulletin = Bulletin::new(words);
        assert_eq!(read(words), Some(ToldRank::default()));
        bulletin.count(Count::Operations).fetch_add(5, Relaxed);
        bulletin.count(Count::Transfers).fetch_add(6, Relaxed);
        bulletin.count_windows(1);
        bulletin.count_windows(1);
        bulletin.count_windows(-1);
        let since = Duration::new(3, 4);
        for whom in [
            Whom::Rank(3),
            Whom::Unknown,
            Whom::All(some(3)),
            Whom::Holders(some(9), None),
            Whom::Holders(some(9), Some(0)),
            Whom::Any(some(3)),
        ] {
            for about in [About::Rank, About::Window(1 << 40 | 2), About::Communicator(0)] {
                let what = "a wait".to_owned();
                let telling = bulletin.tell(&what, about, whom, since).unwrap();
                let told = read(words).unwrap();
                assert_eq!(told.waits, [ToldWait { what, about, whom, since }]);
                assert_eq!((told.windows, told.operations), (1, 5));
                drop(telling);
                assert_eq!(read(words).unwrap().waits, []);
            }
        }
    }

    #[test]
    fn each_thread_has_a_slot_while_there_are_some() {
        let words = words();
        let bulletin = Bulletin::new(words);
        let tell = |what| bulletin.tell(what, About::Rank, Whom::Unknown, Duration::ZERO);
        let mut all: Vec<_> = ["a", "b", "c", "d"].map(|what| tell(what).unwrap()).into();
        assert!(tell("e").is_none());
        all[3].set_peer(Some(WorldRank(9)));
        assert_eq!(read(words).unwrap().waits[3].whom, Whom::Rank(9));
        drop(all.remove(1));
        let _long = tell("more than forty bytes of what is waited f\u{f6}r").unwrap();
        let told = read(words).unwrap().waits;
        let whats: Vec<_> = told.iter().map(|wait| &*wait.what).collect();
        assert_eq!(whats, ["a", "more than forty bytes of what is waited ", "c", "d"]);
    }

    #[test]
    fn another_wait_in_the_same_slot_is_not_taken_for_the_first() {
        let words = words();
        let bulletin = Bulletin::new(words);
        let tell = || bulletin.tell("a", About::Rank, Whom::Unknown, Duration::ZERO).unwrap();
        let first = tell();
        let before = copy(words);
        drop(first);
        let _second = tell();
        let after = copy(words);
        assert_eq!(Bulletin::read([&before, &before, &after]).unwrap().waits, []);
        assert_eq!(Bulletin::read([&after; 3]).unwrap().waits.len(), 1);
    }

    #[test]
    fn words_that_no_rank_would_write_are_no_waits() {
        let words = words();
        let bulletin = Bulletin::new(words);
        let _told = bulletin.tell("a", About::Rank, Whom::Unknown, Duration::ZERO);
        let right = copy(words);
        for kinds in [4, 3 << 8, 41 << 16, u64::MAX] {
            let mut wrong = right;
            wrong[SLOTS_AT + KINDS] = kinds;
            assert_eq!(Bulletin::read([&wrong; 3]).unwrap().waits, []);
        }
    }

    /// What belongs together is read together, or not at all.
    #[test]
    fn a_reader_sees_whole_waits() {
        const ROUNDS: u64 = if cfg!(miri) { 20 } else { 20_000 };
        let words = words();
        let bulletin = Bulletin::new(words);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    let (rank, since) = (round as u32, Duration::from_nanos(round));
                    let what = round.to_string();
                    let about = About::Window(round);
                    drop(bulletin.tell(&what, about, Whom::Rank(rank), since).unwrap());
                }
                over.store(true, SeqCst);
            });
            loop {
                let last = over.load(SeqCst);
                for wait in read(words).unwrap().waits {
                    let round = wait.since.as_nanos() as u64;
                    let whom = Whom::Rank(round as u32);
                    let expected = (round.to_string(), About::Window(round), whom);
                    assert_eq!((wait.what, wait.about, wait.whom), expected);
                }
                if last {
                    break;
                }
            }
        });
    }
}
