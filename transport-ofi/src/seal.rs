//! Tags and numbers of messages: a process that lacks the key of the job can make none, change
//! none, and send none again. What is said is not hidden.

use crate::frame::{NUMBER_AT, TAG};
use crate::profile::Seed;
use highway::{HighwayHash, HighwayHasher, Key};
use hmac_sha256::HMAC;
use rma_core::transport::WorldRank;

/// What ranks of a job know, and others do not; zeros where the launcher has told them nothing of
/// the kind.
#[derive(Clone, Copy, Default)]
pub struct JobSecret(pub [u8; 32]);

impl std::fmt::Debug for JobSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(secret)")
    }
}

/// The key of a job, which its ranks alone know.
#[derive(Clone)]
pub(crate) struct JobKey(pub(crate) [u8; 32]);

impl JobKey {
    /// Made of what the launcher told ranks only, and of what rank 0 has drawn.
    pub(crate) fn new(secret: &JobSecret, seed: &Seed) -> Self {
        Self(HMAC::mac([&b"rma job 1"[..], seed].concat(), secret.0))
    }

    /// What makes the tags of all that one rank sends to another: HighwayHash with a key of this
    /// pair and direction, so that no message is taken by another rank, or by its sender.
    fn hasher(&self, from: WorldRank, to: WorldRank) -> HighwayHasher {
        let mut mac = HMAC::new(self.0);
        mac.update(b"rma message 1");
        mac.update(from.0.to_le_bytes());
        mac.update(to.0.to_le_bytes());
        let (mut key, bytes) = ([0; 4], mac.finalize());
        for (word, bytes) in key.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        HighwayHasher::new(Key(key))
    }
}

fn tag(hasher: &HighwayHasher, message: &[u8]) -> u64 {
    hasher.clone().hash64(message.get(TAG..).unwrap_or_default())
}

fn has_tag(hasher: &HighwayHasher, message: &[u8]) -> bool {
    let its = message.first_chunk().map(|tag| u64::from_le_bytes(*tag));
    // One comparison, which takes as long wherever they differ.
    its.is_some_and(|its| its ^ tag(hasher, message) == 0)
}

/// Whether the first message that comes from a rank has its tag.
pub(crate) fn is_of(key: &JobKey, (from, to): (WorldRank, WorldRank), message: &[u8]) -> bool {
    has_tag(&key.hasher(from, to), message)
}

/// Seals what one rank sends to another.
pub(crate) struct Sealer {
    hasher: HighwayHasher,
    /// The number of the next message; the first of all is 1.
    next: u64,
}

impl Sealer {
    pub(crate) fn new(key: &JobKey, from: WorldRank, to: WorldRank) -> Self {
        Self { hasher: key.hasher(from, to), next: 1 }
    }

    /// Writes number and tag into a message that is complete but for them.
    pub(crate) fn seal(&self, message: &mut [u8]) {
        if let Some(number) = message.get_mut(NUMBER_AT..).and_then(<[u8]>::first_chunk_mut) {
            *number = self.next.to_le_bytes();
        }
        let tag = tag(&self.hasher, message);
        if let Some(its) = message.first_chunk_mut() {
            *its = tag.to_le_bytes();
        }
    }

    /// The message that was sealed last is on its way: the next has another number.
    pub(crate) fn sent(&mut self) {
        self.next += 1;
    }
}

/// Why a message is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It has no tag of the job's: made up, or altered.
    Foreign,
    /// It has come before.
    Again,
}

/// Opens what another rank sends to this one.
pub(crate) struct Opener {
    hasher: HighwayHasher,
    numbers: Numbers,
}

impl Opener {
    pub(crate) fn new(key: &JobKey, from: WorldRank, to: WorldRank) -> Self {
        Self { hasher: key.hasher(from, to), numbers: Numbers::default() }
    }

    /// Whether a message is the sender's, and comes for the first time.
    pub(crate) fn open(&mut self, message: &[u8]) -> Result<(), Refused> {
        let number = message.get(NUMBER_AT..).and_then(<[u8]>::first_chunk);
        let number = number.filter(|_| has_tag(&self.hasher, message)).ok_or(Refused::Foreign)?;
        let is_new = self.numbers.is_new(u64::from_le_bytes(*number));
        is_new.then_some(()).ok_or(Refused::Again)
    }
}

/// Numbers that are kept behind the highest: providers may let messages overtake each other. One
/// that more than so many have overtaken is refused as if it had come before.
const KEPT: u64 = 1024;

/// Which numbers of a peer have come: each counts once.
#[derive(Default)]
struct Numbers {
    highest: u64,
    /// By their last bits.
    seen: [u64; (KEPT / 64) as usize],
}

impl Numbers {
    /// Whether it is the first message of that number.
    fn is_new(&mut self, number: u64) -> bool {
        if number <= self.highest.saturating_sub(KEPT) {
            return false;
        }
        let place = |number: u64| ((number % KEPT / 64) as usize, 1 << (number % 64));
        // Those between have not come, and stand where old ones stood.
        for later in (self.highest + 1).max(number.saturating_sub(KEPT - 1))..=number {
            let (word, bit) = place(later);
            self.seen[word] &= !bit;
        }
        self.highest = self.highest.max(number);
        let (word, bit) = place(number);
        let is_new = number > 0 && self.seen[word] & bit == 0;
        self.seen[word] |= bit;
        is_new
    }
}

#[cfg(test)]
#[path = "seal_tests.rs"]
mod tests;
