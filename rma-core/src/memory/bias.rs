//! The bias of a part towards one thread, which combines elements of it alone.
//!
//! As long as one thread of one rank is the only one that combines elements of a part, it does so
//! by plain vectors, between two stores to a line of its own. Any other thread first revokes the
//! bias, once in the life of the window, and waits until the holder is not in the middle of
//! something; from then on all combine by atomics and under the locks of
//! [stripes](super::stripe), the former holder too
//! (docs/adr/0102-a-part-is-biased-to-who-combines-alone.md).
//!
//! Which of both it is for integers of 32 and 64 bits may depend on what comes: arrays earn by
//! locks, and single elements pay for them; when nothing is left, all go by atomics for good
//! (docs/adr/0103-arrays-of-integers-take-locks-while-they-earn.md).
use super::accumulate::Integers;
use super::control_block::ControlBlock;
use super::stripe::{self, ALL_STRIPES, Stripes};
use crate::element::BasicType;
use crate::rank::Rank;
use crate::thread;
use crate::word::Word;
use core::sync::atomic::AtomicU16;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

/// What the [`word`](Biased::bias) says in its low bits: without any, no thread has come yet.
mod state {
    /// Its holder may combine alone.
    pub(super) const HELD: u64 = 1;
    /// It may not begin to any more, but may do so for want of knowing that.
    pub(super) const REVOKED: u64 = 2;
    /// All threads have passed a fence since: it knows, but may be in the middle of something.
    pub(super) const FENCED: u64 = 3;
    /// No thread combines alone, now or later; integers are combined by atomics.
    pub(super) const SHARED: u64 = 4;
    /// As [`SHARED`], but integers are combined under the locks of stripes.
    pub(super) const LOCKED: u64 = 5;
    /// As [`LOCKED`], but by atomics under these locks: the holder may do so without, until it has
    /// seen that it is none.
    pub(super) const LOCKING: u64 = 6;
    pub(super) const MASK: u64 = 7;
}

/// What a rank may [note](Noted) of the bias of a part.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Note(u16);

impl Note {
    pub(crate) const NOTHING: Self = Self(3);
    /// All combine, integers by atomics.
    const SHARED: Self = Self(1);
    /// All combine, integers by lock.
    const SHARED_BY_LOCK: Self = Self(2);
    /// Beside a token: integers are combined by lock as soon as the bias is revoked, and so not by
    /// atomics before.
    const BY_LOCK: u16 = 1 << 15;

    /// Of a part that no thread ever combines at alone.
    pub(crate) fn shared(integers: Integers) -> Self {
        match integers {
            Integers::ByAtomics | Integers::AsTheyCome => Self::SHARED,
            Integers::ByLock => Self::SHARED_BY_LOCK,
        }
    }

    /// What it says of a part where all combine.
    #[inline(always)]
    pub(crate) fn mechanism<B: Biased>(self, is_atomic: bool) -> Option<Mechanism<B>> {
        match self {
            Self::SHARED if is_atomic => Some(Mechanism::Atomics),
            Self::SHARED | Self::SHARED_BY_LOCK => Some(Mechanism::Stripes),
            _ => None,
        }
    }

    /// A thread of this rank holds the bias.
    fn held(by: Holder, integers: Integers) -> Self {
        match integers {
            Integers::ByAtomics | Integers::AsTheyCome => Self(by.token),
            Integers::ByLock => Self(by.token | Self::BY_LOCK),
        }
    }
}

/// What threads of a rank have noted of the bias of a part, so that they need not look there.
pub(crate) struct Noted<W: Word<Value = u16> = AtomicU16>(W);

impl<W: Word<Value = u16> + From<u16>> From<Note> for Noted<W> {
    fn from(note: Note) -> Self {
        Self(W::from(note.0))
    }
}

impl<W: Word<Value = u16>> Noted<W> {
    pub(crate) fn set(&self, note: Note) {
        // pairs with the Acquire load in `load`.
        self.0.store(note.0, Release);
    }

    pub(crate) fn is_as(&self, other: &Self) -> bool {
        self.load() == other.load()
    }

    #[inline(always)]
    fn load(&self) -> u16 {
        // pairs with the Release store in `set`: what was combined alone is seen.
        self.0.load(Acquire)
    }

    /// Whether the thread of this token may combine integers of 32 and 64 bits by atomics: as one
    /// of all, or because what it does alone is its own.
    #[inline(always)]
    pub(crate) fn takes_atomics(&self, token: u16) -> bool {
        let noted = self.load();
        noted == token || noted == Note::SHARED.0
    }

    /// How a thread combines elements, of a type that is perhaps atomic, as far as that is noted.
    #[inline(always)]
    pub(crate) fn mechanism<B: Biased>(
        &self,
        is_atomic: bool,
        me: Holder,
        words: impl FnOnce() -> Option<B>,
    ) -> Option<Mechanism<B>> {
        let note = Note(self.load());
        if note.0 & !Note::BY_LOCK == me.token {
            return try_alone(words()?, me).map(Mechanism::Alone);
        }
        note.mechanism(is_atomic)
    }
}

/// How a thread combines elements of a part.
pub(crate) enum Mechanism<B: Biased> {
    Alone(Alone<B>),
    /// One by one, as the machine does.
    Atomics,
    /// Under the locks of their stripes; integers as [`are_locked`] says then.
    Stripes,
}

impl<B: Biased> Mechanism<B> {
    /// Whether it is by atomics, for a thread that holds the stripes, if it takes them.
    pub(crate) fn is_by_atomics(&self, basic: BasicType, words: B) -> bool {
        match self {
            Self::Alone(_) => false,
            Self::Atomics => true,
            Self::Stripes => basic.is_atomic() && !are_locked(words),
        }
    }
}

/// A thread of a rank, that may hold biases.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) rank: Rank,
    token: u16,
}

impl Holder {
    /// This thread, with the token that it has.
    #[inline(always)]
    pub(crate) fn this(rank: Rank) -> Self {
        Self { rank, token: thread::token() }
    }

    /// This thread, with a token that it has from now on; `None` if all are given out.
    pub(crate) fn enter(rank: Rank) -> Option<Self> {
        thread::take_token().map(|token| Self { rank, token })
    }

    #[inline(always)]
    fn word(self, state: u64) -> u64 {
        u64::from(self.rank) << 32 | u64::from(self.token) << 16 | state
    }

    fn of(word: u64) -> Self {
        Self { rank: Rank((word >> 32) as u32), token: (word >> 16) as u16 }
    }
}

/// Where the words of a bias are.
pub(crate) trait Biased: Stripes {
    /// Who holds it, and what became of it.
    fn bias(&self) -> &impl Word<Value = u64>;
    /// Not 0 while the holder combines. Written by the holder, or one that was it and has yet to
    /// see that it is no more.
    fn busy(&self) -> &impl Word<Value = u64>;
    /// What arrays of integers have earned by locks, see [`earn`].
    fn earned(&self) -> &impl Word<Value = u64>;
}

impl Biased for ControlBlock<'_> {
    #[inline(always)]
    fn bias(&self) -> &impl Word<Value = u64> {
        ControlBlock::bias(*self)
    }

    #[inline(always)]
    fn busy(&self) -> &impl Word<Value = u64> {
        ControlBlock::busy(*self)
    }

    #[inline(always)]
    fn earned(&self) -> &impl Word<Value = u64> {
        ControlBlock::earned(*self)
    }
}

/// While it lives, this thread alone combines elements of the part. S-H4 S-H6
pub(crate) struct Alone<B: Biased>(B);

impl<B: Biased> Alone<B> {
    /// See [`earn`].
    #[inline(always)]
    pub(crate) fn earn(&self, bytes: usize) {
        _ = earn(self.0, bytes);
    }
}

impl<B: Biased> Drop for Alone<B> {
    #[inline(always)]
    fn drop(&mut self) {
        // pairs with the Acquire load in `admit`: what was combined is seen.
        self.0.busy().store(0, Release);
    }
}

/// The holder's side of what [`admit`] does with all threads: no instruction of the machine, only
/// the order of those around it.
#[inline(always)]
fn light_fence() {
    #[cfg(any(loom, miri))]
    crate::word::fence(SeqCst);
    #[cfg(not(any(loom, miri)))]
    core::sync::atomic::compiler_fence(SeqCst);
}

/// Combines alone, if this thread holds the bias.
#[inline(always)]
pub(crate) fn try_alone<B: Biased>(words: B, me: Holder) -> Option<Alone<B>> {
    // A thread that revokes the bias sees this store, or the load behind it sees what that did:
    // each has passed a fence between the two.
    words.busy().store(1, Relaxed);
    light_fence();
    // What is combined now is seen no earlier than what was combined before, as of atomics.
    #[cfg(not(target_arch = "x86_64"))]
    crate::word::fence(Release);
    let alone = Alone(words);
    (words.bias().load(Relaxed) == me.word(state::HELD)).then_some(alone)
}

/// How a thread may combine elements of a part.
pub(crate) enum Admission<B: Biased> {
    Alone(Alone<B>),
    /// As one of all: integers by atomics, or by lock, which is what is noted.
    Shared(Note),
    /// Not yet: the one that held the bias is in the middle of something.
    Busy,
}

/// What a lock costs, in bytes of an array: so many more take about as much longer by atomics.
const LOCK_COST: u64 = 64;
/// More is not earned: so many single elements pay, when arrays come no more.
const MOST_EARNED: u64 = 1024 * LOCK_COST;

/// What a part begins with: so many bytes of single elements find out whether arrays come, too.
const EARNED_FIRST: u64 = if cfg!(loom) { 0 } else { 64 * LOCK_COST };

/// Counts integers that a thread combines under a lock, or would if it were not alone; returns what
/// is left. Threads may count at the same time: what is lost then is no harm.
#[inline(always)]
pub(crate) fn earn(words: impl Biased, bytes: usize) -> u64 {
    let before = words.earned().load(Relaxed);
    let left = before.saturating_add(bytes as u64).saturating_sub(LOCK_COST).min(MOST_EARNED);
    // Where nothing but arrays come, or nothing but elements, the line stays with all that read it.
    if left != before {
        words.earned().store(left, Relaxed);
    }
    left
}

/// As [`earn`], of a thread that holds no stripe: once nothing is left, it has integers combined by
/// atomics.
pub(crate) fn weigh(words: impl Biased, bytes: usize, rank: Rank) {
    let seen = words.bias().load(Relaxed);
    let (left, locked) = match seen & state::MASK {
        state::SHARED => return,
        state::LOCKED => (earn(words, bytes), true),
        // Arrays gain nothing yet: so that ends, even if the former holder never comes.
        state::LOCKING => (earn(words, 0), true),
        _ => (earn(words, bytes), false),
    };
    if locked
        && left == 0
        // While it has all, no thread combines under one; those that come next see the word.
        && let Some(_all) = stripe::try_range(words, &ALL_STRIPES, rank)
    {
        let next = Holder::of(seen).word(state::SHARED);
        // One that fails has been overtaken, by one that did the same or has settled it.
        _ = words.bias().compare_exchange(seen, next, AcqRel, Relaxed);
    }
}

/// Whether integers are combined as elements of other types are, for a thread that holds a stripe,
/// until it gives that back; otherwise it combines them by atomics.
#[inline(always)]
pub(crate) fn are_locked(words: impl Biased) -> bool {
    // None has come to a part that no thread ever combines at alone: they are, or take no stripe.
    // pairs with the Release exchange in `settle`: what its thread combined without a lock is seen.
    matches!(words.bias().load(Acquire) & state::MASK, 0 | state::LOCKED)
}

/// Comes to a part to combine elements: takes the bias if no thread has come before, unless this
/// one may hold none, and revokes that of another. `fence_all` has all threads of ranks that are
/// near pass a fence.
#[cold]
pub(crate) fn admit<B: Biased, E>(
    words: B,
    me: Option<Holder>,
    integers: Integers,
    fence_all: impl Fn() -> Result<(), E>,
) -> Result<Admission<B>, E> {
    // What it becomes when all combine; `held`: by a thread that may go on by atomics.
    let shared = |held: bool| match integers {
        Integers::ByAtomics => state::SHARED,
        Integers::ByLock => state::LOCKED,
        Integers::AsTheyCome if words.earned().load(Relaxed) == 0 => state::SHARED,
        Integers::AsTheyCome if held => state::LOCKING,
        Integers::AsTheyCome => state::LOCKED,
    };
    // pairs with the Release exchanges below: what was combined alone is seen.
    let mut seen = words.bias().load(Acquire);
    loop {
        let holder = Holder::of(seen);
        let mine = me.filter(|me| *me == holder);
        let next = match seen & state::MASK {
            state::SHARED => return Ok(Admission::Shared(Note::SHARED)),
            state::LOCKED | state::LOCKING => {
                return Ok(Admission::Shared(Note::SHARED_BY_LOCK));
            }
            state::HELD => {
                if let Some(alone) = mine.and_then(|me| try_alone(words, me)) {
                    return Ok(Admission::Alone(alone));
                }
                holder.word(state::REVOKED)
            }
            state::REVOKED => {
                // One fence for all who wait.
                if mine.is_none() {
                    fence_all()?;
                }
                holder.word(state::FENCED)
            }
            state::FENCED => {
                if is_busy(words) {
                    return Ok(Admission::Busy);
                }
                holder.word(shared(true))
            }
            _ => {
                words.earned().store(EARNED_FIRST, Relaxed);
                me.map_or(shared(false), |me| me.word(state::HELD))
            }
        };
        // Of several threads that want something else of the word, one has its way.
        seen = match words.bias().compare_exchange(seen, next, AcqRel, Acquire) {
            Ok(_) => next,
            Err(now) => now,
        };
    }
}

/// Has integers combined under the locks of stripes if only this thread has kept all from that,
/// which held the bias. It calls `set`, so that it has noted nothing any more by which it would
/// combine them without a lock.
pub(crate) fn settle(words: impl Biased, me: Holder, set: impl FnOnce(Note)) {
    let seen = me.word(state::LOCKING);
    if words.bias().load(Relaxed) == seen {
        set(Note::SHARED_BY_LOCK);
        // Others may be in the middle of atomics, each under the lock that plain vectors need, too.
        // One that fails has been overtaken by one that has all combine by atomics.
        _ = words.bias().compare_exchange(seen, me.word(state::LOCKED), Release, Relaxed);
    }
}

/// The rank whose thread holds the bias, or held it until it was revoked.
pub(crate) fn holder(words: impl Biased) -> Option<Rank> {
    let word = words.bias().load(Relaxed);
    let is_biased = matches!(word & state::MASK, state::HELD | state::REVOKED | state::FENCED);
    is_biased.then(|| Holder::of(word).rank)
}

/// Whether that thread is in the middle of something: for ever, if its rank has left.
pub(crate) fn is_busy(words: impl Biased) -> bool {
    // pairs with the Release store of `Alone`.
    words.busy().load(Acquire) != 0
}

/// What a thread may note of a part: whether all combine there, or it holds the bias.
pub(crate) fn note(words: impl Biased, me: Holder, integers: Integers) -> Note {
    // pairs with the Release exchanges in `admit`.
    let word = words.bias().load(Acquire);
    match word & state::MASK {
        state::SHARED => Note::SHARED,
        state::LOCKED | state::LOCKING => Note::SHARED_BY_LOCK,
        state::HELD if word == me.word(state::HELD) => Note::held(me, integers),
        _ => Note::NOTHING,
    }
}

/// As if a thread of `rank` had come first, and perhaps were in the middle of something.
#[cfg(test)]
pub(crate) fn hold_as(words: impl Biased, rank: Rank, is_busy: bool) {
    words.busy().store(is_busy.into(), Release);
    words.bias().store(Holder { rank, token: 4 }.word(state::HELD), Release);
}

#[cfg(all(test, loom))]
#[path = "bias_loom_tests.rs"]
mod loom_tests;
