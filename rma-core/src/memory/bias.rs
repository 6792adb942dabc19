//! The bias of a part towards one thread, which combines elements of it alone.
//!
//! As long as one thread of one rank is the only one that combines elements of a part, it does so
//! by plain vectors, between two stores to a line of its own. Any other thread first revokes the
//! bias, once in the life of the window, and waits until the holder is not in the middle of
//! something; from then on all combine by atomics and under the locks of
//! [stripes](super::stripe), the former holder too
//! (docs/adr/0102-a-part-is-biased-to-who-combines-alone.md).
use super::accumulate::Integers;
use super::control_block::ControlBlock;
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
    /// No thread combines alone, now or later.
    pub(super) const SHARED: u64 = 4;
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

    /// Of a part where all combine.
    pub(crate) fn shared(integers: Integers) -> Self {
        match integers {
            Integers::ByAtomics => Self::SHARED,
            Integers::ByLock => Self::SHARED_BY_LOCK,
        }
    }

    /// A thread of this rank holds the bias.
    fn held(by: Holder, integers: Integers) -> Self {
        match integers {
            Integers::ByAtomics => Self(by.token),
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

    /// Whether all combine.
    #[inline(always)]
    pub(crate) fn is_shared(&self) -> bool {
        matches!(Note(self.load()), Note::SHARED | Note::SHARED_BY_LOCK)
    }

    /// How a thread combines elements, of a type that is perhaps atomic, as far as that is noted.
    #[inline(always)]
    pub(crate) fn mechanism<B: Biased>(
        &self,
        is_atomic: bool,
        me: Holder,
        words: impl FnOnce() -> Option<B>,
    ) -> Option<Mechanism<B>> {
        match Note(self.load()) {
            Note::SHARED if is_atomic => Some(Mechanism::Atomics),
            Note::SHARED | Note::SHARED_BY_LOCK => Some(Mechanism::Stripes),
            Note(noted) if noted & !Note::BY_LOCK == me.token => {
                try_alone(words()?, me).map(Mechanism::Alone)
            }
            Note(_) => None,
        }
    }
}

/// How a thread combines elements of a part.
pub(crate) enum Mechanism<B: Biased> {
    Alone(Alone<B>),
    /// One by one, as the machine does.
    Atomics,
    /// Under the locks of their stripes.
    Stripes,
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
pub(crate) trait Biased: Copy {
    /// Who holds it, and what became of it.
    fn bias(&self) -> &impl Word<Value = u64>;
    /// Not 0 while the holder combines. Written by the holder, or one that was it and has yet to
    /// see that it is no more.
    fn busy(&self) -> &impl Word<Value = u64>;
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
}

/// While it lives, this thread alone combines elements of the part. S-H4 S-H6
pub(crate) struct Alone<B: Biased>(B);

/// That of a block.
pub(crate) type AloneIn<'a> = Alone<ControlBlock<'a>>;

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
    /// By atomics, and under the locks of stripes: from now on.
    Shared,
    /// Not yet: the one that held the bias is in the middle of something.
    Busy,
}

/// Comes to a part to combine elements: takes the bias if no thread has come before, unless this
/// one may hold none, and revokes that of another. `fence_all` has all threads of ranks that are
/// near pass a fence.
#[cold]
pub(crate) fn admit<B: Biased, E>(
    words: B,
    me: Option<Holder>,
    fence_all: impl Fn() -> Result<(), E>,
) -> Result<Admission<B>, E> {
    // pairs with the Release exchanges below: what was combined alone is seen.
    let mut seen = words.bias().load(Acquire);
    loop {
        let holder = Holder::of(seen);
        let mine = me.filter(|me| *me == holder);
        let next = match seen & state::MASK {
            state::SHARED => return Ok(Admission::Shared),
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
                state::SHARED
            }
            _ => me.map_or(state::SHARED, |me| me.word(state::HELD)),
        };
        // Of several threads that want something else of the word, one has its way.
        seen = match words.bias().compare_exchange(seen, next, AcqRel, Acquire) {
            Ok(_) => next,
            Err(now) => now,
        };
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
        state::SHARED => Note::shared(integers),
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
