//! The distance between two CPUs: the round trip of a cache line.
use crate::Result;
use crate::raw::Raw;
use crate::record::Summary;
use rma::{Communicator, Rank};
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
use std::time::Instant;

const BATCHES: u64 = 41;
const TRIPS: u64 = 100;
/// Apart by more than what is fetched at a time.
const REPLY_AT: usize = 256;

/// Two words in the part of rank 0: a question and its reply.
pub(crate) struct Flags<'w> {
    pub(crate) request: &'w AtomicU64,
    pub(crate) reply: &'w AtomicU64,
}

impl<'w> Flags<'w> {
    /// Bytes of a part that holds them.
    pub(crate) const BYTES: usize = 512;

    pub(crate) fn new(part: &Raw<'w>) -> Self {
        Self { request: part.word64(0), reply: part.word64(REPLY_AT) }
    }
}

/// Waits, awake, for a word that grows to become `value`, or to be past it already.
#[inline]
pub(crate) fn await_at_least(word: &AtomicU64, value: u64) {
    // pairs with the Release stores of the other rank.
    while word.load(Acquire) < value {
        spin_loop();
    }
}

/// Nanoseconds of a round trip between the two ranks of `world`, which run at the same time.
/// **Collective.**
pub(crate) fn hop_ns(world: &Communicator) -> Result<f64> {
    let window = world.window(Flags::BYTES, 1).allocate()?;
    let flags = Flags::new(&Raw::new(&window.shared_query(Rank(0))?));
    let is_first = world.rank() == Rank(0);
    world.barrier()?;
    let mut trips = 0;
    let mut batches = Vec::new();
    for _ in 0..BATCHES {
        let start = Instant::now();
        for _ in 0..TRIPS {
            trips += 1;
            if is_first {
                // pairs with `await_at_least` of rank 1.
                flags.request.store(trips, Release);
                await_at_least(flags.reply, trips);
            } else {
                await_at_least(flags.request, trips);
                // pairs with `await_at_least` of rank 0.
                flags.reply.store(trips, Release);
            }
        }
        batches.push(start.elapsed().as_nanos() as f64 / TRIPS as f64);
    }
    world.barrier()?;
    window.free()?;
    Ok(Summary::of(&batches, TRIPS).median)
}
