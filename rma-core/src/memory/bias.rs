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

/// What [`Target`](super::target::Target) knows of the bias of a part; otherwise, the
/// [token](thread::token) of the thread that holds it.
pub(crate) mod known {
    use super::Integers;

    pub(crate) const NOTHING: u16 = 3;
    /// All combine, integers by atomics.
    pub(crate) const SHARED: u16 = 1;
    /// All combine, integers by lock.
    pub(crate) const SHARED_BY_LOCK: u16 = 2;
    /// Beside a token: integers are combined by lock as soon as the bias is revoked, and so not by
    /// atomics before.
    pub(crate) const BY_LOCK: u16 = 1 << 15;

    /// Of a part where all combine.
    pub(crate) fn shared(integers: Integers) -> u16 {
        match integers {
            Integers::ByAtomics => SHARED,
            Integers::ByLock => SHARED_BY_LOCK,
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

/// Comes to a part to combine elements: takes the bias if no thread has come before, and revokes
/// that of another. `fence_all` has all threads of ranks that are near pass a fence.
#[cold]
pub(crate) fn admit<B: Biased, E>(
    words: B,
    rank: Rank,
    fence_all: impl Fn() -> Result<(), E>,
) -> Result<Admission<B>, E> {
    let me = thread::take_token().map(|token| Holder { rank, token });
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

/// What an origin may note of a part: whether all combine there, or this thread holds the bias.
pub(crate) fn known(words: impl Biased, rank: Rank, integers: Integers) -> u16 {
    // pairs with the Release exchanges in `admit`.
    let (word, me) = (words.bias().load(Acquire), Holder::this(rank));
    match (word & state::MASK, integers) {
        (state::SHARED, _) => known::shared(integers),
        (state::HELD, Integers::ByAtomics) if word == me.word(state::HELD) => me.token,
        (state::HELD, Integers::ByLock) if word == me.word(state::HELD) => {
            me.token | known::BY_LOCK
        }
        _ => known::NOTHING,
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
